//! What to run, as data: the host, the domains and their work, changes on the way, and what is
//! claimed to come of it.
//!
//! A scenario is read from TOML once, here, and is checked as it is read: names become ids, texts
//! become quantities, and whatever is wrong is an error that says where it stands and what to type
//! instead. People's names end here: nothing below knows one. Nothing in a scenario depends on the
//! machine that runs it.

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

pub use action::{Action, SharesInForce, What, actions};
pub use admission::{Declined, NotAdmitted};
pub use claim::{Amount, AmountOrPromised, Claim, On, Test};
pub use draw::{Draw, ParseDrawError, Purpose, Stream};
pub use error::{ErrorKind, Part, ScenarioError};
pub use guest::{Lie, System, Task, TaskName, Tells};
pub use releases::Releases;
pub use work::{Program, Step, next_instant};

use terms::Start;

/// How many vCPUs a scenario may have.
pub const MOST_VCPUS: usize = 1_000_000;
/// How many steps the programs of all its domains may have together.
pub const MOST_STEPS: usize = 10_000_000;
/// The longest length of time that a scenario may say, a year: sums of a few hundred of them stay
/// within the 584 years that a `Time` can hold.
pub const LONGEST: Span = Span::from_secs(365 * 24 * 60 * 60);

/// The shares of a domain: by the name of the policy.
type Shares = BTreeMap<&'static str, Values>;

/// A whole scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is about, in a line.
    pub title: String,
    /// The text of the file, so that a trace explains itself.
    pub text: String,
    /// How long the run lasts, warm-up included.
    pub length: Span,
    /// How much of the beginning is left out of the numbers; shorter than the run.
    pub warmup: Span,
    /// What all draws start from.
    pub seed: u64,
    /// Who decides.
    pub policy: PolicyChoice,
    /// What it decides about.
    pub host: HostSpec,
    /// Who wants to run: at least one, in the order of the file. A domain's id is its index.
    pub domains: Vec<Domain>,
    /// Devices, who drives them and who is outside; none if nobody has any.
    pub io: Option<io::Io>,
    /// What changes during the run, by time; those at the same time in the order of the file.
    pub changes: Vec<Change>,
    /// What should come of it, in the order of the file.
    pub claims: Vec<Claim>,
    /// Parameters for other policies, to compare with: by the name of the policy.
    policies: BTreeMap<&'static str, Values>,
}

/// A policy with its parameters.
#[derive(Clone, Debug)]
pub struct PolicyChoice {
    /// Which one.
    pub spec: &'static Spec,
    /// Its parameters, all of them.
    pub values: Values,
}

/// The host: how many CPUs, and what its hardware costs. A live host brings its own costs; only
/// `cpus` and `refuse` count there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// How many CPUs, from 1 to 256.
    pub cpus: usize,
    /// How they belong together.
    pub topology: Topology,
    /// What it costs to switch to another vCPU.
    pub switch: Span,
    /// What it costs, on top of that, when a vCPU comes from another CPU.
    pub migrate: Migrate,
    /// How much of what a domain keeps in the cache it finds there.
    pub warm: Warm,
    /// What it takes from whoever runs where a vCPU is that another CPU signals.
    pub ipi: Span,
    /// How fast each thread of a core is while one other of it is busy, in millionths of full
    /// speed; with more of them, to the power of how many. Not zero. None if that slows nobody.
    pub smt: Option<u32>,
    /// How fast each CPU is while more than one is busy, in millionths, on top of that. Not zero.
    /// None if that slows nobody.
    pub bus: Option<u32>,
    /// Timers go off at multiples of this; zero for exact timers.
    pub timer_resolution: Span,
    /// How much later than that they go off.
    pub timer_lateness: Draw,
    /// When a timer of a CPU goes off, those of the same CPU that are due within this go off with
    /// it. What is armed for such a time afterwards waits until it is due.
    pub timer_slop: Span,
    /// How often each CPU's tick comes.
    pub tick: Span,
    /// Whether the ticks of the CPUs are spread evenly over that time; else they come at once.
    pub ticks_are_staggered: bool,
    /// What a tick takes from whoever runs.
    pub tick_cost: Span,
    /// What it costs a policy to balance, where a vCPU of its own does that.
    pub balancing: Balancing,
    /// How many orders in a million the machine refuses on purpose; at most a million.
    pub refuse: u32,
}

