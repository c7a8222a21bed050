//! Selection of the VMs that a recorder records.

use std::collections::{BTreeMap, BTreeSet};

use slackline_control as control;
use slackline_linux::sys::{Scheduling, Tid, get_scheduling, process_of};
use slackline_linux::thread::threads_of;
use slackline_linux::with_causes;
use slackline_live::recorder::assembler::RecordedVcpu;
use slackline_live::recorder::growing::GrowingVm;
use slackline_metrics::{Answer, Blame, Culprit};
use slackline_service::Binding;
use slackline_units::{DomId, Enforcement, Span, VcpuId};
use thiserror::Error;

use crate::find::{self, Machine};

/// Reason why there are no VMs to record.
#[derive(Debug, Error)]
pub enum TargetError {
    /// The given text is not a valid binding.
    #[error("cannot record `{text}`: {why}")]
    NotABinding {
        /// Text that was given.
        text: String,
        /// Reason why the text is not a binding.
        why: String,
    },
    /// The binding refers to nothing that can be recorded.
    #[error("cannot record `{text}`: {why}")]
    Absent {
        /// Binding that was given.
        text: String,
        /// Reason why nothing was found.
        why: String,
    },
    /// No VM is running on this host.
    #[error("cannot find a VM on this host")]
    NoVms,
}

/// VMs, processes, units and cgroups that a recorder records.
#[derive(Debug, Default)]
pub struct Targets {
    /// Threads that are recorded as vCPUs.
    pub vcpus: Vec<RecordedVcpu>,
    /// Recorded processes, units and cgroups. New threads that they start are recorded as vCPUs
    /// too.
    pub growing: Vec<GrowingVm>,
    /// Names of all VMs of the host, recorded or not, and of all recorded processes, by process id.
    pub vms: BTreeMap<i32, String>,
    slots: u32,
    domains: u32,
}

impl Targets {
    /// Finds the VMs, processes, units and cgroups to which the bindings refer. If `bindings` is
    /// empty, finds all VMs of the host. Each text is a binding, or `NAME=BINDING` to record the VM
    /// under another name.
    ///
    /// # Errors
    ///
    /// If a text is not a binding, if a binding refers to nothing or to a cgroup with too many
    /// processes, or if there is no VM to record.
    pub fn find(bindings: &[String]) -> Result<Targets, TargetError> {
        let mut targets = Targets::default();
        let all = find::find_all().unwrap_or_default();
        let vms: Vec<&Machine> = all.iter().filter(|machine| !machine.vcpus.is_empty()).collect();
        for machine in &vms {
            if let Some(pid) = machine.pid() {
                targets.vms.insert(pid.raw(), called(machine));
            }
        }
        if bindings.is_empty() {
            for machine in &vms {
                targets.add(machine, machine.pid().into_iter().collect(), &called(machine));
            }
            return if targets.vcpus.is_empty() { Err(TargetError::NoVms) } else { Ok(targets) };
        }
        for text in bindings {
            let not_one = |why: String| TargetError::NotABinding { text: text.clone(), why };
            // The path of a cgroup can contain a `=` too.
            let named = text.split_once('=').filter(|(name, _)| !name.contains(':'));
            let (binding, name) = match named {
                Some((name, binding)) => (binding, Some(name)),
                None => (text.as_str(), None),
            };
            let binding: Binding = binding.parse().map_err(|why| not_one(format!("{why}")))?;
            let absent = |why| TargetError::Absent { text: text.clone(), why };
            let found = find::find(&binding).map_err(|error| absent(with_causes(&error)))?;
            let name = name.map_or_else(|| called(&found.machine), str::to_owned);
            let processes = found.processes().map_err(|error| absent(with_causes(&error)))?;
            targets.add(&found.machine, processes, &name);
        }
        Ok(targets)
    }

    fn add(&mut self, machine: &Machine, processes: Vec<Tid>, name: &str) {
        let domain = DomId::new(self.domains);
        self.domains += 1;
        self.vms.extend(processes.iter().map(|pid| (pid.raw(), name.to_owned())));
        for vcpu in &machine.vcpus {
            if let Ok(number) = u16::try_from(vcpu.number) {
                self.watch(vcpu.tid, (domain, number), name);
            }
        }
        if machine.vcpus.is_empty() {
            // A process, unit or cgroup: each thread counts as a vCPU.
            let threads = processes.iter().flat_map(|&pid| threads_of(pid).unwrap_or_default());
            let mut next = 0;
            for (tid, number) in threads.zip(0..u16::MAX) {
                self.watch(tid, (domain, number), name);
                next = number + 1;
            }
            let (name, has_children) = (name.to_owned(), machine.pid().is_none());
            self.growing.push(GrowingVm { domain, name, next, processes, has_children });
        }
    }

    fn watch(&mut self, tid: Tid, (domain, number): (DomId, u16), name: &str) {
        if let Some(vcpu) = VcpuId::checked(self.slots, domain, number) {
            self.slots += 1;
            let (domain, name) = (name.to_owned(), format!("{name}.{number}"));
            let (by, is_of_tree) = (mechanism(tid), false);
            self.vcpus.push(RecordedVcpu { tid, vcpu, name, domain, by, is_of_tree });
        }
    }
}

/// Returns the mechanism that enforces the CPU time of a thread, according to the scheduling class
/// of the thread. It is `deadline` for a deadline thread, and the dispatcher for any other thread.
fn mechanism(tid: Tid) -> Enforcement {
    match get_scheduling(tid).map(|scheduling| scheduling.class) {
        Ok(Scheduling::Deadline { .. }) => Enforcement::Deadline,
        _ => Enforcement::Dispatcher,
    }
}

