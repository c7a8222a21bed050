//! Admission test of global EDF: in each set of CPUs, the sum of slice/period of the vCPUs that are
//! confined to the set may not exceed the capacity of its CPUs.
//!
//! By Hall's theorem, the shares can then be divided among the CPUs that their vCPUs may use, such
//! that no CPU has more than its capacity. Not every set has to be tested:
//! - Unions of affinities suffice. Any other set has more CPUs than the union of the affinities
//!   within it, and no more load.
//! - Of these unions, the connected unions suffice, in which affinities overlap. If no affinity
//!   connects two sets, the load of their union is at most the sum of the two loads.
//! - If each two affinities are disjoint, or one of them contains the other, then each connected
//!   union is one of the affinities.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use slackline_units::{CpuSet, CpuShare, DomId, Reservation, Span, VcpuId};

use crate::admission::dispatch_overhead::{DispatchOverhead, longest_slice};
use crate::admission::load::ReservedLoad;
use crate::admission::zero_lag::{Booking, ReservationBooks};
use crate::{AdmitError, Topology};

/// Maximum number of sets of several CPUs whose loads are tracked. Affinities that overlap can have
/// far more unions. Most affinities on most hosts are single CPUs, NUMA nodes and all CPUs.
const MOST_SETS: usize = 512;

/// Reservations by set of CPUs, for policies that bind each reservation to a set of CPUs. The
/// capacity of a set is the total capacity of its CPUs.
///
/// A vCPU that gave up a share has several shares while the old share stays reserved. The sets of
/// these shares can overlap. A set counts only the largest share of each vCPU, because a vCPU uses
/// one share at a time.
#[derive(Clone, Debug)]
pub(crate) struct SetBooks {
    /// Sets with their loads. The first set is all CPUs. If two sets of this list overlap, their
    /// union is in the list too.
    sets: Vec<SetLoad>,
    /// Shares of each vCPU with their sets, by domain and number of the vCPU.
    shares: BTreeMap<(DomId, u16), Vec<Booking<CpuSet>>>,
    /// Largest share of each CPU that reservations may take.
    capacity: CpuShare,
    looks: DispatchOverhead,
}

/// Set of CPUs, with the load of the vCPUs that are confined to it.
#[derive(Clone, Debug)]
struct SetLoad {
    cpus: CpuSet,
    /// Load of the vCPUs whose affinity lies within this set.
    load: ReservedLoad,
}

/// Owner and CPUs of a share: the vCPU that has the share, and the CPUs to which the share is
/// confined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AffinityOf {
    /// Domain of the vCPU, and the number of the vCPU in the domain.
    who: (DomId, u16),
    cpus: CpuSet,
}

impl AffinityOf {
    pub(crate) fn new(vcpu: VcpuId, cpus: CpuSet) -> AffinityOf {
        AffinityOf { who: (vcpu.domain(), vcpu.number()), cpus }
    }
}

impl SetBooks {
    /// Creates the admission state of a host without any reservation.
    pub(crate) fn new(topology: &Topology, capacity: CpuShare) -> SetBooks {
        let (sets, shares) = (Vec::new(), BTreeMap::new());
        let looks = DispatchOverhead::on(topology);
        let mut books = SetBooks { sets, shares, capacity, looks };
        books.keep(CpuSet::first_n(topology.cpus()));
        books
    }

    /// Starts to track the loads of an affinity and of its unions with other affinities. Returns
    /// the CPUs to which a share with this affinity must be confined. These are the CPUs of the
    /// affinity or, if there are too many unions, only one of these CPUs. A share that fits on one
    /// CPU of its affinity also fits if it may use the other CPUs of the affinity.
    pub(crate) fn keep(&mut self, cpus: CpuSet) -> CpuSet {
        if self.is_kept(cpus) || self.keep_unions(cpus) {
            return cpus;
        }
        self.forget_unused();
        if self.keep_unions(cpus) {
            return cpus;
        }
        let one = self.least_loaded(cpus);
        if !self.is_kept(one) {
            self.track(one);
        }
        one
    }

    fn is_kept(&self, cpus: CpuSet) -> bool {
        self.sets.iter().any(|set| set.cpus == cpus)
    }

