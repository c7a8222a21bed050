//! Terms of a reservation, and amounts of CPU time in requests.

use std::fmt;

use slackline_units::{CpuShare, Enforcement, Reservation, ReservationError, Span, WallTime};

/// Terms of a reservation: slice and period of each vCPU, hard limit or not, number of vCPUs,
/// phase, mechanism and end time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    each: Reservation,
    exact: bool,
    by_use: bool,
    phase: Option<Span>,
    vcpus: u16,
    until: Option<WallTime>,
    enforce: Enforcement,
}

/// Reason why terms are invalid under every policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// The slice and the period do not form a reservation.
    #[error("{0}")]
    Reservation(ReservationError),
    /// The period is out of range.
    #[error(
        "cannot use a period of {is}: it must be from {} to {}",
        Terms::SHORTEST,
        Terms::LONGEST
    )]
    Period {
        /// Requested length of the period.
        is: Span,
    },
    /// The slice is shorter than the minimum.
    #[error("a slice of {is} is too short: the shortest is {}", Terms::LEAST)]
    Slice {
        /// Requested length of the slice.
        is: Span,
    },
    /// The time that the slice leaves in the period is shorter than the minimum.
    #[error("a slice of {slice} must leave at least {} of a period of {period}", Terms::LEAST)]
    Gap {
        /// Requested length of the slice.
        slice: Span,
        /// Requested length of the period.
        period: Span,
    },
    /// The requested phase is as long as the period or longer.
    #[error("a phase of {phase} must be shorter than the period of {period}")]
    Phase {
        /// Requested offset of the periods.
        phase: Span,
        /// Requested length of the period.
        period: Span,
    },
    /// The mechanism cannot express the terms.
    #[error("cannot use `{by}` for this reservation: {why}")]
    Mechanism {
        /// Mechanism of the reservation.
        by: Enforcement,
        /// Property of the terms that the mechanism cannot express.
        why: MechanismLimit,
    },
    /// The number of vCPUs is zero or above the maximum.
    #[error("cannot use {is} vCPUs: the number must be from 1 to {}", Terms::MOST_VCPUS)]
    Vcpus {
        /// Requested number of vCPUs.
        is: u16,
    },
    /// The share is more than all vCPUs together can use.
    #[error("{share} is more than {vcpus} {} can use", if *vcpus == 1 { "vCPU" } else { "vCPUs" })]
    MoreThanVcpus {
        /// Requested share of CPUs.
        share: CpuShare,
        /// Number of vCPUs of the VM.
        vcpus: u16,
    },
}

/// Property of the terms that an enforcement mechanism of the kernel does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MechanismLimit {
    /// The terms guarantee CPU time, but the mechanism only limits or divides it.
    #[error("it guarantees no CPU time; use dispatcher or deadline")]
    Guarantee,
    /// The terms let the VM use slack, but the kernel throttles a thread after each slice.
    #[error("it sets a hard limit; add --exact")]
    Slack,
    /// The periods of the terms are aligned on the wall clock.
    #[error("the kernel chooses the start of periods; drop the phase")]
    Phase,
    /// The vCPUs of the VM borrow unused budget from each other.
    #[error("it does not let vCPUs share budget; reserve a slice for each vCPU")]
    Sharing,
    /// The period is longer than the kernel allows.
    #[error("a period of {is} is longer than the maximum of {}", Terms::LONGEST_DEADLINE)]
    Period {
        /// Requested length of the period.
        is: Span,
    },
}

impl Terms {
    /// Longest period of a deadline thread: the default limit of the kernel, 2^22 us.
    pub const LONGEST_DEADLINE: Span = Span::from_us(1 << 22);

    /// Shortest period that can be reserved.
    pub const SHORTEST: Span = Span::from_ms(1);

    /// Longest period that can be reserved.
    pub const LONGEST: Span = Span::from_secs(7 * 24 * 3600);

    /// Shortest slice, and shortest time that a slice must leave in its period. With shorter times,
    /// dispatching would take most of the CPU time.
    pub const LEAST: Span = Span::from_us(50);

