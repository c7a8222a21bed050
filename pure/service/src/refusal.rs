//! Why a request was refused. Then it has had no effect.

use slackline_units::{CpuShare, Reservation, Span};

use crate::binding::Binding;
use crate::name::Name;
use crate::principal::{Principal, Verb};
use crate::terms::{Terms, TermsError};

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no room for it.
    #[error("{says}")]
    NoRoom {
        /// What was asked for, for each vCPU.
        asked: Reservation,
        /// What has been promised already where there is most room.
        promised: CpuShare,
        /// What may be promised there: all of it less the reserve.
        capacity: CpuShare,
        /// The longest slice of such a period that fits now; zero is none.
        largest: Span,
        /// The policy's own words, with all numbers.
        says: String,
    },
    /// One reservation of a list is refused, so none of them has changed.
    #[error("{name}: {why}")]
    InList {
        /// The reservation that is refused.
        name: Name,
        /// The reason for that reservation.
        why: Box<Refusal>,
    },
    /// A list is too long.
    #[error("the list has {is} reservations, at most {most} are possible")]
    TooManyTargets {
        /// The number of reservations in the list.
        is: usize,
        /// The largest number of reservations in a list.
        most: usize,
    },
    /// The machine is not here.
    #[error("cannot find {what} on this host")]
    NoMachine {
        /// What was looked for: a binding, or a name.
        what: String,
    },
    /// Several machines go by that name.
    #[error("several VMs are called {name}")]
    Ambiguous {
        /// The name.
        name: Name,
        /// How each of them can be meant.
        bindings: Vec<Binding>,
    },
    /// The machine has a reservation already.
    #[error("{binding} has reservation {by} already")]
    Taken {
        /// What was asked for.
        binding: Binding,
        /// Who has it.
        by: Name,
    },
    /// It has been changed since.
    #[error("{name} is at revision {is}, not {asked}")]
    Stale {
        /// The name.
        name: Name,
        /// What was expected.
        asked: u64,
        /// What it is.
        is: u64,
    },
    /// Something else is reserved under that name.
    #[error("{name} is reserved already: {is}")]
    Exists {
        /// The name.
        name: Name,
        /// What is.
        is: String,
    },
    /// Nothing is reserved under that name.
    #[error("there is no reservation {name}")]
    NoSuchReservation {
        /// The name.
        name: Name,
    },
    /// It is promised for a gang that has not begun.
    #[error("{name} is held for gang {gang}, which has not begun")]
    Held {
        /// The name.
        name: Name,
        /// The gang.
        gang: Name,
    },
    /// It is of no gang, or of another one.
    #[error("{name} is not a member of gang {gang}")]
    NoMember {
        /// The name.
        name: Name,
        /// The gang.
        gang: Name,
    },
    /// It was told to begin at a time that is over, and has ended.
    #[error("{name} was to begin {late} ago")]
    TooLate {
        /// The name.
        name: Name,
        /// How long ago.
        late: Span,
    },
    /// It is to begin at a time so far away that clocks must differ.
    #[error("{name} is to begin in {ahead}; at most {} is allowed", crate::gang::AHEAD)]
    TooFar {
        /// The name.
        name: Name,
        /// How far away.
        ahead: Span,
    },
    /// Whoever asked may not.
    #[error("you may not {verb}")]
    NotAllowed {
        /// What.
        verb: Verb,
    },
    /// The machine is another user's, and whoever asks may only have his own.
    #[error("{binding} belongs to uid {user}, and {principal} may not reserve for it")]
    NotYours {
        /// What was asked for.
        binding: Binding,
        /// Whose it is.
        user: u32,
        /// Who asked.
        principal: Principal,
    },
    /// A tenant named a reservation of another owner.
    #[error("{name} is a reservation of another owner")]
    NotOwner {
        /// The reservation.
        name: Name,
    },
    /// Nobody but an administrator may take a CPU for so long without a break.
    #[error("a slice of {} runs without a break for longer than {}, which is for administrators",
        terms.each().slice(), Terms::LONGEST_RUN)]
    LongRun {
        /// What was asked for.
        terms: Terms,
    },
    /// Its owner may not have so much.
    #[error("{owner} would have {asked} reserved; the budget is {most}")]
    OverBudgetCpu {
        /// Whose budget it is.
        owner: Principal,
        /// What all of its reservations would come to.
        asked: CpuShare,
        /// What it may have.
        most: CpuShare,
    },
    /// Its owner may not have so many.
    #[error("{owner} would have {asked} reservations; the budget is {most}")]
    OverBudgetMachines {
        /// Whose budget it is.
        owner: Principal,
        /// How many they would be.
        asked: u64,
        /// How many it may have.
        most: u16,
    },
    /// The service has as many reservations as it can.
    #[error("this host has {most} reservations, the most that there can be")]
    Full {
        /// The most.
        most: usize,
    },
    /// The ledger cannot be written. What was asked for is not in force.
    #[error("cannot write to the ledger, so the request has no effect: {why}")]
    NotDurable {
        /// Why.
        why: String,
    },
    /// Not now.
    #[error("{why}")]
    NotNow {
        /// Why.
        why: String,
        /// When to try again.
        again: Span,
    },
    /// Too many requests.
    #[error("more than {most} {what} per second")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be in a second.
        most: u32,
        /// When to try again.
        again: Span,
    },
    /// Nobody can promise that.
    #[error("{0}")]
    Terms(TermsError),
    /// What the policy cannot keep, whatever else is promised.
    #[error("{0}")]
    Unkeepable(String),
    /// The machine must be here to know that.
    #[error("{what} is not on this host, so its number of vCPUs is unknown")]
    VcpusUnknown {
        /// What was looked for.
        what: Binding,
    },
    /// The key was used for another request.
    #[error("the key was used before for another request: {was}")]
    KeyReused {
        /// For what.
        was: String,
    },
    /// The machine may not be had.
    #[error("{0}")]
    Forbidden(String),
    /// This host does not let us.
    #[error("{says}")]
    Host {
        /// What is wrong.
        says: String,
        /// What to do about it.
        hint: Option<String>,
    },
}

