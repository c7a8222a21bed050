//! Model world for the service, with faults. Tests can add a defect to the model that the checks
//! must find.

use std::collections::BTreeMap;
use std::panic::resume_unwind;

use slackline_service::{
    Answer, Binding, ClientRequest, Commit, CpuCapacity, Event, JoiningDomain, LedgerContents,
    LookError, Machine, MeasuredVm, MechanismChoice, Name, Refusal, Request, Seats, Terms, Ticket,
    World, WorldError,
};
use slackline_units::{CpuId, DomId, Enforcement, Span, Time};

use crate::disk::Disk;
use crate::draw::Draw;
use crate::kernel::Kernel;
use crate::scheduler::Scheduler;

/// Defect of the model world that the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// A commit is reported as written, but is not written.
    LosesCommits,
    /// A commit writes its rows, but not its events.
    LosesEvents,
    /// Stored answers with idempotency keys are lost at a restart.
    LosesKeys,
    /// All reservations are admitted, even without capacity.
    AdmitsAll,
    /// Threads of a domain that is removed from the scheduler are not restored.
    KeepsThreads,
    /// Threads of a VM are not restored when the VM ends.
    KeepsSeats,
    /// The scheduler forgets how much CPU time a VM received before the VM came back.
    ForgetsAccounts,
    /// Changes of terms are not applied.
    IgnoresChanges,
    /// Pauses are not applied.
    IgnoresPauses,
    /// A process is recognized by its process id alone.
    TakesNumbers,
    /// A VM is recognized by its name alone, even if it belongs to another user.
    HidesUsers,
    /// A reply is sent twice.
    AnswersTwice,
    /// A reply is never sent.
    AnswersNot,
    /// The requested timer never expires.
    NeverRings,
}

impl Lie {
    pub(crate) const ALL: [Lie; 14] = [
        Lie::LosesCommits,
        Lie::LosesEvents,
        Lie::LosesKeys,
        Lie::AdmitsAll,
        Lie::KeepsThreads,
        Lie::KeepsSeats,
        Lie::ForgetsAccounts,
        Lie::IgnoresChanges,
        Lie::IgnoresPauses,
        Lie::TakesNumbers,
        Lie::HidesUsers,
        Lie::AnswersTwice,
        Lie::AnswersNot,
        Lie::NeverRings,
    ];
}

/// Panic payload by which a simulated death of the service is recognized.
pub(crate) struct Crash;

/// Reply that a client has received, with the ticket of its request.
pub(crate) type Replied = (Ticket, Result<Answer, Refusal>);

pub(crate) struct Model {
    pub(crate) now: Time,
    pub(crate) kernel: Kernel,
    pub(crate) disk: Disk,
    pub(crate) scheduler: Scheduler,
    pub(crate) lie: Option<Lie>,
    /// Random numbers that decide which calls fail. `None` if no faults are injected.
    pub(crate) faults: Option<Draw>,
    /// Number of the call before which the service dies. `None` if the service does not die.
    pub(crate) dies_after: Option<u32>,
    pub(crate) calls: u32,
    /// Requests that have no reply yet.
    pub(crate) open: BTreeMap<Ticket, Request>,
    pub(crate) replies: Vec<Replied>,
    /// Commits that were begun and that the simulation has not checked yet.
    pub(crate) begun: Vec<Commit>,
    pub(crate) published: u64,
    pub(crate) rings: Option<Time>,
    /// Description of a call by which the service broke its contract with the world. `None` if
    /// there was no such call.
    pub(crate) wrong: Option<String>,
    pub(crate) trace: Option<Vec<String>>,
    /// Time from the beginning of a commit until the commit is synced.
    pub(crate) sync: Span,
    /// True if the kernel refuses to make any thread a deadline thread.
    pub(crate) refuses_deadline: bool,
    /// Share that each measurement reports for each VM, in millionths of a CPU.
    pub(crate) measured_ppm: u64,
    /// Length of time by which the wall clock is ahead of the simulation's clock.
    pub(crate) wall_ahead: Span,
}