    /// Longest slice that may run without a break, except in reservations that an administrator
    /// makes.
    pub const LONGEST_RUN: Span = Span::from_secs(1);

    /// Longest period that is enforced without a division, unless the parts of its slice would be
    /// shorter than [`Terms::LEAST_PART`]. Reservations whose periods begin together then occupy a
    /// CPU for less than a second without a break, if a tenth of the CPU is never reserved.
    pub const LONGEST_PART: Span = Span::from_ms(100);

    /// Shortest part into which a slice is divided to reach [`Terms::LONGEST_PART`]. With shorter
    /// parts, dispatching would take too much of the CPU time.
    pub const LEAST_PART: Span = Span::from_ms(1);

    /// Maximum number of vCPUs of a VM.
    pub const MOST_VCPUS: u16 = 512;

    /// Creates terms that reserve `each` for each vCPU. `exact` is true for a hard limit. vCPUs
    /// cannot borrow unused budget from each other.
    ///
    /// # Errors
    /// If the slice, the period or the number of vCPUs is out of range.
    pub fn new(each: Reservation, exact: bool, vcpus: u16) -> Result<Terms, TermsError> {
        let (slice, period) = (each.slice(), each.period());
        if !(Terms::SHORTEST..=Terms::LONGEST).contains(&period) {
            return Err(TermsError::Period { is: period });
        }
        if slice < Terms::LEAST {
            return Err(TermsError::Slice { is: slice });
        }
        if period - slice < Terms::LEAST {
            return Err(TermsError::Gap { slice, period });
        }
        if !(1..=Terms::MOST_VCPUS).contains(&vcpus) {
            return Err(TermsError::Vcpus { is: vcpus });
        }
        let enforce = Enforcement::Dispatcher;
        Ok(Terms { each, exact, by_use: false, phase: None, vcpus, until: None, enforce })
    }

    /// Returns true if a slice may occupy a CPU without a break for longer than
    /// [`Terms::LONGEST_RUN`].
    #[must_use]
    pub fn runs_long(self) -> bool {
        self.each.slice() > Terms::LONGEST_RUN
    }

    /// Returns the terms that are enforced. They have the same share, in periods of at most
    /// [`Terms::LONGEST_PART`]. So the part of the CPU that is never reserved is available in each
    /// second, even if the periods of several reservations begin together. A slice that
    /// [runs long](Terms::runs_long) is enforced as it is.
    ///
    /// If the parts would be shorter than [`Terms::LEAST_PART`], the slice is divided into fewer
    /// parts of at least that length, but still so that their periods are at most a second. If the
    /// part in each second would be shorter than [`Terms::LEAST`], the parts have at least that
    /// length, and periods of more than a second.
    ///
    /// The period is divided into equal parts, to the nanosecond. If no suitable number of parts
    /// divides it evenly, each part is shorter by less than one nanosecond.
    #[must_use]
    pub fn in_each_second(self) -> Terms {
        let (slice, period) = (self.each.slice(), self.each.period());
        // More parts than this would be shorter than the shortest slice.
        let most = slice.ns() / Terms::LEAST.ns();
        let least = period.ns().div_ceil(Terms::LONGEST_RUN.ns()).min(most);
        let wanted = period.ns().div_ceil(Terms::LONGEST_PART.ns());
        let least = least.max(wanted.min(slice.ns() / Terms::LEAST_PART.ns()));
        if least <= 1 || self.runs_long() {
            return self;
        }
        let divides = |parts: &u64| period.ns() % parts == 0;
        let parts = (least..least + 1_000).take_while(|parts| *parts <= most).find(divides);
        let parts = parts.unwrap_or(least);
        let Ok(each) = Reservation::new(slice / parts, period / parts) else { return self };
        let phase = self.phase.map(|phase| Span::from_ns(phase.ns() % each.period().ns()));
        Terms { each, phase, ..self }
    }

