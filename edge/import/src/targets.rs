//! Recognition of the threads of a recording that are vCPUs.

use std::collections::BTreeMap;
use std::str::FromStr;

use slackline_linux::sys::Tid;
use slackline_live::recorder::assembler::RecordedVcpu;
use slackline_units::{DomId, Enforcement, VcpuId};

use crate::error::ImportError;
use crate::foreign::{Foreign, ForeignEventKind, ForeignThread};

/// Names of vCPU threads of QEMU, Firecracker, Cloud Hypervisor and crosvm. Each is a prefix and a
/// suffix, with the number of the vCPU in between.
const VCPU_NAMES: [(&str, &str); 5] =
    [("CPU ", "/KVM"), ("CPU ", "/TCG"), ("fc_vcpu ", ""), ("vcpu", ""), ("crosvm_vcpu", "")];
/// Prefix of the name of a QEMU process. libvirt and the option `-name process=` append the name of
/// the VM to this prefix.
const NAMED: &str = "qemu:";
/// Names of recorders, which are not VMs.
const RECORDERS: [&str; 3] = ["perf", "trace-cmd", "slackline"];
/// Maximum number of busy processes that count as VMs.
const MOST_PROCESSES: usize = 8;
/// Minimum CPU time of a process that counts as a VM, in percent of one CPU.
const LEAST_PERCENT: u64 = 1;
/// Names of kernel threads. Some are prefixes that are followed by a number.
const KERNEL: [&str; 22] = [
    "kworker/",
    "ksoftirqd/",
    "migration/",
    "cpuhp/",
    "idle_inject/",
    "irq/",
    "irq_work/",
    "rcu_",
    "rcuc/",
    "rcuog/",
    "rcuos/",
    "rcub/",
    "rcuop/",
    "jbd2/",
    "kswapd",
    "kcompactd",
    "khugepaged",
    "kthreadd",
    "kauditd",
    "watchdogd",
    "ktimers/",
    "napi/",
];

/// A process that the user names as a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the VM. `None` if the VM gets the name of its process.
    pub name: Option<String>,
    /// Process id. If the recording does not state process ids, a thread id.
    pub pid: i32,
}

/// The text does not name a process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` does not name a process; write pid:NUMBER or NAME=pid:NUMBER")]
pub struct BadTarget(String);

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Target, BadTarget> {
        let bad = || BadTarget(text.into());
        let (name, process) = match text.split_once('=') {
            Some((name, process)) => (Some(name), process),
            None => (None, text),
        };
        let pid = process.strip_prefix("pid:").and_then(|pid| pid.parse().ok());
        let pid = pid.filter(|&pid: &i32| pid > 0).ok_or_else(bad)?;
        if name.is_some_and(|name| name.is_empty() || name != plain(name)) {
            return Err(bad());
        }
        Ok(Target { name: name.map(str::to_owned), pid })
    }
}

/// vCPUs of a recording, and a description of how they were recognised.
#[derive(Debug)]
pub(crate) struct RecognisedVcpus {
    pub(crate) vcpus: Vec<RecordedVcpu>,
    /// Sentence about how the vCPUs were recognised.
    pub(crate) how: String,
}

/// A process of a recording with its threads.
#[derive(Debug, Default)]
struct Process {
    name: String,
    threads: Vec<i32>,
    used: u64,
    is_kernel: bool,
}

/// Returns true if a thread with this name is a kernel thread.
pub(crate) fn has_kernel_name(name: &str) -> bool {
    KERNEL.iter().any(|known| name.starts_with(known))
}

pub(crate) fn recognise(
    foreign: &Foreign,
    targets: &[Target],
) -> Result<RecognisedVcpus, ImportError> {
    let processes = processes(foreign);
    let (vms, how) = if targets.is_empty() {
        chosen(foreign, &processes)
    } else {
        let vm = |target: &Target| asked(foreign, &processes, target);
        let vms = targets.iter().map(vm).collect::<Result<_, _>>()?;
        (vms, "the user named the processes that are VMs".to_owned())
    };
    Ok(RecognisedVcpus { vcpus: numbered(unique(vms))?, how })
}

/// A VM: its name, its process id, and its vCPU threads in the order of their numbers.
type Vm = (String, i32, Vec<i32>);

/// Returns the VMs that are recognised by the names of their threads. If no thread has a known
/// name, the busiest processes count as VMs.
fn chosen(foreign: &Foreign, processes: &BTreeMap<i32, Process>) -> (Vec<Vm>, String) {
    let mut vms: Vec<Vm> = Vec::new();
    for (&pid, process) in processes {
        let threads = vcpu_threads(foreign, process);
        if !threads.is_empty() {
            vms.push((vm_name(&process.name), pid, threads));
        }
    }
    if !vms.is_empty() {
        let how =
            "a thread with the name of a vCPU thread is a vCPU, and its process is a VM".into();
        return (vms, how);
    }
    let busiest = busiest(foreign, processes);
    let vm = |pid: &i32| {
        let process = &processes[pid];
        (vm_name(&process.name), *pid, process.threads.clone())
    };
    let vms: Vec<Vm> = busiest.iter().map(vm).collect();
    let how = format!(
        "no thread has the name of a vCPU thread, so the {} busiest processes count as VMs and \
         their threads as vCPUs",
        vms.len()
    );
    (vms, how)
}

fn asked(
    foreign: &Foreign,
    processes: &BTreeMap<i32, Process>,
    target: &Target,
) -> Result<Vm, ImportError> {
    let pid = target.pid;
    let process = processes
        .get(&pid)
        .or_else(|| processes.values().find(|process| process.threads.contains(&pid)));
    let Some(process) = process else {
        let busiest = busiest(foreign, processes).into_iter();
        let busiest = busiest.map(|pid| (vm_name(&processes[&pid].name), pid)).collect();
        return Err(ImportError::NoProcess { pid, threads: foreign.threads.len(), busiest });
    };
    let mut threads = vcpu_threads(foreign, process);
    if threads.is_empty() {
        threads.clone_from(&process.threads);
    }
    let name = target.name.clone().unwrap_or_else(|| vm_name(&process.name));
    Ok((name, pid, threads))
}

