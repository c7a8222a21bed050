//! Scenarios as data: the host, the domains and their work, changes during the run, and claims
//! about the results of the run.
//!
//! Only this crate reads scenarios from TOML and checks them. It turns names into ids and texts
//! into quantities. Each fault in a file is reported with its position and a hint. The crates on
//! which this crate depends use ids and know no names of domains. A scenario does not depend on the
//! computer that runs it.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod action;
mod admission;
mod balancing;
mod claim;
mod domain;
mod draw;
mod error;
mod file;
mod guest;
mod hint;
pub mod host;
pub mod io;
pub mod keys;
mod kinds;
mod limits;
mod names;
mod parameters;
mod recording;
mod releases;
mod run;
mod table;
mod terms;
mod work;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use slackline_policy::{Spec, Topology, Values, find};
use slackline_units::{CpuId, CpuSet, DomId, Span, Time, VcpuId};

pub use action::{Action, ActionKind, SharesInForce, actions};
pub use admission::{DeclinedVcpu, NotAdmitted};
pub use claim::{Amount, AmountOrPromised, Claim, ClaimHosts, Test};
pub use draw::{Draw, PERCENTILES, ParseDrawError, Purpose, Stream};
pub use error::{ErrorKind, Part, ScenarioError};
pub use guest::{FalseTask, GuestReports, GuestScheduler, System, Task, TaskName};
pub use recording::{FileBytes, NamedFile, RecordedSpan, Recording, RecordingReader};
pub use releases::Releases;
pub use work::{Program, Step, next_instant};

use terms::VcpuStart;

/// Maximum number of vCPUs of a scenario.
pub const MOST_VCPUS: usize = 1_000_000;
/// Maximum number of steps of all programs of a scenario together.
pub const MOST_STEPS: usize = 10_000_000;
/// Longest duration in a scenario: a year. A sum of a few hundred such durations stays within the
/// 584 years that a `Time` can hold.
pub const LONGEST: Span = Span::from_secs(365 * 24 * 60 * 60);

/// Parameters of a domain's vCPUs under several policies. The key is the name of the policy.
type Shares = BTreeMap<&'static str, Values>;

/// A whole scenario, as read and checked.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Title in one line.
    pub title: String,
    /// Text of the scenario file. Traces contain this text, so that a trace can be understood
    /// without the file.
    pub text: String,
    /// Length of the run, warm-up included.
    pub length: Span,
    /// Time from the start of the run that does not count in metrics. It is shorter than the run.
    pub warmup: Span,
    /// Seed of all random draws.
    pub seed: u64,
    /// Policy that schedules the host.
    pub policy: PolicyChoice,
    /// Host on which the policy runs.
    pub host: HostSpec,
    /// Domains in the order of the file, at least one. The id of a domain is its index.
    pub domains: Vec<Domain>,
    /// Devices, their driver domain and the clients. `None` if the scenario has no driver domain.
    pub io: Option<io::Io>,
    /// CPU time that other programs take from simulated CPUs, in the order of the file. These
    /// programs have precedence over all vCPUs.
    pub interference: Vec<Interference>,
    /// Changes during the run, in order of time. Changes at the same time keep the order of the
    /// file.
    pub changes: Vec<Change>,
    /// Claims about the results, in the order of the file.
    pub claims: Vec<Claim>,
    /// Parameters for policies other than `policy`, for comparisons. The key is the name of the
    /// policy.
    policies: BTreeMap<&'static str, Values>,
}

/// A policy with its parameters.
#[derive(Clone, Debug)]
pub struct PolicyChoice {
    /// Description of the policy.
    pub spec: &'static Spec,
    /// Values of all parameters of the policy.
    pub values: Values,
}

