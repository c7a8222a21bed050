//! What to run, as data: the host, the domains and their work, changes on the way, and what is
//! claimed to come of it.
//!
//! A scenario is read from TOML once, here, and is checked as it is read: names become ids, texts
//! become quantities, and whatever is wrong is an error that says where it stands and what to type
//! instead. People's names end here: nothing below knows one. Nothing in a scenario depends on the
//! machine that runs it.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod claim;
mod domain;
mod draw;
mod error;
mod file;
mod hint;
mod kinds;
mod parameters;
mod table;
mod work;

use std::collections::BTreeMap;
use std::fmt;

use slackline_policy::{Spec, Values, find};
use slackline_units::{DomId, Span, Time, VcpuId};

pub use claim::{Amount, AmountOrPromised, Claim, On, Test};
pub use draw::{Draw, ParseDrawError, Purpose, Stream};
pub use error::{ErrorKind, Part, ScenarioError};
pub use work::{Program, Step};

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
    /// What it costs to switch to another vCPU.
    pub switch: Span,
    /// What it costs, on top of that, when a vCPU comes from another CPU.
    pub migrate: Span,
    /// Timers go off at multiples of this; zero for exact timers.
    pub timer_resolution: Span,
    /// How much later than that they go off.
    pub timer_lateness: Draw,
    /// How many orders in a million the machine refuses on purpose; at most a million.
    pub refuse: u32,
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
    /// What each of its vCPUs does.
    pub program: Program,
    /// What is scheduled in its stead on a live host; none for a load process that does `program`.
    pub live: Option<LiveSubject>,
    /// When it joins.
    pub joins: Time,
    /// When it leaves; none if it stays until the end.
    pub leaves: Option<Time>,
    /// Where it stands in the file, counted from 1.
    pub line: usize,
    column: usize,
    shares: Shares,
}

/// A change of a domain's share during the run.
#[derive(Clone, Debug)]
pub struct Change {
    /// When; after the domain joined, before it leaves and before the end.
    pub at: Time,
    /// Whose: an index into [`Scenario::domains`].
    pub domain: usize,
    /// Where it stands in the file, counted from 1.
    pub line: usize,
    shares: Shares,
}

/// What is scheduled on a live host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveSubject {
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
}

/// Which threads of a process are scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    /// All of them, as one subject: the domain has one vCPU.
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
        Scenario::with_files(text, &|_| None)
    }

    /// Reads a scenario; `load` gives the text of a file that it names, by its path relative to the
    /// scenario, or none if that cannot be read.
    ///
    /// # Errors
    /// The first thing in the file that is wrong.
    pub fn with_files(
        text: &str,
        load: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Scenario, ScenarioError> {
        file::read(text, load)
    }

    /// The same scenario under another policy: with the parameters that the file has for it under
    /// `[policies.NAME]`, or else its defaults. Under the policy it has already, the same scenario.
    ///
    /// # Errors
    /// When there is no such policy, when one of its parameters must be said and is not, or when a
    /// domain has no share for it.
    pub fn with_policy(&self, name: &str) -> Result<Scenario, ScenarioError> {
        let not_in_file =
            |kind: ErrorKind| ScenarioError { line: 0, column: 0, kind: Box::new(kind) };
        let unknown = || not_in_file(ErrorKind::UnknownPolicy { name: name.to_owned() });
        let spec = find(name).ok_or_else(unknown)?;
        if spec.name == self.policy.spec.name {
            return Ok(self.clone());
        }
        let given = self.policies.get(spec.name).cloned().map(Ok);
        let values = given.unwrap_or_else(|| Values::defaults(spec.policy_fields));
        let values = values.map_err(|error| not_in_file(ErrorKind::Field(error)))?;
        self.domains.iter().try_for_each(|domain| domain.share(spec).map(|_| ()))?;
        Ok(Scenario { policy: PolicyChoice { spec, values }, ..self.clone() })
    }

    /// Every vCPU with its name, in the order of their slots.
    pub fn vcpus(&self) -> impl Iterator<Item = (VcpuId, String)> {
        self.domains
            .iter()
            .flat_map(|domain| domain.vcpus.iter().map(move |&vcpu| (vcpu, domain.vcpu_name(vcpu))))
    }
}

impl Domain {
    /// Its share under a policy: the one given, or the policy's defaults.
    ///
    /// # Errors
    /// When none is given and the policy needs one.
    pub fn share(&self, spec: &'static Spec) -> Result<Values, ScenarioError> {
        if let Some(share) = self.shares.get(spec.name) {
            return Ok(share.clone());
        }
        Values::defaults(spec.share_fields).map_err(|_| {
            let kind = ErrorKind::NoShare { domain: self.name.clone(), spec };
            ScenarioError { line: self.line, column: self.column, kind: Box::new(kind) }
        })
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
