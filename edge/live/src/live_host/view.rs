//! What is seen of one CPU: its events, who of those in them is ours, and what the events of other
//! CPUs say of those who are kept here. Nothing of this needs the host: each CPU has its own lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackline_units::{CpuId, Span, Time, VcpuId};

use super::LiveHostError;
use crate::vcpu_threads::WatchedThread;
use crate::watch::{EventSource, What};
use slackline_linux::sys::Tid;

/// What is seen of one CPU.
pub(super) struct CpuView {
    /// Its number among the managed CPUs, if it is one of them.
    cpu: Option<CpuId>,
    seen: Mutex<Seen>,
    /// Wakes that other CPUs carried out of threads that are kept here.
    inbox: Mutex<Vec<Sighting>>,
    round: AtomicU64,
}

struct Seen {
    source: Box<dyn EventSource>,
    threads: HashMap<Tid, Arc<WatchedThread>>,
}

/// An event of a thread of ours.
#[derive(Clone, Debug)]
pub(super) struct Sighting {
    /// On the monotonic clock.
    pub(super) at: Time,
    pub(super) thread: Arc<WatchedThread>,
    pub(super) what: What,
}

/// What one look at a CPU brought.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The managed CPU that it is of, if it is one of them.
    pub(super) cpu: Option<CpuId>,
    /// By time.
    pub(super) sightings: Vec<Sighting>,
    /// CPU time that the kernel has counted since it was last asked.
    pub(super) used: Vec<(VcpuId, Span)>,
    /// Whether there was more than could be told.
    pub(super) is_lossy: bool,
    /// Wakes of those who are kept on other CPUs.
    pub(super) elsewhere: Vec<(CpuId, Sighting)>,
    /// Those of trees that have been started. This CPU knows them; the others are to be told.
    pub(super) born: Vec<Arc<WatchedThread>>,
    /// Those of trees that have ended, likewise.
    pub(super) gone: Vec<Arc<WatchedThread>>,
}

impl CpuView {
    pub(super) fn new(cpu: Option<CpuId>, source: Box<dyn EventSource>) -> CpuView {
        let seen = Seen { source, threads: HashMap::new() };
        CpuView { cpu, seen: Mutex::new(seen), inbox: Mutex::default(), round: AtomicU64::new(0) }
    }

    /// What this thread does is told from now on.
    pub(super) fn add(&self, thread: &Arc<WatchedThread>) {
        self.seen().threads.insert(thread.tid, Arc::clone(thread));
    }

    /// What this thread does is told no more.
    pub(super) fn remove(&self, tid: Tid) {
        self.seen().threads.remove(&tid);
    }

    /// The same, unless its number means another thread by now.
    pub(super) fn remove_this(&self, thread: &Arc<WatchedThread>) {
        let threads = &mut self.seen().threads;
        if threads.get(&thread.tid).is_some_and(|it| Arc::ptr_eq(it, thread)) {
            threads.remove(&thread.tid);
        }
    }

    /// Another CPU has carried out a wake of a thread that is kept here.
    pub(super) fn tell(&self, sighting: Sighting) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(sighting);
    }

    /// Takes in what has happened there, and reads the clocks of the threads that have run. They
    /// are exact: whoever was switched out has been counted. `now` is the monotonic time.
    pub(super) fn look(&self, now: Time) -> Result<News, LiveHostError> {
        let mut news = News { cpu: self.cpu, ..News::default() };
        let mut result = Ok(());
        {
            let mut seen = self.seen();
            let Seen { source, threads } = &mut *seen;
            let drained = source.drain(&mut |event| {
                let Some(thread) = threads.get(&event.tid) else { return };
                let mut thread = Arc::clone(thread);
                match event.what {
                    What::Forked { .. } if !thread.is_of_tree => return,
                    What::Forked { child } => {
                        thread = Arc::new(thread.child(child, event.at));
                        threads.insert(child, Arc::clone(&thread));
                        news.born.push(Arc::clone(&thread));
                    }
                    What::Ending => return thread.end(),
                    What::SwitchedOut { ready: false } if thread.is_ending() => {
                        threads.remove(&thread.tid);
                        news.gone.push(Arc::clone(&thread));
                    }
                    _ => {}
                }
                let sighting = Sighting { at: event.at, thread, what: event.what };
                match sighting.thread.home.get() {
                    Some(home) if event.what == What::Woke && Some(home) != self.cpu => {
                        news.elsewhere.push((home, sighting));
                    }
                    _ => news.sightings.push(sighting),
                }
            });
            match drained {
                Ok(drained) => news.is_lossy = drained.lost > 0,
                Err(error) => result = Err(error),
            }
        }
        let round = 1 + self.round.fetch_add(1, Ordering::Relaxed);
        // A round of one CPU is not one of another.
        let round = round << 9 | self.cpu.map_or(0, |cpu| 1 + cpu.index() as u64);
        for Sighting { thread, what, .. } in &news.sightings {
            let ran = matches!(what, What::SwitchedIn | What::SwitchedOut { .. });
            if ran && thread.is_first_in(round) {
                news.used.push((thread.vcpu, thread.more(now)?));
            }
        }
        // Last, so that a sleep that was noted here comes before the wake that ended it.
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if !inbox.is_empty() {
            news.sightings.append(&mut inbox);
            news.sightings.sort_by_key(|sighting| sighting.at);
        }
        result?;
        Ok(news)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
