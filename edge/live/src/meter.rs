//! Measurement of a process from outside: its CPU time in each second.
//!
//! The measure is the CPU time counted by the kernel's scheduler, which the kernel's own limits
//! use. That count is updated when a thread leaves its CPU and at every tick (1 to 10 ms). So the
//! count of a single-threaded process is read while the thread is off its CPU, as a perf event
//! shows. A reading may be late by up to a tick if perf events are not permitted, or if the process
//! has several threads.

use std::io;
use std::time::Duration;

use slackline_units::{Span, Time};
use thiserror::Error;

use slackline_linux::sys::{TaskClock, ThreadClock, Tid, monotonic, process_cpu_time};
use slackline_linux::thread::{ThreadError, threads_of};

/// Reason why a process cannot be measured, or can no longer be measured.
#[derive(Debug, Error)]
pub enum SampleError {
    /// The process does not exist.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The CPU time of the process cannot be read.
    #[error("cannot read the CPU time of process {pid}: {source}")]
    Unreadable {
        /// Process to be measured.
        pid: Tid,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// CPU time of a process between two points in time on `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Start of the interval.
    pub from: Time,
    /// End of the interval.
    pub to: Time,
    /// CPU time used in the interval.
    pub used: Span,
}

impl Sample {
    /// Returns the used share of one CPU, in millionths.
    #[must_use]
    pub fn share_ppm(&self) -> u64 {
        let elapsed = u128::from((self.to - self.from).ns().max(1));
        let ppm = u128::from(self.used.ns()) * 1_000_000 / elapsed;
        u64::try_from(ppm).unwrap_or(u64::MAX)
    }
}

/// Maximum wait until the measured thread is off its CPU. A thread limited to 90 % can stay on it
/// for slices of 100 ms.
const PATIENCE: Span = Span::from_ms(120);
/// Interval at which the sampler checks if the measured thread is off its CPU.
const LOOK: Duration = Duration::from_micros(50);

/// Measurement of the CPU time of one process, by samples.
#[derive(Debug)]
pub struct Sampler {
    pid: Tid,
    clocks: Clocks,
    at: Time,
    used: Span,
    /// Time at which the current interval was due to end. It advances by the requested lengths.
    origin: Time,
    asked: Span,
}

#[derive(Debug)]
enum Clocks {
    /// A single-threaded process: the scheduler's count of its CPU time, and a perf clock that
    /// shows if the thread is on a CPU. `None` if perf events are not permitted.
    One(ThreadClock, Option<TaskClock>),
    Process,
}

impl Sampler {
    /// Starts the measurement now.
    ///
    /// # Errors
    /// If the process does not exist, or its CPU time cannot be read.
    pub fn start(pid: i32) -> Result<Sampler, SampleError> {
        let pid = Tid::new(pid).ok_or_else(|| {
            let none = Tid::new(1).expect("1 is a valid process id");
            ThreadError::Gone { pid: none, tid: none }
        })?;
        let clocks = if threads_of(pid)?.len() == 1 {
            let count = ThreadClock::open(pid);
            let count = count.map_err(|source| SampleError::Unreadable { pid, source })?;
            Clocks::One(count, TaskClock::open(pid).ok())
        } else {
            Clocks::Process
        };
        let (at, asked) = (monotonic(), Span::ZERO);
        let mut sampler = Sampler { pid, clocks, at, used: Span::ZERO, origin: at, asked };
        (sampler.at, sampler.used) = sampler.read()?;
        sampler.origin = sampler.at;
        Ok(sampler)
    }

    /// Returns true if readings are exact. Otherwise readings can be late by up to a tick.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        matches!(self.clocks, Clocks::One(_, Some(_)))
    }

    /// Returns the CPU time used since the last sample, or since the start.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn sample(&mut self) -> Result<Sample, SampleError> {
        let (at, used) = self.read()?;
        let sample = Sample { from: self.at, to: at, used: used.left_after(self.used) };
        (self.at, self.used) = (at, used);
        Ok(sample)
    }

    /// Waits until the next sample is due, and takes it. A sample is due when the sum of all
    /// requested lengths has passed since the start, so a late sample does not delay later samples.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn after(&mut self, length: Span) -> Result<Sample, SampleError> {
        self.asked += length;
        let wait = self.origin.after(self.asked).since(monotonic());
        std::thread::sleep(Duration::from_nanos(wait.ns()));
        self.sample()
    }

    fn read(&self) -> Result<(Time, Span), SampleError> {
        let unreadable = |source| SampleError::Unreadable { pid: self.pid, source };
        let until = monotonic() + PATIENCE;
        loop {
            let (before, was_on) = (monotonic(), self.on_cpu().map_err(unreadable)?);
            let used = match &self.clocks {
                Clocks::One(count, _) => count.read(),
                Clocks::Process => process_cpu_time(self.pid),
            };
            let used = used.map_err(unreadable)?;
            let (is_on, after) = (self.on_cpu().map_err(unreadable)?, monotonic());
            if was_on == is_on || after >= until {
                return Ok((before.after((after - before) / 2), used));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Returns the perf clock of the only thread, which advances while the thread is on a CPU. Two
    /// equal readings mean that the thread is off its CPU. `None` if there is no such clock.
    fn on_cpu(&self) -> io::Result<Option<Span>> {
        match &self.clocks {
            Clocks::One(_, Some(clock)) => clock.read().map(Some),
            Clocks::One(_, None) | Clocks::Process => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_share_of_a_process_is_cpu_time_over_elapsed_time() {
        let at = |ms| Time::START + Span::from_ms(ms);
        let sample = Sample { from: at(500), to: at(1504), used: Span::from_us(10_040) };
        assert_eq!(sample.share_ppm(), 10_000);
    }
}