    /// Returns the terms with `by_use` as the permission of the vCPUs to borrow unused budget from
    /// each other. A single vCPU never borrows.
    #[must_use]
    pub const fn spread_by_use(self, by_use: bool) -> Terms {
        // A single vCPU has no other vCPU to which it could lend.
        Terms { by_use: by_use && self.vcpus > 1, ..self }
    }

    /// Returns the terms with `phase` as the offset of the periods from whole periods of the wall
    /// clock. If `None`, the first period begins when the reservation is made.
    ///
    /// # Errors
    /// If the phase is not shorter than the period.
    pub fn with_phase(self, phase: Option<Span>) -> Result<Terms, TermsError> {
        let period = self.each.period();
        match phase {
            Some(phase) if phase >= period => Err(TermsError::Phase { phase, period }),
            phase => Ok(Terms { phase, ..self }),
        }
    }

    /// Returns the terms with the end time `until`. If `None`, the reservation lasts until it is
    /// released.
    #[must_use]
    pub const fn with_end(self, until: Option<WallTime>) -> Terms {
        Terms { until, ..self }
    }

    /// Returns the terms with the enforcement mechanism `by`.
    ///
    /// # Errors
    /// If the mechanism does not support the terms. Parameters that are set later are not checked.
    pub fn enforced_by(self, by: Enforcement) -> Result<Terms, TermsError> {
        let limit = match by {
            Enforcement::Dispatcher => None,
            Enforcement::Quota | Enforcement::Weight => Some(MechanismLimit::Guarantee),
            Enforcement::Deadline if !self.exact => Some(MechanismLimit::Slack),
            Enforcement::Deadline if self.phase.is_some() => Some(MechanismLimit::Phase),
            Enforcement::Deadline if self.by_use => Some(MechanismLimit::Sharing),
            Enforcement::Deadline if self.each.period() > Terms::LONGEST_DEADLINE => {
                Some(MechanismLimit::Period { is: self.each.period() })
            }
            Enforcement::Deadline => None,
        };
        match limit {
            Some(why) => Err(TermsError::Mechanism { by, why }),
            None => Ok(Terms { enforce: by, ..self }),
        }
    }

    /// Returns the mechanism that enforces the reservation.
    #[must_use]
    pub const fn enforcement(self) -> Enforcement {
        self.enforce
    }

    /// Returns the time at which the reservation ends by itself. `None` if it lasts until it is
    /// released.
    #[must_use]
    pub const fn until(self) -> Option<WallTime> {
        self.until
    }

    /// Returns true if these terms and `other` are equal for the scheduler: they differ at most in
    /// the end time.
    pub(crate) fn is_enforced_as(self, other: Terms) -> bool {
        self.with_end(None) == other.with_end(None)
    }

    /// Returns the reservation of each vCPU.
    #[must_use]
    pub const fn each(self) -> Reservation {
        self.each
    }

    /// Returns true for a hard limit: each vCPU gets at most its slice and the budget that it
    /// borrows.
    #[must_use]
    pub const fn exact(self) -> bool {
        self.exact
    }

    /// Returns true if the vCPUs may borrow unused budget from each other.
    #[must_use]
    pub const fn by_use(self) -> bool {
        self.by_use
    }

    /// Returns the offset of the periods from whole periods of the wall clock. `None` if the first
    /// period begins when the reservation is made.
    #[must_use]
    pub const fn phase(self) -> Option<Span> {
        self.phase
    }

    /// Returns the number of vCPUs.
    #[must_use]
    pub const fn vcpus(self) -> u16 {
        self.vcpus
    }

    /// Returns true if these terms give more than `other` beyond its share: they end later, or they
    /// have no hard limit although `other` has one.
    pub(crate) fn outlasts(self, other: Terms) -> bool {
        let dropped = other.with_limits_dropped_by(self);
        dropped.until.is_some() || dropped.exact
    }

    /// Returns these terms with only those limits that a change to `terms` would drop: the end time
    /// if `terms` end later, and the hard limit if `terms` have none.
    pub(crate) fn with_limits_dropped_by(self, terms: Terms) -> Terms {
        let until = self.until.filter(|end| terms.until.is_none_or(|until| until > *end));
        Terms { until, exact: self.exact && !terms.exact, ..self }
    }

