//! Measurement of the CPU time of a process, a thread or a cgroup. The measured program need not
//! cooperate. All mechanisms are measured by the same code.
//!
//! The measured value is the CPU time that the kernel's scheduler counts. The kernel's own limits
//! use the same count. The kernel updates this count when a thread leaves its CPU and at every tick
//! (1 to 10 ms). So the count of a single-threaded process is read while its thread is off the CPU.
//! A perf event shows when the thread is off the CPU. If perf events are not permitted, or if the
//! process has several threads, the count may be behind by up to a tick.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slackline_units::{Span, Time};
use thiserror::Error;

use slackline_linux::sys::{
    TaskClock, ThreadClock, Tid, monotonic, own_tid, process_cpu_time, thread_cpu_time,
};
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

/// Maximum wait until the measured thread is off its CPU. A thread whose CPU time is limited to 90
/// % can stay on its CPU for 100 ms without a break.
const PATIENCE: Span = Span::from_ms(120);
/// Interval at which the sampler checks whether the measured thread is off its CPU.
const LOOK: Duration = Duration::from_micros(50);

/// Measurement of the CPU time of one process, by samples.
#[derive(Debug)]
pub struct Sampler {
    pid: Tid,
    clocks: Clocks,
    at: Time,
    used: Span,
    /// Start of the measurement. Samples are due at `origin + asked`.
    origin: Time,
    /// Sum of the lengths of all samples requested so far.
    asked: Span,
}

#[derive(Debug)]
enum Clocks {
    /// A single thread: the scheduler's count of its CPU time, and a perf clock that shows whether
    /// the thread is on a CPU. The clock is `None` if perf events are not permitted.
    One(ThreadClock, Option<TaskClock>),
    /// A process with several threads.
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
        if threads_of(pid)?.len() == 1 {
            Sampler::of_thread(pid)
        } else {
            Sampler::with(pid, Clocks::Process)
        }
    }

    /// Starts the measurement of a single thread now.
    ///
    /// # Errors
    /// If the thread does not exist, or its CPU time cannot be read.
    pub fn of_thread(tid: Tid) -> Result<Sampler, SampleError> {
        let count = ThreadClock::open(tid);
        let count = count.map_err(|source| SampleError::Unreadable { pid: tid, source })?;
        Sampler::with(tid, Clocks::One(count, TaskClock::open(tid).ok()))
    }

    fn with(pid: Tid, clocks: Clocks) -> Result<Sampler, SampleError> {
        let (at, asked) = (monotonic(), Span::ZERO);
        let mut sampler = Sampler { pid, clocks, at, used: Span::ZERO, origin: at, asked };
        (sampler.at, sampler.used) = sampler.read()?;
        sampler.origin = sampler.at;
        Ok(sampler)
    }

    /// Returns true if readings are exact. Returns false if readings can be behind by up to a tick.
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

    /// Reads the perf clock of a single-threaded process. The clock advances only while the thread
    /// is on a CPU, so two equal readings mean that the thread is off the CPU. `None` if there is
    /// no such clock.
    fn on_cpu(&self) -> io::Result<Option<Span>> {
        match &self.clocks {
            Clocks::One(_, Some(clock)) => clock.read().map(Some),
            Clocks::One(_, None) | Clocks::Process => Ok(None),
        }
    }
}

/// Returns the CPU time of this process less the CPU time of the calling thread. So a thread that
/// only measures leaves out its own cost.
///
/// # Errors
/// If the kernel refuses to report the CPU time.
pub fn own_cpu_time() -> io::Result<Span> {
    let pid = i32::try_from(std::process::id()).ok().and_then(Tid::new);
    let all = process_cpu_time(pid.ok_or(io::ErrorKind::InvalidData)?)?;
    Ok(all.left_after(thread_cpu_time(own_tid())?))
}

