//! Threads of VMs whose reservations the kernel enforces. This module assigns the threads to places
//! (reserved vCPUs) of the scheduler, and removes them from the places.
//!
//! Before a domain begins, [`Scheduler::check_interference`] checks that the dispatchers'
//! reservations meet their deadlines beside the bursts of deadline threads.

use std::cmp::Reverse;

use slackline_linux::sys::ThreadClock;
use slackline_linux::thread::ThreadRef;
use slackline_linux::with_causes;
use slackline_live::mechanism::{Bound, Demand, EnforceTarget, KernelEnforcement, MechanismError};
use slackline_live::session::{JoinId, JoinTarget, RequestError, SessionThread};
use slackline_service::{JoiningDomain, Name, Seats, Terms, WorldError};
use slackline_trace::{Entry, Record};
use slackline_units::{CpuShare, DomId, Reservation, Span, Time};

use super::kernel::SeatedThread;
use super::scheduler::{Place, Scheduler};
use super::shares::needs_no_more;

/// Interval between attempts to enforce a reservation for a thread that the kernel has refused. A
/// later attempt can succeed, because the kernel frees a thread's former bandwidth only at the end
/// of the thread's period.
const SEAT_AGAIN: Span = Span::from_secs(1);

fn refused(error: &MechanismError) -> WorldError {
    match error {
        MechanismError::Thread(_) => WorldError::Gone,
        error => WorldError::Host { says: with_causes(error), hint: error.hint() },
    }
}

impl Scheduler {
    /// Completes the join of a domain. Checks the interference of deadline threads. If the
    /// reservation asks for it, lets the kernel enforce the reservation.
    pub(super) fn begin_domain(
        &mut self,
        domain: DomId,
        seats: Option<&Seats>,
    ) -> Result<(), WorldError> {
        self.check_interference(domain, seats.map(|seats| seats.identity))?;
        let is_of_kernel = self.domains.get(&domain).is_some_and(|known| known.kernel.is_some());
        match seats.filter(|_| is_of_kernel) {
            Some(seats) => self.seat_by_kernel(domain, seats),
            None => Ok(()),
        }
    }

    /// Lets the kernel enforce the reservation of a domain for the threads of its VM. Threads that
    /// keep their place (reserved vCPU) are not disturbed. First, the threads that lose their place
    /// are restored. Then the new threads get their places in order. If the kernel refuses a
    /// thread, its place and all later places stay empty.
    pub(super) fn seat_by_kernel(
        &mut self,
        domain: DomId,
        seats: &Seats,
    ) -> Result<(), WorldError> {
        let Some(known) = self.domains.get_mut(&domain) else { return Err(WorldError::Gone) };
        if let Some(kernel) = &mut known.kernel {
            kernel.lost = None;
        }
        let is_other = known.identity.is_some_and(|identity| identity != seats.identity);
        let (places, each) = (known.places.clone(), known.terms.in_each_second().each());
        let demand = exact(known.terms);
        let wanted = |number: usize| seats.vcpus.get(number).copied().flatten();
        let mut new = Vec::new();
        for (number, place) in places.iter().enumerate() {
            if !is_other && place.vcpu == wanted(number) {
                continue;
            }
            let thread = wanted(number).map(|vcpu| self.target_of(seats, vcpu)).transpose()?;
            new.push((number, wanted(number), thread));
        }
        for (number, ..) in &new {
            self.vacate_kernel(domain, *number);
        }
        for (number, vcpu, thread) in new {
            let Some((target, thread)) = thread else { continue };
            let by = self.domains.get(&domain).map(|known| known.terms.enforcement());
            let Some(by) = by else { return Err(WorldError::Gone) };
            let seated = self
                .session
                .enforce(by, &target, demand)
                .map_err(|error| refused(&error))
                .and_then(|enforced| self.seated_thread((&target, thread), each, enforced))?;
            if let Some(known) = self.domains.get_mut(&domain)
                && let Some(kernel) = &mut known.kernel
            {
                self.kernel_checks.add((domain, number), &seated, seated.at);
                kernel.seated[number] = Some(seated);
                known.places[number].vcpu = vcpu;
            }
        }
        if let Some(known) = self.domains.get_mut(&domain) {
            known.identity = Some(seats.identity);
        }
        Ok(())
    }

