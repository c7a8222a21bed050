//! Model of a recording: the demand, parameters and costs from which scenarios are written.

use std::collections::BTreeMap;

use slackline_demand::{Change, ChangeKind, Demand, RecordedReservation, VcpuDemand};
use slackline_policy::{FieldError, Spec, Values, find, is_simulated_only};
use slackline_scenario::Draw;
use slackline_trace::WrittenTerms;
use slackline_units::{CpuId, CpuSet, Reservation, Span, Time, VcpuId};
use thiserror::Error;

use crate::costs::{HostCosts, ordinary, stop_lateness, wake_pass};
use crate::measure::Measures;
use crate::other_names;
use crate::recording::Recording;
use crate::stays::{self, LeftOutReason, LeftOutVm};
use crate::verdict::Tolerance;

/// Longest time from the start of a recording to the join of a vCPU that existed before the
/// recording. Such a vCPU joins at the start of one of its periods, which are up to 100 ms long. A
/// vCPU that joins later came during the recording.
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
    /// No VM of the recording can have a prediction.
    #[error("cannot model any VM of the recording{}", example(.0))]
    AllLeftOut(Vec<LeftOutVm>),
}

/// Returns the end of an error message, which names the first of these VMs as an example. Empty if
/// there is no VM.
fn example(left_out: &[LeftOutVm]) -> String {
    let text = |LeftOutVm { name, why }: &LeftOutVm| format!(", for example `{name}`: {why}");
    left_out.first().map(text).unwrap_or_default()
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
    /// True if the model was edited. In the closed form of an edited model, a vCPU that has done
    /// its recorded jobs does them again.
    pub(crate) is_edited: bool,
}

/// Ordinary programs on one CPU that compete with VMs for slack. Only one of them runs at a time.
#[derive(Clone, Debug)]
pub(crate) struct Competitor {
    /// Index of this competitor in `OtherDemand::competitors` of the recorded demand.
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
    /// True for a reservation of the service itself, which is no VM.
    pub(crate) is_service: bool,
    /// Reason why the VM has no prediction. `None` if it has one.
    pub(crate) left_out: Option<LeftOutReason>,
}

/// A vCPU of the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelVcpu {
    /// Indexes of the vCPU's stays in the recorded demand, in order of time. A vCPU has several
    /// stays only if its VM has no prediction.
    pub(crate) stays: Vec<usize>,
    /// True if the vCPU joined later than its VM. The vCPU has no reservation before its own join.
    pub(crate) comes_later: bool,
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
    Terms {
        share: Share,
        cpus: Option<CpuSet>,
    },
    Paused(bool),
    /// The vCPU left, while its VM stayed or came back later.
    Absent,
}

impl ModelVcpu {
    /// Returns the parameters at the end of the recording.
    fn last_share(&self) -> &Share {
        let later = self.changes.iter().rev().find_map(|change| match &change.what {
            ModelChangeKind::Terms { share, .. } => Some(share),
            ModelChangeKind::Paused(_) | ModelChangeKind::Absent => None,
        });
        later.unwrap_or(&self.share)
    }

    /// Returns true if the parameters changed during the recording, or if the vCPU joined later or
    /// left earlier than its VM.
    fn has_changed(&self) -> bool {
        let mut changes = self.changes.iter();
        self.comes_later
            || changes.any(|change| match &change.what {
                ModelChangeKind::Terms { share, .. } => *share != self.share,
                ModelChangeKind::Paused(_) => false,
                ModelChangeKind::Absent => true,
            })
    }

    /// Returns true if the vCPU is not there at the end of the recording.
    fn has_left(&self) -> bool {
        let later = self.changes.iter().rev().find_map(|change| match &change.what {
            ModelChangeKind::Terms { .. } => Some(false),
            ModelChangeKind::Paused(_) => None,
            ModelChangeKind::Absent => Some(true),
        });
        later.unwrap_or(false)
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
            is_edited: false,
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
        let vms = self.domains.iter().filter(|domain| !domain.is_service);
        vms.map(|domain| domain.name.as_str())
    }

    /// Returns the recorded VMs that have no prediction.
    #[must_use]
    pub fn left_out(&self) -> Vec<LeftOutVm> {
        let all = self.domains.iter();
        all.filter_map(|it| Some(LeftOutVm { name: it.name.clone(), why: it.left_out? })).collect()
    }