/// Measurement of the CPU time of all processes in a cgroup, since the measurement was started.
///
/// The kernel counts this time in version 2 of cgroups, and in version 1 if the controllers `cpu`
/// and `cpuacct` are mounted together. Otherwise the CPU times of the member processes are added
/// up. A process that has ended then counts with its last reading.
#[derive(Debug)]
pub struct GroupMeter {
    group: PathBuf,
    /// CPU time of the cgroup at the start, as the kernel counts it. `None` if the kernel does not
    /// count the CPU time of this cgroup.
    counted: Option<Span>,
    /// CPU time of each process at the start, and at its last reading.
    members: BTreeMap<Tid, [Span; 2]>,
}

impl GroupMeter {
    /// Starts the measurement of the cgroup whose folder is `group`.
    #[must_use]
    pub fn start(group: &Path) -> GroupMeter {
        let counted = usage(group);
        let first = processes(group).into_iter();
        let first = first.map(|pid| {
            let used = process_cpu_time(pid).unwrap_or_default();
            (pid, [used, used])
        });
        GroupMeter { group: group.into(), counted, members: first.collect() }
    }

    /// Returns the CPU time that the processes of the cgroup have used since the start of the
    /// measurement.
    pub fn used(&mut self) -> Span {
        if let (Some(before), Some(now)) = (self.counted, usage(&self.group)) {
            return now.left_after(before);
        }
        for pid in processes(&self.group) {
            // A process that ended meanwhile keeps its last reading.
            let Ok(used) = process_cpu_time(pid) else { continue };
            let [_, last] = self.members.entry(pid).or_default();
            *last = used.max(*last);
        }
        let times = self.members.values();
        times.fold(Span::ZERO, |sum, [first, last]| sum + last.left_after(*first))
    }

    /// Returns the processes that are in the cgroup now.
    #[must_use]
    pub fn processes(&self) -> Vec<Tid> {
        processes(&self.group)
    }
}

fn processes(group: &Path) -> Vec<Tid> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter_map(Tid::new).collect()
}

/// Returns the CPU time of a cgroup as the kernel counts it. `None` if the kernel does not count
/// the CPU time of this cgroup.
fn usage(group: &Path) -> Option<Span> {
    if let Ok(text) = fs::read_to_string(group.join("cpu.stat"))
        && let Some(us) = text.lines().find_map(|line| line.strip_prefix("usage_usec "))
    {
        return us.trim().parse().ok().map(Span::from_us);
    }
    let ns = fs::read_to_string(group.join("cpuacct.usage")).ok()?;
    ns.trim().parse().ok().map(Span::from_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_process_share_is_cpu_time_over_elapsed_time() {
        let at = |ms| Time::START + Span::from_ms(ms);
        let sample = Sample { from: at(500), to: at(1504), used: Span::from_us(10_040) };
        assert_eq!(sample.share_ppm(), 10_000);
    }

    /// Uses an ordinary folder in place of a cgroup. The kernel counts no CPU time for the folder,
    /// so the CPU times of its members are added up. This test program is the only member.
    #[test]
    fn cgroup_meter_sums_cpu_time_of_members_since_start() {
        let folder = tempfile::TempDir::new().unwrap();
        let own = format!("{}\n", std::process::id());
        fs::write(folder.path().join("cgroup.procs"), own).unwrap();
        let mut meter = GroupMeter::start(folder.path());
        let began = meter.used();
        let mut sum = 0_u64;
        while meter.used() < began + Span::from_ms(20) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        // The CPU time of a process that has left the cgroup still counts.
        fs::write(folder.path().join("cgroup.procs"), "").unwrap();
        assert!(meter.used() >= began + Span::from_ms(20));
        assert!(meter.processes().is_empty());
        fs::write(folder.path().join("cpu.stat"), "usage_usec 70\nuser_usec 50\n").unwrap();
        let mut counted = GroupMeter::start(folder.path());
        fs::write(folder.path().join("cpu.stat"), "usage_usec 100\n").unwrap();
        assert_eq!(counted.used(), Span::from_us(30));
    }
}
