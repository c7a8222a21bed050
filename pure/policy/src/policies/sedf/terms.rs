//! Parameters of a vCPU: their fields, the reservation that they make, and the sums of one CPU.

use slackline_units::{CpuShare, Reservation, ReservationError, Span};

use super::rules::{SedfRules, SlackShare};
use super::score::Score;
use crate::admission::bookings::{DispatchOverhead, ReservedLoad, longest_slice};
use crate::balance::Weight;
use crate::{AdmitError, Field, Kind, Promise, Values};

const SLICE: Field = Field::span_within(
    "slice",
    "0s",
    (Span::ZERO, Span::from_secs(10)),
    "CPU time reserved in every period, at least 5us; 0s is best effort",
);
const PERIOD: Field = Field::span_within(
    "period",
    "100ms",
    (Span::from_us(10), Span::from_secs(10)),
    "length of a period; the slice is due by its end",
);
const LATENCY: Field = Field::span_within(
    "latency",
    "0s",
    (Span::ZERO, Span::from_secs(10)),
    "first period after a long block, with unblocking latency-hint or burst; 0s is none",
);
const EXTRA: Field = Field {
    name: "extra",
    kind: Kind::Flag,
    default: Some("true"),
    help: "the vCPU may use slack; false makes the slice a hard limit",
};
const WEIGHT: Field = Field::whole(
    "weight",
    "0",
    (0, MOST_WEIGHT),
    "weight for the CPU time that fixed slices leave in each 100ms; 0 is none",
);
const EXTRA_WEIGHT: Field = Field::whole(
    "extra-weight",
    "0",
    (0, MOST_WEIGHT),
    "weight for slack; 128 is worth slice/period = 1; 0 means slice/period, or 1 without a slice",
);

const BALANCES: Field =
    Field::flag("balances", "the vCPU pays for the balancer, which is called when the vCPU blocks");

/// Largest weight. Xen stores weights as signed 16-bit integers, without a range check. [Xen 3.0,
/// §6.10]
const MOST_WEIGHT: i64 = 32_767;

pub(super) const FIELDS: &[Field] =
    &[SLICE, PERIOD, LATENCY, EXTRA, WEIGHT, EXTRA_WEIGHT, BALANCES];

/// Shortest slice that is accepted. [Xen 3.0, §6.1]
const LEAST_SLICE: Span = Span::from_us(5);

/// Period of vCPUs with a weight in place of a slice, and of best-effort vCPUs. [Xen 3.0, §6.1]
pub(super) const WEIGHT_PERIOD: Span = Span::from_ms(100);

/// Part of each `WEIGHT_PERIOD` that is never given to vCPUs with a weight in place of a slice.
/// [Xen 3.0, §6.1]
const WEIGHT_SAFETY: Span = Span::from_ms(5);

/// Extra-weight that counts as slice/period = 1. [Xen 3.0, §6.1]
const FULL_WEIGHT: u64 = 128;

/// Returns the slice, or zero if it is shorter than the minimum.
pub(super) fn long_enough(slice: Span) -> Span {
    if slice < LEAST_SLICE { Span::ZERO } else { slice }
}

/// Parameters of a vCPU, as the policy uses them.
#[derive(Clone, Copy, Debug)]
pub(super) struct SedfParameters {
    /// Slice as given. Zero for a best-effort vCPU and for a vCPU whose slice its weight
    /// determines.
    pub(super) slice: Span,
    /// Period as given if there is a slice, and `WEIGHT_PERIOD` otherwise.
    pub(super) period: Span,
    /// Length of the first period after a long block. Zero if a long block does not shorten the
    /// period.
    pub(super) latency: Span,
    /// True if the vCPU may use slack.
    pub(super) extra: bool,
    /// Weight that determines the slice: the vCPU's part of the time that fixed slices leave in
    /// each 100 ms. Zero if the vCPU has a fixed slice or no slice.
    pub(super) weight: u64,
    /// Weight that determines the share of slack (extra-weight). With zero, slice/period counts
    /// instead.
    pub(super) extra_weight: u64,
    /// True if the vCPU is charged for balancing.
    pub(super) balances: bool,
}