    /// Returns these terms with the earlier end time of `self` and `other`, and with a hard limit
    /// if `self` or `other` has one.
    pub(crate) fn with_limits_of(self, other: Terms) -> Terms {
        let until = self.until.into_iter().chain(other.until).min();
        Terms { until, exact: self.exact || other.exact, ..self }
    }

    /// Returns true if these terms need no more capacity than `other`. This holds if their share is
    /// not larger, their period is not shorter, and they have no more vCPUs. They fit wherever
    /// `other` fits. Phases and end times do not matter.
    #[must_use]
    pub fn is_within(self, other: Terms) -> bool {
        !self.each.is_more_than(other.each)
            && self.each.period() >= other.each.period()
            && self.vcpus <= other.vcpus
    }
}

impl fmt::Display for Terms {
    /// Writes `2ms/10ms exact for 2 vCPUs`. If set, `by use`, `in phase 3ms`, `by deadline` and
    /// `until 2026-12-01T18:00:00Z` follow. The dispatcher is the default mechanism and is not
    /// named.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = if self.exact { " exact" } else { "" };
        let plural = if self.vcpus == 1 { "" } else { "s" };
        let by_use = if self.by_use { " by use" } else { "" };
        write!(out, "{}{exact} for {} vCPU{plural}{by_use}", self.each, self.vcpus)?;
        self.phase.map_or(Ok(()), |phase| write!(out, " in phase {phase}"))?;
        if self.enforce != Enforcement::Dispatcher {
            write!(out, " by {}", self.enforce)?;
        }
        self.until.map_or(Ok(()), |until| write!(out, " until {until}"))
    }
}

/// Amount of CPU time in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Slice and period of each vCPU.
    Each(Reservation),
    /// Share of all vCPUs together. Each vCPU gets an equal part, and may borrow budget that other
    /// vCPUs leave unused.
    Together {
        /// Share of CPUs of all vCPUs together.
        share: CpuShare,
        /// Period of each vCPU. If `None`, [`Amount::USUAL_PERIOD`].
        period: Option<Span>,
    },
}

impl Amount {
    /// Default period. It is so short that users do not notice it, and so long that a few hundred
    /// vCPUs cost little CPU time.
    pub const USUAL_PERIOD: Span = Span::from_ms(10);

    /// Returns the terms for `vcpus` vCPUs. A slice that is not a whole number of nanoseconds is
    /// rounded up.
    ///
    /// # Errors
    /// If the terms are invalid, or if the share is more than the vCPUs can use.
    pub fn terms(self, exact: bool, vcpus: u16) -> Result<Terms, TermsError> {
        let by_use = matches!(self, Amount::Together { .. });
        let each = match self {
            Amount::Each(each) => each,
            Amount::Together { share, period } => {
                let period = period.unwrap_or(Amount::USUAL_PERIOD);
                if vcpus == 0 {
                    return Err(TermsError::Vcpus { is: vcpus });
                }
                let ns = u128::from(share.ppm()) * u128::from(period.ns());
                let ns = ns.div_ceil(1_000_000 * u128::from(vcpus));
                if ns > u128::from(period.ns()) {
                    return Err(TermsError::MoreThanVcpus { share, vcpus });
                }
                let slice = Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX));
                Reservation::new(slice, period).map_err(TermsError::Reservation)?
            }
        };
        Ok(Terms::new(each, exact, vcpus)?.spread_by_use(by_use))
    }
}

/// Requested changes of terms. A field that is `None` leaves that part of the terms unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TermsChange {
    pub(crate) amount: Option<Amount>,
    pub(crate) exact: Option<bool>,
    pub(crate) phase: Option<Option<Span>>,
    pub(crate) vcpus: Option<u16>,
    pub(crate) until: Option<Option<WallTime>>,
    pub(crate) enforce: Option<Enforcement>,
}

