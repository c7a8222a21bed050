//! Reasons for which the service refuses a request. A refused request has no effect.

use slackline_units::{CpuShare, Reservation, Span, WallTime};

use crate::binding::Binding;
use crate::name::Name;
use crate::principal::{Principal, Verb};
use crate::terms::{Terms, TermsError};

/// Reason why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The policy has too little capacity for the reservation.
    #[error("{says}")]
    NoRoom {
        /// Reservation that was requested for each vCPU.
        asked: Reservation,
        /// Share that is already reserved on the CPU with the most available capacity.
        promised: CpuShare,
        /// Share that can be reserved in total on the CPU with the most available capacity: the
        /// whole CPU less the part that the policy keeps free.
        capacity: CpuShare,
        /// Longest slice that is now admitted with the requested period. Zero if no slice fits.
        largest: Span,
        /// Time from now until the reservation fits, if no reservation changes in between. During
        /// this time, capacity that other VMs have given up stays reserved, because these VMs used
        /// more CPU time than they had accrued. `None` if the reservation will not fit even then,
        /// or if the policy does not compute this time.
        free_after: Option<Span>,
        /// Message of the policy, with all numbers.
        says: String,
    },
    /// One reservation of a list was refused, so no reservation of the list was changed.
    #[error("{name}: {why}")]
    InList {
        /// Name of the refused reservation.
        name: Name,
        /// Reason why this reservation was refused.
        why: Box<Refusal>,
    },
    /// The list in the request has more than the maximum number of reservations.
    #[error("cannot apply a list of {is} reservations: the maximum is {most}")]
    TooManyTargets {
        /// Number of reservations in the list.
        is: usize,
        /// Largest number of reservations in a list.
        most: usize,
    },
    /// The record by which `undo` could undo the list is too large.
    #[error(
        "cannot apply this list: its record for `undo` has {bytes} bytes; the maximum is {most}"
    )]
    LargePlan {
        /// Size of the record in bytes.
        bytes: usize,
        /// Largest size of a record in bytes.
        most: usize,
    },
    /// The request would raise a reservation of another owner, but there are too many such raises
    /// already.
    #[error(
        "cannot change {name}, which has another owner: users have raised {is} reservations of \
         other owners; the maximum is {most}"
    )]
    TooManyRaises {
        /// Reservation in the request.
        name: Name,
        /// Number of raises now.
        is: usize,
        /// Largest number of raises.
        most: usize,
    },
    /// The requested VM is not on this host.
    #[error("cannot find {what} on this host")]
    NoMachine {
        /// Binding or name that the service looked up.
        what: String,
    },
    /// Several VMs have the requested name.
    #[error("several VMs are called {name}")]
    Ambiguous {
        /// Name that is ambiguous.
        name: Name,
        /// Bindings of all VMs that have the ambiguous `name`, one for each VM.
        bindings: Vec<Binding>,
    },
    /// The VM already has a reservation.
    #[error("{binding} has {} already", one_reservation(by.as_ref()))]
    Taken {
        /// Binding in the request.
        binding: Binding,
        /// Reservation that has the VM. `None` if the caller may not know the name.
        by: Option<Name>,
    },
    /// The reservation has changed since the revision that the caller expected.
    #[error("reservation {name} is at revision {is}, not {asked}")]
    Stale {
        /// Name of the reservation.
        name: Name,
        /// Revision that the request names.
        asked: u64,
        /// Revision that the reservation has now.
        is: u64,
    },
    /// A reservation has changed since the plan changed it, or since the plan was made.
    #[error("{}", moved(name, *asked, *is))]
    Moved {
        /// Name of the reservation.
        name: Name,
        /// Revision of the reservation that the plan recorded.
        asked: u64,
        /// Current revision of the reservation. `None` if the reservation has ended.
        is: Option<u64>,
    },
    /// Reservations of the host have changed since the plan was made.
    #[error("the host is at revision {is}, and the plan is for revision {asked}")]
    HostMoved {
        /// Revision that the host had when the plan was made.
        asked: u64,
        /// Current revision of the host.
        is: u64,
    },
    /// The caller has no plan and no change that could be undone.
    #[error("there is no applied plan or change of this user to undo")]
    NothingToUndo,
    /// The name already belongs to a different reservation.
    #[error("reservation {name} exists already: {is}")]
    Exists {
        /// Name of the reservation.
        name: Name,
        /// Description of the existing reservation.
        is: String,
    },
    /// There is no reservation with the requested name.
    #[error("there is no reservation {name}")]
    NoSuchReservation {
        /// Name in the request.
        name: Name,
    },
    /// The reservation is held for a gang that has not begun.
    #[error("reservation {name} belongs to gang {gang}, which has not started")]
    Held {
        /// Name of the reservation.
        name: Name,
        /// Name of the gang.
        gang: Name,
    },
    /// The reservation does not belong to the gang in the request.
    #[error("reservation {name} is not a member of gang {gang}")]
    NoMember {
        /// Name of the reservation.
        name: Name,
        /// Name of the gang in the request.
        gang: Name,
    },
    /// The begin time of a gang member has passed, so its reservation has ended.
    #[error("cannot start {name}: its start time passed {late} ago")]
    TooLate {
        /// Name of the member.
        name: Name,
        /// Time that has passed since the begin time in the request.
        late: Span,
    },
    /// The begin time of a gang member is too far in the future. The clocks of the hosts probably
    /// differ.
    #[error("cannot start {name} in {ahead}: a gang must start within {}", crate::gang::AHEAD)]
    TooFar {
        /// Name of the member.
        name: Name,
        /// Time from now until the begin time in the request.
        ahead: Span,
    },
    /// The requested end time of the reservation is not in the future.
    #[error("cannot end a reservation at {until}: the time is {now} already")]
    EndPassed {
        /// End time in the request.
        until: WallTime,
        /// Current time of the wall clock.
        now: WallTime,
    },
    /// The caller's role does not allow this request.
    #[error("cannot {verb}: the caller's role does not allow it")]
    NotAllowed {
        /// Kind of the request.
        verb: Verb,
    },
    /// The VM belongs to a user for whose VMs the caller may not reserve.
    #[error(
        "cannot reserve for {binding}: the VM belongs to uid {user}, and {principal} may not \
         reserve for VMs of that user"
    )]
    NotYours {
        /// Binding of the VM.
        binding: Binding,
        /// Id of the user who owns the VM.
        user: u32,
        /// Principal that sent the request.
        principal: Principal,
    },
    /// A tenant asks to undo its last plan, but the plan changed a reservation of another owner.
    /// The tenant had another role when it made the plan.
    #[error("reservation {name} belongs to another owner")]
    NotOwner {
        /// Name of the reservation.
        name: Name,
    },
    /// A tenant wants to make a reservation under a name that another owner's reservation has.
    #[error("the name {name} is taken")]
    NameTaken {
        /// Name in the request.
        name: Name,
    },
    /// The name of a new reservation ends with [`Name::OF_LIBVIRT`], and the caller is not an
    /// administrator.
    #[error(
        "cannot reserve {name}: only administrators may use names that end with {}",
        Name::OF_LIBVIRT
    )]
    KeptName {
        /// Name in the request.
        name: Name,
    },
    /// The slice is longer than [`Terms::LONGEST_RUN`], and the caller is not an administrator.
    #[error("cannot reserve a slice of {}: only administrators may exceed {}",
        terms.each().slice(), Terms::LONGEST_RUN)]
    LongRun {
        /// Terms in the request.
        terms: Terms,
    },
    /// The reservations of the owner would exceed the CPU limit of the owner's budget.
    #[error("cannot reserve: {owner} would have {asked} in total, more than the limit of {most}")]
    OverBudgetCpu {
        /// Owner whose budget would be exceeded.
        owner: Principal,
        /// Share that all reservations of the owner together would have.
        asked: CpuShare,
        /// Largest share that the budget allows.
        most: CpuShare,
    },
    /// The owner would have more reservations than its budget allows.
    #[error(
        "cannot reserve: {owner} would have {asked} reservations, more than the limit of {most}"
    )]
    OverBudgetMachines {
        /// Owner whose budget would be exceeded.
        owner: Principal,
        /// Number of reservations that the owner would have.
        asked: u64,
        /// Largest number of reservations that the budget allows.
        most: u16,
    },
    /// The reservations of one owner, or of all owners together, would have too many vCPUs.
    #[error("cannot reserve: the reservations of {} would have {asked} vCPUs in total, more than \
        the maximum of {most}", all_or_one(*owner))]
    TooManyVcpus {
        /// Owner whose reservations would have too many vCPUs. `None` if the limit for all owners
        /// together would be exceeded.
        owner: Option<Principal>,
        /// Number of vCPUs that the reservations would have.
        asked: u64,
        /// Maximum number of vCPUs for one owner, or for all owners together.
        most: u64,
    },
    /// The host would have more than the maximum number of reservations.
    #[error("cannot reserve: this host has the maximum of {most} reservations")]
    Full {
        /// Maximum number of reservations on this host for this caller.
        most: usize,
    },
    /// The ledger cannot be written. So the change was not made, or it was reverted.
    #[error("cannot write to the ledger, so the request has no effect: {why}")]
    NotDurable {
        /// Reason that the ledger reported.
        why: String,
    },
    /// The request cannot be carried out now, but can succeed later.
    #[error("{why}")]
    NotNow {
        /// Reason why the request cannot succeed now.
        why: String,
        /// Time after which the caller can send the request again.
        again: Span,
    },
    /// The request exceeds a rate limit.
    #[error("too many {what}: at most {most} per second are allowed")]
    TooMany {
        /// Name of the limited kind of request, in the plural.
        what: &'static str,
        /// Number of requests per second that are allowed.
        most: u32,
        /// Time after which the caller can send the request again.
        again: Span,
    },
    /// The terms break a limit that holds under every policy.
    #[error("{0}")]
    Terms(TermsError),
    /// The request cannot be carried out, for example because the policy does not support the
    /// terms. The text gives the reason.
    #[error("{0}")]
    Unkeepable(String),
    /// The request gives no number of vCPUs, and the VM does not exist yet or its vCPU threads
    /// cannot be found. So the service cannot count the vCPUs.
    #[error(
        "cannot count the vCPUs of {what}: it is not on this host, or its vCPU threads cannot be \
         found"
    )]
    VcpusUnknown {
        /// Binding of the VM.
        what: Binding,
    },
    /// The idempotency key was used before for another request.
    #[error("cannot use this idempotency key: another request has used it: {was}")]
    KeyReused {
        /// Text of the earlier request, in one line.
        was: String,
    },
    /// This VM must never be scheduled. The text gives the reason.
    #[error("{0}")]
    Forbidden(String),
    /// The host or its kernel rejected an operation.
    #[error("{says}")]
    Host {
        /// Description of the failure.
        says: String,
        /// Advice on how to fix the failure.
        hint: Option<String>,
    },
}

