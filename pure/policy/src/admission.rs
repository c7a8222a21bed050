//! The admission test of earliest deadline first, exactly: the sum of slice over period of all
//! reservations on a CPU must not exceed what it may promise.
//! Source: [VSched §3.1], equation 1; Liu and Layland 1973.
//!
//! Fractions of arbitrary 64-bit numbers have no common denominator that fits anywhere, and a float
//! would admit what does not fit. So the sum is kept twice: as a lower bound in 2^-64ths of a CPU,
//! which is off by less than one unit a reservation and decides almost every case; and by period,
//! from which the exact fraction is worked out with as many digits as it takes when the bounds are
//! not enough, as when a set fills a CPU to the last nanosecond.
//!
//! Where the host says what a look at a CPU takes, a reservation demands two of them in each period
//! besides its slice: one when the period begins, one when the slice has been used.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Ordering;

use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, Span, Time, VcpuId};

use crate::hold::{Booking, Books, Holds};
use crate::placement::{Packing, Request};
use crate::{AdmitError, Dispatching, Moment, Topology};

/// What has been promised on each CPU, where every reservation is bound to one.
#[derive(Clone, Debug)]
pub(crate) struct Bookings {
    loads: Loads,
    /// What a CPU may promise; none is as much as is asked for.
    capacity: Option<CpuShare>,
    packing: Packing,
    holds: Holds<CpuId>,
}

/// By CPU.
#[derive(Clone, Debug)]
struct Loads {
    loads: Vec<Load>,
    looks: Looks,
}

impl Books for Loads {
    type Place = CpuId;

    fn add(&mut self, cpu: CpuId, share: Reservation) {
        let demand = self.looks.demand(share);
        self.loads[cpu.index()].add(demand);
    }

    fn remove(&mut self, cpu: CpuId, share: Reservation) {
        let demand = self.looks.demand(share);
        self.loads[cpu.index()].remove(demand);
    }

    fn takes_more(&self, one: Reservation, other: Reservation) -> bool {
        self.looks.demand(one).is_more_than(self.looks.demand(other))
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) at: Time,
    pub(crate) share: Reservation,
    /// The CPUs among which it is to be bound to one.
    pub(crate) allowed: CpuSet,
    /// Those of them that [rest](Bookings::rest).
    pub(crate) resting: CpuSet,
}

/// Somebody whose share changes or ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenant {
    pub(crate) vcpu: VcpuId,
    /// Where it is bound.
    pub(crate) cpu: CpuId,
    pub(crate) share: Reservation,
    /// What it has had of that and not earned yet.
    pub(crate) advance: Span,
}

/// What a reservation demands in each of its periods besides the slice: that a CPU is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looks(Span);

impl Looks {
    /// How often a CPU is looked at for a reservation in each of its periods.
    const A_PERIOD: u64 = 2;

    /// On this host.
    pub(crate) fn on(topology: &Topology) -> Looks {
        Looks(topology.dispatch() * Looks::A_PERIOD)
    }

    /// What a reservation takes in all; at most all of a CPU.
    pub(crate) fn demand(self, asked: Reservation) -> Reservation {
        let (slice, period) = (asked.slice(), asked.period());
        let whole = if self.0 < period - slice { slice + self.0 } else { period };
        Reservation::new(whole, period).unwrap_or(asked)
    }

    /// The part of the demand that is not the slice, where that is counted.
    pub(crate) fn dispatching(self, asked: Reservation) -> Option<Dispatching> {
        let (looks, period) = (u128::from(self.0.ns()), u128::from(asked.period().ns()));
        let ppm = (looks * 1_000_000).div_ceil(period).min(1_000_000);
        let share = CpuShare::from_ppm(u32::try_from(ppm).unwrap_or(1_000_000));
        let a_second = Looks::A_PERIOD * (Span::from_secs(1) / asked.period());
        (!self.0.is_zero()).then_some(Dispatching { share, a_second })
    }
}

