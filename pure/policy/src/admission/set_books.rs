//! Admission test of global EDF: in each set of CPUs, the sum of slice/period of the vCPUs that are
//! confined to the set may not exceed the capacity of its CPUs.

use alloc::vec::Vec;

use slackline_units::{CpuSet, CpuShare, Reservation, Span};

use crate::admission::dispatch_overhead::{DispatchOverhead, longest_slice};
use crate::admission::load::ReservedLoad;
use crate::admission::zero_lag::ReservationBooks;
use crate::{AdmitError, Topology};

/// Reservations for policies that bind them to sets of CPUs. The capacity of a set is the total
/// capacity of its CPUs.
#[derive(Clone, Debug)]
pub(crate) struct SetBooks {
    /// Sets with their loads. The first set is all CPUs.
    sets: Vec<SetLoad>,
    /// Largest share of each CPU that reservations may take.
    capacity: CpuShare,
    looks: DispatchOverhead,
}

/// Load of a set of CPUs.
#[derive(Clone, Debug)]
struct SetLoad {
    cpus: CpuSet,
    /// Load of the vCPUs whose affinity is exactly this set.
    own: ReservedLoad,
    /// Load of the vCPUs whose affinity lies within this set.
    within: ReservedLoad,
}

impl SetBooks {
    /// Creates books without reservations for the CPUs of a host.
    pub(crate) fn new(topology: &Topology, capacity: CpuShare) -> SetBooks {
        let mut books =
            SetBooks { sets: Vec::new(), capacity, looks: DispatchOverhead::on(topology) };
        books.keep(CpuSet::first_n(topology.cpus()));
        books
    }

    /// Starts to track the load of this set of CPUs.
    pub(crate) fn keep(&mut self, cpus: CpuSet) {
        if self.sets.iter().all(|set| set.cpus != cpus) {
            let mut load = ReservedLoad::default();
            let confined = self.sets.iter().filter(|set| within(set.cpus, cpus));
            confined.for_each(|set| load.add_all(&set.own));
            self.sets.push(SetLoad { cpus, own: ReservedLoad::default(), within: load });
        }
    }

    /// Returns the error if the requested reservation does not fit within these CPUs, else `None`.
    /// `demand` maps a reservation to the load that has to be booked for it.
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

    /// Returns the longest slice with this period that fits within these CPUs.
    pub(crate) fn room(&self, period: Span, allowed: CpuSet) -> Span {
        longest_slice(period, |asked| self.too_full_for(asked, allowed).is_none())
    }

    /// Returns a set of CPUs that contains `allowed` and lacks capacity for `share`. `None` if all
    /// such sets have enough.
    fn too_full_for(&self, share: Reservation, allowed: CpuSet) -> Option<&SetLoad> {
        let demand = self.looks.demand(share);
        let mut around = self.sets.iter().filter(|set| within(allowed, set.cpus));
        around.find(|set| !set.within.has_room(demand, self.capacity_of(set.cpus)))
    }

    /// Returns the total share of these CPUs that may be reserved.
    fn capacity_of(&self, set: CpuSet) -> CpuShare {
        let cpus = u32::try_from(set.len()).expect("a host has at most 256 CPUs");
        CpuShare::from_ppm(cpus * self.capacity.ppm())
    }
}

impl ReservationBooks for SetBooks {
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

/// Returns true if all of `cpus` are in `others`.
fn within(cpus: CpuSet, others: CpuSet) -> bool {
    cpus.and(&others) == cpus
}