impl Refusal {
    fn hint_of_revision(&self) -> Option<String> {
        match self {
            Refusal::Stale { name, is, .. } => {
                Some(format!("read {name} again, then use revision {is}"))
            }
            Refusal::Moved { name, .. } => {
                Some(format!("see what has changed with `slackline log {name}`"))
            }
            Refusal::HostMoved { .. } => {
                Some("ask `slackline whatif --since` again, and apply the new plan".into())
            }
            _ => None,
        }
    }

    fn hint_of_capacity(&self) -> Option<String> {
        match self {
            Refusal::NoRoom { free_after: Some(wait), .. } => Some(format!(
                "try again in {wait}: the capacity that another VM has given up is then free"
            )),
            Refusal::NoRoom { asked, largest, .. } if largest.is_zero() => Some(format!(
                "no slice fits now with a period of {}: release another reservation first",
                asked.period()
            )),
            Refusal::NoRoom { asked, largest, .. } => {
                Some(format!("use a slice of at most {largest} every {}", asked.period()))
            }
            _ => None,
        }
    }

    /// Returns advice on what to do about the refusal. `None` if there is no advice.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Refusal::NoRoom { .. } => self.hint_of_capacity(),
            Refusal::InList { name, why } => Some(of_list(name, why)),
            Refusal::TooManyTargets { .. } | Refusal::LargePlan { .. } => hint_to_split(),
            Refusal::TooManyRaises { .. } => hint_to_ask_owner(),
            Refusal::NoMachine { .. } => {
                Some("run `slackline find` to list the VMs of this host".into())
            }
            Refusal::Ambiguous { bindings, .. } => {
                let listed: Vec<String> = bindings.iter().map(ToString::to_string).collect();
                Some(format!("choose one of the VMs with --for: {}", listed.join(", ")))
            }
            Refusal::Taken { by: Some(by), .. } => {
                Some(format!("release {by} first, or change it with `slackline change {by}`"))
            }
            Refusal::Taken { by: None, .. } => {
                Some("ask an administrator to release that reservation first".into())
            }
            Refusal::Stale { .. } | Refusal::Moved { .. } | Refusal::HostMoved { .. } => {
                self.hint_of_revision()
            }
            Refusal::Exists { name, .. } => Some(format!("use `slackline change {name}`")),
            Refusal::NoSuchReservation { .. } => {
                Some("run `slackline list` to see all reservations".into())
            }
            Refusal::Full { .. } | Refusal::TooManyVcpus { .. } => hint_to_release(),
            Refusal::NotDurable { .. } => {
                Some("free space on the disk of the ledger; reservations in force are kept".into())
            }
            Refusal::NotNow { again, .. } | Refusal::TooMany { again, .. } => {
                Some(format!("try again in {again}"))
            }
            Refusal::VcpusUnknown { .. } => Some(
                "add --vcpus N, or check with `slackline find` for which VMs you may reserve and \
                 what hinders it"
                    .into(),
            ),
            Refusal::KeyReused { .. } => Some("use a new idempotency key for the request".into()),
            Refusal::Host { hint, .. } => hint.clone(),
            Refusal::NotYours { user, .. } => {
                let says = "ask an administrator to reserve for the VM, or to run";
                Some(format!("{says} `slackline access add UID --role ROLE --users {user}`"))
            }
            Refusal::OverBudgetCpu { owner, .. } | Refusal::OverBudgetMachines { owner, .. } => {
                Some(format!(
                    "release a reservation of {owner}, or ask an administrator to raise the limit"
                ))
            }
            Refusal::LongRun { terms } => Some(same_share(terms)),
            Refusal::KeptName { .. } | Refusal::NameTaken { .. } => Some("use another name".into()),
            Refusal::Held { .. } => Some(format!(
                "wait up to {}: unless the gang starts, the reservation ends within that time",
                crate::gang::LEASE
            )),
            Refusal::TooLate { .. } | Refusal::TooFar { .. } => {
                Some("set the clocks of the gang's hosts to the same time".into())
            }
            Refusal::EndPassed { .. } => Some("give a later time, in UTC".into()),
            Refusal::NotAllowed { .. } | Refusal::NotOwner { .. } => {
                Some("see the roles in `slackline help service`".into())
            }
            Refusal::NoMember { .. }
            | Refusal::Terms(_)
            | Refusal::Unkeepable(_)
            | Refusal::NothingToUndo
            | Refusal::Forbidden(_) => None,
        }
    }
}

