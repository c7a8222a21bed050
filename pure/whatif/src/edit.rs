//! Edits of a model.

use std::collections::BTreeSet;

use slackline_policy::{FieldError, Spec, Values, find, nearest};
use slackline_units::{CpuId, CpuSet, ReservationError};
use thiserror::Error;

use crate::model::{Model, ModelChangeKind, ModelDomain, ModelVcpu, Share, written};
use crate::stays::{LeftOutReason, LeftOutVm};

/// Edit of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Change to another policy, or to other parameters of the policy: `sedf:rules=plain`.
    Policy(String),
    /// Change of a parameter of a VM, or of a vCPU such as `web.1`.
    Set {
        /// Name of the VM or vCPU.
        name: String,
        /// Name of the parameter.
        field: String,
        /// Value of the parameter, as a scenario writes it.
        value: String,
    },
    /// Addition of a VM with the demand and parameters of another VM.
    Add {
        /// Name of the new VM.
        name: String,
        /// Name of the VM that is copied.
        like: String,
    },
    /// Removal of a VM with this name.
    Remove(String),
    /// Choice of all CPUs of the simulated host, by their numbers on the recorded host. A number
    /// that the recording does not have adds a new CPU.
    Cpus(Vec<usize>),
    /// Confinement of a VM or vCPU to one CPU.
    Move {
        /// Name of the VM or vCPU.
        name: String,
        /// Number of the CPU on the host.
        cpu: usize,
    },
}

/// Reason why a model cannot be edited.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum EditError {
    /// No VM or vCPU has this name.
    #[error("cannot find `{name}` in the recording")]
    UnknownName {
        /// Name as the user gave it.
        name: String,
        /// Similar name in the recording. `None` if no name is similar.
        meant: Option<String>,
    },
    /// The VM has no prediction.
    #[error("cannot change or copy `{}`: {}", .0.name, .0.why)]
    LeftOut(LeftOutVm),
    /// A VM with the name of the added VM exists.
    #[error("cannot add `{name}`: there is a VM of that name")]
    Exists {
        /// Name as the user gave it.
        name: String,
    },
    /// The name of the added VM is invalid.
    #[error("cannot add `{name}`: it is not a valid name for a VM")]
    BadName {
        /// Name as the user gave it.
        name: String,
    },
    /// The VM to be removed is the only VM of the model.
    #[error("cannot remove `{name}`: no VM would remain")]
    Last {
        /// Name of the VM.
        name: String,
    },
    /// No policy has this name.
    #[error("cannot find a policy `{name}`")]
    UnknownPolicy {
        /// Name as the user gave it.
        name: String,
        /// Similar name of a policy. `None` if no name is similar.
        meant: Option<&'static str>,
    },
    /// Parameters of the policy are invalid.
    #[error("cannot set parameters of {policy}: {error}")]
    Policy {
        /// Name of the policy.
        policy: &'static str,
        /// Error in the parameters of the policy.
        error: FieldError,
    },
    /// A parameter was written without a value.
    #[error("cannot set `{written}`: a parameter is written FIELD=VALUE")]
    NoValue {
        /// Parameter as the user gave it.
        written: String,
    },
    /// A parameter of a VM is invalid.
    #[error("cannot set `{name}.{field}={value}`: {error}")]
    Set {
        /// Name of the VM or vCPU.
        name: String,
        /// Name of the parameter.
        field: String,
        /// Value as the user gave it.
        value: String,
        /// Error in the parameters of the vCPU.
        error: FieldError,
    },
    /// A VM cannot be moved to a CPU that the host does not have.
    #[error("cannot move a VM to cpu{cpu}: the simulated host has {}", listed(cpus))]
    BadCpu {
        /// Number of the CPU as the user gave it.
        cpu: usize,
        /// CPUs of the model, by their numbers on the host.
        cpus: Vec<CpuId>,
    },
    /// The number of an added CPU is too large.
    #[error("cannot add cpu{cpu}: a host has at most {most} CPUs, cpu0 to cpu{}", most - 1)]
    CpuTooHigh {
        /// Number of the CPU.
        cpu: usize,
        /// Largest possible number of CPUs.
        most: usize,
    },
    /// The parameters of a VM do not form a reservation.
    #[error("cannot set the parameters of `{name}`: {error}")]
    Reservation {
        /// Name of the VM or vCPU.
        name: String,
        /// Error in the reservation.
        error: ReservationError,
    },
    /// A parameter of a VM or vCPU is set twice.
    #[error("cannot set `{name}.{field}` twice")]
    SetTwice {
        /// Name of the VM or vCPU.
        name: String,
        /// Name of the parameter.
        field: String,
    },
    /// The VM is changed and removed.
    #[error("cannot change `{name}`: `{removed}` is removed")]
    Removed {
        /// Name of the VM or vCPU that is changed.
        name: String,
        /// Name of the VM that is removed.
        removed: String,
    },
    /// No CPU remains on which a VM may run.
    #[error("cannot place `{name}`: the host keeps none of the CPUs that `{name}` may use")]
    NoCpu {
        /// Name of the VM.
        name: String,
    },
}

