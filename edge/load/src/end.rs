//! End of a load, and waits that stop early when the load ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use slackline_units::Time;

use crate::LoadError;
use crate::clock::{monotonic, sleep_until};

/// Condition that ends all threads of a load. The load ends at a time, at a request from outside,
/// or when one of its threads ends it.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) at: Time,
    /// Descriptor that becomes readable when the load must end. `None` if the load cannot be ended
    /// from outside.
    stop: Option<OwnedFd>,
    /// Descriptor that hangs up when a thread has ended the load. `None` if no thread can end it.
    over: Option<OwnedFd>,
    hang_up: Mutex<Option<OwnedFd>>,
}

impl End {
    /// Creates a condition that ends the load only at the time `at`.
    pub(crate) fn at(at: Time) -> End {
        End { at, stop: None, over: None, hang_up: Mutex::new(None) }
    }

    /// Creates a condition that ends the load at the time `at`, when `stop` becomes readable, or
    /// when a thread calls [`End::is_here`].
    pub(crate) fn of_many(at: Time, stop: Option<OwnedFd>) -> Result<End, LoadError> {
        let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        let (over, hang_up) = pipe.map_err(|error| LoadError::Wait { source: error.into() })?;
        Ok(End { at, stop, over: Some(over), hang_up: Mutex::new(Some(hang_up)) })
    }

    /// Ends the load for all threads.
    pub(crate) fn is_here(&self) {
        drop(self.hang_up.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Returns true if the load is over.
    pub(crate) fn is_over(&self) -> Result<bool, LoadError> {
        if monotonic() >= self.at {
            return Ok(true);
        }
        if self.stop.is_none() && self.over.is_none() {
            return Ok(false);
        }
        self.poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
    }

    /// Sleeps until `wake`, or until the load is over if that is earlier. Returns true if the load
    /// is over.
    pub(crate) fn sleep_until(&self, wake: Time) -> Result<bool, LoadError> {
        if self.stop.is_none() && self.over.is_none() {
            sleep_until(wake.min(self.at))?;
            return Ok(monotonic() >= self.at);
        }
        self.wait(&mut [], wake)
    }

    /// Waits until one of the descriptors is ready, the time has passed or the load is over.
    /// Returns true if the load is over.
    pub(crate) fn wait<'a>(
        &'a self,
        fds: &mut [PollFd<'a>],
        until: Time,
    ) -> Result<bool, LoadError> {
        const SECOND: u64 = 1_000_000_000;
        loop {
            let now = monotonic();
            if now >= self.at {
                return Ok(true);
            }
            let until = until.min(self.at);
            let left = until.since(now).ns();
            let part =
                |number: u64| i64::try_from(number).expect("584 years in seconds fit an i64");
            let left = Timespec { tv_sec: part(left / SECOND), tv_nsec: part(left % SECOND) };
            if self.poll(fds, (until != Time::NEVER).then_some(&left))? {
                return Ok(true);
            }
            if fds.iter().any(|fd| !fd.revents().is_empty()) || monotonic() >= until {
                return Ok(monotonic() >= self.at);
            }
        }
    }

    /// Polls the given descriptors and the descriptors that end the load. Returns true if the load
    /// must end.
    fn poll<'a>(
        &'a self,
        fds: &mut [PollFd<'a>],
        left: Option<&Timespec>,
    ) -> Result<bool, LoadError> {
        let ends: [Option<BorrowedFd<'_>>; 2] =
            [self.stop.as_ref().map(AsFd::as_fd), self.over.as_ref().map(AsFd::as_fd)];
        let ends = ends.into_iter().flatten();
        let mut all: Vec<PollFd<'_>> = fds.to_vec();
        all.extend(ends.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
        match poll(&mut all, left) {
            Ok(_) => {}
            Err(Errno::INTR) => all.iter_mut().for_each(PollFd::clear_revents),
            Err(error) => return Err(LoadError::Wait { source: error.into() }),
        }
        let (given, ends) = all.split_at(fds.len());
        fds.clone_from_slice(given);
        Ok(ends.iter().any(|end| !end.revents().is_empty()))
    }
}
