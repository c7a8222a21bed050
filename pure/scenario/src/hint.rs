//! Hints of errors: the text that the user should type instead of the wrong text.

use std::fmt::Write;

use slackline_policy::{ALL, Field, FieldError, SIMULATED_ONLY, Spec, TopologyError, nearest};
use slackline_units::ReservationError;

use crate::error::{ErrorKind, Part, ScenarioError};
use crate::{LONGEST, ParseDrawError};

const LENGTHS: &str = "write a duration as `4ms`, `250us` or `2s`";
const DRAWS: &str = "write `4ms`, `uniform 1ms 3ms` or `exponential 4ms`";

impl ScenarioError {
    /// Returns a hint of one line with the text to type instead. `None` if the message is enough.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        self.kind.hint()
    }
}

impl ErrorKind {
    /// Returns a hint of one line with the text to type instead. `None` if the message is enough.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        self.hint_on_values().or_else(|| self.hint_on_policies()).or_else(|| self.hint_on_domains())
    }

    fn hint_on_values(&self) -> Option<String> {
        Some(match self {
            ErrorKind::Syntax { unquoted: Some(value), .. } => {
                format!("put strings and durations in quotes: \"{value}\"")
            }
            ErrorKind::UnknownKey { key, keys, .. } => did_you_mean(key, keys)
                .unwrap_or_else(|| format!("the keys of this table are {}", keys.join(", "))),
            ErrorKind::MissingKey { example, .. } => format!("write {example}"),
            ErrorKind::NotAWord { word, words, .. } => did_you_mean(word, words)?,
            ErrorKind::NotASpan { .. } | ErrorKind::Zero { .. } => LENGTHS.to_owned(),
            ErrorKind::NotADraw { why, .. } => match why {
                ParseDrawError::UnknownWay { meant: Some(meant), .. } => {
                    format!("did you mean `{meant}`?")
                }
                ParseDrawError::NotASpan { .. } => LENGTHS.to_owned(),
                _ => DRAWS.to_owned(),
            },
            ErrorKind::SaidTwice { other, .. } => format!("remove `{other}`"),
            ErrorKind::Topology { error } => hint_on_topology(error).to_owned(),
            ErrorKind::TooLong { .. } => format!("write at most {LONGEST}"),
            ErrorKind::NotAPercentage { .. } => "write a percentage as `1%` or `0.25%`".to_owned(),
            ErrorKind::NotAFrequency { .. } => {
                "write events a second as `900`, or `0.05` for one in 20 s".to_owned()
            }
            ErrorKind::OfDomain { error, .. } => error.hint()?,
            ErrorKind::NotATest { .. } => "write `below X`, `above X`, `at most X`, `at least X`, \
                                           `within P% of X` or `within N points of X`"
                .to_owned(),
            ErrorKind::NotAnAmount { amount, .. } if amount == "promised" => {
                "use `promised` after `within P% of` or `within N points of`".to_owned()
            }
            ErrorKind::NotAnAmount { .. } => {
                "write a duration (`8ms`), a percentage (`20%`) or a whole number".to_owned()
            }
            ErrorKind::PointsOfNoPercentage { .. } => "use `within P% of`".to_owned(),
            ErrorKind::NoMetric { .. } => "write that = \"misses of DOMAIN\"".to_owned(),
            _ => return None,
        })
    }

    fn hint_on_policies(&self) -> Option<String> {
        Some(match self {
            ErrorKind::UnknownPolicy { name } => {
                let names: Vec<&'static str> =
                    ALL.iter().chain(SIMULATED_ONLY).map(|spec| spec.name).collect();
                did_you_mean(name, &names)
                    .unwrap_or_else(|| format!("the policies are {}", names.join(", ")))
            }
            ErrorKind::UnknownField { name, spec, part } => unknown_field(name, spec, *part),
            ErrorKind::Field(FieldError::NotASpan(..)) => LENGTHS.to_owned(),
            ErrorKind::Field(FieldError::NotAChoice(field, _)) => {
                format!("write {} = {}", field.name, field.kind.example())
            }
            ErrorKind::Field(error) => error.hint()?,
            ErrorKind::Reservation(ReservationError::SliceOverPeriod { period, .. }) => {
                format!("write a slice of at most {period}: a vCPU runs on one CPU at a time")
            }
            ErrorKind::Reservation(ReservationError::NoSlice) => LENGTHS.to_owned(),
            ErrorKind::Reservation(ReservationError::LatencyOverPeriod { period, .. }) => {
                format!(
                    "write at most {period}: a latency hint is the first period after a long block"
                )
            }
            ErrorKind::MoreThanVcpus { vcpus: 1, .. } => {
                "write at most 1cpu: a vCPU runs on one CPU at a time".to_owned()
            }
            ErrorKind::MoreThanVcpus { vcpus, .. } => {
                format!("write at most {vcpus}cpu")
            }
            ErrorKind::NothingEach { .. } => "write more CPU, or a longer period".to_owned(),
            ErrorKind::CpuOfOne { .. } => "write slice = \"2ms\"".to_owned(),
            ErrorKind::NoShare { spec, .. } => {
                let mut hint = format!("add share.{} = {{ ", spec.name);
                for (index, field) in worth_saying(spec).enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    let _ = write!(hint, "{comma}{} = ...", field.name);
                }
                format!("{hint} }}, see `slackline help {}`", spec.name)
            }
            ErrorKind::SetsNothing { spec, .. } => {
                let field = spec.policy_fields.first().map_or("FIELD", |field| field.name);
                format!("write the parameter as `{}:{field}=VALUE`", spec.name)
            }
            ErrorKind::PolicyTwice { spec } => {
                format!("write policy = {{ name = \"{}\", ... }}", spec.name)
            }
            _ => return None,
        })
    }

    fn hint_on_domains(&self) -> Option<String> {
        Some(match self {
            ErrorKind::NoDomain => "write [[domain]] with `name` and `work`".to_owned(),
            ErrorKind::NoFile { .. } => {
                "name a file by its path from the folder of the scenario".to_owned()
            }
            ErrorKind::BadName { name } if name == "total" => {
                "`total` stands for all domains together".to_owned()
            }
            ErrorKind::BadName { .. } => {
                "use letters, digits, `-` and `_`, for a domain also inner dots, at most 64 bytes"
                    .to_owned()
            }
            ErrorKind::DuplicateName { .. } => {
                "use another name, or `copies = N` for N equal domains".to_owned()
            }
            ErrorKind::UnknownDomain { meant, .. } | ErrorKind::UnknownTask { meant, .. } => {
                format!("did you mean `{}`?", meant.as_ref()?)
            }
            ErrorKind::NameOfCopies { name, copies } => {
                format!("name one of the domains `{name}-0` to `{name}-{}`", copies - 1)
            }
            ErrorKind::UnknownVcpu { domain, vcpus: 1, .. } => {
                format!("the only vCPU of the domain is called `{domain}`")
            }
            ErrorKind::UnknownVcpu { domain, vcpus, .. } => {
                format!("the vCPUs of the domain are `{domain}.0` to `{domain}.{}`", vcpus - 1)
            }
            ErrorKind::NoDriver { .. } => "write [driver] with domain = \"dom0\"".to_owned(),
            ErrorKind::DuplicateTask { .. } => {
                "give each task of a domain its own name, or none".to_owned()
            }
            ErrorKind::NumberAsName { .. } => "use a name with a letter".to_owned(),
            ErrorKind::NotBelow { limit, .. } => format!("write at most {}", *limit / 2),
            ErrorKind::OneForEachCpu { cpus, .. } => {
                format!("write one value for each of the {cpus} CPUs, or a single one")
            }
            ErrorKind::NoThreads => "set threads_per_core = 2, or remove `smt`".to_owned(),
            ErrorKind::Standstill { .. } => "write a percentage above 0%, as in \"65%\"".to_owned(),
            ErrorKind::NothingToTell => {
                "write [[domain.task]] with `name`, `priority` and `work`".to_owned()
            }
            ErrorKind::LockOfOne => "set vcpus = 4".to_owned(),
            ErrorKind::NodeInSystem | ErrorKind::LockInSystem | ErrorKind::UntilInSystem => {
                "write it as the domain's `work`, without tasks and `kernel`".to_owned()
            }
            ErrorKind::SingleNode { .. } => {
                "set more `vcpus`, or name the program in another domain too".to_owned()
            }
            ErrorKind::SystemAsleep => "use joins = \"5ms\" instead".to_owned(),
            ErrorKind::NotAmong { .. } => "remove `starts_on`, or add the CPU to `cpus`".to_owned(),
            ErrorKind::NoSystem { .. } => {
                "add kernel = { receive = \"10us\", send = \"10us\" } to it".to_owned()
            }
            ErrorKind::CopiesOfTarget { .. } => "remove `copies`".to_owned(),
            ErrorKind::ThreadsOfGroup => {
                "remove `threads`, or name the monitor process by `pid`".to_owned()
            }
            ErrorKind::VcpusOfProcess { .. } => {
                "set vcpus = 1, or threads = \"vcpus\" for a virtual machine monitor".to_owned()
            }
            ErrorKind::BadRecording { .. } => {
                "write a run and a block in a line, as in `3000000,7000000`".to_owned()
            }
            ErrorKind::EmptyChange => {
                "write share.POLICY = { ... }, cpus = [...] or paused = true".to_owned()
            }
            _ => return None,
        })
    }
}