/// The longest slice of a period with which something holds that holds of all shorter ones, if of
/// any.
pub(crate) fn longest_slice(period: Span, fits: impl Fn(Reservation) -> bool) -> Span {
    let (mut most, mut beyond) = (0, u128::from(period.ns()) + 1);
    while beyond - most > 1 {
        let middle = Span::from_ns(u64::try_from((most + beyond) / 2).expect("at most a period"));
        if Reservation::new(middle, period).is_ok_and(&fits) {
            most = u128::from(middle.ns());
        } else {
            beyond = u128::from(middle.ns());
        }
    }
    Span::from_ns(u64::try_from(most).expect("at most a period"))
}

impl Bookings {
    /// Nothing has been promised yet on the CPUs of this host.
    pub(crate) fn new(
        topology: &Topology,
        capacity: Option<CpuShare>,
        packing: Packing,
    ) -> Bookings {
        let loads = alloc::vec![Load::default(); topology.cpus()];
        let loads = Loads { loads, looks: Looks::on(topology) };
        Bookings { loads, capacity, packing, holds: Holds::new() }
    }

    /// Binds the reservation of somebody who joins to one of the CPUs allowed. Who comes back has
    /// had some of it in advance: how much comes with the CPU.
    pub(crate) fn add(&mut self, vcpu: VcpuId, asked: &Asked) -> Result<(CpuId, Span), AdmitError> {
        self.rebook(vcpu, None, None, asked)
    }

    /// Puts another reservation in the place of an old one: on the same CPU where it has room
    /// there. On failure the old one stands.
    pub(crate) fn replace(&mut self, tenant: Tenant, asked: &Asked) -> Result<CpuId, AdmitError> {
        let Tenant { vcpu, cpu, share, advance } = tenant;
        self.rebook(vcpu, Some((cpu, share)), Some(advance), asked).map(|(cpu, _)| cpu)
    }

    fn rebook(
        &mut self,
        vcpu: VcpuId,
        now: Option<Booking<CpuId>>,
        advance: Option<Span>,
        asked: &Asked,
    ) -> Result<(CpuId, Span), AdmitError> {
        let Asked { at, share, allowed, resting } = *asked;
        let before = (!self.holds.is_empty()).then(|| (self.holds.clone(), self.loads.clone()));
        self.holds.lapse(at, &mut self.loads);
        resting.iter().for_each(|cpu| self.rest(cpu));
        let lifted = self.holds.lift(vcpu, now, &mut self.loads);
        let advance = advance.unwrap_or_else(|| lifted.advance(at));
        let demand = |cpu, share| lifted.demand(cpu, share, &self.loads);
        match self.place(share, demand, allowed, now.map(|(home, _)| home)) {
            Ok(cpu) => {
                let to = Some((cpu, share));
                self.holds.settle(&lifted, to, (at, advance), &mut self.loads);
                Ok((cpu, advance))
            }
            Err(error) => {
                if let Some(before) = before {
                    (self.holds, self.loads) = before;
                } else if let Some((home, share)) = now {
                    self.loads.add(home, share);
                }
                Err(error)
            }
        }
    }

    /// A reservation is over.
    pub(crate) fn remove(&mut self, now: Time, tenant: Tenant) {
        let Tenant { vcpu, cpu, share, advance } = tenant;
        self.holds.lapse(now, &mut self.loads);
        let lifted = self.holds.lift(vcpu, Some((cpu, share)), &mut self.loads);
        self.holds.settle(&lifted, None, (now, advance), &mut self.loads);
    }

    /// What a vCPU asks for, where it may run.
    pub(crate) fn asked(
        &self,
        at: &Moment,
        vcpu: VcpuId,
        share: Reservation,
        rests: impl Fn(CpuId) -> bool,
    ) -> Asked {
        let allowed = at.allowed(vcpu);
        Asked { at: at.now(), share, allowed, resting: self.resting(allowed, rests) }
    }

    /// Those of some CPUs that [rest](Bookings::rest), where that makes a difference.
    pub(crate) fn resting(&self, cpus: CpuSet, rests: impl Fn(CpuId) -> bool) -> CpuSet {
        cpus.iter().filter(|&cpu| !self.holds.is_empty() && rests(cpu)).collect()
    }

