//! Terms of a reservation, and the amounts of CPU time that requests contain.

use std::fmt;

use slackline_units::{CpuShare, Enforcement, Reservation, ReservationError, Span, WallTime};

/// Terms of a reservation: slice and period of each vCPU, number of vCPUs, phase, mechanism, end
/// time, and the choice between a hard limit and work conservation.
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
    /// The remainder of the period, after the slice, is shorter than the minimum.
    #[error("a slice of {slice} must leave at least {} of a period of {period}", Terms::LEAST)]
    Gap {
        /// Requested length of the slice.
        slice: Span,
        /// Requested length of the period.
        period: Span,
    },
    /// The requested phase is not shorter than the period.
    #[error("a phase of {phase} must be shorter than the period of {period}")]
    Phase {
        /// Requested phase (offset of the periods).
        phase: Span,
        /// Requested length of the period.
        period: Span,
    },
    /// The requested mechanism does not support the terms.
    #[error("cannot use `{by}` for this reservation: {why}")]
    Mechanism {
        /// Mechanism of enforcement that was requested.
        by: Enforcement,
        /// Property of the terms that the mechanism does not support.
        why: MechanismLimit,
    },
    /// The number of vCPUs is zero or above the maximum.
    #[error("cannot use {is} vCPUs: the number must be from 1 to {}", Terms::MOST_VCPUS)]
    Vcpus {
        /// Requested number of vCPUs.
        is: u16,
    },
    /// The requested share is more than all vCPUs of the VM together can use.
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
    /// The terms guarantee CPU time, but the mechanism can only limit CPU time or divide it among
    /// VMs.
    #[error("this mechanism guarantees no CPU time; use dispatcher or deadline")]
    Guarantee,
    /// The terms let the VM use slack, but the kernel throttles each thread that has used its
    /// slice.
    #[error("this mechanism sets a hard limit; add --exact")]
    Slack,
    /// The periods of the terms are aligned on the wall clock.
    #[error("the kernel chooses the start of periods; drop the phase")]
    Phase,
    /// The terms let the vCPUs of the VM borrow unused budget from each other.
    #[error("this mechanism does not let vCPUs share budget; reserve a slice for each vCPU")]
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

    /// Longest period that can be reserved: seven days.
    pub const LONGEST: Span = Span::from_secs(7 * 24 * 3600);

    /// Shortest slice. The rest of the period must be at least as long. With shorter times, the CPU
    /// would spend most of its time on dispatching.
    pub const LEAST: Span = Span::from_us(50);

    /// Longest slice that a caller who is not an administrator may reserve. A longer slice could
    /// occupy a CPU for all its length without a break.
    pub const LONGEST_RUN: Span = Span::from_secs(1);

    /// Longest period that is enforced as a whole. A longer period and its slice are divided into
    /// equal parts, as [`Terms::in_each_second`] describes.
    ///
    /// The reason is that periods of several reservations can begin together. With this division,
    /// these reservations occupy the CPU for less than a second without a break, if at least a
    /// tenth of the CPU is never reserved.
    pub const LONGEST_PART: Span = Span::from_ms(100);

    /// Shortest part into which a slice is divided to reach periods of at most
    /// [`Terms::LONGEST_PART`]. If the parts would be shorter, the periods are longer instead,
    /// because dispatching shorter parts would take too much CPU time.
    pub const LEAST_PART: Span = Span::from_ms(1);

    /// Maximum number of vCPUs of a VM.
    pub const MOST_VCPUS: u16 = 512;

    /// Creates terms that reserve `each` for each vCPU. `exact` is true for a hard limit. The vCPUs
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

    /// Returns true if the slice is longer than [`Terms::LONGEST_RUN`], so that a vCPU may occupy a
    /// CPU for that long without a break.
    #[must_use]
    pub fn runs_long(self) -> bool {
        self.each.slice() > Terms::LONGEST_RUN
    }

    /// Returns the terms that are enforced. They have the same share, but, if possible, periods of
    /// at most [`Terms::LONGEST_PART`]. So the part of the CPU that is never reserved is available
    /// in each second, even if the periods of several reservations begin together. The exception is
    /// a slice that [runs long](Terms::runs_long): it is enforced undivided.
    ///
    /// Slice and period are divided into the same number of parts. The number is the larger of the
    /// following two numbers, but at most `slice / LEAST`:
    /// - `period / LONGEST_RUN`, rounded up, so that each part of the period is at most a second;
    /// - `period / LONGEST_PART`, rounded up, but at most `slice / LEAST_PART`.
    ///
    /// If a slightly larger number of parts divides the period into whole nanoseconds, that number
    /// is used. Otherwise the parts are rounded down to whole nanoseconds.
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
    /// each other. With a single vCPU, the permission is always false.
    #[must_use]
    pub const fn spread_by_use(self, by_use: bool) -> Terms {
        // A single vCPU has no other vCPU to which it could lend.
        Terms { by_use: by_use && self.vcpus > 1, ..self }
    }

    /// Returns the terms with `phase` as the offset of the periods from the multiples of the period
    /// on the wall clock. If `phase` is `None`, the first period begins when the reservation is
    /// made.
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

    /// Returns the terms with the end time `until`. If `until` is `None`, the reservation lasts
    /// until it is released.
    #[must_use]
    pub const fn with_end(self, until: Option<WallTime>) -> Terms {
        Terms { until, ..self }
    }

    /// Returns the terms with the enforcement mechanism `by`.
    ///
    /// # Errors
    /// If the mechanism does not support the terms. Parameters that the caller sets afterwards are
    /// not checked.
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

    /// Returns the time at which the reservation ends without a request. `None` if the reservation
    /// lasts until it is released.
    #[must_use]
    pub const fn until(self) -> Option<WallTime> {
        self.until
    }

    /// Returns true if the scheduler treats these terms and `other` alike: they differ at most in
    /// the end time.
    pub(crate) fn is_enforced_as(self, other: Terms) -> bool {
        self.with_end(None) == other.with_end(None)
    }

    /// Returns the slice and period that each vCPU gets.
    #[must_use]
    pub const fn each(self) -> Reservation {
        self.each
    }

    /// Returns true if the reservation is a hard limit: each vCPU gets at most its own slice and
    /// the budget that it borrows.
    #[must_use]
    pub const fn exact(self) -> bool {
        self.exact
    }

    /// Returns true if the vCPUs may borrow unused budget from each other.
    #[must_use]
    pub const fn by_use(self) -> bool {
        self.by_use
    }

    /// Returns the offset of the periods from the multiples of the period on the wall clock. `None`
    /// if the first period begins when the reservation is made.
    #[must_use]
    pub const fn phase(self) -> Option<Span> {
        self.phase
    }

    /// Returns the number of vCPUs.
    #[must_use]
    pub const fn vcpus(self) -> u16 {
        self.vcpus
    }

    /// Returns true if these terms give more than `other` in a way other than a larger share: these
    /// terms end later, or they have no hard limit although `other` has one.
    pub(crate) fn outlasts(self, other: Terms) -> bool {
        let dropped = other.with_limits_dropped_by(self);
        dropped.until.is_some() || dropped.exact
    }

    /// Returns a copy of `self` that keeps only the limits which a change to `terms` would drop.
    /// The end time stays if `terms` end later, and the hard limit stays if `terms` have none.
    pub(crate) fn with_limits_dropped_by(self, terms: Terms) -> Terms {
        let until = self.until.filter(|end| terms.until.is_none_or(|until| until > *end));
        Terms { until, exact: self.exact && !terms.exact, ..self }
    }

    /// Returns a copy of `self` with the limits of `other` added: the earlier of the two end times,
    /// and a hard limit if `self` or `other` has one.
    pub(crate) fn with_limits_of(self, other: Terms) -> Terms {
        let until = self.until.into_iter().chain(other.until).min();
        Terms { until, exact: self.exact || other.exact, ..self }
    }

    /// Returns true if these terms need no more capacity than `other`: their share is not larger,
    /// their period is not shorter, and they have no more vCPUs. They then fit wherever `other`
    /// fits. Phases and end times do not matter.
    #[must_use]
    pub fn is_within(self, other: Terms) -> bool {
        !self.each.is_more_than(other.each)
            && self.each.period() >= other.each.period()
            && self.vcpus <= other.vcpus
    }
}

impl fmt::Display for Terms {
    /// Writes `2ms/10ms exact for 2 vCPUs`. The optional parts `by use`, `in phase 3ms`, `by
    /// deadline` and `until 2026-12-01T18:00:00Z` follow. The default mechanism, the dispatcher, is
    /// not named.
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

/// Amount of CPU time as a request states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Slice and period of each vCPU.
    Each(Reservation),
    /// Share of all vCPUs together. Each vCPU gets an equal part, and may borrow budget that other
    /// vCPUs leave unused.
    Together {
        /// Share of all vCPUs together, in CPUs.
        share: CpuShare,
        /// Period of each vCPU. If `None`, the period is [`Amount::USUAL_PERIOD`].
        period: Option<Span>,
    },
}

impl Amount {
    /// Default period. It is so short that users do not notice it, and so long that dispatching a
    /// few hundred vCPUs costs little CPU time.
    pub const USUAL_PERIOD: Span = Span::from_ms(10);

    /// Returns the terms for `vcpus` vCPUs. `exact` is true for a hard limit. The slice is rounded
    /// up to a whole number of nanoseconds.
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
/// `Some(None)` removes the phase or the end time.
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
mod tests;
