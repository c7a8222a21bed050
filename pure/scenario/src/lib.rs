//! Scenarios as data: the host, the domains and their work, changes during the run, and claims
//! about its results.
//!
//! A scenario is read from TOML and checked here only. Names become ids and texts become
//! quantities. Any fault is an error with its place in the file and a hint. Names of domains end
//! here: no crate below knows one. A scenario does not depend on the computer that runs it.

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
mod releases;
mod run;
mod table;
mod terms;
mod work;

use std::collections::BTreeMap;
use std::fmt;

use slackline_policy::{Spec, Topology, Values, find};
use slackline_units::{CpuId, CpuSet, DomId, Span, Time, VcpuId};

pub use action::{Action, ActionKind, SharesInForce, actions};
pub use admission::{DeclinedVcpu, NotAdmitted};
pub use claim::{Amount, AmountOrPromised, Claim, ClaimHosts, Test};
pub use draw::{Draw, ParseDrawError, Purpose, Stream};
pub use error::{ErrorKind, Part, ScenarioError};
pub use guest::{FalseTask, GuestReports, System, Task, TaskName};
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

/// Shares of a domain, by name of the policy.
type Shares = BTreeMap<&'static str, Values>;

/// A whole scenario, as read and checked.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Title in one line.
    pub title: String,
    /// Text of the file. A trace contains it, so that it explains itself.
    pub text: String,
    /// Length of the run, warm-up included.
    pub length: Span,
    /// Beginning of the run that is left out of the numbers. Shorter than the run.
    pub warmup: Span,
    /// Seed of all random draws.
    pub seed: u64,
    /// Policy that schedules the host.
    pub policy: PolicyChoice,
    /// Host on which the policy runs.
    pub host: HostSpec,
    /// Domains in the order of the file, at least one. The id of a domain is its index.
    pub domains: Vec<Domain>,
    /// Devices, their driver domain and the clients. `None` without a driver domain.
    pub io: Option<io::Io>,
    /// Time that programs above all vCPUs take from CPUs, in the order of the file.
    pub interference: Vec<Interference>,
    /// Changes during the run, by time, and at the same time in the order of the file.
    pub changes: Vec<Change>,
    /// Claims about the results, in the order of the file.
    pub claims: Vec<Claim>,
    /// Parameters for other policies, by name of the policy, for comparisons.
    policies: BTreeMap<&'static str, Values>,
}

/// A policy with its parameters.
#[derive(Clone, Debug)]
pub struct PolicyChoice {
    /// Description of the policy.
    pub spec: &'static Spec,
    /// Values of all its parameters.
    pub values: Values,
}

/// Host: number of CPUs and costs of the hardware. A live host has costs of its own, so only `cpus`
/// and `refuse` count there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// Number of CPUs, from 1 to 256.
    pub cpus: usize,
    /// Cores, caches, nodes and sockets of the host.
    pub topology: Topology,
    /// Cost of a context switch to another vCPU.
    pub switch: Span,
    /// Cost of a migration in addition to `switch`.
    pub migrate: MigrationCost,
    /// Part of a domain's cache contents that a migrated vCPU finds again.
    pub warm: WarmCache,
    /// CPU time that an inter-processor interrupt takes from the running vCPU.
    pub ipi: Span,
    /// Speed of a thread while one other thread of its core is busy, in millionths of full speed.
    /// With n busy others the speed is this to the power of n. Not zero. `None` if threads do not
    /// slow each other.
    pub smt: Option<u32>,
    /// Speed of a CPU while more than one is busy, in millionths, in addition to `smt`. Not zero.
    /// `None` if CPUs do not slow each other.
    pub bus: Option<u32>,
    /// Timers expire at multiples of this. Zero for exact timers.
    pub timer_resolution: Span,
    /// Delay of each timer after that.
    pub timer_lateness: Draw,
    /// A timer that expires takes along the timers of its CPU that are due within this time. A
    /// timer that is armed for that time later waits until it is due.
    pub timer_slop: Span,
    /// Time between ticks of a CPU.
    pub tick: Span,
    /// True if the ticks of the CPUs are spread evenly over `tick`. Otherwise they come at once.
    pub ticks_are_staggered: bool,
    /// Delay of the ticks of each CPU after those that `tick` and `ticks_are_staggered` yield. Less
    /// than `tick`. Empty for no delay.
    pub tick_phases: Vec<Span>,
    /// CPU time that a tick takes from the running vCPU.
    pub tick_cost: Span,
    /// Cost of a balancer that has a vCPU of its own.
    pub balancing: Balancing,
    /// Ordinary scheduling that divides slack, as on a live host. `None` if the policy does.
    pub fair: Option<FairSlack>,
    /// CPU time of the scheduler when a timer expires. It counts for no vCPU.
    pub timer_pass: Draw,
    /// CPU time of the scheduler when a vCPU wakes. It counts for no vCPU.
    pub wake_pass: Draw,
    /// Orders that the host refuses on purpose, in millionths of all orders.
    pub refuse: u32,
}

