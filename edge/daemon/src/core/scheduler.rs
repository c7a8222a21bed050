//! Reservations as members of a live session. Each reservation is a *domain*, and each of its
//! *places* is a vCPU of the session. A place keeps its name when it gets another thread of the VM.

use std::collections::{BTreeMap, BTreeSet};

use slackline_fence::{FenceError, KeeperCommand};
use slackline_linux::sys::{Tid, get_affinity};
use slackline_linux::thread::ThreadError;
use slackline_live::mechanism::DeadlineThread;
use slackline_live::session::{
    GroupError, JoinId, JoinTarget, PreparedGroup, Request, RequestError, Session,
};
use slackline_service::{
    CpuCapacity, Identity, JoiningDomain, Principal, Seats, Terms, WorldError,
};
use slackline_units::{CpuId, CpuSet, CpuShare, DomId, Span};

use slackline_linux::with_causes;

use super::RESERVE;
use super::kernel::{self, KernelChecks, KernelDomain};
use super::leftovers::deadline_threads_not_kept;
use super::shares::{empty_place, needs_no_more, share};
use crate::find::FoundMachine;

/// All reservations of the service, as domains of a live session.
pub(super) struct Scheduler {
    pub(super) session: Session,
    /// Kernel's numbers of the session's CPUs. The session's number of a CPU is its index.
    pub(super) cpus: Vec<CpuId>,
    pub(super) domains: BTreeMap<DomId, Domain>,
    /// Domain of each reservation, by name.
    by_name: BTreeMap<String, DomId>,
    /// VMs that look-ups or discovery passes have found. Their threads are assigned to the places
    /// of domains.
    pub(super) found: BTreeMap<Identity, FoundMachine>,
    /// Member of the session that has the front process's reservation. `None` if the front process
    /// has no reservation.
    pub(super) front: Option<JoinId>,
    /// True if the kernel continues to enforce its reservations for some time after this process
    /// has ended.
    pub(super) is_kept: bool,
    /// Deadline threads of all programs, as they were last read from procfs.
    pub(super) deadline_threads: Vec<DeadlineThread>,
    /// Schedule of the checks of the threads whose reservations the kernel enforces.
    pub(super) kernel_checks: KernelChecks,
    /// Revisions of the session's threads and of the kernel's threads at the last report of
    /// [`changed_threads`](Scheduler::changed_threads). `None` before the first report.
    pub(super) told_threads: Option<(u64, u64)>,
    /// CPUs on which the places of a domain were until now, while the enforcement of its
    /// reservation moves from the dispatcher to the kernel. CPUs are given by their numbers in the
    /// session.
    pub(super) former_cpus: BTreeMap<DomId, Vec<usize>>,
}

/// A reservation of the service, as a domain of the session.
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) owner: Principal,
    pub(super) terms: Terms,
    /// VM whose threads are in the places. `None` if the VM is absent.
    pub(super) identity: Option<Identity>,
    pub(super) places: Vec<Place>,
    /// Enforcement by the kernel. `None` if the dispatcher enforces the reservation.
    pub(super) kernel: Option<KernelDomain>,
}

/// A place: the reservation of one vCPU. It is empty until it gets a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Id of the vCPU in the session. `None` only if the session has no reservation for this place.
    pub(super) id: Option<JoinId>,
    /// Number of the VM's vCPU whose thread is in this place. `None` if the place is empty.
    pub(super) vcpu: Option<u16>,
}

/// A domain whose VM has fewer threads than before, because some have ended.
pub(super) struct ShrunkDomain {
    pub(super) domain: DomId,
    pub(super) identity: Identity,
    /// True if the VM was scheduled as a whole. Then all its scheduled threads have ended, but its
    /// process or cgroup may have new threads.
    pub(super) has_ended: bool,
}

impl Scheduler {
    /// Creates a scheduler without domains. If `keeper` has a time `keep_for`, the kernel enforces
    /// reservations for that time after this process was killed.
    pub(super) fn new(session: Session, cpus: Vec<CpuId>, keeper: &KeeperCommand) -> Scheduler {
        let (domains, by_name, found) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Scheduler {
            session,
            cpus,
            domains,
            by_name,
            found,
            front: None,
            is_kept: keeper.keep_for.is_some(),
            deadline_threads: deadline_threads_not_kept(keeper),
            kernel_checks: KernelChecks::new(),
            told_threads: None,
            former_cpus: BTreeMap::new(),
        }
    }

