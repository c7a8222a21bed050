//! Changes of the terms of a reservation.

use slackline_units::Time;

use crate::book::Standing;
use crate::deed::Kind;
use crate::event::EventKind;
use crate::input::ClientRequest;
use crate::machine::Seats;
use crate::mechanism::WantedMechanism;
use crate::name::Name;
use crate::principal::Verb;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::row::{Reason, Row};
use crate::terms::{Terms, TermsChange};
use crate::world::World;

use super::reserve::{check_end, check_run, join, refusal};
use super::{ChangeOrigin, DoneChange, Replied, Service};

impl Service {
    pub(super) fn change(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        world: &mut impl World,
    ) -> Replied {
        let Request::Change { name, why, if_revision, .. } = &asked.request else {
            return Ok(None);
        };
        let before = self.expected(name, *if_revision)?;
        let Request::Change { amount, exact, phase, vcpus, until, enforce, .. } = &asked.request
        else {
            return Ok(None);
        };
        let (amount, exact, phase) = (*amount, *exact, *phase);
        let (vcpus, until) = (*vcpus, *until);
        let enforce = enforce.map(WantedMechanism::by);
        let change = TermsChange { amount, exact, phase, vcpus, until, enforce };
        let terms = change.of(before.terms).map_err(Refusal::Terms)?;
        if terms == before.terms {
            return Ok(self.is_so(now, asked, before));
        }
        if terms.until() != before.terms.until() {
            check_end(terms.until(), now, world)?;
        }
        check_run(asked, Some(before.terms), terms)?;
        self.afford_change(asked, &before, terms)?;
        self.check_vcpus(asked, (&before.name, before.owner), terms)?;
        if let Some(why) = self.writer.failing().filter(|_| !terms.is_within(before.terms)) {
            return Err(Refusal::NotDurable { why: why.to_owned() });
        }
        self.enforce(name, terms, world)?;
        self.note_raise(asked, &before, terms);
        let Some(entry) = self.book.get_mut(name) else { return Ok(None) };
        entry.row.revision = self.writer.number();
        let after = entry.row.clone();
        self.domains.promised(entry.domain, terms.each().period());
        self.try_again = self.try_again.map(|_| now);
        self.keep_change(asked, before.clone(), Some(after.clone()));
        let explained = why.clone().map(EventKind::Explained);
        let happened = explained.or(Some(EventKind::Asked(Verb::Change)));
        let done = DoneChange { kind: Kind::Terms(change), before: Some(before), after, happened };
        Ok(self.did(now, &ChangeOrigin::Asked(asked), done))
    }

    /// Returns the row of a reservation that a request wants to change.
    ///
    /// # Errors
    /// If no reservation has this name, if the reservation is held for a gang, or if its revision
    /// differs from the revision in the request.
    pub(super) fn expected(&self, name: &Name, revision: Option<u64>) -> Result<Row, Refusal> {
        let unknown = || Refusal::NoSuchReservation { name: name.clone() };
        let row = self.book.row(name).ok_or_else(unknown)?;
        self.check_lent(name)?;
        match revision {
            Some(asked) if asked != row.revision => {
                Err(Refusal::Stale { name: name.clone(), asked, is: row.revision })
            }
            _ => Ok(row.clone()),
        }
    }

    /// Gives a reservation new terms in the scheduler.
    pub(super) fn enforce(
        &mut self,
        name: &Name,
        terms: Terms,
        world: &mut impl World,
    ) -> Result<(), Refusal> {
        let unknown = || Refusal::NoSuchReservation { name: name.clone() };
        let entry = self.book.get_mut(name).ok_or_else(unknown)?;
        if terms.is_enforced_as(entry.row.terms) {
            entry.row.terms = terms;
            return Ok(());
        }
        let (domain, binding) = (entry.domain, entry.row.binding.clone());
        let declined = |declined| refusal(declined, &terms, &binding);
        if entry.is_out() {
            let row = Row { terms, ..entry.row.clone() };
            join(world, domain, &row, None).map_err(declined)?;
            entry.stand(Standing::Promised(Reason::Absent(binding)));
        } else {
            world.change(domain, &terms).map_err(declined)?;
        }
        let is_resized = terms.vcpus() != entry.row.terms.vcpus();
        entry.row.terms = terms;
        if let Standing::Seated { machine, seats } = &mut entry.standing
            && is_resized
        {
            seats.vcpus.resize(usize::from(terms.vcpus()), None);
            let filled = Seats::fill(machine, terms.vcpus(), &seats.vcpus);
            entry.contested.retain(|place, _| *place < terms.vcpus());
            // vCPUs that cannot be placed continue to run as ordinary threads. The state of the
            // reservation is then partial.
            entry.not_seated = None;
            if filled != *seats {
                match world.seat(domain, &filled) {
                    Ok(()) => *seats = filled,
                    Err(declined) => entry.not_seated = Some(declined.to_string()),
                }
            }
        }
        Ok(())
    }
}
