//! CPUs that went offline during a recording. The kernel removes the perf events of such a CPU, and
//! reports no further events of the CPU, even after the CPU is online again.

use std::collections::BTreeSet;

use slackline_trace::Sink;
use slackline_units::{CpuId, CpuSet, Span, Time};

use super::assembler::Assembler;
use super::identity::Identify;

/// Interval at which the online CPUs are read.
const INTERVAL: Span = Span::from_secs(1);

/// Recorded CPUs that were offline at any time since the recording began.
#[derive(Debug)]
pub struct OfflineCpus {
    cpus: BTreeSet<CpuId>,
    looked: Time,
}

impl OfflineCpus {
    /// Creates an empty list for a recording that begins at `origin` on the monotonic clock.
    #[must_use]
    pub fn new(origin: Time) -> OfflineCpus {
        OfflineCpus { cpus: BTreeSet::new(), looked: origin }
    }

    /// Handles CPUs that are or were offline: ends the run intervals on them, and records that
    /// their events since the last call are missing. Does nothing if the last call was less than a
    /// second ago. `now` is the monotonic time up to which events were converted.
    pub fn look<I: Identify>(
        &mut self,
        (assembler, recorded): (&mut Assembler<I>, &[CpuId]),
        now: Time,
        online: impl FnOnce() -> Option<CpuSet>,
        sink: &mut impl Sink,
    ) {
        if now.since(self.looked) < INTERVAL {
            return;
        }
        let since = std::mem::replace(&mut self.looked, now);
        let Some(online) = online() else { return };
        self.cpus.extend(recorded.iter().filter(|cpu| !online.contains(**cpu)));
        for &cpu in &self.cpus {
            assembler.vacate(cpu, now, sink);
            assembler.lost(cpu, (since, now), 1, sink);
        }
    }
}