impl EditError {
    /// Returns a hint that says what to type instead.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            EditError::UnknownName { meant: Some(name), .. } => did_you_mean(name),
            EditError::UnknownName { .. } => {
                "list its VMs with `slackline show TRACE --table`".into()
            }
            EditError::LeftOut(vm) => vm.why.hint(&vm.name),
            EditError::UnknownPolicy { meant: Some(name), .. }
            | EditError::Set { error: FieldError::Unknown { meant: Some(name), .. }, .. } => {
                did_you_mean(name)
            }
            EditError::UnknownPolicy { .. } => "list policies with `slackline help`".into(),
            EditError::Policy { policy, .. } => format!("see `slackline help {policy}`"),
            EditError::Set { name, error: FieldError::Missing(field), .. } => {
                format!("add --set {name}.{}=VALUE", field.name)
            }
            EditError::Reservation { name, .. } => {
                format!("set another slice or period of `{name}` with --set")
            }
            EditError::SetTwice { name, field } => format!("give --set {name}.{field} once"),
            EditError::Removed { name, removed } => {
                format!("drop --remove {removed}, or the change of `{name}`")
            }
            EditError::NoValue { .. } | EditError::Set { .. } => {
                "write --set web.slice=3ms; the help page of the policy lists parameters".into()
            }
            EditError::Exists { .. } | EditError::BadName { .. } => {
                "write --add web2 --like web".into()
            }
            EditError::Last { .. } => "keep at least one VM".into(),
            EditError::BadCpu { cpus, .. } => {
                let first = cpus.first().map_or(0, |cpu| cpu.index());
                format!("write the number of one of these CPUs, such as {first}")
            }
            EditError::CpuTooHigh { most, .. } => format!("write a number from 0 to {}", most - 1),
            EditError::NoCpu { name } => format!("keep one of the CPUs of `{name}` in --cpus"),
        }
    }
}

