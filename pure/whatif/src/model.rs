//! Model of a recording: the demand, parameters and costs from which scenarios are written.

use std::collections::BTreeMap;

use slackline_demand::{Change, ChangeKind, RecordedReservation, VcpuDemand};
use slackline_policy::{FieldError, Spec, Values, find, is_simulated_only};
use slackline_scenario::Draw;
use slackline_trace::WrittenTerms;
use slackline_units::{CpuId, CpuSet, Enforcement, Reservation, Span, Time};
use thiserror::Error;

use crate::costs::{HostCosts, ordinary, stop_lateness, wake_pass};
use crate::measure::Measures;
use crate::other_names;
use crate::recording::Recording;
use crate::verdict::Tolerance;

/// Time after the begin of a recording. A VM that joins later came during the recording. The vCPUs
/// that are there from the begin join at the starts of their periods, which are up to 100 ms long.
pub(crate) const ARRIVED: Span = Span::from_ms(200);

/// Reason why no model of a recording can be made.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ModelError {
    /// The recording does not show when vCPUs block and run.
    #[error("cannot model the recording: it does not say when vCPUs block and run")]
    NoBlocks,
    /// No vCPU joined during the recording.
    #[error("cannot model the recording: it contains no vCPU that joined")]
    NoVcpus,
    /// The policy of the recording does not exist in this version.
    #[error("cannot model the recording: its policy `{name}` is unknown")]
    UnknownPolicy {
        /// Name of the policy.
        name: String,
    },
    /// The policy does not accept the recorded parameters.
    #[error("cannot model the recording: the parameters of its policy are invalid: {error}")]
    Parameters {
        /// Error in the parameters.
        error: FieldError,
    },
    /// The trace does not contain the parameters of a vCPU.
    #[error("cannot model `{name}`: the trace does not contain its parameters")]
    NoTerms {
        /// Name of the vCPU.
        name: String,
    },
    /// A mechanism of the kernel enforced the CPU time of a VM during some of the recording. The
    /// simulation supports only the dispatcher.
    #[error(
        "cannot model `{name}`: `{by}` enforced its CPU time during the recording, and only the \
         dispatcher is simulated"
    )]
    OfKernel {
        /// Name of the VM.
        name: String,
        /// Mechanism that enforced the VM's CPU time.
        by: Enforcement,
    },
    /// A VM joined more than once during the recording.
    #[error("cannot model `{name}`: the VM left and joined again during the recording")]
    Rejoined {
        /// Name of the VM.
        name: String,
    },
    /// A vCPU of a VM never joined.
    #[error("cannot model `{name}`: its vCPU {number} is not in the trace")]
    MissingVcpu {
        /// Name of the VM.
        name: String,
        /// Number of the vCPU.
        number: usize,
    },
}

/// Model of a recording.
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) title: String,
    pub(crate) length: Span,
    /// Time in the recording at which the model begins.
    pub(crate) begin: Time,
    pub(crate) warmup: Span,
    pub(crate) seed: u64,
    pub(crate) spec: &'static Spec,
    pub(crate) policy: Values,
    pub(crate) cpus: usize,
    /// Number on the host of each CPU of the model. The index is the number of the CPU in the model
    /// and in its scenario.
    pub(crate) host_cpus: Vec<CpuId>,
    /// Number on the host of each CPU of the recording, which edits do not change.
    pub(crate) recorded_cpus: Vec<CpuId>,
    /// Groups of CPUs that share a core, cache, node or socket. The narrowest level comes first.
    pub(crate) groups: Vec<Vec<CpuSet>>,
    pub(crate) costs: HostCosts,
    pub(crate) domains: Vec<ModelDomain>,
    pub(crate) tolerance: Tolerance,
    /// Ordinary programs on the host that compete with VMs for slack.
    pub(crate) competitors: Vec<Competitor>,
}

/// Ordinary programs on one CPU that compete with VMs for slack. Only one of them runs at a time.
#[derive(Clone, Debug)]
pub(crate) struct Competitor {
    /// Index of the competing programs in the recorded demand of other programs.
    pub(crate) source: usize,
    pub(crate) cpu: CpuId,
}

/// A VM of the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelDomain {
    pub(crate) name: String,
    pub(crate) joined: Time,
    pub(crate) left: Option<Time>,
    /// Distribution of the time by which a vCPU stops later than its timeslice ends. If `None`, the
    /// lateness of the host's timers is used.
    pub(crate) stop_lateness: Option<Draw>,
    /// Distribution of the dispatcher's CPU time at each wake of a vCPU. If `None`, the
    /// distribution of the whole host is used ([`HostCosts::passes`]).
    pub(crate) wake_pass: Option<Draw>,
    pub(crate) vcpus: Vec<ModelVcpu>,
}

