//! Requests that show reservations.

use crate::answer::Answer;
use crate::book::Entry;
use crate::name::Name;
use crate::refusal::Refusal;

use super::Service;

impl Service {
    /// Lists the reservation `name`, or all reservations if `name` is `None`, with their present
    /// states.
    pub(super) fn list(&self, name: Option<&Name>) -> Result<Answer, Refusal> {
        let Some(name) = name else {
            return Ok(Answer::List(self.book.iter().map(Entry::listed).collect()));
        };
        let entry = self.book.get(name);
        let entry = entry.ok_or_else(|| Refusal::NoSuchReservation { name: name.clone() })?;
        Ok(Answer::List(vec![Entry::listed(entry)]))
    }
}
