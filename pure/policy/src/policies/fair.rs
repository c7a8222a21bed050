//! Fair: ordinary scheduling of Linux, EEVDF with weights and quotas. Source: `kernel/sched/fair.c`
//! of Linux 6.12 and later. Only for simulation, since on a live host the kernel itself schedules
//! in this way.
//!
//! Each CPU has a queue of entities, which are its vCPUs. An entity's virtual time is the CPU time
//! that it received, divided by its weight. An entity is *eligible* if its virtual time is not
//! ahead of the weighted average of the queue. The eligible entity with the earliest virtual
//! deadline runs, at least until its slice is used. The end of a slice is noticed at the next tick.
//!
//! An entity that blocks keeps its lag, the virtual time by which it is behind the average. An
//! entity that is ahead of the average when it blocks stays in the queue and is *delayed*, until
//! the average has caught up.
//!
//! Holds after every call: a runnable vCPU with quota left is in exactly one queue.
//!
//! Departs from its source: groups of threads have no weight of their own. Busy CPUs exchange no
//! vCPUs, and only an idle CPU takes a waiting vCPU from another CPU. A quota belongs to a vCPU,
//! and is not spent in slices of 5 ms.

mod queue;

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, Span, Time, VcpuId};

use crate::{
    Account, AdmitError, Entitlement, Field, Moment, Pick, Policy, Roster, Spec, TimesliceEnd,
    Values,
};

use queue::{Entity, FairQueue};

const SLICE: Field = Field::positive_span(
    "slice",
    "1400us",
    "time for which a vCPU runs before another vCPU's turn",
);
const TICK: Field = Field::positive_span("tick", "4ms", "interval at which slices are checked");
const PHASE: Field = Field::span("phase", "0s", "time of the first tick");
const PERIOD: Field = Field::positive_span("period", "100ms", "period of quotas");
const WEIGHT: Field = Field::weight("weight", "1024", "share relative to other vCPUs");
const OWN_SLICE: Field =
    Field::maybe_span("slice", "slice of this vCPU, in place of the policy's slice");
const QUOTA: Field =
    Field::cap("quota", CpuShare::from_ppm(1_000_000), "limit of CPU time in each period");

