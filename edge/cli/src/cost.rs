//! What simulating took: another number each time, so it is told only beside the results.

use std::fmt;
use std::time::{Duration, Instant};

/// Time, events and memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) took: Duration,
    /// How many events were simulated.
    pub(crate) events: u64,
    /// The most memory that this process had at once; none where nobody says.
    pub(crate) peak_kib: Option<u64>,
}

impl Cost {
    /// Of what was simulated since then.
    pub(crate) fn since(started: Instant, events: u64) -> Cost {
        Cost { took: started.elapsed(), events, peak_kib: peak() }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        let rate = self.events as f64 / seconds.max(1e-6) / 1e6;
        write!(out, "{} events in {seconds:.2} s, {rate:.2} million per second", self.events)?;
        match self.peak_kib {
            Some(kib) => write!(out, ", peak memory {} MiB", kib.div_ceil(1024)),
            None => Ok(()),
        }
    }
}

fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.split_whitespace().next()?.parse().ok()
}
