//! How far a sweep is.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::terminal;

/// How often it is drawn.
const EVERY: Duration = Duration::from_millis(200);

const WIDTH: usize = 30;

/// A bar on a terminal, from any thread; nothing where nobody watches.
pub(super) struct Bar {
    already: usize,
    of: usize,
    started: Instant,
    next: Mutex<Option<Instant>>,
}

impl Bar {
    /// Of so many runs so many were done before.
    pub(super) fn new(already: usize, of: usize) -> Bar {
        let next = io::stderr().is_terminal().then(Instant::now);
        Bar { already, of, started: Instant::now(), next: Mutex::new(next) }
    }

    /// So many more are done.
    pub(super) fn at(&self, runs: usize) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(due) = *next else { return };
        if Instant::now() >= due {
            *next = Some(Instant::now() + EVERY);
            terminal::tell(&format!("\r\x1b[K{}", self.line(runs, self.started.elapsed())));
        }
    }

    fn line(&self, runs: usize, took: Duration) -> String {
        let done = self.already + runs;
        let full = WIDTH * done / self.of.max(1);
        let (bar, rest) = ("#".repeat(full), ".".repeat(WIDTH - full));
        let mut text = format!("[{bar}{rest}] {done} of {} runs", self.of);
        if runs > 0 && done < self.of {
            let left = took.as_secs_f64() / runs as f64 * (self.of - done) as f64;
            let _ = match left {
                90.0.. => write!(text, ", about {:.0} min left", left / 60.0),
                _ => write!(text, ", about {left:.0} s left"),
            };
        }
        text
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.next.get_mut().unwrap_or_else(PoisonError::into_inner).is_some() {
            terminal::tell("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_what_was_done_before_and_reckons_with_what_was_done_since() {
        let bar = Bar::new(40, 100);
        let line = bar.line(10, Duration::from_secs(20));
        assert_eq!(line, "[###############...............] 50 of 100 runs, about 2 min left");
        assert!(bar.line(60, Duration::from_secs(20)).ends_with("] 100 of 100 runs"));
        assert!(bar.line(50, Duration::from_secs(5)).ends_with("90 of 100 runs, about 1 s left"));
    }
}
