//! Requests that clients send to the service.

use std::fmt;

use slackline_units::{Enforcement, Span, Time, WallTime};

use crate::binding::Binding;
use crate::gang::Gang;
use crate::mechanism::WantedMechanism;
use crate::name::Name;
use crate::plan::VmPrediction;
use crate::principal::Verb;
use crate::terms::Amount;

/// Number that the sender chooses for a request, to match the reply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Makes a new reservation. If the same principal repeats the request, it gets the same answer
    /// and there is no second effect.
    Reserve {
        /// Name of the new reservation.
        name: Name,
        /// Amount of CPU time.
        amount: Amount,
        /// True if the reservation is a hard limit.
        exact: bool,
        /// Offset of the periods from whole periods of the wall clock. If `None`, the first period
        /// begins when the reservation is made.
        phase: Option<Span>,
        /// Number of vCPUs. If `None`, the VM must exist, and its number of vCPUs is used.
        vcpus: Option<u16>,
        /// Binding of the VM. If `None`, the VM is the one called `name`, which must exist.
        binding: Option<Binding>,
        /// User who owns the VM. If `None`, the owner of the VM that is found. For a VM that does
        /// not exist yet, `None` means the caller. A caller on another host owns no VMs, so `None`
        /// then means the first user for whose VMs this caller may reserve.
        user: Option<u32>,
        /// End of the reservation, in the future. If `None`, the reservation lasts until it is
        /// released.
        until: Option<WallTime>,
        /// Mechanism that enforces the reservation.
        enforce: WantedMechanism,
    },
    /// Admits a reservation for a gang. Its capacity is held unused for
    /// [`LEASE`](crate::gang::LEASE). The reservation is written to the ledger only when it begins.
    Hold {
        /// Name of the gang.
        gang: Name,
        /// Reservation of the member, as a [`Request::Reserve`].
        member: Box<Request>,
    },
    /// Turns a held member of a gang into an ordinary reservation.
    Begin {
        /// Gang of the member.
        gang: Gang,
        /// Name of the member.
        name: Name,
        /// Time at which the member begins, by the service's clock.
        at: Time,
    },
    /// Reports that a gang is broken. If the member on this host has not begun, or if the gang is
    /// strict, the member ends. Otherwise it goes on without a gang.
    Break {
        /// Name of the gang.
        gang: Name,
        /// Name of the member on this host.
        name: Name,
        /// Member that was lost, and the reason.
        lost: String,
    },
    /// Changes the terms of a reservation. A field that is `None` leaves that part of the terms
    /// unchanged.
    Change {
        /// Name of the reservation.
        name: Name,
        /// New amount of CPU time.
        amount: Option<Amount>,
        /// True for a hard limit, and false for a work-conserving reservation.
        exact: Option<bool>,
        /// New offset of the periods from whole periods of the wall clock. With `Some(None)`,
        /// periods begin at the time of the change.
        phase: Option<Option<Span>>,
        /// New number of vCPUs. The amount of CPU time per vCPU stays.
        vcpus: Option<u16>,
        /// New end, in the future. With `Some(None)` the reservation lasts until it is released.
        until: Option<Option<WallTime>>,
        /// New mechanism. `None` keeps the present mechanism.
        enforce: Option<WantedMechanism>,
        /// Reason for the change, which is written to the log. It has no control characters.
        why: Option<String>,
        /// Revision that the reservation must have. `None` accepts any revision.
        if_revision: Option<u64>,
    },
    /// Binds a reservation to another VM, or to the same VM by another name.
    Rebind {
        /// Name of the reservation.
        name: Name,
        /// New binding of the VM.
        binding: Binding,
        /// Revision that the reservation must have. `None` accepts any revision.
        if_revision: Option<u64>,
    },
    /// Keeps a VM from running. Its capacity stays reserved. Has no effect on a VM that is already
    /// paused.
    Pause {
        /// Name of the reservation.
        name: Name,
        /// Revision that the reservation must have. `None` accepts any revision.
        if_revision: Option<u64>,
    },
    /// Lets a paused VM run. If threads of the VM were left to another program (contested), they
    /// are scheduled again. Has no effect on a VM that already runs.
    Resume {
        /// Name of the reservation.
        name: Name,
        /// Revision that the reservation must have. `None` accepts any revision.
        if_revision: Option<u64>,
    },
    /// Ends a reservation and frees its capacity.
    Release {
        /// Name of the reservation.
        name: Name,
        /// Revision that the reservation must have. `None` accepts any revision.
        if_revision: Option<u64>,
    },
    /// Makes all reservations match a list. If one of them is refused, nothing changes.
    Apply {
        /// Wanted reservations, each as a [`Request::Reserve`].
        targets: Vec<Request>,
        /// True if reservations that are not in the list are released.
        prune: bool,
        /// True if the changes are only returned and not made.
        dry_run: bool,
        /// [Revision](crate::Service::revision) of the host for which the list was made. `None`
        /// accepts any revision.
        revision: Option<u64>,
    },
    /// Makes all reservations match a list, as [`Request::Apply`] does, but first changes one VM
    /// (the canary) and watches it. If the canary does as predicted, the other changes follow.
    /// Otherwise the canary is restored.
    Canary {
        /// Wanted reservations, each as a [`Request::Reserve`].
        targets: Vec<Request>,
        /// True if reservations that are not in the list are released.
        prune: bool,
        /// Time for which the first VM is watched.
        watch: Span,
        /// [Revision](crate::Service::revision) of the host for which the plan was made. `None`
        /// accepts any revision.
        revision: Option<u64>,
        /// Predictions for the VMs that can be the canary.
        predictions: Vec<VmPrediction>,
    },
    /// Undoes the last plan or change of the caller.
    Undo,
    /// Shows the last plan of the caller.
    Plan,
    /// Lists one reservation, or all reservations.
    List {
        /// Name of the reservation. `None` lists all reservations.
        name: Option<Name>,
    },
    /// Shows the available capacity for a period.
    Room {
        /// Length of the period.
        period: Span,
    },
    /// Shows past events, newest first.
    Log {
        /// Reservation whose events are shown. `None` shows all events.
        name: Option<Name>,
        /// Only events with a number below this one are shown. `None` shows events up to the
        /// newest.
        before: Option<u64>,
        /// Maximum number of events.
        most: u16,
    },
    /// Shows the CPU time that a reservation received, by hour or day.
    History {
        /// Name of the reservation, which may have ended.
        name: Name,
        /// Start of the shown time, in nanoseconds since 1970. The hour that contains this time is
        /// included.
        since_ns: u64,
        /// True if the hours of each day are added up.
        by_day: bool,
    },
    /// Shows the VMs of this host.
    Find {
        /// Text that the names of the shown VMs must contain. `None` shows all VMs.
        text: Option<String>,
    },
}

