//! Work that a trace asks of its reader, bounded by the amount that was read.
//!
//! Metrics count periods, seconds and tenths of seconds. A few bytes can claim that a run took
//! centuries, or that a period is a nanosecond. So a trace may ask for [`STEPS`] such steps, and
//! for [`STEPS_OF_ENTRY`] more with each entry. A recorded run asks for a few per entry.

use core::fmt;
use std::collections::BTreeMap;

use slackline_units::{Span, Time, VcpuId};

use crate::record::Record;
use crate::sink::{Sink, VcpuName};

/// Steps that any trace may ask for: a few seconds of work.
const STEPS: u64 = 100_000_000;

/// Further steps for each entry.
const STEPS_OF_ENTRY: u64 = 10_000;

/// The longest time that a record may say of itself. Sums of many still fit.
const LONGEST: Span = Span::from_secs(365 * 24 * 3600);

/// Steps for each vCPU in a second, whatever it is promised: it has a data point in each tenth.
const STEPS_A_SECOND: u64 = 100;

/// A step a nanosecond as a whole number, so that slower rates are one too.
const ONE: u128 = 1 << 40;

/// A trace tells of more time than so few entries can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Implausible {
    /// The first entry that does, counted from one.
    pub entry: u64,
}

impl fmt::Display for Implausible {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = self.entry;
        write!(out, "entry {entry} of the trace tells of more time than so few entries can")
    }
}

impl core::error::Error for Implausible {}

/// Adds up the work that a trace asks for.
#[derive(Debug, Default)]
pub struct Effort {
    entries: u64,
    /// The first entry that asked for too much.
    refused: Option<Implausible>,
    now: Time,
    /// Steps so far, times [`ONE`].
    steps: u128,
    /// Steps a nanosecond, times [`ONE`].
    rate: u128,
    vcpus: BTreeMap<VcpuId, Rate>,
}

/// Contribution of a vCPU to the rate of steps.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    /// Periods per nanosecond, times [`ONE`]. Periods in which the vCPU is blocked take no steps.
    periods: u128,
    is_asleep: bool,
}

impl Effort {
    /// Checks that the trace asks for no more work than its size allows.
    ///
    /// # Errors
    /// If it asks for more, or a record claims a length of time above a year.
    pub fn check(&self) -> Result<(), Implausible> {
        self.refused.map_or(Ok(()), Err)
    }

    fn advance(&mut self, at: Time, record: &Record) -> bool {
        let passed = at.since(self.now.min(at));
        self.now = self.now.max(at);
        self.steps = self.steps.saturating_add(u128::from(passed.ns()).saturating_mul(self.rate));
        self.note(record);
        let most = STEPS.saturating_add(STEPS_OF_ENTRY.saturating_mul(self.entries));
        self.steps / ONE <= u128::from(most)
    }

    fn note(&mut self, record: &Record) {
        let (vcpu, change): (VcpuId, fn(&mut Rate)) = match *record {
            Record::Promised { vcpu, reservation, .. } => {
                let periods = reservation.map_or(0, |it| ONE / u128::from(it.period().ns().max(1)));
                return self.change(vcpu, |rate| rate.periods = periods);
            }
            Record::Blocked { vcpu, .. } => (vcpu, |rate| rate.is_asleep = true),
            Record::Woke { vcpu, .. } => (vcpu, |rate| rate.is_asleep = false),
            Record::Left { vcpu, .. } => (vcpu, |rate| rate.periods = 0),
            _ => return,
        };
        self.change(vcpu, change);
    }

    fn change(&mut self, vcpu: VcpuId, change: impl FnOnce(&mut Rate)) {
        let Some(rate) = self.vcpus.get_mut(&vcpu) else { return };
        let of = |rate: &Rate| if rate.is_asleep { 0 } else { rate.periods };
        self.rate -= of(rate);
        change(rate);
        self.rate += of(rate);
    }
}

impl Sink for Effort {
    fn named(&mut self, named: &VcpuName) {
        self.entries += 1;
        if self.vcpus.insert(named.vcpu, Rate::default()).is_none() {
            self.rate += ONE * u128::from(STEPS_A_SECOND) / 1_000_000_000;
        }
    }

