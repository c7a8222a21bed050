//! Cost of a simulation in time and memory. The cost differs from run to run, so it is printed
//! separately from the results.

use std::fmt;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Start of a cost measurement: the time on the host's clock, and the CPU time of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostStart {
    at: Instant,
    cpu: Duration,
}

impl CostStart {
    pub(crate) fn now() -> CostStart {
        CostStart { at: Instant::now(), cpu: cpu_time() }
    }
}

/// Returns the CPU time that all threads of this process have used.
fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(used).expect("CPU time is not negative")
}

/// CPU time, events and memory of a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) took: Duration,
    /// CPU time of all threads.
    pub(crate) cpu: Duration,
    /// Number of simulated events.
    pub(crate) events: u64,
    /// Peak memory of this process in KiB. `None` if the kernel does not report it.
    pub(crate) peak_kib: Option<u64>,
}

impl Cost {
    /// Returns the cost of a simulation that began at `started`.
    pub(crate) fn since(started: CostStart, events: u64) -> Cost {
        let cpu = cpu_time().saturating_sub(started.cpu);
        Cost { took: started.at.elapsed(), cpu, events, peak_kib: peak() }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cpu, took) = (self.cpu.as_secs_f64(), self.took.as_secs_f64());
        let rate = self.events as f64 / cpu.max(1e-6) / 1e6;
        write!(out, "{} events in {cpu:.2} s of CPU time, ", self.events)?;
        write!(out, "{rate:.2} million events per second of CPU time; run took {took:.2} s")?;
        match self.peak_kib {
            Some(kib) => write!(out, ", peak memory {} MiB", kib.div_ceil(1024)),
            None => Ok(()),
        }
    }
}

/// Returns the peak memory of this process in KiB. `None` if the kernel does not report it.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.split_whitespace().next()?.parse().ok()
}
