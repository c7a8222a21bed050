//! Model scheduler: the real policy `edf` on model CPUs. All vCPUs are always runnable, and time is
//! simulated.

use std::collections::BTreeMap;

use slackline_policy::{
    AdmitError, Moment, Pick, Policy, RawValue, Spec, TimesliceEnd, Topology, Values, find,
};
use slackline_service::{Identity, Seats, Terms};
use slackline_units::{CpuId, CpuSet, CpuShare, DomId, Reservation, Span, Time, VcpuId};

/// Part of each CPU that reservations cannot use.
pub(crate) const RESERVE: CpuShare = CpuShare::from_ppm(100_000);

/// A reservation in the model scheduler.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub(crate) terms: Terms,
    pub(crate) identity: Option<Identity>,
    /// Identity of the VM that was last assigned to the reservation. The meters also count the VM's
    /// reserved CPU time after it has lost the assignment.
    last: Option<Identity>,
    pub(crate) places: Vec<Place>,
    pub(crate) is_paused: bool,
}

/// A place (reserved vCPU), and the number of the VM's vCPU that occupies it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    vcpu: VcpuId,
    pub(crate) sits: Option<u16>,
}

/// CPU time that a VM received at a place (reserved vCPU), and CPU time that was reserved at that
/// place, since the VM last got a hard limit. Both amounts are in [parts](PARTS) of a nanosecond,
/// so that nothing is rounded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    pub(crate) given: u128,
    pub(crate) promised: u128,
    /// Largest amount by which the received CPU time exceeds the reserved CPU time in any interval
    /// that ends now.
    pub(crate) ahead: u128,
    /// Largest reserved slice so far. While the VM has several reservations, the sum of one slice
    /// of each counts as the reserved slice.
    pub(crate) slice: u128,
    /// Four amounts of the current step: received CPU time, reserved CPU time, CPU time that stayed
    /// reserved after the VM left, and the sum of one slice of each reservation.
    step: (u128, u128, u128, u128),
}

/// Share that stays reserved after a VM has left a reservation, until the VM's excess CPU time is
/// repaid.
#[derive(Clone, Copy, Debug)]
struct Left {
    each: Reservation,
    /// Excess CPU time that is not repaid yet, in parts of a nanosecond.
    unearned: u128,
}

/// Number of parts into which the checks divide a nanosecond. The number is a multiple of all
/// periods in nanoseconds, so that every share is a whole number of parts per nanosecond.
pub(crate) const PARTS: u128 = 604_800_000_000_000;

/// Returns the CPU time that is reserved in an interval of length `time`, in [parts](PARTS) of a
/// nanosecond.
fn promised(each: Reservation, time: Span) -> u128 {
    let (slice, period) = (u128::from(each.slice().ns()), u128::from(each.period().ns()));
    slice * (PARTS / period) * u128::from(time.ns())
}

impl Meter {
    /// Adds the amounts of the current step to the totals.
    fn count(&mut self) {
        let (given, promised, left, slice) = std::mem::take(&mut self.step);
        self.slice = self.slice.max(slice);
        self.given += given;
        self.promised += promised;
        // After the VM left, only its excess is repaid.
        self.promised += left.min(self.given.saturating_sub(self.promised));
        self.ahead = (self.ahead + given).saturating_sub(promised + left);
    }
}

/// Creates meters for a VM that takes over the places (reserved vCPUs) of another VM in the middle
/// of a period. The new VM may use the rest of the slice. So its meters begin with the reserved CPU
/// time that the earlier VM had not received, up to one slice.
fn take_over(
    meters: &mut BTreeMap<(Identity, u16), Meter>,
    (before, now): (Identity, Identity),
    places: u16,
) {
    for place in 0..places {
        let Some(was) = meters.get(&(before, place)) else { continue };
        let behind = was.promised.saturating_sub(was.given).min(was.slice);
        let slice = was.slice;
        meters.entry((now, place)).or_insert(Meter { promised: behind, slice, ..Meter::default() });
    }
}

