//! Members of gangs on this host: holding a member, beginning it, and breaking its gang.

use slackline_units::Time;

use crate::answer::Answer;
use crate::book::{Entry, Lease, Standing, ended};
use crate::deed::Kind;
use crate::event::EventKind;
use crate::gang::{AHEAD, Gang, LEASE};
use crate::input::ClientRequest;
use crate::name::Name;
use crate::principal::Verb;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::row::{Reason, Row};
use crate::world::World;
use crate::writer::REST;

use super::reserve::{is_promised, join, refusal};
use super::{ChangeOrigin, DoneChange, Replied, Service};

impl Service {
    /// Admits a member of a gang. The capacity of the member is reserved, but its VM is not
    /// scheduled until the member begins. Nothing is written to the ledger, so if the service dies,
    /// the capacity is free immediately.
    pub(super) fn hold(
        &mut self,
        now: Time,
        (asked, gang, member): (&ClientRequest, &Name, &Request),
        world: &mut impl World,
    ) -> Replied {
        let Request::Reserve { name, .. } = member else { return Ok(None) };
        if let Some(entry) = self.book.get(name) {
            return self.hold_again(asked, entry, (gang, member)).map(Some);
        }
        if self.writer.has_list() {
            // If the list cannot be written, its reservations need their old capacity again.
            let why = "a list of reservations is being written to the ledger".to_owned();
            return Err(Refusal::NotNow { why, again: REST });
        }
        let (row, _) = self.checked(now, asked, member, world)?;
        let row = Row { gang: Some(Gang { name: gang.clone(), is_strict: false }), ..row };
        let domain = self.domains.take(now, &row.binding, row.identity);
        self.domains.promised(domain, row.terms.each().period());
        if let Err(declined) = join(world, domain, &row, None) {
            self.domains.leave(now, domain);
            return Err(refusal(declined, &row.terms, &row.binding));
        }
        let mut entry = Entry::new(row, domain, Standing::Promised(Reason::Held(gang.clone())));
        entry.lease = Some(Lease::Ends(now.after(LEASE)));
        let reservation = Box::new(entry.listed());
        self.book.insert(entry);
        Ok(Some(Answer::Done { reservation, is_new: true, warning: None }))
    }

    /// Answers a repeated request to hold a gang member, if it comes from the same caller. The
    /// repetition does not extend the lease.
    fn hold_again(
        &self,
        asked: &ClientRequest,
        entry: &Entry,
        (gang, member): (&Name, &Request),
    ) -> Result<Answer, Refusal> {
        let row = &entry.row;
        let is_of_gang = row.gang.as_ref().is_some_and(|known| known.name == *gang);
        let is_same = row.owner == asked.principal && is_of_gang && entry.is_lent();
        if is_same && is_promised(member, row) {
            let reservation = Box::new(entry.listed());
            return Ok(Answer::Done { reservation, is_new: false, warning: None });
        }
        Err(Refusal::Exists { name: row.name.clone(), is: row.to_string() })
    }

    /// Makes the reservation of a gang member for which only capacity was held until now. The VM of
    /// the member is scheduled from the time `at`, at which the gang begins.
    pub(super) fn begin(
        &mut self,
        now: Time,
        (asked, gang, name, at): (&ClientRequest, &Gang, &Name, Time),
        world: &mut impl World,
    ) -> Replied {
        let entry = self.member(&gang.name, name)?;
        let row = entry.row.clone();
        if !entry.is_lent() {
            return Ok(self.is_so(now, asked, row));
        }
        if at <= now {
            self.let_go(now, name, world);
            return Err(Refusal::TooLate { name: name.clone(), late: now.since(at) });
        }
        if at.since(now) > AHEAD {
            return Err(Refusal::TooFar { name: name.clone(), ahead: at.since(now) });
        }
        if let Some(why) = self.writer.failing() {
            return Err(Refusal::NotDurable { why: why.to_owned() });
        }
        let revision = self.writer.number();
        let after = Row { gang: Some(gang.clone()), revision, since: revision, ..row };
        if let Some(entry) = self.book.get_mut(name) {
            entry.row = after.clone();
            entry.lease = Some(Lease::Begins(at));
        }
        let happened = Some(EventKind::Asked(Verb::Gang));
        let done = DoneChange { kind: Kind::Reserved, before: None, after, happened };
        Ok(self.did(now, &ChangeOrigin::Asked(asked), done))
    }

    /// Handles the report that a gang is broken. If the member on this host has not begun, or if
    /// the gang is strict, the member ends. Otherwise it stays as a reservation without a gang.
    pub(super) fn break_gang(
        &mut self,
        now: Time,
        (asked, gang, name, lost): (&ClientRequest, &Name, &Name, &str),
        world: &mut impl World,
    ) -> Replied {
        let entry = self.member(gang, name)?;
        let (before, has_begun, is_lent) =
            (entry.row.clone(), entry.lease.is_none(), entry.is_lent());
        if is_lent {
            self.let_go(now, name, world);
            let reservation = Box::new(ended(before));
            return Ok(Some(Answer::Done { reservation, is_new: false, warning: None }));
        }
        let is_strict = before.gang.as_ref().is_some_and(|gang| gang.is_strict);
        let revision = self.writer.number();
        let happened = Some(EventKind::GangBroken(lost.to_owned()));
        let (kind, after) = if has_begun && !is_strict {
            let after = Row { gang: None, revision, ..before.clone() };
            if let Some(entry) = self.book.get_mut(name) {
                entry.row = after.clone();
            }
            (Kind::Alone, after)
        } else {
            self.let_go(now, name, world);
            (Kind::Ended, Row { revision, ..before.clone() })
        };
        let done = DoneChange { kind, before: Some(before), after, happened };
        Ok(self.did(now, &ChangeOrigin::Asked(asked), done))
    }

    /// Returns the reservation `name` as a member of a gang.
    ///
    /// # Errors
    /// If the reservation is not a member of `gang`.
    fn member(&self, gang: &Name, name: &Name) -> Result<&Entry, Refusal> {
        let unknown = || Refusal::NoSuchReservation { name: name.clone() };
        let entry = self.book.get(name).ok_or_else(unknown)?;
        match &entry.row.gang {
            Some(known) if known.name == *gang => Ok(entry),
            _ => Err(Refusal::NoMember { name: name.clone(), gang: gang.clone() }),
        }
    }

    /// Returns an error if the reservation only holds capacity for a gang member that was not told
    /// to begin. No request may change such a reservation.
    pub(super) fn check_lent(&self, name: &Name) -> Result<(), Refusal> {
        let lent = self.book.get(name).filter(|entry| entry.is_lent());
        match lent.and_then(|entry| entry.row.gang.as_ref()) {
            Some(gang) => Err(Refusal::Held { name: name.clone(), gang: gang.name.clone() }),
            None => Ok(()),
        }
    }

    /// Begins the gang members whose begin time has come, and ends the held members whose lease has
    /// expired.
    pub(super) fn end_leases(&mut self, now: Time, world: &mut impl World) {
        let is_due = |entry: &Entry| entry.lease.is_some_and(|lease| lease.over() <= now);
        for name in self.book.oldest(is_due) {
            let Some(entry) = self.book.get_mut(&name) else { continue };
            match entry.lease.take() {
                Some(Lease::Ends(_)) => self.let_go(now, &name, world),
                _ => {
                    let (binding, user) = (entry.row.binding.clone(), entry.row.user);
                    entry.standing = Standing::Promised(Reason::Absent(binding.clone()));
                    self.appeared(now, (&binding, user), world);
                }
            }
        }
    }
}