impl SedfParameters {
    /// Returns parameters with this slice as a hard limit and no other right to CPU time.
    pub(super) fn of(slice: Reservation) -> SedfParameters {
        let (slice, period) = (slice.slice(), slice.period());
        SedfParameters {
            slice,
            period,
            latency: Span::ZERO,
            extra: false,
            weight: 0,
            extra_weight: 0,
            balances: false,
        }
    }

    /// Reads the parameters of a vCPU. Refuses a vCPU that would never run under these rules.
    pub(super) fn read(share: &Values, rules: &SedfRules) -> Result<SedfParameters, AdmitError> {
        let whole = |field| share.whole(field).unsigned_abs();
        let weight = whole(&WEIGHT);
        let slice = if weight > 0 { Span::ZERO } else { share.span(&SLICE) };
        let by_slice = match rules.slack_share {
            SlackShare::Slice => true,
            SlackShare::SetSlice => weight == 0,
            SlackShare::One => slice.is_zero() && weight == 0, // There 0 stands for 1.
        };
        let terms = SedfParameters {
            slice,
            period: if slice.is_zero() { WEIGHT_PERIOD } else { share.span(&PERIOD) },
            latency: share.span(&LATENCY),
            extra: share.flag(&EXTRA),
            weight,
            extra_weight: whole(&EXTRA_WEIGHT).max(u64::from(!by_slice)),
            balances: share.flag(&BALANCES),
        };
        if terms.reservation()?.is_some() && terms.slice < LEAST_SLICE {
            return Err(AdmitError::SliceTooShort { slice: terms.slice, least: LEAST_SLICE });
        }
        let has_slack = terms.extra && rules.has_extra_queue();
        if terms.slice.is_zero() && terms.weight == 0 && !has_slack {
            return Err(ReservationError::NoSlice.into());
        }
        Ok(terms)
    }

    /// Returns the reservation, which does not depend on other vCPUs. `None` if the vCPU has no
    /// fixed slice.
    pub(super) fn reservation(&self) -> Result<Option<Reservation>, ReservationError> {
        if self.slice.is_zero() {
            return Ok(None);
        }
        Reservation::new(self.slice, self.period).map(Some)
    }

    /// Returns the part of each 100 ms that the fixed slice takes. [Xen 3.0, §6.9]
    pub(super) fn taken(&self) -> Span {
        part(WEIGHT_PERIOD, self.slice, self.period)
    }

    /// Returns the cost of a quantum of slack for this vCPU as an exact fraction. [Diestelhorst
    /// §3.2.4, equation 3.3]
    pub(super) fn cost(&self, slice: Span) -> Cost {
        let (above, below) = match self.extra_weight {
            0 if slice.is_zero() => (FULL_WEIGHT, 1),
            0 => (self.period.ns(), slice.ns()),
            weight => (FULL_WEIGHT, weight),
        };
        Cost { above, below }
    }

    /// Returns the slack weight of the vCPU as an exact fraction: the reciprocal of the cost of a
    /// quantum.
    pub(super) fn slack_weight(&self, slice: Span) -> (u64, u64) {
        match self.extra_weight {
            0 if slice.is_zero() => (1, 1),
            0 => (FULL_WEIGHT.saturating_mul(slice.ns()), self.period.ns()),
            weight => (weight, 1),
        }
    }

    /// Returns true if the vCPU gets slack and no slice.
    pub(super) fn is_best_effort(&self) -> bool {
        self.extra && self.slice.is_zero() && self.weight == 0
    }

    /// Returns the slack weight of the vCPU, rounded down to an integer and at least 1.
    fn crowd(&self) -> u128 {
        let by_slice =
            u128::from(FULL_WEIGHT) * u128::from(self.slice.ns()) / u128::from(self.period.ns());
        if self.extra_weight > 0 { u128::from(self.extra_weight) } else { by_slice.max(1) }
    }
}

/// Returns `of × above / below`, rounded down. Saturates if the result exceeds 64 bits.
pub(super) fn part(of: Span, above: Span, below: Span) -> Span {
    let ns = u128::from(of.ns()) * u128::from(above.ns()) / u128::from(below.ns());
    Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Cost of a quantum of slack as a fraction. The value 1 is the cost for a vCPU with slice =
/// period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    above: u64,
    below: u64,
}

impl Cost {
    /// Returns the cost for a weight in the fixed-point units of balancers.
    pub(super) fn of_weight(weight: u64) -> Cost {
        Cost { above: Weight::fraction(FULL_WEIGHT, 1).units(), below: weight }
    }