/// Lists CPUs: `cpu0 to cpu3` if their numbers are consecutive, and otherwise `cpu2, cpu5`.
fn listed(cpus: &[CpuId]) -> String {
    let is_range = cpus.windows(2).all(|pair| pair[0].index() + 1 == pair[1].index());
    match cpus {
        [first, .., last] if is_range => format!("{first} to {last}"),
        _ => cpus.iter().map(CpuId::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn did_you_mean(name: &str) -> String {
    format!("did you mean `{name}`?")
}

impl Model {
    /// Applies all edits in this order: policy, added VMs, removed VMs, CPUs, then parameters and
    /// confinements to a CPU. Edits of one kind are applied in the given order. The parameters of a
    /// VM must be valid when all edits are applied.
    ///
    /// # Errors
    /// If an edit cannot be applied. The error describes the first such edit.
    pub fn edit(&mut self, edits: &[Edit]) -> Result<(), EditError> {
        let rank = |edit: &Edit| match edit {
            Edit::Policy(_) => 0,
            Edit::Add { .. } => 1,
            Edit::Remove(_) => 2,
            Edit::Cpus(_) => 3,
            Edit::Set { .. } | Edit::Move { .. } => 4,
        };
        check_once(edits)?;
        self.is_edited |= !edits.is_empty();
        let mut sorted: Vec<&Edit> = edits.iter().collect();
        sorted.sort_by_key(|edit| rank(edit));
        for edit in &sorted {
            self.edit_one(edit).map_err(|error| match edit {
                Edit::Set { .. } | Edit::Move { .. } => with_removal(error, edits),
                _ => error,
            })?;
        }
        sorted.into_iter().try_for_each(|edit| self.check_set(edit))
    }

    fn edit_one(&mut self, edit: &Edit) -> Result<(), EditError> {
        match edit {
            Edit::Policy(written) => self.set_policy(written),
            Edit::Set { name, field, value } => self.set(name, field, value),
            Edit::Add { name, like } => self.add(name, like),
            Edit::Remove(name) => self.remove(name),
            Edit::Cpus(cpus) => self.set_cpus(cpus),
            Edit::Move { name, cpu } => self.move_to(name, *cpu),
        }
    }

    fn set_policy(&mut self, text: &str) -> Result<(), EditError> {
        let (name, set) = text.split_once(':').unwrap_or((text, ""));
        let meant = || nearest(name, slackline_policy::ALL.iter().map(|spec| spec.name));
        let unknown = || EditError::UnknownPolicy { name: name.into(), meant: meant() };
        let spec = find(name).ok_or_else(unknown)?;
        let is_same = spec.name == self.spec.name;
        let mut values = if is_same { self.policy.to_string() } else { String::new() };
        for setting in set.split(':').filter(|setting| !setting.is_empty()) {
            if !setting.contains('=') || setting.contains(char::is_whitespace) {
                return Err(EditError::NoValue { written: setting.into() });
            }
            values = format!("{values} {setting}");
        }
        let values = Values::read_written(spec.policy_fields, &values);
        let values = values.and_then(|values| (spec.conflict)(&values).map_or(Ok(values), Err));
        let policy = spec.name;
        self.policy = values.map_err(|error| EditError::Policy { policy, error })?;
        let before = std::mem::replace(&mut self.spec, spec);
        if !is_same {
            self.each_share(|share| convert(share, before, spec));
        }
        Ok(())
    }

    /// Applies `change` to all parameters of all vCPUs, including parameters that are set later in
    /// the run.
    fn each_share(&mut self, mut change: impl FnMut(&mut Share)) {
        for vcpu in self.domains.iter_mut().flat_map(|domain| &mut domain.vcpus) {
            each_share_of(vcpu, &mut change);
        }
    }

    fn set(&mut self, name: &str, field: &str, value: &str) -> Result<(), EditError> {
        let spec = self.spec;
        let vcpus = self.find(name)?;
        match Values::read_written(spec.share_fields, &format!("{field}={value}")) {
            // Other parameters are checked when all edits are applied.
            Ok(_) | Err(FieldError::Missing(_)) => {}
            Err(error) => return Err(bad_set((name, field, value), error)),
        }
        for vcpu in vcpus {
            vcpu.is_changed = true;
            each_share_of(vcpu, &mut |share| {
                share.insert(field.to_owned(), value.to_owned());
            });
        }
        Ok(())
    }

    /// Checks the parameters of each vCPU that an edit has set.
    fn check_set(&mut self, edit: &Edit) -> Result<(), EditError> {
        let Edit::Set { name, field, value } = edit else { return Ok(()) };
        let spec = self.spec;
        for vcpu in self.find(name)? {
            let values = Values::read_written(spec.share_fields, &written(&vcpu.share))
                .map_err(|error| bad_set((name, field, value), error))?;
            (spec.promise)(&values)
                .map_err(|error| EditError::Reservation { name: name.clone(), error })?;
        }
        Ok(())
    }

    fn add(&mut self, name: &str, like: &str) -> Result<(), EditError> {
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 64 || !name.chars().all(valid) {
            return Err(EditError::BadName { name: name.into() });
        }
        if self.names().any(|known| known == name) {
            return Err(EditError::Exists { name: name.into() });
        }
        let place = self.place(like)?;
        let mut copy = self.domains[place].clone();
        copy.name = name.into();
        copy.vcpus.iter_mut().for_each(|vcpu| vcpu.is_rotated = true);
        self.domains.push(copy);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<(), EditError> {
        let place = self.place(name)?;
        if self.names().count() == 1 {
            return Err(EditError::Last { name: name.into() });
        }
        self.domains.remove(place);
        Ok(())
    }

    fn set_cpus(&mut self, cpus: &[usize]) -> Result<(), EditError> {
        let mut cpus = cpus.to_vec();
        cpus.sort_unstable();
        cpus.dedup();
        let most = CpuId::LIMIT;
        if let Some(&cpu) = cpus.iter().find(|&&cpu| cpu >= most) {
            return Err(EditError::CpuTooHigh { cpu, most });
        }
        let cpus: Vec<CpuId> = cpus.into_iter().map(CpuId::new).collect();
        let before = self.host_cpus.clone();
        let place = |cpu: CpuId| before.iter().position(|&it| it == cpu).map(CpuId::new);
        let all = CpuSet::first_n(self.cpus);
        let renumbered = |set: CpuSet| -> CpuSet {
            let is_in = |cpu: CpuId| place(cpu).is_some_and(|place| set.contains(place));
            let kept = cpus.iter().enumerate().filter(|(_, cpu)| is_in(**cpu));
            kept.map(|(index, _)| CpuId::new(index)).collect()
        };
        self.domains.retain(|domain| {
            let mut vcpus = domain.vcpus.iter();
            !is_bound_to_cpus(domain)
                || vcpus.all(|vcpu| confined(vcpu.cpus, all, renumbered).is_some())
        });
        for domain in &mut self.domains {
            for vcpu in &mut domain.vcpus {
                let no_cpu = || EditError::NoCpu { name: domain.name.clone() };
                vcpu.cpus = confined(vcpu.cpus, all, renumbered).ok_or_else(no_cpu)?;
                vcpu.starts_on = None;
                for change in &mut vcpu.changes {
                    if let ModelChangeKind::Terms { cpus, .. } = &mut change.what {
                        *cpus = confined(*cpus, all, renumbered).ok_or_else(no_cpu)?;
                    }
                }
            }
        }
        let added = cpus.iter().enumerate().filter(|(_, cpu)| place(**cpu).is_none());
        let added: Vec<CpuId> = added.map(|(index, _)| CpuId::new(index)).collect();
        for groups in &mut self.groups {
            let kept = groups.iter().map(|&group| renumbered(group));
            let mut kept: Vec<CpuSet> = kept.filter(|group| !group.is_empty()).collect();
            match (&mut kept[..], groups.len()) {
                // The group contains all CPUs of the host, so it also gets the new CPUs.
                ([only], 1) => added.iter().for_each(|&cpu| only.insert(cpu)),
                _ => kept.extend(added.iter().map(|&cpu| CpuSet::one(cpu))),
            }
            *groups = kept;
        }
        self.cpus = cpus.len();
        self.host_cpus = cpus;
        Ok(())
    }

    fn move_to(&mut self, name: &str, cpu: usize) -> Result<(), EditError> {
        let Some(place) = self.host_cpus.iter().position(|it| it.index() == cpu) else {
            return Err(EditError::BadCpu { cpu, cpus: self.host_cpus.clone() });
        };
        let only = Some(CpuSet::one(CpuId::new(place)));
        for vcpu in self.find(name)? {
            vcpu.cpus = only;
            vcpu.starts_on = None;
            for change in &mut vcpu.changes {
                if let ModelChangeKind::Terms { cpus, .. } = &mut change.what {
                    *cpus = only;
                }
            }
        }
        Ok(())
    }

    /// Returns the index of the VM of this name.
    fn place(&self, name: &str) -> Result<usize, EditError> {
        let place = self.vm(name).ok_or_else(|| self.unknown(name))?;
        self.check_prediction(place)?;
        Ok(place)
    }

    /// Returns all vCPUs of a VM, or the one vCPU that has the name.
    fn find(&mut self, name: &str) -> Result<&mut [ModelVcpu], EditError> {
        let one = || {
            let (vm, number) = name.rsplit_once('.')?;
            let (place, number): (usize, usize) = (self.vm(vm)?, number.parse().ok()?);
            (number < self.domains[place].vcpus.len()).then_some((place, Some(number)))
        };
        let whole = self.vm(name).map(|place| (place, None));
        let (place, number) = whole.or_else(one).ok_or_else(|| self.unknown(name))?;
        self.check_prediction(place)?;
        let vcpus = self.domains[place].vcpus.as_mut_slice();
        Ok(match number {
            Some(number) => &mut vcpus[number..=number],
            None => vcpus,
        })
    }

    fn vm(&self, name: &str) -> Option<usize> {
        self.domains.iter().position(|domain| !domain.is_service && domain.name == name)
    }

    /// Checks that the VM at the index `place` has a prediction.
    fn check_prediction(&self, place: usize) -> Result<(), EditError> {
        let ModelDomain { name, left_out, .. } = &self.domains[place];
        let left_out = left_out.map(|why| LeftOutVm { name: name.clone(), why });
        left_out.map_or(Ok(()), |vm| Err(EditError::LeftOut(vm)))
    }

    fn unknown(&self, name: &str) -> EditError {
        let near = |known: &&str| {
            let longest = known.len().max(name.len());
            let same = known.chars().zip(name.chars()).filter(|(one, other)| one == other).count();
            same * 2 >= longest
        };
        let meant = self.names().find(near).map(str::to_owned);
        EditError::UnknownName { name: name.into(), meant }
    }
}

/// Returns the error for an edit that sets a parameter.
fn bad_set((name, field, value): (&str, &str, &str), error: FieldError) -> EditError {
    let [name, field, value] = [name, field, value].map(str::to_owned);
    EditError::Set { name, field, value, error }
}

/// Checks that no parameter is set twice. Only one of the values could take effect.
fn check_once(edits: &[Edit]) -> Result<(), EditError> {
    let mut set: BTreeSet<(&str, &str)> = BTreeSet::new();
    for edit in edits {
        if let Edit::Set { name, field, .. } = edit
            && !set.insert((name, field))
        {
            return Err(EditError::SetTwice { name: name.clone(), field: field.clone() });
        }
    }
    Ok(())
}

/// Returns the error for an edit that changes a VM. If another edit has removed the VM, the error
/// says so.
fn with_removal(error: EditError, edits: &[Edit]) -> EditError {
    let EditError::UnknownName { name, .. } = &error else { return error };
    let vm = name.rsplit_once('.').map(|(vm, _)| vm);
    let removed = edits.iter().find_map(|edit| match edit {
        Edit::Remove(removed) if removed == name || Some(removed.as_str()) == vm => Some(removed),
        _ => None,
    });
    match removed {
        Some(removed) => EditError::Removed { name: name.clone(), removed: removed.clone() },
        None => error,
    }
}

/// Applies `change` to all parameters of a vCPU, including parameters that are set later in the
/// run.
fn each_share_of(vcpu: &mut ModelVcpu, change: &mut impl FnMut(&mut Share)) {
    change(&mut vcpu.share);
    for later in &mut vcpu.changes {
        if let ModelChangeKind::Terms { share, .. } = &mut later.what {
            change(share);
        }
    }
}

/// Returns true if the domain is removed when an edit removes all CPUs of one of its vCPUs. This is
/// so for a reservation of the service, and for a VM whose CPU time the kernel enforces. For other
/// VMs, such an edit is an error.
fn is_bound_to_cpus(domain: &ModelDomain) -> bool {
    domain.is_service || matches!(domain.left_out, Some(LeftOutReason::OfKernel(_)))
}

/// Removes the parameters that the new policy does not have or whose values it does not accept. A
/// hard limit is kept if the new policy has hard limits.
fn convert(share: &mut Share, before: &'static Spec, spec: &'static Spec) {
    let promise = |spec: &'static Spec, share: &Share| {
        let values = Values::read_written(spec.share_fields, &written(share)).ok()?;
        (spec.promise)(&values).ok()?
    };
    let limited = promise(before, share).filter(|promise| promise.exact);
    share.retain(|field, value| takes(spec, field, value));
    let is_limited = promise(spec, share).is_some_and(|promise| promise.exact);
    if let (Some(promise), false, Some(limit)) = (limited, is_limited, spec.limit) {
        let reservation = promise.reservation;
        let pairs = limit(reservation.share(), reservation.period());
        let plain = |value: String| value.trim_matches('"').to_owned();
        share.extend(pairs.into_iter().map(|(field, value)| (field.to_owned(), plain(value))));
    }
}

/// Returns true if the policy has a vCPU parameter `field` and accepts `value` for it.
fn takes(spec: &'static Spec, field: &str, value: &str) -> bool {
    let known = spec.share_fields.iter().any(|known| known.name == field);
    let read = Values::read_written(spec.share_fields, &format!("{field}={value}"));
    // A missing parameter does not matter, since only `field` is tested.
    known && matches!(read, Ok(_) | Err(FieldError::Missing(_)))
}

/// Renumbers the CPUs to which a vCPU is confined. `Some(None)` if the vCPU may run on all CPUs.
/// `None` if no CPU remains on which the vCPU may run.
fn confined(
    cpus: Option<CpuSet>,
    all: CpuSet,
    renumbered: impl Fn(CpuSet) -> CpuSet,
) -> Option<Option<CpuSet>> {
    match cpus.filter(|&cpus| cpus != all) {
        None => Some(None),
        Some(cpus) => Some(renumbered(cpus)).filter(|cpus| !cpus.is_empty()).map(Some),
    }
}