    fn target_of(
        &self,
        seats: &Seats,
        vcpu: u16,
    ) -> Result<(EnforceTarget, ThreadRef), WorldError> {
        let found = self.found.get(&seats.identity).ok_or(WorldError::Gone)?;
        let absent = |says, hint| WorldError::Host { says, hint };
        let who = found.join_target(vcpu).map_err(|error| match error.is_yet_to_come() {
            true => WorldError::Gone,
            false => absent(with_causes(&error), error.hint()),
        })?;
        match who {
            JoinTarget::Thread(thread) => Ok((EnforceTarget::Vcpus(vec![thread.clone()]), thread)),
            JoinTarget::Tree(pid) | JoinTarget::Process(pid) | JoinTarget::Wide(pid, _) => {
                let thread = ThreadRef::open(pid, pid).map_err(|_| WorldError::Gone)?;
                Ok((EnforceTarget::Tree(thread.clone()), thread))
            }
            JoinTarget::Group(_) | JoinTarget::Nobody => Err(absent(
                "cannot enforce the reservation of a cgroup by `deadline`: the kernel can enforce \
                 it only for single threads"
                    .into(),
                Some("use `--enforce dispatcher`".into()),
            )),
        }
    }

    fn seated_thread(
        &mut self,
        (target, thread): (&EnforceTarget, ThreadRef),
        each: Reservation,
        enforced: KernelEnforcement,
    ) -> Result<SeatedThread, WorldError> {
        if self.is_kept {
            // If this fails, the keeper restores the thread as soon as the daemon dies.
            let _ = self.session.keep_on_death(&enforced);
        }
        let clock = ThreadClock::open(thread.tid());
        let read = clock.and_then(|clock| clock.read().map(|used| (clock, used)));
        match read {
            Ok((clock, used)) => {
                let watch = self.session.watch_enforced(target, &thread, each);
                let at = self.session.now();
                let end = self.kernel_checks.ends.as_ref();
                let end = end.and_then(|ends| ends.add(&thread).ok());
                let (is_recorded, has_run) = (false, false);
                Ok(SeatedThread {
                    thread,
                    enforced,
                    watch,
                    end,
                    is_recorded,
                    clock,
                    used,
                    at,
                    has_run,
                })
            }
            Err(_) => {
                let _ = self.session.end_enforced(&enforced);
                Err(WorldError::Gone)
            }
        }
    }

    /// Restores the original scheduling of the thread in a place (reserved vCPU), and empties the
    /// place. The reservation of the place remains.
    pub(super) fn vacate_kernel(&mut self, domain: DomId, number: usize) {
        let Some(known) = self.domains.get_mut(&domain) else { return };
        let Some(kernel) = &mut known.kernel else { return };
        if let Some(seated) = kernel.seated.get_mut(number).and_then(Option::take) {
            self.kernel_checks.remove((domain, number));
            // If the thread cannot be restored now, the session tries again when it closes.
            let _ = self.session.end_enforced(&seated.enforced);
        }
        known.places[number].vcpu = None;
    }

    pub(super) fn unseat_by_kernel(&mut self, domain: DomId) {
        if let Some(kernel) = self.domains.get_mut(&domain).and_then(|it| it.kernel.as_mut()) {
            kernel.lost = None;
        }
        let places = self.domains.get(&domain).map_or(0, |known| known.places.len());
        (0..places).for_each(|number| self.vacate_kernel(domain, number));
        if let Some(known) = self.domains.get_mut(&domain) {
            known.identity = None;
        }
    }

    /// Ends the enforcement of a domain by the kernel. Drops the reservations without threads that
    /// the domain has on other CPUs.
    pub(super) fn leave_kernel(&mut self, domain: DomId) {
        self.unseat_kernel_only(domain);
        let Some(known) = self.domains.get_mut(&domain) else { return };
        let Some(kernel) = &mut known.kernel else { return };
        for id in std::mem::take(&mut kernel.shadows) {
            let _ = self.session.leave(id);
        }
    }

