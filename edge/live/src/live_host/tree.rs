//! Process trees: vCPUs that can start and end threads while the session schedules them. The views
//! and the decider handle the events of threads that start or end. This module adds trees. At
//! intervals it compares the known threads of each tree with the kernel's list of threads.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use slackline_host::Fact;
use slackline_units::{CpuId, Span, Time, VcpuId};

use super::decider::{Decider, NewcomerVcpu, ThreadRecord, Vcpu, broken};
use super::front::{RunnableThread, first_threads, next_threads};
use super::run_intervals::RunIntervals;
use super::{LiveHost, LiveHostError};
use crate::vcpu_threads::{Home, Meter, Unreadable, UsedClock, WatchedThread};
use crate::watch::ThreadEventKind;
use crate::way::HeldThreads;
use slackline_fence::{HeldTree, TreeAudit};
use slackline_linux::sys::Tid;
use slackline_linux::thread::ThreadRef;

/// Maximum lead of a thread that runs first in a tree on several CPUs: the CPU time that it has
/// received beyond that of a waiting thread. If the lead is larger, the waiting thread runs first
/// from the middle of the timeslice on. A replacement takes two system calls.
const LEAD: Span = Span::from_ms(10);

impl LiveHost {
    /// Starts delivering the events of a vCPU's threads. Returns the initial state of each thread.
    pub(super) fn known(
        &self,
        threads: Vec<(Tid, UsedClock, Span)>,
        vcpu: VcpuId,
    ) -> Result<NewcomerVcpu, LiveHostError> {
        let home = Arc::new(Home::none());
        let mut known = Vec::with_capacity(threads.len());
        for (tid, clock, used) in threads {
            let meter = Meter::new(clock, used);
            let thread = WatchedThread::new(tid, vcpu, self.clock.now(), Arc::clone(&home), meter);
            // CPU time used while the run was being prepared does not belong to the run.
            thread.forget_used()?;
            known.push(self.meet(thread)?);
        }
        Ok(NewcomerVcpu { home, known, is_tree: false, wide: None })
    }

    /// Starts delivering the events of a process tree's threads. Returns the initial state of each
    /// thread.
    pub(super) fn known_tree(
        &self,
        tree: &HeldTree,
        vcpu: VcpuId,
    ) -> Result<NewcomerVcpu, LiveHostError> {
        let home = Arc::new(Home::none());
        let tid = tree.first()[0].tid();
        let unreadable = |source| Unreadable { tid, source };
        let meter = tree_meter(tree)?;
        let mut known: Vec<ThreadRecord> = Vec::new();
        loop {
            let there = tree.threads().map_err(|error| unreadable(io::Error::other(error)))?;
            let tids: Vec<Tid> = known.iter().map(|known| known.thread.tid).collect();
            let new = missing_in(&there, &[&tids]);
            if new.is_empty() {
                let wide = tree.wide().filter(|_| tree.width() > 1);
                return Ok(NewcomerVcpu { home, known, is_tree: true, wide });
            }
            known.extend(self.known_threads((&new, vcpu), &home, &meter)?);
        }
    }

    /// Starts delivering the events of some threads of a process tree. Returns the initial state of
    /// each thread.
    pub(super) fn known_threads(
        &self,
        (tids, vcpu): (&[Tid], VcpuId),
        home: &Arc<Home>,
        meter: &Arc<Meter>,
    ) -> Result<Vec<ThreadRecord>, LiveHostError> {
        let mut known = Vec::with_capacity(tids.len());
        for &tid in tids {
            let (home, meter) = (Arc::clone(home), Arc::clone(meter));
            let thread = WatchedThread::new(tid, vcpu, self.clock.now(), home, meter);
            known.push(self.meet(thread.of_tree())?);
        }
        Ok(known)
    }

    /// Delivers the events of a thread from now on, and returns its current state.
    fn meet(&self, thread: WatchedThread) -> Result<ThreadRecord, LiveHostError> {
        let (thread, since) = (Arc::new(thread), self.clock.now());
        self.views.iter().for_each(|view| view.add(&thread));
        // The state is read after the delivery of events has started. No event reports earlier
        // changes, such as a wake-up before the start of the run.
        let is_awake = self.is_polled || thread.is_runnable()?.unwrap_or(false);
        Ok(ThreadRecord::new(thread, is_awake, since, Span::ZERO))
    }

