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

/// Number that connects a request with its reply. The sender of the request chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Makes a new reservation. If the same principal repeats the request, the answer is the same
    /// and there is no second effect.
    Reserve {
        /// Name of the new reservation.
        name: Name,
        /// Amount of CPU time that is reserved.
        amount: Amount,
        /// True if the reservation is a hard limit.
        exact: bool,
        /// Offset of the periods from multiples of the period on the wall clock. If `None`, the
        /// first period begins when the reservation is made.
        phase: Option<Span>,
        /// Number of vCPUs. If `None`, it is the number of vCPUs of the VM, which must exist.
        vcpus: Option<u16>,
        /// Binding of the VM. If `None`, it refers to the VM called `name`, which must exist.
        binding: Option<Binding>,
        /// User who must own the VM. If `None`, it is the owner of the VM that is found. If no VM
        /// is found, it is the caller. For a caller on another host, who owns no VMs, it is then
        /// the first user for whose VMs the caller may reserve.
        user: Option<u32>,
        /// End time of the reservation, in the future. If `None`, the reservation lasts until it is
        /// released.
        until: Option<WallTime>,
        /// Mechanism that enforces the reservation.
        enforce: WantedMechanism,
    },
    /// Reserves capacity for a member of a [gang](crate::gang), without scheduling its VM, for the
    /// time [`LEASE`](crate::gang::LEASE). The reservation is not written to the ledger until the
    /// member begins.
    Hold {
        /// Name of the gang.
        gang: Name,
        /// Reservation of the member, in the form of a [`Request::Reserve`].
        member: Box<Request>,
    },
    /// Makes the reservation of a [gang](crate::gang) member for which [`Request::Hold`] only held
    /// the capacity. The member's VM is scheduled from the time `at`.
    Begin {
        /// Gang of the member.
        gang: Gang,
        /// Name of the member's reservation.
        name: Name,
        /// Time at which the member's periods begin, by the service's clock.
        at: Time,
    },
    /// Reports that a gang is broken. If the member on this host has not begun, or if the gang is
    /// strict, the reservation of the member ends. Otherwise the reservation continues without a
    /// gang.
    Break {
        /// Name of the gang.
        gang: Name,
        /// Name of the reservation of the member on this host.
        name: Name,
        /// Name of the lost member, and the reason for the loss.
        lost: String,
    },
    /// Changes the terms of a reservation. If a field is `None`, that part of the terms stays
    /// unchanged.
    Change {
        /// Name of the reservation.
        name: Name,
        /// New amount of CPU time. `None` keeps the present amount.
        amount: Option<Amount>,
        /// True for a hard limit, and false for a work-conserving reservation. `None` keeps the
        /// present value.
        exact: Option<bool>,
        /// New offset of the periods from the multiples of the period on the wall clock. With
        /// `Some(None)`, periods begin at the time of the change. `None` keeps the present offset.
        phase: Option<Option<Span>>,
        /// New number of vCPUs. The amount of CPU time for each vCPU stays the same. `None` keeps
        /// the present number.
        vcpus: Option<u16>,
        /// New end time, which must be in the future. With `Some(None)`, the reservation lasts
        /// until it is released. `None` keeps the present end time.
        until: Option<Option<WallTime>>,
        /// New mechanism. `None` keeps the present mechanism.
        enforce: Option<WantedMechanism>,
        /// Reason for the change, which is written to the log. The text contains no control
        /// characters.
        why: Option<String>,
        /// Revision that the reservation must have. With `None`, the reservation may have any
        /// revision.
        if_revision: Option<u64>,
    },
    /// Binds a reservation to another VM, or to the same VM by another name.
    Rebind {
        /// Name of the reservation.
        name: Name,
        /// New binding of the VM.
        binding: Binding,
        /// Revision that the reservation must have. With `None`, the reservation may have any
        /// revision.
        if_revision: Option<u64>,
    },
    /// Keeps a VM from running. The capacity of the VM stays reserved. A VM that is already paused
    /// stays paused.
    Pause {
        /// Name of the reservation.
        name: Name,
        /// Revision that the reservation must have. With `None`, the reservation may have any
        /// revision.
        if_revision: Option<u64>,
    },
    /// Lets a paused VM run. Contested threads of the VM, which were left to another program, are
    /// scheduled by the service again. The request has no effect on a running VM without such
    /// threads.
    Resume {
        /// Name of the reservation.
        name: Name,
        /// Revision that the reservation must have. With `None`, the reservation may have any
        /// revision.
        if_revision: Option<u64>,
    },
    /// Ends a reservation and frees its capacity.
    Release {
        /// Name of the reservation.
        name: Name,
        /// Revision that the reservation must have. With `None`, the reservation may have any
        /// revision.
        if_revision: Option<u64>,
    },
    /// Makes all reservations match a list. If one reservation of the list is refused, no
    /// reservation changes.
    Apply {
        /// Requested reservations, each as a [`Request::Reserve`].
        targets: Vec<Request>,
        /// True if reservations that are not in the list are released.
        prune: bool,
        /// True if the answer only shows the changes, and none is made.
        dry_run: bool,
        /// [Revision](crate::Service::revision) of the host for which the list was made. With
        /// `None`, the host may have any revision.
        revision: Option<u64>,
    },
    /// Makes all reservations match a list, as [`Request::Apply`] does, but first changes one VM
    /// (the canary) and watches it. If the canary behaves as predicted, the rest of the list is
    /// applied. Otherwise the change of the canary is undone.
    Canary {
        /// Requested reservations, each as a [`Request::Reserve`].
        targets: Vec<Request>,
        /// True if reservations that are not in the list are released.
        prune: bool,
        /// Length of time for which the canary is watched.
        watch: Span,
        /// [Revision](crate::Service::revision) of the host for which the plan was made. With
        /// `None`, the host may have any revision.
        revision: Option<u64>,
        /// Predictions for the VMs from which the canary is chosen.
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
    /// Shows the capacity that is available on each CPU for reservations with a given period.
    Room {
        /// Length of the period.
        period: Span,
    },
    /// Shows past events, newest first.
    Log {
        /// Name of the reservation whose events are shown. `None` shows all events.
        name: Option<Name>,
        /// Number of an event. Only events with lower numbers are shown. `None` shows events up to
        /// the newest.
        before: Option<u64>,
        /// Maximum number of events in the answer.
        most: u16,
    },
    /// Shows the CPU time that a reservation received, by hour or day.
    History {
        /// Name of the reservation, which may have ended.
        name: Name,
        /// Start of the shown interval, in nanoseconds since 1970. The first shown hour is the one
        /// that contains this instant.
        since_ns: u64,
        /// True if the answer contains one sum for each day instead of single hours.
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

    /// Returns the kind of the request, which decides the rights that the caller needs.
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

/// Number of listed reservations that count as one further change against the rate limit.
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
    /// Returns true if the request applies a list of reservations, with or without a canary.
    /// Returns false for a dry run.
    #[must_use]
    pub const fn is_list(&self) -> bool {
        matches!(self, Request::Apply { dry_run: false, .. } | Request::Canary { .. })
    }

    /// Returns the number of changes for which the request counts against the rate limit of a
    /// caller who is not an administrator. A list counts as one change, and as one more for each
    /// [`COUNTED_AS_ONE`] reservations.
    pub(crate) fn counted_changes(&self) -> u32 {
        let listed = match self {
            Request::Apply { targets, .. } | Request::Canary { targets, .. } => targets.len(),
            _ => 0,
        };
        1 + u32::try_from(listed / COUNTED_AS_ONE).unwrap_or(u32::MAX - 1)
    }

    /// Returns the names of the reservations for which the request leaves the mechanism to the
    /// service (`auto`).
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

    /// Sets the mechanism `by` for all reservations for which the request has `auto`.
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
