//! Topics that `doctor` examines, and the sections of its report.

/// A topic that `doctor` examines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Version of the kernel.
    Kernel,
    /// Descriptors for single threads (thread pidfds).
    Pidfd,
    /// Privileges over threads of other programs.
    Privilege,
    /// Permission to lock the memory of this process in RAM.
    MemoryLock,
    /// Permission to set `SCHED_FIFO`.
    Fifo,
    /// Real-time budget of this process's cgroup.
    RtGroup,
    /// Kernel's limit on the share of each CPU that real-time classes may use.
    RtLimit,
    /// Fair server: the kernel's reservation for ordinary threads.
    FairServer,
    /// Amount of free `SCHED_DEADLINE` bandwidth.
    DeadlineShare,
    /// Real-time threads of programs other than Slackline.
    OtherRealtime,
    /// Lateness of the kernel's timers.
    Timers,
    /// The kernel's clock source.
    Clock,
    /// Frequency of the kernel's tick.
    Tick,
    /// CPU time that a hypervisor below this host gave to other guests.
    Steal,
    /// Number of CPUs, and the CPUs that this process may use.
    Cpus,
    /// CPUs that share a core.
    Smt,
    /// CPUs that share cores, caches, nodes and sockets.
    Topology,
    /// Frequency governors of the CPUs.
    Governor,
    /// Mounted versions of cgroup hierarchies.
    Cgroup,
    /// Support for freezing single threads with a cgroup.
    Freezer,
    /// Time for which a move of a thread to another cgroup blocks the freezer.
    CgroupMoves,
    /// File system of the journal, in which the changed threads are recorded.
    Journal,
    /// Support for loadable schedulers (`sched_ext`).
    SchedExt,
    /// Support for real-time budgets of cgroups, with a period for each cgroup (`cpu.rt.max`).
    GroupReservations,
    /// Perf events that observe a whole CPU, both as counters and as records.
    Perf,
    /// Tracepoints of the kernel.
    Tracefs,
    /// Support for BPF programs.
    Bpf,
    /// Hardware virtualization by KVM.
    Kvm,
    /// QEMU emulators in `PATH`.
    Qemu,
}

/// Section of a report, a group of topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// Topics about the permissions of this process.
    Permission,
    /// Topics about the amount of CPU time that can be reserved.
    Bandwidth,
    /// Topics about the precision with which CPU time can be delivered.
    Precision,
    /// Topics about the means to stop threads.
    Holding,
    /// Topics about the means to observe threads.
    Watching,
    /// Topics about the support for running VMs.
    Machines,
}

impl Section {
    /// Returns the heading of the section.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Section::Permission => "Permissions",
            Section::Bandwidth => "Available CPU time",
            Section::Precision => "Precision",
            Section::Holding => "Control of threads",
            Section::Watching => "Observation of threads",
            Section::Machines => "Virtual machines",
        }
    }
}

impl Topic {
    /// All topics in the order of a report: by section.
    pub const ALL: [Topic; 29] = [
        Topic::Kernel,
        Topic::Privilege,
        Topic::MemoryLock,
        Topic::Fifo,
        Topic::RtGroup,
        Topic::Cpus,
        Topic::RtLimit,
        Topic::FairServer,
        Topic::DeadlineShare,
        Topic::OtherRealtime,
        Topic::Timers,
        Topic::Clock,
        Topic::Tick,
        Topic::Steal,
        Topic::Smt,
        Topic::Topology,
        Topic::Governor,
        Topic::Pidfd,
        Topic::Cgroup,
        Topic::Freezer,
        Topic::CgroupMoves,
        Topic::Journal,
        Topic::SchedExt,
        Topic::GroupReservations,
        Topic::Perf,
        Topic::Tracefs,
        Topic::Bpf,
        Topic::Kvm,
        Topic::Qemu,
    ];