/// Description of the policy `fair`: its name, its parameters and its help page.
pub(crate) const SPEC: Spec = Spec {
    name: "fair",
    summary: "ordinary scheduling of Linux (EEVDF), simulated only",
    page: "\
Ordinary scheduling of Linux: EEVDF with weights and quotas. Simulated only.

When to use it: for hosts without reservations. `slackline whatif` uses it for
recordings of `record` without the daemon, of perf and of ftrace.

  policy = { name = \"fair\" }
  [[domain]]
  name = \"web\"
  work = { kind = \"spin\" }
  share.fair = { weight = 2048, quota = \"0.5cpu\" }

{parameters}
Rules:
- Runnable vCPUs of a CPU receive CPU time in proportion to their weights.
- A vCPU runs until its slice is used, which is noticed at a tick. Among the
  vCPUs that are not ahead of the average, the vCPU with the earliest virtual
  deadline runs next.
- A vCPU that wakes has the lag with which it blocked, and preempts no vCPU.
- An idle CPU takes a waiting vCPU from the longest queue of another CPU.
- A vCPU with a quota does not run after it has used the quota of the period.

Limits:
- No reservations. `slackline run` and `serve` refuse this policy.
- Busy CPUs exchange no vCPUs, and groups of vCPUs have no weight.

See also: `slackline help whatif`, `credit` (weights), `edf` (reservations).",
    policy_fields: &[SLICE, TICK, PHASE, PERIOD],
    share_fields: &[WEIGHT, OWN_SLICE, QUOTA],
    conflict: |_| None,
    promise: |_| Ok(None),
    keeps: |_, _| true,
    limit: Some(|share, _| alloc::vec![(QUOTA.name, alloc::format!("\"{share}\""))]),
    together: None,
    payer: None,
    build: |values, topology| {
        Box::new(Fair {
            slice: values.span(&SLICE),
            tick: values.span(&TICK),
            phase: values.span(&PHASE),
            period: values.span(&PERIOD),
            vcpus: Roster::default(),
            cpus: alloc::vec![FairCpu::default(); topology.cpus()],
        })
    },
};

struct Fair {
    slice: Span,
    tick: Span,
    phase: Span,
    period: Span,
    vcpus: Roster<FairVcpu>,
    cpus: Vec<FairCpu>,
}

/// State of one vCPU: the CPU of its queue, and its parameters.
#[derive(Clone, Debug)]
struct FairVcpu {
    /// CPU in whose queue the vCPU is, or was last.
    home: CpuId,
    weight: u64,
    slice: Span,
    quota: Option<Quota>,
}

/// Quota of a vCPU: the limit of its CPU time in each period, and the part that is left.
#[derive(Clone, Copy, Debug)]
struct Quota {
    /// CPU time that the vCPU may use in each period.
    budget: Span,
    /// CPU time left of `budget` in the current period.
    left: Span,
    /// End of the current period, at which the quota is full again.
    refill: Time,
}

/// State of one CPU: its queue, the running vCPU, and its timer.
#[derive(Clone, Debug, Default)]
struct FairCpu {
    queue: FairQueue,
    /// vCPU that runs and keeps the CPU until its slice is used.
    running: Option<VcpuId>,
    /// vCPU chosen by the last pass.
    chosen: Option<VcpuId>,
    /// Next tick, or the next refill of a quota if that is earlier. `None` if no vCPU is queued or
    /// waits for its quota.
    timer: Option<Time>,
    /// vCPUs that have used their quota and wait for the next period.
    parked: Vec<VcpuId>,
}

impl Policy for Fair {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        let home = at.allowed(vcpu).first().unwrap_or(CpuId::new(0));
        let state = self.read(at, home, share);
        self.vcpus.insert(vcpu, state);
        Ok(())
    }

    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        let home = self.vcpus[vcpu].home;
        let state = self.read(at, home, share);
        let (weight, slice) = (state.weight, state.slice);
        self.vcpus[vcpu] = state;
        self.cpus[home.index()].queue.change(vcpu, weight, slice);
        self.unpark(at, home);
        if at.is_allowed(vcpu, home) || !at.is_awake(vcpu) {
            return Ok(CpuSet::one(home));
        }
        self.forget(vcpu);
        let next = at.allowed(vcpu).first().unwrap_or(home);
        self.enter(at, vcpu, next);
        let mut cpus = CpuSet::one(home);
        cpus.insert(next);
        Ok(cpus)
    }

    fn on_leave(&mut self, _: &Moment, vcpu: VcpuId) -> CpuSet {
        self.forget(vcpu);
        let home = self.vcpus.remove(vcpu).map(|state| state.home);
        home.map_or(CpuSet::NONE, CpuSet::one)
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let home = self.home_for(at, vcpu);
        self.enter(at, vcpu, home);
        CpuSet::one(home)
    }

    fn on_start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let Some(cpu) = at.cpu_of(vcpu) else { return CpuSet::NONE };
        let home = self.vcpus[vcpu].home;
        if home != cpu {
            self.migrate(vcpu, cpu);
        }
        let state = &mut self.cpus[cpu.index()];
        state.running = Some(vcpu);
        CpuSet::NONE
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        let home = self.vcpus[vcpu].home;
        self.cpus[home.index()].queue.charge(vcpu, ran);
        self.refill(at, vcpu);
        if let Some(quota) = &mut self.vcpus[vcpu].quota {
            quota.left = quota.left.left_after(ran);
        }
        CpuSet::NONE
    }

    fn on_timeslice_end(&mut self, at: &Moment, vcpu: VcpuId, why: TimesliceEnd) -> CpuSet {
        let home = self.vcpus[vcpu].home;
        match why {
            TimesliceEnd::Yield => {
                self.cpus[home.index()].queue.renew(vcpu);
                self.stop(home, vcpu);
            }
            TimesliceEnd::Limit => self.park_if_spent(at, vcpu),
        }
        CpuSet::NONE
    }

    fn on_block(&mut self, _: &Moment, vcpu: VcpuId) -> CpuSet {
        let home = self.vcpus[vcpu].home;
        self.stop(home, vcpu);
        let state = &mut self.cpus[home.index()];
        state.parked.retain(|&other| other != vcpu);
        state.queue.leave(vcpu, self.tick);
        CpuSet::NONE
    }

    fn prepare_pick(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let occupant = at.occupant(cpu).filter(|&vcpu| at.is_eligible(vcpu, cpu));
        let state = &mut self.cpus[cpu.index()];
        if let Some(vcpu) = state.running.filter(|&vcpu| Some(vcpu) == occupant) {
            if !state.queue.has_used_slice(vcpu) {
                state.chosen = Some(vcpu);
                self.set_timer(at, cpu);
                return CpuSet::NONE;
            }
            state.queue.renew(vcpu);
        }
        let is_eligible = |vcpu| at.is_eligible(vcpu, cpu);
        state.chosen = state.queue.choose(self.tick, is_eligible);
        // A vCPU that continues to run does not start again.
        state.running = state.chosen.filter(|&vcpu| Some(vcpu) == occupant);
        self.set_timer(at, cpu);
        CpuSet::NONE
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        let state = &self.cpus[cpu.index()];
        let chosen = state.chosen.filter(|&vcpu| at.is_eligible(vcpu, cpu));
        let first = || state.queue.first(|vcpu| at.is_eligible(vcpu, cpu));
        let Some(vcpu) = chosen.or_else(first).or_else(|| self.waiting_elsewhere(at, cpu)) else {
            return Pick::Idle;
        };
        let limit = self.vcpus[vcpu].quota.map(|quota| quota.left);
        Pick::Run { vcpu, limit, entitlement: Entitlement::Spare }
    }

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        self.cpus[cpu.index()].timer
    }

    fn on_timer(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        self.unpark(at, cpu);
        self.set_timer(at, cpu);
        CpuSet::NONE
    }

    fn weighs_slack(&self) -> bool {
        true
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        let state = &self.vcpus[vcpu];
        let left = state.quota.map_or("none".into(), |quota| quota.left.to_string());
        alloc::vec![("weight", state.weight.to_string()), ("quota left", left)]
    }
}