    /// Starts to track the load of this set of CPUs, and of each connected union of it with tracked
    /// sets, and returns true. If the number of tracked sets would exceed `MOST_SETS`, tracks
    /// nothing and returns false.
    fn keep_unions(&mut self, cpus: CpuSet) -> bool {
        let tracked: BTreeSet<CpuSet> = self.sets.iter().map(|set| set.cpus).collect();
        let (mut new, mut next) = (BTreeSet::from([cpus]), alloc::vec![cpus]);
        let wide = tracked.iter().filter(|set| set.only().is_none()).count();
        // A union with a single CPU is never new.
        while let Some(set) = next.pop().filter(|set| set.only().is_none()) {
            if wide + new.len() > MOST_SETS {
                return false;
            }
            for other in tracked.iter().filter(|other| !set.and(other).is_empty()) {
                let mut union = set;
                union.add(other);
                if !tracked.contains(&union) && new.insert(union) {
                    next.push(union);
                }
            }
        }
        new.into_iter().for_each(|set| self.track(set));
        true
    }

    /// Starts to track the load of this set of CPUs, which is not tracked yet.
    fn track(&mut self, cpus: CpuSet) {
        let mut load = ReservedLoad::default();
        let confined = self.shares.values().filter_map(|own| self.largest(own, cpus));
        confined.for_each(|demand| load.add(demand));
        self.sets.push(SetLoad { cpus, load });
    }

    /// Stops tracking sets that are not unions of affinities of present shares.
    fn forget_unused(&mut self) {
        self.sets.truncate(1);
        let bookings = self.shares.values().flatten();
        let used: BTreeSet<CpuSet> = bookings.map(|(affinity, _)| *affinity).collect();
        for affinity in used {
            // All these sets were tracked together before, so they are not too many.
            let is_kept = self.is_kept(affinity) || self.keep_unions(affinity);
            debug_assert!(is_kept, "the sets of present shares are not too many");
        }
    }

    /// Returns the least loaded CPU of this set, as a set of one CPU. Only shares that are confined
    /// to a single CPU count in its load.
    fn least_loaded(&self, cpus: CpuSet) -> CpuSet {
        let load = |&one: &CpuSet| {
            let set = self.sets.iter().find(|set| set.cpus == one);
            set.map_or(0, |set| set.load.bound())
        };
        let least = cpus.iter().map(CpuSet::one).min_by_key(load);
        least.expect("affinity contains at least one CPU")
    }

    /// Returns the error if the requested reservation does not fit within the CPUs of `place`, else
    /// `None`. `demand` maps a place and a reservation to the share that has to be booked there.
    pub(crate) fn refuses(
        &self,
        asked: Reservation,
        demand: impl Fn(AffinityOf, Reservation) -> Reservation,
        place: AffinityOf,
    ) -> Option<AdmitError> {
        let demand = |cpus, asked| demand(AffinityOf { cpus, ..place }, asked);
        let full = |asked| self.too_full_for(|cpus| demand(cpus, asked), place.cpus);
        let set = full(asked)?;
        let (cpus, capacity) = (set.cpus.len(), self.capacity_of(set.cpus));
        let (promised, dispatching) = (set.load.share(), self.looks.dispatching(asked));
        let room = longest_slice(asked.period(), |asked| full(asked).is_none());
        Some(match cpus {
            1 => {
                let free_after = Span::ZERO;
                AdmitError::NoRoom {
                    asked,
                    promised,
                    capacity,
                    cpus,
                    dispatching,
                    room,
                    free_after,
                }
            }
            _ => AdmitError::NoRoomTogether { asked, promised, capacity, cpus, dispatching, room },
        })
    }

    /// Returns the longest slice with this period that fits within these CPUs.
    pub(crate) fn room(&self, period: Span, allowed: CpuSet) -> Span {
        longest_slice(period, |asked| self.too_full_for(|_| asked, allowed).is_none())
    }