pub(crate) struct Scheduler {
    spec: &'static Spec,
    policy: Box<dyn Policy>,
    at: Moment,
    pub(crate) domains: BTreeMap<DomId, Domain>,
    /// Domain that uses each slot of the policy. `None` if the slot is free.
    slots: Vec<Option<DomId>>,
    /// End of the current timeslice of each CPU.
    limits: Vec<Time>,
    /// Meters by VM and place (reserved vCPU). All threads that a VM ever has at a place share its
    /// meter.
    pub(crate) meters: BTreeMap<(Identity, u16), Meter>,
    /// Shares that stay reserved after a VM has left a reservation, until the VM's excess CPU time
    /// is repaid. They are sorted by VM, place and domain.
    left: BTreeMap<(Identity, u16, DomId), Left>,
    /// True if every reservation is admitted, even without capacity. This is an injected defect,
    /// which the checks must find.
    pub(crate) admits_all: bool,
    pub(crate) forgets: bool,
    joins: u32,
}

impl Scheduler {
    pub(crate) fn new(cpus: usize, now: Time) -> Scheduler {
        let spec = find("edf").expect("the policy exists");
        let reserve = RESERVE.to_string();
        let given = [("reserve", RawValue::Text(&reserve))];
        let values = Values::read(spec.policy_fields, given.into_iter()).expect("a valid reserve");
        let mut at = Moment::at_start(cpus);
        at.advance(now);
        Scheduler {
            spec,
            policy: (spec.build)(&values, &Topology::flat(cpus)),
            at,
            domains: BTreeMap::new(),
            slots: Vec::new(),
            limits: vec![Time::NEVER; cpus],
            meters: BTreeMap::new(),
            left: BTreeMap::new(),
            admits_all: false,
            forgets: false,
            joins: 0,
        }
    }

    pub(crate) fn cpus(&self) -> usize {
        self.limits.len()
    }

    fn share(&self, terms: Terms) -> Values {
        let (slice, period) = (terms.each().slice(), terms.each().period());
        let (slice, period) = (format!("{}ns", slice.ns()), format!("{}ns", period.ns()));
        let phase = terms.phase().map_or_else(|| "none".into(), |phase| phase.to_string());
        let given = [
            ("slice", RawValue::Text(&slice)),
            ("period", RawValue::Text(&period)),
            ("exact", RawValue::Flag(terms.exact())),
            ("spread", RawValue::Text(if terms.by_use() { "use" } else { "even" })),
            ("phase", RawValue::Text(&phase)),
        ];
        Values::read(self.spec.share_fields, given.into_iter()).expect("valid terms")
    }

    /// Adds all places (reserved vCPUs) of a domain, or none.
    pub(crate) fn join(&mut self, id: DomId, terms: Terms) -> Result<(), AdmitError> {
        assert!(!self.domains.contains_key(&id), "{id} has joined before");
        let fresh =
            Domain { terms, identity: None, last: None, places: Vec::new(), is_paused: false };
        self.domains.insert(id, fresh);
        self.joins += 1;
        let joined = (0..terms.vcpus()).try_for_each(|place| self.add(id, terms, place));
        if joined.is_err() {
            self.leave(id);
        }
        joined
    }

    fn add(&mut self, id: DomId, terms: Terms, place: u16) -> Result<(), AdmitError> {
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        let known = if self.forgets { DomId::new(10_000 + self.joins) } else { id };
        let vcpu = VcpuId::new(u32::try_from(slot).expect("there are few slots"), known, place);
        self.at.join(vcpu);
        let asked = if self.admits_all {
            let each = Reservation::new(Terms::LEAST, Terms::LONGEST);
            let least = Terms::new(each.expect("valid terms"), true, 1).expect("valid terms");
            self.share(least)
        } else {
            self.share(terms)
        };
        if let Err(error) = self.policy.admit(&self.at, vcpu, &asked) {
            self.at.leave(vcpu);
            return Err(error);
        }
        self.slots[slot] = Some(id);
        let domain = self.domains.get_mut(&id).expect("a joining domain is in the table");
        domain.places.push(Place { vcpu, sits: None });
        if let Some(identity) = domain.last {
            self.left.remove(&(identity, place, id));
        }
        Ok(())
    }

    fn drop_last(&mut self, id: DomId) {
        let Some(domain) = self.domains.get_mut(&id) else { return };
        let Some(place) = domain.places.pop() else { return };
        if let Some(identity) = domain.last {
            let (each, number) = (domain.terms.each(), place.vcpu.number());
            let unearned = self.meters.get(&(identity, number)).map_or(0, |meter| meter.ahead);
            self.left.insert((identity, number, id), Left { each, unearned });
        }
        if let Some(cpu) = self.at.cpu_of(place.vcpu) {
            self.at.vacate(cpu);
        }
        self.at.leave(place.vcpu);
        let _ = self.policy.on_leave(&self.at, place.vcpu);
        self.slots[place.vcpu.slot()] = None;
    }

