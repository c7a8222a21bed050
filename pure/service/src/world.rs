//! Interface to the host and the ledger. The service acts on them only by calls of [`World`].

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
/// domain, counted from zero. Both stay unchanged as long as the policy may account CPU time for
/// them, even if another thread occupies the place. The reservation of an empty place stays in
/// force, like the reservation of a vCPU that never wakes.
///
/// The scheduler has no persistent state. If the service dies in or between calls, the keeper
/// process undoes all changes that the calls made to threads.
pub trait World {
    /// Looks up the VM to which a binding refers. If several VMs match, only VMs of `user` count. A
    /// VM of another user is returned only if no other VM matches.
    ///
    /// # Errors
    /// If the VM is absent, must not be scheduled, or cannot be identified.
    fn look(&mut self, binding: &Binding, user: u32) -> Result<Machine, LookError>;

    /// Returns one binding for each VM of this name on the host. The kind of binding is the one
    /// that users would choose.
    fn named(&mut self, name: &Name) -> Vec<Binding>;

    /// Adds domains to the scheduler, all at one instant and in this order, as long as capacity is
    /// available. A domain gets all of its places (reserved vCPUs) or none. The threads in `seats`
    /// are then scheduled. None of the domains may be in the scheduler already.
    ///
    /// Returns a result for each domain. Declining a domain has no effect on the scheduler or on
    /// threads. [`WorldError::Gone`] means that the VM has ended or was replaced by another VM.
    fn join(&mut self, group: &[JoiningDomain<'_>]) -> Vec<Result<(), WorldError>>;

    /// Assigns threads to the places (reserved vCPUs) of a domain. Threads that keep their place
    /// are not disturbed, and threads that lose their place are restored. The reservation of a
    /// place stays in force even if its thread changes or it becomes empty. A paused domain stays
    /// paused.
    ///
    /// # Errors
    /// If a thread cannot be scheduled. All places then keep their threads.
    fn seat(&mut self, domain: DomId, seats: &Seats) -> Result<(), WorldError>;

    /// Empties all places (reserved vCPUs) of a domain. Its threads are restored, but its
    /// reservation stays in force. If the domain was paused, the pause ends.
    fn unseat(&mut self, domain: DomId);

    /// Changes the terms of a domain. The new terms are in force when the call returns. Places are
    /// added or removed at the end of the list. New places are empty, and threads of removed places
    /// are restored. Places are removed last and keep the old terms until then. So if the change is
    /// declined, the old terms still fit.
    ///
    /// # Errors
    /// If the policy or the host declines. All places then have the old terms.
    fn change(&mut self, domain: DomId, terms: &Terms) -> Result<(), WorldError>;

    /// Keeps all threads of a domain from running until [`resume`](World::resume). The caller
    /// ensures that at least one place is occupied.
    ///
    /// # Errors
    /// If the host declines. All threads then continue to run.
    fn pause(&mut self, domain: DomId) -> Result<(), WorldError>;

    /// Lets the threads of a paused domain run again.
    ///
    /// # Errors
    /// If the host declines. All threads then stay paused.
    fn resume(&mut self, domain: DomId) -> Result<(), WorldError>;

    /// Removes a domain from the scheduler and restores its threads. Only the capacity that covers
    /// excess CPU time of the domain stays reserved.
    fn leave(&mut self, domain: DomId);

    /// Returns the difference by which the wall clock is ahead of the service's clock. A later step
    /// of the wall clock is reported as [`Input::ClockStepped`](crate::Input::ClockStepped).
    fn wall_ahead(&mut self) -> Span;

    /// Returns the mechanism that the service tries first if a request has `auto`, with the reason.
    fn best_mechanism(&mut self) -> MechanismChoice;

    /// Returns the available capacity of each CPU for reservations with the period `period`.
    fn room(&mut self, period: Span) -> Vec<CpuCapacity>;

    /// Returns the CPU time that a domain has received since the service started. All values are
    /// zero if the domain is not in the scheduler.
    fn measured(&mut self, domain: DomId) -> MeasuredVm;

    /// Begins to write a commit to the ledger. The commit is written as a whole or not at all.
    /// Unless the service dies, the result is reported later, as
    /// [`Input::Committed`](crate::Input::Committed) or
    /// [`Input::NotCommitted`](crate::Input::NotCommitted). There is at most one commit at a time.
    fn commit(&mut self, commit: &Commit);

    /// Sends the reply to a request.
    fn reply(&mut self, ticket: Ticket, reply: &Result<Answer, Refusal>);

    /// Lets the world answer a [`Request::Log`](crate::Request::Log), a
    /// [`Request::History`](crate::Request::History) or a [`Request::Find`](crate::Request::Find).
    /// The service has already checked the rights of the caller.
    fn hand_over(&mut self, asked: &ClientRequest);

    /// Sends an event to all subscribers. The event is already in the ledger.
    fn publish(&mut self, event: &Event);

    /// Sets the timer. When the time `at` has come, the world sends
    /// [`Input::Rang`](crate::Input::Rang). The new time replaces a time that was set before.
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
    /// vCPUs of the VM for the places of the reservation. `None` if all places stay empty.
    pub seats: Option<&'a Seats>,
}

/// Changes that are written to the ledger together: all of them or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Number of the commit: the number of its last event. Later commits have higher numbers.
    pub seq: u64,
    /// Rows to store, by name of the reservation. `None` deletes the row.
    pub rows: Vec<(Name, Option<Row>)>,
    /// Events in ascending order of their numbers.
    pub events: Vec<Event>,
    /// Answers to store with the idempotency keys of their requests.
    pub kept: Vec<KeptAnswer>,
    /// Plans to store, by principal. `None` deletes the plan.
    pub plans: Vec<(Principal, Option<Plan>)>,
    /// Raises of each reservation in `rows`. They replace the stored raises of that reservation.
    pub raises: Vec<(Name, Vec<Raise>)>,
}

impl Commit {
    /// Creates a commit with the number `seq` that writes nothing.
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

/// Answer to a request with an idempotency key, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Principal that owns the key.
    pub principal: Principal,
    /// Key of the request.
    pub key: Key,
    /// The request, written in one line. A different request with the same key is refused.
    pub asked: String,
    /// The reservation when the answer was given.
    pub row: Row,
    /// True if the request made the reservation.
    pub is_new: bool,
}

impl KeptAnswer {
    /// Returns an upper bound for the bytes of the answer in the ledger, with its index.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        160 + 2 * self.key.as_str().len() + self.asked.len() + self.row.stored_bytes()
    }
}

/// Contents of the ledger when the service starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerContents {
    /// All reservations. An identity is kept only if it was stored after the last boot of the host.
    pub rows: Vec<Row>,
    /// Stored answers, each with the time that has passed since the answer.
    pub kept: Vec<(KeptAnswer, Span)>,
    /// Last plan of each principal.
    pub plans: Vec<Plan>,
    /// Raises by name of the reservation. Some may be of a reservation that no longer exists.
    pub raises: Vec<(Name, Raise)>,
    /// Highest number of an event or a commit that was ever written to the ledger.
    pub last_seq: u64,
}