impl Model {
    pub(crate) fn new(cpus: usize) -> Model {
        Model {
            now: Time::START,
            kernel: Kernel::default(),
            disk: Disk::default(),
            scheduler: Scheduler::new(cpus, Time::START),
            lie: None,
            faults: None,
            dies_after: None,
            calls: 0,
            open: BTreeMap::new(),
            replies: Vec::new(),
            begun: Vec::new(),
            published: 0,
            rings: None,
            wrong: None,
            trace: None,
            sync: Span::from_ms(1),
            refuses_deadline: false,
            measured_ppm: 0,
            wall_ahead: Span::ZERO,
        }
    }

    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{} {}", self.now, what()));
        }
    }

    fn call(&mut self, what: impl FnOnce() -> String) {
        self.calls += 1;
        if self.dies_after == Some(self.calls) {
            self.note(|| format!("   dies before {}", what()));
            resume_unwind(Box::new(Crash));
        }
        self.note(|| format!("   {}", what()));
    }

    fn fault(&mut self, chance: u64) -> bool {
        self.faults.as_mut().is_some_and(|draw| draw.percent(chance))
    }

    /// Kills the service. The keeper process restores all threads. Each synced commit stays on the
    /// disk, and a commit in progress is on the disk if `is_there` is true.
    pub(crate) fn crash(&mut self, is_there: bool) {
        let (cpus, now) = (self.scheduler.cpus(), self.now);
        self.scheduler = Scheduler::new(cpus, now);
        self.scheduler.admits_all = self.lie == Some(Lie::AdmitsAll);
        self.scheduler.forgets = self.lie == Some(Lie::ForgetsAccounts);
        self.scheduler.set_clock(self.wall_ahead);
        self.disk.crash(now, is_there);
        self.open.clear();
        self.begun.clear();
        self.rings = None;
        self.dies_after = None;
    }

    /// Sets the wall clock forward by `by`, or back if `is_ahead` is false.
    pub(crate) fn step_clock(&mut self, by: Span, is_ahead: bool) {
        let back = self.wall_ahead.left_after(by);
        self.wall_ahead = if is_ahead { self.wall_ahead + by } else { back };
        self.scheduler.set_clock(self.wall_ahead);
    }

    /// Returns the contents of the ledger that the service reads when it starts.
    pub(crate) fn loaded(&self) -> LedgerContents {
        let mut loaded = self.disk.loaded(self.now);
        if self.lie == Some(Lie::TakesNumbers) {
            for row in &mut loaded.rows {
                let process = self.kernel.meant(&row.binding);
                row.identity = process.map(|process| process.machine.identity);
            }
        }
        loaded
    }

    /// Checks that the VM and the vCPUs in `seats` exist. To simulate faults, the VM ends before
    /// the check with a probability of `chance` percent, and the kernel refuses with the same
    /// probability.
    fn hold(&mut self, seats: &Seats, chance: u64) -> Result<(), WorldError> {
        if self.fault(chance) {
            // The VM may end between the lookup and this call, and another VM may get its process
            // id.
            let name = self.kernel.alive(seats.identity).map(|one| one.name.clone());
            if let Some(name) = name {
                self.note(|| format!("   {name} dies"));
                self.kernel.end(&name);
                self.kernel.start("late", 1, 2);
            }
        }
        if self.fault(chance) {
            return Err(WorldError::Host { says: "the kernel refuses".into(), hint: None });
        }
        let alive = self.kernel.alive(seats.identity);
        let has = |vcpu: &u16| alive.is_some_and(|one| one.machine.vcpus.contains(vcpu));
        if alive.is_some() && seats.vcpus.iter().flatten().all(has) {
            Ok(())
        } else {
            Err(WorldError::Gone)
        }
    }
}

