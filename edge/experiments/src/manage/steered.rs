//! A run in which a rule changes shares between rounds.

use slackline_manager::{Round, VmRound};
use slackline_policy::Values;
use slackline_scenario::Scenario;
use slackline_service::Name;
use slackline_sim::{Steering, trace_header};
use slackline_trace::{Exchange, Record, Sink, VcpuName};
use slackline_units::{CpuShare, Span, Time, VcpuId};

use super::measured::measure_periods;
use super::predictor::WhatIf;
use super::rules::{Changes, RuleInput, ShareRule};
use super::truth::{TrueVm, Truth};
use super::window::Window;
use super::{ManageError, ManagePlan, ManagedRound, ManagedRun};

/// Sink that measures each round, and changes shares at the end of the round.
pub(super) struct SteeredRun<'a> {
    plan: &'a ManagePlan,
    truth: &'a Truth,
    rule: Box<dyn ShareRule>,
    window: Window,
    names: Vec<Name>,
    shares: Vec<CpuShare>,
    /// True if the run must start with `shares` instead of the shares of the scenario.
    is_begun_otherwise: bool,
    progress: Vec<Progress>,
    rounds: Vec<ManagedRound>,
    decisions: Vec<(Time, String)>,
    begin: Time,
}

/// CPU time that a VM has received, matched with its jobs.
#[derive(Clone, Debug, Default)]
struct Progress {
    received: Span,
    /// Index of the first job that is not done.
    next: usize,
    /// Total work of all jobs up to and including job `next`.
    target: Span,
    /// Indices of the late jobs.
    late: Vec<usize>,
    used: Span,
}

impl<'a> SteeredRun<'a> {
    /// Creates the sink of a run.
    ///
    /// # Errors
    /// If the name of a VM is not allowed as the name of a reservation.
    pub(super) fn new(
        scenario: &Scenario,
        plan: &'a ManagePlan,
        truth: &'a Truth,
        rule: Box<dyn ShareRule>,
    ) -> Result<SteeredRun<'a>, ManageError> {
        let name = |vm: &TrueVm| {
            let wrong = |why| ManageError::BadName { name: vm.domain.clone(), why };
            vm.domain.parse::<Name>().map_err(wrong)
        };
        let names = truth.vms.iter().map(name).collect::<Result<Vec<Name>, _>>()?;
        let first = |vm: &TrueVm| Progress {
            target: vm.jobs.first().map_or(Span::MAX, |job| job.work),
            ..Progress::default()
        };
        Ok(SteeredRun {
            plan,
            truth,
            rule,
            window: Window::new(trace_header(scenario), plan.window.max(1)),
            names,
            shares: truth.vms.iter().map(|vm| vm.share).collect(),
            is_begun_otherwise: false,
            progress: truth.vms.iter().map(first).collect(),
            rounds: vec![ManagedRound::default()],
            decisions: Vec::new(),
            begin: Time::START,
        })
    }

    /// Starts the run with the given shares instead of the shares of the scenario.
    pub(super) fn begin_with(&mut self, shares: &[CpuShare]) {
        self.shares = shares.to_vec();
        self.is_begun_otherwise = true;
    }

    /// Returns the results at the end of the run.
    pub(super) fn finish(mut self, declined: usize) -> ManagedRun {
        self.end_round();
        self.rounds.truncate(self.truth.vms[0].needs.len());
        for (nth, (vm, progress)) in self.truth.vms.iter().zip(&self.progress).enumerate() {
            let round = |index: usize| {
                let at = vm.jobs[index].ready.since(Time::START) / self.plan.round;
                usize::try_from(at).unwrap_or(usize::MAX)
            };
            // Jobs that were not done by the end of the run are late if their period has passed.
            let end = Time::START + self.plan.round * self.rounds.len() as u64;
            let undone = (progress.next..vm.jobs.len())
                .filter(|&index| vm.jobs[index].ready.after(vm.knob.period) < end);
            let mut count = |index: usize, is_late: bool| {
                if let Some(round) = self.rounds.get_mut(round(index)) {
                    round.misses[nth] += u64::from(is_late);
                    round.jobs[nth] += u64::from(!is_late);
                }
            };
            (0..vm.jobs.len()).for_each(|index| count(index, false));
            progress.late.iter().copied().chain(undone).for_each(|index| count(index, true));
        }
        ManagedRun { names: self.names, rounds: self.rounds, decisions: self.decisions, declined }
    }

    /// Stores the shares, CPU times and needs of the round that ends, and starts the next round.
    fn end_round(&mut self) {
        let index = self.rounds.len() - 1;
        let vms = self.truth.vms.len();
        let round = &mut self.rounds[index];
        round.shares.clone_from(&self.shares);
        round.used = self.progress.iter_mut().map(|it| std::mem::take(&mut it.used)).collect();
        (round.misses, round.jobs) = (vec![0; vms], vec![0; vms]);
        let need = |vm: &TrueVm| vm.needs.get(index).copied().unwrap_or(CpuShare::NONE);
        round.needs = self.truth.vms.iter().map(need).collect();
        self.rounds.push(ManagedRound::default());
    }

    /// Measures the round that ends now. Also returns the time for which each VM was runnable.
    fn measure(&self, now: Time) -> (Round, Vec<Span>) {
        let (begin, demand) = self.window.last_round(now);
        let length = now.since(begin);
        let mut vms = Vec::new();
        let mut runnable = Vec::new();
        for (nth, vm) in self.truth.vms.iter().enumerate() {
            let (period, goals) = (vm.knob.period, vm.goals);
            let stay = demand.vcpus.iter().find(|stay| stay.vcpu == vm.vcpu);
            let measured = stay.map(|stay| measure_periods(stay, period, (begin, now)));
            let measured = measured.unwrap_or_default();
            runnable.push(measured.runnable);
            vms.push(VmRound {
                name: self.names[nth].clone(),
                period,
                share: self.shares[nth],
                floor: goals.floor,
                ceiling: goals.ceiling,
                priority: goals.priority,
                goals: goals.goals,
                demand: measured.demand,
                misses: measured.misses,
                received: self.progress[nth].used,
            });
        }
        let number = self.rounds.len() as u64 - 1;
        (Round { number, length, capacity: self.truth.capacity, vms }, runnable)
    }

    /// Makes the changes that fit into the capacity. Reductions come first.
    fn carry_out(&mut self, now: Time, mut changes: Changes) -> Vec<(VcpuId, Values)> {
        changes.sort_by_key(|&(vm, to, _)| to > self.shares[vm]);
        let mut done = Vec::new();
        for (vm, to, why) in changes {
            let sum: u64 = self.shares.iter().map(|share| u64::from(share.ppm())).sum();
            let room = u64::from(self.truth.capacity.ppm()).saturating_sub(sum);
            let most = u64::from(self.shares[vm].ppm()) + room;
            let to = to.min(CpuShare::from_ppm(u32::try_from(most).unwrap_or(u32::MAX)));
            let Ok(values) = self.truth.vms[vm].knob.with_share(to) else { continue };
            if to != self.shares[vm] {
                if !why.is_empty() {
                    self.decisions.push((now, why));
                }
                self.shares[vm] = to;
                done.push((self.truth.vms[vm].vcpu, values));
            }
        }
        done
    }
}