    fn unseat_kernel_only(&mut self, domain: DomId) {
        if self.domains.get(&domain).is_some_and(|known| known.kernel.is_some()) {
            self.unseat_by_kernel(domain);
        }
    }

    /// Resumes the kernel's enforcement of a domain's reservation for threads that another program
    /// has changed.
    pub(super) fn resume_kernel(&mut self, domain: DomId) -> Result<(), RequestError> {
        let known = self.domains.get_mut(&domain).and_then(|known| known.kernel.as_mut());
        let seated = known.into_iter().flat_map(|kernel| kernel.seated.iter_mut().flatten());
        let mut result = Ok(());
        // All threads are resumed, even after an error.
        for seated in seated {
            result = result.and(self.session.resume_enforced(&mut seated.watch));
        }
        // The next round reports that the threads are no longer contested.
        self.kernel_checks.suspect(domain);
        result
    }

    /// Returns true if the kernel enforces the reservation of a domain for all its threads. Returns
    /// false if another program keeps control of a thread, or if the session has stopped a thread.
    pub(super) fn is_undisturbed(&self, domain: DomId) -> bool {
        let kernel = self.domains.get(&domain).and_then(|known| known.kernel.as_ref());
        kernel.is_some_and(|kernel| {
            kernel.lost.is_none()
                && kernel.seated.iter().flatten().all(|seated| !seated.watch.is_disturbed())
        })
    }

    /// Changes the slice and period of a domain whose reservation the kernel enforces. The domain's
    /// threads stay in their class during the change, so they lose no CPU time. The number of vCPUs
    /// must not change.
    pub(super) fn change_by_kernel(
        &mut self,
        domain: DomId,
        terms: &Terms,
    ) -> Result<(), WorldError> {
        let Some(known) = self.domains.get(&domain) else { return Err(WorldError::Gone) };
        let (before, identity, places) = (known.terms, known.identity, known.places.len());
        self.change_each(domain, places, (&before, terms))?;
        let is_less = needs_no_more(*terms, before);
        let fits = if is_less { Ok(()) } else { self.check_interference(domain, identity) };
        let changed = fits.and_then(|()| self.change_seated(domain, terms));
        if changed.is_err() {
            // The old parameters fit again: nothing else has joined in between.
            let _ = self.change_seated(domain, &before);
            let _ = self.change_each(domain, places, (terms, &before));
        }
        changed
    }

    fn change_seated(&mut self, domain: DomId, terms: &Terms) -> Result<(), WorldError> {
        let each = terms.in_each_second().each();
        let kernel = self.domains.get_mut(&domain).and_then(|known| known.kernel.as_mut());
        for seated in kernel.into_iter().flat_map(|kernel| kernel.seated.iter_mut().flatten()) {
            let changed = self.session.change_enforced(&mut seated.watch, each);
            changed.map_err(|error| refused(&error))?;
        }
        Ok(())
    }