    /// The longest slice of such a period that would be added now, where these CPUs
    /// [rest](Bookings::rest); none if all are.
    pub(crate) fn room(
        &self,
        at: Time,
        period: Span,
        (allowed, resting): (CpuSet, CpuSet),
    ) -> Option<Span> {
        self.capacity?;
        let mut then = self.clone();
        then.holds.lapse(at, &mut then.loads);
        resting.iter().for_each(|cpu| then.rest(cpu));
        let room = |cpu| longest_slice(period, |asked| then.fits(cpu, asked));
        allowed.iter().map(room).max()
    }

    fn fits(&self, cpu: CpuId, share: Reservation) -> bool {
        let (load, demand) = (&self.loads.loads[cpu.index()], self.loads.looks.demand(share));
        self.capacity.is_none_or(|capacity| load.has_room(demand, capacity))
    }

    /// Nobody is owed anything on a CPU, and nobody who sleeps will claim to have been.
    pub(crate) fn rest(&mut self, cpu: CpuId) {
        self.holds.rest(cpu, &mut self.loads);
    }

    /// What a CPU has not promised, to a millionth.
    pub(crate) fn left(&self, cpu: CpuId) -> CpuShare {
        let ppm = (self.loads.loads[cpu.index()].bound() * 1_000_000).div_ceil(1 << 64);
        CpuShare::ONE.less(CpuShare::from_ppm(u32::try_from(ppm).unwrap_or(1_000_000)))
    }

    fn place(
        &self,
        asked: Reservation,
        demand: impl Fn(CpuId, Reservation) -> Reservation,
        allowed: CpuSet,
        home: Option<CpuId>,
    ) -> Result<CpuId, AdmitError> {
        let load = |cpu: CpuId| &self.loads.loads[cpu.index()];
        let fits = |cpu| self.fits(cpu, demand(cpu, asked));
        let compare = |this, that| load(this).bound().cmp(&load(that).bound());
        let request = Request { allowed, home, fits, compare };
        let room = |cpu| longest_slice(asked.period(), |asked| self.fits(cpu, demand(cpu, asked)));
        request.place(self.packing).map_err(|roomiest| AdmitError::NoRoom {
            asked,
            promised: load(roomiest).share(),
            capacity: self.capacity.expect("without a limit there is room"),
            cpus: allowed.len(),
            dispatching: self.loads.looks.dispatching(asked),
            room: allowed.iter().map(room).max().unwrap_or(Span::ZERO),
        })
    }
}

/// What has been promised where reservations are bound to sets of CPUs, and each set is as good as
/// so many CPUs.
#[derive(Clone, Debug)]
pub(crate) struct SetBooks {
    /// The first are all CPUs.
    sets: Vec<SetLoad>,
    /// What each CPU may promise.
    capacity: CpuShare,
    looks: Looks,
}

/// What has been promised on a set of CPUs.
#[derive(Clone, Debug)]
struct SetLoad {
    cpus: CpuSet,
    /// To those who may run on just these.
    own: Load,
    /// To those who may run on no others than these.
    within: Load,
}

impl SetBooks {
    /// Nothing has been promised yet on the CPUs of this host.
    pub(crate) fn new(topology: &Topology, capacity: CpuShare) -> SetBooks {
        let mut books = SetBooks { sets: Vec::new(), capacity, looks: Looks::on(topology) };
        books.keep(CpuSet::first_n(topology.cpus()));
        books
    }

    /// From now on it is known what is promised within this set.
    pub(crate) fn keep(&mut self, cpus: CpuSet) {
        if self.sets.iter().all(|set| set.cpus != cpus) {
            let mut load = Load::default();
            let confined = self.sets.iter().filter(|set| within(set.cpus, cpus));
            confined.for_each(|set| load.add_all(&set.own));
            self.sets.push(SetLoad { cpus, own: Load::default(), within: load });
        }
    }