impl Fair {
    /// Reads the parameters of a vCPU in the queue of the CPU `home`. Its quota is full.
    fn read(&self, at: &Moment, home: CpuId, share: &Values) -> FairVcpu {
        let budget = share.cap(&QUOTA).map(|cap| part_of(self.period, cap));
        let refill = self.period_end(at.now());
        FairVcpu {
            home,
            weight: u64::from(share.weight(&WEIGHT).get()),
            slice: share.maybe_span(&OWN_SLICE).unwrap_or(self.slice),
            quota: budget.map(|budget| Quota { budget, left: budget, refill }),
        }
    }

    /// Returns the CPU whose queue a woken vCPU enters: the CPU where the vCPU ran last. If the
    /// affinity of the vCPU does not allow that CPU, returns the CPU with the shortest queue.
    fn home_for(&self, at: &Moment, vcpu: VcpuId) -> CpuId {
        if let Some(last) = at.last_cpu_of(vcpu).filter(|&cpu| at.is_allowed(vcpu, cpu)) {
            return last;
        }
        let allowed = at.allowed(vcpu);
        let cpus = (0..self.cpus.len()).map(CpuId::new).filter(|&cpu| allowed.contains(cpu));
        let length = |cpu: &CpuId| (self.cpus[cpu.index()].queue.len(), cpu.index());
        cpus.min_by_key(length).unwrap_or(self.vcpus[vcpu].home)
    }

