//! View of one CPU: its events about threads that Slackline schedules, and wake-ups of threads
//! pinned to this CPU that happened on other CPUs. A view does not use the state of the live host,
//! so each view has its own lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackline_units::{CpuId, Span, Time, VcpuId};

use super::LiveHostError;
use crate::vcpu_threads::WatchedThread;
use crate::watch::{Event, EventSource, ThreadEventKind};
use slackline_linux::sys::Tid;

/// View of one CPU: the events on it that concern threads of vCPUs.
pub(super) struct CpuView {
    /// Index of the CPU among the managed CPUs. `None` if the CPU is not managed.
    cpu: Option<CpuId>,
    /// Number of the CPU in the kernel.
    pub(super) real: CpuId,
    seen: Mutex<ViewedThreads>,
    /// Wake-ups of threads pinned to this CPU that happened on other CPUs.
    inbox: Mutex<Vec<Sighting>>,
    /// Number of times that the events of the CPU have been read.
    round: AtomicU64,
}

/// Source of the CPU's events, and the threads whose events are delivered.
struct ViewedThreads {
    source: Box<dyn EventSource>,
    threads: HashMap<Tid, Arc<WatchedThread>>,
}

/// An event of a thread that belongs to a scheduled vCPU.
#[derive(Clone, Debug)]
pub(super) struct Sighting {
    /// Time of the event, on the monotonic clock.
    pub(super) at: Time,
    pub(super) thread: Arc<WatchedThread>,
    pub(super) what: ThreadEventKind,
    /// CPU (kernel number) on which the thread was switched in or out. For a wake-up, the CPU on
    /// which the thread will run.
    pub(super) on: CpuId,
}

/// Events read in one pass over a CPU.
#[derive(Debug, Default)]
pub(super) struct PassEvents {
    /// Managed CPU whose events were read. `None` if the CPU is not managed.
    pub(super) cpu: Option<CpuId>,
    /// Events in order of time.
    pub(super) sightings: Vec<Sighting>,
    /// CPU time that each vCPU has used since the last reading, as the kernel counts it.
    pub(super) used: Vec<(VcpuId, Span)>,
    /// True if events of the CPU were lost.
    pub(super) is_lossy: bool,
    /// Wake-ups of threads that are pinned to another CPU, each with that CPU.
    pub(super) elsewhere: Vec<(CpuId, Sighting)>,
    /// Threads that process trees have started. This view already delivers their events, but the
    /// other views do not.
    pub(super) born: Vec<Arc<WatchedThread>>,
    /// Threads of process trees that have ended. This view no longer delivers their events, but the
    /// other views still do.
    pub(super) gone: Vec<Arc<WatchedThread>>,
}

impl CpuView {
    pub(super) fn new(cpu: Option<CpuId>, real: CpuId, source: Box<dyn EventSource>) -> CpuView {
        let seen = Mutex::new(ViewedThreads { source, threads: HashMap::new() });
        CpuView { cpu, real, seen, inbox: Mutex::default(), round: AtomicU64::new(0) }
    }

    /// Starts delivering the events of a thread. Does nothing if the thread is exiting: its end may
    /// have been delivered already, and then no event would remove the thread from the view. A
    /// later thread with the same id would be mistaken for this thread.
    pub(super) fn add(&self, thread: &Arc<WatchedThread>) {
        let mut seen = self.seen();
        if !thread.is_ending() {
            seen.threads.insert(thread.tid, Arc::clone(thread));
        }
    }

    /// Stops delivering the events of the thread with this id.
    pub(super) fn remove(&self, tid: Tid) {
        self.seen().threads.remove(&tid);
    }

    /// Stops delivering the events of a thread. Does nothing if the thread's id belongs to another
    /// thread by now.
    pub(super) fn remove_this(&self, thread: &Arc<WatchedThread>) {
        let threads = &mut self.seen().threads;
        if threads.get(&thread.tid).is_some_and(|it| Arc::ptr_eq(it, thread)) {
            threads.remove(&thread.tid);
        }
    }