/// Number of CPUs, topology and costs of a host. A live host has its own costs, so only `cpus` and
/// `refuse` are used there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// Number of CPUs, from 1 to 256.
    pub cpus: usize,
    /// Cores, caches, nodes and sockets of the host.
    pub topology: Topology,
    /// CPU time of a context switch to another vCPU.
    pub switch: Span,
    /// CPU time of a migration in addition to `switch`.
    pub migrate: MigrationCost,
    /// Parts of a domain's cached data that are still in a cache of the new CPU after a migration.
    pub warm: WarmCache,
    /// CPU time that an inter-processor interrupt takes from the running vCPU.
    pub ipi: Span,
    /// Speed of a hardware thread while one other thread of its core is busy, in millionths of full
    /// speed. With n other busy threads, the speed is this fraction to the power of n. Not zero.
    /// `None` if threads do not slow each other.
    pub smt: Option<u32>,
    /// Speed of a CPU while at least one other CPU is busy, in millionths. The speeds by `smt` and
    /// by `bus` are multiplied. Not zero. `None` if CPUs do not slow each other.
    pub bus: Option<u32>,
    /// Resolution of timers: they expire only at multiples of this time. Zero if timers are exact.
    pub timer_resolution: Span,
    /// Additional delay of each timer.
    pub timer_lateness: Draw,
    /// Time by which a timer may expire early. When a timer of a CPU expires, the other armed
    /// timers of that CPU that are due within this time expire too. A timer that is armed after
    /// this expiry expires when it is due.
    pub timer_slop: Span,
    /// Time between two ticks of a CPU.
    pub tick: Span,
    /// True if the ticks of the CPUs are spread evenly over `tick`. False if all CPUs tick at the
    /// same time.
    pub ticks_are_staggered: bool,
    /// Delay of the ticks of each CPU, by the number of the CPU. The delay is added to the times of
    /// ticks that `tick` and `ticks_are_staggered` give, and is less than `tick`. Empty if no ticks
    /// are delayed.
    pub tick_phases: Vec<Span>,
    /// CPU time that a tick takes from the running vCPU, or from the next vCPU to run if the CPU is
    /// idle.
    pub tick_cost: Span,
    /// CPU time of balancer calls, which is charged to a service vCPU.
    pub balancing: Balancing,
    /// Slices and ticks of the kernel's ordinary scheduling, if that scheduling divides slack, as
    /// on a live host. `None` if the policy divides slack.
    pub fair: Option<FairSlack>,
    /// CPU time that the scheduler takes when a timer expires. No vCPU is charged for it.
    pub timer_pass: Draw,
    /// CPU time that the scheduler takes when a vCPU wakes. No vCPU is charged for it.
    pub wake_pass: Draw,
    /// Part of all orders (instructions to the hardware) that the host refuses on purpose, in
    /// millionths.
    pub refuse: u32,
}

/// Parameters of the kernel's ordinary scheduling on a simulated host, where this scheduling
/// divides slack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairSlack {
    /// Slack that a vCPU may use before a vCPU with an earlier deadline preempts it.
    pub slice: Span,
    /// Time between two ticks. A vCPU that has used its slice runs on until the next tick.
    pub tick: Span,
    /// Time of the first tick, counted from the start of the run.
    pub phase: Span,
}

/// CPU time that programs outside the scenario take from a simulated CPU. They have precedence over
/// all vCPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interference {
    /// CPU whose time other programs take.
    pub cpu: CpuId,
    /// Ready time (from the start of the run) and CPU time of each job, in order of ready times.
    pub jobs: Vec<(Span, Span)>,
}

/// Cost of each call of a balancer: the sum of a fixed part, a part per CPU and a part per vCPU.
/// See [`Scenario::simulated`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balancing {
    /// Fixed part of the cost of a call.
    pub call: Span,
    /// Cost for each CPU of the host.
    pub cpu: Span,
    /// Cost for each vCPU of the scenario, even if it has not joined or has left.
    pub vcpu: Span,
    /// Line of the table in the file, counted from 1. 0 if the file has no such table.
    pub line: usize,
}

/// CPU time of a migration. It depends on the narrowest group that contains both the old and the
/// new CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrationCost {
    /// Migration between threads of a core.
    pub core: Span,
    /// Migration between cores with the same last-level cache.
    pub cache: Span,
    /// Migration between last-level caches of a NUMA node.
    pub node: Span,
    /// Migration between NUMA nodes of the host.
    pub host: Span,
}

/// Parts of a domain's cached data that are still in a cache of the new CPU after a migration, in
/// millionths. Data that other domains have evicted is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmCache {
    /// Part of the cached data that is still available after a migration to another thread of the
    /// same core, in millionths.
    pub core: u32,
    /// Part of the cached data that is still available after a migration to another core with the
    /// same last-level cache, in millionths.
    pub cache: u32,
}

/// Connection between a guest and its clients that passes through the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Socket on which the monitor of the guest listens.
    pub guest: String,
    /// Socket for the clients of the guest.
    pub outside: String,
}