    /// Moves a domain to another mechanism, or changes the number of vCPUs of a domain whose
    /// reservation the kernel enforces. To do this, the domain leaves the session and joins again.
    /// At most one period's budget is lost. If the new parameters are refused, the domain joins
    /// with its old parameters.
    pub(super) fn join_anew(&mut self, domain: DomId, terms: &Terms) -> Result<(), WorldError> {
        let Some(known) = self.domains.get(&domain) else { return Err(WorldError::Gone) };
        let ids: Vec<JoinId> = known.places.iter().filter_map(|place| place.id).collect();
        if self.session.members().any(|member| member.is_paused && ids.contains(&member.id)) {
            return Err(WorldError::Host {
                says: "cannot change the mechanism of a paused VM".into(),
                hint: Some("resume the VM first".into()),
            });
        }
        let (before, identity, owner) = (known.terms, known.identity, known.owner);
        let name: Name = known.name.parse().map_err(|_| WorldError::Gone)?;
        let vcpus: Vec<Option<u16>> = known.places.iter().map(|place| place.vcpu).collect();
        let seats = identity.map(|identity| Seats { identity, vcpus });
        let former = self.drop_dispatched_places(domain);
        self.leave(domain);
        let resized = seats.clone().map(|mut seats| {
            seats.vcpus.resize(terms.vcpus().into(), None);
            seats
        });
        let name = &name;
        let joining = JoiningDomain { domain, name, owner, terms, seats: resized.as_ref() };
        self.former_cpus.insert(domain, former);
        let joined = self.join(&[joining]).pop().unwrap_or(Err(WorldError::Gone));
        self.former_cpus.remove(&domain);
        if joined.is_err() {
            // The old parameters fit again: nothing else has joined in between.
            let seats = seats.as_ref();
            let old = JoiningDomain { domain, name, owner, terms: &before, seats };
            let undone = self.join(&[old]).pop().unwrap_or(Err(WorldError::Gone));
            if undone.is_err() {
                // The kernel still counts the bandwidth that the threads had until now. So the
                // domain first joins without threads.
                let _ = self.join(&[JoiningDomain { seats: None, ..old }]);
                self.remember_lost(domain, seats.cloned());
            }
        }
        joined
    }

    /// Drops the places (reserved vCPUs) of a domain if the dispatcher enforces its reservation.
    /// Returns the CPU on which each place had its reservation, by the CPU's number in the session.
    ///
    /// If the kernel enforces the reservation, or if the VM is absent, drops nothing and returns an
    /// empty list. The former CPUs of an absent VM do not matter: it uses no CPU time, so none of
    /// its shares stays reserved.
    fn drop_dispatched_places(&mut self, domain: DomId) -> Vec<usize> {
        let known = self.domains.get(&domain).filter(|known| known.kernel.is_none());
        let known = known.filter(|known| known.identity.is_some());
        let places = known.map_or(0, |known| known.places.len());
        if places == 0 {
            return Vec::new();
        }
        let mut reserved = self.reserved();
        let mut cpus: Vec<usize> = (0..places)
            .rev()
            .map(|kept| {
                self.drop_places(domain, kept);
                let before = std::mem::replace(&mut reserved, self.reserved());
                most_reduced(&before, &reserved)
            })
            .collect();
        cpus.reverse();
        cpus
    }

    /// Stores the vCPUs of a domain that have lost their places, because the kernel has refused
    /// their threads. The daemon later tries to give them their places again.
    fn remember_lost(&mut self, domain: DomId, seats: Option<Seats>) {
        let Some(known) = self.domains.get_mut(&domain) else { return };
        known.identity = seats.as_ref().map(|seats| seats.identity);
        if let Some(kernel) = &mut known.kernel {
            let at = self.session.now() + SEAT_AGAIN;
            kernel.lost = seats.map(|seats| (seats, at));
            let next = self.kernel_checks.next_seating;
            self.kernel_checks.next_seating = Some(next.map_or(at, |next| next.min(at)));
        }
    }

    /// Tries to give vCPUs the places that they have lost, because the kernel refused their
    /// threads. Does nothing for vCPUs whose next attempt is not due.
    pub(super) fn seat_lost(&mut self, now: Time) {
        if self.kernel_checks.next_seating.is_none_or(|next| now < next) {
            return;
        }
        let (mut due, mut next) = (Vec::new(), None);
        for (&domain, known) in &mut self.domains {
            let Some(lost) = known.kernel.as_mut().map(|kernel| &mut kernel.lost) else { continue };
            let seats = lost.take_if(|(_, at)| *at <= now);
            due.extend(seats.map(|(seats, _)| (domain, seats)));
            next = next.into_iter().chain(lost.as_ref().map(|(_, at)| *at)).min();
        }
        self.kernel_checks.next_seating = next;
        for (domain, seats) in due {
            if matches!(self.seat_by_kernel(domain, &seats), Err(WorldError::Host { .. })) {
                self.remember_lost(domain, Some(seats));
            }
        }
    }

