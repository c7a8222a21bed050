//! The files that somebody wants of a run, and its numbers for people.

use slackline_runs::{Kept, Numbers, Wanted};
use slackline_show::{summary, xenmon};

use crate::args::Keeping;
use crate::pending::{Out, Pending};
use crate::places::Places;
use crate::problem::Problem;
use crate::terminal;

/// Files of a run that are not whole yet.
pub(crate) struct Files {
    trace: Option<Pending>,
    perfetto: Option<Pending>,
}

impl Files {
    /// Begins those that are wanted.
    pub(crate) fn begin(keeping: &Keeping) -> Result<(Files, Wanted<Out>), Problem> {
        let (trace, to_trace) = keeping.save.as_deref().map(Pending::new).transpose()?.unzip();
        let (perfetto, to_perfetto) =
            keeping.perfetto.as_deref().map(Pending::new).transpose()?.unzip();
        let wanted = Wanted { trace: to_trace, perfetto: to_perfetto, xenmon: keeping.xenmon };
        Ok((Files { trace, perfetto }, wanted))
    }

    /// Gives them their names once they are whole; returns the numbers.
    pub(crate) fn keep(self, kept: Kept) -> Result<Numbers, Problem> {
        if let Some((pending, written)) = self.trace.zip(kept.trace) {
            pending.keep(written)?;
        }
        if let Some((pending, written)) = self.perfetto.zip(kept.perfetto) {
            pending.keep(written)?;
        }
        kept.numbers.map_err(Problem::of_stray)
    }
}

impl Keeping {
    /// The files that are wanted.
    pub(crate) fn places(&self) -> Result<Places, Problem> {
        Places::of(&[("--save", self.save.as_deref()), ("--perfetto", self.perfetto.as_deref())])
    }
}

/// The tables.
pub(crate) fn tables(numbers: &Numbers) -> String {
    let (width, paint) = (terminal::width(), terminal::paint());
    let mut text = summary(&numbers.summary, width, paint);
    if let Some(metrics) = &numbers.xenmon {
        text.push('\n');
        text += &xenmon(metrics, width, paint);
    }
    text
}
