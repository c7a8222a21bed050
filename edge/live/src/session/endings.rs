//! Who has ended, as far as the kernel tells it: nobody is asked one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::event::{Timespec, epoll};

use super::ids::JoinId;
use super::request::Row;

/// So much news is taken in at once; the rest stays for the next time.
const AT_ONCE: usize = 256;

/// Everybody whose end is to be heard of.
#[derive(Debug)]
pub(super) struct Endings {
    epoll: OwnedFd,
    /// By the numbers of their joins, which is what the kernel is given.
    told: BTreeMap<u64, (JoinId, Told)>,
    /// Of these the kernel tells nothing; or they have just come, and may have ended before that.
    asked: BTreeSet<JoinId>,
    doubted: BTreeSet<JoinId>,
}

/// What tells of one.
#[derive(Debug)]
enum Told {
    /// The threads, each by a descriptor of our own: others may be closed later than they go.
    Threads(Vec<OwnedFd>),
    /// The `cgroup.events` of the group of a tree.
    Tree(File),
}

impl Endings {
    pub(super) fn new() -> io::Result<Endings> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (told, asked, doubted) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Ok(Endings { epoll, told, asked, doubted })
    }

    /// The end of somebody is heard of from now on.
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

    fn tell(&self, id: JoinId, row: &Row) -> io::Result<Told> {
        let news = |flags| (epoll::EventData::new_u64(id.join()), flags);
        if let Some(tree) = &row.tree {
            let events = File::open(tree.place().events())?;
            let (data, flags) = news(epoll::EventFlags::PRI);
            epoll::add(&self.epoll, &events, data, flags)?;
            return Ok(Told::Tree(events));
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
        Ok(Told::Threads(ends))
    }

    /// Closing them does not suffice: what they stand for is open elsewhere too.
    fn forget(&self, threads: &[OwnedFd]) {
        for thread in threads {
            // It is there, or it was never to be.
            let _ = epoll::delete(&self.epoll, thread);
        }
    }

    /// Nobody wants to know of this one any more.
    pub(super) fn remove(&mut self, id: JoinId) {
        if let Some((_, Told::Threads(threads))) = self.told.remove(&id.join()) {
            self.forget(&threads);
        }
        self.asked.remove(&id);
        self.doubted.remove(&id);
    }

    /// This one is to be asked, too, at the next look.
    pub(super) fn doubt(&mut self, id: JoinId) {
        self.doubted.insert(id);
    }

    /// Who may have ended since the last look.
    pub(super) fn news(&mut self) -> BTreeSet<JoinId> {
        let mut found = std::mem::take(&mut self.doubted);
        found.extend(&self.asked);
        let mut events = Vec::with_capacity(AT_ONCE);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let room = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.epoll, room, Some(&at_once)).is_err() {
            // Nothing is lost: what is to be told stays.
            return found;
        }
        for event in events {
            let Some((id, told)) = self.told.get(&event.data.u64()) else { continue };
            // A group has other news, too; that it was read is what takes it away.
            if !matches!(told, Told::Tree(events) if is_populated(events)) {
                found.insert(*id);
            }
        }
        found
    }
}

fn is_populated(events: &File) -> bool {
    // Two lines of a word and a digit each, and whatever a later kernel adds.
    let mut text = [0; 512];
    let length = events.read_at(&mut text, 0).unwrap_or(0);
    text[..length].split(|&byte| byte == b'\n').any(|line| line == b"populated 1")
}
