//! What reading needs to know of the run.

use slackline_units::{Span, Time};

use crate::error::ErrorKind;
use crate::table::{Item, Mistake, Source};

/// What reading a domain needs to know of the run.
pub(crate) struct Run<'a> {
    pub(crate) source: &'a Source<'a>,
    pub(crate) load: &'a dyn Fn(&str) -> Result<String, String>,
    pub(crate) length: Span,
    /// How many CPUs the host has.
    pub(crate) cpus: usize,
    /// Whether anybody drives devices, and the name of who does.
    pub(crate) has_driver: bool,
    pub(crate) driver: Option<&'a str>,
}

impl Run<'_> {
    /// A time before the end of the run, as its distance from the start.
    pub(crate) fn time(&self, item: &Item<'_>) -> Result<Time, Mistake> {
        let span = item.span()?;
        if span >= self.length {
            let (written, length) = (item.written(), self.length);
            return Err(item.fault(ErrorKind::AfterTheEnd { written, length }));
        }
        Ok(Time::START + span)
    }
}