impl Refusal {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Refusal::NoRoom { asked, largest, .. } if largest.is_zero() => Some(format!(
                "no slice fits now with a period of {}: release another reservation first",
                asked.period()
            )),
            Refusal::NoRoom { asked, largest, .. } => {
                Some(format!("use a slice of at most {largest} every {}", asked.period()))
            }
            Refusal::InList { why, .. } => {
                let nothing = "nothing was changed";
                Some(why.hint().map_or(nothing.into(), |hint| format!("{nothing}; {hint}")))
            }
            Refusal::TooManyTargets { .. } => Some("apply it in parts, without --prune".into()),
            Refusal::NoMachine { .. } => {
                Some("run `slackline find` to see what this host can reserve for".into())
            }
            Refusal::Ambiguous { bindings, .. } => {
                let listed: Vec<String> = bindings.iter().map(ToString::to_string).collect();
                Some(format!("choose one with --for: {}", listed.join(", ")))
            }
            Refusal::Taken { by, .. } => Some(format!("change {by}, or release it first")),
            Refusal::Stale { name, is, .. } => {
                Some(format!("read {name} again, then use revision {is}"))
            }
            Refusal::Exists { name, .. } => Some(format!("use `slackline change {name}`")),
            Refusal::NoSuchReservation { .. } => {
                Some("run `slackline list` to see all reservations".into())
            }
            Refusal::Full { .. } => Some("release a reservation first".into()),
            Refusal::NotDurable { .. } => {
                Some("free space on the disk of the ledger; reservations in force are kept".into())
            }
            Refusal::NotNow { again, .. } | Refusal::TooMany { again, .. } => {
                Some(format!("try again in {again}"))
            }
            Refusal::VcpusUnknown { .. } => Some("add --vcpus N".into()),
            Refusal::KeyReused { .. } => Some("use a new key for a new request".into()),
            Refusal::Host { hint, .. } => hint.clone(),
            Refusal::NotYours { user, .. } => {
                let says = "ask an administrator to reserve for it, or to run";
                Some(format!("{says} `slackline access add uid:N --users {user}`"))
            }
            Refusal::OverBudgetCpu { owner, .. } | Refusal::OverBudgetMachines { owner, .. } => {
                Some(format!("release a reservation of {owner}, or have the budget raised"))
            }
            Refusal::LongRun { terms } => {
                let (slice, period) = (terms.each().slice(), terms.each().period());
                let share = u128::from(slice.ns()) * 1_000_000 / u128::from(period.ns().max(1));
                let us = u64::try_from(share).unwrap_or_default();
                Some(format!("the same share is --slice {} --period 1s", Span::from_us(us)))
            }
            Refusal::Held { .. } => {
                Some(format!("wait up to {}: it ends then unless it begins", crate::gang::LEASE))
            }
            Refusal::TooLate { .. } | Refusal::TooFar { .. } => {
                Some("set the clocks of the gang's hosts to the same time".into())
            }
            Refusal::NotAllowed { .. } | Refusal::NotOwner { .. } => {
                Some("see `slackline help service` for who may".into())
            }
            Refusal::NoMember { .. }
            | Refusal::Terms(_)
            | Refusal::Unkeepable(_)
            | Refusal::Forbidden(_) => None,
        }
    }
}
