//! vCPUs whose threads are not where they are kept: those that run on a CPU that is not scheduled,
//! and those that are left to another program, which has changed them.

use slackline_host::Fact;
use slackline_trace::{Record, Sink};
use slackline_units::{CpuId, Span, Time, VcpuId};

use super::decider::{Decider, Vcpu, broken};
use super::{LiveHost, LiveHostError, NotDone};
use crate::vcpu_threads::WatchedThread;
use crate::watch::What;
use slackline_fence::{Leaving, Original};
use slackline_linux::sys::Tid;

impl LiveHost {
    /// The threads of a vCPU leave the real-time class and run as another program has made them,
    /// and nothing is ordered of them until they are [taken back](LiveHost::take_back). What is
    /// promised stands, and counts as not wanted. One that is paused stays stopped. CPUs that they
    /// have `by_cpuset` are not their own, so that their own are given back. Returns what threads
    /// are given back as that have been changed.
    pub(crate) fn leave_to_others(
        &self,
        vcpu: VcpuId,
        by_cpuset: bool,
    ) -> Result<Vec<(Tid, Original)>, NotDone> {
        let mut decider = self.observe()?;
        let result = decider.leave_to_others(vcpu, by_cpuset);
        self.finish(decider)?;
        result
    }

    /// A vCPU that was left to others is scheduled again.
    pub(crate) fn take_back(&self, vcpu: VcpuId) -> Result<(), LiveHostError> {
        let mut decider = self.observe()?;
        decider.count_left(vcpu, self.clock.now())?;
        if let Some(known) = decider.get_mut(vcpu).filter(|known| known.is_left) {
            known.is_left = false;
            decider.touched.push(vcpu);
            if decider.get(vcpu).is_some_and(|known| !known.is_paused) {
                decider.ask(vcpu, self.clock.now())?;
            }
        }
        self.finish(decider)
    }

    /// Records what a vCPU that is left to others has used, wherever it ran.
    pub(crate) fn count_left(&self, vcpu: VcpuId) -> Result<(), LiveHostError> {
        let mut decider = self.observe()?;
        decider.count_left(vcpu, self.clock.now())?;
        self.finish(decider)
    }
}

impl Decider {
    fn leave_to_others(
        &mut self,
        vcpu: VcpuId,
        by_cpuset: bool,
    ) -> Result<Vec<(Tid, Original)>, NotDone> {
        self.number += 1;
        let (number, now) = (self.number, self.now);
        let Some(known) = self.get_mut(vcpu).filter(|known| !known.is_left) else {
            return Ok(Vec::new());
        };
        let how = Leaving { stays_stopped: known.is_paused, by_cpuset };
        let changed = known.handle.leave(number, how).map_err(NotDone::Refused)?;
        known.is_left = true;
        known.left_until = now;
        if !known.is_paused {
            self.note_let_go(vcpu);
        }
        let Some(known) = self.get_mut(vcpu) else { return Ok(changed) };
        known.held_since = known.held_since.filter(|_| known.is_paused);
        if self.host.moment().is_awake(vcpu) {
            self.step(self.now, &[], Fact::Paused(vcpu)).map_err(broken)?;
        }
        for pcpu in &mut self.pcpus.all {
            pcpu.running = pcpu.running.filter(|&(running, _)| running != vcpu);
        }
        // What could not be charged to a CPU any more is its own all the same.
        let unreported = std::mem::take(&mut self.pcpus.unreported[vcpu.slot()]);
        self.pcpus.refused.retain(|&(refused, ..)| refused != vcpu);
        if let Some(known) = self.get_mut(vcpu) {
            known.used_left = unreported;
            known.threads.values_mut().for_each(|known| known.is_elsewhere = false);
        }
        Ok(changed)
    }

    /// `now` is the monotonic time.
    fn count_left(&mut self, vcpu: VcpuId, now: Time) -> Result<(), LiveHostError> {
        self.now = self.now.max(self.of_run(now));
        let at = self.now;
        let Some(known) = self.get_mut(vcpu).filter(|known| known.is_left) else { return Ok(()) };
        known.used_left += more_of(known, |_| true, now)?;
        let used = std::mem::take(&mut known.used_left);
        let from = std::mem::replace(&mut known.left_until, at);
        if !used.is_zero() {
            self.records.record(&Record::Elsewhere { vcpu, from, to: at, used });
        }
        Ok(())
    }

    /// Notes whether a thread runs where nothing is scheduled.
    pub(super) fn note_place(&mut self, thread: &WatchedThread, what: What, cpu: Option<CpuId>) {
        let vcpu = self.get_mut(thread.vcpu);
        let Some(known) = vcpu.and_then(|vcpu| vcpu.threads.get_mut(&thread.tid)) else { return };
        match what {
            What::SwitchedIn => known.is_elsewhere = cpu.is_none(),
            What::SwitchedOut { .. } => known.is_elsewhere = false,
            _ => {}
        }
        if known.is_elsewhere && !self.away.contains(&thread.vcpu) {
            self.away.push(thread.vcpu);
        }
    }

    /// A thread that is kept on a CPU and runs elsewhere all the same is charged as if it ran
    /// there since the last look: its turn ends when its slice is used, wherever that was. `now`
    /// is the monotonic time.
    pub(super) fn count_elsewhere(&mut self, cpu: CpuId, now: Time) -> Result<(), LiveHostError> {
        let mut away = std::mem::take(&mut self.away);
        away.retain(|&vcpu| {
            let vcpu = self.get(vcpu).filter(|vcpu| !vcpu.is_wide && !vcpu.is_left);
            vcpu.is_some_and(|vcpu| vcpu.threads.values().any(|known| known.is_elsewhere))
        });
        for &id in &away {
            let Some(vcpu) = self.get(id).filter(|vcpu| vcpu.home.get() == Some(cpu)) else {
                continue;
            };
            let more = more_of(vcpu, |is_elsewhere| is_elsewhere, now)?;
            self.pcpus.unreported[id.slot()] += more;
            let pcpu = &mut self.pcpus.all[cpu.index()];
            pcpu.running = pcpu.running.or(Some((id, pcpu.reported)));
        }
        self.away = away;
        Ok(())
    }
}

/// What the threads of a vCPU have used since that was last asked.
fn more_of(vcpu: &Vcpu, counts: impl Fn(bool) -> bool, now: Time) -> Result<Span, LiveHostError> {
    let threads = vcpu.threads.values().filter(|known| counts(known.is_elsewhere));
    let mut sum = Span::ZERO;
    for known in threads {
        sum += known.thread.more(now)?;
    }
    Ok(sum)
}
