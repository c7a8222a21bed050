//! Interface of the service to the host and the ledger. The service acts on them only by calls of
//! [`World`].

use slackline_units::{DomId, Span, Time};

use crate::answer::Answer;
use crate::binding::Binding;
use crate::event::Event;
use crate::input::ClientRequest;
use crate::machine::{CpuCapacity, LookError, Machine, Seats, WorldError};
use crate::mechanism::MechanismChoice;
use crate::name::{Key, Name};
use crate::plan::{MeasuredVm, Plan};
use crate::principal::Principal;
use crate::raise::Raise;
use crate::refusal::Refusal;
use crate::request::Ticket;
use crate::row::Row;
use crate::terms::Terms;

/// VMs, the scheduler, the ledger and the clients, as the service sees them. The service makes one
/// call at a time, within [`Service::step`](crate::Service::step) or
/// [`Service::recover`](crate::Service::recover). Each call is complete when it returns. The world
/// never calls the service.
///
/// In the scheduler, a reservation has a *domain*, and each reserved vCPU has a *place* in the
/// domain, counted from zero. The domain and its places keep their numbers as long as the policy
/// may account CPU time for them, even if another thread occupies the place. The reservation of an
/// empty place stays in force, like the reservation of a vCPU that never wakes.
///
/// The scheduler has no persistent state. If the service dies during or between calls, the keeper
/// process undoes all changes that the calls made to threads.
pub trait World {
    /// Looks up the VM to which a binding refers. If VMs of several users match, those of `user`
    /// are preferred. A VM of another user is returned only if no VM of `user` matches.
    ///
    /// # Errors
    /// If no VM matches, if the VM must not be scheduled, or if the VM cannot be identified.
    fn look(&mut self, binding: &Binding, user: u32) -> Result<Machine, LookError>;

    /// Returns one binding for each VM of this name on the host. If a VM has several bindings, the
    /// returned binding is of the kind that users would choose.
    fn named(&mut self, name: &Name) -> Vec<Binding>;

