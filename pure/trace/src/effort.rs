//! Limit on the work that a trace causes for its reader, in proportion to the size of the trace.
//!
//! Metrics take a step for each period, second and tenth of a second. A few bytes can claim that a
//! run took centuries, or that a period is a nanosecond. So a trace may cause at most [`STEPS`]
//! such steps, and [`STEPS_OF_ENTRY`] more for each entry. A recorded run causes a few steps per
//! entry.

use core::fmt;
use std::collections::BTreeMap;

use slackline_units::{Span, Time, VcpuId};

use crate::record::Record;
use crate::sink::{Sink, VcpuName};

/// Number of steps that any trace may cause: a few seconds of work.
const STEPS: u64 = 100_000_000;

/// Number of further steps that a trace may cause for each of its entries.
const STEPS_OF_ENTRY: u64 = 10_000;

/// Longest duration that a record may contain. Sums of many such durations still fit in 64 bits.
const LONGEST: Span = Span::from_secs(365 * 24 * 3600);

/// Number of steps that each vCPU causes per second of the trace, in addition to the steps for its
/// periods. They account for the data points that a vCPU has for each tenth of a second.
const STEPS_A_SECOND: u64 = 100;

/// One step per nanosecond in fixed point, so that slower rates are whole numbers too.
const ONE: u128 = 1 << 40;

/// Error: the trace claims more time or more periods than its number of entries allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Implausible {
    /// Number of the first entry with which the trace covers too much time. Only names and records
    /// are counted, from one.
    pub entry: u64,
}

impl fmt::Display for Implausible {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = self.entry;
        write!(
            out,
            "the first {entry} names and records of the trace cover more time than is possible"
        )
    }
}

impl core::error::Error for Implausible {}

/// Sum of the work that a trace causes for its reader.
#[derive(Debug, Default)]
pub struct Effort {
    entries: u64,
    /// First entry that exceeded the limit. `None` if no entry did.
    refused: Option<Implausible>,
    now: Time,
    /// Number of steps that processing the trace has taken so far, times [`ONE`].
    steps: u128,
    /// Number of steps that processing the trace takes per nanosecond of the run, times [`ONE`].
    rate: u128,
    vcpus: BTreeMap<VcpuId, Rate>,
}

/// Steps per nanosecond that a vCPU causes.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    /// Number of periods per nanosecond, times [`ONE`]. Periods in which the vCPU is blocked cause
    /// no steps.
    periods: u128,
    is_asleep: bool,
}

impl Effort {
    /// Checks that the trace causes no more work than its size allows.
    ///
    /// # Errors
    /// If the trace causes more work, or a record contains a duration of more than a year.
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

/// Returns true if each duration in the record is at most `LONGEST`.
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
    use slackline_units::{CpuId, DomId, Enforcement, Reservation};

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
        let by = Enforcement::Dispatcher;
        effort.record(&Record::Promised { at, vcpu, reservation, exact: true, phase: None, by });
        effort
    }

    fn ran(to: Time, used: Span) -> Record {
        let (vcpu, cpu, late) = (vcpu(), CpuId::new(0), Span::ZERO);
        let (from, granted, end) = (to, None, RanEnd::Limit);
        Record::Ran { vcpu, cpu, from, to, used, granted, late, end, due: true }
    }

    #[test]
    fn trace_with_too_many_periods_for_entry_count_is_refused() {
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
    fn trace_may_cover_any_number_of_periods_of_blocked_vcpu() {
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
    fn trace_with_run_interval_of_centuries_is_refused_as_implausible() {
        let is_plausible = |used| {
            let mut effort = effort(Span::from_ms(10));
            effort.record(&ran(Time::START, used));
            effort.check().is_ok()
        };
        assert!(is_plausible(LONGEST) && !is_plausible(LONGEST + Span::from_ns(1)));
        let mut effort = effort(Span::from_ms(10));
        effort.record(&ran(Time::START, Span::from_secs(24 * 3600)));
        assert_eq!(effort.check(), Ok(()));
        effort.record(&ran(Time::START, Span::MAX));
        assert_eq!(effort.check(), Err(Implausible { entry: 4 }));
    }
}
