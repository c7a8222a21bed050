//! What the service does things through: everything it decides is a call of this.

use slackline_units::{DomId, Span, Time};

use crate::answer::Answer;
use crate::binding::Binding;
use crate::event::Event;
use crate::input::Asked;
use crate::machine::{Declined, LookError, Machine, Room, Seats};
use crate::name::{Key, Name};
use crate::principal::Principal;
use crate::refusal::Refusal;
use crate::request::Ticket;
use crate::row::Row;
use crate::terms::Terms;

/// Machines, the scheduler, the ledger and the people: called one at a time, each call done when it
/// returns, within [`Service::step`](crate::Service::step) or
/// [`Service::recover`](crate::Service::recover). Nothing is told back from within a call.
///
/// A reservation is known to the scheduler by its *domain*, and each of its vCPUs by its *place*
/// there, counted from zero: both are stable for as long as what the policy has on account for them
/// may matter, whoever sits there and whether anybody does. A place where nobody sits is promised
/// all the same, to a vCPU that never wakes.
///
/// The scheduler is volatile: if we die in or between calls, everything that calls did to threads
/// is undone by somebody else, and nothing of it has to be remembered.
pub trait World {
    /// Looks for the machine that a binding means, now. Where several go by it, only those of
    /// `user` count; one that is somebody else's is returned where it is the only one.
    ///
    /// # Errors
    /// Why it cannot be had.
    fn look(&mut self, binding: &Binding, user: u32) -> Result<Machine, LookError>;

    /// How the machines here that go by this name can be meant: one binding for each machine, the
    /// kind that people would use.
    fn named(&mut self, name: &Name) -> Vec<Binding>;

    /// These come under the scheduler, all at one instant, in this order as far as there is room:
    /// of each all of its places or none, with the threads that are to sit there held. None of
    /// them is under it before.
    ///
    /// Returns an answer for each. Whoever is declined has left no trace, and no thread of it has
    /// been touched; [`Declined::Gone`] where its machine is not the one that is named any more.
    fn join(&mut self, group: &[Joining<'_>]) -> Vec<Result<(), Declined>>;

    /// Other threads sit at the places of a domain. Who sits there already stays undisturbed; who
    /// does not any more is given back. What places are promised stands, also where a place passes
    /// from one thread to another, or to nobody. A domain that is paused stays so, whoever sits
    /// down.
    ///
    /// # Errors
    /// Why not. Then everybody sits where it sat before.
    fn seat(&mut self, domain: DomId, seats: &Seats) -> Result<(), Declined>;

    /// Nobody sits at the places of a domain: its threads are given back, and what it is promised
    /// stands. It is not paused any more.
    fn unseat(&mut self, domain: DomId);

    /// A domain is promised something else, in force when this returns, with more or fewer places
    /// at the end: nobody sits at new ones, and whoever sat at lost ones is given back. Lost ones
    /// go last, and are never promised the new terms: what was there before fits if this is
    /// refused.
    ///
    /// # Errors
    /// Why not. Then what it was promised stands, at all of its places.
    fn change(&mut self, domain: DomId, terms: &Terms) -> Result<(), Declined>;

    /// Nobody of a domain runs until it is resumed. Somebody sits there.
    ///
    /// # Errors
    /// Why not. Then all of it runs on.
    fn pause(&mut self, domain: DomId) -> Result<(), Declined>;

    /// It runs again.
    ///
    /// # Errors
    /// Why not. Then all of it stays paused.
    fn resume(&mut self, domain: DomId) -> Result<(), Declined>;

    /// A domain is under the scheduler no more: its threads are given back, and nothing is promised
    /// to it but what the policy holds back for what it had in advance.
    fn leave(&mut self, domain: DomId);

    /// What each CPU could promise with such a period, now.
    fn room(&mut self, period: Span) -> Vec<Room>;

    /// Begins to write this down: all of it or nothing. What came of it is told later, as
    /// [`Input::Committed`](crate::Input::Committed) or
    /// [`Input::NotCommitted`](crate::Input::NotCommitted), unless we die. One at a time: nothing
    /// else is begun before that.
    fn commit(&mut self, commit: &Commit);

    /// Answers somebody.
    fn reply(&mut self, ticket: Ticket, reply: &Result<Answer, Refusal>);

    /// Answers a [`Request::Log`](crate::Request::Log) or [`Request::Find`](crate::Request::Find)
    /// in our place: the caller may ask that.
    fn hand_over(&mut self, asked: &Asked);

    /// Tells whoever listens what happened. It has been written down.
    fn publish(&mut self, event: &Event);

    /// [`Input::Rang`](crate::Input::Rang) is to come at this time, and at no other that was asked
    /// for before.
    fn ring(&mut self, at: Time);
}

/// Who is to come under the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Joining<'a> {
    /// As what.
    pub domain: DomId,
    /// What people call it.
    pub name: &'a Name,
    /// What it is promised.
    pub terms: &'a Terms,
    /// Who sits at its places; none is nobody.
    pub seats: Option<&'a Seats>,
}

/// What is to be written down, all of it or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Its number: that of the last event that there was. Later ones have higher numbers.
    pub seq: u64,
    /// What is promised under these names from now on; none is nothing.
    pub rows: Vec<(Name, Option<Row>)>,
    /// What happened, ascending by number.
    pub events: Vec<Event>,
    /// Answers to be found again.
    pub kept: Vec<Kept>,
}

/// An answer to a request with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Whose key.
    pub principal: Principal,
    /// The key.
    pub key: Key,
    /// The request in a line: another one with the same key is refused.
    pub asked: String,
    /// The reservation as it was then.
    pub row: Row,
    /// Whether it was new.
    pub is_new: bool,
}

/// What the ledger holds when the service begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// All that is promised. Identities only of this boot: after another all are none.
    pub rows: Vec<Row>,
    /// Answers, each with its age.
    pub kept: Vec<(Kept, Span)>,
    /// The highest number that was ever written: of an event or of a commit.
    pub last_seq: u64,
}