    /// Why this cannot be promised within these CPUs; `demand` says what a share takes there.
    pub(crate) fn refuses(
        &self,
        asked: Reservation,
        demand: impl Fn(Reservation) -> Reservation,
        allowed: CpuSet,
    ) -> Option<AdmitError> {
        let set = self.too_full_for(demand(asked), allowed)?;
        let (cpus, capacity) = (set.cpus.len(), self.capacity_of(set.cpus));
        let (promised, dispatching) = (set.within.share(), self.looks.dispatching(asked));
        let fits = |asked| self.too_full_for(demand(asked), allowed).is_none();
        let room = longest_slice(asked.period(), fits);
        Some(match cpus {
            1 => AdmitError::NoRoom { asked, promised, capacity, cpus, dispatching, room },
            _ => AdmitError::NoRoomTogether { asked, promised, capacity, cpus, dispatching, room },
        })
    }

    /// The longest slice of such a period that can be promised within these CPUs.
    pub(crate) fn room(&self, period: Span, allowed: CpuSet) -> Span {
        longest_slice(period, |asked| self.too_full_for(asked, allowed).is_none())
    }

    fn too_full_for(&self, share: Reservation, allowed: CpuSet) -> Option<&SetLoad> {
        let demand = self.looks.demand(share);
        let mut around = self.sets.iter().filter(|set| within(allowed, set.cpus));
        around.find(|set| !set.within.has_room(demand, self.capacity_of(set.cpus)))
    }

    fn capacity_of(&self, set: CpuSet) -> CpuShare {
        let cpus = u32::try_from(set.len()).expect("at most 256");
        CpuShare::from_ppm(cpus * self.capacity.ppm())
    }
}

impl Books for SetBooks {
    type Place = CpuSet;

    fn add(&mut self, place: CpuSet, share: Reservation) {
        let demand = self.looks.demand(share);
        for set in self.sets.iter_mut().filter(|set| within(place, set.cpus)) {
            set.within.add(demand);
            if set.cpus == place {
                set.own.add(demand);
            }
        }
    }

    fn remove(&mut self, place: CpuSet, share: Reservation) {
        let demand = self.looks.demand(share);
        for set in self.sets.iter_mut().filter(|set| within(place, set.cpus)) {
            set.within.remove(demand);
            if set.cpus == place {
                set.own.remove(demand);
            }
        }
    }

    fn takes_more(&self, one: Reservation, other: Reservation) -> bool {
        self.looks.demand(one).is_more_than(self.looks.demand(other))
    }
}

fn within(cpus: CpuSet, others: CpuSet) -> bool {
    cpus.and(&others) == cpus
}

/// What has been promised on one CPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load {
    /// The sum of all slices of each period, in nanoseconds.
    slices: BTreeMap<Span, u128>,
    /// The sum of slice over period, each term rounded down, in 2^-64ths of a CPU.
    floor: u128,
    /// How many reservations: the exact sum is less than this many units above `floor`.
    count: u32,
}

impl Load {
    pub(crate) fn add(&mut self, reservation: Reservation) {
        *self.slices.entry(reservation.period()).or_default() += slice(reservation);
        self.floor += floor(reservation);
        self.count += 1;
    }

    fn add_all(&mut self, other: &Load) {
        for (period, slices) in &other.slices {
            *self.slices.entry(*period).or_default() += slices;
        }
        self.floor += other.floor;
        self.count += other.count;
    }

    pub(crate) fn remove(&mut self, reservation: Reservation) {
        let left = self.slices.get_mut(&reservation.period()).expect("what was added before");
        *left -= slice(reservation);
        if *left == 0 {
            self.slices.remove(&reservation.period());
        }
        self.floor -= floor(reservation);
        self.count -= 1;
    }

    /// Whether `more` can be promised as well without exceeding `capacity`.
    pub(crate) fn has_room(&self, more: Reservation, capacity: CpuShare) -> bool {
        let limit = u128::from(capacity.ppm()) << 64;
        let floor = (self.floor + floor(more)) * 1_000_000;
        let ceiling = floor + u128::from(self.count + 1) * 1_000_000;
        if ceiling <= limit {
            return true;
        }
        if floor > limit {
            return false;
        }
        let mut all = self.clone();
        all.add(more);
        all.compare_exactly(capacity) != Ordering::Greater
    }