impl Steering for SteeredRun<'_> {
    fn steer(&mut self, now: Time) -> Vec<(VcpuId, Values)> {
        if now == Time::START {
            let shares = self.truth.vms.iter().zip(&self.shares);
            let values = |(vm, &share): (&TrueVm, &CpuShare)| {
                vm.knob.with_share(share).ok().map(|values| (vm.vcpu, values))
            };
            let is_otherwise = std::mem::take(&mut self.is_begun_otherwise);
            return shares.filter(|_| is_otherwise).filter_map(values).collect();
        }
        let (round, runnable) = self.measure(now);
        let index = self.rounds.len();
        let next = |vm: &TrueVm| vm.needs.get(index).copied().unwrap_or(vm.share);
        let next: Vec<CpuShare> = self.truth.vms.iter().map(next).collect();
        let vms = self.truth.vms.iter().map(|vm| (vm.domain.as_str(), &vm.knob)).collect();
        let mut predictor = WhatIf::new(&self.window, now, vms);
        let changes = self.rule.round(RuleInput {
            round: &round,
            runnable: &runnable,
            next: &next,
            predictor: &mut predictor,
        });
        self.end_round();
        self.window.next_round(now);
        self.begin = now;
        self.carry_out(now, changes)
    }
}

impl Sink for SteeredRun<'_> {
    fn record(&mut self, record: &Record) {
        self.window.record(record);
        let (vcpu, to, used) = match *record {
            Record::Ran { vcpu, to, used, .. } => (vcpu, to, used),
            _ => return,
        };
        let of_vm = self.truth.vms.iter().zip(&mut self.progress);
        if let Some((vm, progress)) = { of_vm }.find(|(vm, _)| vm.vcpu == vcpu) {
            progress.receive(vm, to, used);
        }
    }

    fn named(&mut self, named: &VcpuName) {
        self.window.named(named);
    }

    fn wants_exchanges(&self) -> bool {
        true
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.window.exchange(exchange);
    }
}

impl Progress {
    /// Adds the CPU time of a run interval that ended at `to` to the progress of a VM.
    fn receive(&mut self, vm: &TrueVm, to: Time, used: Span) {
        self.received += used;
        self.used += used;
        while self.target <= self.received
            && let Some(job) = vm.jobs.get(self.next)
        {
            let done = Time::from_ns(to.ns() - (self.received - self.target).ns().min(to.ns()));
            if done > job.ready.after(vm.knob.period.max(job.work)) {
                self.late.push(self.next);
            }
            self.next += 1;
            self.target = match vm.jobs.get(self.next) {
                Some(job) => self.target + job.work,
                None => Span::MAX,
            };
        }
    }
}