    /// Writes the enforcement mechanism into the session's records of new reservations, because the
    /// session does not know the mechanism. The search for the domain of a record is slow, but such
    /// records are rare.
    pub(super) fn name_mechanisms(&self, records: &mut [Entry]) {
        for entry in records {
            let Entry::Record(Record::Promised { vcpu, by, .. }) = entry else { continue };
            let has_it = |place: &Place| place.id.is_some_and(|id| id.vcpu() == *vcpu);
            let domain = self.domains.values().find(|known| known.places.iter().any(has_it));
            if let Some(domain) = domain {
                *by = domain.terms.enforcement();
            }
        }
    }

    /// Returns the threads of all vCPUs, as [`threads`](Scheduler::threads) does, if they may have
    /// changed since the last call. Otherwise `None`.
    pub(super) fn changed_threads(&mut self) -> Option<Vec<SessionThread>> {
        let revisions = Some((self.session.threads_revision(), self.kernel_checks.revision));
        let is_changed = self.told_threads != revisions;
        self.told_threads = revisions;
        is_changed.then(|| self.threads())
    }

    /// Returns the threads of all vCPUs, including those for which the kernel enforces a
    /// reservation.
    fn threads(&self) -> Vec<SessionThread> {
        let of_kernel = self.domains.values().flat_map(|known| {
            let seated = known.kernel.iter().flat_map(|kernel| &kernel.seated);
            seated.zip(&known.places).filter_map(|(seated, place)| {
                let tid = seated.as_ref()?.thread.tid();
                Some(SessionThread { vcpu: place.id?.vcpu(), tid, is_of_tree: false })
            })
        });
        self.session.threads().chain(of_kernel).collect()
    }
}

/// Returns the index of the CPU whose reserved share decreased most from `before` to `after`. A
/// split vCPU has shares on several CPUs.
fn most_reduced(before: &[CpuShare], after: &[CpuShare]) -> usize {
    let reductions = before.iter().zip(after).map(|(before, after)| before.less(*after));
    let reductions = reductions.enumerate().max_by_key(|(cpu, less)| (*less, Reverse(*cpu)));
    reductions.map_or(0, |(cpu, _)| cpu)
}

/// Returns the slice and period of each vCPU of a domain, as a hard limit that the kernel can
/// enforce.
fn exact(terms: Terms) -> Demand {
    Demand::Time(terms.in_each_second().each(), Bound::Exact)
}

/// Divides the slice and the period of `each` by n. The daemon enforces the period of `terms` as n
/// shorter periods.
pub(super) fn in_each_second(terms: Terms, each: Reservation) -> Reservation {
    let part = terms.in_each_second().each().period();
    let parts = (terms.each().period().ns() / part.ns().max(1)).max(1);
    Reservation::new(each.slice() / parts, each.period() / parts).unwrap_or(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_cpu_of_vcpu_is_cpu_with_largest_share_decrease() {
        let ppm = |all: [u32; 3]| all.map(CpuShare::from_ppm);
        assert_eq!(most_reduced(&ppm([500, 700, 0]), &ppm([500, 200, 0])), 1);
        assert_eq!(most_reduced(&ppm([500, 700, 400]), &ppm([400, 700, 200])), 2);
        assert_eq!(most_reduced(&ppm([500, 700, 0]), &ppm([500, 700, 0])), 0);
    }

    #[test]
    fn long_period_and_slice_are_divided_for_sched_deadline() {
        let each = |slice, period| {
            Reservation::new(Span::from_ms(slice), Span::from_ms(period)).expect("less than all")
        };
        let second = Terms::new(each(1_000, 4_000), true, 1).expect("valid terms");
        let Demand::Time(enforced, Bound::Exact) = exact(second) else { panic!("a hard limit") };
        assert_eq!(enforced, each(25, 100));
        assert_eq!(in_each_second(second, each(400, 4_000)), each(10, 100));
        let short = Terms::new(each(2, 10), true, 1).expect("valid terms");
        assert_eq!(in_each_second(short, each(1, 10)), each(1, 10));
    }
}