    pub(crate) fn leave(&mut self, id: DomId) {
        while self.domains.get(&id).is_some_and(|domain| !domain.places.is_empty()) {
            self.drop_last(id);
        }
        self.domains.remove(&id);
    }

    /// Changes the terms of all places (reserved vCPUs) of a domain, or of none. Surplus places are
    /// removed at the end and keep their old terms until then. So if the change is refused, the old
    /// terms still fit.
    pub(crate) fn change(&mut self, id: DomId, terms: Terms) -> Result<(), AdmitError> {
        let (before, left) = (self.domains[&id].terms, self.left.clone());
        let kept = before.vcpus().min(terms.vcpus());
        let result = self.change_each(id, kept, terms).and_then(|()| self.grow(id, terms));
        if let Err(error) = result {
            self.drop_to(id, before.vcpus());
            self.left = left;
            self.change_each(id, kept, before).expect("the old terms still fit");
            return Err(error);
        }
        self.drop_to(id, terms.vcpus());
        self.domains.get_mut(&id).expect("the domain is in the table").terms = terms;
        Ok(())
    }

    /// Adds empty places (reserved vCPUs) to a domain until it has as many as the terms require.
    fn grow(&mut self, id: DomId, terms: Terms) -> Result<(), AdmitError> {
        (self.places(id)..terms.vcpus()).try_for_each(|place| self.add(id, terms, place))
    }

    fn drop_to(&mut self, id: DomId, kept: u16) {
        while self.places(id) > kept {
            self.drop_last(id);
        }
    }

    fn places(&self, id: DomId) -> u16 {
        u16::try_from(self.domains[&id].places.len()).expect("there are few places")
    }

    fn change_each(&mut self, id: DomId, kept: u16, terms: Terms) -> Result<(), AdmitError> {
        let share = self.share(terms);
        let places = self.domains[&id].places.clone();
        places
            .iter()
            .take(usize::from(kept))
            .try_for_each(|place| self.policy.adjust(&self.at, place.vcpu, &share).map(|_| ()))
    }

    /// Assigns threads to the places (reserved vCPUs) of a domain.
    pub(crate) fn seat(&mut self, id: DomId, seats: Option<&Seats>) {
        let domain = self.domains.get_mut(&id).expect("the domain is in the table");
        domain.identity = seats.map(|seats| seats.identity);
        if let (Some(before), Some(now)) = (domain.last, domain.identity) {
            take_over(&mut self.meters, (before, now), domain.terms.vcpus());
        }
        domain.last = domain.identity.or(domain.last);
        let places = domain.places.len();
        if let Some(one) = domain.identity {
            for number in (0..).take(places) {
                self.left.remove(&(one, number, id));
            }
        }
        if seats.is_none() {
            domain.is_paused = false;
        }
        for place in 0..domain.places.len() {
            domain.places[place].sits = seats.and_then(|seats| seats.vcpus[place]);
        }
        self.rouse(id);
    }

    pub(crate) fn pause(&mut self, id: DomId, is_paused: bool) {
        self.domains.get_mut(&id).expect("the domain is in the table").is_paused = is_paused;
        self.rouse(id);
    }

    /// Wakes the threads of a domain, unless the domain is paused.
    fn rouse(&mut self, id: DomId) {
        let domain = self.domains[&id].clone();
        for place in domain.places {
            let runs = place.sits.is_some() && !domain.is_paused;
            if runs == self.at.is_awake(place.vcpu) {
                continue;
            }
            self.at.set_awake(place.vcpu, runs);
            if runs {
                let _ = self.policy.on_wake(&self.at, place.vcpu);
            } else {
                let _ = self.policy.on_block(&self.at, place.vcpu);
                if let Some(cpu) = self.at.cpu_of(place.vcpu) {
                    self.at.vacate(cpu);
                }
            }
        }
    }

    /// Returns the capacity of a CPU that is available for reservations with the period `period`.
    pub(crate) fn room(&self, period: Span, cpu: CpuId) -> Span {
        self.policy.available_slice(&self.at, period, CpuSet::one(cpu)).unwrap_or(Span::ZERO)
    }