    /// Reads from the kernel which threads a process tree has and which of them are runnable. An
    /// audit is needed because events miss threads that were moved into the tree, and threads whose
    /// ids are outside the event filter.
    ///
    /// Returns the differences between the tree and the orders. `None` if no thread of the tree
    /// exists any more. If the tree has been idle since the last audit, no differences are
    /// returned. The threads in the field `left` run in another cgroup. They count as threads of
    /// the vCPU until the caller calls [`forget`](LiveHost::forget).
    pub(crate) fn audit(
        &self,
        vcpu: VcpuId,
        (tree, first): (&HeldTree, &[ThreadRef]),
    ) -> Result<Option<TreeCheck>, LiveHostError> {
        let known = self.decider().threads_of(vcpu);
        let was_stopped = self.decider().is_stopped(vcpu);
        // A thread that has left the cgroup uses CPU time that the cgroup does not count.
        let is_awake = self.decider().has_awake_thread(vcpu);
        // The CPU time is read first, so that CPU time used during the audit causes another audit.
        let used = known.first().map(|thread| thread.shown()).transpose()?.flatten();
        if !was_stopped && !is_awake && used.is_some_and(|used| tree.is_resting(used)) {
            return Ok(Some(TreeCheck::default()));
        }
        let tids: Vec<Tid> = known.iter().map(|thread| thread.tid).collect();
        let mut audit = match tree.audit(&tids) {
            // The tree has ended, or has just been restored.
            Err(error) if error.means_gone() || tree.is_gone() => return Ok(None),
            audit => audit?,
        };
        let by_tid: BTreeMap<Tid, &Arc<WatchedThread>> =
            known.iter().map(|thread| (thread.tid, thread)).collect();
        drop_ended(&mut audit.left, tree, (&by_tid, first));
        let there = &audit.there;
        let now = self.clock.now();
        let new = missing_in(there, &[&tids]);
        if let Some(perf) = &mut *self.perf() {
            let all: Vec<Tid> = there.iter().chain(&audit.left).copied().collect();
            perf.set_tree(vcpu, &all)?;
        }
        let one = match (known.first(), new.is_empty()) {
            (None, false) => self.stand_in(vcpu, tree)?,
            (one, _) => one.cloned(),
        };
        let mut met = Vec::new();
        for (tid, one) in new.into_iter().zip(one.iter().cycle()) {
            met.push(self.meet(one.child(tid, now))?);
        }
        let gone = missing_in(&tids, &[there, &audit.left]);
        let gone: Vec<_> = gone.iter().filter_map(|tid| by_tid.get(tid).copied()).collect();
        for thread in &gone {
            self.views.iter().for_each(|view| view.remove_this(thread));
        }
        let mut states = Vec::new();
        for thread in there.iter().filter_map(|tid| by_tid.get(tid).copied()) {
            states.push((Arc::clone(thread), thread.is_runnable()?.unwrap_or(false)));
        }
        let mut decider = self.observe()?;
        let is_stopped = was_stopped || decider.is_stopped(vcpu);
        let is_same = met.is_empty() && gone.is_empty() && audit.left.is_empty();
        let is_at_rest = is_same && audit.changed.is_empty();
        if is_at_rest && !is_stopped && states.iter().all(|(_, is_runnable)| !is_runnable) {
            used.into_iter().for_each(|used| tree.has_rested(used));
        }
        decider.audited(vcpu, Audit { met, gone: &gone, states: &states, was_stopped, now })?;
        self.finish(decider)?;
        let is_there = !there.is_empty() || !audit.left.is_empty();
        let used = used.map(|used| used * tree.width() as u64);
        Ok(is_there.then_some(TreeCheck { audit, used }))
    }

    /// Returns a thread that serves as the template for threads that an audit finds in a tree. It
    /// is needed if no thread of the tree is known because all known threads have left the tree.
    /// `None` if the vCPU is not present.
    fn stand_in(
        &self,
        vcpu: VcpuId,
        tree: &HeldTree,
    ) -> Result<Option<Arc<WatchedThread>>, LiveHostError> {
        let home = self.decider().get(vcpu).map(|known| Arc::clone(&known.home));
        let Some(home) = home else { return Ok(None) };
        let (tid, meter) = (tree.first()[0].tid(), tree_meter(tree)?);
        let thread = WatchedThread::new(tid, vcpu, self.clock.now(), home, meter);
        Ok(Some(Arc::new(thread.of_tree())))
    }

