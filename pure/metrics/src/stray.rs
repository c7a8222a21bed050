//! Records that fit nowhere.

use core::fmt;

use slackline_units::{CpuId, VcpuId};

/// A record of somebody who is not known: the trace is wrong, or the machine that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrayRecord {
    /// Which record, counted from zero.
    pub record: u64,
    /// Who is not known.
    pub who: Unknown,
}

/// Who is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// A vCPU that was not named before.
    Vcpu(VcpuId),
    /// A CPU that the header does not have.
    Cpu(CpuId),
}

impl fmt::Display for StrayRecord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.record;
        match self.who {
            Unknown::Vcpu(vcpu) => {
                write!(out, "record {record} is about {vcpu}, which no record named before")
            }
            Unknown::Cpu(cpu) => {
                write!(out, "record {record} is about {cpu}, which the host does not have")
            }
        }
    }
}

impl core::error::Error for StrayRecord {}

/// The first stray record, and how many records there have been.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Strays {
    records: u64,
    first: Option<StrayRecord>,
}

impl Strays {
    /// One more record comes.
    #[inline]
    pub(crate) fn count(&mut self) {
        self.records += 1;
    }

    /// The record that came last is of somebody who is not known.
    #[cold]
    pub(crate) fn add(&mut self, who: Unknown) {
        self.first = self.first.or(Some(StrayRecord { record: self.records - 1, who }));
    }

    /// An error if there was one.
    pub(crate) fn check(self) -> Result<(), StrayRecord> {
        self.first.map_or(Ok(()), Err)
    }
}