impl World for Model {
    fn look(&mut self, binding: &Binding, user: u32) -> Result<Machine, LookError> {
        self.call(|| format!("look {binding} of uid {user}"));
        if self.fault(1) {
            let says = "/proc cannot be read".into();
            return Err(LookError::Unclear { says, hint: None });
        }
        if self.fault(1) {
            return Err(LookError::Starting { says: "it has no vCPU threads".into() });
        }
        let meant = self.kernel.meant(binding).map(|one| one.machine.clone());
        let mut machine = meant.ok_or(LookError::Absent)?;
        if self.lie == Some(Lie::HidesUsers) {
            machine.user = user;
        }
        Ok(machine)
    }

    fn named(&mut self, name: &Name) -> Vec<Binding> {
        self.call(|| format!("named {name}"));
        let found = self.kernel.named(name.as_str());
        found
            .map(|one| format!("qemu:{}", one.name).parse().expect("a valid binding"))
            .into_iter()
            .collect()
    }

    fn join(&mut self, group: &[JoiningDomain<'_>]) -> Vec<Result<(), WorldError>> {
        let names: Vec<&str> = group.iter().map(|one| one.name.as_str()).collect();
        self.call(|| format!("join {names:?}"));
        let mut answers = Vec::new();
        for one in group {
            let held = one.seats.map_or(Ok(()), |seats| self.hold(seats, 2));
            let is_deadline = one.terms.enforcement() == Enforcement::Deadline;
            let joined = held.and_then(|()| {
                if is_deadline && self.refuses_deadline {
                    return Err(WorldError::Host { says: "the kernel refuses".into(), hint: None });
                }
                let joined = self.scheduler.join(one.domain, *one.terms);
                joined.map_err(WorldError::Admission)
            });
            if joined.is_ok() && one.seats.is_some() {
                self.scheduler.seat(one.domain, one.seats);
            }
            self.note(|| format!("   {} {}: {joined:?}", one.domain, one.terms));
            answers.push(joined);
        }
        answers
    }

    fn seat(&mut self, domain: DomId, seats: &Seats) -> Result<(), WorldError> {
        self.call(|| format!("seat {domain} {seats:?}"));
        self.hold(seats, 4)?;
        self.scheduler.seat(domain, Some(seats));
        Ok(())
    }

    fn unseat(&mut self, domain: DomId) {
        self.call(|| format!("unseat {domain}"));
        if self.lie != Some(Lie::KeepsSeats) {
            self.scheduler.seat(domain, None);
        }
    }

    fn change(&mut self, domain: DomId, terms: &Terms) -> Result<(), WorldError> {
        self.call(|| format!("change {domain} {terms}"));
        if self.fault(1) {
            return Err(WorldError::Host { says: "the kernel refuses".into(), hint: None });
        }
        if self.lie == Some(Lie::IgnoresChanges) {
            return Ok(());
        }
        self.scheduler.change(domain, *terms).map_err(WorldError::Admission)
    }

    fn pause(&mut self, domain: DomId) -> Result<(), WorldError> {
        self.call(|| format!("pause {domain}"));
        if self.scheduler.domains[&domain].identity.is_none() {
            self.wrong = Some(format!("{domain} is paused, but all its places are empty"));
        }
        if self.fault(4) {
            return Err(WorldError::Host { says: "it cannot be frozen".into(), hint: None });
        }
        if self.lie != Some(Lie::IgnoresPauses) {
            self.scheduler.pause(domain, true);
        }
        Ok(())
    }

    fn resume(&mut self, domain: DomId) -> Result<(), WorldError> {
        self.call(|| format!("resume {domain}"));
        if self.fault(4) {
            return Err(WorldError::Host { says: "it cannot be thawed".into(), hint: None });
        }
        self.scheduler.pause(domain, false);
        Ok(())
    }

    fn leave(&mut self, domain: DomId) {
        self.call(|| format!("leave {domain}"));
        if self.lie != Some(Lie::KeepsThreads) {
            self.scheduler.leave(domain);
        }
    }

    fn wall_ahead(&mut self) -> Span {
        self.wall_ahead
    }

    /// Returns `deadline` in odd milliseconds of simulated time and the dispatcher in even ones, as
    /// if trials on the host had different results.
    fn best_mechanism(&mut self) -> MechanismChoice {
        self.call(|| "best mechanism".into());
        let is_odd = self.now.since(Time::START).ns() / 1_000_000 % 2 == 1;
        let by = if is_odd { Enforcement::Deadline } else { Enforcement::Dispatcher };
        MechanismChoice { by, why: "the better one now".into() }
    }

    fn room(&mut self, period: Span) -> Vec<CpuCapacity> {
        self.call(|| format!("room {period}"));
        let cpus = (0..self.scheduler.cpus()).map(CpuId::new);
        cpus.map(|cpu| CpuCapacity { cpu, slice: self.scheduler.room(period, cpu) }).collect()
    }

    fn measured(&mut self, domain: DomId) -> MeasuredVm {
        self.call(|| format!("measured {domain}"));
        let present = self.now.since(Time::START);
        let used = Span::from_ns(present.ns() / 1_000_000 * self.measured_ppm);
        MeasuredVm { present, used, ..MeasuredVm::default() }
    }

    fn commit(&mut self, commit: &Commit) {
        self.call(|| {
            let names: Vec<&str> = commit.rows.iter().map(|(name, _)| name.as_str()).collect();
            format!("commit {} {names:?}, {} events", commit.seq, commit.events.len())
        });
        if self.disk.pending.is_some() {
            self.wrong = Some("two commits at a time".into());
        }
        self.begun.push(commit.clone());
        let mut commit = commit.clone();
        match self.lie {
            Some(Lie::LosesCommits) => commit.rows.clear(),
            Some(Lie::LosesEvents) => commit.events.clear(),
            Some(Lie::LosesKeys) => commit.kept.clear(),
            _ => {}
        }
        self.disk.pending = Some((commit, self.now.after(self.sync)));
    }

    fn reply(&mut self, ticket: Ticket, reply: &Result<Answer, Refusal>) {
        self.call(|| match reply {
            Ok(Answer::Done { reservation, warning, .. }) => format!(
                "reply {ticket:?} {} {} at {} {warning:?}",
                reservation.row, reservation.state, reservation.row.revision
            ),
            Ok(_) => format!("reply {ticket:?}"),
            Err(refusal) => format!("reply {ticket:?} {refusal}"),
        });
        if self.lie == Some(Lie::AnswersNot) && ticket.0.is_multiple_of(7) {
            return;
        }
        let times = if self.lie == Some(Lie::AnswersTwice) { 2 } else { 1 };
        for _ in 0..times {
            if self.open.remove(&ticket).is_none() {
                self.wrong =
                    Some(format!("{ticket:?} got an answer without a request, or two answers"));
            }
            self.replies.push((ticket, reply.clone()));
        }
    }

    fn hand_over(&mut self, asked: &ClientRequest) {
        let ticket = asked.ticket;
        self.call(|| format!("hand over {ticket:?} {}", asked.request));
        if self.open.remove(&ticket).is_none() {
            self.wrong =
                Some(format!("{ticket:?} got an answer without a request, or two answers"));
        }
    }

    fn publish(&mut self, event: &Event) {
        self.call(|| format!("publish {} {}", event.seq, event.what));
        if event.seq <= self.published {
            self.wrong = Some(format!("event {} comes after {}", event.seq, self.published));
        }
        self.published = event.seq;
    }

    fn ring(&mut self, at: Time) {
        self.call(|| format!("ring at {at}"));
        self.rings = Some(at).filter(|_| self.lie != Some(Lie::NeverRings));
    }
}
