//! Records that name an unknown vCPU or CPU.

use core::fmt;

use slackline_units::{CpuId, VcpuId};

/// A record names an unknown vCPU or CPU. Either the trace or the host that wrote it is faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrayRecord {
    /// Number of the record, counted from zero.
    pub record: u64,
    /// The unknown vCPU or CPU that the record names.
    pub who: Unknown,
}

/// Unknown vCPU or CPU that a record names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// A vCPU that was not named before.
    Vcpu(VcpuId),
    /// A CPU that the header of the trace does not list.
    Cpu(CpuId),
}

impl fmt::Display for StrayRecord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.record;
        match self.who {
            Unknown::Vcpu(vcpu) => {
                write!(out, "trace record {record} is about {vcpu}, which no earlier record names")
            }
            Unknown::Cpu(cpu) => {
                write!(out, "trace record {record} is about {cpu}, which the host does not have")
            }
        }
    }
}

impl core::error::Error for StrayRecord {}

/// First stray record, and the number of records so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Strays {
    records: u64,
    first: Option<StrayRecord>,
}

impl Strays {
    /// Counts one more record.
    #[inline]
    pub(crate) fn count(&mut self) {
        self.records += 1;
    }

    /// Records that the last record names an unknown vCPU or CPU.
    #[cold]
    pub(crate) fn add(&mut self, who: Unknown) {
        self.first = self.first.or(Some(StrayRecord { record: self.records - 1, who }));
    }

    /// Returns the first stray record as an error, if there was a stray record.
    pub(crate) fn check(self) -> Result<(), StrayRecord> {
        self.first.map_or(Ok(()), Err)
    }
}
