//! Limit on the work that a trace causes for its reader, in proportion to the size of the trace.
//!
//! Metrics take a step for each period, second and tenth of a second. A few bytes can claim that a
//! run took centuries, or that a period is a nanosecond. So a trace may cause at most [`STEPS`]
//! such steps, and [`STEPS_OF_ENTRY`] more for each entry. A recorded run causes a few steps per
//! entry. The times and the sums of durations in a trace are limited too, so that no sum of a
//! reader overflows.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use slackline_units::{DomId, Span, Time, VcpuId};

use crate::record::Record;
use crate::sink::{Sink, VcpuName};

/// Number of steps that any trace may cause: a few seconds of work.
const STEPS: u64 = 100_000_000;

/// Number of further steps that a trace may cause for each of its entries.
const STEPS_OF_ENTRY: u64 = 10_000;

/// Longest duration that a record may contain. Sums of many such durations still fit in 64 bits.
const LONGEST: Span = Span::from_secs(365 * 24 * 3600);

/// Latest time that a record may have: 100 years after the start of the trace.
pub(crate) const LATEST: Time = Time::from_ns(100 * LONGEST.ns());

/// Largest sum of the durations of all records, together with all steps back in time: 400 years.
const LONGEST_SUM: Span = Span::from_ns(400 * LONGEST.ns());

/// Number of steps that each vCPU causes per second of the trace, in addition to the steps for its
/// periods. They account for the data points that a vCPU has for each tenth of a second.
const STEPS_A_SECOND: u64 = 100;

/// Number of steps that each CPU causes per second of the trace. They account for the sums that a
/// CPU has for each second.
const STEPS_OF_CPU_A_SECOND: u64 = 25;

/// Number of data points of 100 ms that any trace may cause, over all domains: 28 hours of one
/// domain, or 2.8 hours of ten domains.
const POINTS: u64 = 1_000_000;

/// Number of further data points that a trace may cause for each of its entries.
const POINTS_OF_ENTRY: u64 = 2;

/// One step per nanosecond in fixed point, so that slower rates are whole numbers too.
const ONE: u128 = 1 << 40;

/// Error: the trace claims more time or more periods than its number of entries allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Implausible {
    /// Number of the first entry with which the trace covers too much time. Counts names and
    /// records, from one, and no other entries.
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

/// Error: a reader that stores data points would need more of them than the trace may cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyPoints {
    /// Number of data points that the reader would need.
    pub needed: u64,
    /// Largest number of data points for a trace of this size.
    pub most: u64,
}

impl fmt::Display for TooManyPoints {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooManyPoints { needed, most } = self;
        write!(out, "the trace needs {needed} data points; the maximum for its size is {most}")
    }
}

impl core::error::Error for TooManyPoints {}

/// Sum of the work that a trace causes for its reader.
#[derive(Debug, Default)]
pub struct Effort {
    entries: u64,
    /// First entry that exceeded the limit. `None` if no entry exceeded it.
    refused: Option<Implausible>,
    now: Time,
    /// Start and end of the part of the run that is processed. `None` if the whole run is
    /// processed.
    window: Option<(Time, Time)>,
    cpus: u64,
    /// Number of steps that processing the trace has taken so far, times [`ONE`].
    steps: u128,
    /// Number of steps that processing the trace takes per nanosecond of the run, times [`ONE`].
    rate: u128,
    /// Sum of the durations of all records and of all steps back in time, in nanoseconds.
    sum: u128,
    vcpus: BTreeMap<VcpuId, Rate>,
    /// Domains by id and name. A reader can store data points of each domain, from the start of the
    /// trace.
    domains: BTreeSet<(DomId, String)>,
}

/// Rate at which a vCPU causes steps, in steps per nanosecond.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    /// Number of periods per nanosecond, times [`ONE`]. Periods in which the vCPU is blocked cause
    /// no steps.
    periods: u128,
    is_asleep: bool,
}

impl Effort {
    /// Creates an empty count of steps for a trace of a host with this number of CPUs.
    #[must_use]
    pub fn with_cpus(cpus: usize) -> Effort {
        let rate = steps_per_ns(STEPS_OF_CPU_A_SECOND) * cpus as u128;
        Effort { rate, cpus: cpus as u64, ..Effort::default() }
    }

