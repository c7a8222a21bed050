//! Current timeslice of each CPU, and the CPU time used in it so far.

use slackline_policy::{Entitlement, TimesliceEnd};
use slackline_trace::{RanEnd, Record, Sink};
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::CpuUse;
use crate::check::{Broken, Fault};

/// Timeslice that was last ordered on a CPU: the vCPU, the end and the entitlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) vcpu: VcpuId,
    pub(crate) until: Option<Time>,
    pub(crate) entitlement: Entitlement,
}

/// Run interval that has not been written to the trace yet. In a run interval, a vCPU runs on a CPU
/// without interruption.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    vcpu: VcpuId,
    from: Time,
    to: Time,
    used: Span,
    /// Maximum length of the timeslice. `None` if the timeslice had no limit.
    granted: Option<Span>,
    /// CPU time that the vCPU used after the end of its timeslice.
    late: Span,
    /// True if the vCPU ran on reserved time, false if on slack.
    due: bool,
}

/// Timeslice and run interval of one CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    turn: Option<Turn>,
    /// Maximum length of the timeslice, as it was ordered. `None` if the timeslice had no limit.
    granted: Option<Span>,
    /// Time at which the timeslice was ordered.
    ordered: Time,
    /// True if the timeslice has ended since it was ordered.
    is_over: bool,
    /// True if the timeslice has ended because the timer of its limit expired. That timer can
    /// expire early. The hardware then has no timer for the rest of the timeslice.
    is_timer_spent: bool,
    stretch: Option<Stretch>,
    /// End of the last interval for which CPU time on this CPU was reported.
    reported: Time,
}

/// Timeslices and run intervals of all CPUs.
pub(crate) struct Turns {
    cpus: Vec<Cpu>,
}

impl Turns {
    pub(crate) fn new(cpus: usize) -> Turns {
        Turns { cpus: vec![Cpu::default(); cpus] }
    }

    /// Returns the current timeslice on a CPU. `None` if the CPU is idle.
    #[inline]
    pub(crate) fn current(&self, cpu: CpuId) -> Option<&Turn> {
        self.cpus[cpu.index()].turn.as_ref()
    }

    /// Returns the end of the last interval for which CPU time on a CPU was reported.
    #[inline]
    pub(crate) fn reported(&self, cpu: CpuId) -> Time {
        self.cpus[cpu.index()].reported
    }

    /// Begins the timeslice `turn` on a CPU. `granted` is the maximum length of the timeslice.
    #[inline]
    pub(crate) fn begin(&mut self, cpu: CpuId, turn: Turn, granted: Option<Span>, now: Time) {
        let cpu = &mut self.cpus[cpu.index()];
        cpu.turn = Some(turn);
        cpu.granted = granted;
        cpu.ordered = now;
        cpu.is_over = false;
        cpu.is_timer_spent = false;
    }

    /// Ends the timeslice on a CPU. The same vCPU may get the next timeslice.
    #[inline]
    pub(crate) fn end(&mut self, cpu: CpuId, why: TimesliceEnd) {
        let cpu = &mut self.cpus[cpu.index()];
        cpu.is_over = true;
        cpu.is_timer_spent |= why == TimesliceEnd::Limit;
    }

    /// Returns true if the hardware already carries out the timeslice `turn` on a CPU, so that it
    /// needs no order. A timeslice whose limit timer has expired needs a new order even if `turn`
    /// is equal to it. Otherwise the vCPU would run without a limit.
    #[inline]
    pub(crate) fn is_in_force(&self, cpu: CpuId, turn: &Turn) -> bool {
        let cpu = &self.cpus[cpu.index()];
        !cpu.is_timer_spent && cpu.turn.as_ref() == Some(turn)
    }

