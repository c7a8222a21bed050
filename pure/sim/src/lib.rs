//! The simulated host: CPUs with costs, guests that run workload programs, timers with lateness.
//!
//! A loop around the scheduler's host layer takes the next event, steps the host layer and carries
//! out its orders. A scenario and a seed give the same trace, byte for byte, on every computer. An
//! event costs O(log vCPUs), and memory does not grow with simulated time.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod account;
mod cold;
mod cpu;
mod fair;
mod guest;
mod header;
mod io;
mod ordinary;
mod overhead;
mod queue;
mod speed;
mod steering;
mod system;
mod taken;
mod timer;
mod tournament;

pub use header::trace_header;
pub use steering::{Steering, VcpuChanges, run_steered};

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use slackline_host::policy::{AdmitError, Values};
use slackline_host::{Broken, Fact, Fault, Host, Report, VcpuTerms};
use slackline_scenario::{
    Action, ActionKind, DeclinedVcpu, ErrorKind, NotAdmitted, Scenario, ScenarioError,
    SharesInForce, actions,
};
use slackline_trace::{Record, Sink, VcpuName};
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};
use thiserror::Error;

use cpu::VirtualHardware;
use guest::{ProgramNeed, SystemId};
use io::{Io, Systems};
use queue::Event;
use timer::Timer;

/// Reason why a run did not complete.
#[derive(Debug, Error)]
pub enum RunError {
    /// The VMs of the scenario cannot be admitted together.
    #[error(transparent)]
    Declined(#[from] DeclinedVcpu),
    /// A vCPU has no parameters (`share`), although the policy needs some.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A recording that the simulation reads has changed since it was checked.
    #[error("{0}")]
    Recording(ErrorKind),
    /// The contract between host and policy was broken, which is a bug.
    #[error("{0}")]
    Broken(#[from] Broken),
}

/// Results of a run apart from its trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimResults {
    /// Changes of parameters that were not admitted: time, vCPU and reason.
    pub declined: Vec<(Time, VcpuId, AdmitError)>,
    /// Number of events that the simulator handled.
    pub events: u64,
    /// Time at which the run was stopped early. `None` if the run was not stopped early.
    pub stopped: Option<Time>,
    /// Times at which the programs of vCPUs ended. Tasks of simulated operating systems are not
    /// included.
    pub done: Vec<(Time, VcpuId)>,
}

/// Number of handled events from one call of `goes_on` to the next.
const OFTEN: u64 = 1 << 14;

/// Simulates the scenario from its start to its end.
///
/// # Errors
/// If the vCPUs cannot be admitted together, a share is missing, or a recording has changed since
/// it was checked. Also if host and policy break their contract.
pub fn run(scenario: &Scenario, sink: &mut dyn Sink) -> Result<SimResults, RunError> {
    run_while(scenario, sink, &mut |_| ControlFlow::Continue(()))
}

/// Simulates the scenario until its end, or until `goes_on` returns `Break`. `goes_on` is called
/// with the current simulated time at the start, and then after every 16,384 handled events. A run
/// that is stopped early closes its trace as a complete run does.
///
/// Both parameters are trait objects, so that the simulator is compiled only once, in this crate.
/// With type parameters, each calling crate would compile it again.
///
/// # Errors
/// In the same cases as [`run`].
pub fn run_while(
    scenario: &Scenario,
    mut sink: &mut dyn Sink,
    goes_on: &mut dyn FnMut(Time) -> ControlFlow<()>,
) -> Result<SimResults, RunError> {
    Sim::new(&scenario.simulated()).run(&mut sink, goes_on, &mut |_, _| Vec::new())
}

struct Sim<'a> {
    scenario: &'a Scenario,
    host: Host,
    hardware: VirtualHardware<'a>,
    systems: Systems<'a>,
    io: Option<Io<'a>>,
    /// Operating systems with changed tasks that are not reported yet. A guest reports only while
    /// it runs.
    untold: Vec<SystemId>,
    shares: SharesInForce<'a>,
    /// Paused vCPUs, whether or not they have work.
    paused: BTreeSet<VcpuId>,
    /// Actions of the scenario that have not been carried out yet, latest first.
    actions: Vec<Action>,
    end: Time,
    /// Next time at which steering can change parameters. `NEVER` without steering.
    next_steering: Time,
    steering_interval: Span,
    /// Earliest of three times: the scenario's next action, the next steering, the end of the run.
    next_stop: Time,
    outcome: SimResults,
    /// True if scheduling passes take time.
    has_passes: bool,
    /// Number of jobs so far of each interference: a program with precedence over all vCPUs.
    interfered: Vec<usize>,
    /// True if the end of every work item goes through the event queue. Tests compare runs in which
    /// this is true and runs in which it is false.
    #[cfg(test)]
    one_by_one: bool,
}