fn hint_on_topology(error: &TopologyError) -> &'static str {
    match error {
        TopologyError::Torn { .. } => {
            "keep a core within one cache, a cache within one node, a node within one socket"
        }
        _ => "put every CPU of the host in exactly one group of the list",
    }
}

/// Returns the vCPU parameters of a policy that a hint should name: all required parameters. If
/// none is required, returns the first two parameters if the policy has a `period`, and the first
/// parameter otherwise.
fn worth_saying(spec: &'static Spec) -> impl Iterator<Item = &'static Field> {
    let required = |field: &Field| field.default.is_none();
    let is_required = spec.share_fields.iter().any(required);
    let promises = spec.share_fields.iter().any(|field| field.name == "period");
    let fields = spec.share_fields.iter().enumerate();
    let worth = fields.filter(move |(index, field)| match (is_required, promises) {
        (true, _) => required(field),
        (false, true) => *index < 2,
        (false, false) => *index == 0,
    });
    worth.map(|(_, field)| field)
}

fn did_you_mean(written: &str, known: &[&str]) -> Option<String> {
    Some(format!("did you mean `{}`?", nearest(written, known.iter().copied())?))
}

/// Returns a hint about an unknown parameter. The hint says so if the name is a parameter of the
/// policy itself but was set for a vCPU, or the reverse.
fn unknown_field(name: &str, spec: &Spec, part: Part) -> String {
    let policy = spec.name;
    let has = |fields: &[Field]| fields.iter().any(|field| field.name == name);
    let here = match part {
        Part::Share if has(spec.policy_fields) => {
            return format!(
                "`{name}` is a parameter of the policy: write it in policy = {{ ... }}"
            );
        }
        Part::Policy if has(spec.share_fields) => {
            return format!(
                "`{name}` is a parameter of shares: write share.{policy} = {{ {name} = ... }}"
            );
        }
        Part::Share => spec.share_fields,
        Part::Policy => spec.policy_fields,
    };
    let list = format!("`slackline help {policy}` lists the parameters");
    match nearest(name, here.iter().map(|field| field.name)) {
        Some(meant) => format!("did you mean `{meant}`? {list}"),
        None if here.is_empty() => "the policy has no parameters".to_owned(),
        None => list,
    }
}
