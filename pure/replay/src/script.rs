//! Hardware for a replay. It gives the recorded answers, and compares the orders that it receives
//! with the trace.

use std::collections::VecDeque;

use slackline_host::Hardware;
use slackline_trace::{CpuUse, Exchange, KeptFact, Order, Outcome};
use slackline_units::{CpuId, Time};

/// One step of the recorded run: an event, and the orders, timers, refusals and measurements that
/// followed from it.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) now: Time,
    pub(crate) fact: KeptFact,
    /// CPU time that was reported together with the event.
    pub(crate) noticed: Vec<CpuUse>,
    /// Recorded measurements of the hardware, in order, each with its index in the trace.
    pub(crate) measured: VecDeque<(u64, CpuUse)>,
    /// Recorded orders, timers and refusals of the host layer in this step, in order, each with its
    /// index in the trace.
    pub(crate) told: VecDeque<(u64, Exchange)>,
}

/// Difference between a replayed step and the trace, with the index of the entry that differs.
#[derive(Clone, Debug)]
pub(crate) struct Mismatch {
    pub(crate) entry: Option<u64>,
    pub(crate) expected: Option<Exchange>,
    pub(crate) got: Option<Exchange>,
}

/// Hardware that replays one recorded step.
pub(crate) struct Script<'a> {
    pub(crate) step: &'a mut Step,
    /// Expiry time of each CPU's timer, as the replay last set it. `None` if the timer is cleared.
    pub(crate) alarms: &'a mut [Option<Time>],
    pub(crate) orders: u64,
    pub(crate) mismatch: Option<Mismatch>,
}

impl Script<'_> {
    /// Compares an order, timer or refusal with the next recorded one. Returns the recorded outcome
    /// if both are the same order. Otherwise returns [`Outcome::Done`].
    pub(crate) fn tell(&mut self, got: Exchange) -> Outcome {
        if self.mismatch.is_some() {
            return Outcome::Done;
        }
        let next = self.step.told.pop_front();
        let (entry, expected) = next.unzip();
        match (&expected, &got) {
            (
                Some(Exchange::Ordered { order, outcome }),
                Exchange::Ordered { order: other, .. },
            ) if order == other => *outcome,
            (Some(expected), got) if expected == got => Outcome::Done,
            _ => {
                self.mismatch = Some(Mismatch { entry, expected, got: Some(got) });
                Outcome::Done
            }
        }
    }

    /// Ends the step. A recorded order, timer, refusal or measurement that is left now is a
    /// mismatch.
    pub(crate) fn over(&mut self) {
        let measured =
            self.step.measured.pop_front().map(|(entry, used)| (entry, Exchange::Measured(used)));
        if let Some((entry, expected)) = self.step.told.pop_front().or(measured)
            && self.mismatch.is_none()
        {
            let (entry, expected) = (Some(entry), Some(expected));
            self.mismatch = Some(Mismatch { entry, expected, got: None });
        }
    }
}

impl Hardware for Script<'_> {
    fn measure(&mut self, cpu: CpuId, _: Time) -> Option<CpuUse> {
        let place = self.step.measured.iter().position(|(_, used)| used.cpu == cpu)?;
        self.step.measured.remove(place).map(|(_, used)| used)
    }

    fn carry_out(&mut self, order: Order) -> Outcome {
        self.orders += 1;
        self.tell(Exchange::Ordered { order, outcome: Outcome::Done })
    }

    fn set_alarm(&mut self, cpu: CpuId, alarm: Option<Time>) {
        if std::mem::replace(&mut self.alarms[cpu.index()], alarm) != alarm {
            self.tell(Exchange::AlarmSet { cpu, alarm });
        }
    }
}