    /// What has been promised, rounded up to a millionth: never shown as less than it is.
    pub(crate) fn share(&self) -> CpuShare {
        let ppm = |unit: u128| (unit * 1_000_000).div_ceil(1 << 64);
        let most = ppm(self.floor + u128::from(self.count));
        // The bound is a fraction of a millionth too high: one less where that is still enough.
        let most = CpuShare::from_ppm(u32::try_from(most).expect("at most one CPU a CPU"));
        let less = most.less(CpuShare::from_ppm(1));
        if self.compare_exactly(less) == Ordering::Greater { most } else { less }
    }

    /// Less promised comes first; only a bound, good for choosing between CPUs.
    pub(crate) fn bound(&self) -> u128 {
        self.floor
    }

    fn compare_exactly(&self, capacity: CpuShare) -> Ordering {
        let mut sum = Fraction::from(0, 1);
        for (period, &slices) in &self.slices {
            sum = sum.plus(&Fraction::from(slices, u128::from(period.ns())));
        }
        sum.compare(&Fraction::from(u128::from(capacity.ppm()), 1_000_000))
    }
}

fn slice(reservation: Reservation) -> u128 {
    u128::from(reservation.slice().ns())
}

fn floor(reservation: Reservation) -> u128 {
    (slice(reservation) << 64) / u128::from(reservation.period().ns())
}

/// A fraction of numbers of any size.
struct Fraction {
    above: Number,
    below: Number,
}

impl Fraction {
    fn from(above: u128, below: u128) -> Fraction {
        let common = greatest_common_divisor(above, below);
        Fraction { above: Number::from(above / common), below: Number::from(below / common) }
    }

    fn plus(&self, other: &Fraction) -> Fraction {
        let above = self.above.times(&other.below).plus(&other.above.times(&self.below));
        Fraction { above, below: self.below.times(&other.below) }
    }

