//! Hardware that answers as a recorded one did, and holds what it is told against what that was
//! told.

use std::collections::VecDeque;

use slackline_host::Hardware;
use slackline_trace::{Exchange, KeptFact, Order, Outcome, Used};
use slackline_units::{CpuId, Time};

/// One step as it was recorded.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) now: Time,
    pub(crate) fact: KeptFact,
    /// CPU time that came with the fact.
    pub(crate) noticed: Vec<Used>,
    /// What the hardware answered, in order.
    pub(crate) measured: VecDeque<(u64, Used)>,
    /// What the hardware was told, in order.
    pub(crate) told: VecDeque<(u64, Exchange)>,
}

/// What was told otherwise, and with which entry of the trace.
#[derive(Clone, Debug)]
pub(crate) struct Mismatch {
    pub(crate) entry: Option<u64>,
    pub(crate) expected: Option<Exchange>,
    pub(crate) got: Option<Exchange>,
}

/// The hardware of one step.
pub(crate) struct Script<'a> {
    pub(crate) step: &'a mut Step,
    /// By CPU: the alarm as it was told last.
    pub(crate) alarms: &'a mut [Option<Time>],
    pub(crate) orders: u64,
    pub(crate) mismatch: Option<Mismatch>,
}

impl Script<'_> {
    /// The next that was told must be this; how it went.
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

    /// Nothing more is told: whatever was told or measured besides is missing.
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
    fn measure(&mut self, cpu: CpuId, _: Time) -> Option<Used> {
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