/// Returns the name of a machine. If the machine has no name, returns the name of its process, or
/// else its binding.
fn called(machine: &Machine) -> String {
    if !machine.name.is_empty() {
        return machine.name.clone();
    }
    let pid = machine.pid().and_then(|pid| process_of(pid).ok());
    let read = |pid: Tid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    let name = pid.and_then(read).map(|name| name.trim_end().to_owned());
    name.unwrap_or_else(|| machine.binding.to_string())
}

/// Returns the causes of a VM's waiting time (culprits) in the wire format. If `own` is given, the
/// caller is a tenant, who sees only the names of the VMs in `own`.
pub(crate) fn culprits_for(
    name: &str,
    mut answer: Answer,
    own: Option<&BTreeSet<String>>,
) -> control::Culprits {
    if let Some(own) = own {
        let hide = |blame: &Blame| blame.for_tenant(|vm| own.contains(vm));
        answer.vcpus = answer.vcpus.iter().map(hide).collect();
    }
    let most = (MOST_CULPRITS / answer.vcpus.len().max(1)).clamp(5, MOST_EACH);
    answer.vcpus.iter_mut().for_each(|blame| merge_processes(blame, most));
    as_reply(name, &answer)
}

/// Maximum number of causes in an answer. It is divided among the vCPUs of the VM, and each vCPU
/// has a maximum of its own. The limits are needed because any user can start many processes in
/// cgroups with long names.
const MOST_CULPRITS: usize = 2_000;
const MOST_EACH: usize = 50;

/// Limits the causes of a vCPU. The first `most` causes stay. Of the other causes, all processes
/// are merged into one cause without a name, whose time is the sum of their times.
fn merge_processes(blame: &mut Blame, most: usize) {
    if blame.culprits.len() <= most {
        return;
    }
    let rest = blame.culprits.split_off(most);
    let is_process = |(culprit, _): &(Culprit, Span)| matches!(culprit, Culprit::Process { .. });
    let (processes, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_process);
    let waited = processes.iter().fold(Span::ZERO, |sum, (_, waited)| sum + *waited);
    let host = Culprit::Process { command: String::new(), group: String::new() };
    blame.culprits.extend(others);
    blame.culprits.push((host, waited));
    blame.culprits.sort_by_key(|(_, waited)| std::cmp::Reverse(*waited));
}

/// Converts the recorder's answer to the wire format. The answer says why the VM `name` had to
/// wait.
#[must_use]
pub fn as_reply(name: &str, answer: &Answer) -> control::Culprits {
    let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
    let gaps = answer.gaps.iter().map(|gap| control::Gap {
        cpu: number(gap.cpu.index()),
        from_ns: gap.from.ns(),
        to_ns: gap.to.ns(),
        events: gap.events,
    });
    control::Culprits {
        format: "slackline-why-1".into(),
        name: name.into(),
        length_ns: answer.length.ns(),
        vcpus: answer.vcpus.iter().map(vcpu).collect(),
        gaps: gaps.collect(),
    }
}

fn vcpu(blame: &Blame) -> control::VcpuCulprits {
    let culprits = blame.culprits.iter().map(|(culprit, span)| {
        let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let (vm, command, group, name) = match culprit {
            Culprit::OtherVm { vm, .. } => (known(vm), None, None, None),
            Culprit::Process { command, group } => (None, known(command), known(group), None),
            Culprit::Kernel { name } => (None, None, None, known(name)),
            _ => (None, None, None, None),
        };
        let (kind, says) = (culprit.kind().into(), culprit.to_string());
        control::CulpritTime { kind, says, waited_ns: span.ns(), vm, command, group, name }
    });
    control::VcpuCulprits {
        vcpu: blame.name.clone(),
        length_ns: Some(blame.recorded.ns()),
        ran_ns: blame.ran.ns(),
        waited_ns: blame.waited.ns(),
        culprits: culprits.collect(),
        check: blame.check.map(|check| control::KernelCheck {
            kernel_used_ns: check.kernel_used.ns(),
            kernel_ready_ns: check.kernel_ready.ns(),
            used_ns: check.used.ns(),
            ready_ns: check.ready.ns(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_times_for_many_processes_are_merged_into_one_sum() {
        let culprits = (0..3_000_u64).map(|nth| {
            let (command, group) = (format!("p{nth}"), "/a".into());
            (Culprit::Process { command, group }, Span::from_us(3_001 - nth))
        });
        let mut culprits: Vec<_> = culprits.collect();
        culprits.push((Culprit::Hypervisor, Span::from_us(1)));
        let waited = culprits.iter().fold(Span::ZERO, |sum, (_, waited)| sum + *waited);
        let vcpu = VcpuId::new(0, DomId::new(0), 0);
        let (name, ran) = ("web.0".into(), Span::ZERO);
        let (recorded, parts) = (waited, Vec::new());
        let blame = Blame { vcpu, name, recorded, ran, waited, culprits, parts, check: None };
        let (gaps, notes, vms) = (Vec::new(), Vec::new(), Vec::new());
        let answer = Answer { length: waited, vcpus: vec![blame], gaps, notes, vms };
        let shown = &culprits_for("web", answer, None).vcpus[0];
        assert_eq!(shown.culprits.len(), MOST_EACH + 2);
        assert_eq!(shown.culprits.iter().map(|it| it.waited_ns).sum::<u64>(), waited.ns());
        assert_eq!(shown.culprits[0].says, "the host");
        assert_eq!(shown.culprits[1].command.as_deref(), Some("p0"));
        assert_eq!(shown.culprits[MOST_EACH + 1].kind, "hypervisor");
    }
}