/// Ordinary scheduling of slack by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairSlack {
    /// Slice of an entity.
    pub slice: Span,
    /// Time between ticks, which find out that a slice is used.
    pub tick: Span,
    /// Time of the first tick.
    pub phase: Span,
}

/// Time that programs above all vCPUs take from a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interference {
    /// CPU that is taken.
    pub cpu: CpuId,
    /// Ready times and lengths of the jobs, in order.
    pub jobs: Vec<(Span, Span)>,
}

/// Cost of each call of a balancer, the sum of three parts. See [`Scenario::simulated`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balancing {
    /// Cost of a call on any host.
    pub call: Span,
    /// Cost for each CPU of the host.
    pub cpu: Span,
    /// Cost for each vCPU of the scenario, also if it has not joined or has left.
    pub vcpu: Span,
    /// Line in the file, counted from 1. 0 if the file does not set it.
    pub line: usize,
}

/// Cost of a migration, by the narrowest group that contains both CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrationCost {
    /// Between threads of a core.
    pub core: Span,
    /// Between cores with the same last-level cache.
    pub cache: Span,
    /// Between caches of a NUMA node.
    pub node: Span,
    /// Between NUMA nodes of the host.
    pub host: Span,
}

/// Part of a domain's cache contents that its vCPU finds on another CPU, in millionths, unless
/// other domains have evicted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmCache {
    /// On another thread of the core.
    pub core: u32,
    /// On another core of the last-level cache.
    pub cache: u32,
}

/// Connection between a guest and its clients through the host.
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
    /// Id: the index in [`Scenario::domains`].
    pub id: DomId,
    /// vCPUs by number, at least one. Slots count through all domains without gaps.
    pub vcpus: Vec<VcpuId>,
    /// Program of each vCPU if the domain has no system.
    pub program: Program,
    /// Parallel program whose nodes the vCPUs are, by name. `None` if they belong to none.
    pub parallel: Option<String>,
    /// Operating system on the vCPUs. `None` if each vCPU runs `program`.
    pub system: Option<System>,
    /// CPU time lost when a vCPU runs after another vCPU or after idle.
    pub dispatch: Span,
    /// CPU time to refill the cache of a vCPU.
    pub cache: Span,
    /// CPUs on which its vCPUs may run. `None` for all.
    cpus: Option<CpuSet>,
    /// Target on a live host. `None` for a load process that runs `program`.
    pub live: Option<LiveTarget>,
    /// Socket on which its guest reports its tasks on a live host, or a stand-in for the guest
    /// does. `None` if it reports nothing.
    pub agent: Option<String>,
    /// Connection through the live host, which shows the pending I/O of the guest. `None` if there
    /// is none.
    pub relay: Option<Relay>,
    /// Time at which it joins.
    pub joins: Time,
    start: VcpuStart,
    /// Time at which it leaves. `None` if it stays until the end.
    pub leaves: Option<Time>,
    /// Line in the file, counted from 1.
    pub line: usize,
    column: usize,
    shares: Shares,
    /// Differences of single vCPUs, by number.
    exceptions: BTreeMap<u16, Exception>,
}

/// Differences of one vCPU of a domain.
#[derive(Clone, Debug)]
struct Exception {
    cpus: Option<CpuSet>,
    start: VcpuStart,
    shares: Shares,
    /// Work of the vCPU. `None` is that of the domain.
    program: Option<Program>,
}

/// A change during the run.
#[derive(Clone, Debug)]
pub struct Change {
    /// Time of the change: after the domain joins, before it leaves and before the end.
    pub at: Time,
    /// Domain that changes, as an index into [`Scenario::domains`].
    pub domain: usize,
    /// The vCPU that changes. `None` for all vCPUs of the domain.
    pub vcpu: Option<VcpuId>,
    /// CPUs on which they may run from now on. `None` leaves them as they are.
    pub cpus: Option<CpuSet>,
    /// Stop or resumption of the vCPUs. `None` for neither.
    pub hold: Option<Hold>,
    /// Line in the file, counted from 1.
    pub line: usize,
    shares: Shares,
}

/// Stop or resumption of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The vCPU does not run until it is released, even if it is runnable.
    Pause,
    /// The vCPU goes on where it was paused.
    Release,
}

/// Target of scheduling on a live host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveTarget {
    /// A program that the run starts.
    Command {
        /// The program and its arguments. The program is not empty.
        argv: Vec<String>,
        /// Threads of the process that are scheduled.
        threads: Threads,
    },
    /// A process that exists already.
    Pid {
        /// Process id. Greater than zero.
        pid: i32,
        /// Threads of the process that are scheduled.
        threads: Threads,
    },
    /// All processes of an existing cgroup, as one vCPU.
    Cgroup {
        /// Folder of the cgroup, or its name in the kernel.
        path: String,
    },
    /// All processes of a systemd unit, which are its cgroup.
    Unit {
        /// Full name, such as `web.service`.
        name: String,
    },
}

/// Threads of a process that are scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    /// All threads and children of the process, as one vCPU.
    #[default]
    Process,
    /// The vCPU threads of a virtual machine monitor, each as a vCPU.
    Vcpus,
}

impl fmt::Display for PolicyChoice {
    /// Writes the name and the parameters that differ from their defaults: `edf reserve=0.1cpu`.
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