    /// Sets the wall clock ahead of the simulation's clock by `ahead`.
    pub(crate) fn set_clock(&mut self, ahead: Span) {
        self.policy.set_clock(&self.at, ahead);
    }

    /// Lets each CPU run the vCPUs that the policy picks, until the time `end`.
    pub(crate) fn run_until(&mut self, end: Time) {
        loop {
            self.decide();
            let alarms = self.all_cpus().filter_map(|cpu| self.policy.next_timer(cpu));
            let next = alarms.chain(self.limits.iter().copied()).min().unwrap_or(Time::NEVER);
            if next > end {
                break self.advance(end);
            }
            self.advance(next.max(self.at.now()));
            for cpu in self.all_cpus() {
                if self.limits[cpu.index()] <= self.at.now() {
                    self.limits[cpu.index()] = Time::NEVER;
                    if let Some(vcpu) = self.at.occupant(cpu) {
                        let _ = self.policy.on_timeslice_end(&self.at, vcpu, TimesliceEnd::Limit);
                    }
                }
                if self.policy.next_timer(cpu).is_some_and(|at| at <= self.at.now()) {
                    let _ = self.policy.on_timer(&self.at, cpu);
                }
            }
        }
    }

    fn all_cpus(&self) -> impl Iterator<Item = CpuId> + use<> {
        (0..self.cpus()).map(CpuId::new)
    }

    fn decide(&mut self) {
        for cpu in self.all_cpus() {
            let _ = self.policy.prepare_pick(&self.at, cpu);
            match self.policy.pick(&self.at, cpu) {
                Pick::Idle => {
                    self.at.vacate(cpu);
                    self.limits[cpu.index()] = Time::NEVER;
                }
                Pick::Run { vcpu, limit, .. } => {
                    let before = self.at.occupant(cpu);
                    if before != Some(vcpu) {
                        self.at.occupy(cpu, vcpu);
                        let _ = self.policy.on_start(&self.at, vcpu);
                    }
                    let until = limit.map_or(Time::NEVER, |limit| self.at.now().after(limit));
                    self.limits[cpu.index()] = until;
                }
            }
        }
    }

    /// Advances time to `to`, while each CPU runs the same vCPU.
    fn advance(&mut self, to: Time) {
        let ran = to.since(self.at.now());
        self.at.advance(to);
        if ran.is_zero() {
            return;
        }
        for cpu in self.all_cpus() {
            let Some(vcpu) = self.at.occupant(cpu) else { continue };
            let _ = self.policy.charge(&self.at, vcpu, ran);
            let domain = self.slots[vcpu.slot()].and_then(|id| self.domains.get(&id));
            if let Some(identity) = domain.and_then(|domain| domain.identity) {
                let meter = self.meters.entry((identity, vcpu.number())).or_default();
                meter.step.0 += u128::from(ran.ns()) * PARTS;
            }
        }
        self.promise(ran);
    }

    /// Adds to the meters the CPU time that is reserved for each VM in a step of length `time`.
    fn promise(&mut self, time: Span) {
        for domain in self.domains.values() {
            let Some(identity) = domain.last else { continue };
            let each = domain.terms.each();
            for place in &domain.places {
                let meter = self.meters.entry((identity, place.vcpu.number())).or_default();
                meter.step.1 += promised(each, time);
                meter.step.3 += u128::from(each.slice().ns()) * PARTS;
            }
        }
        self.left.retain(|(identity, number, _), left| {
            let Some(meter) = self.meters.get_mut(&(*identity, *number)) else { return false };
            let earned = promised(left.each, time).min(left.unearned);
            left.unearned -= earned;
            meter.step.2 += earned;
            meter.step.3 += u128::from(left.each.slice().ns()) * PARTS;
            left.unearned > 0
        });
        self.meters.values_mut().for_each(Meter::count);
        // A place may receive budget that its siblings leave unused.
        let is_loose = |terms: Terms| !terms.exact() || terms.by_use();
        let loose = self.domains.values().filter(|domain| is_loose(domain.terms));
        for domain in loose {
            let Some(identity) = domain.identity else { continue };
            for place in &domain.places {
                self.meters.insert((identity, place.vcpu.number()), Meter::default());
            }
        }
    }
}