/// A vCPU of the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelVcpu {
    /// Index of the vCPU's demand in the recording.
    pub(crate) source: usize,
    /// True for a vCPU of an added VM. Such a vCPU has the jobs of the vCPU that was copied, but
    /// starts with a job at another position in the recording.
    pub(crate) is_rotated: bool,
    /// True if an edit changed the vCPU's parameters.
    pub(crate) is_changed: bool,
    pub(crate) share: Share,
    pub(crate) cpus: Option<CpuSet>,
    pub(crate) starts_on: Option<CpuId>,
    pub(crate) changes: Vec<ModelChange>,
}

/// Parameters of a vCPU: the value of each field as text.
pub(crate) type Share = BTreeMap<String, String>;

/// Change of a vCPU during the run.
#[derive(Clone, Debug)]
pub(crate) struct ModelChange {
    pub(crate) at: Time,
    pub(crate) what: ModelChangeKind,
}

/// Kind of a change.
#[derive(Clone, Debug)]
pub(crate) enum ModelChangeKind {
    Terms { share: Share, cpus: Option<CpuSet> },
    Paused(bool),
}

impl ModelVcpu {
    /// Returns the parameters at the end of the recording.
    fn last_share(&self) -> &Share {
        let later = self.changes.iter().rev().find_map(|change| match &change.what {
            ModelChangeKind::Terms { share, .. } => Some(share),
            ModelChangeKind::Paused(_) => None,
        });
        later.unwrap_or(&self.share)
    }

    /// Returns true if the parameters changed during the recording.
    fn has_changed(&self) -> bool {
        self.changes.iter().any(|change| match &change.what {
            ModelChangeKind::Terms { share, .. } => *share != self.share,
            ModelChangeKind::Paused(_) => false,
        })
    }
}

impl Model {
    /// Creates the model of a recording.
    ///
    /// # Errors
    /// If the recording does not contain everything that a model needs.
    pub fn new(recording: &Recording) -> Result<Model, ModelError> {
        let header = &recording.header;
        if !(header.knows.sleep && header.knows.stretches) {
            return Err(ModelError::NoBlocks);
        }
        let name = header.policy.split_whitespace().next().unwrap_or_default();
        let unknown = || ModelError::UnknownPolicy { name: name.into() };
        let spec = find(name).ok_or_else(unknown)?;
        let policy = Values::read_written(spec.policy_fields, &header.parameters);
        let policy = policy.map_err(|error| ModelError::Parameters { error })?;
        let policy = if is_simulated_only(spec) { ordinary(recording, spec) } else { policy };
        Ok(Model {
            title: header.title.clone(),
            length: recording.length(),
            begin: recording.begin,
            warmup: recording.warmup(),
            seed: header.seed,
            spec,
            policy,
            cpus: header.cpus,
            host_cpus: recording.cpus.clone(),
            recorded_cpus: recording.cpus.clone(),
            groups: header.groups.clone(),
            costs: HostCosts::fitted(recording),
            domains: domains(recording, spec)?,
            tolerance: match is_simulated_only(spec) {
                true => Tolerance::Ordinary,
                false => Tolerance::Reserved,
            },
            competitors: competitors(recording),
        })
    }

    /// Returns the largest differences between recording and simulation that the
    /// [gate](crate::Gate) accepts. Edits do not change these accepted differences.
    #[must_use]
    pub fn tolerance(&self) -> Tolerance {
        self.tolerance
    }

    /// Returns the largest differences that the [gate](crate::Gate) accepts for a vCPU with these
    /// results.
    #[must_use]
    pub fn tolerance_of(&self, results: &Measures) -> Tolerance {
        let divides_slack = self.costs.fair.is_some() && self.tolerance == Tolerance::Reserved;
        if divides_slack && results.uses_slack { Tolerance::Slack } else { self.tolerance }
    }

    /// Returns the policy, with the parameters that differ from its defaults, as a scenario states
    /// it.
    #[must_use]
    pub fn policy(&self) -> String {
        let mut text = String::from(self.spec.name);
        let defaults = Values::defaults(self.spec.policy_fields).ok();
        for (index, (field, value)) in self.policy.iter().enumerate() {
            let default = defaults.as_ref().and_then(|defaults| defaults.iter().nth(index));
            if default.map(|(_, default)| default) != Some(value) {
                text += &format!(" {}={value}", field.name);
            }
        }
        text
    }

