//! Reports of the kernel that threads have exited. So a program that watches hundreds of threads
//! needs only one system call to learn that no thread has exited.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{Timespec, epoll};

use super::ThreadRef;
use crate::sys::Tid;

/// Maximum number of reports that are read at once. Further reports are read by the next call.
const AT_ONCE: usize = 256;

/// Set of threads whose exits the kernel reports.
#[derive(Debug)]
pub struct ThreadEnds {
    epoll: Arc<OwnedFd>,
}

/// Membership of a thread in [`ThreadEnds`]. The membership ends when this value is dropped.
#[derive(Debug)]
pub struct ReportedEnd {
    epoll: Arc<OwnedFd>,
    thread: ThreadRef,
}

impl ThreadEnds {
    /// Creates an empty set.
    ///
    /// # Errors
    /// If the process has no file descriptor left.
    pub fn new() -> io::Result<ThreadEnds> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(ThreadEnds { epoll: Arc::new(epoll) })
    }

    /// Adds a thread to the set. A thread that has exited already is reported too.
    ///
    /// # Errors
    /// `Unsupported` before Linux 6.9, where threads have no descriptors. `EEXIST` if the thread is
    /// in the set already.
    pub fn add(&self, thread: &ThreadRef) -> io::Result<ReportedEnd> {
        let end = thread.descriptor().pollable_by_itself();
        let end = end.ok_or(io::ErrorKind::Unsupported)?;
        let data = epoll::EventData::new_u64(u64::from(thread.tid().raw().unsigned_abs()));
        epoll::add(&self.epoll, end, data, epoll::EventFlags::IN)?;
        Ok(ReportedEnd { epoll: Arc::clone(&self.epoll), thread: thread.clone() })
    }

    /// Returns the threads of the set that have exited, at most 256 of them. A thread is returned
    /// by each call until it is removed from the set.
    #[must_use]
    pub fn exited(&self) -> Vec<Tid> {
        let mut events = Vec::with_capacity(AT_ONCE);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let room = rustix::buffer::spare_capacity(&mut events);
        // After an error the reports stay in the kernel, so the next call finds them.
        let _ = epoll::wait(&self.epoll, room, Some(&at_once));
        let tid = |event: &epoll::Event| Tid::new(i32::try_from(event.data.u64()).ok()?);
        events.iter().filter_map(tid).collect()
    }
}

impl Drop for ReportedEnd {
    fn drop(&mut self) {
        // Closing the descriptor is not enough, because other copies of it can be open.
        if let Some(end) = self.thread.descriptor().pollable_by_itself() {
            let _ = epoll::delete(&self.epoll, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> (Child, ThreadRef) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
        (child, ThreadRef::open(pid, pid).unwrap())
    }

    /// The killed process is not reaped before the end of the test, so it is a zombie.
    #[test]
    fn set_reports_exited_threads_until_they_are_removed() {
        let ends = ThreadEnds::new().unwrap();
        let ((mut first, one), (mut second, other)) = (sleeper(), sleeper());
        let added = ends.add(&one).and_then(|one| Ok((one, ends.add(&other)?)));
        match added {
            // Before Linux 6.9 no thread can be added.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
            Ok((reported, _other)) => {
                assert_eq!(ends.exited(), []);
                first.kill().unwrap();
                while ends.exited().is_empty() {
                    std::thread::yield_now();
                }
                assert_eq!(ends.exited(), [one.tid()]);
                drop(reported);
                assert_eq!(ends.exited(), []);
            }
        }
        for child in [&mut first, &mut second] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