    /// Returns a tracked set of CPUs that contains `allowed` and lacks capacity for a new share.
    /// `share` returns the share that has to be booked in a set. `None` if all tracked sets that
    /// contain `allowed` have enough capacity.
    fn too_full_for(
        &self,
        share: impl Fn(CpuSet) -> Reservation,
        allowed: CpuSet,
    ) -> Option<&SetLoad> {
        let mut around = self.sets.iter().filter(|set| within(allowed, set.cpus));
        around.find(|set| {
            let demand = self.looks.demand(share(set.cpus));
            !set.load.has_room(demand, self.capacity_of(set.cpus))
        })
    }

    /// Returns the total share of these CPUs that may be reserved.
    fn capacity_of(&self, set: CpuSet) -> CpuShare {
        let cpus = u32::try_from(set.len()).expect("a host has at most 256 CPUs");
        CpuShare::from_ppm(cpus * self.capacity.ppm())
    }

    /// Returns the largest of a vCPU's shares that are confined to these CPUs. `None` if the vCPU
    /// has no such share.
    fn largest(&self, own: &[Booking<CpuSet>], cpus: CpuSet) -> Option<Reservation> {
        let here = own.iter().filter(|(affinity, _)| within(*affinity, cpus));
        let demands = here.map(|(_, share)| self.looks.demand(*share));
        demands.reduce(|most, demand| if demand.is_more_than(most) { demand } else { most })
    }

    /// Changes the shares of a vCPU, and updates the load of each set of CPUs.
    fn change(&mut self, who: (DomId, u16), change: impl FnOnce(&mut Vec<Booking<CpuSet>>)) {
        let mut own = self.shares.remove(&who).unwrap_or_default();
        let before: Vec<_> = self.sets.iter().map(|set| self.largest(&own, set.cpus)).collect();
        change(&mut own);
        let after: Vec<_> = self.sets.iter().map(|set| self.largest(&own, set.cpus)).collect();
        for (set, (before, after)) in self.sets.iter_mut().zip(before.into_iter().zip(after)) {
            before.into_iter().for_each(|demand| set.load.remove(demand));
            after.into_iter().for_each(|demand| set.load.add(demand));
        }
        if !own.is_empty() {
            self.shares.insert(who, own);
        }
    }
}

impl ReservationBooks for SetBooks {
    type Place = AffinityOf;

    fn add(&mut self, place: AffinityOf, share: Reservation) {
        self.change(place.who, |own| own.push((place.cpus, share)));
    }

    fn remove(&mut self, place: AffinityOf, share: Reservation) {
        self.change(place.who, |own| {
            let booked = own.iter().position(|booking| *booking == (place.cpus, share));
            own.swap_remove(booked.expect("the removed share was booked before"));
        });
    }

    fn takes_more(&self, one: Reservation, other: Reservation) -> bool {
        self.looks.demand(one).is_more_than(self.looks.demand(other))
    }

    fn counts_in(inner: AffinityOf, place: AffinityOf) -> bool {
        within(inner.cpus, place.cpus)
    }
}

