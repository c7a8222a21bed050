//! The simulated host: CPUs with costs, guests that run workload programs, timers that ring late.
//!
//! A loop around the host: take the next event, step, carry out the orders. The same scenario and
//! seed give the same trace, byte for byte, on every machine. An event costs O(log vCPUs), and
//! memory does not grow with simulated time.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod admission;
mod cpu;
mod guest;
mod queue;

use slackline_host::policy::{AdmitError, Values};
use slackline_host::{Broken, Fact, Fault, Host, Report};
use slackline_scenario::{Scenario, ScenarioError};
use slackline_trace::{Record, Sink};
use slackline_units::{CpuId, Time, VcpuId};
use thiserror::Error;

pub use admission::admit;
use cpu::{Cpus, Timer};
use guest::{Guests, Need};
use queue::{Event, Queue};

/// Why a run did not come to its end.
#[derive(Debug, Error)]
pub enum RunError {
    /// The set of the scenario cannot be admitted.
    #[error("{policy} cannot admit `{vcpu}`: {error}")]
    Declined {
        /// The policy.
        policy: &'static str,
        /// What people call the vCPU.
        vcpu: String,
        /// The domain, by its place in the scenario.
        domain: usize,
        /// Why.
        error: AdmitError,
    },
    /// A share that is needed is missing.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The contract between host and policy was broken: a bug.
    #[error("{0}")]
    Broken(#[from] Broken),
}

/// What a run has to tell besides its trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Changes that could not be admitted: when, of whom, and why.
    pub declined: Vec<(Time, VcpuId, AdmitError)>,
    /// How many events were handled.
    pub events: u64,
}

/// Something that the scenario does at a given time.
struct Action {
    at: Time,
    what: What,
}

enum What {
    Join(VcpuId, Values),
    Change(VcpuId, Values),
    Leave(VcpuId),
}

/// Simulates the scenario from its start to its end.
///
/// # Errors
/// When the set cannot be admitted, a share is missing, or the contract is broken.
pub fn run<S: Sink>(scenario: &Scenario, sink: &mut S) -> Result<Outcome, RunError> {
    Sim::new(scenario)?.run(sink)
}

struct Sim<'a> {
    scenario: &'a Scenario,
    host: Host,
    cpus: Cpus,
    guests: Guests<'a>,
    queue: Queue,
    /// By time, last first.
    actions: Vec<Action>,
    end: Time,
    outcome: Outcome,
}