/// What each call of a balancer costs: all three together, of [`Scenario::simulated`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balancing {
    /// However large the host is.
    pub call: Span,
    /// For each of its CPUs.
    pub cpu: Span,
    /// For each vCPU of the scenario, whether it is there or not.
    pub vcpu: Span,
    /// Where it stands in the file, counted from 1; 0 if it does not.
    pub line: usize,
}

/// What it costs a vCPU to come from another CPU, by the least that the two have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migrate {
    /// A core: they are threads of it.
    pub core: Span,
    /// A last-level cache.
    pub cache: Span,
    /// A NUMA node.
    pub node: Span,
    /// The host.
    pub host: Span,
}

/// How much of what a domain keeps in the cache its vCPUs find on another CPU, in millionths; as
/// far as others have not pushed it out since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warm {
    /// On another thread of the core.
    pub core: u32,
    /// On another core of the last-level cache.
    pub cache: u32,
}

/// The way between a guest and others, through the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// The socket at which whoever runs the guest listens.
    pub guest: String,
    /// The socket at which others find it.
    pub outside: String,
}

/// A domain: one virtual machine, or one group of processes.
#[derive(Clone, Debug)]
pub struct Domain {
    /// What people call it; unique.
    pub name: String,
    /// Who it is below: its index in [`Scenario::domains`].
    pub id: DomId,
    /// Its vCPUs, by number; at least one. Slots count through all domains, without gaps.
    pub vcpus: Vec<VcpuId>,
    /// What each of its vCPUs does, if it has no system.
    pub program: Program,
    /// The parallel program whose nodes its vCPUs are, by name; none if they are of none.
    pub parallel: Option<String>,
    /// The operating system that runs on its vCPUs, if not one program on each.
    pub system: Option<System>,
    /// What it costs one of its vCPUs to be switched to when another or none ran before.
    pub dispatch: Span,
    /// What it costs one of its vCPUs to fill the cache with all that it keeps there.
    pub cache: Span,
    /// Where its vCPUs may run; none is everywhere.
    cpus: Option<CpuSet>,
    /// What is scheduled in its stead on a live host; none for a load process that does `program`.
    pub live: Option<LiveTarget>,
    /// The socket on which its guest, or what plays one, tells of its tasks on a live host; none if
    /// it tells nothing.
    pub agent: Option<String>,
    /// What goes through the live host on its way to its guest, so that it is known what waits for
    /// it; none if nothing does.
    pub relay: Option<Relay>,
    /// When it joins.
    pub joins: Time,
    start: Start,
    /// When it leaves; none if it stays until the end.
    pub leaves: Option<Time>,
    /// Where it stands in the file, counted from 1.
    pub line: usize,
    column: usize,
    shares: Shares,
    /// What differs for single vCPUs, by their number.
    exceptions: BTreeMap<u16, Exception>,
}

/// What differs for one vCPU of a domain.
#[derive(Clone, Debug)]
struct Exception {
    cpus: Option<CpuSet>,
    start: Start,
    shares: Shares,
    /// Work of the vCPU. `None` is that of the domain.
    program: Option<Program>,
}

/// A change during the run.
#[derive(Clone, Debug)]
pub struct Change {
    /// When; after the domain joined, before it leaves and before the end.
    pub at: Time,
    /// Whose: an index into [`Scenario::domains`].
    pub domain: usize,
    /// Of which of its vCPUs; none is all of them.
    pub vcpu: Option<VcpuId>,
    /// Where they may run from now on.
    pub cpus: Option<CpuSet>,
    /// Whether they are held from now on, or let go.
    pub hold: Option<Hold>,
    /// Where it stands in the file, counted from 1.
    pub line: usize,
    shares: Shares,
}

/// What happens to a vCPU that is held or let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It does not run until it is let go, whatever work it has.
    Pause,
    /// It goes on where it was.
    Release,
}

/// What is scheduled on a live host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveTarget {
    /// A program that is started for it.
    Command {
        /// The program and its arguments; at least the program.
        argv: Vec<String>,
        /// Which of its threads.
        threads: Threads,
    },
    /// A process that is there already.
    Pid {
        /// Its process id; positive.
        pid: i32,
        /// Which of its threads.
        threads: Threads,
    },
    /// All that runs in a cgroup that is there already, as one.
    Cgroup {
        /// Its folder, or the name that the kernel gives it.
        path: String,
    },
    /// All that runs in a systemd unit, which is its cgroup.
    Unit {
        /// Its full name, as `web.service`.
        name: String,
    },
}