impl Request {
    /// Returns the name of the one reservation that the request is about. `None` if the request is
    /// about no reservation or about several.
    #[must_use]
    pub const fn name(&self) -> Option<&Name> {
        match self {
            Request::Reserve { name, .. }
            | Request::Begin { name, .. }
            | Request::Break { name, .. }
            | Request::Change { name, .. }
            | Request::Rebind { name, .. }
            | Request::Pause { name, .. }
            | Request::Resume { name, .. }
            | Request::Release { name, .. }
            | Request::History { name, .. } => Some(name),
            Request::List { name } | Request::Log { name, .. } => name.as_ref(),
            Request::Hold { .. }
            | Request::Apply { .. }
            | Request::Canary { .. }
            | Request::Undo
            | Request::Plan
            | Request::Room { .. }
            | Request::Find { .. } => None,
        }
    }

    /// Returns the kind of the request.
    #[must_use]
    pub const fn verb(&self) -> Verb {
        match self {
            Request::Reserve { .. } => Verb::Reserve,
            Request::Hold { .. } | Request::Begin { .. } | Request::Break { .. } => Verb::Gang,
            Request::Change { .. } | Request::Rebind { .. } => Verb::Change,
            Request::Pause { .. } => Verb::Pause,
            Request::Resume { .. } => Verb::Resume,
            Request::Release { .. } => Verb::Release,
            Request::Apply { .. } | Request::Canary { .. } | Request::Undo => Verb::Apply,
            Request::List { .. } | Request::Plan => Verb::List,
            Request::Room { .. } => Verb::Room,
            Request::Log { .. } | Request::History { .. } => Verb::Log,
            Request::Find { .. } => Verb::Find,
        }
    }
}

/// Number of reservations in a list that count as one change against the rate limit.
const COUNTED_AS_ONE: usize = 20;