    /// Adds a vCPU that wants a CPU to the queue of the CPU `home`.
    fn enter(&mut self, at: &Moment, vcpu: VcpuId, home: CpuId) {
        if self.vcpus[vcpu].home != home {
            self.forget(vcpu);
            self.vcpus[vcpu].home = home;
        }
        self.refill(at, vcpu);
        let FairVcpu { weight, slice, quota, .. } = self.vcpus[vcpu];
        let state = &mut self.cpus[home.index()];
        if quota.is_some_and(|quota| quota.left.is_zero()) {
            state.parked.push(vcpu);
        } else {
            state.queue.enter(Entity::new(vcpu, weight, slice));
        }
    }

    /// Removes a vCPU from the queue of its CPU, and drops its lag.
    fn forget(&mut self, vcpu: VcpuId) {
        let home = self.vcpus[vcpu].home;
        self.stop(home, vcpu);
        let state = &mut self.cpus[home.index()];
        state.parked.retain(|&other| other != vcpu);
        state.queue.forget(vcpu);
    }

    /// Moves a vCPU from the queue of its CPU to the queue of another CPU.
    fn migrate(&mut self, vcpu: VcpuId, cpu: CpuId) {
        let home = self.vcpus[vcpu].home;
        self.stop(home, vcpu);
        self.cpus[home.index()].queue.leave_with_lag(vcpu, self.tick);
        let lag = self.cpus[home.index()].queue.take_lag(vcpu);
        let FairVcpu { weight, slice, .. } = self.vcpus[vcpu];
        self.vcpus[vcpu].home = cpu;
        let queue = &mut self.cpus[cpu.index()].queue;
        queue.keep_lag(vcpu, lag);
        queue.enter(Entity::new(vcpu, weight, slice));
    }

    /// Records that a vCPU neither runs on a CPU nor is chosen for it any more.
    fn stop(&mut self, cpu: CpuId, vcpu: VcpuId) {
        let state = &mut self.cpus[cpu.index()];
        state.running = state.running.filter(|&running| running != vcpu);
        state.chosen = state.chosen.filter(|&chosen| chosen != vcpu);
    }

    /// Returns a vCPU that may run on `cpu` and waits in the queue of another CPU. The longest
    /// queue is searched first.
    fn waiting_elsewhere(&self, at: &Moment, cpu: CpuId) -> Option<VcpuId> {
        let others = (0..self.cpus.len()).filter(|&other| other != cpu.index());
        let waits = |vcpu: VcpuId| at.cpu_of(vcpu).is_none() && at.is_eligible(vcpu, cpu);
        let found = others.filter_map(|other| {
            let queue = &self.cpus[other].queue;
            Some((queue.len(), core::cmp::Reverse(other), queue.first(waits)?))
        });
        found.max_by_key(|&(length, other, _)| (length, other)).map(|(.., vcpu)| vcpu)
    }

    /// Removes a vCPU from its queue if its quota is used.
    fn park_if_spent(&mut self, at: &Moment, vcpu: VcpuId) {
        self.refill(at, vcpu);
        let FairVcpu { home, quota, .. } = self.vcpus[vcpu];
        if quota.is_some_and(|quota| quota.left.is_zero()) {
            self.stop(home, vcpu);
            let state = &mut self.cpus[home.index()];
            state.queue.leave_with_lag(vcpu, self.tick);
            state.parked.retain(|&other| other != vcpu);
            state.parked.push(vcpu);
        }
    }

    /// Puts the vCPUs that wait for their quota back into the queue, if their quota is full again.
    fn unpark(&mut self, at: &Moment, cpu: CpuId) {
        let parked = core::mem::take(&mut self.cpus[cpu.index()].parked);
        for vcpu in parked {
            self.enter(at, vcpu, cpu);
        }
    }

