//! Division of run intervals that have not ended.

use slackline_trace::{OffCpu, Sink};
use slackline_units::{CpuId, Span, Time};

use super::Assembler;
use crate::recorder::identity::Identify;

impl<I: Identify> Assembler<I> {
    /// Records the part up to `now` of each run interval that has not ended. Run intervals that are
    /// shorter than `least` are not recorded yet. `now` is the monotonic time up to which events
    /// were converted.
    pub fn split(&mut self, now: Time, least: Span, sink: &mut impl Sink) {
        let reals: Vec<CpuId> = self.cpus.keys().copied().collect();
        for real in reals {
            let Some((tid, since)) = self.cpus[&real].occupant else { continue };
            if now > since && now.since(since) >= least {
                self.on_cpu((real, tid), (since, now), OffCpu::Unknown, sink);
                self.set_occupant(real, Some((tid, now)), now);
            }
        }
    }
}
