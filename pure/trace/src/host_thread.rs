//! Identities of host threads: threads of vCPUs, and all other threads that ran on the same host.

use slackline_units::{CpuId, Time, VcpuId};

/// Number of a host thread within one trace. A thread that changes its name or executes another
/// program gets a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostThreadId(u32);

impl HostThreadId {
    /// Creates the id of the host thread with this number.
    #[must_use]
    pub const fn new(number: u32) -> HostThreadId {
        HostThreadId(number)
    }

    /// Returns the number of the thread.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Kind of a host thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostThreadKind {
    /// Thread of a vCPU.
    Vcpu,
    /// Thread of a VM's process other than a vCPU thread, such as a thread for emulation or I/O.
    Monitor,
    /// Thread of Slackline itself.
    Slackline,
    /// Thread of any other process.
    Process,
    /// Thread of the kernel.
    Kernel,
}

impl HostThreadKind {
    /// All kinds, in the order of the numbers by which traces store them.
    pub const ALL: [HostThreadKind; 5] = [
        HostThreadKind::Vcpu,
        HostThreadKind::Monitor,
        HostThreadKind::Slackline,
        HostThreadKind::Process,
        HostThreadKind::Kernel,
    ];
}

/// Identity of a host thread from a given time on. In a trace, the identity precedes all records of
/// the thread. The arguments of its command are never recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostThread {
    /// Time from which the identity holds.
    pub at: Time,
    /// Number of the thread in this trace.
    pub id: HostThreadId,
    /// Kind of the thread.
    pub kind: HostThreadKind,
    /// vCPU to which the thread belongs. `None` if the thread is no vCPU thread.
    pub vcpu: Option<VcpuId>,
    /// Thread id on the host. 0 in an anonymised trace.
    pub tid: u32,
    /// Process id on the host. 0 in an anonymised trace.
    pub process: u32,
    /// User id of the process. 0 in an anonymised trace.
    pub user: u32,
    /// Name of the thread.
    pub name: String,
    /// Name of the process, without its arguments.
    pub command: String,
    /// Name of the VM to which the process belongs. Empty if the process belongs to no VM.
    pub vm: String,
    /// Systemd unit or cgroup of the process. Empty if the process is in the root group.
    pub group: String,
}

/// Fact about a recording as a whole: its kernel, its recorder, or an assumption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Name of the fact, such as `kernel`.
    pub name: String,
    /// Text of the fact.
    pub text: String,
}

impl Note {
    /// Returns the CPUs of the trace by their numbers on the recorded host, from the note `cpus`.
    /// The index in the list is the number of the CPU in the trace. `None` for all other notes, and
    /// if the text is not a list of CPU numbers.
    #[must_use]
    pub fn cpus(&self) -> Option<Vec<CpuId>> {
        let cpu = |text: &str| {
            let number = text.parse::<usize>().ok().filter(|&number| number < CpuId::LIMIT);
            number.map(CpuId::new)
        };
        if self.name == "cpus" { self.text.split(',').map(cpu).collect() } else { None }
    }
}