    /// Returns the stable name of the topic, which is the same in all versions.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Topic::Kernel => "kernel",
            Topic::Pidfd => "pidfd",
            Topic::Privilege => "privilege",
            Topic::MemoryLock => "memory-lock",
            Topic::Fifo => "fifo",
            Topic::RtGroup => "rt-group",
            Topic::RtLimit => "rt-limit",
            Topic::FairServer => "fair-server",
            Topic::DeadlineShare => "deadline-share",
            Topic::OtherRealtime => "other-realtime",
            Topic::Timers => "timers",
            Topic::Clock => "clock",
            Topic::Tick => "tick",
            Topic::Steal => "steal",
            Topic::Cpus => "cpus",
            Topic::Smt => "smt",
            Topic::Topology => "topology",
            Topic::Governor => "governor",
            Topic::Cgroup => "cgroup",
            Topic::Freezer => "freezer",
            Topic::CgroupMoves => "cgroup-moves",
            Topic::Journal => "journal",
            Topic::SchedExt => "sched-ext",
            Topic::GroupReservations => "hcbs",
            Topic::Perf => "perf",
            Topic::Tracefs => "tracefs",
            Topic::Bpf => "bpf",
            Topic::Kvm => "kvm",
            Topic::Qemu => "qemu",
        }
    }

    /// Returns the section to which the topic belongs.
    #[must_use]
    pub const fn section(self) -> Section {
        match self {
            Topic::Kernel | Topic::Privilege | Topic::MemoryLock | Topic::Fifo | Topic::RtGroup => {
                Section::Permission
            }
            Topic::Cpus
            | Topic::RtLimit
            | Topic::FairServer
            | Topic::DeadlineShare
            | Topic::OtherRealtime => Section::Bandwidth,
            Topic::Timers
            | Topic::Clock
            | Topic::Tick
            | Topic::Steal
            | Topic::Smt
            | Topic::Topology
            | Topic::Governor => Section::Precision,
            Topic::Pidfd
            | Topic::Cgroup
            | Topic::Freezer
            | Topic::CgroupMoves
            | Topic::Journal
            | Topic::SchedExt
            | Topic::GroupReservations => Section::Holding,
            Topic::Perf | Topic::Tracefs | Topic::Bpf => Section::Watching,
            Topic::Kvm | Topic::Qemu => Section::Machines,
        }
    }

    /// Returns true if no scenario can run live on a host where this topic is missing.
    #[must_use]
    pub const fn is_required(self) -> bool {
        matches!(self, Topic::Kernel | Topic::Privilege | Topic::Fifo)
    }

    /// Returns the reason why the topic matters, in one line.
    #[must_use]
    pub const fn matters(self) -> &'static str {
        match self {
            Topic::Kernel => "older kernels do not report when threads run",
            Topic::Pidfd => "a pidfd never refers to a later thread with the same id",
            Topic::Privilege => "Slackline raises, stops and restores threads of other programs",
            Topic::MemoryLock => "a dispatcher that waits for its own memory is late",
            Topic::Fifo => "dispatchers and the threads they choose run as SCHED_FIFO",
            Topic::RtGroup => "SCHED_FIFO is refused in a cgroup without a real-time budget",
            Topic::RtLimit => "reservations on a CPU cannot exceed this limit",
            Topic::FairServer => "ordinary threads receive this time in spite of reservations",
            Topic::DeadlineShare => "the kernel would still admit this share as SCHED_DEADLINE",
            Topic::OtherRealtime => "threads of equal or higher priority delay dispatchers",
            Topic::Timers => "if a timer expires late, a slice ends late or a period begins late",
            Topic::Clock => "each scheduling decision reads the clock several times",
            Topic::Tick => "the kernel accounts some CPU time in ticks only",
            Topic::Steal => "time that a hypervisor takes from this host cannot be reserved",
            Topic::Cpus => "Slackline can reserve time on these CPUs",
            Topic::Smt => "CPUs of one core slow each other: equal CPU time is not equal work",
            Topic::Topology => "CPUs that share a core, cache or memory slow each other down",
            Topic::Governor => "if CPUs change frequency, equal CPU time is not equal work",
            Topic::Cgroup => "cgroups freeze single threads and set budgets",
            Topic::Freezer => "the freezer stops a single thread, a signal stops a whole process",
            Topic::Journal => "each new reservation waits until its threads are in the journal",
            Topic::CgroupMoves => "no VM is stopped or resumed while a thread changes its cgroup",
            Topic::SchedExt => "not needed; sched_ext would be another way to control threads",
            Topic::GroupReservations => {
                "not needed; cpu.rt.max would be another way to reserve CPU time"
            }
            Topic::Perf => {
                "without perf events nothing can be reserved; they report context switches"
            }
            Topic::Tracefs => "without the wake-up tracepoint nothing can be reserved",
            Topic::Bpf => "not needed; BPF would be another way to observe threads",
            Topic::Kvm => "without KVM guests run by emulation, which is slower",
            Topic::Qemu => "vCPU threads of QEMU guests can be scheduled",
        }
    }
}
