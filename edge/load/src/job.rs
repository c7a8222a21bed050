//! Finished jobs, and how they travel.
//!
//! A record is three numbers of eight bytes each, little-endian: when the job was released, when it
//! was due (all ones for no deadline), and when it was done, in nanoseconds of `CLOCK_MONOTONIC`. A
//! pipe takes a record whole or not at all, because it is smaller than `PIPE_BUF`.

use std::env;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;
use slackline_units::Time;

use crate::LoadError;

/// The environment variable that says on which file descriptor finished jobs are reported.
pub const JOBS_FD: &str = "SLACKLINE_JOBS_FD";

const RECORD: usize = 24;

/// A finished job. Times are on `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// When it could first be worked on.
    pub released: Time,
    /// When it was due; none without a deadline.
    pub deadline: Option<Time>,
    /// When it was done.
    pub done: Time,
}

impl Job {
    fn to_bytes(self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        let times = [self.released, self.deadline.unwrap_or(Time::NEVER), self.done];
        for (field, time) in bytes.as_chunks_mut().0.iter_mut().zip(times) {
            *field = time.ns().to_le_bytes();
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; RECORD]) -> Job {
        let fields = bytes.as_chunks().0;
        let [released, deadline, done] =
            [0, 1, 2].map(|at: usize| Time::from_ns(u64::from_le_bytes(fields[at])));
        let deadline = (deadline != Time::NEVER).then_some(deadline);
        Job { released, deadline, done }
    }
}

/// Makes jobs of the bytes that come out of a load process, however they are cut up.
#[derive(Clone, Debug, Default)]
pub struct JobReader {
    /// The beginning of a record whose end has not come yet.
    begun: Vec<u8>,
}

impl JobReader {
    /// The jobs whose last bytes these are, in the order in which they were done.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Job> {
        self.begun.extend_from_slice(bytes);
        let (records, rest) = self.begun.as_chunks();
        let (jobs, rest) = (records.iter().map(Job::from_bytes).collect(), rest.to_vec());
        self.begun = rest;
        jobs
    }

    /// Whether the bytes so far end in the middle of a record. Where nothing more comes, that one
    /// is lost.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        !self.begun.is_empty()
    }
}

/// An open file descriptor of this process, opened once more for reporting jobs: what is done to
/// this one, such as not waiting, is not done to whoever shares the other.
///
/// # Errors
/// When there is no such descriptor, or it cannot be opened for writing: sockets cannot.
pub fn jobs_on(fd: u32) -> Result<OwnedFd, LoadError> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(format!("/proc/self/fd/{fd}"), flags, Mode::empty())
        .map_err(|error| LoadError::NotWritable { fd, source: error.into() })
}

/// Where the environment says that jobs are to be reported, opened; none where it says nothing.
///
/// # Errors
/// When it says something that is not understood, and those of [`jobs_on`].
pub fn jobs_from_environment() -> Result<Option<OwnedFd>, LoadError> {
    let Some(text) = env::var_os(JOBS_FD) else { return Ok(None) };
    let fd = text.to_str().and_then(|text| text.parse().ok());
    let none = || LoadError::NoDescriptor { text: text.to_string_lossy().into_owned() };
    fd.ok_or_else(none).and_then(jobs_on).map(Some)
}

/// Reports jobs, and counts them.
#[derive(Debug)]
pub(crate) struct Reporter {
    to: Option<OwnedFd>,
    pub(crate) done: u64,
    pub(crate) dropped: u64,
}

impl Reporter {
    pub(crate) fn new(to: Option<OwnedFd>) -> Result<Reporter, LoadError> {
        if let Some(to) = &to {
            fcntl_getfl(to)
                .and_then(|flags| fcntl_setfl(to, flags | OFlags::NONBLOCK))
                .map_err(|error| LoadError::Report { source: error.into() })?;
        }
        Ok(Reporter { to, done: 0, dropped: 0 })
    }

    /// Never waits. A full pipe, or one that nobody reads any more, costs the record only.
    pub(crate) fn report(&mut self, job: &Job) -> Result<(), LoadError> {
        self.done += 1;
        let Some(to) = &self.to else { return Ok(()) };
        loop {
            match rustix::io::write(to, &job.to_bytes()) {
                Ok(RECORD) => return Ok(()),
                Ok(taken) => return Err(LoadError::Torn { taken }),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::PIPE) => {
                    self.dropped += 1;
                    return Ok(());
                }
                Err(error) => return Err(LoadError::Report { source: error.into() }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u64) -> Job {
        let at = |ns| Time::from_ns(number * 1_000_000_007 + ns);
        Job { released: at(1), deadline: number.is_multiple_of(2).then(|| at(2)), done: at(3) }
    }

    #[test]
    fn records_may_be_cut_anywhere() {
        let jobs: Vec<Job> = (0..5).map(job).collect();
        let bytes: Vec<u8> = jobs.iter().flat_map(|job| job.to_bytes()).collect();
        for length in [1, 7, 23, 24, 25, 120] {
            let mut reader = JobReader::default();
            let read: Vec<Job> = bytes.chunks(length).flat_map(|cut| reader.take(cut)).collect();
            assert_eq!(read, jobs, "cut every {length} bytes");
            assert!(!reader.is_torn());
        }
    }

    #[test]
    fn a_record_is_little_endian_and_no_deadline_is_all_ones() {
        let job = Job { released: Time::from_ns(0x0102), deadline: None, done: Time::from_ns(3) };
        let mut expected = [0; 24];
        expected[..2].copy_from_slice(&[2, 1]);
        expected[8..16].fill(0xff);
        expected[16] = 3;
        assert_eq!(job.to_bytes(), expected);
    }

    #[test]
    fn the_end_of_a_record_that_never_comes_is_noticed() {
        let mut reader = JobReader::default();
        assert_eq!(reader.take(&job(1).to_bytes()[..20]), []);
        assert!(reader.is_torn());
    }
}