    /// Returns the name of a vCPU, given its id in a simulation of this model. The name of a
    /// recorded vCPU is the name that it has in the recording. `None` if no VM has the vCPU.
    pub(crate) fn name_of(&self, vcpu: VcpuId, demand: &Demand) -> Option<String> {
        let domain = self.vm_of(vcpu)?;
        let modelled = domain.vcpus.get(usize::from(vcpu.number()))?;
        match modelled.stays.first().filter(|_| !modelled.is_rotated) {
            Some(&stay) => Some(demand.vcpus[stay].name.clone()),
            None => Some(vcpu_name(&domain.name, usize::from(vcpu.number()), domain.vcpus.len())),
        }
    }

    /// Returns the VM of a vCPU, given its id in a simulation of this model. `None` if the vCPU
    /// represents other programs or a reservation of the service.
    pub(crate) fn vm_of(&self, vcpu: VcpuId) -> Option<&ModelDomain> {
        let domain = self.domains.get(vcpu.domain().number() as usize)?;
        Some(domain).filter(|domain| !domain.is_service)
    }
}

/// Returns the name of vCPU `number` of a VM with `vcpus` vCPUs.
pub(crate) fn vcpu_name(vm: &str, number: usize, vcpus: usize) -> String {
    if vcpus == 1 { vm.to_owned() } else { format!("{vm}.{number}") }
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
    /// Also true if a vCPU of the VM came or left during the recording.
    pub has_changed: bool,
}

impl Model {
    /// Returns one item for each VM: the reservation that the VM has at the end of the recording.
    /// The item is `None` if the VM has no reservation, or if its vCPUs have different parameters.
    /// It is also `None` if the kernel enforced the reservation.
    pub fn reservations(&self) -> impl Iterator<Item = Option<PlannedReservation>> + '_ {
        let vms = self.domains.iter().filter(|domain| !domain.is_service);
        vms.map(|domain| self.reservation_of(domain))
    }

    fn reservation_of(&self, domain: &ModelDomain) -> Option<PlannedReservation> {
        if let Some(LeftOutReason::OfKernel(_)) = domain.left_out {
            return None;
        }
        let vcpus: Vec<&ModelVcpu> = domain.vcpus.iter().filter(|vcpu| !vcpu.has_left()).collect();
        let last = vcpus.first()?.last_share();
        if vcpus.iter().any(|vcpu| vcpu.last_share() != last) {
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
            vcpus: vcpus.len(),
            reservation: promise.reservation,
            exact: promise.exact,
            is_shared: is_shared && vcpus.len() > 1,
            phase: last.get("phase").and_then(|phase| phase.parse().ok()),
            has_changed: domain.joined > self.begin + ARRIVED
                || domain.left_out.is_some()
                || domain.vcpus.iter().any(|vcpu| vcpu.has_changed()),
        })
    }
}

/// Returns the ordinary programs of the recording, which compete for slack.
fn competitors(recording: &Recording) -> Vec<Competitor> {
    let all = recording.demand.others.competitors.iter().enumerate();
    all.map(|(source, &(cpu, _))| Competitor { source, cpu }).collect()
}

/// Groups the recorded vCPUs into VMs, in order of vCPU ids. Each vCPU of the service is a domain
/// of its own.
fn domains(recording: &Recording, spec: &'static Spec) -> Result<Vec<ModelDomain>, ModelError> {
    let demand = &recording.demand;
    let mut order: Vec<usize> = (0..demand.vcpus.len()).collect();
    order.sort_by_key(|&index| demand.vcpus[index].vcpu);
    let mut groups: Vec<(bool, Vec<usize>)> = Vec::new();
    for index in order {
        let stay = &demand.vcpus[index];
        let is_service = other_names::is_of_service(stay.vcpu, stays::named(stay));
        let is_same = |(is_other, stays): &&mut (bool, Vec<usize>)| {
            !is_service && !*is_other && demand.vcpus[stays[0]].domain == stay.domain
        };
        match groups.iter_mut().find(is_same) {
            Some((_, stays)) => stays.push(index),
            None => groups.push((is_service, vec![index])),
        }
    }
    let left_out = stays::left_out(demand);
    let mut domains: Vec<ModelDomain> = Vec::with_capacity(groups.len());
    for (is_service, stays) in groups {
        let (name, why) = match is_service {
            true => (other_names::service_name(stays[0]), None),
            false => {
                let name = demand.vcpus[stays[0]].domain.clone();
                let why = left_out.get(&name).copied();
                (name, why)
            }
        };
        domains.push(domain(recording, stays, spec, (name, is_service, why))?);
    }
    if domains.is_empty() {
        return Err(ModelError::NoVcpus);
    }
    let has_prediction = |domain: &ModelDomain| !domain.is_service && domain.left_out.is_none();
    if left_out.is_empty() || domains.iter().any(has_prediction) {
        return Ok(domains);
    }
    let left_out = left_out.into_iter().map(|(name, why)| LeftOutVm { name, why });
    Err(ModelError::AllLeftOut(left_out.collect()))
}