    /// Adds domains to the scheduler, all at the same instant and in this order, as long as
    /// capacity is available. A domain gets all of its places (reserved vCPUs) or none. The threads
    /// in `seats` are then scheduled. None of the domains may be in the scheduler already.
    ///
    /// Returns a result for each domain. A declined domain leaves the scheduler and all threads
    /// unchanged. [`WorldError::Gone`] means that the VM has ended or was replaced by another VM.
    fn join(&mut self, group: &[JoiningDomain<'_>]) -> Vec<Result<(), WorldError>>;

    /// Assigns threads to the places (reserved vCPUs) of a domain. Threads that keep their place
    /// are not disturbed, and threads that lose their place are restored. The reservation of a
    /// place stays in force even if its thread changes or the place becomes empty. A paused domain
    /// stays paused.
    ///
    /// # Errors
    /// If a thread cannot be scheduled. All places then keep their old threads.
    fn seat(&mut self, domain: DomId, seats: &Seats) -> Result<(), WorldError>;

    /// Empties all places (reserved vCPUs) of a domain. The threads are restored, but the
    /// reservation of the domain stays in force. If the domain was paused, the pause ends.
    fn unseat(&mut self, domain: DomId);

    /// Changes the terms of a domain. The new terms are in force when the call returns. If the
    /// number of places (reserved vCPUs) changes, places are added or removed at the end of the
    /// list. New places are empty, and threads of removed places are restored. All other changes
    /// are made before places are removed, and the removed places keep the old terms until then. So
    /// if the change is declined, the old terms still fit.
    ///
    /// # Errors
    /// If the policy or the host declines the change. All places then have the old terms.
    fn change(&mut self, domain: DomId, terms: &Terms) -> Result<(), WorldError>;

    /// Keeps all threads of a domain from running until [`resume`](World::resume) is called. The
    /// caller ensures that at least one place of the domain is occupied.
    ///
    /// # Errors
    /// If the host declines. All threads then continue to run.
    fn pause(&mut self, domain: DomId) -> Result<(), WorldError>;

    /// Lets the threads of a paused domain run again.
    ///
    /// # Errors
    /// If the host declines. All threads then stay paused.
    fn resume(&mut self, domain: DomId) -> Result<(), WorldError>;

    /// Removes a domain from the scheduler and restores its threads. If the domain used more CPU
    /// time than its reservation had accrued, its capacity stays reserved until the reservation
    /// would have accrued the excess.
    fn leave(&mut self, domain: DomId);

    /// Returns by how much the wall clock is ahead of the service's clock. If the wall clock is set
    /// later, the step is reported as [`Input::ClockStepped`](crate::Input::ClockStepped).
    fn wall_ahead(&mut self) -> Span;

    /// Returns the mechanism that the service tries first for a request with `auto`, and the reason
    /// for this choice.
    fn best_mechanism(&mut self) -> MechanismChoice;

    /// Returns the available capacity of each CPU for reservations with the period `period`.
    fn room(&mut self, period: Span) -> Vec<CpuCapacity>;

    /// Returns the CPU time that the VM of a domain has received since the service started. All
    /// values are zero if the domain is not in the scheduler.
    fn measured(&mut self, domain: DomId) -> MeasuredVm;

    /// Begins to write a commit to the ledger. The commit is written as a whole or not at all. The
    /// result is reported later, as [`Input::Committed`](crate::Input::Committed) or
    /// [`Input::NotCommitted`](crate::Input::NotCommitted), unless the service dies before. The
    /// service makes this call only if no other commit is in progress.
    fn commit(&mut self, commit: &Commit);

    /// Sends the reply to the request with this ticket.
    fn reply(&mut self, ticket: Ticket, reply: &Result<Answer, Refusal>);

    /// Passes a [`Request::Log`](crate::Request::Log),
    /// [`Request::History`](crate::Request::History) or [`Request::Find`](crate::Request::Find) to
    /// the world, which answers it. The service has already checked the rights of the caller.
    fn hand_over(&mut self, asked: &ClientRequest);

    /// Sends an event to all subscribers. The event must already be in the ledger.
    fn publish(&mut self, event: &Event);

    /// Sets the timer to the instant `at`, at which the world sends
    /// [`Input::Rang`](crate::Input::Rang). The new instant replaces an instant that was set
    /// before.
    fn ring(&mut self, at: Time);
}

/// A domain that is added to the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct JoiningDomain<'a> {
    /// Id of the domain in the scheduler.
    pub domain: DomId,
    /// Name of the reservation.
    pub name: &'a Name,
    /// Principal that made the reservation.
    pub owner: Principal,
    /// Terms of the reservation.
    pub terms: &'a Terms,
    /// vCPUs of the VM that occupy the places (reserved vCPUs) of the reservation. `None` if all
    /// places stay empty.
    pub seats: Option<&'a Seats>,
}

/// Changes that are written to the ledger together: either all of them or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Number of the commit. If the commit contains events, this is the number of its last event.
    /// Later commits have higher numbers.
    pub seq: u64,
    /// Rows to store, each with the name of its reservation. `None` deletes the row of that name.
    pub rows: Vec<(Name, Option<Row>)>,
    /// Events in ascending order of their numbers.
    pub events: Vec<Event>,
    /// Answers to store, each with the idempotency key of its request.
    pub kept: Vec<KeptAnswer>,
    /// Plans to store, each with its principal. `None` deletes the plan of that principal.
    pub plans: Vec<(Principal, Option<Plan>)>,
    /// Raises of each reservation in `rows`. They replace all raises of that reservation in the
    /// ledger.
    pub raises: Vec<(Name, Vec<Raise>)>,
}

impl Commit {
    /// Creates a commit with the number `seq` and no changes.
    #[must_use]
    pub const fn empty(seq: u64) -> Commit {
        Commit {
            seq,
            rows: Vec::new(),
            events: Vec::new(),
            kept: Vec::new(),
            plans: Vec::new(),
            raises: Vec::new(),
        }
    }
}

/// Answer to a request with an idempotency key, as the ledger stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Principal that sent the request.
    pub principal: Principal,
    /// Idempotency key of the request.
    pub key: Key,
    /// Text of the request, in one line. A request with the same key but another text is refused.
    pub asked: String,
    /// Row of the reservation at the time of the answer.
    pub row: Row,
    /// True if the request made the reservation.
    pub is_new: bool,
}

impl KeptAnswer {
    /// Returns an upper bound for the number of bytes that the answer needs in the ledger, together
    /// with its entry in the index.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        160 + 2 * self.key.as_str().len() + self.asked.len() + self.row.stored_bytes()
    }
}

/// Contents that the service reads from the ledger when it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerContents {
    /// Rows of all reservations. The identity of a VM is missing if it was stored before the last
    /// boot of the host.
    pub rows: Vec<Row>,
    /// Stored answers, each with its age.
    pub kept: Vec<(KeptAnswer, Span)>,
    /// Last plan of each principal.
    pub plans: Vec<Plan>,
    /// Raises, each with the name of its reservation. A raise can be left over from a reservation
    /// that no longer exists.
    pub raises: Vec<(Name, Raise)>,
    /// Highest number of an event or a commit that was ever written to the ledger.
    pub last_seq: u64,
}
