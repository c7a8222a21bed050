//! True demand of the managed VMs, from a run in which each VM has a CPU of its own.

use slackline_demand::{Collector, DemandCounts, Job};
use slackline_manager::quantile;
use slackline_policy::{Topology, Values};
use slackline_scenario::io::{ClientKind, DeviceStep};
use slackline_scenario::{Domain, Program, Scenario, Step};
use slackline_sim::Steering;
use slackline_trace::{Record, Sink, VcpuName};
use slackline_units::{CpuShare, Span, Time, VcpuId};

use super::knob::Knob;
use super::{ManageError, ManagePlan, VmGoals};

/// Share that each VM gets in the run in which each VM has a CPU of its own.
const ALONE: CpuShare = CpuShare::from_ppm(900_000);

/// Step of all shares: a thousandth of a CPU, in millionths.
const STEP_PPM: u64 = 1_000;

/// True demand of the managed VMs of a scenario.
#[derive(Debug)]
pub(super) struct Truth {
    pub(super) vms: Vec<TrueVm>,
    /// Largest allowed sum of the shares of managed VMs.
    pub(super) capacity: CpuShare,
}

/// A managed VM with its true demand.
#[derive(Debug)]
pub(super) struct TrueVm {
    pub(super) vcpu: VcpuId,
    pub(super) domain: String,
    pub(super) goals: VmGoals,
    pub(super) knob: Knob,
    /// Share of the VM when the run begins.
    pub(super) share: CpuShare,
    pub(super) jobs: Vec<Job>,
    /// Share that would cover the demand of the VM, for each round.
    pub(super) needs: Vec<CpuShare>,
}

impl Truth {
    /// Finds the VMs that can be managed, and simulates their demand.
    ///
    /// # Errors
    /// If no VM can be managed, or if the simulation fails.
    pub(super) fn of(scenario: &Scenario, plan: &ManagePlan) -> Result<Truth, ManageError> {
        if plan.round.is_zero() || scenario.length / plan.round < 2 {
            return Err(ManageError::Short { length: scenario.length, round: plan.round });
        }
        let spec = scenario.policy.spec;
        let (mut vms, mut others) = (Vec::new(), 0_u64);
        for domain in &scenario.domains {
            let [vcpu] = domain.vcpus[..] else { continue };
            let values = domain.share(vcpu, spec)?;
            let is_reserved = matches!((spec.promise)(&values), Ok(Some(_)));
            let Some((knob, share)) = Knob::new(spec, values) else { continue };
            let Some(goals) = plan.goals.of(&domain.name) else {
                // The cap of a VM that is not managed reserves nothing.
                others += if is_reserved { u64::from(share.ppm()) } else { 0 };
                continue;
            };
            if let Some(step) = closed_work(scenario, domain, vcpu) {
                return Err(ManageError::Closed { name: domain.name.clone(), step });
            }
            let (name, needs) = (domain.name.clone(), Vec::new());
            vms.push(TrueVm { vcpu, domain: name, goals, knob, share, jobs: Vec::new(), needs });
        }
        if vms.is_empty() {
            return Err(ManageError::NoVms { policy: spec.name });
        }
        let reserve = scenario.policy.values.iter().find(|(field, _)| field.name == "reserve");
        let reserve = reserve.map_or(0, |(_, value)| share_of(&value.to_string()));
        let all = (1_000_000 - reserve) * scenario.host.cpus as u64;
        let capacity = u32::try_from(all.saturating_sub(others)).unwrap_or(u32::MAX);
        let mut truth = Truth { vms, capacity: CpuShare::from_ppm(capacity) };
        truth.simulate(scenario, plan)?;
        Ok(truth)
    }

    fn simulate(&mut self, scenario: &Scenario, plan: &ManagePlan) -> Result<(), ManageError> {
        let mut alone = scenario.clone();
        alone.host.cpus = scenario.vcpus().count().max(alone.host.cpus).min(256);
        alone.host.topology = Topology::flat(alone.host.cpus);
        alone.changes.clear();
        let mut begin = Alone { collector: Collector::new(Time::START), shares: Vec::new() };
        for vm in &self.vms {
            begin.shares.extend(vm.knob.without_limit(ALONE).ok().map(|values| (vm.vcpu, values)));
        }
        slackline_sim::run_steered(&alone, plan.round, &mut begin)?;
        let demand = begin.collector.finish();
        for vm in &mut self.vms {
            let stay = demand.vcpus.iter().find(|stay| stay.domain == vm.domain);
            vm.jobs = stay.map(|stay| stay.jobs.clone()).unwrap_or_default();
            vm.needs = vm.needs_of(scenario.length, plan.round);
        }
        Ok(())
    }

    /// Divides a sum of shares among the VMs in proportion to their mean demand.
    pub(super) fn fixed_shares(&self, sum: u64) -> Vec<CpuShare> {
        let means: Vec<u64> = self
            .vms
            .iter()
            .map(|vm| vm.needs.iter().map(|need| u64::from(need.ppm())).sum::<u64>())
            .collect();
        let all = means.iter().sum::<u64>().max(1);
        let share = |mean: &u64| {
            let ppm = u128::from(sum) * u128::from(*mean) / u128::from(all);
            CpuShare::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX))
        };
        means.iter().map(share).collect()
    }
}