/// Domain: one VM, or one group of processes.
#[derive(Clone, Debug)]
pub struct Domain {
    /// Unique name in the scenario.
    pub name: String,
    /// Id of the domain: its index in [`Scenario::domains`].
    pub id: DomId,
    /// vCPUs in order of number, at least one. Slots are numbered without gaps over all domains.
    pub vcpus: Vec<VcpuId>,
    /// Program of each vCPU if the domain has no operating system.
    pub program: Program,
    /// Name of the parallel program to which the vCPUs belong as nodes. `None` if they belong to no
    /// parallel program.
    pub parallel: Option<String>,
    /// Operating system that runs on the vCPUs. `None` if each vCPU runs `program`.
    pub system: Option<System>,
    /// CPU time that a vCPU loses when it runs after another vCPU or after the CPU was idle.
    pub dispatch: Span,
    /// Largest CPU time that a vCPU needs to refill its cache after other vCPUs ran or after a
    /// migration.
    pub cache: Span,
    /// Time by which a vCPU stops later than its timeslice ends. If `None`, the lateness of the
    /// host's timers applies.
    pub stop_lateness: Option<Draw>,
    /// CPU time of the scheduler each time a vCPU of the domain wakes. If `None`, the host's
    /// `wake_pass` applies.
    pub wake_pass: Option<Draw>,
    /// CPUs on which the domain's vCPUs may run. If `None`, all CPUs are allowed.
    cpus: Option<CpuSet>,
    /// Target on a live host. If `None`, the domain is a load process that runs `program`.
    pub live: Option<LiveTarget>,
    /// Socket on which the guest, or a program in its place, reports the guest's tasks on a live
    /// host. `None` if the guest reports nothing.
    pub agent: Option<String>,
    /// Connection between the guest and its clients through the live host, which shows the host
    /// when I/O is pending for the guest. `None` if there is no such connection.
    pub relay: Option<Relay>,
    /// Time at which the domain joins.
    pub joins: Time,
    start: VcpuStart,
    /// Time at which the domain leaves. `None` if it stays until the end of the run.
    pub leaves: Option<Time>,
    /// Line of the domain in the file, counted from 1.
    pub line: usize,
    column: usize,
    shares: Shares,
    /// Settings of single vCPUs that differ from the settings of their domain. The key is the
    /// number of the vCPU.
    exceptions: BTreeMap<u16, Exception>,
}

/// Settings of one vCPU that differ from the settings of its domain.
#[derive(Clone, Debug)]
struct Exception {
    cpus: Option<CpuSet>,
    start: VcpuStart,
    shares: Shares,
    /// Work of the vCPU. `None` if the vCPU has the work of its domain.
    program: Option<Program>,
}

/// A change of a domain or a vCPU during the run.
#[derive(Clone, Debug)]
pub struct Change {
    /// Time of the change: after the domain joins, before it leaves, and before the end of the run.
    pub at: Time,
    /// Domain that changes, as an index into [`Scenario::domains`].
    pub domain: usize,
    /// vCPU that changes. `None` if all vCPUs of the domain change.
    pub vcpu: Option<VcpuId>,
    /// CPUs on which the vCPUs may run after the change. `None` if the affinity does not change.
    pub cpus: Option<CpuSet>,
    /// Start or end of a pause of the vCPUs. `None` if the change neither starts nor ends a pause.
    pub hold: Option<Hold>,
    /// Line of the change in the file, counted from 1.
    pub line: usize,
    shares: Shares,
}

/// Pause of a vCPU, or the end of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The vCPU is paused: it does not run until it is released, even if it is runnable.
    Pause,
    /// The vCPU continues from the point at which it was paused.
    Release,
}

/// Program, processes or threads that are scheduled as a domain on a live host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveTarget {
    /// A program that the run starts.
    Command {
        /// The program and its arguments. The program is not empty.
        argv: Vec<String>,
        /// Choice of the threads that are scheduled, out of all threads of the process.
        threads: Threads,
    },
    /// A process that already exists when the run starts.
    Pid {
        /// Process id, which is greater than zero.
        pid: i32,
        /// Choice of the threads that are scheduled, out of all threads of the process.
        threads: Threads,
    },
    /// All processes of an existing cgroup, as one vCPU.
    Cgroup {
        /// Folder of the cgroup, or its path in the cgroup hierarchy.
        path: String,
    },
    /// All processes of a systemd unit, as one vCPU.
    Unit {
        /// Full name of the unit, such as `web.service`.
        name: String,
    },
}

/// Choice of the threads that are scheduled, out of all threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    /// All threads and children of the process, as one vCPU.
    #[default]
    Process,
    /// The vCPU threads of a virtual machine monitor, each as a vCPU.
    Vcpus,
}