    /// Returns true if a thread of the vCPU still exists, even if it is no longer in the vCPU's
    /// cgroup.
    pub(crate) fn has_living_thread(&self, vcpu: VcpuId) -> bool {
        !self.living_threads(vcpu).is_empty()
    }

    /// Returns the threads of the vCPU that still exist, even if they are no longer in the vCPU's
    /// cgroup.
    pub(crate) fn living_threads(&self, vcpu: VcpuId) -> Vec<Tid> {
        let known = self.decider().threads_of(vcpu);
        known.iter().filter(|thread| thread.is_alive()).map(|thread| thread.tid).collect()
    }

    /// Removes a thread from the threads of the vCPU's process tree, because the thread now runs in
    /// another cgroup.
    pub(crate) fn forget(&self, vcpu: VcpuId, tid: Tid) -> Result<(), LiveHostError> {
        let known = self.decider().threads_of(vcpu);
        let Some(thread) = known.iter().find(|thread| thread.tid == tid) else { return Ok(()) };
        self.views.iter().for_each(|view| view.remove_this(thread));
        let mut decider = self.observe()?;
        let (gone, now) = (&[thread][..], self.clock.now());
        let audit = Audit { met: Vec::new(), gone, states: &[], was_stopped: false, now };
        decider.audited(vcpu, audit)?;
        self.finish(decider)
    }
}

/// Removes threads that have ended from `left`, the list of threads that are no longer in the
/// cgroup of a tree. `known` has the known threads of the tree, and `first` the threads with which
/// the tree joined.
fn drop_ended(
    left: &mut Vec<Tid>,
    tree: &HeldTree,
    (known, first): (&BTreeMap<Tid, &Arc<WatchedThread>>, &[ThreadRef]),
) {
    let first: BTreeMap<Tid, &ThreadRef> = first.iter().map(|it| (it.tid(), it)).collect();
    left.retain(|&tid| {
        let is_first = first.get(&tid).is_some_and(|it| !it.is_gone().unwrap_or(true));
        let known = known.get(&tid);
        let is_alive =
            is_first || known.map_or_else(|| tree.is_as_ordered(tid), |known| known.is_alive());
        if !is_alive {
            tree.forget(tid);
        }
        is_alive
    });
}

/// Returns the ids in `all` that are in none of `lists`, in the order of `all`. The running time is
/// almost proportional to the number of ids, which matters because a user can start thousands of
/// threads.
fn missing_in(all: &[Tid], lists: &[&[Tid]]) -> Vec<Tid> {
    let listed: BTreeSet<Tid> = lists.iter().copied().flatten().copied().collect();
    all.iter().copied().filter(|tid| !listed.contains(tid)).collect()
}

/// Result of an audit of a process tree.
#[derive(Debug, Default)]
pub(crate) struct TreeCheck {
    pub(crate) audit: TreeAudit,
    /// CPU time on all CPUs that the cgroup of the tree had counted just before the audit. `None`
    /// if no thread of the tree was known.
    pub(crate) used: Option<Span>,
}

/// Creates a meter of the CPU time that a process tree uses from now on.
fn tree_meter(tree: &HeldTree) -> Result<Arc<Meter>, Unreadable> {
    let unreadable = |source| Unreadable { tid: tree.first()[0].tid(), source };
    let usage = tree.usage().map_err(unreadable)?;
    let used = usage.read().map_err(unreadable)?;
    let width = tree.width() as u64;
    Ok(Meter::new(UsedClock::Tree(usage, width), used / width))
}

/// Differences between the known threads of a tree and the kernel's list of its threads.
struct Audit<'a> {
    /// Threads that are in the tree but were not known before.
    met: Vec<ThreadRecord>,
    /// Threads that are no longer in the tree.
    gone: &'a [&'a Arc<WatchedThread>],
    /// State of each thread that is still in the tree: true if the kernel reports it as runnable.
    states: &'a [(Arc<WatchedThread>, bool)],
    /// True if the tree was stopped before the states were read.
    was_stopped: bool,
    /// Time of the comparison, on the monotonic clock.
    now: Time,
}