impl TermsChange {
    /// Returns `terms` with these changes applied.
    ///
    /// # Errors
    /// If the changed terms are invalid.
    pub(crate) fn of(&self, terms: Terms) -> Result<Terms, TermsError> {
        let exact = self.exact.unwrap_or(terms.exact);
        let vcpus = self.vcpus.unwrap_or(terms.vcpus);
        let changed = match self.amount {
            Some(amount) => amount.terms(exact, vcpus),
            None => Terms::new(terms.each, exact, vcpus)
                .map(|changed| changed.spread_by_use(terms.by_use)),
        };
        let changed = changed?.with_phase(self.phase.unwrap_or(terms.phase))?;
        let changed = changed.enforced_by(self.enforce.unwrap_or(terms.enforce))?;
        Ok(changed.with_end(self.until.unwrap_or(terms.until)))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Each(each) => each.fmt(out),
            Amount::Together { share, period: None } => share.fmt(out),
            Amount::Together { share, period: Some(period) } => {
                write!(out, "{share} every {period}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each(slice_us: u64, period_us: u64) -> Reservation {
        Reservation::new(Span::from_us(slice_us), Span::from_us(period_us)).unwrap()
    }

    const NO_CHANGE: TermsChange = TermsChange {
        amount: None,
        exact: None,
        phase: None,
        vcpus: None,
        until: None,
        enforce: None,
    };

    /// A deadline thread has a hard limit, and periods that the kernel starts. A reservation keeps
    /// its mechanism until a change names another mechanism.
    #[test]
    fn deadline_mechanism_is_refused_for_parameters_kernel_cannot_enforce() {
        let exact = Terms::new(each(2_000, 10_000), true, 2).unwrap();
        let by = exact.enforced_by(Enforcement::Deadline).unwrap();
        assert_eq!(by.to_string(), "2ms/10ms exact for 2 vCPUs by deadline");
        let (slack, phase) = (Some(false), Some(Some(Span::from_ms(3))));
        let refused = |change: TermsChange| change.of(by).unwrap_err().to_string();
        assert!(refused(TermsChange { exact: slack, ..NO_CHANGE }).contains("add --exact"));
        assert!(refused(TermsChange { phase, ..NO_CHANGE }).contains("drop the phase"));
        let amount = Some(Amount::Together { share: CpuShare::from_ppm(300_000), period: None });
        assert!(refused(TermsChange { amount, ..NO_CHANGE }).contains("for each vCPU"));
        let amount = Some(Amount::Each(each(100_000, 5_000_000)));
        let long = refused(TermsChange { amount, ..NO_CHANGE });
        assert!(long.ends_with("a period of 5s is longer than the maximum of 4.194304s"), "{long}");
        let enforce = Some(Enforcement::Dispatcher);
        let back = TermsChange { exact: slack, enforce, ..NO_CHANGE }.of(by).unwrap();
        assert_eq!(back.to_string(), "2ms/10ms for 2 vCPUs");
        for wrong in [Enforcement::Quota, Enforcement::Weight] {
            let why = MechanismLimit::Guarantee;
            assert_eq!(exact.enforced_by(wrong), Err(TermsError::Mechanism { by: wrong, why }));
        }
    }

    /// A reservation with an end time needs as much capacity as a reservation without an end time.
    #[test]
    fn reservation_keeps_its_end_time_when_other_parameters_change() {
        let forever = Terms::new(each(2_000, 10_000), false, 1).unwrap();
        let until: WallTime = "2026-12-01T18:00".parse().unwrap();
        let ends = forever.with_end(Some(until));
        assert_eq!(ends.to_string(), "2ms/10ms for 1 vCPU until 2026-12-01T18:00:00Z");
        assert!(ends != forever && ends.is_enforced_as(forever));
        assert!(ends.is_within(forever) && forever.is_within(ends));
        let exact = TermsChange { exact: Some(true), ..NO_CHANGE }.of(ends).unwrap();
        assert_eq!((exact.until(), exact.exact()), (Some(until), true));
        assert!(!exact.is_enforced_as(ends));
        assert_eq!(TermsChange { until: Some(None), ..NO_CHANGE }.of(ends), Ok(forever));
    }

    #[test]
    fn cpu_share_is_divided_equally_among_vcpus_and_rounded_up() {
        let share = CpuShare::from_ppm(1_500_000);
        let terms = Amount::Together { share, period: None }.terms(false, 2).unwrap();
        assert_eq!(terms.to_string(), "7.5ms/10ms for 2 vCPUs by use");
        let third = CpuShare::ONE;
        let terms = Amount::Together { share: third, period: None }.terms(true, 3).unwrap();
        assert_eq!(terms.each().slice(), Span::from_ns(3_333_334));
        let wrong = Amount::Together { share, period: None }.terms(false, 1).unwrap_err();
        assert_eq!(wrong.to_string(), "1.5cpu is more than 1 vCPU can use");
    }

    /// A share for all vCPUs together allows borrowing of unused budget. A slice for each vCPU does
    /// not. Terms that a change does not name stay as they are.
    #[test]
    fn vcpus_borrow_budget_under_total_share_but_not_under_slices() {
        let together = Amount::Together { share: CpuShare::from_ppm(600_000), period: None };
        let three = together.terms(true, 3).unwrap();
        assert_eq!(three.to_string(), "2ms/10ms exact for 3 vCPUs by use");
        let each_of = |vcpus| Amount::Each(each(2_000, 10_000)).terms(true, vcpus).unwrap();
        assert!(three.by_use() && !each_of(3).by_use() && three != each_of(3));
        let nothing = NO_CHANGE;
        let change = |change: TermsChange| change.of(three).unwrap();
        assert!(change(TermsChange { exact: Some(false), ..nothing }).by_use());
        let one = change(TermsChange { vcpus: Some(1), ..nothing });
        assert!(!one.by_use(), "{one}: a single vCPU cannot borrow");
        let amount = Some(Amount::Each(each(2_000, 10_000)));
        assert_eq!(change(TermsChange { amount, ..nothing }), each_of(3));
    }

    #[test]
    fn refusal_of_invalid_reservation_parameters_contains_the_allowed_bound() {
        let says = |each, vcpus| Terms::new(each, false, vcpus).unwrap_err().to_string();
        assert_eq!(
            says(each(19, 20), 1),
            "cannot use a period of 20us: it must be from 1ms to 604800s"
        );
        assert_eq!(says(each(49, 1000), 1), "a slice of 49us is too short: the shortest is 50us");
        assert!(says(each(951, 1000), 1).contains("must leave at least 50us of a period of 1ms"));
        assert_eq!(says(each(50, 1000), 0), "cannot use 0 vCPUs: the number must be from 1 to 512");
        assert!(Terms::new(each(950, 1000), true, 512).is_ok());
    }

    #[test]
    fn reservation_phase_must_be_below_period_and_needs_no_capacity() {
        let terms = Terms::new(each(2_000, 10_000), true, 2).unwrap();
        let late = terms.with_phase(Some(Span::from_us(9_999))).unwrap();
        assert_eq!(late.to_string(), "2ms/10ms exact for 2 vCPUs in phase 9.999ms");
        assert!(late.is_within(terms) && terms.is_within(late) && late != terms);
        assert_eq!(late.with_phase(None), Ok(terms));
        let says = terms.with_phase(Some(Span::from_ms(10))).unwrap_err().to_string();
        assert_eq!(says, "a phase of 10ms must be shorter than the period of 10ms");
    }

    /// A reservation exceeds another reservation if its share is larger, its period is shorter, or
    /// it has more vCPUs. A longer period never exceeds a shorter one.
    #[test]
    fn change_to_larger_share_or_shorter_period_exceeds_reservation() {
        let terms = |slice, period, vcpus| Terms::new(each(slice, period), false, vcpus).unwrap();
        let old = terms(5_000, 10_000, 2);
        for within in [old, terms(4_000, 10_000, 2), terms(50_000, 100_000, 1)] {
            assert!(within.is_within(old), "{within}");
        }
        for beyond in [terms(5_001, 10_000, 1), terms(1_000, 9_000, 1), terms(1_000, 10_000, 3)] {
            assert!(!beyond.is_within(old), "{beyond}");
        }
    }

    #[test]
    fn reservation_with_long_period_is_enforced_in_short_parts() {
        let terms = |slice: Span, period: Span| {
            let each = Reservation::new(slice, period).unwrap();
            Terms::new(each, true, 2).unwrap()
        };
        let ms = Span::from_ms;
        let enforced = |slice, period| {
            let each = terms(slice, period).in_each_second().each();
            (each.slice(), each.period())
        };
        assert_eq!(enforced(ms(2), ms(10)), (ms(2), ms(10)));
        assert_eq!(enforced(ms(90), ms(100)), (ms(90), ms(100)));
        assert_eq!(enforced(ms(900), ms(1_000)), (ms(90), ms(100)));
        assert_eq!(enforced(ms(1_000), ms(10_000)), (ms(10), ms(100)));
        assert_eq!(enforced(ms(900), ms(1_500)), (ms(60), ms(100)));
        // A small slice is not divided into parts below 1 ms to reach periods of 100 ms.
        assert_eq!(enforced(ms(2), ms(1_000)), (ms(1), ms(500)));
        let us = Span::from_us;
        assert_eq!(enforced(us(500), ms(1_000)), (us(500), ms(1_000)));
        assert_eq!(enforced(us(500), ms(2_000)), (us(250), ms(1_000)));
        // Only an administrator can reserve a slice that is this long. It is enforced without a
        // division.
        assert_eq!(enforced(ms(1_001), ms(10_000)), (ms(1_001), ms(10_000)));
        let week = Span::from_secs(7 * 24 * 3600);
        assert_eq!(enforced(Span::from_us(50), week), (Span::from_us(50), week));
        assert_eq!(enforced(Span::from_us(100), week), (Span::from_us(50), week / 2));
        // A slice is divided even if its share is very small.
        let hours = Span::from_secs(20_001);
        let (slice, period) = enforced(ms(1_000), hours);
        assert_eq!((slice, period), (Span::from_us(50), hours / 20_000));
        assert_eq!(enforced(ms(1_000), week), (Span::from_us(50), week / 20_000));
        // A prime number of nanoseconds cannot be divided evenly.
        let (slice, period) = enforced(ms(500), Span::from_ns(5_000_000_029));
        assert!(period <= ms(100) && slice <= ms(10), "{slice} {period}");
        assert!(slice.ns() * 10 + 20 > period.ns());
        let phased = terms(ms(1_000), ms(10_000)).with_phase(Some(ms(3_250))).unwrap();
        assert_eq!(phased.in_each_second().phase(), Some(ms(50)));
    }

    /// Five reservations of 17.9 % of a CPU each. If their periods begin together and all of them
    /// use their slices, the CPU has no break until all slices that have begun are used.
    #[test]
    fn five_reservations_beginning_together_leave_the_cpu_within_a_second() {
        let terms =
            [(107_400, 600), (125_300, 700), (143_200, 800), (161_100, 900), (179_000, 1_000)];
        let terms = terms.map(|(slice_us, period_ms)| {
            Terms::new(each(slice_us, period_ms * 1_000), true, 1).unwrap()
        });
        let busy = |terms: &[Terms]| {
            let (mut end, mut work) = (0_u64, 1_u64);
            while end < work {
                end = work;
                let used = |terms: &Terms| {
                    let each = terms.each();
                    end.div_ceil(each.period().ns()) * each.slice().ns()
                };
                work = terms.iter().map(used).sum();
            }
            Span::from_ns(end)
        };
        assert!(busy(&terms) > Span::from_secs(2), "{}", busy(&terms));
        let enforced = terms.map(Terms::in_each_second);
        assert!(busy(&enforced) <= Span::from_ms(900), "{}", busy(&enforced));
    }
}