impl fmt::Display for PolicyChoice {
    /// Writes the name of the policy and the parameters that differ from their defaults, such as
    /// `edf reserve=0.1cpu`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.spec.name)?;
        let defaults = Values::defaults(self.spec.policy_fields).ok();
        for (index, (field, value)) in self.values.iter().enumerate() {
            let default = defaults.as_ref().and_then(|defaults| defaults.iter().nth(index));
            if default.map(|(_, default)| default) != Some(value) {
                write!(out, " {}={value}", field.name)?;
            }
        }
        Ok(())
    }
}

impl HostSpec {
    /// Returns true if all CPUs tick at the same instants.
    #[must_use]
    pub fn ticks_are_together(&self) -> bool {
        !self.ticks_are_staggered && self.tick_phases.windows(2).all(|two| two[0] == two[1])
    }

    /// Returns the time of the first tick of a CPU, counted from the start of the run.
    #[must_use]
    pub fn first_tick(&self, cpu: usize) -> Span {
        let phase = self.tick_phases.get(cpu).copied().unwrap_or_default();
        let order = if self.ticks_are_staggered { cpu } else { 0 };
        self.tick + self.tick * order as u64 / self.cpus as u64 + phase
    }
}

impl Scenario {
    /// Reads a scenario that refers to no other files.
    ///
    /// # Errors
    /// If the text is not a valid scenario. The error describes the first fault in the file.
    pub fn read(text: &str) -> Result<Scenario, ScenarioError> {
        Scenario::with_files(text, &|_| Err("no files can be named here".into()))
    }