    /// Returns the kernel's numbers of the CPUs that the session schedules.
    pub(super) fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// Adds domains to the session, as [`World::join`](slackline_service::World::join) requires.
    pub(super) fn join(&mut self, group: &[JoiningDomain<'_>]) -> Vec<Result<(), WorldError>> {
        let mut answers: Vec<Result<(), WorldError>> = Vec::with_capacity(group.len());
        let (mut prepared, mut whose) = (Vec::new(), Vec::new());
        for (index, joining) in group.iter().enumerate() {
            match self.prepare(joining) {
                Ok(one) => {
                    prepared.push(one);
                    whose.push(index);
                    answers.push(Ok(()));
                }
                Err(error) => answers.push(Err(error)),
            }
        }
        let joined = match self.session.join_prepared(prepared) {
            Ok(joined) => joined,
            Err(error) => {
                let over = || WorldError::Host { says: with_causes(&error), hint: error.hint() };
                whose.into_iter().for_each(|index| answers[index] = Err(over()));
                return answers;
            }
        };
        for (index, result) in whose.into_iter().zip(joined) {
            let joining = &group[index];
            match result {
                Ok(ids) => {
                    let domain = Domain::new(joining, &ids);
                    self.domains.insert(joining.domain, domain);
                    self.by_name.insert(joining.name.to_string(), joining.domain);
                    if let Err(error) = self.begin_domain(joining.domain, joining.seats) {
                        self.leave(joining.domain);
                        answers[index] = Err(error);
                    }
                }
                Err(error) => answers[index] = Err(declined(error)),
            }
        }
        answers
    }

    fn prepare(&mut self, joining: &JoiningDomain<'_>) -> Result<PreparedGroup, WorldError> {
        let as_what = (joining.domain, joining.name.as_str(), joining.terms);
        if joining.terms.enforcement().is_of_kernel() {
            let former = self.former_cpus.get(&joining.domain).map_or(&[][..], Vec::as_slice);
            let requests = kernel::requests(as_what, (former, self.cpus.len()));
            return self.session.prepare(requests).map_err(declined);
        }
        let places = 0..joining.terms.vcpus();
        let requests = places.map(|number| match joining.seats {
            None => Ok(empty_place(as_what, number)),
            Some(seats) => self.request(as_what, number, seats),
        });
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        self.session.prepare(requests).map_err(declined)
    }

    /// Returns the request with which a place joins the session. If the place is empty, the request
    /// has no thread.
    fn request(
        &self,
        as_what: (DomId, &str, &Terms),
        number: u16,
        seats: &Seats,
    ) -> Result<Request, WorldError> {
        let request = empty_place(as_what, number);
        let Some(vcpu) = seats.vcpus.get(usize::from(number)).copied().flatten() else {
            return Ok(request);
        };
        let found = self.found.get(&seats.identity).ok_or(WorldError::Gone)?;
        let who = found.join_target(vcpu).map_err(|absent| match absent.is_yet_to_come() {
            true => WorldError::Gone,
            false => WorldError::Host { says: with_causes(&absent), hint: absent.hint() },
        })?;
        let tid = match &who {
            JoinTarget::Thread(thread) => Some(thread.tid()),
            JoinTarget::Tree(pid) => Some(*pid),
            JoinTarget::Group(place) => {
                place.processes().ok().and_then(|pids| pids.first().copied())
            }
            _ => None,
        };
        let cpus = tid.map_or(Ok(None), |tid| self.allowed(tid))?;
        Ok(Request { who, cpus, ..request })
    }

    /// Returns the CPUs of the session on which a thread's affinity allows it to run. `None` if
    /// that is every CPU of the session.
    fn allowed(&self, tid: Tid) -> Result<Option<CpuSet>, WorldError> {
        let affinity = get_affinity(tid).map_err(|_| WorldError::Gone)?;
        let here = self.cpus.iter().enumerate().filter(|(_, cpu)| affinity.contains(**cpu));
        let here: CpuSet = here.map(|(index, _)| CpuId::new(index)).collect();
        if here == CpuSet::first_n(self.cpus.len()) {
            return Ok(None);
        }
        if here.is_empty() {
            return Err(WorldError::Host {
                says: format!(
                    "the affinity of thread {tid} allows CPU {}, but the daemon schedules CPU {}",
                    super::listed(&affinity.iter().collect::<Vec<_>>()),
                    super::listed(&self.cpus),
                ),
                hint: Some(
                    "change the affinity of the thread, or start the daemon with another --cpus"
                        .into(),
                ),
            });
        }
        Ok(Some(here))
    }

    /// Assigns threads to the places (reserved vCPUs) of a VM, as
    /// [`World::seat`](slackline_service::World::seat) requires.
    pub(super) fn seat(&mut self, domain: DomId, seats: &Seats) -> Result<(), WorldError> {
        let Some(known) = self.domains.get(&domain) else { return Err(WorldError::Gone) };
        if known.kernel.is_some() {
            return self.seat_by_kernel(domain, seats);
        }
        let is_other = known.identity.is_some_and(|identity| identity != seats.identity);
        let (name, terms) = (known.name.clone(), known.terms);
        let wanted = |number: usize| seats.vcpus.get(number).copied().flatten();
        let before: Vec<Place> = known.places.clone();
        let changes = |number: usize, place: &Place| is_other || place.vcpu != wanted(number);
        let numbers = before.iter().enumerate().filter(|(number, place)| changes(*number, place));
        let numbers: Vec<usize> = numbers.map(|(number, _)| number).collect();
        let new: Result<Vec<Request>, WorldError> = numbers
            .iter()
            .filter_map(|&number| Some((u16::try_from(number).ok()?, wanted(number)?)))
            .map(|(number, _)| self.request((domain, &name, &terms), number, seats))
            .collect();
        let new = new?;
        for &number in &numbers {
            self.vacate(domain, number);
        }
        let seated: Vec<usize> =
            numbers.iter().copied().filter(|&number| wanted(number).is_some()).collect();
        if let Err(error) = self.fill(domain, &seated, new, seats) {
            self.restore(domain, &before, &numbers);
            return Err(error);
        }
        if let Some(known) = self.domains.get_mut(&domain) {
            known.identity = Some(seats.identity);
        }
        Ok(())
    }

    /// Puts threads of a VM into empty places of its domain. `places` contains the numbers of these
    /// places.
    fn fill(
        &mut self,
        domain: DomId,
        places: &[usize],
        requests: Vec<Request>,
        seats: &Seats,
    ) -> Result<(), WorldError> {
        let Some(known) = self.domains.get(&domain) else { return Err(WorldError::Gone) };
        let old: Vec<JoinId> = places.iter().filter_map(|&place| known.places[place].id).collect();
        if requests.is_empty() {
            return Ok(());
        }
        let ids = self.session.replace(&old, requests).map_err(declined)?;
        if let Some(known) = self.domains.get_mut(&domain) {
            for (&place, id) in places.iter().zip(ids) {
                let vcpu = seats.vcpus.get(place).copied().flatten();
                known.places[place] = Place { id: Some(id), vcpu };
            }
        }
        Ok(())
    }

    /// Puts threads back into places of a domain after a change of the domain has failed. `before`
    /// contains all places as they were before. `places` contains the numbers of the places to
    /// restore. A place stays empty if its thread has ended.
    fn restore(&mut self, domain: DomId, before: &[Place], places: &[usize]) {
        let Some(known) = self.domains.get(&domain) else { return };
        let (name, terms, identity) = (known.name.clone(), known.terms, known.identity);
        let Some(identity) = identity else { return };
        let seats = Seats { identity, vcpus: before.iter().map(|place| place.vcpu).collect() };
        for &place in places.iter().filter(|&&place| before[place].vcpu.is_some()) {
            let Ok(number) = u16::try_from(place) else { continue };
            let request = self.request((domain, &name, &terms), number, &seats);
            // If a thread has ended, the session reports it.
            let _ = request.and_then(|request| self.fill(domain, &[place], vec![request], &seats));
        }
    }

    /// Removes the thread that occupies a place (the reservation of one vCPU). The reservation
    /// remains.
    fn vacate(&mut self, domain: DomId, number: usize) {
        let Some(known) = self.domains.get(&domain) else { return };
        let (Some(place), Ok(index)) = (known.places.get(number), u16::try_from(number)) else {
            return;
        };
        if place.vcpu.is_none() && place.id.is_some() {
            return;
        }
        let request = empty_place((domain, &known.name, &known.terms), index);
        if let Some(id) = place.id {
            // If the thread cannot be restored now, the session tries again when it closes.
            let _ = self.session.leave(id);
        }
        // The same reservation fits again: nothing else has joined in between.
        let id = self.session.join(vec![request]).ok().and_then(|ids| ids.first().copied());
        if let Some(known) = self.domains.get_mut(&domain) {
            known.places[number] = Place { id, vcpu: None };
        }
    }

    /// Empties all places of a domain, as [`World::unseat`](slackline_service::World::unseat)
    /// requires.
    pub(super) fn unseat(&mut self, domain: DomId) {
        if self.domains.get(&domain).is_some_and(|known| known.kernel.is_some()) {
            self.unseat_by_kernel(domain);
            return;
        }
        let places = self.domains.get(&domain).map_or(0, |known| known.places.len());
        (0..places).for_each(|place| self.vacate(domain, place));
        if let Some(known) = self.domains.get_mut(&domain) {
            known.identity = None;
        }
    }

    /// Changes the parameters of a domain, as [`World::change`](slackline_service::World::change)
    /// requires.
    pub(super) fn change(&mut self, domain: DomId, terms: &Terms) -> Result<(), WorldError> {
        let Some(known) = self.domains.get(&domain) else { return Err(WorldError::Gone) };
        let (before, places, identity) = (known.terms, known.places.len(), known.identity);
        if before.enforcement().is_of_kernel() || terms.enforcement().is_of_kernel() {
            let is_same = before.enforcement() == terms.enforcement()
                && before.vcpus() == terms.vcpus()
                && self.is_undisturbed(domain);
            return match is_same {
                true => self.change_by_kernel(domain, terms),
                false => self.join_anew(domain, terms),
            };
        }
        let kept = places.min(usize::from(terms.vcpus()));
        // Places are dropped last. So if the change is refused, no place has left: a place that
        // rejoins would first have to pay back its excess CPU time. The old parameters are still in
        // force, or fit again.
        self.change_each(domain, kept, (&before, terms))?;
        if let Err(error) = self.grow(domain, terms) {
            // The old parameters fit again: nothing else has joined in between.
            let _ = self.change_each(domain, kept, (terms, &before));
            return Err(error);
        }
        let is_less = needs_no_more(*terms, before);
        let fits = if is_less { Ok(()) } else { self.check_interference(domain, identity) };
        if let Err(error) = fits {
            self.drop_places(domain, places);
            let _ = self.change_each(domain, kept, (terms, &before));
            return Err(error);
        }
        self.drop_places(domain, usize::from(terms.vcpus()));
        Ok(())
    }

    /// Changes the parameters of the remaining places, and of the domain's reservations on other
    /// CPUs. If one change fails, the places that were already changed get their old parameters
    /// back.
    pub(super) fn change_each(
        &mut self,
        domain: DomId,
        kept: usize,
        (before, terms): (&Terms, &Terms),
    ) -> Result<(), WorldError> {
        let Some(known) = self.domains.get_mut(&domain) else { return Err(WorldError::Gone) };
        let places = known.places.iter().take(kept).filter_map(|place| place.id);
        let shadows = known.kernel.iter().flat_map(|kernel| kernel.shadows.iter().copied());
        let ids: Vec<JoinId> = places.chain(shadows).collect();
        let now = self.session.now();
        for (done, &id) in ids.iter().enumerate() {
            if let Err(error) = self.session.change(id, share(terms), now) {
                for &id in &ids[..done] {
                    let _ = self.session.change(id, share(before), now);
                }
                return Err(declined_request(error));
            }
        }
        known.terms = *terms;
        Ok(())
    }

    /// Adds empty places until the domain has one place for each vCPU of its new parameters.
    fn grow(&mut self, domain: DomId, terms: &Terms) -> Result<(), WorldError> {
        let Some(known) = self.domains.get_mut(&domain) else { return Err(WorldError::Gone) };
        let there = u16::try_from(known.places.len()).unwrap_or(u16::MAX);
        let new = there..terms.vcpus();
        let new = new.map(|number| empty_place((domain, &known.name, terms), number));
        let ids = self.session.join(new.collect()).map_err(declined)?;
        known.places.extend(ids.into_iter().map(|id| Place { id: Some(id), vcpu: None }));
        Ok(())
    }

    /// Removes all places (reservations of one vCPU) whose number is at least `kept`.
    pub(super) fn drop_places(&mut self, domain: DomId, kept: usize) {
        let Some(known) = self.domains.get_mut(&domain) else { return };
        for place in known.places.split_off(kept.min(known.places.len())) {
            let _ = place.id.map(|id| self.session.leave(id));
        }
    }

    /// Pauses the threads of a domain, as [`World::pause`](slackline_service::World::pause)
    /// requires.
    pub(super) fn pause(&mut self, domain: DomId) -> Result<(), WorldError> {
        if self.domains.get(&domain).is_some_and(|known| known.kernel.is_some()) {
            return Err(kernel::cannot_pause());
        }
        let ids = self.seated(domain);
        let now = self.session.now();
        for (done, &id) in ids.iter().enumerate() {
            if let Err(error) = self.session.pause(id, now) {
                for &id in &ids[..done] {
                    let _ = self.session.resume(id, now);
                }
                return Err(declined_request(error));
            }
        }
        Ok(())
    }

    /// Resumes the threads of a domain, as [`World::resume`](slackline_service::World::resume)
    /// requires.
    pub(super) fn resume(&mut self, domain: DomId) -> Result<(), WorldError> {
        if self.domains.get(&domain).is_some_and(|known| known.kernel.is_some()) {
            // Such a domain is never paused, but it can be contested.
            return self.resume_kernel(domain).map_err(declined_request);
        }
        let ids = self.seated(domain);
        let now = self.session.now();
        // A contested domain can be resumed although it is not paused.
        let members = self.session.members().filter(|member| member.is_paused);
        let paused: BTreeSet<JoinId> = members.map(|member| member.id).collect();
        for (done, &id) in ids.iter().enumerate() {
            if let Err(error) = self.session.resume(id, now) {
                for &id in ids[..done].iter().filter(|id| paused.contains(id)) {
                    let _ = self.session.pause(id, now);
                }
                return Err(declined_request(error));
            }
        }
        Ok(())
    }

    /// Removes a domain with its reservation, as [`World::leave`](slackline_service::World::leave)
    /// requires.
    pub(super) fn leave(&mut self, domain: DomId) {
        self.leave_kernel(domain);
        self.drop_places(domain, 0);
        let left = self.domains.remove(&domain);
        let name = left.map(|left| left.name).filter(|name| self.domain_of(name) == Some(domain));
        name.map(|name| self.by_name.remove(&name));
    }

    /// Returns the largest available slice of each CPU, as
    /// [`World::room`](slackline_service::World::room) requires.
    pub(super) fn room(&self, period: Span) -> Vec<CpuCapacity> {
        let room = |index| {
            let room = self.session.room(period, Some(CpuSet::one(CpuId::new(index))));
            room.ok().flatten().unwrap_or(Span::ZERO)
        };
        let rooms = (0..self.cpus.len()).map(room).collect();
        let slices = self.rooms_beside_deadline_threads(period, rooms).into_iter();
        self.cpus.iter().zip(slices).map(|(&cpu, slice)| CpuCapacity { cpu, slice }).collect()
    }

    fn seated(&self, domain: DomId) -> Vec<JoinId> {
        let places = self.domains.get(&domain).map_or(&[][..], |known| &known.places);
        places.iter().filter(|place| place.vcpu.is_some()).filter_map(|place| place.id).collect()
    }

    /// Empties the places of the session members in `ended`, whose threads have ended. Returns each
    /// affected domain with its VM.
    pub(super) fn ended(&mut self, ended: &[JoinId]) -> Vec<ShrunkDomain> {
        let mut thinned: Vec<ShrunkDomain> = Vec::new();
        for &id in ended {
            let (domain, number) = (id.vcpu().domain(), usize::from(id.vcpu().number()));
            let Some(known) = self.domains.get_mut(&domain) else { continue };
            let Some(place) = known.places.get_mut(number).filter(|it| it.id == Some(id)) else {
                continue;
            };
            *place = Place { id: None, vcpu: None };
            if let Some(identity) = known.identity
                && thinned.iter().all(|thinned| thinned.domain != domain)
            {
                let found = self.found.get(&identity);
                let has_ended = found.is_some_and(|found| found.machine.vcpus.is_empty());
                thinned.push(ShrunkDomain { domain, identity, has_ended });
            }
            self.vacate(domain, number);
        }
        thinned
    }

    /// Returns the domain and place of a session member. `None` if the member is not a vCPU of a
    /// domain. The front process is such a member.
    pub(super) fn place_of(&self, id: JoinId) -> Option<(DomId, u16)> {
        let (domain, number) = (id.vcpu().domain(), id.vcpu().number());
        let place = self.domains.get(&domain)?.places.get(usize::from(number))?;
        (place.id == Some(id)).then_some((domain, number))
    }

    /// Returns true if the domain has an empty place although its VM has a vCPU without a place.
    /// `vcpus` is the number of vCPUs of the VM.
    pub(super) fn is_wanting(&self, domain: DomId, vcpus: usize) -> bool {
        let places = self.domains.get(&domain).map_or(&[][..], |known| &known.places);
        let seated = places.iter().filter(|place| place.vcpu.is_some()).count();
        seated < places.len().min(vcpus)
    }

    /// Returns the domains whose VM is present, with the identity of the VM.
    pub(super) fn held(&self) -> impl Iterator<Item = (DomId, Identity)> {
        let domains = self.domains.iter();
        domains.filter_map(|(&domain, known)| Some((domain, known.identity?)))
    }

    /// Returns the name of the domain whose VM has this identity. `None` if there is none.
    pub(super) fn name_of(&self, identity: Identity) -> Option<String> {
        let mut domains = self.domains.values();
        let domain = domains.find(|known| known.identity == Some(identity))?;
        Some(domain.name.clone())
    }

    /// Returns the domain with this name. `None` if there is none.
    pub(super) fn domain_of(&self, name: &str) -> Option<DomId> {
        self.by_name.get(name).copied()
    }

    /// Returns the share of a CPU that all its reservations together may use.
    pub(super) fn capacity(&self) -> CpuShare {
        let reserve: CpuShare = RESERVE.parse().expect("the reserve is a valid share");
        CpuShare::from_ppm(CpuShare::ONE.ppm() - reserve.ppm())
    }

    /// Returns, for each CPU, the share that a new reservation with a period of 1 s could still
    /// get, in millionths of the CPU.
    pub(super) fn free_ppm(&self) -> Vec<u32> {
        let second = Span::from_secs(1);
        let ppm = |room: CpuCapacity| u32::try_from(room.slice.ns() / 1_000).unwrap_or(u32::MAX);
        self.room(second).into_iter().map(ppm).collect()
    }

    /// Returns the sum of the reservations on each CPU, without dispatch overhead.
    pub(super) fn reserved(&self) -> Vec<CpuShare> {
        let reserved = |index| self.session.reserved(CpuId::new(index)).ok().flatten();
        (0..self.cpus.len()).map(|index| reserved(index).unwrap_or_default()).collect()
    }

    /// Forgets the VMs that were looked up and have no reservation.
    pub(super) fn forget_found(&mut self) {
        let held: BTreeSet<Identity> = self.held().map(|(_, identity)| identity).collect();
        self.found.retain(|identity, _| held.contains(identity));
    }
}

impl Domain {
    fn new(joining: &JoiningDomain<'_>, ids: &[JoinId]) -> Domain {
        let is_of_kernel = joining.terms.enforcement().is_of_kernel();
        // If the kernel enforces the reservation, the places get their threads later, when the
        // enforcement begins.
        let seats = joining.seats.filter(|_| !is_of_kernel);
        let vcpu = |number: usize| seats?.vcpus.get(number).copied().flatten();
        let (ids, others) = ids.split_at(ids.len().min(joining.terms.vcpus().into()));
        let places = ids.iter().enumerate();
        let places = places.map(|(number, &id)| Place { id: Some(id), vcpu: vcpu(number) });
        Domain {
            kernel: is_of_kernel.then(|| KernelDomain::new(others, ids.len())),
            name: joining.name.to_string(),
            owner: joining.owner,
            terms: *joining.terms,
            identity: seats.map(|seats| seats.identity),
            places: places.collect(),
        }
    }
}

pub(super) fn declined(error: GroupError) -> WorldError {
    declined_request(error.error)
}

fn declined_request(error: RequestError) -> WorldError {
    match error {
        RequestError::Declined(error) => WorldError::Admission(error),
        RequestError::Thread(ThreadError::Gone { .. })
        | RequestError::Fence(FenceError::Thread(ThreadError::Gone { .. })) => WorldError::Gone,
        error => WorldError::Host { says: with_causes(&error), hint: error.hint() },
    }
}
