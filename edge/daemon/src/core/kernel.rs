//! Reservations that the kernel enforces by `SCHED_DEADLINE`, in addition to the reservations that
//! the dispatchers enforce.
//!
//! One admission test counts the reservations of all mechanisms. A deadline thread is not pinned,
//! and runs before all threads of the dispatchers. So a vCPU whose reservation the kernel enforces
//! has an equal reservation on every CPU of the session. The session schedules no thread for these
//! reservations.

use slackline_control::{RequestedMechanism, ReservationParameters, link};
use slackline_linux::sys::ThreadClock;
use slackline_linux::thread::{ReportedEnd, ThreadEnds, ThreadRef};
use slackline_live::mechanism::KernelEnforcement;
use slackline_live::session::{EnforcedWatch, JoinId, Request, RequestedId};
use slackline_service::{Seats, Terms, WorldError};
use slackline_units::{CpuId, CpuSet, DomId, Span, Time};

use super::shares::empty_place;

/// Domain name of the reservations that have no thread and only keep CPU time free. A place
/// (reserved vCPU) under the kernel's enforcement has one such reservation on each CPU but its own.
const SHADOW: &str = "deadline";

/// State of a domain whose reservation the kernel enforces.
pub(super) struct KernelDomain {
    /// Reservations without threads, which keep CPU time free for the deadline threads of the
    /// domain. Each place (reserved vCPU) has one on each CPU but its own.
    pub(super) shadows: Vec<JoinId>,
    /// Thread in each place (reserved vCPU). `None` for a place without a thread.
    pub(super) seated: Vec<Option<SeatedThread>>,
    /// vCPUs that have lost their places because a change of the domain failed, and the time of the
    /// next attempt to seat them. `None` if no vCPU has lost its place.
    pub(super) lost: Option<(Seats, Time)>,
}

/// Thread for which the kernel enforces a reservation.
pub(super) struct SeatedThread {
    pub(super) thread: ThreadRef,
    pub(super) enforced: KernelEnforcement,
    pub(super) watch: EnforcedWatch,
    /// Membership in the set of threads whose exits the kernel reports. `None` if the kernel cannot
    /// report the exit of this thread, so that each check must ask for it.
    pub(super) end: Option<ReportedEnd>,
    /// True if a round of checks has read the thread's clock. Before that, CPU times are not
    /// recorded, because the session may not have recorded the join of the vCPU yet.
    pub(super) is_recorded: bool,
    pub(super) clock: ThreadClock,
    /// CPU time of the thread at the time `at`, when its clock was last read.
    pub(super) used: Span,
    pub(super) at: Time,
    /// True if the thread used CPU time between the last two readings of its clock.
    pub(super) has_run: bool,
}

/// Checks of one thread whose reservation the kernel enforces.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceChecks {
    /// Domain and number of the thread's place (reserved vCPU).
    pub(super) place: (DomId, usize),
    /// Time of the last check whether other programs, or the thread itself, have changed the
    /// thread.
    pub(super) checked: Time,
    /// Time of the last check of the thread's cgroups. `None` if they are to be checked as soon as
    /// possible.
    pub(super) looked: Option<Time>,
    /// True if each round must check the thread, because it has left its class lately or was
    /// resumed by a request.
    pub(super) is_suspect: bool,
}

/// Schedule of the checks of all threads whose reservations the kernel enforces.
#[derive(Debug)]
pub(super) struct KernelChecks {
    /// Threads to be checked, in the order in which they got their places. The times are not stored
    /// with the threads, because each round reads the times of hundreds of threads.
    pub(super) places: Vec<PlaceChecks>,
    /// Number of changes of the threads in `places`.
    pub(super) revision: u64,
    /// Threads whose exits the kernel reports. `None` if the kernel cannot report exits.
    pub(super) ends: Option<ThreadEnds>,
    /// Time of the next attempt to give vCPUs the places that they have lost. `None` if no vCPU has
    /// lost its place.
    pub(super) next_seating: Option<Time>,
    /// Time of the next round, which checks some of the threads.
    pub(super) next_round: Time,
    /// Earliest time at which a client's request for metrics makes the daemon read the clocks of
    /// all threads again.
    pub(super) next_reading: Time,
}

impl KernelChecks {
    pub(super) fn new() -> KernelChecks {
        KernelChecks {
            places: Vec::new(),
            revision: 0,
            ends: ThreadEnds::new().ok(),
            next_seating: None,
            next_round: Time::START,
            next_reading: Time::START,
        }
    }

    /// Begins the checks of the thread that got a place (reserved vCPU) at the time `now`.
    pub(super) fn add(&mut self, place: (DomId, usize), seated: &SeatedThread, now: Time) {
        self.remove(place);
        let watch = &seated.watch;
        let (looked, is_suspect) = (watch.last_cgroup_check(), watch.is_suspect(now));
        self.places.push(PlaceChecks { place, checked: now, looked, is_suspect });
    }

    /// Ends the checks of the thread in a place (reserved vCPU).
    pub(super) fn remove(&mut self, place: (DomId, usize)) {
        self.places.retain(|checks| checks.place != place);
        self.revision += 1;
    }