/// Returns the vCPU threads of a process, which are recognised by their names. They are in the
/// order of the numbers in the names.
fn vcpu_threads(foreign: &Foreign, process: &Process) -> Vec<i32> {
    let number = |tid: &i32| vcpu_number(&foreign.threads[tid].name);
    let mut threads: Vec<(u32, i32)> =
        process.threads.iter().filter_map(|tid| Some((number(tid)?, *tid))).collect();
    threads.sort_unstable();
    threads.into_iter().map(|(_, tid)| tid).collect()
}

fn vcpu_number(name: &str) -> Option<u32> {
    VCPU_NAMES
        .iter()
        .find_map(|(begin, end)| name.strip_prefix(begin)?.strip_suffix(end)?.trim().parse().ok())
}

/// Returns the processes with the most CPU time, in descending order. Recorders are left out.
fn busiest(foreign: &Foreign, processes: &BTreeMap<i32, Process>) -> Vec<i32> {
    let length = length(foreign);
    let is_vm = |process: &Process| {
        !process.is_kernel
            && !RECORDERS.contains(&process.name.as_str())
            && process.used >= length / 100 * LEAST_PERCENT
            && process.used > 0
    };
    let mut busiest: Vec<(u64, i32)> = processes
        .iter()
        .filter(|(_, process)| is_vm(process))
        .map(|(&pid, process)| (u64::MAX - process.used, pid))
        .collect();
    busiest.sort_unstable();
    busiest.into_iter().take(MOST_PROCESSES).map(|(_, pid)| pid).collect()
}

/// Returns all processes that ran, each with its threads that ran.
fn processes(foreign: &Foreign) -> BTreeMap<i32, Process> {
    let mut processes: BTreeMap<i32, Process> = BTreeMap::new();
    for (tid, used) in used(foreign) {
        let thread = &foreign.threads[&tid];
        let pid = thread.process.unwrap_or(tid);
        let process = processes.entry(pid).or_default();
        process.threads.push(tid);
        process.used += used;
        process.is_kernel |= is_kernel(thread);
        let main = foreign.threads.get(&pid).unwrap_or(thread);
        process.name.clone_from(&main.name);
    }
    processes
}

pub(crate) fn is_kernel(thread: &ForeignThread) -> bool {
    thread.is_kernel || has_kernel_name(&thread.name)
}

/// Returns the CPU time of each thread that ran, in nanoseconds.
fn used(foreign: &Foreign) -> BTreeMap<i32, u64> {
    let mut used: BTreeMap<i32, u64> = BTreeMap::new();
    let mut since = BTreeMap::new();
    let begin = foreign.events.first().map_or(0, |event| event.at);
    for event in &foreign.events {
        if let ForeignEventKind::Switch { from, to, .. } = event.what {
            let began = since.insert(event.cpu, event.at).unwrap_or(begin);
            *used.entry(from).or_default() += event.at - began;
            used.entry(to).or_default();
        }
    }
    used.retain(|tid, _| foreign.threads.contains_key(tid));
    used
}

/// Returns the length of the recording in nanoseconds.
fn length(foreign: &Foreign) -> u64 {
    let ends = foreign.events.first().zip(foreign.events.last());
    ends.map_or(0, |(first, last)| last.at - first.at)
}

/// Returns the name of a VM that is named after its process.
fn vm_name(process: &str) -> String {
    let name = plain(process.strip_prefix(NAMED).unwrap_or(process));
    if name.is_empty() { "vm".into() } else { name }
}

/// Returns the text in lower case. A dash replaces each character that is not allowed in the name
/// of a VM.
fn plain(text: &str) -> String {
    let plain = |c: char| match c {
        c if c.is_ascii_alphanumeric() || c == '-' || c == '_' => c.to_ascii_lowercase(),
        _ => '-',
    };
    text.chars().map(plain).collect::<String>().trim_matches('-').chars().take(60).collect()
}

/// Appends the process id to every name that several VMs have.
fn unique(mut vms: Vec<Vm>) -> Vec<Vm> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (name, ..) in &vms {
        *counts.entry(name.clone()).or_default() += 1;
    }
    for (name, pid, _) in &mut vms {
        if counts.get(name).is_some_and(|count| *count > 1) {
            *name = format!("{name}-{pid}");
        }
    }
    vms
}

fn numbered(vms: Vec<Vm>) -> Result<Vec<RecordedVcpu>, ImportError> {
    let mut vcpus = Vec::new();
    let all = vms.iter().map(|(_, _, threads)| threads.len()).sum();
    for ((domain, _, threads), number) in vms.into_iter().zip(0..) {
        for (tid, index) in threads.into_iter().zip(0..) {
            let slot = u32::try_from(vcpus.len()).unwrap_or(u32::MAX);
            let vcpu = VcpuId::checked(slot, DomId::new(number), index);
            let too_many = || ImportError::TooManyVcpus { vcpus: all, most: vcpus.len() };
            let (vcpu, tid) = vcpu.zip(Tid::new(tid)).ok_or_else(too_many)?;
            let name = format!("{domain}.{index}");
            // Recordings of other programs do not state an enforcement mechanism.
            let (by, domain, is_of_tree) = (Enforcement::Dispatcher, domain.clone(), false);
            vcpus.push(RecordedVcpu { tid, vcpu, name, domain, by, is_of_tree });
        }
    }
    Ok(vcpus)
}
