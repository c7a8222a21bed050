//! Times in which the waits of each vCPU are known.
//!
//! Until a vCPU has joined, its thread can run on CPUs that are not recorded. After the end of the
//! recording, the trace can still have records of vCPUs, but it has no more run intervals of
//! threads. So a wait before the join or after the end has no known cause, and is not counted.

use std::collections::BTreeMap;

use slackline_trace::Record;
use slackline_units::{Time, VcpuId};

/// Times at which vCPUs joined and left, and the end of the recording.
#[derive(Debug, Default)]
pub(super) struct Windows {
    joined: BTreeMap<VcpuId, Time>,
    left: BTreeMap<VcpuId, Time>,
    ended: Option<Time>,
}

impl Windows {
    pub(super) fn record(&mut self, record: &Record) {
        match *record {
            Record::Joined { at, vcpu } => {
                self.joined.entry(vcpu).or_insert(at);
                self.left.remove(&vcpu);
            }
            Record::Left { at, vcpu } => {
                self.left.insert(vcpu, at);
            }
            Record::Ended { at } => self.ended = Some(at),
            _ => {}
        }
    }

    /// Returns the end of the recording. If the recording does not state its end, returns `last`,
    /// the time of its last record.
    pub(super) fn end_or(&self, last: Time) -> Time {
        self.ended.unwrap_or(last)
    }

    /// Returns the time in which the waits of a vCPU are known, in a recording that ends at `end`.
    /// This time begins at the start of the trace if the recording does not contain the join of the
    /// vCPU.
    pub(super) fn of(&self, vcpu: VcpuId, end: Time) -> (Time, Time) {
        let from = self.joined.get(&vcpu).copied().unwrap_or(Time::START);
        let to = self.left.get(&vcpu).map_or(end, |left| end.min(*left));
        (from, to)
    }
}
