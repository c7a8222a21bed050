//! `slackline top`: a screen of all VMs, from the daemon or from a recording.

mod daemon;
mod recording;

use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser as _;
use slackline_top::{SortKey, Steering, View};
use slackline_units::Span;

use crate::input::file;
use crate::parse::span;
use crate::problem::Problem;
use crate::service::args::At;
use crate::signals::stop_flag;

/// Show all VMs on a screen that is drawn again as their numbers change.
///
/// Without a file the daemon is asked each second: CPU time reserved and used, CPU ready, missed
/// deadlines, and the culprit of the selected VM's waiting time. With a file, a recording, an
/// incident or any saved trace is played, with XenMon's columns for each vCPU.
///
/// Keys: `q` quit, `s` sort by the next column, `/` show only names with a text, arrows select a
/// row, Enter shows who kept the selected VM from running, Space pauses, `+` and `-` play a
/// recording faster and slower.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Recording, incident or trace to play [default: ask the daemon].
    #[arg(value_parser = file)]
    file: Option<PathBuf>,
    /// Time between two updates, from 200ms to 1min.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = span)]
    interval: Span,
    /// Order of the rows.
    #[arg(long, value_name = "COLUMN", default_value = "missed", value_parser = sort_key())]
    sort: SortKey,
    #[command(flatten)]
    at: At,
}

fn sort_key() -> impl clap::builder::TypedValueParser<Value = SortKey> {
    PossibleValuesParser::new(SortKey::ALL.map(SortKey::word))
        .map(|word| SortKey::ALL.into_iter().find(|key| key.word() == word).unwrap_or_default())
}

/// Shortest and longest time between two updates.
const INTERVALS: (Span, Span) = (Span::from_ms(200), Span::from_secs(60));

/// Snapshots that wait to be drawn. A source that is faster than the terminal waits.
const QUEUED: usize = 2;

pub(crate) fn top(args: &Top) -> Result<(), Problem> {
    if args.interval < INTERVALS.0 || args.interval > INTERVALS.1 {
        return Err(Problem::BadOption {
            message: format!(
                "cannot update every {}: the interval is from {} to {}",
                args.interval, INTERVALS.0, INTERVALS.1
            ),
            hint: Some("leave out --interval for one second".into()),
        });
    }
    if args.at.json || !stdout().is_terminal() || !stdin().is_terminal() {
        return Err(Problem::BadOption {
            message: "cannot draw the screen: standard input and output are not a terminal".into(),
            hint: Some(
                "`slackline list --json` and `slackline show FILE --json` print the numbers once"
                    .into(),
            ),
        });
    }
    let stop = stop_flag()?;
    let steering = Steering::default();
    let (sender, updates) = sync_channel(QUEUED);
    let source = {
        let (steering, interval) = (steering.clone(), args.interval);
        match &args.file {
            Some(file) => recording::play(file, interval, steering, sender)?,
            None => daemon::ask(&args.at, interval, steering, sender)?,
        }
    };
    let view = View { sort: args.sort, ..View::default() };
    let shown = slackline_top::run(&updates, &steering, view, &stop);
    // A source that waits for the screen ends.
    drop(updates);
    let ended = source.join();
    shown.map_err(|source| Problem::Unwritable { file: "the terminal".into(), source })?;
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