impl<'a> Sim<'a> {
    fn new(scenario: &'a Scenario) -> Sim<'a> {
        let mut actions = actions(scenario);
        actions.reverse();
        let systems = Systems::new(scenario);
        let mut sim = Sim {
            scenario,
            host: Host::new(scenario.policy.spec, &scenario.policy.values, &scenario.host.topology),
            hardware: VirtualHardware::new(scenario),
            io: Io::new(scenario, &systems),
            systems,
            untold: Vec::new(),
            shares: SharesInForce::new(scenario),
            paused: BTreeSet::new(),
            actions,
            end: Time::START + scenario.length,
            next_steering: Time::NEVER,
            steering_interval: Span::ZERO,
            next_stop: Time::START,
            outcome: SimResults::default(),
            has_passes: system::has_passes(scenario),
            interfered: vec![0; scenario.interference.len()],
            #[cfg(test)]
            one_by_one: false,
        };
        sim.find_next_stop();
        sim
    }

    fn run<S: Sink>(
        mut self,
        sink: &mut S,
        mut goes_on: impl FnMut(Time) -> ControlFlow<()>,
        steer: &mut dyn FnMut(Time, &mut S) -> VcpuChanges,
    ) -> Result<SimResults, RunError> {
        self.start_ticks();
        self.start_interference();
        let scenario = self.scenario;
        let mut next_call = 0;
        while let Some((now, event)) = self.next() {
            self.outcome.events += u64::from(!matches!(event, NextStep::Settle));
            if self.outcome.events >= next_call {
                next_call = self.outcome.events + OFTEN;
                if goes_on(now).is_break() {
                    self.outcome.stopped = Some(now);
                    self.end = now;
                    self.find_next_stop();
                }
            }
            match event {
                NextStep::Settle => self.step(now, Fact::Settled, sink)?,
                NextStep::Action if self.is_steered(now) => {
                    let changes = steer(now, sink);
                    self.take_changes(now, changes, sink)?;
                }
                NextStep::Action => self.act(now, sink)?,
                NextStep::Cpu(cpu, Timer::Work) => self.work_done(now, cpu, sink)?,
                NextStep::Cpu(cpu, timer) => {
                    let due = self.hardware.cpus.take_timer(cpu, timer, now);
                    self.take_pass(now, Some(cpu), &scenario.host.timer_pass);
                    if now > due {
                        sink.record(&Record::RangLate { at: now, cpu, late: now - due });
                    }
                    let rang =
                        if timer == Timer::Limit { Fact::LimitReached } else { Fact::AlarmRang };
                    self.step(now, rang(cpu), sink)?;
                }
                NextStep::Event(Event::Wake, slot) => {
                    self.start_work(now, self.hardware.guests.vcpu(slot), sink)?;
                }
                NextStep::Event(Event::Allow, slot) => {
                    let vcpu = self.hardware.guests.vcpu(slot);
                    if self.host.moment().is_member(vcpu) {
                        self.step(now, Fact::Allowed(vcpu), sink)?;
                    }
                }
                NextStep::Event(Event::Tick, cpu) => self.tick(now, cpu),
                NextStep::Event(Event::FairTick, cpu) => {
                    self.fair_tick(now, CpuId::new(cpu), sink)?;
                }
                NextStep::Event(Event::Interfere, index) => self.interfere(now, index),
                NextStep::Event(event, about) => self.happen(now, (event, about), sink)?,
            }
        }
        self.systems_end(sink);
        self.hardware.cpus.end(self.end, &mut self.hardware.guests);
        self.end_spinning(sink);
        let here = self.scenario.vcpus().map(|(vcpu, _)| vcpu);
        here.filter(|&vcpu| self.host.moment().is_member(vcpu))
            .for_each(|vcpu| self.record_overdue(vcpu, self.end, sink));
        self.tell_account(sink);
        self.step(self.end, Fact::Ended, sink)?;
        let failed = self.hardware.guests.take_failure().or_else(|| self.systems.take_failure());
        failed.map_or(Ok(self.outcome), |error| Err(RunError::Recording(error)))
    }

    fn find_next_stop(&mut self) {
        let action = self.actions.last().map_or(Time::NEVER, |action| action.at);
        self.next_stop = action.min(self.next_steering).min(self.end);
    }

    /// Returns the next event before the end of the run. `None` if the run ends first. At one
    /// instant, actions of the scenario come first. Then CPUs finish work, timers of policies
    /// expire, guests wake, and timeslices end. Events of a kind are ordered by CPU number, guests
    /// by the order in which they blocked. Last, the host reschedules CPUs. In early versions of
    /// Xen the order is the same, because the timer that ends a timeslice only requests a
    /// scheduling pass.
    #[inline(always)]
    fn next(&mut self) -> Option<(Time, NextStep)> {
        let event = self.hardware.queue.first();
        let cpu = self.hardware.cpus.first();
        let cpu_time = self.hardware.cpus.next_time(cpu);
        if !self.host.is_settled() {
            let now = self.host.moment().now();
            if now < self.next_stop.min(cpu_time).min(event) {
                return Some((now, NextStep::Settle));
            }
        }
        if self.next_stop <= cpu_time.min(event) {
            return (self.next_stop < self.end).then_some((self.next_stop, NextStep::Action));
        }
        if cpu_time < event
            || (cpu_time == event && self.hardware.cpus.next_timer(cpu) != Timer::Limit)
        {
            return Some((cpu_time, NextStep::Cpu(cpu, self.hardware.cpus.next_timer(cpu))));
        }
        let (what, about) = self.hardware.queue.pop();
        Some((event, NextStep::Event(what, about)))
    }

    /// Steps the host layer. Before a wake, takes the time of its scheduling pass. Afterwards
    /// reports the changed tasks of guests that run.
    #[inline(always)]
    fn step<S: Sink>(&mut self, now: Time, fact: Fact<'_>, sink: &mut S) -> Result<(), Box<Fault>> {
        if let (true, Fact::Woke(vcpu)) = (self.has_passes, &fact) {
            let own = self.scenario.domain_of(*vcpu).wake_pass.as_ref();
            let pass = own.unwrap_or(&self.scenario.host.wake_pass);
            self.take_pass(now, self.hardware.cpus.home(*vcpu), pass);
        }
        self.step_once(now, fact, sink)?;
        if self.untold.is_empty() { Ok(()) } else { self.tell_what_was_untold(now, sink) }
    }

    /// Steps the host layer once. Unlike `step`, takes no time for a pass and reports no tasks.
    #[inline(always)]
    fn step_once<S: Sink>(
        &mut self,
        now: Time,
        fact: Fact<'_>,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        self.hardware.advance(now);
        if self.hardware.cpus.fair.is_some() {
            return self.step_fairly(now, fact, sink);
        }
        let stepped = self.host.step(Report { now, used: &[], fact }, &mut self.hardware, sink);
        self.tell_account(sink);
        stepped
    }

    /// Moves the collected records of overhead and slowdown to the trace.
    #[inline(always)]
    fn tell_account<S: Sink>(&mut self, sink: &mut S) {
        self.hardware.cpus.untold().drain(..).for_each(|record| sink.record(&record));
    }

    fn act<S: Sink>(&mut self, now: Time, sink: &mut S) -> Result<(), RunError> {
        let Action { at, vcpu, what } = self.actions.pop().expect("an action is due");
        self.find_next_stop();
        if let ActionKind::Join = what {
            let share = self.shares.of(vcpu)?;
            let domain = self.scenario.domain_of(vcpu);
            let start = domain.starts_on(vcpu);
            let cpus = start.map(CpuSet::one).or(domain.cpus(vcpu));
            sink.named(&named(self.scenario, vcpu, now));
            let mut joined =
                self.step(now, Fact::Joined(vcpu, VcpuTerms { share: &share, cpus }), sink);
            if start.is_some() && joined.is_ok() {
                let terms = VcpuTerms { share: &share, cpus: Some(self.scenario.cpus(vcpu)) };
                joined = self.step(now, Fact::TermsChanged(vcpu, terms), sink);
            }
            joined.map_err(|fault| declined(self.scenario, *fault))?;
            let wakes = domain.wakes(vcpu);
            self.hardware.guests.begin(vcpu, wakes);
            self.system_joins(vcpu, now);
            self.hardware.queue.push(wakes, Event::Wake, vcpu.slot());
            return Ok(());
        }
        if !self.host.moment().is_member(vcpu) {
            return Ok(());
        }
        match what {
            ActionKind::Join => unreachable!("a join is handled above"),
            ActionKind::Change(share, cpus) => {
                if !self.change(now, vcpu, (share, cpus), sink)? {
                    return Ok(());
                }
            }
            ActionKind::Pause => self.pause(now, vcpu, sink)?,
            ActionKind::Release => self.release(now, vcpu, sink)?,
            ActionKind::Leave => {
                self.record_overdue(vcpu, now, sink);
                self.step(now, Fact::Left(vcpu), sink)?;
                self.stop_spinning(now, vcpu, sink);
                let released = self.hardware.guests.leave(vcpu, now);
                self.wake_at(released);
                self.grant_locks(now, sink);
                self.system_leaves(vcpu);
                self.paused.remove(&vcpu);
                return Ok(());
            }
        }
        sink.record(&Record::Changed { due: at, at: now, vcpu });
        Ok(())
    }

    /// Changes the parameters of a vCPU. Returns true if the policy admitted them.
    fn change<S: Sink>(
        &mut self,
        now: Time,
        vcpu: VcpuId,
        (share, cpus): (Option<Values>, Option<CpuSet>),
        sink: &mut S,
    ) -> Result<bool, RunError> {
        let share = share.map_or_else(|| self.shares.of(vcpu), Ok)?;
        let fact = Fact::TermsChanged(vcpu, VcpuTerms { share: &share, cpus });
        match self.step(now, fact, sink).map_err(|fault| *fault) {
            Ok(()) => {
                self.shares.set(vcpu, share);
                Ok(true)
            }
            Err(Fault::Declined { vcpu, error }) => {
                self.outcome.declined.push((now, vcpu, error));
                Ok(false)
            }
            Err(Fault::Broken(broken)) => Err(broken.into()),
        }
    }

    fn pause<S: Sink>(&mut self, now: Time, vcpu: VcpuId, sink: &mut S) -> Result<(), Box<Fault>> {
        if self.paused.insert(vcpu) && self.host.moment().is_awake(vcpu) {
            self.step(now, Fact::Paused(vcpu), sink)?;
        }
        Ok(())
    }

    /// Resumes a paused vCPU. A vCPU that was computing continues. A vCPU whose sleep ended during
    /// the pause takes the step that follows the sleep.
    fn release<S: Sink>(
        &mut self,
        now: Time,
        vcpu: VcpuId,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        if !self.paused.remove(&vcpu) || self.hardware.guests.is_asleep(vcpu, now) {
            return Ok(());
        }
        if self.seat(vcpu).is_some() {
            return self.wake_system(now, vcpu, sink);
        }
        if self.hardware.guests.left(vcpu).is_zero() {
            return self.go_on(now, vcpu, sink);
        }
        self.step(now, Fact::Woke(vcpu), sink)
    }

    /// Ends the sleep of a vCPU, so that it has work.
    fn start_work<S: Sink>(
        &mut self,
        now: Time,
        vcpu: VcpuId,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        if self.seat(vcpu).is_none() && self.hardware.guests.is_at_instant(vcpu, now) {
            self.stop_at_instant(now, vcpu);
            return Ok(());
        }
        let is_held = !self.paused.is_empty() && self.paused.contains(&vcpu);
        // The vCPU may have left in the meantime.
        if is_held || !self.hardware.guests.is_due(vcpu, now) {
            Ok(())
        } else {
            self.go_on(now, vcpu, sink)
        }
    }

    /// Ends a step of a vCPU that computes until a fixed time, which is now. If the vCPU runs, it
    /// takes its next step immediately, otherwise when it next runs.
    fn stop_at_instant(&mut self, now: Time, vcpu: VcpuId) {
        let cpu = self.host.moment().cpu_of(vcpu);
        if let Some(cpu) = cpu {
            self.hardware.cpus.count(cpu, now, &mut self.hardware.guests);
        }
        self.hardware.guests.finish_compute(vcpu);
        if let Some(cpu) = cpu {
            self.hardware.cpus.recount(cpu, &self.hardware.guests);
        }
    }

    /// Continues the program of a blocked guest, whose current step needs no more CPU time.
    #[inline(always)]
    fn go_on<S: Sink>(&mut self, now: Time, vcpu: VcpuId, sink: &mut S) -> Result<(), Box<Fault>> {
        if self.seat(vcpu).is_some() {
            // A vCPU with an operating system sleeps only once: until its start.
            self.hardware.guests.end(vcpu);
            return self.wake_system(now, vcpu, sink);
        }
        let need = self.hardware.guests.advance(vcpu, now, sink);
        self.grant_locks(now, sink);
        match need {
            ProgramNeed::Cpu => self.step(now, Fact::Woke(vcpu), sink)?,
            ProgramNeed::Until(instant) => {
                self.wake_at([(instant, vcpu)]);
                self.step(now, Fact::Woke(vcpu), sink)?;
            }
            // A vCPU that wakes has no timeslice to yield, so it yields when it runs.
            ProgramNeed::Yield => {
                self.hardware.guests.again(vcpu);
                self.step(now, Fact::Woke(vcpu), sink)?;
            }
            ProgramNeed::Sleep(until) => self.wake_at([(until, vcpu)]),
            ProgramNeed::Others(latency) => {
                let released = self.hardware.guests.come(vcpu, latency, now);
                self.wake_at(released);
            }
            ProgramNeed::Nothing => self.outcome.done.push((now, vcpu)),
            // Programs of vCPUs have no steps for devices, and `advance` has taken their locks.
            ProgramNeed::Device(_) | ProgramNeed::Lock | ProgramNeed::Unlock => {}
        }
        Ok(())
    }

    /// Continues all vCPUs that have been granted a lock: immediately if they run, otherwise when
    /// they next run.
    #[inline(always)]
    fn grant_locks<S: Sink>(&mut self, now: Time, sink: &mut S) {
        while let Some(vcpu) = self.hardware.guests.take_granted() {
            self.spin_no_longer(now, vcpu, sink);
        }
    }

    #[inline(never)] // Few workloads use locks.
    fn spin_no_longer<S: Sink>(&mut self, now: Time, vcpu: VcpuId, sink: &mut S) {
        let cpu = self.host.moment().cpu_of(vcpu);
        if let Some(cpu) = cpu {
            self.hardware.cpus.count(cpu, now, &mut self.hardware.guests);
        }
        let used = self.hardware.guests.stop_spinning(vcpu);
        if !used.is_zero() {
            sink.record(&Record::Spun { at: now, vcpu, used });
        }
        if let Some(cpu) = cpu {
            self.hardware.cpus.recount(cpu, &self.hardware.guests);
        }
    }

    /// Records the CPU time that a vCPU has spent so far spinning for a lock.
    fn stop_spinning<S: Sink>(&mut self, now: Time, vcpu: VcpuId, sink: &mut S) {
        if self.hardware.guests.spins(vcpu) {
            self.spin_no_longer(now, vcpu, sink);
        }
    }

    /// Records the spinning of all vCPUs that still wait for a lock at the end of the run.
    fn end_spinning<S: Sink>(&mut self, sink: &mut S) {
        for vcpu in self.scenario.vcpus().map(|(vcpu, _)| vcpu) {
            self.stop_spinning(self.end, vcpu, sink);
        }
    }

    fn wake_at(&mut self, sleepers: impl IntoIterator<Item = (Time, VcpuId)>) {
        for (until, vcpu) in sleepers {
            self.hardware.queue.push(until, Event::Wake, vcpu.slot());
        }
    }

    /// Handles a running vCPU that has completed all the work it had.
    fn work_done<S: Sink>(
        &mut self,
        now: Time,
        cpu: CpuId,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        let vcpu = self.hardware.cpus.occupant(cpu);
        self.hardware.cpus.finish(cpu, now, &mut self.hardware.guests);
        self.hardware.guests.finish_compute(vcpu);
        if let Some(seat) = self.seat(vcpu) {
            return self.item_done(now, (cpu, vcpu), seat, sink);
        }
        let need = self.hardware.guests.advance(vcpu, now, sink);
        self.grant_locks(now, sink);
        match need {
            ProgramNeed::Cpu => {
                self.hardware.cpus.go_on(cpu, now, &self.hardware.guests);
                return Ok(());
            }
            ProgramNeed::Until(instant) => {
                self.wake_at([(instant, vcpu)]);
                self.hardware.cpus.go_on(cpu, now, &self.hardware.guests);
                return Ok(());
            }
            // The next step is taken when the vCPU runs again.
            ProgramNeed::Yield => {
                self.hardware.cpus.go_on(cpu, now, &self.hardware.guests);
                return self.step(now, Fact::Yielded(cpu), sink);
            }
            ProgramNeed::Sleep(until) => self.wake_at([(until, vcpu)]),
            ProgramNeed::Others(latency) => {
                let released = self.hardware.guests.come(vcpu, latency, now);
                self.wake_at(released);
            }
            ProgramNeed::Nothing => self.outcome.done.push((now, vcpu)),
            // Programs of vCPUs have no steps for devices, and `advance` has taken their locks.
            ProgramNeed::Device(_) | ProgramNeed::Lock | ProgramNeed::Unlock => {}
        }
        self.step(now, Fact::Blocked(vcpu), sink)
    }
}

/// Returns the record that names a vCPU.
fn named(scenario: &Scenario, vcpu: VcpuId, at: Time) -> VcpuName {
    let domain = scenario.domain_of(vcpu);
    VcpuName { at, vcpu, name: domain.vcpu_name(vcpu), domain: domain.name.clone() }
}

/// Returns the error for a fault of the host layer, with the name of the vCPU that was declined.
fn declined(scenario: &Scenario, fault: Fault) -> RunError {
    match fault {
        Fault::Broken(broken) => RunError::Broken(broken),
        Fault::Declined { vcpu, error } => scenario.declined(vcpu, error).into(),
    }
}

impl From<NotAdmitted> for RunError {
    fn from(error: NotAdmitted) -> RunError {
        match error {
            NotAdmitted::Declined(declined) => RunError::Declined(declined),
            NotAdmitted::Scenario(error) => RunError::Scenario(error),
        }
    }
}

impl From<Box<Fault>> for RunError {
    fn from(fault: Box<Fault>) -> RunError {
        match *fault {
            Fault::Broken(broken) => RunError::Broken(broken),
            Fault::Declined { .. } => unreachable!("only joins and changes can be declined"),
        }
    }
}

enum NextStep {
    Settle,
    Action,
    Cpu(CpuId, Timer),
    Event(Event, usize),
}
