//! What people ask for.

use std::fmt;

use slackline_units::{Span, Time};

use crate::binding::Binding;
use crate::gang::Gang;
use crate::name::Name;
use crate::principal::Verb;
use crate::terms::Amount;

/// Who is to be answered: a number that whoever asks chooses, and finds again at the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Promise something under a new name. The same again by the same principal is answered as it
    /// is, and has no second effect.
    Reserve {
        /// The name.
        name: Name,
        /// How much.
        amount: Amount,
        /// Whether never more than that.
        exact: bool,
        /// Where periods begin on the wall clock; none is anywhere.
        phase: Option<Span>,
        /// For how many vCPUs; none is as many as the machine has, which must be here then.
        vcpus: Option<u16>,
        /// For which machine; none is the one that goes by `name`, which must be here then.
        binding: Option<Binding>,
        /// Whose machine; none is whoever's it is that is here, or else one of whoever asks.
        user: Option<u32>,
    },
    /// Promise the same for a gang, for [`LEASE`](crate::gang::LEASE): nobody has it before it is
    /// told to begin. Nothing of it is written down until then.
    Hold {
        /// The gang.
        gang: Name,
        /// What is to be promised: a [`Request::Reserve`].
        member: Box<Request>,
    },
    /// A member that is held begins, as a reservation like any other.
    Begin {
        /// Its gang.
        gang: Gang,
        /// The member.
        name: Name,
        /// When, by the clock of the service.
        at: Time,
    },
    /// A gang is broken: its member here ends if it has not begun or its gang is strict, and else
    /// is alone from now on.
    Break {
        /// Its gang.
        gang: Name,
        /// The member here.
        name: Name,
        /// Who is lost, and why.
        lost: String,
    },
    /// Promise something else under a name. What is none stays as it is.
    Change {
        /// The name.
        name: Name,
        /// How much.
        amount: Option<Amount>,
        /// Whether never more than that.
        exact: Option<bool>,
        /// Where periods begin on the wall clock; some none is anywhere.
        phase: Option<Option<Span>>,
        /// For how many vCPUs. An amount for each stays what it is.
        vcpus: Option<u16>,
        /// Only if this is its revision.
        if_revision: Option<u64>,
    },
    /// Keep a machine from running. The promise stands. One that is paused stays so.
    Pause {
        /// The name.
        name: Name,
        /// Only if this is its revision.
        if_revision: Option<u64>,
    },
    /// Let it run again; take threads back that somebody else had changed. One that runs runs on.
    Resume {
        /// The name.
        name: Name,
        /// Only if this is its revision.
        if_revision: Option<u64>,
    },
    /// Promise nothing under that name any more.
    Release {
        /// The name.
        name: Name,
        /// Only if this is its revision.
        if_revision: Option<u64>,
    },
    /// Have the reservations that are listed, all with their new parameters or none.
    Apply {
        /// The reservations as they should be: a [`Request::Reserve`] each.
        targets: Vec<Request>,
        /// True if reservations that are not listed are released.
        prune: bool,
        /// True if nothing is changed, and only the changes are answered.
        dry_run: bool,
    },
    /// Show all reservations, or one.
    List {
        /// Which one.
        name: Option<Name>,
    },
    /// Show what could be promised with such a period.
    Room {
        /// The period.
        period: Span,
    },
    /// Show what happened, newest first.
    Log {
        /// Only to this one.
        name: Option<Name>,
        /// Only what has a lower number.
        before: Option<u64>,
        /// At most so much.
        most: u16,
    },
    /// Show machines.
    Find {
        /// Only what has this in its name.
        text: Option<String>,
    },
}

impl Request {
    /// The reservation that it names, if it is about one.
    #[must_use]
    pub const fn name(&self) -> Option<&Name> {
        match self {
            Request::Reserve { name, .. }
            | Request::Begin { name, .. }
            | Request::Break { name, .. }
            | Request::Change { name, .. }
            | Request::Pause { name, .. }
            | Request::Resume { name, .. }
            | Request::Release { name, .. } => Some(name),
            Request::List { name } | Request::Log { name, .. } => name.as_ref(),
            Request::Hold { .. }
            | Request::Apply { .. }
            | Request::Room { .. }
            | Request::Find { .. } => None,
        }
    }

