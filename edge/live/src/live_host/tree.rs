//! vCPUs whose threads come and go: process trees. Most of it the kernel's events tell, and views
//! and decider take in; here is how a tree is met, and looked over from time to time.

use std::io;
use std::sync::Arc;

use slackline_units::{CpuId, Span, Time, VcpuId};

use super::decider::{Decider, Joined, Known};
use super::{LiveHost, LiveHostError};
use crate::fence::{HeldTree, TreeAudit};
use crate::sys::Tid;
use crate::vcpu_threads::{Home, Meter, Unreadable, UsedClock, WatchedThread};
use crate::way::HeldThreads;

impl LiveHost {
    /// The threads of a vCPU, whose events are told from now on.
    pub(super) fn known(
        &self,
        threads: Vec<(Tid, UsedClock, Span)>,
        vcpu: VcpuId,
    ) -> Result<Joined, LiveHostError> {
        let home = Arc::new(Home::none());
        let mut known = Vec::with_capacity(threads.len());
        for (tid, clock, used) in threads {
            let meter = Meter::new(clock, used);
            let thread = WatchedThread::new(tid, vcpu, self.clock.now(), Arc::clone(&home), meter);
            // What it used while the run was being prepared is not the run's.
            thread.forget_used()?;
            known.push(self.meet(thread)?);
        }
        Ok(Joined { home, known, is_tree: false, is_wide: false })
    }

    /// The threads of a tree, likewise.
    pub(super) fn known_tree(
        &self,
        tree: &HeldTree,
        vcpu: VcpuId,
    ) -> Result<Joined, LiveHostError> {
        let home = Arc::new(Home::none());
        let tid = tree.first()[0].tid();
        let unreadable = |source| Unreadable { tid, source };
        let usage = tree.usage().map_err(unreadable)?;
        let used = usage.read().map_err(unreadable)?;
        let width = tree.width() as u64;
        let meter = Meter::new(UsedClock::Tree(usage, width), used / width);
        let mut known: Vec<Known> = Vec::new();
        loop {
            let there = tree.threads().map_err(|error| unreadable(io::Error::other(error)))?;
            let is_new = |tid: &Tid| known.iter().all(|known| known.thread.tid != *tid);
            let new: Vec<Tid> = there.into_iter().filter(is_new).collect();
            if new.is_empty() {
                return Ok(Joined { home, known, is_tree: true, is_wide: width > 1 });
            }
            for tid in new {
                let (home, meter) = (Arc::clone(&home), Arc::clone(&meter));
                let thread = WatchedThread::new(tid, vcpu, self.clock.now(), home, meter);
                known.push(self.meet(thread.of_tree())?);
            }
        }
    }

    /// What a thread does is told from now on.
    fn meet(&self, thread: WatchedThread) -> Result<Known, LiveHostError> {
        let (thread, since) = (Arc::new(thread), self.clock.now());
        self.views.iter().for_each(|view| view.add(&thread));
        // Only now that its events are heard: what it did before, such as waking for the start of
        // the run, nobody has been told.
        let is_awake = self.is_polled || thread.is_runnable()?.unwrap_or(false);
        Ok(Known { thread, is_awake, since, ran: None, is_elsewhere: false })
    }

    /// Looks who is in the tree of a vCPU, and what they do, where events have not told: of those
    /// who came otherwise than by being started there, and of those whose numbers nobody could
    /// foresee. Returns what was found; nothing of a tree that has rested since the last look, and
    /// `None` if nobody is there.
    pub(crate) fn audit(
        &self,
        vcpu: VcpuId,
        tree: &HeldTree,
    ) -> Result<Option<TreeAudit>, LiveHostError> {
        let known = self.decider().threads_of(vcpu);
        // Before anything is looked at: what is used meanwhile is for the next time.
        let used = known.first().map(|thread| thread.shown()).transpose()?.flatten();
        if used.is_some_and(|used| tree.is_resting(used)) {
            return Ok(Some(TreeAudit::default()));
        }
        let tids: Vec<Tid> = known.iter().map(|thread| thread.tid).collect();
        let audit = match tree.audit(&tids) {
            // It has ended, or just been given back.
            Err(error) if error.means_gone() || tree.is_gone() => return Ok(None),
            audit => audit?,
        };
        let there = &audit.there;
        let Some(one) = known.first() else {
            return Ok((!there.is_empty()).then_some(audit));
        };
        let now = self.clock.now();
        let new: Vec<Tid> = there.iter().copied().filter(|tid| !tids.contains(tid)).collect();
        if let Some(perf) = &mut *self.perf() {
            perf.set_tree(vcpu, there)?;
        }
        let mut met = Vec::new();
        for tid in new {
            met.push(self.meet(one.child(tid, now))?);
        }
        let gone: Vec<_> = known.iter().filter(|thread| !there.contains(&thread.tid)).collect();
        for thread in &gone {
            self.views.iter().for_each(|view| view.remove_this(thread));
        }
        let mut awake = Vec::new();
        for thread in known.iter().filter(|thread| there.contains(&thread.tid)) {
            if thread.is_runnable()?.unwrap_or(false) {
                awake.push(Arc::clone(thread));
            }
        }
        if met.is_empty() && gone.is_empty() && awake.is_empty() {
            // All are as they were known to be, and asleep: nobody need decide anything.
            if audit.changed.is_empty() {
                used.into_iter().for_each(|used| tree.has_rested(used));
            }
            return Ok((!there.is_empty()).then_some(audit));
        }
        let mut decider = self.observe()?;
        decider.audited(vcpu, met, &gone, &awake, now)?;
        self.finish(decider)?;
        Ok((!there.is_empty()).then_some(audit))
    }
}

impl Decider {
    /// What runs on several CPUs at once is counted where it is decided about it, whether or not it
    /// runs there just now: as if it had run there since the last look. `now` is the monotonic
    /// time.
    pub(super) fn count_wide(&mut self, cpu: CpuId, now: Time) -> Result<(), LiveHostError> {
        for vcpu in self.vcpus.iter().flatten().filter(|vcpu| vcpu.is_wide) {
            if vcpu.home.get().is_some_and(|home| home != cpu) {
                continue;
            }
            if let (HeldThreads::Tree(tree), false) = (&vcpu.handle.threads, vcpu.is_held_back) {
                let awake = vcpu.threads.values().filter(|known| known.is_awake);
                tree.count(awake.map(|known| known.thread.tid));
            }
            let Some(known) = vcpu.threads.values().next() else { continue };
            self.pcpus.unreported[vcpu.vcpu.slot()] += known.thread.more(now)?;
            let pcpu = &mut self.pcpus.all[cpu.index()];
            pcpu.running = pcpu.running.or(Some((vcpu.vcpu, pcpu.reported)));
        }
        Ok(())
    }
}