impl fmt::Display for Request {
    /// Writes the request in one line that identifies it. The line is stored with the idempotency
    /// key, so that a retry is recognized.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.verb();
        match self {
            Request::Reserve {
                name,
                amount,
                exact,
                phase,
                vcpus,
                binding,
                user,
                until,
                enforce,
            } => {
                write!(out, "{verb} {name} {amount} exact={exact}")?;
                phase.map_or(Ok(()), |phase| write!(out, " phase={phase}"))?;
                vcpus.map_or(Ok(()), |vcpus| write!(out, " vcpus={vcpus}"))?;
                binding.as_ref().map_or(Ok(()), |binding| write!(out, " for {binding}"))?;
                user.map_or(Ok(()), |user| write!(out, " of uid {user}"))?;
                until.map_or(Ok(()), |until| write!(out, " until={until}"))?;
                // Older versions had only the dispatcher, and their lines name no mechanism. So a
                // request for the dispatcher has no mechanism in its line, and a retry of an old
                // request is still recognized.
                if *enforce != WantedMechanism::default() {
                    write!(out, " enforce={enforce}")?;
                }
                Ok(())
            }
            Request::Change { .. } => write_change(out, self),
            Request::Rebind { name, binding, if_revision } => {
                write!(out, "{verb} {name} for {binding}")?;
                write_revision(out, *if_revision)
            }
            Request::Hold { gang, member } => write!(out, "{verb} {gang} hold {member}"),
            // The begin time is left out, because a retry computes a slightly different one from
            // the clock.
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
            Request::Apply { targets, prune, dry_run, revision } => {
                write!(out, "{verb} prune={prune} dry-run={dry_run}")?;
                write_revision(out, *revision)?;
                targets.iter().try_for_each(|target| write!(out, ", {target}"))
            }
            Request::Canary { .. } => write_canary(out, self),
            Request::Undo => write!(out, "undo"),
            Request::Plan => write!(out, "plan"),
            Request::List { name: None } => write!(out, "{verb}"),
            Request::List { name: Some(name) } => write!(out, "{verb} {name}"),
            Request::Room { period } => write!(out, "{verb} {period}"),
            Request::Log { name, before, most } => {
                write!(out, "{verb} most={most}")?;
                name.as_ref().map_or(Ok(()), |name| write!(out, " of {name}"))?;
                before.map_or(Ok(()), |before| write!(out, " before={before}"))
            }
            Request::History { name, since_ns, by_day } => {
                write!(out, "history {name} since={since_ns} by-day={by_day}")
            }
            Request::Find { text: None } => write!(out, "{verb}"),
            Request::Find { text: Some(text) } => write!(out, "{verb} {text:?}"),
        }
    }
}

fn write_revision(out: &mut fmt::Formatter<'_>, revision: Option<u64>) -> fmt::Result {
    revision.map_or(Ok(()), |revision| write!(out, " revision={revision}"))
}

impl Request {
    /// Returns true if the request applies a list of reservations.
    #[must_use]
    pub const fn is_list(&self) -> bool {
        matches!(self, Request::Apply { dry_run: false, .. } | Request::Canary { .. })
    }

    /// Returns the number of changes as which the request counts against the rate limit, unless the
    /// caller is an administrator. A list counts as one change, and as one more for each
    /// [`COUNTED_AS_ONE`] reservations.
    pub(crate) fn counted_changes(&self) -> u32 {
        let listed = match self {
            Request::Apply { targets, .. } | Request::Canary { targets, .. } => targets.len(),
            _ => 0,
        };
        1 + u32::try_from(listed / COUNTED_AS_ONE).unwrap_or(u32::MAX - 1)
    }

    /// Returns the names of the reservations for which the request has `auto`.
    pub(crate) fn names_with_auto(&self) -> Vec<&Name> {
        match self {
            Request::Reserve { name, enforce, .. } if enforce.is_auto() => vec![name],
            Request::Change { name, enforce: Some(enforce), .. } if enforce.is_auto() => {
                vec![name]
            }
            Request::Hold { member, .. } => member.names_with_auto(),
            Request::Apply { targets, .. } | Request::Canary { targets, .. } => {
                targets.iter().flat_map(Request::names_with_auto).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Sets the mechanism of all reservations in the request that have `auto`.
    pub(crate) fn choose_mechanism(&mut self, by: Enforcement) {
        match self {
            Request::Reserve { enforce, .. } | Request::Change { enforce: Some(enforce), .. } => {
                enforce.choose(by);
            }
            Request::Hold { member, .. } => member.choose_mechanism(by),
            Request::Apply { targets, .. } | Request::Canary { targets, .. } => {
                targets.iter_mut().for_each(|target| target.choose_mechanism(by));
            }
            _ => {}
        }
    }
}

fn write_change(out: &mut fmt::Formatter<'_>, request: &Request) -> fmt::Result {
    let Request::Change { name, amount, exact, phase, vcpus, until, enforce, why, if_revision } =
        request
    else {
        return Ok(());
    };
    write!(out, "{} {name}", request.verb())?;
    amount.map_or(Ok(()), |amount| write!(out, " {amount}"))?;
    exact.map_or(Ok(()), |exact| write!(out, " exact={exact}"))?;
    match phase {
        Some(Some(phase)) => write!(out, " phase={phase}")?,
        Some(None) => write!(out, " phase=none")?,
        None => {}
    }
    vcpus.map_or(Ok(()), |vcpus| write!(out, " vcpus={vcpus}"))?;
    match until {
        Some(Some(until)) => write!(out, " until={until}")?,
        Some(None) => write!(out, " until=none")?,
        None => {}
    }
    enforce.map_or(Ok(()), |enforce| write!(out, " enforce={enforce}"))?;
    why.as_ref().map_or(Ok(()), |why| write!(out, " why={why:?}"))?;
    write_revision(out, *if_revision)
}

fn write_canary(out: &mut fmt::Formatter<'_>, request: &Request) -> fmt::Result {
    let Request::Canary { targets, prune, watch, revision, .. } = request else { return Ok(()) };
    write!(out, "{} canary watch={watch} prune={prune}", request.verb())?;
    write_revision(out, *revision)?;
    targets.iter().try_for_each(|target| write!(out, ", {target}"))
}
