//! Culprits: the causes for which a runnable vCPU waits.

use core::fmt;

/// Cause that kept a runnable vCPU from running.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Culprit {
    /// Another VM ran, within its reservation or beyond it. If that VM has no reservation, all its
    /// CPU time counts as beyond.
    OtherVm {
        /// Name of the VM. Empty if the reader is not allowed to see it.
        vm: String,
        /// True if the VM ran beyond its reservation, or has no reservation.
        beyond: bool,
    },
    /// Another vCPU of the waiting VM ran, or a thread of its virtual machine monitor.
    OwnVm,
    /// A process of the host.
    Process {
        /// Name of the process. Empty if the reader is not allowed to see it.
        command: String,
        /// Systemd unit or cgroup of the process. Empty in the root group, or if the reader is not
        /// allowed to see it.
        group: String,
    },
    /// A kernel thread, or work of the kernel such as a context switch.
    Kernel {
        /// Name of the kernel thread without its CPU number, or of the kernel's work. Empty if the
        /// reader is not allowed to see it.
        name: String,
    },
    /// A hypervisor below this host: stolen time.
    Hypervisor,
    /// A timer that expired late.
    LateTimer,
    /// The dispatcher or another thread of Slackline.
    Dispatcher,
    /// The vCPU's budget was exhausted, and its reservation is a hard limit.
    Exhausted,
    /// A person paused the VM or stopped it with a signal.
    Paused,
    /// The recording does not show the cause.
    Unexplained,
}

impl Culprit {
    /// Returns the kind of culprit as one word. JSON uses this word, so the word never changes.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Culprit::OtherVm { beyond: false, .. } => "vm-reserved",
            Culprit::OtherVm { beyond: true, .. } => "vm-beyond",
            Culprit::OwnVm => "own-vm",
            Culprit::Process { .. } => "process",
            Culprit::Kernel { .. } => "kernel",
            Culprit::Hypervisor => "hypervisor",
            Culprit::LateTimer => "late-timer",
            Culprit::Dispatcher => "dispatcher",
            Culprit::Exhausted => "exhausted",
            Culprit::Paused => "paused",
            Culprit::Unexplained => "unexplained",
        }
    }

    /// Returns the cause in the form that a tenant is allowed to see. Names of other VMs, host
    /// processes and kernel threads are removed. VMs for which `owns` returns true keep their
    /// names.
    #[must_use]
    pub fn for_tenant(&self, owns: impl Fn(&str) -> bool) -> Culprit {
        match self {
            Culprit::OtherVm { vm, beyond } if !owns(vm) => {
                Culprit::OtherVm { vm: String::new(), beyond: *beyond }
            }
            Culprit::Process { .. } => {
                Culprit::Process { command: String::new(), group: String::new() }
            }
            Culprit::Kernel { .. } => Culprit::Kernel { name: String::new() },
            culprit => culprit.clone(),
        }
    }
}

impl fmt::Display for Culprit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Culprit::OtherVm { vm, beyond } => {
                let vm = if vm.is_empty() { "another VM" } else { vm };
                let how = if *beyond { "beyond" } else { "within" };
                write!(out, "{vm}, {how} its reservation")
            }
            Culprit::OwnVm => out.write_str("other threads of the VM itself"),
            Culprit::Process { command, .. } if command.is_empty() => out.write_str("the host"),
            Culprit::Process { command, group } if group.is_empty() => {
                write!(out, "process {command}")
            }
            Culprit::Process { command, group } => write!(out, "process {command} ({group})"),
            Culprit::Kernel { name } if name.is_empty() => out.write_str("the kernel"),
            Culprit::Kernel { name } => write!(out, "kernel: {name}"),
            Culprit::Hypervisor => out.write_str("hypervisor below this host (stolen)"),
            Culprit::LateTimer => out.write_str("late timer"),
            Culprit::Dispatcher => out.write_str("Slackline"),
            Culprit::Exhausted => out.write_str("own budget exhausted"),
            Culprit::Paused => out.write_str("paused by a user"),
            Culprit::Unexplained => out.write_str("unexplained"),
        }
    }
}