    /// Returns the cost of a whole quantum, with ten binary places as in Xen.
    pub(super) fn whole(self) -> Score {
        Score::in_tenths(self.above, self.below)
    }

    /// Returns the cost of `used`, a part of a quantum.
    pub(super) fn of(self, used: Span, quantum: Span) -> Score {
        Score::fraction(self.above, self.below).times(used, quantum)
    }
}

/// Returns the reservation that the parameters of a vCPU make. The field `exact` of the result
/// states if it is a hard limit. `None` for a best-effort vCPU and for a vCPU whose slice its
/// weight determines.
pub(super) fn promise(share: &Values) -> Result<Option<Promise>, ReservationError> {
    if share.whole(&WEIGHT) > 0 || share.span(&SLICE).is_zero() {
        return Ok(None);
    }
    let reservation = Reservation::new(share.span(&SLICE), share.span(&PERIOD))?;
    let exact = !share.flag(&EXTRA);
    Ok(Some(Promise { reservation, exact, bounded: exact, by_use: false, phase: None }))
}

/// Sums of the reservations and weights on one CPU.
#[derive(Clone, Debug, Default)]
pub(super) struct CpuTally {
    load: ReservedLoad,
    /// Dispatch overhead, which is reserved in addition to slices.
    looks: DispatchOverhead,
    /// Part of each 100 ms that fixed slices take. [Xen 3.0, §6.9]
    taken: Span,
    /// Sum of the weights that determine slices.
    weights: u64,
    /// Sum of the slack weights of the vCPUs, each rounded down to an integer.
    crowd: u128,
    members: u64,
}

impl CpuTally {
    /// Returns the tally of a CPU without vCPUs, for this dispatch overhead.
    pub(super) fn with(looks: DispatchOverhead) -> CpuTally {
        CpuTally { looks, ..CpuTally::default() }
    }

    /// Reserves a slice, with its dispatch overhead.
    pub(super) fn book(&mut self, slice: Reservation) {
        self.load.add(self.looks.demand(slice));
    }

    /// Releases a slice, with its dispatch overhead.
    pub(super) fn unbook(&mut self, slice: Reservation) {
        self.load.remove(self.looks.demand(slice));
    }

    /// Reserves a subtask. `rate` includes its dispatch overhead.
    pub(super) fn book_part(&mut self, rate: Reservation) {
        self.load.add(rate);
    }

    /// Releases a subtask. `rate` includes its dispatch overhead.
    pub(super) fn unbook_part(&mut self, rate: Reservation) {
        self.load.remove(rate);
    }

    /// Returns true if `one` needs more capacity than `other`, each with its dispatch overhead.
    pub(super) fn takes_more(&self, one: Reservation, other: Reservation) -> bool {
        self.looks.demand(one).is_more_than(self.looks.demand(other))
    }

    /// Counts a vCPU on this CPU. Its slice is reserved separately, by [`CpuTally::book`].
    pub(super) fn add(&mut self, terms: &SedfParameters, taken: Span) {
        self.taken += taken;
        self.weights += terms.weight;
        self.crowd += terms.crowd();
        self.members += 1;
    }

    /// Ends the count of a vCPU on this CPU. Its slice is released separately, by
    /// [`CpuTally::unbook`].
    pub(super) fn remove(&mut self, terms: &SedfParameters, taken: Span) {
        self.taken -= taken;
        self.weights -= terms.weight;
        self.crowd -= terms.crowd();
        self.members -= 1;
    }

    /// Returns the slice in 100 ms that a weight gives. [Xen 3.0, §6.9] In Xen the result is
    /// negative if reservations exceed the capacity; in Slackline it is 1 ns.
    pub(super) fn slice_of(&self, weight: u64) -> Span {
        self.part_of(self.left(), weight).max(Span::from_ns(1))
    }

    /// Returns `left × weight / sum of the weights on this CPU`.
    pub(super) fn part_of(&self, left: Span, weight: u64) -> Span {
        part(left, Span::from_ns(weight), Span::from_ns(self.weights.max(1)))
    }

    /// Returns true if a vCPU on this CPU has a weight that determines its slice.
    pub(super) fn has_weights(&self) -> bool {
        self.weights > 0
    }