    /// Creates an empty count of steps for the part of a trace from `from` to `end`. Time outside
    /// this part causes no steps.
    #[must_use]
    pub fn of_window(cpus: usize, from: Time, end: Time) -> Effort {
        let window = Some((from, end.max(from)));
        Effort { now: from, window, ..Effort::with_cpus(cpus) }
    }

    /// Checks that the trace causes no more work than its size allows.
    ///
    /// # Errors
    /// If the trace causes more work, if a record contains a duration of more than a year, or if
    /// times or sums of durations exceed their limits.
    pub fn check(&self) -> Result<(), Implausible> {
        self.refused.map_or(Ok(()), Err)
    }

    /// Checks that a reader that stores data points needs no more of them than the trace may cause.
    /// Such a reader stores one data point per domain and 100 ms, and one per CPU and second.
    ///
    /// # Errors
    /// If the reader would need more data points.
    pub fn check_points(&self) -> Result<(), TooManyPoints> {
        let tenths = self.now.ns() / 100_000_000 + 1;
        let of_cpus = self.cpus.saturating_mul(tenths / 10);
        let needed = tenths.saturating_mul(self.domains.len() as u64).saturating_add(of_cpus);
        let most = POINTS.saturating_add(POINTS_OF_ENTRY.saturating_mul(self.entries));
        if needed <= most { Ok(()) } else { Err(TooManyPoints { needed, most }) }
    }

    /// Returns the time in the processed part that is nearest to `at`.
    fn within(&self, at: Time) -> Time {
        self.window.map_or(at, |(from, end)| at.clamp(from, end))
    }

    fn advance(&mut self, at: Time) {
        let passed = at.since(self.now);
        self.now = self.now.max(at);
        self.steps = self.steps.saturating_add(u128::from(passed.ns()).saturating_mul(self.rate));
    }

    fn refuse_unless(&mut self, is_plausible: bool) {
        let most = u128::from(STEPS.saturating_add(STEPS_OF_ENTRY.saturating_mul(self.entries)));
        let is_within =
            self.steps / ONE <= most && self.sum <= LONGEST_SUM.ns().into() && self.now <= LATEST;
        if !(is_plausible && is_within) {
            self.refused = self.refused.or(Some(Implausible { entry: self.entries }));
        }
    }

