//! Admission test of global EDF: in each set of CPUs, the sum of slice/period of the vCPUs that are
//! confined to the set may not exceed the capacity of its CPUs.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use slackline_units::{CpuSet, CpuShare, DomId, Reservation, Span, VcpuId};

use crate::admission::dispatch_overhead::{DispatchOverhead, longest_slice};
use crate::admission::load::ReservedLoad;
use crate::admission::zero_lag::{Booking, ReservationBooks};
use crate::{AdmitError, Topology};

/// Reservations for policies that bind them to sets of CPUs. The capacity of a set is the total
/// capacity of its CPUs.
///
/// A vCPU that gave up a share has several shares as long as the old share is held. The sets of
/// these shares can overlap. A set counts only the largest share of each vCPU, because a vCPU uses
/// one share at a time.
#[derive(Clone, Debug)]
pub(crate) struct SetBooks {
    /// Sets with their loads. The first set is all CPUs.
    sets: Vec<SetLoad>,
    /// Shares of each vCPU with their sets, by domain and number of the vCPU.
    shares: BTreeMap<(DomId, u16), Vec<Booking<CpuSet>>>,
    /// Largest share of each CPU that reservations may take.
    capacity: CpuShare,
    looks: DispatchOverhead,
}

/// Load of a set of CPUs.
#[derive(Clone, Debug)]
struct SetLoad {
    cpus: CpuSet,
    /// Load of the vCPUs whose affinity lies within this set.
    load: ReservedLoad,
}

/// Place of a share: a vCPU, and the CPUs to which the share is confined.
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
    /// Creates books without reservations for the CPUs of a host.
    pub(crate) fn new(topology: &Topology, capacity: CpuShare) -> SetBooks {
        let (sets, shares) = (Vec::new(), BTreeMap::new());
        let looks = DispatchOverhead::on(topology);
        let mut books = SetBooks { sets, shares, capacity, looks };
        books.keep(CpuSet::first_n(topology.cpus()));
        books
    }

    /// Starts to track the load of this set of CPUs.
    pub(crate) fn keep(&mut self, cpus: CpuSet) {
        if self.sets.iter().all(|set| set.cpus != cpus) {
            let mut load = ReservedLoad::default();
            let confined = self.shares.values().filter_map(|own| self.largest(own, cpus));
            confined.for_each(|demand| load.add(demand));
            self.sets.push(SetLoad { cpus, load });
        }
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
            1 => AdmitError::NoRoom { asked, promised, capacity, cpus, dispatching, room },
            _ => AdmitError::NoRoomTogether { asked, promised, capacity, cpus, dispatching, room },
        })
    }

    /// Returns the longest slice with this period that fits within these CPUs.
    pub(crate) fn room(&self, period: Span, allowed: CpuSet) -> Span {
        longest_slice(period, |asked| self.too_full_for(|_| asked, allowed).is_none())
    }

    /// Returns a set of CPUs that contains `allowed` and lacks capacity for its `share`. `None` if
    /// all such sets have enough.
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

    /// Returns the largest demand of a vCPU within these CPUs. `None` if the vCPU has no share that
    /// is confined to them.
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
        (0..3).filter(|cpu| bits >> cpu & 1 == 1).map(CpuId::new).collect()
    }

    /// Returns a reservation of `slice` in 10 ms.
    fn tenths(slice: u64) -> Reservation {
        Reservation::new(Span::from_ms(slice), Span::from_ms(10)).unwrap()
    }

    proptest! {
        /// Three vCPUs have shares in subsets of three CPUs, and some shares are removed again.
        #[test]
        fn every_cpu_set_counts_only_the_largest_share_of_each_vcpu(
            shares in prop::collection::vec((0..3_u16, 1..8_u8, 1..=10_u64, any::<bool>()), 0..9),
            asked in 1..8_u8,
        ) {
            let mut books = SetBooks::new(&Topology::flat(3), CpuShare::ONE);
            let place = |number: u16, bits| {
                AffinityOf::new(VcpuId::new(number.into(), DomId::new(0), number), set(bits))
            };
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
            let is_tracked = |bits: u8| {
                bits == 7 || bits == asked || shares.iter().any(|(_, of, ..)| *of == bits)
            };
            let around = (1..8_u8).filter(|bits| bits & asked == asked && is_tracked(*bits));
            let room = around.map(|bits| {
                (10 * u64::from(bits.count_ones())).saturating_sub(load(bits)).min(10)
            });
            let room = Span::from_ms(room.min().unwrap());
            prop_assert_eq!(books.room(Span::from_ms(10), set(asked)), room);
        }
    }
}