    /// Refills the quota of a vCPU if its period has ended.
    fn refill(&mut self, at: &Moment, vcpu: VcpuId) {
        let end = self.period_end(at.now());
        if let Some(quota) = &mut self.vcpus[vcpu].quota
            && at.now() >= quota.refill
        {
            (quota.left, quota.refill) = (quota.budget, end);
        }
    }

    /// Sets the timer of a CPU to the next tick if the queue of the CPU is not empty, or to the
    /// next refill of a quota for which a vCPU waits, whichever is earlier.
    fn set_timer(&mut self, at: &Moment, cpu: CpuId) {
        let (tick, phase) = (self.tick, self.phase);
        let passed = (at.now().since(Time::START) + tick).left_after(phase % tick);
        let next_tick = at.now().after(tick - passed % tick);
        let state = &self.cpus[cpu.index()];
        let ticks = (state.queue.len() > 0).then_some(next_tick);
        let refills = state.parked.iter().filter_map(|&vcpu| self.vcpus[vcpu].quota);
        let refill = refills.map(|quota| quota.refill.max(at.now().after(Span::from_ns(1)))).min();
        self.cpus[cpu.index()].timer = ticks.into_iter().chain(refill).min();
    }

    /// Returns the end of the quota period that contains `now`.
    fn period_end(&self, now: Time) -> Time {
        now.after(self.period - now.since(Time::START) % self.period)
    }
}

/// Returns the part of a period that corresponds to a share of a CPU, at least 1 ns.
fn part_of(period: Span, share: CpuShare) -> Span {
    let whole = Reservation::new(Span::from_ns(u64::from(share.ppm()).max(1)), Span::from_ms(1));
    whole.map_or(period, |whole| whole.over(period)).max(Span::from_ns(1))
}

#[cfg(test)]
mod tests {
    use crate::picture::picture;

    #[test]
    fn two_spinning_vcpus_alternate_at_ticks_under_policy_fair() {
        picture(
            "fair slice=3ms tick=4ms",
            "
            a     rrrrrrrrrrrrrrrrrrrrrrrr
            b     rrrrrrrrrrrrrrrrrrrrrrrr
            cpu0  aaaabbbbaaaabbbbaaaabbbb
        ",
        );
    }

    #[test]
    fn cpu_time_under_policy_fair_is_divided_by_weight() {
        picture(
            "fair slice=1ms tick=1ms",
            "
            a weight=2048     rrrrrrrrrrrrrrrrrrrrrrrr
            b     rrrrrrrrrrrrrrrrrrrrrrrr
            cpu0  abaabaabaabaabaabaabaaba
        ",
        );
    }

    #[test]
    fn woken_vcpu_under_policy_fair_runs_next_without_preemption() {
        picture(
            "fair slice=3ms tick=4ms",
            "
            a     rrrrrrrrrrrrrrrrrrrrrrrr
            b     zzzzzrrrrzzzzrrrrrzzzzzz
            cpu0  aaaaaaaabaaaaaaabbaaaaaa
        ",
        );
    }

    #[test]
    fn idle_cpu_under_policy_fair_takes_vcpu_waiting_elsewhere() {
        picture(
            "fair slice=3ms tick=4ms",
            "
            a     rrrrrrrrrrrrrrrrrrrrrrrr
            b     rrrrrrrrrzzzzzzzzzzzzzzz
            c     rrrrrrrrrrrrrrrrrrrrrrrr
            cpu0  aaaaccccaaaaaaaaaaaaaaaa
            cpu1  bbbbbbbbbccccccccccccccc
        ",
        );
    }

    #[test]
    fn policy_fair_throttles_vcpu_with_exhausted_quota_until_next_period() {
        picture(
            "fair slice=3ms tick=4ms period=10ms",
            "
            a quota=0.3cpu  rrrrrrrrrrrrrrrrrrrrrrrr
            cpu0  aaa.......aaa.......aaa.
        ",
        );
    }
}
