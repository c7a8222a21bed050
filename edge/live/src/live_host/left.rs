//! CPU time of vCPUs whose threads do not run on the CPU to which Slackline pinned them. Either a
//! thread runs on an unmanaged CPU, or another program has changed the threads' scheduling and
//! keeps control of the threads.

use slackline_host::Fact;
use slackline_trace::{Record, Sink};
use slackline_units::{CpuId, Span, Time, VcpuId};

use super::decider::{Decider, Vcpu, broken};
use super::{LiveHost, LiveHostError, NotDone};
use crate::vcpu_threads::WatchedThread;
use crate::watch::ThreadEventKind;
use slackline_fence::{HandoverState, Original};
use slackline_linux::sys::Tid;

impl LiveHost {
    /// Leaves the threads of a vCPU under the control of another program that has changed their
    /// scheduling. The threads lose the real-time class, run as the other program has set them, and
    /// get no orders until [`take_back`](LiveHost::take_back).
    ///
    /// The vCPU keeps its reservation, which counts as unused. A paused vCPU stays stopped.
    /// `by_cpuset` is true if the other program has set a cpuset instead of the threads' own
    /// affinity. In that case Slackline restores the threads' affinity. Returns the threads that
    /// the program has changed, each with the state to which it will be restored.
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

    /// Begins to schedule a vCPU again after its threads were left to another program.
    pub(crate) fn take_back(&self, vcpu: VcpuId) -> Result<(), LiveHostError> {
        let mut decider = self.observe()?;
        decider.count_left(vcpu, Span::ZERO, self.clock.now())?;
        if let Some(known) = decider.get_mut(vcpu).filter(|known| known.is_left) {
            known.is_left = false;
            decider.touched.push(vcpu);
            if decider.get(vcpu).is_some_and(|known| !known.is_paused) {
                decider.ask(vcpu, self.clock.now())?;
            }
        }
        self.finish(decider)
    }

    /// Records the CPU time that a vCPU has used on any CPU while its threads are left to another
    /// program. Also records `moved`, the CPU time of threads that another program has moved out of
    /// the vCPU's process tree.
    pub(crate) fn count_left(&self, vcpu: VcpuId, moved: Span) -> Result<(), LiveHostError> {
        let mut decider = self.observe()?;
        decider.count_left(vcpu, moved, self.clock.now())?;
        self.finish(decider)
    }
}

impl LiveHost {
    /// Records CPU time that threads of a vCPU's process tree have used between `since` and now
    /// outside the cgroup of the tree.
    pub(crate) fn count_outside(
        &self,
        vcpu: VcpuId,
        since: Time,
        used: Span,
    ) -> Result<(), LiveHostError> {
        let mut decider = self.observe()?;
        let to = decider.now;
        if decider.get(vcpu).is_some() && since < to {
            decider.records.record(&Record::Elsewhere { vcpu, from: since, to, used });
        }
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
        let how = HandoverState { stays_stopped: known.is_paused, by_cpuset };
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
        // CPU time that was not charged to a CPU yet is recorded as used under the other program.
        let unreported = std::mem::take(&mut self.pcpus.unreported[vcpu.slot()]);
        self.pcpus.refused.retain(|&(refused, ..)| refused != vcpu);
        if let Some(known) = self.get_mut(vcpu) {
            known.used_left = unreported;
            known.threads.values_mut().for_each(|known| known.is_elsewhere = false);
        }
        Ok(changed)
    }

    /// Records the CPU time of a vCPU whose threads are left to another program, and the CPU time
    /// `moved` of threads that were moved out of its tree. `now` is the monotonic time.
    fn count_left(&mut self, vcpu: VcpuId, moved: Span, now: Time) -> Result<(), LiveHostError> {
        self.now = self.now.max(self.of_run(now));
        let at = self.now;
        let Some(known) = self.get_mut(vcpu) else { return Ok(()) };
        if known.is_left {
            known.used_left += more_of(known, |_| true, now)?;
        }
        known.used_left += moved;
        let used = std::mem::take(&mut known.used_left);
        let from = std::mem::replace(&mut known.left_until, at);
        if !used.is_zero() {
            self.records.record(&Record::Elsewhere { vcpu, from, to: at, used });
        }
        Ok(())
    }

    /// Records whether a thread runs on a CPU that is not managed, after the event `what` of the
    /// thread.
    pub(super) fn note_place(
        &mut self,
        thread: &WatchedThread,
        what: ThreadEventKind,
        cpu: Option<CpuId>,
    ) {
        let vcpu = self.get_mut(thread.vcpu);
        let Some(known) = vcpu.and_then(|vcpu| vcpu.threads.get_mut(&thread.tid)) else { return };
        match what {
            ThreadEventKind::SwitchedIn => known.is_elsewhere = cpu.is_none(),
            ThreadEventKind::SwitchedOut { .. } => known.is_elsewhere = false,
            _ => {}
        }
        if known.is_elsewhere && !self.away.contains(&thread.vcpu) {
            self.away.push(thread.vcpu);
        }
    }

    /// Charges CPU time that threads have used on unmanaged CPUs although their vCPU is pinned to
    /// `cpu`. The vCPU is charged as if the threads had run on `cpu` since that CPU's last pass. So
    /// the timeslice ends when the slice is used up, whichever CPU it was used on. `now` is the
    /// monotonic time.
    pub(super) fn count_elsewhere(&mut self, cpu: CpuId, now: Time) -> Result<(), LiveHostError> {
        let mut away = std::mem::take(&mut self.away);
        away.retain(|&vcpu| {
            let vcpu = self.get(vcpu).filter(|vcpu| vcpu.wide.is_none() && !vcpu.is_left);
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

/// Returns the CPU time that the threads of a vCPU have used since the last reading. Only threads
/// for which `counts` returns true are read. The argument of `counts` is true if the thread is on
/// an unmanaged CPU.
fn more_of(vcpu: &Vcpu, counts: impl Fn(bool) -> bool, now: Time) -> Result<Span, LiveHostError> {
    let threads = vcpu.threads.values().filter(|known| counts(known.is_elsewhere));
    let mut sum = Span::ZERO;
    for known in threads {
        sum += known.thread.more(now)?;
    }
    Ok(sum)
}