impl Vcpu {
    /// Returns the virtual time of the tree: the least CPU time received among its runnable
    /// threads. The virtual time never falls, and it stays the same while no thread is runnable. So
    /// a thread that wakes has no claim to the time in which it was blocked.
    pub(super) fn least_received(&mut self) -> Span {
        let awake = self.threads.values().filter(|known| known.is_awake);
        let least = awake.map(|known| known.received).min();
        self.virtual_time = self.virtual_time.max(least.unwrap_or(Span::ZERO));
        self.virtual_time
    }

    /// Returns the threads of a tree that should run first in a timeslice, in order. The list is
    /// empty if fewer than two threads are runnable. `now` is the monotonic time.
    pub(super) fn front(&self, now: Time) -> Vec<Tid> {
        if !self.is_tree {
            return Vec::new();
        }
        first_threads(self.runnable_threads(now), self.width())
    }

    /// Removes a thread that has ended. If the tree is stopped, the state of its other threads is
    /// unknown, because another thread may have waited for the ended thread and may be runnable
    /// now. So all other threads count as runnable until they are resumed and events show their
    /// states.
    pub(super) fn forget_thread(&mut self, tid: Tid) {
        let least = self.least_received();
        self.threads.remove(&tid);
        if self.is_stopped() {
            for known in self.threads.values_mut().filter(|known| !known.is_awake) {
                known.is_awake = true;
                known.received = known.received.max(least);
            }
        }
    }
}

impl Vcpu {
    /// Returns the runnable threads of the tree and the CPU time that each has received. If the
    /// vCPU may use several CPUs, a thread can be running at present. Its received time includes
    /// its current run interval up to `now`. `now` is the monotonic time.
    fn runnable_threads(&self, now: Time) -> Vec<RunnableThread> {
        let awake = self.threads.iter().filter(|(_, known)| known.is_awake);
        let thread = |(&tid, known): (&Tid, &ThreadRecord)| {
            let is_wide = self.wide.is_some();
            let current = if is_wide { known.intervals.current(now) } else { Span::ZERO };
            RunnableThread { tid, received: known.received + current, has_run: known.has_run }
        };
        awake.map(thread).collect()
    }

    /// Returns the number of CPUs on which threads of the vCPU may run at the same time.
    fn width(&self) -> usize {
        self.wide.map_or(1, |cpus| cpus.iter().count())
    }
}

impl ThreadRecord {
    pub(super) const fn new(
        thread: Arc<WatchedThread>,
        is_awake: bool,
        since: Time,
        received: Span,
    ) -> ThreadRecord {
        ThreadRecord {
            thread,
            is_awake,
            since,
            intervals: RunIntervals::new(),
            received,
            has_run: false,
            is_elsewhere: false,
        }
    }

    /// Adds the CPU time that the thread has received up to the event `what` on the CPU `on`. The
    /// time is added even while the thread's tree is being stopped.
    pub(super) fn count(&mut self, what: ThreadEventKind, on: CpuId, at: Time) {
        match what {
            ThreadEventKind::SwitchedIn => self.intervals.begin(on, at),
            ThreadEventKind::SwitchedOut { .. } => self.received += self.intervals.end(on, at),
            ThreadEventKind::Woke | ThreadEventKind::Forked { .. } | ThreadEventKind::Ending => {}
        }
    }
}

impl Decider {
    /// Returns true if a vCPU is stopped.
    fn is_stopped(&self, vcpu: VcpuId) -> bool {
        self.get(vcpu).is_some_and(Vcpu::is_stopped)
    }

    /// Returns true if at least one thread of a vCPU is runnable, according to events and audits.
    fn has_awake_thread(&self, vcpu: VcpuId) -> bool {
        self.get(vcpu).is_some_and(|known| known.threads.values().any(|known| known.is_awake))
    }

