//! Command `slackline top`, a screen with all VMs. Its numbers come from the daemon or from a
//! recording.

mod daemon;
mod ready;
mod recording;

use std::io::{IsTerminal, stdin, stdout};
use std::sync::mpsc::sync_channel;

use slackline_top::{Steering, View};
use slackline_units::Span;

use crate::problem::Problem;
use crate::service::args::TopArgs;
use crate::signals::stop_flag;

/// Minimum and maximum time between two updates of the screen.
const INTERVALS: (Span, Span) = (Span::from_ms(200), Span::from_secs(60));

/// Maximum number of snapshots that wait to be drawn. A source that is faster than the terminal has
/// to wait.
const QUEUED: usize = 2;

pub(crate) fn top(args: &TopArgs) -> Result<(), Problem> {
    if args.interval < INTERVALS.0 || args.interval > INTERVALS.1 {
        return Err(Problem::BadOption {
            message: format!(
                "cannot update every {}: the interval is from {} to {}",
                args.interval, INTERVALS.0, INTERVALS.1
            ),
            hint: Some("leave out --interval for the default of one second".into()),
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
    // This ends a source that waits for the screen.
    drop(updates);
    let ended = source.join();
    shown.map_err(|source| Problem::Unwritable { file: "the terminal".into(), source })?;
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