    /// Adds a wake-up of a thread that is pinned to this CPU. The wake-up happened on another CPU.
    pub(super) fn tell(&self, sighting: Sighting) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(sighting);
    }

    /// Reads the events of the CPU, and the clocks of the threads that have run. The clocks are
    /// exact, because the kernel updates the clock of each thread that it switches out. `now` is
    /// the monotonic time.
    pub(super) fn drain_events(&self, now: Time) -> Result<PassEvents, LiveHostError> {
        let mut news = PassEvents { cpu: self.cpu, ..PassEvents::default() };
        let mut result = Ok(());
        {
            let mut seen = self.seen();
            let ViewedThreads { source, threads } = &mut *seen;
            let drained = source.drain(&mut |event| {
                let Some(thread) = threads.get(&event.tid) else { return };
                let mut thread = Arc::clone(thread);
                match event.what {
                    ThreadEventKind::Forked { .. } if !thread.is_of_tree => return,
                    // An exiting thread starts no threads, so this is a later thread with its id.
                    ThreadEventKind::Forked { .. } if thread.is_ending() => return,
                    ThreadEventKind::Forked { child } => {
                        thread = Arc::new(thread.child(child, event.at));
                        threads.insert(child, Arc::clone(&thread));
                        news.born.push(Arc::clone(&thread));
                    }
                    ThreadEventKind::Ending => return thread.end(),
                    ThreadEventKind::SwitchedOut { ready: false } if thread.is_ending() => {
                        threads.remove(&thread.tid);
                        news.gone.push(Arc::clone(&thread));
                    }
                    _ => {}
                }
                let Event { at, what, cpu: on, .. } = event;
                let sighting = Sighting { at, thread, what, on };
                match sighting.thread.home.get() {
                    Some(home) if event.what == ThreadEventKind::Woke && Some(home) != self.cpu => {
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
        // The number of the CPU is part of the round, so that rounds of different CPUs differ.
        let round = round << 9 | self.cpu.map_or(0, |cpu| 1 + cpu.index() as u64);
        for Sighting { thread, what, .. } in &news.sightings {
            let ran =
                matches!(what, ThreadEventKind::SwitchedIn | ThreadEventKind::SwitchedOut { .. });
            if ran && thread.is_first_in(round) {
                news.used.push((thread.vcpu, thread.more(now)?));
            }
        }
        // The inbox is read after the events of this CPU. So a block that happened here is reported
        // before the wake-up on another CPU that ended it.
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if !inbox.is_empty() {
            news.sightings.append(&mut inbox);
            news.sightings.sort_by_key(|sighting| sighting.at);
        }
        result?;
        Ok(news)
    }

    /// Returns true if the CPU has events that were not read yet.
    pub(super) fn has_unread(&self) -> bool {
        self.seen().source.has_unread()
    }

    fn seen(&self) -> MutexGuard<'_, ViewedThreads> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use slackline_units::DomId;

    use super::*;
    use crate::vcpu_threads::{Home, Meter, UsedClock};
    use crate::watch::fed::FedEvents;

    fn tid(number: i32) -> Tid {
        Tid::new(number).expect("thread ids are positive")
    }

    /// Thread 100 of a process tree ends. A later thread with its id starts thread 101.
    #[test]
    fn reused_thread_id_of_ended_thread_adds_no_child_threads() {
        let cpu = CpuId::new(0);
        let events = FedEvents::default();
        let view = CpuView::new(Some(cpu), cpu, Box::new(events.clone()));
        let vcpu = VcpuId::new(0, DomId::new(0), 0);
        let meter = Meter::new(UsedClock::Fed(Arc::default()), Span::ZERO);
        let thread = WatchedThread::new(tid(100), vcpu, Time::START, Arc::new(Home::none()), meter);
        let thread = Arc::new(thread.of_tree());
        let started = |parent: &Arc<WatchedThread>, child| {
            let what = ThreadEventKind::Forked { child: tid(child) };
            events.put(Event { at: Time::START, tid: parent.tid, cpu, what });
            let news = view.drain_events(Time::START).expect("the events are valid");
            news.born.iter().map(|thread| thread.tid).collect::<Vec<Tid>>()
        };
        view.add(&thread);
        assert_eq!(started(&thread, 101), [tid(101)]);
        thread.end();
        assert_eq!(started(&thread, 102), []);
        view.remove_this(&thread);
        view.add(&thread);
        assert_eq!(started(&thread, 103), []);
    }
}
