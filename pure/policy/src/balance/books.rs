//! Samples of the CPU time of vCPUs and CPUs, scaled and averaged. [Diestelhorst §4.2.2, §4.2.3]
//!
//! A sample covers 100 ms or is scaled to it. A new average is the mean of the previous average and
//! the sample. The first sample is taken as the average, or all vCPUs would look starved at the
//! start. [balancer A12, A17]

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use super::{Ratio, SAMPLE, Tau, Weight};
use crate::Roster;

/// Returns the mean of the old average and a sample. Without an old average, returns the sample.
fn average(old: Option<u64>, sample: u64) -> u64 {
    old.map_or(sample, |old| u64::midpoint(old, sample))
}

/// Scales `span`, a time within a sample of length `interval`, to a sample of nominal length.
/// Returns the scaled time in ns.
fn projected(span: Span, interval: Span) -> u64 {
    if interval == SAMPLE {
        return span.ns();
    }
    let ns = u128::from(span.ns()) * u128::from(SAMPLE.ns()) / u128::from(interval.ns().max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Samples and averages of all vCPUs and CPUs of a host.
#[derive(Debug)]
pub(crate) struct LoadSamples {
    vcpus: Roster<VcpuSample>,
    cpus: Vec<CpuSample>,
    /// Speed of a hardware thread while another thread of its core is busy, as a fraction of its
    /// speed while it is alone.
    believed: Ratio,
    /// Time of the last sample.
    since: Time,
}

/// CPU time of a vCPU since its last sample, and averages over earlier samples.
#[derive(Debug)]
struct VcpuSample {
    /// CPU time received in the current sample. Time in which another thread of the core was busy
    /// counts for less.
    received: Span,
    /// Time at which the vCPU blocked. `None` while it is runnable.
    asleep: Option<Time>,
    /// Time for which the vCPU was blocked in the current sample.
    slept: Span,
    /// Start of the current sample of the vCPU. `None` until the vCPU first wakes.
    since: Option<Time>,
    /// Averages per sample: CPU time received, in ns, and weight times the fraction of time for
    /// which the vCPU was runnable. `None` before the first sample.
    average: Option<(u64, u64)>,
    /// Sums over the samples since the last run of the balancer: CPU time received, in ns, and
    /// weight times the fraction of time for which the vCPU was runnable.
    in_run: (u64, u64),
    /// Average of the CPU time per weight (tau) over runs of the balancer, with `PLACES` binary
    /// places. `None` until a run was averaged.
    by_run: Option<u64>,
    /// CPU time received minus the vCPU's share, by weight, of the CPU time that its group of vCPUs
    /// received, in ns. Summed over runs of the balancer.
    lead: i64,
}

/// CPU time delivered by a CPU since its last sample, and averages over earlier samples.
#[derive(Debug)]
struct CpuSample {
    /// Reserved CPU time delivered in the current sample.
    guaranteed: Span,
    /// CPU time that vCPUs received on the CPU in the current sample, reserved or not.
    charged: Span,
    /// Average time that reservations leave to best-effort vCPUs in a sample, in ns. `None` before
    /// the first sample.
    available: Option<u64>,
    /// Other threads of the core of this CPU.
    siblings: CpuSet,
    /// Start of the current busy period. `None` if the CPU is idle.
    busy: Option<Time>,
    /// Total length of the busy periods that have ended.
    was_busy: Span,
    /// Total busy time of the sibling threads until a vCPU on this CPU was last charged or last
    /// started.
    mark: Span,
    /// Total busy time of the sibling threads until the last sample.
    sampled: Span,
    /// Total busy time of this CPU until the last sample.
    was_busy_then: Span,
}

impl LoadSamples {
    /// Creates the samples of a host with `cpus` CPUs. `siblings` returns the other threads of the
    /// core of a CPU.
    pub(crate) fn new(
        cpus: usize,
        siblings: impl Fn(CpuId) -> CpuSet,
        believed: Ratio,
    ) -> LoadSamples {
        let is_whole = believed.some >= believed.of;
        let siblings = |cpu| if is_whole { CpuSet::NONE } else { siblings(cpu) };
        let gave = |cpu| CpuSample {
            guaranteed: Span::ZERO,
            charged: Span::ZERO,
            available: None,
            siblings: siblings(CpuId::new(cpu)),
            busy: None,
            was_busy: Span::ZERO,
            mark: Span::ZERO,
            sampled: Span::ZERO,
            was_busy_then: Span::ZERO,
        };
        let cpus = (0..cpus).map(gave).collect();
        LoadSamples { vcpus: Roster::default(), cpus, believed, since: Time::START }
    }

    /// Starts sampling at `now`.
    pub(crate) fn begin(&mut self, now: Time) {
        self.since = now;
        for gave in &mut self.cpus {
            gave.was_busy_then = gave.busy_until(now);
        }
    }

    /// Adds a vCPU, which is blocked at first.
    pub(crate) fn join(&mut self, vcpu: VcpuId, now: Time) {
        let had = VcpuSample {
            received: Span::ZERO,
            asleep: Some(now),
            slept: Span::ZERO,
            since: None,
            average: None,
            in_run: (0, 0),
            by_run: None,
            lead: 0,
        };
        self.vcpus.insert(vcpu, had);
    }

    pub(crate) fn leave(&mut self, vcpu: VcpuId) {
        self.vcpus.remove(vcpu);
    }

    pub(crate) fn wake(&mut self, vcpu: VcpuId, now: Time) {
        let had = &mut self.vcpus[vcpu];
        let Some(asleep) = had.asleep.take() else { return };
        match had.since {
            Some(since) => had.slept += now.since(asleep.max(since)),
            // The time before the first wake does not count.
            None => had.since = Some(now),
        }
    }

    pub(crate) fn block(&mut self, vcpu: VcpuId, now: Time) {
        self.vcpus[vcpu].asleep.get_or_insert(now);
    }

    /// Marks a CPU as busy or idle.
    pub(crate) fn set_busy(&mut self, cpu: CpuId, is_busy: bool, now: Time) {
        let gave = &mut self.cpus[cpu.index()];
        if is_busy != gave.busy.is_some() {
            gave.was_busy = gave.busy_until(now);
            gave.busy = is_busy.then_some(now);
        }
    }

    /// Records that another vCPU starts on a CPU.
    pub(crate) fn mark(&mut self, cpu: CpuId, now: Time) {
        let busy = self.siblings_busy(cpu, now);
        self.cpus[cpu.index()].mark = busy;
    }

    /// Charges a vCPU for a run interval on a CPU. Time in which another thread of the core was
    /// busy counts for less. [Diestelhorst §4.2.3]
    pub(crate) fn charge(
        &mut self,
        vcpu: VcpuId,
        cpu: CpuId,
        (ran, is_guaranteed): (Span, bool),
        now: Time,
    ) {
        if is_guaranteed {
            self.cpus[cpu.index()].guaranteed += ran;
        }
        self.cpus[cpu.index()].charged += ran;
        let busy = self.siblings_busy(cpu, now);
        let gave = &mut self.cpus[cpu.index()];
        let beside = ran.min(busy.left_after(gave.mark));
        gave.mark = busy;
        let received = ran - self.lost(beside);
        self.vcpus[vcpu].received += received;
    }

    /// Returns the CPU time that counts as lost because the threads of a core slow each other down.
    /// `beside` is run time in which another thread of the core was busy.
    fn lost(&self, beside: Span) -> Span {
        let Ratio { some, of } = self.believed;
        let ns = u128::from(beside.ns()) * u128::from(of.saturating_sub(some)) / u128::from(of);
        Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Returns the total busy time of the other threads of a CPU's core.
    fn siblings_busy(&self, cpu: CpuId, now: Time) -> Span {
        let siblings = self.cpus[cpu.index()].siblings;
        siblings.iter().map(|sibling| self.cpus[sibling.index()].busy_until(now)).sum()
    }

    /// Ends a sample of all vCPUs and CPUs at `now`. `weight` returns the full weight of a vCPU.
    pub(crate) fn sample(&mut self, now: Time, weight: impl Fn(VcpuId) -> Weight, all: &[VcpuId]) {
        let interval = now.since(self.since);
        if interval.is_zero() {
            return;
        }
        self.since = now;
        for index in 0..self.cpus.len() {
            let busy = self.siblings_busy(CpuId::new(index), now);
            let beside = interval.min(busy.left_after(self.cpus[index].sampled));
            let rest = self.cpus[index].take_rest(interval, now);
            // Reserved time and busy siblings are assumed to be independent. [balancer A8]
            let lost = self.lost(beside);
            let gave = &mut self.cpus[index];
            let done = Weight(rest.ns()).part(interval.left_after(lost), interval);
            gave.available =
                Some(average(gave.available, projected(Span::from_ns(done.0), interval)));
            gave.sampled = busy;
        }
        for &vcpu in all {
            let weight = weight(vcpu);
            self.vcpus[vcpu].sample(now, weight);
        }
    }

    /// Ends a run of the balancer: the sums of time and weight since the last run start at zero
    /// again.
    pub(crate) fn end_run(&mut self, all: &[VcpuId]) {
        for &vcpu in all {
            self.vcpus[vcpu].in_run = (0, 0);
        }
    }

    /// Updates the averages over runs of the balancer. Called before a run if tau (CPU time per
    /// weight) is averaged over runs. [balancer A1]
    pub(crate) fn average_run(&mut self, all: &[VcpuId]) {
        for &vcpu in all {
            let had = &mut self.vcpus[vcpu];
            let (time, weight) = had.in_run;
            if let Some(tau) = (u128::from(time) << super::PLACES).checked_div(u128::from(weight)) {
                let tau = u64::try_from(tau).unwrap_or(u64::MAX);
                had.by_run = Some(average(had.by_run, tau));
            }
        }
    }

    /// Updates the lead of each vCPU of a group. All amounts are of the time since the last run of
    /// the balancer. The lead grows by the CPU time that the vCPU received. The lead falls by the
    /// vCPU's share, by weight, of the CPU time that the whole group received.
    pub(crate) fn note_leads(&mut self, group: &[VcpuId]) {
        let (mut received, mut weights) = (0_u128, 0_u128);
        for (time, weight) in group.iter().map(|&vcpu| self.vcpus[vcpu].in_run) {
            received += u128::from(time);
            weights += u128::from(weight);
        }
        for &vcpu in group {
            let had = &mut self.vcpus[vcpu];
            let (time, weight) = had.in_run;
            if let Some(fair) = (received * u128::from(weight)).checked_div(weights) {
                let fair = i64::try_from(fair).unwrap_or(i64::MAX);
                let lead = i64::try_from(time).unwrap_or(i64::MAX).saturating_sub(fair);
                had.lead = had.lead.saturating_add(lead);
            }
        }
    }

    /// Returns the part of a sample that reservations leave on a CPU, averaged over samples. Before
    /// the first sample, returns the length of a whole sample.
    pub(crate) fn available(&self, cpu: CpuId) -> Span {
        Span::from_ns(self.cpus[cpu.index()].available.unwrap_or(SAMPLE.ns()))
    }

    /// Returns the average weight of a vCPU times the fraction of time for which it was runnable.
    /// Zero before the vCPU's first sample, or if the result is below 1/64 of `full`.
    pub(crate) fn weight(&self, vcpu: VcpuId, full: Weight) -> Weight {
        let weight = self.vcpus[vcpu].average.map_or(0, |(_, weight)| weight);
        Weight(if weight < full.0 / 64 { 0 } else { weight })
    }

    /// Returns the tau of a vCPU, its CPU time per weight. The tau is averaged over runs of the
    /// balancer if `by_runs` is true, otherwise over samples.
    pub(crate) fn served(&self, vcpu: VcpuId, by_runs: bool) -> Tau {
        let had = &self.vcpus[vcpu];
        if let Some(time) = had.by_run.filter(|_| by_runs) {
            return Tau { time, weight: 1 << super::PLACES };
        }
        let (time, weight) = had.average.unwrap_or_default();
        Tau { time, weight }
    }

    /// Returns the CPU time that a vCPU received in the samples since the last run of the balancer,
    /// in ns. `None` if the vCPU has left.
    pub(crate) fn had_since_run(&self, vcpu: VcpuId) -> Option<u64> {
        self.vcpus.get(vcpu).map(|had| had.in_run.0)
    }

    /// Returns the CPU time that a vCPU received beyond its share by weight, in ns. Negative if the
    /// vCPU received less. See [`LoadSamples::note_leads`].
    pub(crate) fn lead(&self, vcpu: VcpuId) -> i64 {
        self.vcpus[vcpu].lead
    }
}

impl VcpuSample {
    fn sample(&mut self, now: Time, weight: Weight) {
        let Some(since) = self.since.filter(|&since| since < now) else { return };
        let interval = now.since(since);
        let slept = self.slept + self.asleep.map_or(Span::ZERO, |at| now.since(at.max(since)));
        let received = projected(self.received, interval);
        let awake = weight.part(interval.left_after(slept), interval);
        let old = self.average;
        self.average =
            Some((average(old.map(|old| old.0), received), average(old.map(|old| old.1), awake.0)));
        self.in_run.0 = self.in_run.0.saturating_add(received);
        self.in_run.1 = self.in_run.1.saturating_add(awake.0);
        (self.received, self.slept, self.since) = (Span::ZERO, Span::ZERO, Some(now));
    }
}

impl CpuSample {
    /// Returns the part of an interval in which neither reservations nor other programs used the
    /// CPU. Then starts the counters of the next interval. Busy time that no vCPU received, which
    /// includes dispatch overhead, counts as used by other programs.
    fn take_rest(&mut self, interval: Span, now: Time) -> Span {
        let busy = self.busy_until(now);
        let was_busy = busy - core::mem::replace(&mut self.was_busy_then, busy);
        let others = was_busy.left_after(core::mem::take(&mut self.charged));
        interval.left_after(core::mem::take(&mut self.guaranteed)).left_after(others)
    }

    /// Returns the total busy time of the CPU up to `now`.
    fn busy_until(&self, now: Time) -> Span {
        self.was_busy + self.busy.map_or(Span::ZERO, |since| now.since(since))
    }
}

#[cfg(test)]
mod tests;