impl<'a> Sim<'a> {
    fn new(scenario: &'a Scenario) -> Result<Sim<'a>, RunError> {
        let cpus = scenario.host.cpus;
        let mut actions = actions(scenario)?;
        actions.reverse();
        Ok(Sim {
            scenario,
            host: Host::new(scenario.policy.spec, &scenario.policy.values, cpus),
            cpus: Cpus::new(scenario),
            guests: Guests::new(scenario),
            queue: Queue::default(),
            actions,
            end: Time::START + scenario.length,
            outcome: Outcome::default(),
        })
    }

    fn run<S: Sink>(mut self, sink: &mut S) -> Result<Outcome, RunError> {
        while let Some((now, event)) = self.next() {
            self.outcome.events += 1;
            match event {
                Next::Action => self.act(now, sink)?,
                Next::Cpu(cpu, Timer::Work) => self.work_done(now, cpu, sink)?,
                Next::Cpu(cpu, timer) => {
                    let due = self.cpus.take_timer(cpu, timer);
                    if now > due {
                        sink.record(&Record::RangLate { at: now, cpu, late: now - due });
                    }
                    let rang =
                        if timer == Timer::Limit { Fact::LimitReached } else { Fact::AlarmRang };
                    self.step(now, rang(cpu), sink)?;
                }
                Next::Event(Event::Wake(slot)) => {
                    self.start_work(now, self.guests.vcpu(slot), sink)?;
                }
                Next::Event(Event::Allow(slot)) => {
                    let vcpu = self.guests.vcpu(slot);
                    if self.host.moment().is_member(vcpu) {
                        self.step(now, Fact::Allowed(vcpu), sink)?;
                    }
                }
            }
        }
        self.step(self.end, Fact::Ended, sink)?;
        Ok(self.outcome)
    }

    /// The next event before the end. At one instant the scenario acts first; then CPUs finish work
    /// before their timers ring, and guests wake last.
    fn next(&mut self) -> Option<(Time, Next)> {
        let action = self.actions.last().map_or(Time::NEVER, |action| action.at);
        let (cpu_time, cpu, timer) = self.cpus.first();
        let event = self.queue.first().unwrap_or(Time::NEVER);
        let now = action.min(cpu_time).min(event);
        if now >= self.end {
            return None;
        }
        let next = if now == action {
            Next::Action
        } else if now == cpu_time {
            Next::Cpu(cpu, timer)
        } else {
            Next::Event(self.queue.pop())
        };
        Some((now, next))
    }

    fn step<S: Sink>(&mut self, now: Time, fact: Fact<'_>, sink: &mut S) -> Result<(), Box<Fault>> {
        let mut hands = cpu::SimHands {
            now,
            cpus: &mut self.cpus,
            guests: &mut self.guests,
            queue: &mut self.queue,
        };
        self.host.step(Report { now, used: &[], fact }, &mut hands, sink)
    }

    fn act<S: Sink>(&mut self, now: Time, sink: &mut S) -> Result<(), RunError> {
        let action = self.actions.pop().expect("an action is due");
        match action.what {
            What::Join(vcpu, share) => {
                let joined = self.step(now, Fact::Joined(vcpu, &share), sink);
                joined.map_err(|fault| declined(self.scenario, *fault))?;
                self.guests.begin(vcpu, now);
                self.start_work(now, vcpu, sink)?;
            }
            What::Change(vcpu, share) if self.host.moment().is_member(vcpu) => {
                let changed = self.step(now, Fact::ShareChanged(vcpu, &share), sink);
                match changed.map_err(|fault| *fault) {
                    Ok(()) => sink.record(&Record::Changed { due: action.at, at: now, vcpu }),
                    Err(Fault::Declined { vcpu, error }) => {
                        self.outcome.declined.push((now, vcpu, error));
                    }
                    Err(Fault::Broken(broken)) => return Err(broken.into()),
                }
            }
            What::Leave(vcpu) if self.host.moment().is_member(vcpu) => {
                self.step(now, Fact::Left(vcpu), sink)?;
                self.guests.end(vcpu);
            }
            What::Change(..) | What::Leave(_) => {}
        }
        Ok(())
    }

    /// A sleeping guest goes on with its program.
    fn start_work<S: Sink>(
        &mut self,
        now: Time,
        vcpu: VcpuId,
        sink: &mut S,
    ) -> Result<(), RunError> {
        if !self.guests.is_due(vcpu, now) {
            return Ok(()); // It left in the meantime.
        }
        match self.guests.advance(vcpu, now, sink) {
            Need::Cpu => self.step(now, Fact::Woke(vcpu), sink)?,
            Need::Sleep(until) => self.queue.push(until, Event::Wake(vcpu.slot())),
            Need::Nothing => {}
        }
        Ok(())
    }

    /// The occupant of a CPU has computed what it wanted to compute.
    fn work_done<S: Sink>(&mut self, now: Time, cpu: CpuId, sink: &mut S) -> Result<(), RunError> {
        let vcpu = self.cpus.occupant(cpu);
        self.guests.finish_compute(vcpu);
        match self.guests.advance(vcpu, now, sink) {
            Need::Cpu => {
                self.cpus.go_on(cpu, now, &self.guests);
                return Ok(());
            }
            Need::Sleep(until) => self.queue.push(until, Event::Wake(vcpu.slot())),
            Need::Nothing => {}
        }
        Ok(self.step(now, Fact::Blocked(vcpu), sink)?)
    }
}

/// Says whose share was declined.
fn declined(scenario: &Scenario, fault: Fault) -> RunError {
    match fault {
        Fault::Broken(broken) => RunError::Broken(broken),
        Fault::Declined { vcpu, error } => {
            let domain = vcpu.domain().number() as usize;
            RunError::Declined {
                policy: scenario.policy.spec.name,
                vcpu: scenario.domains[domain].vcpu_name(vcpu),
                domain,
                error,
            }
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

enum Next {
    Action,
    Cpu(CpuId, Timer),
    Event(Event),
}

/// What the scenario does, in order of time; at one time in the order of the file.
fn actions(scenario: &Scenario) -> Result<Vec<Action>, ScenarioError> {
    let spec = scenario.policy.spec;
    let mut actions = Vec::new();
    for domain in &scenario.domains {
        let share = domain.share(spec)?;
        for &vcpu in &domain.vcpus {
            actions.push(Action { at: domain.joins, what: What::Join(vcpu, share.clone()) });
            if let Some(at) = domain.leaves {
                actions.push(Action { at, what: What::Leave(vcpu) });
            }
        }
    }
    for change in &scenario.changes {
        let Some(share) = change.share(spec) else { continue };
        for &vcpu in &scenario.domains[change.domain].vcpus {
            actions.push(Action { at: change.at, what: What::Change(vcpu, share.clone()) });
        }
    }
    actions.sort_by_key(|action| action.at);
    Ok(actions)
}