    /// Returns true if a vCPU with the parameters `terms` fits beside the reservations on this CPU.
    /// `slice` is the reservation to book. It exceeds the vCPU's slice while a larger share that
    /// the vCPU gave up is still reserved. Each unit of weight must still get at least 1 ns of the
    /// time that fixed slices leave.
    pub(super) fn has_room(
        &self,
        terms: &SedfParameters,
        slice: Option<Reservation>,
        capacity: CpuShare,
    ) -> bool {
        let fits = slice.is_none_or(|slice| self.load.has_room(self.looks.demand(slice), capacity));
        let weights = Span::from_ns(self.weights + terms.weight);
        fits && weights <= self.left().left_after(terms.taken())
    }

    /// Returns the longest slice with this period that fits. `demand` maps a slice to the
    /// reservation that has to be booked for it.
    pub(super) fn longest(
        &self,
        period: Span,
        demand: impl Fn(Reservation) -> Reservation,
        capacity: CpuShare,
    ) -> Span {
        let fits = |slice| self.has_room(&SedfParameters::of(slice), Some(demand(slice)), capacity);
        let longest = longest_slice(period, fits);
        long_enough(longest)
    }

    /// Returns the reserved share of the CPU, rounded up to a millionth.
    pub(super) fn share(&self) -> CpuShare {
        self.load.share()
    }

    /// Returns the suitability of this CPU for a vCPU with the parameters `terms`: free capacity /
    /// total weight of the vCPUs that would share it. If that is equal, fewer vCPUs are better.
    pub(super) fn appeal(&self, terms: &SedfParameters) -> CpuSuitability {
        let free = (1_u128 << 64).saturating_sub(self.load.bound());
        let (room, sharers) = if terms.weight > 0 {
            (u128::from(self.left().ns()), u128::from(self.weights + terms.weight))
        } else if terms.slice.is_zero() {
            (free, self.crowd + terms.crowd())
        } else {
            (free, 1)
        };
        CpuSuitability { room, sharers, members: self.members }
    }

    /// Returns the part of 100 ms that fixed slices leave for vCPUs with a weight.
    pub(super) fn left(&self) -> Span {
        (WEIGHT_PERIOD - WEIGHT_SAFETY).left_after(self.taken)
    }
}

/// Suitability of a CPU for a vCPU, computed by [`CpuTally::appeal`].
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuSuitability {
    /// Capacity that is free for the vCPU: ns per 100 ms for a vCPU with a weight, otherwise in
    /// 2^-64 of a CPU.
    room: u128,
    /// Total weight of the vCPUs that would share the capacity. 1 for a vCPU with a fixed slice.
    sharers: u128,
    members: u64,
}

impl CpuSuitability {
    /// Orders the more suitable CPU first. The products do not overflow: `room` is at most 2^64,
    /// and `sharers` is less than 2^48.
    pub(super) fn compare(&self, other: &CpuSuitability) -> core::cmp::Ordering {
        let (this, that) = (self.room * other.sharers, other.room * self.sharers);
        that.cmp(&this).then(self.members.cmp(&other.members))
    }
}

#[cfg(test)]
mod tests {
    use core::cmp::Ordering;

    use super::*;

    /// For slack, a work-conserving slice of half a CPU counts as half of `FULL_WEIGHT`.
    #[test]
    fn sedf_50_percent_slice_has_half_of_full_slack_weight() {
        let half = Reservation::new(Span::from_ms(5), Span::from_ms(10)).unwrap();
        let half = SedfParameters { extra: true, ..SedfParameters::of(half) };
        let slack = |extra_weight| SedfParameters {
            slice: Span::ZERO,
            period: WEIGHT_PERIOD,
            extra_weight,
            ..half
        };
        let beside = |who: SedfParameters| {
            let mut tally = CpuTally::default();
            tally.add(&who, Span::ZERO);
            tally.appeal(&slack(1))
        };
        let against = |extra_weight| beside(half).compare(&beside(slack(extra_weight)));
        assert_eq!(against(FULL_WEIGHT / 2 - 1), Ordering::Greater);
        assert_eq!(against(FULL_WEIGHT / 2), Ordering::Equal);
        assert_eq!(against(FULL_WEIGHT / 2 + 1), Ordering::Less);
    }
}
