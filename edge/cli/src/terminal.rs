//! Properties of the terminal, and output to it.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackline_control::convert::is_unseen;
use slackline_experiments::grid::GridProgress;
use slackline_terminal::{Paint, shown};
use slackline_units::{Span, Time};

use crate::counted::counted;
use crate::folded::folded;
use crate::problem::Problem;

/// Returns the maximum width of tables, in columns.
pub(crate) fn width() -> usize {
    columns().unwrap_or(100)
}

/// Returns the width of standard output, limited to the widths that tables can have. The width is
/// the value of the environment variable `COLUMNS`, or else the width of the terminal. `None` if
/// the variable is not set and standard output is not a terminal.
pub(crate) fn columns() -> Option<usize> {
    Some(columns_of(io::stdout())?.clamp(NARROWEST, 140))
}

/// Minimum width of output, in columns.
const NARROWEST: usize = 40;

/// Returns the value of the environment variable `COLUMNS`, or else the width of the terminal
/// `out`. `None` if the variable is not set and `out` is not a terminal.
fn columns_of(out: impl std::os::fd::AsFd) -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|said| said.parse().ok());
    let seen = || rustix::termios::tcgetwinsize(out).map(|size| usize::from(size.ws_col));
    said.or_else(|| seen().ok()).filter(|&columns| columns > 0)
}

/// Returns the width of standard error: the value of the environment variable `COLUMNS`, or else
/// the width of the terminal. `None` if the variable is not set and standard error is not a
/// terminal.
pub(crate) fn told_columns() -> Option<usize> {
    columns_of(io::stderr())
}

/// Returns `Colour` if standard output is a terminal and the environment variable `NO_COLOR` is not
/// set (no-color.org).
pub(crate) fn paint() -> Paint {
    let is_welcome = std::env::var_os("NO_COLOR").is_none_or(|text| text.is_empty());
    if io::stdout().is_terminal() && is_welcome { Paint::Colour } else { Paint::Plain }
}

/// Prints text for users. Sentences that are too long for the terminal are wrapped. Tables must fit
/// already. Characters that a terminal obeys or does not show are replaced.
pub(crate) fn say(text: &str) -> Result<(), Problem> {
    let text = cleaned(text, (REDRAW, io::stdout().is_terminal()), paint());
    write(&fold(&text, columns_of(io::stdout())))
}

/// Sequence that overwrites the last line of a terminal, at the start of a text.
const REDRAW: &str = "\r\x1b[K";
/// Sequence that clears a terminal, at the start of a text.
pub(crate) const CLEAR: &str = "\x1b[H\x1b[J";

/// Replaces characters that a terminal obeys or does not show. The sequence `begin` at the start of
/// the text stays if the output is a terminal.
fn cleaned(text: &str, (begin, is_terminal): (&str, bool), paint: Paint) -> String {
    match text.strip_prefix(begin).filter(|_| is_terminal) {
        Some(rest) => format!("{begin}{}", shown(rest, paint)),
        None => shown(text, paint).into_owned(),
    }
}

fn fold(text: &str, columns: Option<usize>) -> String {
    columns.map_or_else(|| text.to_owned(), |columns| folded(text, columns.max(NARROWEST)))
}

/// Writes data to standard output. A pipe or file receives the exact text. For a terminal,
/// characters that it obeys or does not show are replaced.
pub(crate) fn print(text: &str) -> Result<(), Problem> {
    if io::stdout().is_terminal() {
        write(&cleaned(text, (CLEAR, true), paint()))
    } else {
        write(text)
    }
}

/// Writes to standard output. A closed pipe is no error, because its reader does not want more.
fn write(text: &str) -> Result<(), Problem> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Problem::Output(error)),
        _ => Ok(()),
    }
}

/// Writes to standard error. Characters that a terminal obeys or does not show are replaced. Errors
/// are ignored.
pub(crate) fn tell(text: &str) {
    let text = cleaned(text, (REDRAW, io::stderr().is_terminal()), Paint::Plain);
    let _ = io::stderr().write_all(fold(&text, told_columns()).as_bytes());
}

/// Returns text without control characters other than `allowed`, and without invisible characters.
/// Text of a file or of a daemon could otherwise move the cursor of a terminal, change its title or
/// reverse text.
pub(crate) fn printable(text: &str, allowed: &[char]) -> String {
    let is_plain =
        |letter: &char| !letter.is_control() && !is_unseen(*letter) || allowed.contains(letter);
    let shown = |letter: char| Some(letter).filter(is_plain).unwrap_or('\u{fffd}');
    text.chars().map(shown).collect()
}

/// Prints a problem and its hint.
pub(crate) fn report(problem: &Problem) {
    let plain = |text: String| printable(&text, &['\n', '\t']);
    match problem {
        Problem::ClaimsFailed(_)
        | Problem::ReplayDiffers
        | Problem::CommandEnded { .. }
        | Problem::Interrupted => {}
        Problem::Bug { kept, .. } => {
            tell(&plain(format!("bug: {problem}\n")));
            if let Some(kept) = kept {
                let kept = kept.display();
                tell(&format!(
                    "     trace saved in {kept}; please report this bug with the trace\n"
                ));
            }
        }
        _ => tell(&plain(format!("error: {problem}\n"))),
    }
    if let Some(hint) = problem.hint() {
        tell(&plain(format!("hint:  {hint}\n")));
    }
}

