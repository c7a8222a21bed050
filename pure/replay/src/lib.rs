//! Runs that are played again: the facts of a trace go through host and policy once more, and the
//! orders must be the same.
//!
//! A [`Replay`] is a [`Sink`]: give it a trace, simulated or live, and [`Replay::finish`] says
//! whether everything that the hardware was told came out as it was recorded: each order, each
//! alarm that changed, each share that was declined. CPU time is what had been measured, and orders
//! go as they went then.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod script;

use std::collections::VecDeque;

use slackline_host::{Fault, Host, Report, VcpuTerms};
use slackline_policy::{FieldError, Spec, Topology, TopologyError, Values, find};
use slackline_trace::{Exchange, Fact, Header, KeptFact, Named, Record, Sink};
use slackline_units::{CpuId, Time};
use thiserror::Error;

use script::{Mismatch, Script, Step};

/// So many facts before a difference are told.
const BEFORE: usize = 5;

/// Why a trace cannot be replayed.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ReplayError {
    /// Its policy is none of ours.
    #[error("there is no policy `{name}` here")]
    UnknownPolicy {
        /// As the trace has it.
        name: String,
    },
    /// Its parameters are none of its policy's.
    #[error("the policy's parameters cannot be read: {0}")]
    Parameters(FieldError),
    /// Its CPUs do not belong together as CPUs can.
    #[error("which CPUs belong together cannot be read: {0}")]
    Topology(TopologyError),
    /// A share is none of its policy's.
    #[error("the share in entry {entry} cannot be read: {error}")]
    Share {
        /// Which entry of the trace, counted from zero.
        entry: u64,
        /// What is wrong with it.
        error: FieldError,
    },
    /// It holds no facts.
    #[error("the trace holds no facts")]
    NoFacts,
}

/// What came of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// How many facts were reported.
    pub facts: u64,
    /// How many orders were given.
    pub orders: u64,
    /// Where it first came out otherwise, if it did.
    pub difference: Option<Difference>,
    /// How the contract was broken, where it had been in the run as well.
    pub broken: Option<String>,
}

/// The first that came out otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// When.
    pub at: Time,
    /// With which entry of the trace, counted from zero: what was recorded, or where it is missing,
    /// the fact.
    pub entry: u64,
    /// What was recorded; none where there is more now.
    pub expected: Option<Exchange>,
    /// What came out; none where something is missing.
    pub got: Option<Exchange>,
    /// How the contract was broken, if that is what came out.
    pub broken: Option<String>,
    /// The facts until then, the last one that which it is about: entry, time and fact.
    pub facts: Vec<(u64, Time, KeptFact)>,
}

/// Takes a trace and plays it again.
pub struct Replay {
    spec: &'static Spec,
    host: Host,
    /// The step whose end has not been seen yet, and its entry.
    step: Option<(u64, Step)>,
    noticed: Vec<slackline_trace::Used>,
    entries: u64,
    /// By CPU: alarms as they were recorded, and as they are now.
    alarms: [Vec<Option<Time>>; 2],
    facts: VecDeque<(u64, Time, KeptFact)>,
    failed: Option<ReplayError>,
    replayed: Replayed,
}

impl Replay {
    /// A replay of the trace that this header is of.
    ///
    /// # Errors
    /// When the policy, its parameters or the CPUs cannot be made sense of.
    pub fn new(header: &Header) -> Result<Replay, ReplayError> {
        let name = header.policy.split_whitespace().next().unwrap_or_default();
        let unknown = || ReplayError::UnknownPolicy { name: name.into() };
        let spec = find(name).ok_or_else(unknown)?;
        let values = Values::read_written(spec.policy_fields, &header.parameters);
        let values = values.map_err(ReplayError::Parameters)?;
        let topology = Topology::of_levels(header.cpus, &header.groups);
        let topology = topology.map_err(ReplayError::Topology)?.with_dispatch(header.dispatch);
        let replayed = Replayed { facts: 0, orders: 0, difference: None, broken: None };
        Ok(Replay {
            spec,
            host: Host::new(spec, &values, &topology),
            step: None,
            noticed: Vec::new(),
            entries: 0,
            alarms: [vec![None; CpuId::LIMIT], vec![None; CpuId::LIMIT]],
            facts: VecDeque::with_capacity(BEFORE + 1),
            failed: None,
            replayed,
        })
    }

    /// What came of it.
    ///
    /// # Errors
    /// When the trace holds no facts, or a share that is none.
    pub fn finish(mut self) -> Result<Replayed, ReplayError> {
        self.play();
        match self.failed {
            Some(error) => Err(error),
            None if self.replayed.facts == 0 => Err(ReplayError::NoFacts),
            None => Ok(self.replayed),
        }
    }