    /// Makes the next round check all threads of a domain.
    pub(super) fn suspect(&mut self, domain: DomId) {
        let of_domain = self.places.iter_mut().filter(|checks| checks.place.0 == domain);
        of_domain.for_each(|checks| checks.is_suspect = true);
    }
}

impl KernelDomain {
    pub(super) fn new(shadows: &[JoinId], places: usize) -> KernelDomain {
        let seated = (0..places).map(|_| None).collect();
        KernelDomain { shadows: shadows.to_vec(), seated, lost: None }
    }
}

/// Returns the requests with which a domain joins the session if the kernel enforces its
/// reservation. The first requests are for its places (reserved vCPUs). Further requests reserve
/// the same CPU time on each other CPU.
///
/// `former` contains, for each place, the CPU on which the place was until now. The place stays on
/// this CPU, because the policy keeps the share of the place's former vCPU reserved there for a
/// while. On the same CPU, the share does not count twice. A place without a former CPU is on the
/// first CPU.
pub(super) fn requests(
    as_what: (DomId, &str, &Terms),
    (former, cpus): (&[usize], usize),
) -> Vec<Request> {
    let on = |cpu: usize| Some(CpuSet::one(CpuId::new(cpu)));
    let cpu_of = |number: u16| former.get(usize::from(number)).copied().unwrap_or(0);
    let numbers = 0..as_what.2.vcpus();
    let places = numbers
        .clone()
        .map(|number| Request { cpus: on(cpu_of(number)), ..empty_place(as_what, number) });
    let others = (0..cpus).flat_map(|cpu| numbers.clone().map(move |number| (cpu, number)));
    let others = others.filter(|(cpu, number)| *cpu != cpu_of(*number));
    let others = others.map(|(cpu, number)| Request {
        domain: SHADOW.into(),
        called: RequestedId::Anything,
        cpus: on(cpu),
        ..empty_place(as_what, number)
    });
    places.chain(others).collect()
}

/// Returns the error for a request to pause a VM whose reservation the kernel enforces.
pub(super) fn cannot_pause() -> WorldError {
    WorldError::Host {
        says: "cannot pause a VM whose reservation the kernel enforces (`deadline`)".into(),
        hint: Some(
            "change the reservation to `--enforce dispatcher` first, or pause the VM in its monitor"
                .into(),
        ),
    }
}

/// Writes the daemon's default mechanism into the reservations of a request that name no mechanism.
/// A reservation gets the default only if it has a slice, a hard limit (`exact`) and no phase. A
/// reservation that still has no mechanism uses the dispatcher.
pub(super) fn name_mechanism(request: &mut link::Request, default: RequestedMechanism) {
    let name = |wanted: &mut ReservationParameters| {
        let can = wanted.exact && wanted.slice.is_some() && wanted.phase.is_none();
        if can && default != RequestedMechanism::Dispatcher {
            wanted.enforce.get_or_insert(default);
        }
    };
    match request {
        link::Request::Reserve { wanted, .. } => name(wanted),
        link::Request::Apply { list } => list.reservations.values_mut().for_each(name),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use slackline_control::Length;
    use slackline_units::Reservation;

    use super::*;

    #[test]
    fn sched_deadline_reservation_covers_former_cpu_and_all_other_cpus() {
        let each = Reservation::new(Span::from_ms(2), Span::from_ms(10)).expect("valid");
        let terms = Terms::new(each, true, 3).expect("valid terms");
        let requests = requests((DomId::new(7), "web", &terms), (&[1, 0], 2));
        let cpus = |one: &Request| one.cpus.map_or(0, |cpus| cpus.iter().next().unwrap().index());
        let (places, others) = requests.split_at(3);
        assert_eq!(places.iter().map(cpus).collect::<Vec<_>>(), [1, 0, 0]);
        for (number, place) in (0..).zip(places) {
            assert_eq!(place.called, RequestedId::As(DomId::new(7), number));
            let here = others.iter().filter(|one| one.name == place.name).map(cpus);
            assert!(here.eq([1 - cpus(place)]));
        }
        assert_eq!(others.len(), 3);
    }

    /// A mechanism that the request names is not replaced.
    #[test]
    fn default_enforcement_mechanism_applies_only_to_hard_limits_without_phase() {
        let named = |exact, enforce, phase: Option<Span>| {
            let wanted = ReservationParameters {
                slice: Some(Length(Span::from_ms(2))),
                exact,
                enforce,
                phase: phase.map(Length),
                ..ReservationParameters::default()
            };
            let mut request = link::Request::Reserve { name: "web".into(), wanted };
            name_mechanism(&mut request, RequestedMechanism::Deadline);
            let link::Request::Reserve { wanted, .. } = request else { unreachable!() };
            wanted.enforce
        };
        assert_eq!(named(true, None, None), Some(RequestedMechanism::Deadline));
        let dispatcher = Some(RequestedMechanism::Dispatcher);
        assert_eq!(named(true, dispatcher, None), dispatcher);
        assert_eq!(named(false, None, None), None);
        assert_eq!(named(true, None, Some(Span::ZERO)), None);
    }
}
