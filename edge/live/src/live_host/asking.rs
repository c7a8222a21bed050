//! Reading the states and CPU times of vCPUs from the kernel, when events do not report them.

use slackline_host::{CpuUse, Fact};
use slackline_units::{CpuId, Time, VcpuId};

use super::LiveHostError;
use super::decider::{Decider, Vcpu, broken};

impl Decider {
    /// Reads the state of every vCPU that may run on a CPU, after events of that CPU were lost.
    /// `now` is the monotonic time.
    pub(super) fn ask_everybody(&mut self, cpu: CpuId, now: Time) -> Result<(), LiveHostError> {
        for slot in 0..self.vcpus.len() {
            let Some(vcpu) = self.vcpus[slot].as_ref() else { continue };
            let is_ours = vcpu.held_since.is_none() && !vcpu.is_left;
            if !is_ours || vcpu.home.get().is_some_and(|home| home != cpu) {
                continue;
            }
            self.ask(vcpu.vcpu, now)?;
        }
        Ok(())
    }

    /// Reads from the kernel the state of the vCPU chosen for a CPU, if the vCPU's timeslice has
    /// ended. The caller has found that the vCPU has not run since the last pass. A signal can stop
    /// the thread of a vCPU while the thread is frozen, without any event. The stop of a process
    /// tree always shows in events of its threads.
    pub(super) fn ask_chosen(&mut self, cpu: CpuId) -> Result<(), LiveHostError> {
        let turn = self.pcpus.all[cpu.index()].turn;
        let ended = turn.filter(|&(_, until, _)| until.is_some_and(|until| until <= self.now));
        let Some((vcpu, ..)) = ended else { return Ok(()) };
        let is_ours = |known: &Vcpu| !known.is_tree && !known.is_stopped() && !known.is_left;
        if self.get(vcpu).is_some_and(is_ours) {
            self.ask(vcpu, self.monotonic())?;
        }
        Ok(())
    }

    /// Reads from the kernel whether a vCPU is runnable. If that has changed, reports the change to
    /// the host. `now` is the monotonic time.
    pub(super) fn ask(&mut self, vcpu: VcpuId, now: Time) -> Result<(), LiveHostError> {
        let was_awake = self.host.moment().is_awake(vcpu);
        let Some(known) = self.vcpus[vcpu.slot()].as_mut() else { return Ok(()) };
        for known in known.threads.values_mut() {
            if let Some(is_awake) = known.thread.is_runnable()? {
                known.is_awake = is_awake;
                known.since = now;
            }
        }
        let fact = match (was_awake, self.is_any_awake(vcpu)) {
            (true, false) => Fact::Blocked(vcpu),
            (false, true) => Fact::Woke(vcpu),
            _ => return Ok(()),
        };
        self.touched.push(vcpu);
        self.step(self.now, &[], fact).map_err(broken)
    }

    /// Reports the CPU time that each vCPU pinned to a CPU has used since the last pass, on hosts
    /// without scheduling events. The vCPUs share one CPU, so their run intervals are reported as
    /// if they had followed each other. `now` is the monotonic time.
    pub(super) fn poll(&mut self, cpu: CpuId, now: Time) -> Result<(), LiveHostError> {
        self.now = self.now.max(self.of_run(now));
        let at = self.now;
        let mut used = Vec::new();
        let mut from = self.pcpus.all[cpu.index()].reported;
        for vcpu in self.vcpus.iter().flatten() {
            if vcpu.is_left || vcpu.home.get() != Some(cpu) {
                continue;
            }
            for known in vcpu.threads.values() {
                let ran = known.thread.more(now)?.min(at.since(from));
                if !ran.is_zero() {
                    used.push(CpuUse { vcpu: vcpu.vcpu, cpu, from, to: from + ran, ran });
                    from += ran;
                }
            }
        }
        self.pcpus.all[cpu.index()].reported = from;
        self.step(at, &used, Fact::Passed).map_err(broken)
    }
}