/// Returns advice with command line options: the share of `terms`, in a period of one second.
fn same_share(terms: &Terms) -> String {
    let (slice, period) = (terms.each().slice(), terms.each().period());
    let share = u128::from(slice.ns()) * 1_000_000 / u128::from(period.ns().max(1));
    let us = u64::try_from(share).unwrap_or_default();
    format!("write the same share as --slice {} --period 1s", Span::from_us(us))
}

fn moved(name: &Name, asked: u64, is: Option<u64>) -> String {
    match is {
        Some(is) => format!("{name} is at revision {is}, and the plan is for revision {asked}"),
        None => format!("{name} has ended, and the plan is for its revision {asked}"),
    }
}

fn hint_to_split() -> Option<String> {
    Some("split the list, and leave out --prune".into())
}

fn hint_to_ask_owner() -> Option<String> {
    Some("ask the owner or an administrator to make the change".into())
}

fn hint_to_release() -> Option<String> {
    Some("release a reservation first".into())
}

fn all_or_one(owner: Option<Principal>) -> String {
    owner.map_or("all owners".into(), |owner| owner.to_string())
}

fn one_reservation(name: Option<&Name>) -> String {
    name.map_or("a reservation".into(), |name| format!("reservation {name}"))
}

/// Returns advice about a list that was refused because of its reservation `name`.
fn of_list(name: &Name, why: &Refusal) -> String {
    let hint = match why {
        Refusal::Exists { .. } => Some(format!(
            "write the present `for` and `user` in the list, or first run `slackline change {name} \
             --for BINDING`"
        )),
        Refusal::NoRoom { free_after: Some(wait), .. } => Some(format!(
            "first apply a list that only frees capacity, and the rest of this list {wait} later"
        )),
        why => why.hint(),
    };
    let nothing = "nothing was changed";
    hint.map_or(nothing.into(), |hint| format!("{nothing}; {hint}"))
}
