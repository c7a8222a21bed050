//! Interface by which the service acts on the host and the ledger: the service changes them only by
//! calls of [`World`].

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
use crate::refusal::Refusal;
use crate::request::Ticket;
use crate::row::Row;
use crate::terms::Terms;

/// VMs, the scheduler, the ledger and the clients. Calls come one at a time, within
/// [`Service::step`](crate::Service::step) or [`Service::recover`](crate::Service::recover), and
/// each is complete when it returns. The world never calls back into the service.
///
/// The scheduler knows a reservation by its *domain*, and each reserved vCPU by its *place* in the
/// domain, counted from zero. Both stay the same for as long as the policy may account CPU time for
/// them, whichever thread occupies the place. The reservation of an empty place stays in force,
/// like that of a vCPU that never wakes.
///
/// The scheduler is volatile. If the service dies in or between calls, the keeper undoes everything
/// that calls did to threads, so the service need not remember any of it.
pub trait World {
    /// Looks up the VM that a binding refers to. If several match, only those of `user` count. A VM
    /// of another user is returned only if it is the sole match.
    ///
    /// # Errors
    /// If the VM is absent, must not be scheduled, or cannot be identified.
    fn look(&mut self, binding: &Binding, user: u32) -> Result<Machine, LookError>;

    /// Returns one binding for each VM of this name on the host, of the kind that people would use.
    fn named(&mut self, name: &Name) -> Vec<Binding>;

    /// Adds domains to the scheduler, all at one instant and in this order, as long as capacity is
    /// available. A domain gets all of its places (reserved vCPUs) or none, and the threads in
    /// `seats` are scheduled. None of the domains may be in the scheduler already.
    ///
    /// Returns a result for each domain. A domain that is declined leaves no trace, and none of its
    /// threads is touched. [`WorldError::Gone`] means that the VM is not the named one any more.
    fn join(&mut self, group: &[JoiningDomain<'_>]) -> Vec<Result<(), WorldError>>;

    /// Assigns other threads to the places (reserved vCPUs) of a domain. Threads that keep their
    /// place are not disturbed, and threads that lose their place are restored. The reservation of
    /// a place stays in force even if the place passes to another thread or becomes empty. A paused
    /// domain stays paused.
    ///
    /// # Errors
    /// If a thread cannot be scheduled. All places then keep their threads.
    fn seat(&mut self, domain: DomId, seats: &Seats) -> Result<(), WorldError>;

    /// Empties all places (reserved vCPUs) of a domain. Its threads are restored, and its
    /// reservation stays in force. The domain is not paused any more.
    fn unseat(&mut self, domain: DomId);

    /// Changes the terms of a domain, in force when this returns. Places are added or removed at
    /// the end. New places are empty, and threads of removed places are restored. Places are
    /// removed last and never have the new terms: if this is refused, the old terms still fit.
    ///
    /// # Errors
    /// If the policy or the host declines. The old terms then stand, at all places.
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

    /// Returns how far the wall clock is ahead of the service's clock. A later step of the wall
    /// clock is reported as [`Input::ClockStepped`](crate::Input::ClockStepped).
    fn wall_ahead(&mut self) -> Span;

    /// Returns the mechanism that enforces exact slices better on this host, with the reason.
    fn best_mechanism(&mut self) -> MechanismChoice;

    /// Returns the available capacity of each CPU for this period.
    fn room(&mut self, period: Span) -> Vec<CpuCapacity>;

    /// Returns the CPU time of a domain since the service started. Zero if it is not there.
    fn measured(&mut self, domain: DomId) -> MeasuredVm;

    /// Begins to write a commit to the ledger, all of it or nothing. The result comes later, as
    /// [`Input::Committed`](crate::Input::Committed) or
    /// [`Input::NotCommitted`](crate::Input::NotCommitted), unless the service dies. There is never
    /// more than one commit at a time.
    fn commit(&mut self, commit: &Commit);

    /// Sends the reply to a request.
    fn reply(&mut self, ticket: Ticket, reply: &Result<Answer, Refusal>);

    /// Lets the world answer a [`Request::Log`](crate::Request::Log), a
    /// [`Request::History`](crate::Request::History) or a [`Request::Find`](crate::Request::Find)
    /// itself. The rights of the caller have been checked.
    fn hand_over(&mut self, asked: &ClientRequest);

    /// Sends an event, which is in the ledger already, to all subscribers.
    fn publish(&mut self, event: &Event);

    /// Sets the timer: requests [`Input::Rang`](crate::Input::Rang) at this time. A time that was
    /// set before is replaced.
    fn ring(&mut self, at: Time);
}

/// A domain that is added to the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct JoiningDomain<'a> {
    /// Identifier for the scheduler.
    pub domain: DomId,
    /// Name of the reservation.
    pub name: &'a Name,
    /// Terms of the reservation.
    pub terms: &'a Terms,
    /// vCPUs of the VM for the places of the reservation. `None` if all places stay empty.
    pub seats: Option<&'a Seats>,
}

/// Changes to the ledger, written all or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Number of the commit: the number of its last event. Later commits have higher numbers.
    pub seq: u64,
    /// Reservations to store by name. `None` deletes the row.
    pub rows: Vec<(Name, Option<Row>)>,
    /// Events in ascending order of their numbers.
    pub events: Vec<Event>,
    /// Answers to store with the idempotency keys of their requests.
    pub kept: Vec<KeptAnswer>,
    /// Plans to store by principal. `None` deletes the plan.
    pub plans: Vec<(Principal, Option<Plan>)>,
}

/// Answer to a request that has an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Principal that owns the key.
    pub principal: Principal,
    /// Key of the request.
    pub key: Key,
    /// The request, in one line. Another request with the same key is refused.
    pub asked: String,
    /// The reservation at the time of the answer.
    pub row: Row,
    /// True if the request made the reservation.
    pub is_new: bool,
}

/// Contents of the ledger when the service starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerContents {
    /// All reservations. An identity is `None` unless it was stored since the host booted.
    pub rows: Vec<Row>,
    /// Stored answers, each with the time since it was given.
    pub kept: Vec<(KeptAnswer, Span)>,
    /// Last plan of each principal.
    pub plans: Vec<Plan>,
    /// Highest number of an event or a commit that was ever written.
    pub last_seq: u64,
}