    /// Adds a runnable thread that a process tree has started.
    pub(super) fn meet(&mut self, thread: &Arc<WatchedThread>, since: Time) {
        let vcpu = thread.vcpu;
        let Some(known) = self.get_mut(vcpu).filter(|known| Arc::ptr_eq(&known.home, &thread.home))
        else {
            return;
        };
        let thread = Arc::clone(thread);
        let least = known.least_received();
        known.threads.insert(thread.tid, ThreadRecord::new(thread, true, since, least));
    }

    /// Applies the result of an audit to a tree. The state of a thread that was read from the
    /// kernel is not applied if the tree was stopped when the state was read, or if the thread has
    /// had a later event.
    fn audited(&mut self, vcpu: VcpuId, audit: Audit<'_>) -> Result<(), LiveHostError> {
        let was_awake = self.host.moment().is_awake(vcpu);
        let gone = audit.gone.iter().filter(|thread| self.knows(thread)).map(|thread| thread.tid);
        let gone: Vec<Tid> = gone.collect();
        let Some(known) = self.get_mut(vcpu) else { return Ok(()) };
        gone.into_iter().for_each(|tid| known.forget_thread(tid));
        let is_unknown = audit.was_stopped || known.is_stopped();
        let mut is_changed = !audit.met.is_empty() || !audit.gone.is_empty();
        let least = known.least_received();
        for mut met in audit.met {
            met.is_awake |= is_unknown;
            met.received = least;
            // If an event has reported the thread meanwhile, the state from the event stays.
            known.threads.entry(met.thread.tid).or_insert(met);
        }
        for (thread, is_awake) in audit.states.iter().filter(|_| !is_unknown) {
            let of = known.threads.get_mut(&thread.tid);
            if let Some(known) = of.filter(|of| of.since <= audit.now && of.is_awake != *is_awake) {
                known.is_awake = *is_awake;
                known.received = known.received.max(least);
                is_changed = true;
            }
        }
        if !is_changed {
            return Ok(());
        }
        self.touched.push(vcpu);
        let fact = match (was_awake, self.is_any_awake(vcpu)) {
            (true, false) => Fact::Blocked(vcpu),
            (false, true) => Fact::Woke(vcpu),
            _ => return Ok(()),
        };
        self.step(self.now, &[], fact).map_err(broken)
    }

    /// Charges the CPU time of vCPUs that may run on several CPUs simultaneously, as if they had
    /// run on `cpu` since its last pass. Each such vCPU is charged here if `cpu` is its [`Home`],
    /// or if it has no home yet. `now` is the monotonic time.
    pub(super) fn count_wide(&mut self, cpu: CpuId, now: Time) -> Result<(), LiveHostError> {
        let wide = self.wide.iter().filter_map(|&slot| self.vcpus[slot].as_ref());
        for vcpu in wide.filter(|vcpu| !vcpu.is_left) {
            if vcpu.home.get().is_some_and(|home| home != cpu) {
                continue;
            }
            if let (HeldThreads::Tree(tree), false) =
                (&vcpu.handle.threads, vcpu.held_since.is_some())
            {
                let runnable = vcpu.runnable_threads(now);
                tree.count(runnable.iter().map(|thread| thread.tid));
                let ahead = tree.ahead();
                // If the kernel refuses, the next order to the tree reports that.
                let _ = tree.put_ahead(&next_threads(runnable, vcpu.width(), (&ahead, LEAD)));
            }
            let Some(known) = vcpu.threads.values().next() else { continue };
            self.pcpus.unreported[vcpu.vcpu.slot()] += known.thread.more(now)?;
            let pcpu = &mut self.pcpus.all[cpu.index()];
            pcpu.running = pcpu.running.or(Some((vcpu.vcpu, pcpu.reported)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// The test would fail if each thread were compared with each other thread, because that would
    /// take minutes.
    #[test]
    fn changed_threads_among_two_hundred_thousand_are_found_in_seconds() {
        let tid = |number: i32| Tid::new(number).expect("thread ids are positive");
        let tids = |from: i32, to: i32| (from..to).map(tid).collect::<Vec<Tid>>();
        let began = Instant::now();
        let (there, left) = (tids(1, 100_000), tids(100_000, 200_000));
        assert_eq!(missing_in(&tids(1, 200_002), &[&there, &left]), tids(200_000, 200_002));
        assert_eq!(missing_in(&there, &[&left]), there);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}
