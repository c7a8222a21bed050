//! Pausing, resuming and releasing reservations.

use slackline_units::Time;

use crate::answer::Answer;
use crate::deed::Kind;
use crate::event::EventKind;
use crate::input::ClientRequest;
use crate::name::Name;
use crate::principal::Verb;
use crate::row::Row;
use crate::world::World;

use super::reserve::refusal;
use super::{ChangeOrigin, DoneChange, Replied, Service};

/// A request about one reservation, with the name of that reservation and the revision that it must
/// have. `None` if any revision is accepted.
type ForOne<'a> = (&'a ClientRequest, &'a Name, Option<u64>);

impl Service {
    pub(super) fn pause(
        &mut self,
        now: Time,
        (asked, name, revision): ForOne<'_>,
        world: &mut impl World,
    ) -> Replied {
        let before = self.expected(name, revision)?;
        if before.paused {
            return Ok(self.is_so(now, asked, before));
        }
        let seated = self.book.get(name).filter(|entry| entry.is_seated());
        if let Some(entry) = seated {
            let paused = world.pause(entry.domain);
            paused.map_err(|declined| refusal(declined, &before.terms, &before.binding))?;
        }
        Ok(self.set_paused(now, asked, name, true))
    }

    pub(super) fn resume(
        &mut self,
        now: Time,
        (asked, name, revision): ForOne<'_>,
        world: &mut impl World,
    ) -> Replied {
        let before = self.expected(name, revision)?;
        let Some(entry) = self.book.get_mut(name) else { return Ok(None) };
        let was_contested = entry.is_contested();
        if (before.paused || was_contested) && entry.is_seated() {
            let resumed = world.resume(entry.domain);
            resumed.map_err(|declined| refusal(declined, &before.terms, &before.binding))?;
            entry.contested.clear();
        }
        if !before.paused && !was_contested {
            return Ok(self.is_so(now, asked, before));
        }
        Ok(self.set_paused(now, asked, name, false))
    }

    fn set_paused(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        name: &Name,
        paused: bool,
    ) -> Option<Answer> {
        let revision = self.writer.number();
        let entry = self.book.get_mut(name)?;
        let before = entry.row.clone();
        entry.row.paused = paused;
        entry.row.revision = revision;
        let after = entry.row.clone();
        let verb = if paused { Verb::Pause } else { Verb::Resume };
        let happened = Some(EventKind::Asked(verb));
        let done = DoneChange { kind: Kind::Paused(paused), before: Some(before), after, happened };
        self.did(now, &ChangeOrigin::Asked(asked), done)
    }

    pub(super) fn release(
        &mut self,
        now: Time,
        (asked, name, revision): ForOne<'_>,
        world: &mut impl World,
    ) -> Replied {
        let before = self.expected(name, revision)?;
        self.let_go(now, name, world);
        let after = Row { revision: self.writer.number(), ..before.clone() };
        if asked.is_in_charge_of(&before) || self.raises.of(&before).is_empty() {
            self.keep_change(asked, before.clone(), None);
        } else if self.check_no_canary(asked).is_ok() {
            // The reservation that `undo` restores is a new one, for which no raise counts.
            self.drop_plan(asked.principal);
        }
        let happened = Some(EventKind::Asked(Verb::Release));
        let done = DoneChange { kind: Kind::Ended, before: Some(before), after, happened };
        Ok(self.did(now, &ChangeOrigin::Asked(asked), done))
    }

    /// Ends a reservation and frees its capacity.
    pub(super) fn let_go(&mut self, now: Time, name: &Name, world: &mut impl World) {
        let Some(entry) = self.book.remove(name) else { return };
        if !entry.is_out() {
            world.leave(entry.domain);
        }
        self.domains.leave(now, entry.domain);
        self.try_again = self.try_again.map(|_| now);
    }
}