    fn record(&mut self, record: &Record) {
        self.entries += 1;
        let (_, at) = record.when();
        if !(is_plausible(record) && self.advance(at, record)) {
            self.refused = self.refused.or(Some(Implausible { entry: self.entries }));
        }
    }
}

/// Returns true if each length of time in the record is plausible.
fn is_plausible(record: &Record) -> bool {
    let spans: [Span; 3] = match *record {
        Record::Promised { reservation: Some(each), phase, .. } => {
            [each.slice(), each.period(), phase.unwrap_or_default()]
        }
        Record::Ran { used, granted, late, .. } => [used, granted.unwrap_or_default(), late],
        Record::RangLate { late, .. } => [late, Span::ZERO, Span::ZERO],
        Record::Overhead { used, .. } | Record::Spun { used, .. } => [used, Span::ZERO, Span::ZERO],
        Record::Counted { used, ready, .. } => [used, ready, Span::ZERO],
        Record::Served { service, .. } => [service.used, Span::ZERO, Span::ZERO],
        Record::Accounted { idle, stolen, dispatching, .. } => [idle, stolen, dispatching],
        _ => return true,
    };
    spans.iter().all(|span| *span <= LONGEST)
}

#[cfg(test)]
mod tests {
    use slackline_units::{CpuId, DomId, Reservation};

    use super::*;
    use crate::record::RanEnd;

    fn vcpu() -> VcpuId {
        VcpuId::new(0, DomId::new(0), 0)
    }

    fn effort(period: Span) -> Effort {
        let mut effort = Effort::default();
        let (vcpu, at) = (vcpu(), Time::START);
        effort.named(&VcpuName { at, vcpu, name: "a".into(), domain: "a".into() });
        let reservation = Reservation::new(Span::from_ns(1), period).ok();
        effort.record(&Record::Promised { at, vcpu, reservation, exact: true, phase: None });
        effort
    }

    fn ran(to: Time, used: Span) -> Record {
        let (vcpu, cpu, late) = (vcpu(), CpuId::new(0), Span::ZERO);
        let (from, granted, end) = (to, None, RanEnd::Limit);
        Record::Ran { vcpu, cpu, from, to, used, granted, late, end, due: true }
    }

    #[test]
    fn trace_time_and_periods_are_bounded_by_its_number_of_entries() {
        let run = |period: Span, length: Span| {
            let mut effort = effort(period);
            effort.record(&Record::Ended { at: Time::START.after(length) });
            effort.check().is_ok()
        };
        let day = Span::from_secs(24 * 3600);
        assert!(run(Span::from_ms(10), day) && run(Span::from_secs(1), day * 7));
        assert!(!run(Span::from_ms(10), day * 3650));
        assert!(!run(Span::from_ns(1), Span::from_secs(1)));
        // With more entries a trace may last longer.
        let mut effort = effort(Span::from_ms(1));
        for second in 1..1_000_000 {
            effort.record(&ran(Time::START.after(Span::from_secs(second)), Span::ZERO));
        }
        assert_eq!(effort.check(), Ok(()));
    }

    #[test]
    fn trace_bound_ignores_periods_of_a_blocked_vcpu() {
        let mut effort = effort(Span::from_us(10));
        effort.record(&Record::Blocked { at: Time::START, vcpu: vcpu() });
        let at = Time::START.after(Span::from_secs(24 * 3600));
        effort.record(&Record::Woke { at, vcpu: vcpu() });
        assert_eq!(effort.check(), Ok(()));
        let at = at.after(Span::from_secs(24 * 3600));
        effort.record(&Record::Ended { at });
        assert_eq!(effort.check(), Err(Implausible { entry: 5 }));
    }

    #[test]
    fn trace_record_of_centuries_is_refused_as_implausible() {
        let mut effort = effort(Span::from_ms(10));
        effort.record(&ran(Time::START, Span::from_secs(24 * 3600)));
        assert_eq!(effort.check(), Ok(()));
        effort.record(&ran(Time::START, Span::MAX));
        assert_eq!(effort.check(), Err(Implausible { entry: 4 }));
    }
}