    fn compare(&self, other: &Fraction) -> Ordering {
        self.above.times(&other.below).compare(&other.above.times(&self.below))
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// A natural number of any size: 32-bit digits, least first, no zeros at the end.
struct Number(Vec<u32>);

impl Number {
    fn from(mut value: u128) -> Number {
        let mut digits = Vec::new();
        while value != 0 {
            digits.push(low(value));
            value >>= 32;
        }
        Number(digits)
    }

    fn plus(&self, other: &Number) -> Number {
        let mut digits = Vec::new();
        let mut carry = 0;
        for place in 0..self.0.len().max(other.0.len()) {
            let sum = carry + self.digit(place) + other.digit(place);
            digits.push(low(sum));
            carry = sum >> 32;
        }
        if carry != 0 {
            digits.push(low(carry));
        }
        Number(digits)
    }

    fn times(&self, other: &Number) -> Number {
        let mut digits = alloc::vec![0; self.0.len() + other.0.len()];
        for (i, &a) in self.0.iter().enumerate() {
            let mut carry = 0;
            for (j, &b) in other.0.iter().enumerate() {
                let sum = u128::from(digits[i + j]) + u128::from(a) * u128::from(b) + carry;
                digits[i + j] = low(sum);
                carry = sum >> 32;
            }
            digits[i + other.0.len()] = low(carry);
        }
        while digits.last() == Some(&0) {
            digits.pop();
        }
        Number(digits)
    }

    fn compare(&self, other: &Number) -> Ordering {
        let longer = self.0.len().cmp(&other.0.len());
        longer.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    fn digit(&self, place: usize) -> u128 {
        u128::from(self.0.get(place).copied().unwrap_or(0))
    }
}

/// The lowest 32 bits.
fn low(value: u128) -> u32 {
    u32::try_from(value & u128::from(u32::MAX)).expect("32 bits")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slackline_units::DomId;

    use super::*;

    #[test]
    fn what_looking_takes_is_demanded_too_and_told_when_it_is_what_does_not_fit() {
        let ms =
            |slice, period| Reservation::new(Span::from_us(slice), Span::from_us(period)).unwrap();
        let capacity = Some(CpuShare::from_ppm(950_000));
        let book = |dispatch| {
            let topology = Topology::flat(1).with_dispatch(dispatch);
            Bookings::new(&topology, capacity, Packing::Spread)
        };
        let vcpu = |slot| VcpuId::new(slot, DomId::new(slot), 0);
        // Each wants 9 of 20 ms in 200 parts.
        let share = ms(45, 100);
        let asked =
            Asked { at: Time::START, share, allowed: CpuSet::first_n(1), resting: CpuSet::NONE };
        for (dispatch, fit) in [(0, 2), (2, 1), (1, 2)] {
            let mut booked = book(Span::from_us(dispatch));
            let admitted = (0..3).take_while(|&slot| booked.add(vcpu(slot), &asked).is_ok());
            assert_eq!(admitted.count(), fit, "{dispatch} us a look");
            let cpu = CpuId::new(0);
            let first = Tenant { vcpu: vcpu(0), cpu, share, advance: Span::ZERO };
            booked.remove(Time::START, first);
            assert!(booked.add(vcpu(0), &asked).is_ok(), "what is given back can be had again");
        }
        let mut booked = book(Span::from_us(2));
        booked.add(vcpu(0), &asked).unwrap();
        let refused = booked.add(vcpu(1), &asked).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "45us every 100us (0.45cpu) plus 0.04cpu for dispatching it 20000 times a second on \
             top of 0.49cpu already promised is more than the 0.95cpu that one CPU may promise"
        );
    }

    fn reservation(slice: u64, period: u64) -> Reservation {
        Reservation::new(Span::from_ns(slice), Span::from_ns(period)).unwrap()
    }

    #[test]
    fn a_cpu_can_be_filled_to_the_last_nanosecond_and_no_further() {
        let mut load = Load::default();
        load.add(reservation(1, 3));
        load.add(reservation(1, 6));
        assert!(load.has_room(reservation(1, 2), CpuShare::ONE));
        assert!(!load.has_room(reservation(500_000_001, 1_000_000_000), CpuShare::ONE));
        load.add(reservation(1, 2));
        let least = reservation(1, u64::MAX);
        assert!(!load.has_room(least, CpuShare::ONE));
        load.remove(reservation(1, 6));
        assert!(load.has_room(reservation(166_666_666, 1_000_000_000), CpuShare::ONE));
        assert!(!load.has_room(reservation(166_666_667, 1_000_000_000), CpuShare::ONE));
    }

    #[test]
    fn the_longest_periods_do_not_overflow() {
        let mut load = Load::default();
        for _ in 0..1000 {
            load.add(reservation(u64::MAX / 1000, u64::MAX));
        }
        assert!(load.has_room(reservation(u64::MAX % 1000, u64::MAX), CpuShare::ONE));
        assert!(!load.has_room(reservation(u64::MAX % 1000 + 1, u64::MAX), CpuShare::ONE));
    }

    proptest! {
        /// Periods that divide 2^4 · 3^2 · 5 · 7 ns can be added up in plain integers.
        #[test]
        fn the_answer_is_that_of_plain_arithmetic(
            terms in prop::collection::vec((1u64..=100, 0usize..24), 1..12),
            ppm in 1u32..=1_000_000,
        ) {
            const COMMON: u64 = 5040;
            let divisors: Vec<u64> = (1..=COMMON).filter(|n| COMMON.is_multiple_of(*n)).collect();
            let terms: Vec<Reservation> = terms
                .into_iter()
                .map(|(slice, index)| {
                    let period = divisors[index];
                    reservation(slice.min(period), period)
                })
                .collect();
            let mut load = Load::default();
            let (last, before) = terms.split_last().unwrap();
            before.iter().for_each(|term| load.add(*term));
            let parts = |r: &Reservation| r.slice().ns() * (COMMON / r.period().ns());
            let sum: u64 = terms.iter().map(parts).sum();
            let fits = u128::from(sum) * 1_000_000 <= u128::from(ppm) * u128::from(COMMON);
            prop_assert_eq!(load.has_room(*last, CpuShare::from_ppm(ppm)), fits);
            let promised: u64 = before.iter().map(parts).sum();
            let share = (u128::from(promised) * 1_000_000).div_ceil(u128::from(COMMON));
            prop_assert_eq!(u128::from(load.share().ppm()), share);
        }
    }
}