    fn is_over(&self) -> bool {
        self.failed.is_some() || self.replayed.difference.is_some()
    }

    /// Plays the step that has been gathered.
    fn play(&mut self) {
        let Some((entry, mut step)) = self.step.take() else { return };
        if self.is_over() {
            return;
        }
        self.replayed.facts += 1;
        self.facts.push_back((entry, step.now, step.fact.clone()));
        if self.facts.len() > BEFORE {
            self.facts.pop_front();
        }
        if let Some(broken) = self.replayed.broken.take() {
            // It is broken, and in the run it went on.
            let mismatch = Mismatch { entry: Some(entry), expected: None, got: None };
            return self.differ((entry, step.now), mismatch, Some(broken));
        }
        let shares = match shares(self.spec, &step.fact) {
            Ok(shares) => shares,
            Err(error) => {
                self.failed = Some(ReplayError::Share { entry, error });
                return;
            }
        };
        let (now, kept, noticed) = (step.now, step.fact.clone(), step.noticed.clone());
        let alarms = &mut self.alarms[1];
        let mut script = Script { step: &mut step, alarms, orders: 0, mismatch: None };
        let fact = read(&kept, shares.as_ref());
        let report = Report { now, used: &noticed, fact };
        let result = self.host.step(report, &mut script, &mut ());
        let mut broken = None;
        match result.map_err(|fault| *fault) {
            Ok(()) => {}
            Err(Fault::Declined { .. }) => {
                script.tell(Exchange::Declined);
            }
            Err(Fault::Broken(fault)) => broken = Some(fault.to_string()),
        }
        script.over();
        self.replayed.orders += script.orders;
        match script.mismatch {
            Some(mismatch) => self.differ((entry, now), mismatch, broken),
            None => self.replayed.broken = broken,
        }
    }

    fn differ(&mut self, (fact, at): (u64, Time), mismatch: Mismatch, broken: Option<String>) {
        let Mismatch { entry, expected, got } = mismatch;
        let (entry, facts) = (entry.unwrap_or(fact), self.facts.iter().cloned().collect());
        self.replayed.difference = Some(Difference { at, entry, expected, got, broken, facts });
    }

    fn gather(&mut self, exchange: &Exchange) {
        if let Exchange::Reported { now, fact } = exchange {
            self.play();
            let noticed = std::mem::take(&mut self.noticed);
            let (now, fact) = (*now, fact.clone());
            let (measured, told) = (VecDeque::new(), VecDeque::new());
            self.step = Some((self.entries, Step { now, fact, noticed, measured, told }));
            return;
        }
        if let Exchange::Noticed(used) = exchange {
            return self.noticed.push(*used);
        }
        let Some((_, step)) = &mut self.step else { return };
        match *exchange {
            Exchange::Measured(used) => step.measured.push_back((self.entries, used)),
            Exchange::AlarmSet { cpu, alarm }
                if std::mem::replace(&mut self.alarms[0][cpu.index()], alarm) == alarm => {}
            _ => step.told.push_back((self.entries, exchange.clone())),
        }
    }
}

impl Sink for Replay {
    fn record(&mut self, _: &Record) {
        self.entries += 1;
    }

    fn named(&mut self, _: &Named) {
        self.entries += 1;
    }

    fn wants_exchanges(&self) -> bool {
        true
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.gather(exchange);
        self.entries += 1;
    }
}

/// The share that a fact is about, if it is about one.
fn shares(spec: &Spec, fact: &KeptFact) -> Result<Option<Values>, FieldError> {
    match fact {
        Fact::Joined(_, terms) | Fact::TermsChanged(_, terms) => {
            Values::read_written(spec.share_fields, &terms.share).map(Some)
        }
        _ => Ok(None),
    }
}

/// A fact as a host is told it.
fn read<'a>(fact: &'a KeptFact, share: Option<&'a Values>) -> slackline_host::Fact<'a> {
    let terms = |cpus| VcpuTerms { share: share.expect("whoever has terms has a share"), cpus };
    match fact {
        Fact::Joined(vcpu, written) => Fact::Joined(*vcpu, terms(written.cpus)),
        Fact::TermsChanged(vcpu, written) => Fact::TermsChanged(*vcpu, terms(written.cpus)),
        Fact::Told(vcpu, told) => Fact::Told(*vcpu, told),
        other => other.clone().map(|_| unreachable!("said above"), |_| unreachable!("said above")),
    }
}