    /// Returns the time of the first tick of a CPU.
    #[must_use]
    pub fn first_tick(&self, cpu: usize) -> Span {
        let phase = self.tick_phases.get(cpu).copied().unwrap_or_default();
        let order = if self.ticks_are_staggered { cpu } else { 0 };
        self.tick + self.tick * order as u64 / self.cpus as u64 + phase
    }
}

impl Scenario {
    /// Reads a scenario that names no other files.
    ///
    /// # Errors
    /// If the text is wrong. The error is about the first fault in the file.
    pub fn read(text: &str) -> Result<Scenario, ScenarioError> {
        Scenario::with_files(text, &|_| Err("no files can be named here".into()))
    }

    /// Reads a scenario. `load` returns the text of a file by its path relative to the scenario, or
    /// the reason why that file cannot be read.
    ///
    /// # Errors
    /// If the text is wrong. The error is about the first fault in the file.
    pub fn with_files(
        text: &str,
        load: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Scenario, ScenarioError> {
        file::read(text, load)
    }

    /// Returns the same scenario under another policy. `written` is as on a command line: `credit`,
    /// or with parameters `credit:rules=xen-3.0.3:tick=10ms`. Other parameters are those of the
    /// file, in `policy` or under `[policies.NAME]`, or the defaults.
    ///
    /// # Errors
    /// If there is no such policy, if a parameter is wrong or missing, or if a domain has no share
    /// for the policy.
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

    /// Returns the vCPUs that a change is about.
    #[must_use]
    pub fn vcpus_of<'a>(&'a self, change: &'a Change) -> &'a [VcpuId] {
        let all = &self.domains[change.domain].vcpus;
        change.vcpu.as_ref().map_or(all, std::slice::from_ref)
    }

    /// Checks that every vCPU has a share under the scenario's own policy.
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
    /// Returns the share of a vCPU under a policy: its own, or that of the domain, or the policy's
    /// defaults, which reserve nothing.
    ///
    /// # Errors
    /// If the vCPU has no share and the policy needs one.
    pub fn share(&self, vcpu: VcpuId, spec: &'static Spec) -> Result<Values, ScenarioError> {
        let own = self.exceptions.get(&vcpu.number()).and_then(|own| own.shares.get(spec.name));
        match own.or_else(|| self.shares.get(spec.name)) {
            Some(share) => Ok(share.clone()),
            None => Values::defaults(spec.share_fields).map_err(|_| self.no_share(spec)),
        }
    }

    /// Returns the program of one of its vCPUs, if it has no system.
    #[must_use]
    pub fn program_of(&self, vcpu: VcpuId) -> &Program {
        let own = self.exceptions.get(&vcpu.number()).and_then(|own| own.program.as_ref());
        own.unwrap_or(&self.program)
    }

    /// Returns the CPUs on which a vCPU may run. `None` for all.
    #[must_use]
    pub fn cpus(&self, vcpu: VcpuId) -> Option<CpuSet> {
        let own = self.exceptions.get(&vcpu.number()).and_then(|own| own.cpus);
        own.or(self.cpus)
    }

    /// Returns the CPU of a vCPU when it joins. `None` leaves it to the policy. The vCPU joins with
    /// an affinity for that CPU only, and right after may run wherever it [may](Domain::cpus).
    #[must_use]
    pub fn starts_on(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.exceptions.get(&vcpu.number()).and_then(|own| own.start.on).or(self.start.on)
    }

    /// Returns the time at which a vCPU begins its program, not before it joins. Until then it is
    /// blocked.
    #[must_use]
    pub fn wakes(&self, vcpu: VcpuId) -> Time {
        let own = self.exceptions.get(&vcpu.number()).and_then(|own| own.start.wakes);
        own.or(self.start.wakes).unwrap_or(self.joins)
    }

    /// Returns true if the affinity of any vCPU is limited to some CPUs.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        self.cpus.is_some() || self.exceptions.values().any(|own| own.cpus.is_some())
    }

    /// Returns true if the file has a share for each vCPU, or the policy has no shares.
    fn says_shares(&self, spec: &'static Spec) -> bool {
        let of_its_own = || {
            let own = self.exceptions.values().filter(|own| own.shares.contains_key(spec.name));
            own.count() == self.vcpus.len()
        };
        self.shares.contains_key(spec.name) || spec.share_fields.is_empty() || of_its_own()
    }

    /// Returns true if the file has all shares, or the policy's default share reserves nothing. A
    /// default that reserves something would show users reservations that they did not make.
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

    /// Returns the name of a vCPU: `web` if it is the only one, else `web.1`.
    #[must_use]
    pub fn vcpu_name(&self, vcpu: VcpuId) -> String {
        match self.vcpus.len() {
            1 => self.name.clone(),
            _ => format!("{}.{}", self.name, vcpu.number()),
        }
    }
}

impl Change {
    /// Returns the new share under a policy. `None` if the change sets none.
    #[must_use]
    pub fn share(&self, spec: &'static Spec) -> Option<Values> {
        self.shares.get(spec.name).cloned()
    }
}