    /// Returns the timeslice `turn`, cut off at the end of the current timeslice if the CPU has not
    /// been measured up to `now`. The policy then does not know all CPU time that the vCPU has
    /// used, and sets the end too late. Returns `turn` unchanged if the current timeslice is over,
    /// or has another vCPU or entitlement. Only live hardware needs this: it can report an event of
    /// one CPU before it has measured another CPU.
    #[inline]
    pub(crate) fn until_it_is_measured(&self, cpu: CpuId, turn: Turn, now: Time) -> Turn {
        let cpu = &self.cpus[cpu.index()];
        if cpu.is_over || cpu.reported.max(cpu.ordered) >= now {
            return turn;
        }
        let goes_on =
            |before: &Turn| before.vcpu == turn.vcpu && before.entitlement == turn.entitlement;
        let ends = cpu.turn.filter(goes_on).and_then(|before| before.until);
        Turn { until: turn.until.map(|until| ends.map_or(until, |ends| until.min(ends))), ..turn }
    }

    /// Removes and returns the current timeslice of a CPU. `None` if the CPU is idle.
    #[inline]
    pub(crate) fn take(&mut self, cpu: CpuId) -> Option<Turn> {
        self.cpus[cpu.index()].turn.take()
    }

    /// Adds measured CPU time to the run interval of its CPU.
    #[inline(always)]
    pub(crate) fn add<S: Sink>(&mut self, used: CpuUse, sink: &mut S) -> Result<(), Box<Fault>> {
        let cpu = &mut self.cpus[used.cpu.index()];
        if used.from < cpu.reported {
            return Err(Fault::broken(Broken::UsedTwice { used, reported: cpu.reported }));
        }
        cpu.reported = used.to;
        if used.ran.is_zero() {
            return Ok(());
        }
        let (due, limit, granted) = match &cpu.turn {
            Some(turn) if turn.vcpu == used.vcpu => {
                let due = turn.entitlement != Entitlement::Spare;
                (due, turn.until.unwrap_or(Time::NEVER), cpu.granted)
            }
            _ => (false, Time::NEVER, None),
        };
        let late = used.to.since(limit.max(used.from)).min(used.ran);
        match &mut cpu.stretch {
            Some(stretch)
                if stretch.vcpu == used.vcpu && stretch.to == used.from && stretch.due == due =>
            {
                stretch.to = used.to;
                stretch.used += used.ran;
                stretch.late += late;
            }
            other => {
                let CpuUse { vcpu, from, to, ran, .. } = used;
                let next = Stretch { vcpu, from, to, used: ran, granted, late, due };
                if let Some(before) = other.replace(next) {
                    write(before, used.cpu, RanEnd::Preempted, sink);
                }
            }
        }
        Ok(())
    }

    /// Ends the run interval on a CPU for the reason `end`. Does nothing if the CPU has no open run
    /// interval.
    #[inline]
    pub(crate) fn close<S: Sink>(&mut self, cpu: CpuId, end: RanEnd, sink: &mut S) {
        if let Some(stretch) = self.cpus[cpu.index()].stretch.take() {
            write(stretch, cpu, end, sink);
        }
    }

    /// Ends the run interval on a CPU for the reason `end`. Does nothing if `vcpu` is not the vCPU
    /// of that interval.
    #[inline]
    pub(crate) fn close_of<S: Sink>(
        &mut self,
        vcpu: VcpuId,
        cpu: CpuId,
        end: RanEnd,
        sink: &mut S,
    ) {
        let stretch = &self.cpus[cpu.index()].stretch;
        if stretch.is_some_and(|stretch| stretch.vcpu == vcpu) {
            self.close(cpu, end, sink);
        }
    }

    /// Ends the run intervals on all CPUs for the reason `end`.
    #[inline]
    pub(crate) fn close_all<S: Sink>(&mut self, end: RanEnd, sink: &mut S) {
        for index in 0..self.cpus.len() {
            self.close(CpuId::new(index), end, sink);
        }
    }
}

/// Writes a run interval that has ended to the trace.
fn write<S: Sink>(stretch: Stretch, cpu: CpuId, end: RanEnd, sink: &mut S) {
    let Stretch { vcpu, from, to, used, granted, late, due } = stretch;
    sink.record(&Record::Ran { vcpu, cpu, from, to, used, granted, late, end, due });
}