    fn note(&mut self, record: &Record) {
        let (vcpu, change): (VcpuId, fn(&mut Rate)) = match *record {
            Record::Promised { vcpu, reservation, .. } => {
                let periods = reservation.map_or(0, |it| ONE / u128::from(it.period().ns().max(1)));
                self.change(vcpu, |rate| rate.periods = periods);
                return self.catch_up(vcpu, record);
            }
            Record::Blocked { vcpu, .. } => (vcpu, |rate| rate.is_asleep = true),
            Record::Woke { vcpu, .. } => {
                self.change(vcpu, |rate| rate.is_asleep = false);
                return self.catch_up(vcpu, record);
            }
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

    /// Adds the steps that a record causes by going back in time. From the earlier time of the
    /// record until now, the periods of the vCPU are stepped through once more.
    fn catch_up(&mut self, vcpu: VcpuId, record: &Record) {
        let behind = u128::from(self.now.since(self.within(record.when().1)).ns());
        let periods = self.vcpus.get(&vcpu).map_or(0, |rate| rate.periods);
        self.steps = self.steps.saturating_add(behind.saturating_mul(periods));
    }
}

impl Sink for Effort {
    fn named(&mut self, named: &VcpuName) {
        self.entries += 1;
        let at = self.within(named.at);
        self.advance(at);
        let of_vcpu = steps_per_ns(STEPS_A_SECOND);
        let is_new_domain = self.domains.insert((named.vcpu.domain(), named.domain.clone()));
        if is_new_domain {
            let start = self.within(Time::START);
            let so_far = u128::from(self.now.since(start).ns()).saturating_mul(of_vcpu);
            self.steps = self.steps.saturating_add(so_far);
        }
        let is_new_vcpu = !self.vcpus.contains_key(&named.vcpu);
        if is_new_vcpu {
            self.vcpus.insert(named.vcpu, Rate::default());
        }
        if is_new_vcpu || is_new_domain {
            self.rate += of_vcpu;
        }
        self.refuse_unless(named.at <= LATEST);
    }

    fn record(&mut self, record: &Record) {
        self.entries += 1;
        let (from, to) = record.when();
        let is_plausible = to.since(from) <= LONGEST && to <= LATEST && is_plausible(record);
        self.sum += u128::from(summed(record).ns());
        // A record about the whole run has the time of its start, wherever it is in the trace.
        if !matches!(record, Record::Overhead { .. }) {
            let to = self.within(to);
            self.sum += u128::from(self.now.since(to).ns());
            self.advance(to);
        }
        self.note(record);
        self.refuse_unless(is_plausible);
    }
}

/// Returns a number of steps per second as steps per nanosecond, times [`ONE`].
fn steps_per_ns(per_second: u64) -> u128 {
    ONE * u128::from(per_second) / 1_000_000_000
}

/// Returns true if each duration in the record is at most `LONGEST`.
fn is_plausible(record: &Record) -> bool {
    let spans: [Span; 3] = match *record {
        Record::Promised { reservation: Some(each), phase, .. } => {
            [each.slice(), each.period(), phase.unwrap_or_default()]
        }
        Record::Ran { used, granted, late, .. } => [used, granted.unwrap_or_default(), late],
        Record::RangLate { late, .. } => [late, Span::ZERO, Span::ZERO],
        Record::Overhead { used, .. }
        | Record::Spun { used, .. }
        | Record::Elsewhere { used, .. } => [used, Span::ZERO, Span::ZERO],
        Record::Counted { used, ready, .. } => [used, ready, Span::ZERO],
        Record::Served { service, .. } => [service.used, Span::ZERO, Span::ZERO],
        Record::Accounted { idle, stolen, dispatching, .. } => [idle, stolen, dispatching],
        _ => return true,
    };
    spans.iter().all(|span| *span <= LONGEST)
}

/// Returns the longest of the durations in a record that readers add up.
fn summed(record: &Record) -> Span {
    let (from, to) = record.when();
    let more = match *record {
        Record::Ran { used, late, .. } => used.max(late),
        Record::Overhead { used, .. }
        | Record::Spun { used, .. }
        | Record::Elsewhere { used, .. } => used,
        Record::Served { service, .. } => service.used,
        Record::Accounted { idle, stolen, dispatching, .. } => idle.max(stolen).max(dispatching),
        // The times of a thread that halts, loses events or is counted are not added up.
        Record::Halted { .. } | Record::Lost { .. } | Record::Counted { .. } => return Span::ZERO,
        _ => Span::ZERO,
    };
    more.max(to.since(from))
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
    fn trace_record_with_duration_above_one_year_is_refused() {
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

    #[test]
    fn reservation_far_before_the_latest_record_is_refused_as_implausible() {
        let mut effort = Effort::with_cpus(0);
        let ended = |at| Record::Ended { at };
        effort.record(&ended(Time::START.after(Span::from_secs(90 * 365 * 24 * 3600))));
        let (vcpu, at) = (vcpu(), Time::START);
        effort.named(&VcpuName { at, vcpu, name: "a".into(), domain: "a".into() });
        assert_eq!(effort.check(), Err(Implausible { entry: 2 }));
        // A few seconds of delay are usual.
        let mut effort = Effort::default();
        effort.named(&VcpuName { at, vcpu, name: "a".into(), domain: "a".into() });
        let reservation = Reservation::new(Span::from_ns(1), Span::from_ms(1)).ok();
        let by = Enforcement::Dispatcher;
        let promised = Record::Promised { at, vcpu, reservation, exact: true, phase: None, by };
        effort.record(&Record::Blocked { at, vcpu });
        effort.record(&ended(at.after(Span::from_secs(5))));
        effort.record(&promised);
        assert_eq!(effort.check(), Ok(()));
        let mut effort = Effort::default();
        effort.named(&VcpuName { at, vcpu, name: "a".into(), domain: "a".into() });
        effort.record(&promised);
        effort.record(&Record::Blocked { at, vcpu });
        effort.record(&ended(at.after(Span::from_secs(200_000))));
        assert_eq!(effort.check(), Ok(()));
        effort.record(&Record::Woke { at, vcpu });
        assert_eq!(effort.check(), Err(Implausible { entry: 5 }));
    }

    #[test]
    fn empty_trace_that_claims_centuries_is_refused_as_implausible() {
        let ends = |cpus, at| {
            let mut effort = Effort::with_cpus(cpus);
            effort.record(&Record::Ended { at });
            effort.check().is_ok()
        };
        assert!(ends(1, Time::START.after(Span::from_secs(30 * 24 * 3600))));
        assert!(!ends(1, LATEST) && !ends(0, Time::NEVER));
        assert!(ends(255, Time::START.after(Span::from_secs(3600))));
        assert!(!ends(255, Time::START.after(Span::from_secs(100_000))));
    }

    #[test]
    fn trace_with_too_many_domain_names_per_vcpu_is_refused() {
        let named = |names: u64| {
            let (vcpu, at, mut effort) = (vcpu(), Time::START, Effort::default());
            for name in 0..1_000 {
                let domain = (name % names).to_string();
                effort.named(&VcpuName { at, vcpu, name: "a".into(), domain });
            }
            effort.record(&Record::Ended { at: at.after(Span::from_secs(500_000)) });
            effort.check().is_ok()
        };
        assert!(named(1) && !named(1_000));
    }

    #[test]
    fn trace_with_durations_above_400_years_in_total_is_refused() {
        let (vcpu, cpu, at) = (vcpu(), CpuId::new(0), Time::START);
        let (idle, to) = (LONGEST, at.after(LONGEST));
        let elsewhere = |used| Record::Elsewhere { vcpu, from: at, to: at, used };
        let zero = Span::ZERO;
        let records = [
            Record::Overhead { cpu, used: LONGEST },
            Record::Spun { at, vcpu, used: LONGEST },
            elsewhere(LONGEST),
            Record::Accounted { cpu, from: at, to: at, idle, stolen: zero, dispatching: zero },
            Record::Stopped { vcpu, from: at, to },
        ];
        for record in records {
            let mut effort = Effort::default();
            (0..400).for_each(|_| effort.record(&record));
            assert_eq!(effort.check(), Ok(()), "{record:?}");
            effort.record(&record);
            assert_eq!(effort.check(), Err(Implausible { entry: 401 }), "{record:?}");
        }
        let mut effort = Effort::default();
        effort.record(&elsewhere(Span::MAX));
        assert_eq!(effort.check(), Err(Implausible { entry: 1 }));
        // Time that runs backwards and forwards again is a duration too.
        let mut effort = Effort::default();
        for _ in 0..500 {
            effort.record(&Record::Left { at: to, vcpu });
            effort.record(&Record::Joined { at, vcpu });
        }
        assert!(effort.check().is_err());
    }
    #[test]
    fn work_limit_of_trace_window_counts_only_time_in_window() {
        let second = |number: u64| Time::START.after(Span::from_secs(number));
        let check = |period, from: Time, end: Time| {
            let mut effort = Effort::of_window(1, from, end);
            let (vcpu, at, by) = (vcpu(), Time::START, Enforcement::Dispatcher);
            effort.named(&VcpuName { at, vcpu, name: "a".into(), domain: "a".into() });
            let reservation = Reservation::new(Span::from_ns(1), period).ok();
            effort.record(&Record::Promised {
                at,
                vcpu,
                reservation,
                exact: true,
                phase: None,
                by,
            });
            effort.record(&Record::Ended { at: second(30_000_000) });
            effort.check().is_ok()
        };
        let ms = Span::from_ms(1);
        assert!(!check(ms, second(0), second(30_000_000)), "the whole run is too long");
        assert!(check(ms, second(9_000_000), second(9_000_001)));
        assert!(!check(Span::from_ns(1), second(9_000_000), second(9_000_001)));
        let mut effort = Effort::of_window(1, second(1), second(2));
        effort.record(&Record::Ended { at: Time::NEVER });
        assert!(effort.check().is_err(), "no record may have a time of centuries");
    }

    #[test]
    fn trace_with_too_many_data_points_per_entry_is_refused() {
        let needs = |domains: u64, seconds: u64, records: u64| {
            let mut effort = Effort::with_cpus(1);
            let (vcpu, at) = (vcpu(), Time::START);
            for domain in 0..domains {
                let domain = domain.to_string();
                effort.named(&VcpuName { at, vcpu, name: "a".into(), domain });
            }
            for _ in 0..records {
                effort.record(&Record::Woke { at, vcpu });
            }
            effort.record(&Record::Ended { at: at.after(Span::from_secs(seconds)) });
            effort.check_points()
        };
        assert_eq!(needs(10, 9_000, 0), Ok(()));
        let refused = needs(10, 36_000, 0).unwrap_err();
        assert_eq!((refused.needed, refused.most), (3_636_010, 1_000_022));
        assert_eq!(needs(10, 36_000, 1_400_000), Ok(()), "a day-long recording has many entries");
        assert!(needs(1_000, 36_000, 0).is_err());
    }
}