/// Returns true if all of `cpus` are in `others`.
fn within(cpus: CpuSet, others: CpuSet) -> bool {
    cpus.and(&others) == cpus
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slackline_units::CpuId;

    use super::*;

    fn set(bits: u8) -> CpuSet {
        (0..4).filter(|cpu| bits >> cpu & 1 == 1).map(CpuId::new).collect()
    }

    fn vcpu(number: u16) -> VcpuId {
        VcpuId::new(number.into(), DomId::new(0), number)
    }

    /// Returns a reservation of `slice` ms in every 10 ms.
    fn tenths(slice: u64) -> Reservation {
        Reservation::new(Span::from_ms(slice), Span::from_ms(10)).unwrap()
    }

    proptest! {
        /// Three vCPUs have shares in subsets of three CPUs, and some shares are removed again.
        #[test]
        fn cpu_set_load_counts_only_largest_share_of_each_vcpu(
            shares in prop::collection::vec((0..3_u16, 1..8_u8, 1..=10_u64, any::<bool>()), 0..9),
            asked in 1..8_u8,
        ) {
            let mut books = SetBooks::new(&Topology::flat(3), CpuShare::ONE);
            let place = |number: u16, bits| AffinityOf::new(vcpu(number), set(bits));
            for &(number, bits, slice, _) in &shares {
                books.keep(set(bits));
                books.add(place(number, bits), tenths(slice));
            }
            let (gone, left): (Vec<_>, Vec<_>) = shares.iter().partition(|(.., goes)| *goes);
            for &(number, bits, slice, _) in gone {
                books.remove(place(number, bits), tenths(slice));
            }
            let load = |around: u8| {
                let largest = |vcpu: u16| {
                    let own = left.iter().filter(|(number, bits, ..)| {
                        *number == vcpu && bits & around == *bits
                    });
                    own.map(|(_, _, slice, _)| *slice).max().unwrap_or(0)
                };
                (0..3).map(largest).sum::<u64>()
            };
            books.keep(set(asked));
            let mut tracked: Vec<u8> = alloc::vec![7, asked];
            tracked.extend(shares.iter().map(|(_, bits, ..)| *bits));
            loop {
                let with_each = |&one: &u8| tracked.iter().map(move |&two| (one, two));
                let pairs = tracked.iter().flat_map(with_each);
                let overlapping = pairs.filter(|(one, two)| one & two != 0);
                let mut unions = overlapping.map(|(one, two)| one | two);
                let new = unions.find(|union| !tracked.contains(union));
                let Some(new) = new else { break };
                tracked.push(new);
            }
            let around = (1..8_u8).filter(|bits| bits & asked == asked && tracked.contains(bits));
            let room = around.map(|bits| {
                (10 * u64::from(bits.count_ones())).saturating_sub(load(bits)).min(10)
            });
            let room = Span::from_ms(room.min().unwrap());
            prop_assert_eq!(books.room(Span::from_ms(10), set(asked)), room);
        }

        /// vCPUs ask for shares on sets of four CPUs, one after the other. A share is admitted
        /// exactly if no set of CPUs, tracked or not, then has more load than capacity.
        #[test]
        fn share_is_admitted_unless_some_cpu_set_exceeds_its_capacity(
            asked in prop::collection::vec((1..16_u8, 1..=10_u64), 1..12),
        ) {
            let mut books = SetBooks::new(&Topology::flat(4), CpuShare::ONE);
            let mut admitted: Vec<(u8, u64)> = Vec::new();
            for (number, (bits, slice)) in (0..).zip(asked) {
                let place = AffinityOf::new(vcpu(number), books.keep(set(bits)));
                let refused = books.refuses(tenths(slice), |_, share| share, place);
                admitted.push((bits, slice));
                let load = |around: u8| {
                    let confined = admitted.iter().filter(|(bits, _)| bits & around == *bits);
                    confined.map(|(_, slice)| slice).sum::<u64>()
                };
                let fits = |around: u8| load(around) <= 10 * u64::from(around.count_ones());
                let fit = (1..16).all(fits);
                prop_assert_eq!(refused.is_none(), fit, "{:?}", &admitted);
                if fit {
                    books.add(place, tenths(slice));
                } else {
                    admitted.pop();
                }
            }
        }
    }

    /// Each two neighbours of 64 CPUs are the affinity of a vCPU. The unions of 31 such pairs in a
    /// row are 496 sets, and the set of all CPUs is one more. The next pair would have 32 more
    /// unions.
    #[test]
    fn affinity_exceeding_the_union_limit_is_narrowed_to_one_cpu() {
        let mut books = SetBooks::new(&Topology::flat(64), CpuShare::ONE);
        let mut sizes = Vec::new();
        for number in 0..40_u16 {
            let pair = [number, number + 1].map(|cpu| CpuId::new(cpu.into())).into_iter().collect();
            let cpus = books.keep(pair);
            assert!(within(cpus, pair));
            books.add(AffinityOf::new(vcpu(number), cpus), tenths(1));
            sizes.push(cpus.len());
        }
        assert_eq!(sizes[..33], [[2; 31].as_slice(), &[1, 2]].concat());
        // Sets of vCPUs that left are forgotten.
        for number in 0..31_u16 {
            let pair = [number, number + 1].map(|cpu| CpuId::new(cpu.into())).into_iter().collect();
            books.remove(AffinityOf::new(vcpu(number), pair), tenths(1));
        }
        let last: CpuSet = [40, 41].map(CpuId::new).into_iter().collect();
        assert_eq!(books.keep(last), last);
    }
}
