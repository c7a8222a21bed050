//! What a process gets, measured from outside: its CPU time in each second.
//!
//! What counts is what the kernel's scheduler has counted, which is what its own limits go by. That
//! count is brought up to date when a thread leaves its CPU, and at every tick (1 to 10 ms). So of
//! a process of one thread it is read while the thread is off its CPU: a second clock, of perf
//! events, says whether it is. Where that is not permitted, or of a process of several threads, a
//! reading may be behind by up to a tick.

use std::io;
use std::time::Duration;

use slackline_units::{Span, Time};
use thiserror::Error;

use slackline_linux::sys::{TaskClock, ThreadClock, Tid, monotonic, process_cpu_time};
use slackline_linux::thread::{ThreadError, threads_of};

/// Why a process cannot be measured, or no longer.
#[derive(Debug, Error)]
pub enum SampleError {
    /// There is no such process.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// Its CPU time cannot be read.
    #[error("cannot read the CPU time of process {pid}: {source}")]
    Unreadable {
        /// The process.
        pid: Tid,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What a process used between two points in time, on `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// From when.
    pub from: Time,
    /// Until when.
    pub to: Time,
    /// CPU time used between the two.
    pub used: Span,
}

impl Sample {
    /// The share of one CPU that was used, in millionths.
    #[must_use]
    pub fn share_ppm(&self) -> u64 {
        let elapsed = u128::from((self.to - self.from).ns().max(1));
        let ppm = u128::from(self.used.ns()) * 1_000_000 / elapsed;
        u64::try_from(ppm).unwrap_or(u64::MAX)
    }
}

/// How long to wait for a thread to be off its CPU: it may be there nine tenths of the time, in
/// slices of a tenth of a second.
const PATIENCE: Span = Span::from_ms(120);
/// How often to look meanwhile.
const LOOK: Duration = Duration::from_micros(50);

/// Measures one process.
#[derive(Debug)]
pub struct Sampler {
    pid: Tid,
    clocks: Clocks,
    at: Time,
    used: Span,
    /// When it began, and how much of its time has been asked for.
    origin: Time,
    asked: Span,
}

#[derive(Debug)]
enum Clocks {
    /// Of the one thread: the scheduler's count, and the clock that says whether it runs.
    One(ThreadClock, Option<TaskClock>),
    Process,
}

impl Sampler {
    /// Begins now.
    ///
    /// # Errors
    /// When there is no such process, or its CPU time cannot be read.
    pub fn start(pid: i32) -> Result<Sampler, SampleError> {
        let pid = Tid::new(pid).ok_or_else(|| {
            let none = Tid::new(1).expect("above zero");
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

    /// Whether readings are exact, not behind by up to a tick.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        matches!(self.clocks, Clocks::One(_, Some(_)))
    }

    /// What was used since the last sample, or the start.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn sample(&mut self) -> Result<Sample, SampleError> {
        let (at, used) = self.read()?;
        let sample = Sample { from: self.at, to: at, used: used.left_after(self.used) };
        (self.at, self.used) = (at, used);
        Ok(sample)
    }

    /// Sleeps until all the lengths asked for so far have passed since the start, and takes the
    /// next sample: being late once makes no later one late.
    ///
    /// # Errors
    /// When the process is gone.
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

    /// How long the one thread has been on CPUs, running or not; the same twice if it is off.
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
    fn a_share_is_of_the_time_that_passed() {
        let at = |ms| Time::START + Span::from_ms(ms);
        let sample = Sample { from: at(500), to: at(1504), used: Span::from_us(10_040) };
        assert_eq!(sample.share_ppm(), 10_000);
    }
}