/// Time after which a long run begins to show progress.
const QUIET: Duration = Duration::from_secs(2);

/// Interval of progress updates.
const EVERY: Duration = Duration::from_millis(200);

/// Progress of a single run. It is shown if the run takes longer than two seconds and standard
/// error is a terminal.
pub(crate) struct Progress {
    what: String,
    length: Span,
    next: Option<Instant>,
    is_shown: bool,
}

impl Progress {
    pub(crate) fn new(what: &str, length: Span) -> Progress {
        let next = io::stderr().is_terminal().then(|| Instant::now() + QUIET);
        Progress { what: what.into(), length, next, is_shown: false }
    }

    pub(crate) fn at(&mut self, now: Time) {
        let Some(next) = self.next else { return };
        if Instant::now() < next {
            return;
        }
        self.next = Some(Instant::now() + EVERY);
        self.is_shown = true;
        let (done, all) = (now.since(Time::START), self.length);
        let second = Span::from_secs(1);
        tell(&format!("{REDRAW}{}: {} of {} s", self.what, done / second, all / second));
    }
}

/// Time until the first progress line on an output that is not a terminal. It is also the minimum
/// interval of further lines.
const FIRST_LINE: Duration = Duration::from_secs(2);
const BETWEEN_LINES: Duration = Duration::from_secs(20);

/// Progress of many runs, which any thread may report. It is shown if the runs take longer than two
/// seconds, with an estimate of the remaining time. On a terminal, one line is redrawn. Other
/// outputs get a new line at intervals.
pub(crate) struct Counter {
    what: String,
    /// Number of runs that were complete before this command started.
    before: usize,
    started: Instant,
    is_terminal: bool,
    shown: Mutex<(Instant, bool)>,
}

impl Counter {
    pub(crate) fn new(what: &str) -> Counter {
        Counter::with_done(what, 0)
    }

    /// Returns a counter for a command that continues a sweep with `before` complete runs.
    pub(crate) fn with_done(what: &str, before: usize) -> Counter {
        let (started, is_terminal) = (Instant::now(), io::stderr().is_terminal());
        let next = started + if is_terminal { QUIET } else { FIRST_LINE };
        Counter {
            what: what.into(),
            before,
            started,
            is_terminal,
            shown: Mutex::new((next, false)),
        }
    }

    /// Updates the number of complete runs.
    pub(crate) fn at(&self, done: GridProgress) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, is_shown) = &mut *shown;
        let now = Instant::now();
        if now < *next {
            return;
        }
        let line = self.line(done, now - self.started);
        *next = now + if self.is_terminal { EVERY } else { BETWEEN_LINES };
        *is_shown = true;
        match self.is_terminal {
            true => tell(&format!("{REDRAW}{line}")),
            false => tell(&format!("{line}\n")),
        }
    }

    fn line(&self, done: GridProgress, took: Duration) -> String {
        let (count, of) = (self.before + done.runs, self.before + done.of);
        let mut text = format!("{}: {count} of {}", self.what, counted(of, "run"));
        if done.runs > 0 && done.runs < done.of {
            let each = took.as_secs_f64() / done.runs as f64;
            text += &format!(", about {} left", rounded(each * (done.of - done.runs) as f64));
        }
        text
    }
}

/// Formats seconds in a suitable unit.
fn rounded(seconds: f64) -> String {
    match seconds {
        7_200.0.. => format!("{:.1} h", seconds / 3_600.0),
        90.0.. => format!("{:.0} min", seconds / 60.0),
        _ => format!("{seconds:.0} s"),
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let (_, is_shown) = *self.shown.get_mut().unwrap_or_else(PoisonError::into_inner);
        if is_shown && self.is_terminal {
            tell(REDRAW);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            tell(REDRAW);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redraw_sequence_is_kept_only_at_start_of_terminal_output() {
        let redrawn = "\r\x1b[Kweb\x1b[2J\u{61c}\n";
        let shown = |is_terminal| cleaned(redrawn, (REDRAW, is_terminal), Paint::Plain);
        assert_eq!(shown(true), "\r\x1b[Kweb\u{fffd}[2J\u{fffd}\n");
        assert_eq!(shown(false), "\u{fffd}\u{fffd}[Kweb\u{fffd}[2J\u{fffd}\n");
        assert_eq!(cleaned(CLEAR, (REDRAW, true), Paint::Colour).matches('\u{fffd}').count(), 2);
    }

    #[test]
    fn remaining_time_is_estimated_only_from_runs_of_current_command() {
        let counter = Counter::with_done("sweep", 40);
        let line =
            |runs, of, took| counter.line(GridProgress { runs, of }, Duration::from_secs(took));
        assert_eq!(line(10, 60, 20), "sweep: 50 of 100 runs, about 2 min left");
        assert_eq!(line(50, 60, 5), "sweep: 90 of 100 runs, about 1 s left");
        assert_eq!(line(1, 60, 600), "sweep: 41 of 100 runs, about 9.8 h left");
        assert_eq!(line(60, 60, 20), "sweep: 100 of 100 runs");
    }
}
