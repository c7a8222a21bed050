//! Facts about the run that readers of tables need.

use slackline_units::{Span, Time};

use crate::error::ErrorKind;
use crate::recording::NamedFile;
use crate::table::{Item, Mistake, Source};

/// Function that returns a file by its path relative to the scenario, or the reason why it cannot
/// be read.
pub(crate) type Load<'a> = &'a dyn Fn(&str) -> NamedFile;

/// Facts about the run that the reader of a domain needs.
pub(crate) struct RunContext<'a> {
    pub(crate) source: &'a Source<'a>,
    pub(crate) load: Load<'a>,
    pub(crate) length: Span,
    /// Number of CPUs of the host.
    pub(crate) cpus: usize,
    /// True if a domain drives devices. The field `driver` then has the name of this domain.
    pub(crate) has_driver: bool,
    pub(crate) driver: Option<&'a str>,
}

impl RunContext<'_> {
    /// Reads a time of the run, written as a duration from the start. The time must be before the
    /// end of the run.
    pub(crate) fn time(&self, item: &Item<'_>) -> Result<Time, Mistake> {
        let span = item.span()?;
        if span >= self.length {
            let (written, length) = (item.written(), self.length);
            return Err(item.fault(ErrorKind::AfterTheEnd { written, length }));
        }
        Ok(Time::START + span)
    }
}
