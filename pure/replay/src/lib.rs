//! Replay of traces: the recorded events of the hardware (*facts*) are reported to the host layer
//! and the policy again. The orders must equal the recorded orders.
//!
//! A [`Replay`] is a [`Sink`] for the entries of a trace, simulated or live. It compares the
//! decisions of the host layer with the trace: each order, each timer that changed, and each share
//! that was declined. Measured CPU time and the outcomes of orders are taken from the trace.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod script;

use std::collections::VecDeque;

use slackline_host::{Fault, Host, Report, VcpuTerms};
use slackline_policy::{
    FieldError, Spec, Topology, TopologyError, Values, find, is_simulated_only,
};
use slackline_trace::{Exchange, Fact, Header, HostThread, KeptFact, Note, Record, Sink, VcpuName};
use slackline_units::{CpuId, Time};
use thiserror::Error;

use script::{Mismatch, Script, Step};

/// Maximum number of recorded events in [`Difference::facts`], including the event that caused the
/// difference.
const BEFORE: usize = 5;

/// Reason why a trace cannot be replayed.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ReplayError {
    /// No policy has the name in the trace.
    #[error("this program has no policy `{name}`")]
    UnknownPolicy {
        /// Name of the policy in the trace.
        name: String,
    },
    /// The policy of the trace does not accept the policy parameters in the trace.
    #[error("cannot read the parameters of the policy in the trace: {0}")]
    Parameters(FieldError),
    /// The groups of CPUs in the trace are inconsistent.
    #[error("cannot read the groups of CPUs (cores, caches, nodes) in the trace: {0}")]
    Topology(TopologyError),
    /// The policy of the trace does not accept the parameters (`share`) of a vCPU in the trace.
    #[error("cannot read the share in entry {entry} of the trace: {error}")]
    Share {
        /// Index in the trace, from zero, of the event that contains the parameters.
        entry: u64,
        /// Error in the parameters.
        error: FieldError,
    },
    /// The trace contains no events that were reported to the host layer.
    #[error("the trace has no decisions to replay: it records only which vCPUs ran")]
    NoFacts,
}

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayResult {
    /// Number of events that were reported to the host layer.
    pub facts: u64,
    /// Number of orders that the host layer gave to the hardware.
    pub orders: u64,
    /// First difference between the replay and the trace. `None` if the replay and the trace are
    /// equal.
    pub difference: Option<Difference>,
    /// Breach of the contract between host and policy in the last step of the replay. The recorded
    /// run ended with that step, so the breach is no difference. `None` if no such breach occurred.
    pub broken: Option<String>,
}

/// First difference between a replay and its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Time of the event that caused the difference.
    pub at: Time,
    /// Index in the trace, from zero, of the recorded order, timer or refusal that differs. If
    /// nothing was recorded at that point, index of the event that caused the difference.
    pub entry: u64,
    /// Recorded order, timer or refusal. `None` if the trace has none where the replay produced
    /// one.
    pub expected: Option<Exchange>,
    /// Order, timer or refusal that the replay produced. `None` if the replay produced none where
    /// the trace has one.
    pub got: Option<Exchange>,
    /// Breach of the contract between host and policy that occurs in the replay and not in the
    /// recorded run. `None` if no such breach occurred.
    pub broken: Option<String>,
    /// Latest events up to the difference, each with its index in the trace and its time. The last
    /// event caused the difference.
    pub facts: Vec<(u64, Time, KeptFact)>,
}

/// Replay of a trace, as a sink that receives the entries of the trace.
pub struct Replay {
    spec: &'static Spec,
    host: Host,
    /// Step whose entries are still being read, with the index of its event in the trace. `None`
    /// before the first event.
    step: Option<(u64, Step)>,
    noticed: Vec<slackline_trace::CpuUse>,
    entries: u64,
    /// Expiry time of each CPU's timer: in the first list as recorded, in the second list as
    /// replayed. `None` if the timer is cleared.
    alarms: [Vec<Option<Time>>; 2],
    facts: VecDeque<(u64, Time, KeptFact)>,
    failed: Option<ReplayError>,
    replayed: ReplayResult,
}

impl Replay {
    /// Creates the replay of the trace with this header.
    ///
    /// # Errors
    /// If the policy is unknown, if its parameters or the groups of CPUs are invalid, or if the
    /// trace records no decisions.
    pub fn new(header: &Header) -> Result<Replay, ReplayError> {
        let name = header.policy.split_whitespace().next().unwrap_or_default();
        let unknown = || ReplayError::UnknownPolicy { name: name.into() };
        let spec = find(name).ok_or_else(unknown)?;
        if header.machine == "live" && is_simulated_only(spec) {
            // The kernel scheduled the vCPUs, and its decisions are not recorded.
            return Err(ReplayError::NoFacts);
        }
        let values = Values::read_written(spec.policy_fields, &header.parameters);
        let values = values.map_err(ReplayError::Parameters)?;
        let topology = Topology::of_levels(header.cpus, &header.groups);
        let topology = topology.map_err(ReplayError::Topology)?.with_dispatch(header.dispatch);
        let replayed = ReplayResult { facts: 0, orders: 0, difference: None, broken: None };
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

    /// Replays the last step and returns the result of the whole replay.
    ///
    /// # Errors
    /// If a share in the trace cannot be read, or if the trace has no event for the host layer.
    pub fn finish(mut self) -> Result<ReplayResult, ReplayError> {
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

    /// Replays the step whose entries have been read.
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
            // The replay broke the contract in the previous step, but the recorded run went on.
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

    fn named(&mut self, _: &VcpuName) {
        self.entries += 1;
    }

    fn host_thread(&mut self, _: &HostThread) {
        self.entries += 1;
    }

    fn note(&mut self, _: &Note) {
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

/// Returns the vCPU parameters in a recorded event. `None` if the event has none.
fn shares(spec: &Spec, fact: &KeptFact) -> Result<Option<Values>, FieldError> {
    match fact {
        Fact::Joined(_, terms) | Fact::TermsChanged(_, terms) => {
            Values::read_written(spec.share_fields, &terms.share).map(Some)
        }
        _ => Ok(None),
    }
}

/// Converts a recorded event to the type that the host layer takes.
fn read<'a>(fact: &'a KeptFact, share: Option<&'a Values>) -> slackline_host::Fact<'a> {
    let terms = |cpus| VcpuTerms { share: share.expect("a vCPU with terms has a share"), cpus };
    match fact {
        Fact::Joined(vcpu, written) => Fact::Joined(*vcpu, terms(written.cpus)),
        Fact::TermsChanged(vcpu, written) => Fact::TermsChanged(*vcpu, terms(written.cpus)),
        Fact::Told(vcpu, told) => Fact::Told(*vcpu, told),
        other => other.clone().map(
            |_| unreachable!("facts with terms are handled above"),
            |_| unreachable!("facts with terms are handled above"),
        ),
    }
}
