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
    /// Makes a new reservation. The same request again by the same principal gets the same answer,
    /// and has no second effect.
    Reserve {
        /// Name of the new reservation.
        name: Name,
        /// Amount of CPU time.
        amount: Amount,
        /// True for a hard limit.
        exact: bool,
        /// Offset of the periods from whole periods of the wall clock. `None` lets periods begin at
        /// the time of the reservation.
        phase: Option<Span>,
        /// Number of vCPUs. `None` takes the number of vCPUs of the VM, which must exist at the
        /// time of the request.
        vcpus: Option<u16>,
        /// Binding of the VM. `None` means the VM called `name`, which must exist at the time of
        /// the request.
        binding: Option<Binding>,
        /// User who owns the VM. `None` means the owner of the VM that is found. If there is no VM
        /// yet, it means the caller, or the first user that a named caller may reserve for.
        user: Option<u32>,
        /// End of the reservation, in the future. If `None`, the reservation lasts until it is
        /// released.
        until: Option<WallTime>,
        /// Mechanism that enforces the reservation.
        enforce: WantedMechanism,
    },
    /// Admits a reservation for a gang and holds its capacity, unused, for
    /// [`LEASE`](crate::gang::LEASE). The reservation is written to the ledger only when it begins.
    Hold {
        /// Name of the gang.
        gang: Name,
        /// Reservation of the member: a [`Request::Reserve`].
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
    /// Reports that a gang is broken. Its member on this host ends if it has not begun or the gang
    /// is strict. Otherwise the member goes on without a gang.
    Break {
        /// Name of the gang.
        gang: Name,
        /// Name of the member on this host.
        name: Name,
        /// Member that was lost, and the reason.
        lost: String,
    },
    /// Changes the terms of a reservation. Terms whose field is `None` stay as they are.
    Change {
        /// Name of the reservation.
        name: Name,
        /// New amount of CPU time.
        amount: Option<Amount>,
        /// True for a hard limit.
        exact: Option<bool>,
        /// New offset of the periods from whole periods of the wall clock. `Some(None)` lets
        /// periods begin at the time of the change.
        phase: Option<Option<Span>>,
        /// New number of vCPUs. An amount per vCPU is not affected.
        vcpus: Option<u16>,
        /// New end, in the future. With `Some(None)` the reservation lasts until it is released.
        until: Option<Option<WallTime>>,
        /// New mechanism. `None` keeps the present one.
        enforce: Option<WantedMechanism>,
        /// Reason for the change, for the log. Without control characters.
        why: Option<String>,
        /// Revision that the reservation must have. `None` accepts any.
        if_revision: Option<u64>,
    },
    /// Binds a reservation to another VM, or to the same VM by another name.
    Rebind {
        /// Name of the reservation.
        name: Name,
        /// New binding of the VM.
        binding: Binding,
        /// Revision that the reservation must have. `None` accepts any.
        if_revision: Option<u64>,
    },
    /// Keeps a VM from running. Its capacity stays reserved. A VM that is already paused stays
    /// paused.
    Pause {
        /// Name of the reservation.
        name: Name,
        /// Revision that the reservation must have. `None` accepts any.
        if_revision: Option<u64>,
    },
    /// Lets a paused VM run, and schedules threads again that were left to another program
    /// (contested). No effect on a VM that runs.
    Resume {
        /// Name of the reservation.
        name: Name,
        /// Revision that the reservation must have. `None` accepts any.
        if_revision: Option<u64>,
    },
    /// Ends a reservation and frees its capacity.
    Release {
        /// Name of the reservation.
        name: Name,
        /// Revision that the reservation must have. `None` accepts any.
        if_revision: Option<u64>,
    },
    /// Makes reservations match a list: all of them get their new terms, or none.
    Apply {
        /// Reservations as they should be, each a [`Request::Reserve`].
        targets: Vec<Request>,
        /// True if reservations that are not listed are released.
        prune: bool,
        /// True to return the changes without making them.
        dry_run: bool,
    },
    /// Like [`Request::Apply`], but changes one VM first (the canary) and watches it. If the VM
    /// does as predicted, the other changes follow. Otherwise the VM is restored.
    Canary {
        /// Reservations as they should be, each a [`Request::Reserve`].
        targets: Vec<Request>,
        /// True if reservations that are not listed are released.
        prune: bool,
        /// Time for which the first VM is watched.
        watch: Span,
        /// [Revision](crate::Service::revision) of the host for which the plan was made. `None`
        /// accepts any.
        revision: Option<u64>,
        /// Predictions for the VMs that may be first.
        predictions: Vec<VmPrediction>,
    },
    /// Undoes the last plan or change of the caller.
    Undo,
    /// Shows the last plan of the caller.
    Plan,
    /// Lists all reservations, or one.
    List {
        /// Name of the reservation. `None` lists all.
        name: Option<Name>,
    },
    /// Shows the available capacity for a period.
    Room {
        /// Length of the period.
        period: Span,
    },
    /// Shows past events, newest first.
    Log {
        /// Reservation whose events are shown. `None` shows all.
        name: Option<Name>,
        /// Upper bound of event numbers, exclusive.
        before: Option<u64>,
        /// Maximum number of events.
        most: u16,
    },
    /// Shows the CPU time that a reservation received, by hour or day.
    History {
        /// Name of the reservation, which may have ended.
        name: Name,
        /// Start of the shown time, in nanoseconds since 1970. The hour that contains it is
        /// included.
        since_ns: u64,
        /// True to add the hours of each day up.
        by_day: bool,
    },
    /// Shows the VMs of this host.
    Find {
        /// Text that the names must contain. `None` shows all.
        text: Option<String>,
    },
}

impl Request {
    /// Returns the name of the reservation that the request is for. `None` if the request is not
    /// for a single reservation.
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

impl fmt::Display for Request {
    /// Writes the request in one line that identifies it. Stored with a key to recognize a retry.
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
                // Older versions had only the dispatcher and wrote no mechanism. The line of such a
                // request must stay the same, so that retries are recognised.
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
            // The time is left out: a retry computes a slightly different one from the clock.
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

impl Request {
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

    /// Sets the mechanism of all reservations for which the request has `auto`.
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