/// Returns the domain of a VM or of a reservation of the service. `indexes` contains the indexes of
/// its stays in the recorded demand.
fn domain(
    recording: &Recording,
    indexes: Vec<usize>,
    spec: &'static Spec,
    (name, is_service, left_out): (String, bool, Option<LeftOutReason>),
) -> Result<ModelDomain, ModelError> {
    let demand = &recording.demand;
    let stays = indexes.iter().map(|&index| &demand.vcpus[index]);
    let joined = stays.clone().map(|stay| stay.joined).min().unwrap_or(recording.begin);
    // If admission refuses a domain that joins, the simulation ends. If admission refuses new
    // parameters, the simulation continues. So a domain without results joins at the start.
    let has_results = !is_service && left_out.is_none();
    let came_later = joined > recording.begin.after(ARRIVED);
    let joined = if came_later && !has_results { recording.begin } else { joined };
    let left: Option<Vec<Time>> = stays.clone().map(|stay| stay.left).collect();
    let left = left.and_then(|left| left.into_iter().max());
    let live = recording.is_live();
    let stop_lateness = if live { stop_lateness(stays.clone()) } else { None };
    let wake_pass = if live { wake_pass(stays, demand) } else { None };
    let vcpus = stays::by_vcpu(demand, indexes).into_iter();
    let vcpus = vcpus.map(|stays| vcpu(demand, stays, spec, (joined, left)));
    let vcpus = vcpus.collect::<Result<_, _>>()?;
    Ok(ModelDomain { name, joined, left, stop_lateness, wake_pass, vcpus, is_service, left_out })
}

/// Returns a vCPU with these stays. Its VM joined and left at the given times.
fn vcpu(
    demand: &Demand,
    stays: Vec<usize>,
    spec: &'static Spec,
    (joined, left): (Time, Option<Time>),
) -> Result<ModelVcpu, ModelError> {
    let stay = |&index: &usize| &demand.vcpus[index];
    // Without reservations, a vCPU without jobs needs no CPU time and reserves none.
    let has_reservations = !is_simulated_only(spec);
    let first = stay(&stays[0]);
    let (share, cpus) = parameters(first, spec)?;
    let comes_later = has_reservations && first.joined > joined.after(ARRIVED);
    let mut changes: Vec<ModelChange> = Vec::new();
    for (nth, stay) in stays.iter().map(stay).enumerate() {
        if has_reservations && (nth > 0 || comes_later) {
            let (share, cpus) = parameters(stay, spec)?;
            let returns = [ModelChangeKind::Terms { share, cpus }, ModelChangeKind::Paused(false)];
            changes.extend(returns.map(|what| ModelChange { at: stay.joined, what }));
        }
        changes.extend(stay.changes.iter().filter_map(|it| change(it, stay, spec)));
        let is_last = nth + 1 == stays.len();
        let is_absent = |at: Time| !is_last || left.is_none_or(|left| at.after(ARRIVED) < left);
        let absent = stay.left.filter(|&at| has_reservations && is_absent(at));
        changes.extend(absent.map(|at| ModelChange { at, what: ModelChangeKind::Absent }));
    }
    let (is_rotated, is_changed, starts_on) = (false, false, first.starts_on);
    Ok(ModelVcpu { stays, comes_later, is_rotated, is_changed, share, cpus, starts_on, changes })
}

/// Returns the parameters and the affinity with which a vCPU joined. The affinity is `None` if the
/// vCPU may run on all CPUs, or if the trace does not contain its affinity.
fn parameters(
    stay: &VcpuDemand,
    spec: &'static Spec,
) -> Result<(Share, Option<CpuSet>), ModelError> {
    match (&stay.terms, stay.reserved) {
        (Some(terms), _) => Ok((share(terms), terms.cpus)),
        // A recording of the last seconds contains no parameters that were set earlier. It contains
        // reservations.
        (None, Some(reserved)) => Ok((share_of(reserved, spec), None)),
        (None, None) => Err(ModelError::NoTerms { name: stay.name.clone() }),
    }
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