/// Which threads of a process are scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    /// All of them, and whatever they start, as one target: the domain has one vCPU.
    #[default]
    Process,
    /// The threads that are vCPUs of a virtual machine monitor, each by itself.
    Vcpus,
}

impl fmt::Display for PolicyChoice {
    /// `edf reserve=0.1cpu`: the name, and what differs from the defaults.
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

impl Scenario {
    /// Reads a scenario that names no other files.
    ///
    /// # Errors
    /// The first thing in the file that is wrong.
    pub fn read(text: &str) -> Result<Scenario, ScenarioError> {
        Scenario::with_files(text, &|_| Err("no files can be named here".into()))
    }

    /// Reads a scenario; `load` gives the text of a file that it names, by its path relative to the
    /// scenario, or the reason why that cannot be read.
    ///
    /// # Errors
    /// The first thing in the file that is wrong.
    pub fn with_files(
        text: &str,
        load: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Scenario, ScenarioError> {
        file::read(text, load)
    }

    /// The same scenario under another policy, as one writes it on a command line: `credit`, or
    /// with some parameters `credit:rules=xen-3.0.3:tick=10ms`. Those that are not written are what
    /// the file says for it, in `policy` or under `[policies.NAME]`, or else its defaults.
    ///
    /// # Errors
    /// When there is no such policy, when one of its parameters is wrong, or must be said and is
    /// not, or when a domain does not say its share for it.
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

    /// The vCPUs that a change is about.
    #[must_use]
    pub fn vcpus_of<'a>(&'a self, change: &'a Change) -> &'a [VcpuId] {
        let all = &self.domains[change.domain].vcpus;
        change.vcpu.as_ref().map_or(all, std::slice::from_ref)
    }

    /// Whether every vCPU has a share under the scenario's own policy.
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

    /// Every vCPU with its name, in the order of their slots.
    pub fn vcpus(&self) -> impl Iterator<Item = (VcpuId, String)> {
        self.domains
            .iter()
            .flat_map(|domain| domain.vcpus.iter().map(move |&vcpu| (vcpu, domain.vcpu_name(vcpu))))
    }
}

impl Domain {
    /// The share of one of its vCPUs under a policy: its own, or else that of the domain, or else
    /// the policy's defaults, which promise nothing.
    ///
    /// # Errors
    /// When none is given and the policy needs one.
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

    /// Where one of its vCPUs may run; none is everywhere.
    #[must_use]
    pub fn cpus(&self, vcpu: VcpuId) -> Option<CpuSet> {
        let own = self.exceptions.get(&vcpu.number()).and_then(|own| own.cpus);
        own.or(self.cpus)
    }

    /// Where one of its vCPUs is when it joins; none leaves that to the policy. It joins as one
    /// that may run there only, and right after may run wherever it [may](Domain::cpus).
    #[must_use]
    pub fn starts_on(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.exceptions.get(&vcpu.number()).and_then(|own| own.start.on).or(self.start.on)
    }

    /// When one of its vCPUs begins its program, not before it joins. Until then it is there,
    /// asleep.
    #[must_use]
    pub fn wakes(&self, vcpu: VcpuId) -> Time {
        let own = self.exceptions.get(&vcpu.number()).and_then(|own| own.start.wakes);
        own.or(self.start.wakes).unwrap_or(self.joins)
    }

    /// Whether any of its vCPUs is confined to some of the CPUs.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        self.cpus.is_some() || self.exceptions.values().any(|own| own.cpus.is_some())
    }

    /// Whether the share of each of its vCPUs is written, where the policy has shares.
    fn says_shares(&self, spec: &'static Spec) -> bool {
        let of_its_own = || {
            let own = self.exceptions.values().filter(|own| own.shares.contains_key(spec.name));
            own.count() == self.vcpus.len()
        };
        self.shares.contains_key(spec.name) || spec.share_fields.is_empty() || of_its_own()
    }

    /// The same, or what the policy takes instead promises nothing: otherwise people would read
    /// promises that are not theirs.
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

    /// What people call one of its vCPUs: `web` if it is the only one, else `web.1`.
    #[must_use]
    pub fn vcpu_name(&self, vcpu: VcpuId) -> String {
        match self.vcpus.len() {
            1 => self.name.clone(),
            _ => format!("{}.{}", self.name, vcpu.number()),
        }
    }
}

impl Change {
    /// The new share under a policy; none if the change is not about it.
    #[must_use]
    pub fn share(&self, spec: &'static Spec) -> Option<Values> {
        self.shares.get(spec.name).cloned()
    }
}