    /// What kind of request it is.
    #[must_use]
    pub const fn verb(&self) -> Verb {
        match self {
            Request::Reserve { .. } => Verb::Reserve,
            Request::Hold { .. } | Request::Begin { .. } | Request::Break { .. } => Verb::Gang,
            Request::Change { .. } => Verb::Change,
            Request::Pause { .. } => Verb::Pause,
            Request::Resume { .. } => Verb::Resume,
            Request::Release { .. } => Verb::Release,
            Request::Apply { .. } => Verb::Apply,
            Request::List { .. } => Verb::List,
            Request::Room { .. } => Verb::Room,
            Request::Log { .. } => Verb::Log,
            Request::Find { .. } => Verb::Find,
        }
    }
}

impl fmt::Display for Request {
    /// In one line, the same for the same request: what is kept beside a key to know it again.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.verb();
        match self {
            Request::Reserve { name, amount, exact, phase, vcpus, binding, user } => {
                write!(out, "{verb} {name} {amount} exact={exact}")?;
                phase.map_or(Ok(()), |phase| write!(out, " phase={phase}"))?;
                vcpus.map_or(Ok(()), |vcpus| write!(out, " vcpus={vcpus}"))?;
                binding.as_ref().map_or(Ok(()), |binding| write!(out, " for {binding}"))?;
                user.map_or(Ok(()), |user| write!(out, " of uid {user}"))
            }
            Request::Change { name, amount, exact, phase, vcpus, if_revision } => {
                write!(out, "{verb} {name}")?;
                amount.map_or(Ok(()), |amount| write!(out, " {amount}"))?;
                exact.map_or(Ok(()), |exact| write!(out, " exact={exact}"))?;
                match phase {
                    Some(Some(phase)) => write!(out, " phase={phase}")?,
                    Some(None) => write!(out, " phase=none")?,
                    None => {}
                }
                vcpus.map_or(Ok(()), |vcpus| write!(out, " vcpus={vcpus}"))?;
                write_revision(out, *if_revision)
            }
            Request::Hold { gang, member } => write!(out, "{verb} {gang} hold {member}"),
            // Asked again it is the same, though clocks are never read quite the same.
            Request::Begin { gang, name, .. } => write!(out, "{verb} {} begin {name}", gang.name),
            Request::Break { gang, name, lost } => {
                write!(out, "{verb} {gang} without {name}: {lost:?}")
            }
            Request::Pause { name, if_revision }
            | Request::Resume { name, if_revision }
            | Request::Release { name, if_revision } => {
                write!(out, "{verb} {name}")?;
                write_revision(out, *if_revision)
            }
            Request::Apply { targets, prune, dry_run } => {
                write!(out, "{verb} prune={prune} dry-run={dry_run}")?;
                targets.iter().try_for_each(|target| write!(out, ", {target}"))
            }
            Request::List { name: None } => write!(out, "{verb}"),
            Request::List { name: Some(name) } => write!(out, "{verb} {name}"),
            Request::Room { period } => write!(out, "{verb} {period}"),
            Request::Log { name, before, most } => {
                write!(out, "{verb} most={most}")?;
                name.as_ref().map_or(Ok(()), |name| write!(out, " of {name}"))?;
                before.map_or(Ok(()), |before| write!(out, " before={before}"))
            }
            Request::Find { text } => {
                write!(out, "{verb}")?;
                text.as_ref().map_or(Ok(()), |text| write!(out, " {text:?}"))
            }
        }
    }
}

fn write_revision(out: &mut fmt::Formatter<'_>, revision: Option<u64>) -> fmt::Result {
    revision.map_or(Ok(()), |revision| write!(out, " revision={revision}"))
}