    /// Returns the number of CPUs.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// Returns the model's number of the CPU with the number `recorded` in the recording. `None` if
    /// an edit removed the CPU.
    pub(crate) fn place_of(&self, recorded: CpuId) -> Option<CpuId> {
        let cpu = self.recorded_cpus.get(recorded.index())?;
        self.host_cpus.iter().position(|it| it == cpu).map(CpuId::new)
    }

    /// Returns this model with `warmup` as the length of the warm-up.
    #[must_use]
    pub fn with_warmup(&self, warmup: Span) -> Model {
        Model { warmup, ..self.clone() }
    }

    /// Returns the names of the VMs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.domains.iter().map(|domain| domain.name.as_str())
    }
}

/// Reservation, at the end of a recording, of a VM whose vCPUs all have the same parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedReservation {
    /// Name of the VM.
    pub name: String,
    /// Number of the VM's vCPUs.
    pub vcpus: usize,
    /// Slice and period of each vCPU.
    pub reservation: Reservation,
    /// True if the slice is a hard limit.
    pub exact: bool,
    /// True if the vCPUs may borrow each other's unused budget (`spread = "use"`).
    pub is_shared: bool,
    /// Phase: offset of the periods from multiples of the period on the clock. If `None`, the first
    /// period begins when the reservation is made.
    pub phase: Option<Span>,
    /// True if the VM had other parameters earlier in the recording, or came during the recording.
    pub has_changed: bool,
}

impl Model {
    /// Returns one item for each VM: the reservation that the VM has at the end of the recording.
    /// The item is `None` if the VM has no reservation, or if its vCPUs have different parameters.
    pub fn reservations(&self) -> impl Iterator<Item = Option<PlannedReservation>> + '_ {
        self.domains.iter().filter(|domain| !other_names::is_other(&domain.name)).map(|domain| {
            let last = domain.vcpus.first()?.last_share();
            if domain.vcpus.iter().any(|vcpu| vcpu.last_share() != last) {
                return None;
            }
            let values = Values::read_written(self.spec.share_fields, &written(last));
            let promise = (self.spec.promise)(&values.ok()?).ok()??;
            let is_shared = self
                .spec
                .together
                .is_some_and(|(field, word)| last.get(field).is_some_and(|value| value == word));
            Some(PlannedReservation {
                name: domain.name.clone(),
                vcpus: domain.vcpus.len(),
                reservation: promise.reservation,
                exact: promise.exact,
                is_shared: is_shared && domain.vcpus.len() > 1,
                phase: last.get("phase").and_then(|phase| phase.parse().ok()),
                has_changed: domain.joined > self.begin + ARRIVED
                    || domain.vcpus.iter().any(|vcpu| vcpu.has_changed()),
            })
        })
    }
}

/// Returns the ordinary programs of the recording, which compete for slack.
fn competitors(recording: &Recording) -> Vec<Competitor> {
    let all = recording.demand.others.competitors.iter().enumerate();
    all.map(|(source, &(cpu, _))| Competitor { source, cpu }).collect()
}

/// Groups the recorded vCPUs into VMs, in order of vCPU ids.
fn domains(recording: &Recording, spec: &'static Spec) -> Result<Vec<ModelDomain>, ModelError> {
    let mut order: Vec<usize> = (0..recording.demand.vcpus.len()).collect();
    order.sort_by_key(|&index| recording.demand.vcpus[index].vcpu);
    for stay in order.iter().map(|&index| &recording.demand.vcpus[index]) {
        if let Some(by) = kernel_mechanism(stay) {
            return Err(ModelError::OfKernel { name: stay.domain.clone(), by });
        }
    }
    let mut domains: Vec<ModelDomain> = Vec::new();
    for index in order {
        let stay = &recording.demand.vcpus[index];
        let number = usize::from(stay.vcpu.number());
        let name = match other_names::is_of_service(stay.vcpu) {
            true => other_names::service_name(index),
            false => stay.domain.clone(),
        };
        let known = domains.iter().position(|domain| domain.name == name);
        let place = known.unwrap_or_else(|| {
            domains.push(ModelDomain {
                name,
                joined: stay.joined,
                left: stay.left,
                stop_lateness: None,
                wake_pass: None,
                vcpus: Vec::new(),
            });
            domains.len() - 1
        });
        let domain = &mut domains[place];
        if number < domain.vcpus.len() {
            return Err(ModelError::Rejoined { name: stay.domain.clone() });
        }
        if number > domain.vcpus.len() {
            let (name, number) = (stay.domain.clone(), domain.vcpus.len());
            return Err(ModelError::MissingVcpu { name, number });
        }
        domain.joined = domain.joined.min(stay.joined);
        domain.left = domain.left.zip(stay.left).map(|(one, other)| one.max(other));
        domain.vcpus.push(vcpu(index, stay, spec)?);
    }
    if recording.is_live() {
        for domain in &mut domains {
            let sources = domain.vcpus.iter().map(|vcpu| &recording.demand.vcpus[vcpu.source]);
            domain.stop_lateness = stop_lateness(sources.clone());
            domain.wake_pass = wake_pass(sources, &recording.demand);
        }
    }
    if domains.is_empty() { Err(ModelError::NoVcpus) } else { Ok(domains) }
}