    /// Reads a scenario. `load` receives a path relative to the scenario, and returns the text of
    /// the file at this path, or the reason why the file cannot be read.
    ///
    /// # Errors
    /// If the text is not a valid scenario. The error describes the first fault in the file.
    pub fn with_files(
        text: &str,
        load: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Scenario, ScenarioError> {
        Scenario::with_bytes(text, &|path| Ok(Arc::new(load(path)?)))
    }

    /// Reads a scenario as [`Scenario::with_files`] does, but does not keep long recordings in
    /// memory. Each program that repeats a recording reads it again from its file.
    ///
    /// # Errors
    /// If the text is not a valid scenario. The error describes the first fault in the file.
    pub fn with_bytes(
        text: &str,
        load: &dyn Fn(&str) -> NamedFile,
    ) -> Result<Scenario, ScenarioError> {
        file::read(text, load)
    }

    /// Returns the same scenario under another policy. `written` names the policy as on a command
    /// line: `credit`, or with parameters `credit:rules=xen-3.0.3:tick=10ms`. All other parameters
    /// are taken from the file (`policy` or `[policies.NAME]`), or from the defaults.
    ///
    /// # Errors
    /// If there is no such policy, if a parameter is wrong or missing, or if a domain has no
    /// parameters for the policy (`share`).
    pub fn with_policy(&self, written: &str) -> Result<Scenario, ScenarioError> {
        let not_in_file =
            |kind: ErrorKind| ScenarioError { line: 0, column: 0, kind: Box::new(kind) };
        let (name, set) = written.split_once(':').unwrap_or((written, ""));
        let unknown = || not_in_file(ErrorKind::UnknownPolicy { name: table::shown(name) });
        let spec = find(name).ok_or_else(unknown)?;
        let own = (spec.name == self.policy.spec.name).then_some(&self.policy.values);
        let given = own.or_else(|| self.policies.get(spec.name)).cloned();
        let values = parameters::overlaid(spec, given, set).map_err(not_in_file)?;
        match own {
            Some(_) => self.check_shares(spec)?,
            None => self.demand(spec, Domain::says_shares)?,
        }
        Ok(Scenario { policy: PolicyChoice { spec, values }, ..self.clone() })
    }

    /// Returns the vCPUs to which a change applies.
    #[must_use]
    pub fn vcpus_of<'a>(&'a self, change: &'a Change) -> &'a [VcpuId] {
        let all = &self.domains[change.domain].vcpus;
        change.vcpu.as_ref().map_or(all, std::slice::from_ref)
    }

    /// Checks that every vCPU has parameters for the scenario's own policy.
    fn check_shares(&self, spec: &'static Spec) -> Result<(), ScenarioError> {
        self.demand(spec, Domain::has_shares)
    }

    fn demand(
        &self,
        spec: &'static Spec,
        has: fn(&Domain, &'static Spec) -> bool,
    ) -> Result<(), ScenarioError> {
        let missing = |domain: &&Domain| !has(domain, spec);
        self.domains.iter().find(missing).map_or(Ok(()), |domain| Err(domain.no_share(spec)))
    }

    /// Returns every vCPU with its name, in the order of slots.
    pub fn vcpus(&self) -> impl Iterator<Item = (VcpuId, String)> {
        self.domains
            .iter()
            .flat_map(|domain| domain.vcpus.iter().map(move |&vcpu| (vcpu, domain.vcpu_name(vcpu))))
    }
}

impl Domain {
    /// Returns the parameters of a vCPU under a policy: the vCPU's own parameters, or else those of
    /// its domain. If the file has neither, returns the defaults of the policy, which reserve
    /// nothing.
    ///
    /// # Errors
    /// If the vCPU has no parameters and the policy needs some.
    pub fn share(&self, vcpu: VcpuId, spec: &'static Spec) -> Result<Values, ScenarioError> {
        let own = self.exceptions.get(&vcpu.number()).and_then(|own| own.shares.get(spec.name));
        match own.or_else(|| self.shares.get(spec.name)) {
            Some(share) => Ok(share.clone()),
            None => Values::defaults(spec.share_fields).map_err(|_| self.no_share(spec)),
        }
    }

    /// Returns the program of a vCPU of this domain. Meaningful only if the domain has no operating
    /// system.
    #[must_use]
    pub fn program_of(&self, vcpu: VcpuId) -> &Program {
        let own = self.exceptions.get(&vcpu.number()).and_then(|own| own.program.as_ref());
        own.unwrap_or(&self.program)
    }

    /// Returns the CPUs on which a vCPU may run. `None` if all CPUs are allowed.
    #[must_use]
    pub fn cpus(&self, vcpu: VcpuId) -> Option<CpuSet> {
        let own = self.exceptions.get(&vcpu.number()).and_then(|own| own.cpus);
        own.or(self.cpus)
    }

    /// Returns the CPU on which a vCPU starts when it joins. `None` if the policy chooses the CPU.
    /// The vCPU joins with an affinity for that CPU only, and gets its full
    /// [affinity](Domain::cpus) immediately after the join.
    #[must_use]
    pub fn starts_on(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.exceptions.get(&vcpu.number()).and_then(|own| own.start.on).or(self.start.on)
    }

    /// Returns the time at which a vCPU begins its program. Until then the vCPU is blocked. The
    /// time is not before the vCPU joins.
    #[must_use]
    pub fn wakes(&self, vcpu: VcpuId) -> Time {
        let own = self.exceptions.get(&vcpu.number()).and_then(|own| own.start.wakes);
        own.or(self.start.wakes).unwrap_or(self.joins)
    }

    /// Returns true if the affinity of at least one vCPU is limited to some CPUs.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        self.cpus.is_some() || self.exceptions.values().any(|own| own.cpus.is_some())
    }

    /// Returns true if the file sets parameters for each vCPU under this policy, or if the policy
    /// has no vCPU parameters.
    fn says_shares(&self, spec: &'static Spec) -> bool {
        let of_its_own = || {
            let own = self.exceptions.values().filter(|own| own.shares.contains_key(spec.name));
            own.count() == self.vcpus.len()
        };
        self.shares.contains_key(spec.name) || spec.share_fields.is_empty() || of_its_own()
    }

    /// Returns true if the file has parameters for each vCPU under this policy, or if the policy's
    /// defaults reserve nothing. Defaults that reserve something do not count, because users would
    /// see reservations that they did not make.
    fn has_shares(&self, spec: &'static Spec) -> bool {
        let promises_nothing = || {
            let share = Values::defaults(spec.share_fields).ok();
            share.is_some_and(|share| (spec.promise)(&share).is_ok_and(|promise| promise.is_none()))
        };
        self.says_shares(spec) || promises_nothing()
    }

    fn no_share(&self, spec: &'static Spec) -> ScenarioError {
        let kind = ErrorKind::NoShare { domain: self.name.clone(), spec };
        ScenarioError { line: self.line, column: self.column, kind: Box::new(kind) }
    }

    /// Returns the name of a vCPU: `web` if it is the only vCPU of its domain, otherwise `web.1`.
    #[must_use]
    pub fn vcpu_name(&self, vcpu: VcpuId) -> String {
        match self.vcpus.len() {
            1 => self.name.clone(),
            _ => format!("{}.{}", self.name, vcpu.number()),
        }
    }
}

impl Change {
    /// Returns the new parameters under a policy. `None` if the change sets no parameters for that
    /// policy.
    #[must_use]
    pub fn share(&self, spec: &'static Spec) -> Option<Values> {
        self.shares.get(spec.name).cloned()
    }
}