impl TrueVm {
    /// Returns for each round the share that covers the demand of the round. The demand exceeds
    /// this share in at most as many periods of the round as the VM's goal for misses allows.
    fn needs_of(&self, length: Span, round: Span) -> Vec<CpuShare> {
        let period = self.knob.period;
        let mut demanded = vec![Span::ZERO; index(length / period) + 1];
        let mut free = Time::START;
        for job in &self.jobs {
            let mut from = job.ready.max(free);
            free = from.after(job.work);
            while from < free {
                let nth = from.since(Time::START) / period;
                let to = free.min(Time::START + period * (nth + 1));
                if let Some(sum) = demanded.get_mut(index(nth)) {
                    *sum += to - from;
                }
                from = to;
            }
        }
        let whole = length / round;
        let of_round = |nth: u64| {
            let from = index((round * nth) / period);
            let to = index((round * (nth + 1)) / period).min(demanded.len());
            let mut counts = DemandCounts::new();
            demanded[from.min(to)..to].iter().for_each(|&it| *counts.entry(it).or_default() += 1);
            let periods = (to - from.min(to)) as u64;
            let misses = u64::from(self.goals.goals.misses_ppm.unwrap_or(0));
            let covered = quantile(&counts, periods * misses / 1_000_000);
            let ppm = (u128::from(covered.ns()) * 1_000_000).div_ceil(u128::from(period.ns()));
            let ppm = u64::try_from(ppm).unwrap_or(u64::MAX).div_ceil(STEP_PPM) * STEP_PPM;
            let share = CpuShare::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX));
            share.min(self.goals.ceiling).max(self.goals.floor)
        };
        (0..whole).map(of_round).collect()
    }
}

/// Sink of a run in which every VM has a CPU of its own.
struct Alone {
    collector: Collector,
    shares: Vec<(VcpuId, Values)>,
}

impl Sink for Alone {
    fn record(&mut self, record: &Record) {
        self.collector.record(record);
    }

    fn named(&mut self, named: &VcpuName) {
        self.collector.named(named);
    }
}

impl Steering for Alone {
    fn steer(&mut self, _: Time) -> Vec<(VcpuId, Values)> {
        std::mem::take(&mut self.shares)
    }
}

/// Returns a description of the work of a VM by which the release of a job depends on the end of an
/// earlier job. `None` if there is no such work.
fn closed_work(scenario: &Scenario, domain: &Domain, vcpu: VcpuId) -> Option<&'static str> {
    let Some(system) = &domain.system else { return closed_step(domain.program_of(vcpu)) };
    let mut clients = scenario.io.iter().flat_map(|io| &io.clients);
    let waits = clients.any(|client| {
        scenario.domains[client.to].id == domain.id
            && !matches!(client.kind, ClientKind::Open { .. } | ClientKind::Pings { .. })
    });
    let mut tasks = system.tasks.iter();
    let step = tasks.find_map(|task| closed_step(&task.program));
    step.or(waits.then_some("answers a client that waits for answers"))
}

/// Returns a description of the first step of a program by which the release of a job depends on
/// the end of an earlier job. `None` if there is no such step.
fn closed_step(program: &Program) -> Option<&'static str> {
    let of = |step: &Step| match step {
        Step::Compute(_) | Step::Release { .. } | Step::Done => None,
        Step::Device(DeviceStep::Accept | DeviceStep::Answer { .. }) => None,
        Step::Device(DeviceStep::Read { .. }) => Some("waits for a disk"),
        Step::Device(DeviceStep::Ask { .. }) => Some("waits for a server"),
        Step::Device(DeviceStep::Send { .. }) => Some("waits for the window of a stream"),
        Step::ComputeForever => Some("computes forever"),
        Step::ComputeUntil { .. } => Some("computes until an instant"),
        Step::Sleep(_) => Some("sleeps after a job"),
        Step::Instant { .. } => Some("leaves out instants during a job"),
        Step::Yield => Some("yields after a job"),
        Step::Barrier { .. } => Some("waits for other nodes"),
        Step::Lock | Step::Unlock => Some("waits for a lock"),
    };
    let recorded = program.recording.as_ref().map(|_| "blocks after a job");
    let is_open =
        |step: &Step| matches!(step, Step::Release { .. } | Step::Device(DeviceStep::Accept));
    let is_endless = program.repeat && !program.steps.iter().any(is_open);
    let endless = is_endless.then_some("computes forever");
    program.steps.iter().find_map(of).or(recorded).or(endless)
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("a run has few periods")
}

/// Returns a share such as `0.1cpu` in millionths.
fn share_of(written: &str) -> u64 {
    written.trim_matches('"').parse().map_or(0, |share: CpuShare| share.ppm().into())
}