/// Returns the mechanism of the kernel that enforced the CPU time of a vCPU at some time of the
/// recording. `None` if only the dispatcher enforced it.
fn kernel_mechanism(stay: &VcpuDemand) -> Option<Enforcement> {
    let changes = stay.changes.iter().filter_map(|change| match change.what {
        ChangeKind::Reserved(reserved) => Some(reserved),
        _ => None,
    });
    let mut all = stay.reserved.into_iter().chain(changes).map(|reserved| reserved.by);
    all.find(|by| by.is_of_kernel())
}

fn vcpu(source: usize, stay: &VcpuDemand, spec: &'static Spec) -> Result<ModelVcpu, ModelError> {
    let no_terms = || ModelError::NoTerms { name: stay.name.clone() };
    let (share, cpus) = match (&stay.terms, stay.reserved) {
        (Some(terms), _) => (share(terms), terms.cpus),
        // A recording of the last seconds contains no parameters that were set earlier. It contains
        // reservations.
        (None, Some(reserved)) => (share_of(reserved, spec), None),
        (None, None) => return Err(no_terms()),
    };
    let changes = stay.changes.iter().filter_map(|it| change(it, stay, spec)).collect();
    let (is_rotated, is_changed, starts_on) = (false, false, stay.starts_on);
    Ok(ModelVcpu { source, is_rotated, is_changed, share, cpus, starts_on, changes })
}

/// Converts a recorded reservation into parameters of a policy.
fn share_of(reserved: RecordedReservation, spec: &'static Spec) -> Share {
    let mut share = Share::new();
    let Some(reservation) = reserved.reservation else { return share };
    let exact = if reserved.exact { ("exact", "true") } else { ("extra", "true") };
    let phase = reserved.phase.map(|phase| ("phase", phase.to_string()));
    let pairs = [
        ("slice", reservation.slice().to_string()),
        ("budget", reservation.slice().to_string()),
        ("period", reservation.period().to_string()),
        (exact.0, exact.1.to_owned()),
    ];
    for (field, value) in pairs.into_iter().chain(phase) {
        if spec.share_fields.iter().any(|known| known.name == field) {
            share.insert(field.to_owned(), value);
        }
    }
    share
}

/// Converts a recorded change into a change of the model. If the change is a new reservation, and
/// the trace also contains parameters of the vCPU, returns `None`: the parameters are used instead.
fn change(change: &Change, stay: &VcpuDemand, spec: &'static Spec) -> Option<ModelChange> {
    let what = match &change.what {
        ChangeKind::Reserved(_) if stay.terms.is_some() => return None,
        ChangeKind::Reserved(reserved) => {
            ModelChangeKind::Terms { share: share_of(*reserved, spec), cpus: None }
        }
        ChangeKind::Terms(terms) => {
            ModelChangeKind::Terms { share: share(terms), cpus: terms.cpus }
        }
        ChangeKind::Paused => ModelChangeKind::Paused(true),
        ChangeKind::Resumed => ModelChangeKind::Paused(false),
    };
    Some(ModelChange { at: change.at, what })
}

/// Parses the parameters in a trace: words of the form `field=value`.
fn share(terms: &WrittenTerms) -> Share {
    let pairs = terms.share.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.map(|(field, value)| (field.to_owned(), value.to_owned())).collect()
}

/// Formats parameters as in a trace: words of the form `field=value`.
pub(crate) fn written(share: &Share) -> String {
    let words: Vec<String> =
        share.iter().map(|(field, value)| format!("{field}={value}")).collect();
    words.join(" ")
}
