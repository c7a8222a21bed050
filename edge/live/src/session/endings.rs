//! Detection of members that have ended. The kernel reports the end of most members, so only the
//! other members are checked one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::event::{Timespec, epoll};

use super::ids::JoinId;
use super::request::Row;

/// Maximum number of end reports that are read at once. Further reports are read in the next call.
const AT_ONCE: usize = 256;

/// Members whose end is detected.
#[derive(Debug)]
pub(super) struct Endings {
    epoll: OwnedFd,
    /// Members whose end the kernel reports. The key is the member's join number, which the
    /// member's epoll events contain too.
    told: BTreeMap<u64, (JoinId, EndSource)>,
    /// Members whose end the kernel cannot report. Each call of [`news`](Endings::news) returns
    /// these members, so that the caller checks them.
    asked: BTreeSet<JoinId>,
    /// Members that the next call of [`news`](Endings::news) returns in any case. New members are
    /// among them, since they may have ended before the kernel was asked to report the end.
    doubted: BTreeSet<JoinId>,
}

/// Files or descriptors by which the kernel reports that a member has ended.
#[derive(Debug)]
enum EndSource {
    /// Descriptors of the member's threads. They are copies, because the originals may be closed
    /// when the member has left.
    Threads(Vec<OwnedFd>),
    /// File `cgroup.events` of the cgroup of a process tree.
    Tree(File),
}

impl Endings {
    pub(super) fn new() -> io::Result<Endings> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (told, asked, doubted) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Ok(Endings { epoll, told, asked, doubted })
    }

    /// Starts watching for the end of a member.
    pub(super) fn add(&mut self, id: JoinId, row: &Row) {
        if row.is_nobody() {
            return;
        }
        match self.tell(id, row) {
            Ok(told) => {
                self.told.insert(id.join(), (id, told));
                self.doubted.insert(id);
            }
            Err(_) => drop(self.asked.insert(id)),
        }
    }

    /// Asks the kernel to report the end of a member.
    ///
    /// # Errors
    /// If the kernel cannot report the end, for example because it has no pidfds for threads.
    fn tell(&self, id: JoinId, row: &Row) -> io::Result<EndSource> {
        let news = |flags| (epoll::EventData::new_u64(id.join()), flags);
        if let Some(tree) = &row.tree {
            let events = File::open(tree.place().events())?;
            let (data, flags) = news(epoll::EventFlags::PRI);
            epoll::add(&self.epoll, &events, data, flags)?;
            return Ok(EndSource::Tree(events));
        }
        let ends = row.threads.iter().map(|thread| {
            let end = thread.descriptor().pollable_by_itself();
            end.ok_or(io::ErrorKind::Unsupported)?.try_clone_to_owned()
        });
        let ends: Vec<OwnedFd> = ends.collect::<io::Result<_>>()?;
        for (done, end) in ends.iter().enumerate() {
            let (data, flags) = news(epoll::EventFlags::IN);
            if let Err(error) = epoll::add(&self.epoll, end, data, flags) {
                self.forget(&ends[..done]);
                return Err(error.into());
            }
        }
        Ok(EndSource::Threads(ends))
    }

    /// Removes the descriptors of threads from epoll. Closing the descriptors is not enough, since
    /// other copies of them are open.
    fn forget(&self, threads: &[OwnedFd]) {
        for thread in threads {
            // An error means that the descriptor was never added.
            let _ = epoll::delete(&self.epoll, thread);
        }
    }

    /// Stops the detection of a member's end.
    pub(super) fn remove(&mut self, id: JoinId) {
        if let Some((_, EndSource::Threads(threads))) = self.told.remove(&id.join()) {
            self.forget(&threads);
        }
        self.asked.remove(&id);
        self.doubted.remove(&id);
    }

    /// Makes the next call of [`news`](Endings::news) return this member.
    pub(super) fn doubt(&mut self, id: JoinId) {
        self.doubted.insert(id);
    }

    /// Returns the members that may have ended since the last call, so that the caller checks them.
    pub(super) fn news(&mut self) -> BTreeSet<JoinId> {
        let mut found = std::mem::take(&mut self.doubted);
        found.extend(&self.asked);
        let mut events = Vec::with_capacity(AT_ONCE);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let room = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.epoll, room, Some(&at_once)).is_err() {
            // The reports stay in the kernel, so the next call finds them.
            return found;
        }
        for event in events {
            let Some((id, told)) = self.told.get(&event.data.u64()) else { continue };
            // A cgroup reports other events too. Reading the file clears the report.
            if !matches!(told, EndSource::Tree(events) if is_populated(events)) {
                found.insert(*id);
            }
        }
        found
    }
}

fn is_populated(events: &File) -> bool {
    // The file has two lines of a word and a digit each. Later kernels may add lines.
    let mut text = [0; 512];
    let length = events.read_at(&mut text, 0).unwrap_or(0);
    text[..length].split(|&byte| byte == b'\n').any(|line| line == b"populated 1")
}
