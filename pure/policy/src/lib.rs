//! Scheduling policies and the trait that they implement, [`Policy`].
//!
//! A policy is a value. The host reports events to it and asks it one question: which vCPU runs on
//! this CPU, and for how long? Events change the policy (`&mut self`); the question does not
//! (`&self`). A policy has no access to clocks, threads, random numbers, VM names, logs, floats or
//! the operating system.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

mod admission;
mod api;
mod balance;
mod policies;
mod queues;

#[cfg(test)]
mod picture;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, ReservationError, Span, Time, VcpuId};

pub use admission::trial::Trial;
pub use api::field::{Field, FieldError, Kind, RawValue, Value, Values};
pub use api::moment::Moment;
pub use api::nearest::nearest;
pub use api::roster::Roster;
pub use api::spec::{BalancerVcpu, Promise, ShareText, Spec};
pub use api::topology::{Groups, Level, Topology, TopologyError};
pub use policies::{ALL, find};
pub use slackline_units::{Entitlement, VcpuHint};

/// Decides which vCPU runs on each CPU, and for how long.
///
/// An event handler (`&mut self`) changes the policy; a query (`&self`) does not. An event handler
/// returns the CPUs to reschedule: those whose `pick` may have changed, besides the CPU of the
/// event. The CPU of an event is the one on which the vCPU stops or has to stop, or the one whose
/// timer expired. An event can have none.
///
/// The caller guarantees:
/// - `at.now()` never decreases from one call to the next.
/// - `at` describes the host after the event that is being reported.
/// - The occupant of a CPU is charged up to `at.now()` before a call that concerns the CPU, before
///   the `on_wake` of a vCPU that last ran there, and before an `on_timer` that lists the CPU in
///   `timer_charges`. Before the `on_wake` of a vCPU that has not run yet, the occupants of all
///   CPUs that it may run on are charged.
/// - The CPU of the event and the CPUs that a handler returned are rescheduled after all events of
///   the instant, in order of CPU number. If the running vCPU blocks or yields, its CPU is
///   rescheduled at once.
///
/// The policy guarantees:
/// - `pick` returns only a vCPU that `at` calls eligible for that CPU.
/// - A timer (`next_timer`) is never in the past. Once it has expired (`on_timer`) it is gone or
///   later.
/// - The timer of a CPU changes only in a call that concerns the CPU or returns it.
/// - The same calls in the same order give the same answers on every host.
pub trait Policy: Send {
    /// Admits a vCPU. It joins blocked.
    ///
    /// # Errors
    /// If its parameters cannot be honoured beside the reservations that exist.
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError>;

    /// Changes the parameters of a vCPU. After an error the old parameters stay in force.
    ///
    /// # Errors
    /// If the new parameters cannot be honoured beside the other reservations.
    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError>;

    /// Removes a vCPU. Its id may be used again.
    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet;

    /// Handles the wake of a vCPU. Returns the CPUs whose occupant it may preempt and, if it is
    /// bound to a CPU, that CPU. If none of them picks the vCPU, the host offers it to one idle
    /// CPU.
    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet;

    /// Handles the start of a run interval: the vCPU now occupies a CPU.
    fn on_start(&mut self, _at: &Moment, _vcpu: VcpuId) -> CpuSet {
        CpuSet::NONE
    }

    /// Charges a vCPU for `ran`, the CPU time measured since its last charge.
    ///
    /// On a live host the vCPU may have occupied no CPU: the ordinary scheduler of the kernel gave
    /// it slack.
    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet;

    /// Handles the end of a timeslice: the vCPU reached its limit or yielded, and is still
    /// runnable.
    fn on_timeslice_end(&mut self, _at: &Moment, _vcpu: VcpuId, _why: TimesliceEnd) -> CpuSet {
        CpuSet::NONE
    }

    /// Handles a block: the vCPU has no more work, or the host holds it although it has some.
    fn on_block(&mut self, _at: &Moment, _vcpu: VcpuId) -> CpuSet {
        CpuSet::NONE
    }

    /// Handles a hint from a vCPU about its tasks, or about I/O that it does for another VM.
    fn on_hint(&mut self, _at: &Moment, _vcpu: VcpuId, _told: &VcpuHint) -> CpuSet {
        CpuSet::NONE
    }

    /// Prepares the `pick` that follows for `cpu`. A policy that stores its decision, instead of
    /// computing it in `pick`, decides here.
    fn prepare_pick(&mut self, _at: &Moment, _cpu: CpuId) -> CpuSet {
        CpuSet::NONE
    }

    /// Returns the vCPU to run on `cpu` from now on, and its longest timeslice, which may be zero.
    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick;

    /// Returns the time at which `on_timer` must be called for `cpu`. `None` if no timer is set.
    fn next_timer(&self, _cpu: CpuId) -> Option<Time> {
        None
    }

    /// Returns the CPUs whose occupants must be charged before `on_timer` is called for `cpu`.
    fn timer_charges(&self, _at: &Moment, cpu: CpuId) -> CpuSet {
        CpuSet::one(cpu)
    }

    /// Handles the expiry of the timer of `cpu`.
    fn on_timer(&mut self, _at: &Moment, _cpu: CpuId) -> CpuSet {
        CpuSet::NONE
    }

    /// Returns true if the last wake-up of a vCPU lets it precede others now. While the vCPU runs,
    /// that ends in `charge` or `on_timer` only.
    fn is_boosted(&self, _vcpu: VcpuId) -> bool {
        false
    }

    /// Sets the offset of the clock that defines phases: it is `ahead` of the host's time from now
    /// on. Periods that have begun are not changed, so no CPU has to be rescheduled.
    fn set_clock(&mut self, _at: &Moment, _ahead: Span) {}

    /// Returns the longest slice per `period` that admission control would grant now to one more
    /// vCPU with the affinity `allowed` (at least one CPU). It is exact and includes dispatch
    /// overhead. `None` if the policy reserves no slices, or admits every vCPU.
    fn available_slice(&self, _at: &Moment, _period: Span, _allowed: CpuSet) -> Option<Span> {
        None
    }

    /// Returns the sum of all reservations on a CPU, without the overhead that admission counts.
    /// `None` where slices are not reserved on single CPUs.
    fn reserved(&self, _cpu: CpuId) -> Option<CpuShare> {
        None
    }

    /// Returns true if the policy divides slack by weight instead of equally. On a shared host only
    /// the picked vCPU then competes for slack; the other vCPUs of its CPU get none meanwhile.
    fn weighs_slack(&self) -> bool {
        false
    }

    /// Returns what the policy shows to users about a vCPU, as rows of text.
    fn account(&self, vcpu: VcpuId) -> Account;
}

/// Decision of [`Policy::pick`] for one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// The CPU stays idle.
    Idle,
    /// A vCPU runs on the CPU.
    Run {
        /// The vCPU to run. It is eligible for the CPU.
        vcpu: VcpuId,
        /// Longest timeslice. `None`: until the next event.
        limit: Option<Span>,
        /// Ground on which it runs, such as its budget or slack. Recorded in the trace.
        entitlement: Entitlement,
    },
}

/// Cause of the end of a timeslice after which the vCPU is still runnable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimesliceEnd {
    /// The vCPU reached the limit of its `Pick`.
    Limit,
    /// The vCPU yielded the rest of its timeslice.
    Yield,
}

/// Facts about a vCPU for display, one (name, text) pair per row.
pub type Account = Vec<(&'static str, String)>;

/// Reason why a vCPU or its new parameters cannot be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmitError {
    /// Slice and period are invalid by themselves.
    Reservation(ReservationError),
    /// The slice is shorter than the policy can enforce.
    SliceTooShort {
        /// Slice that was demanded.
        slice: Span,
        /// Shortest slice that the policy accepts.
        least: Span,
    },
    /// No single CPU has enough capacity left.
    NoRoom {
        /// Reservation that was demanded.
        asked: Reservation,
        /// Reserved share of the CPU with the most available capacity, rounded up to a millionth.
        promised: CpuShare,
        /// Share of one CPU that may be reserved: one CPU less the policy's reserve.
        capacity: CpuShare,
        /// Number of CPUs tried: all that the vCPU's affinity allows.
        cpus: usize,
        /// Dispatch overhead of the reservation. `None` if the host counts none.
        dispatching: Option<DispatchCost>,
        /// Longest slice with the demanded period that would be admitted instead. Zero if there is
        /// none.
        room: Span,
    },
    /// The vCPU fits on no CPU as a whole, and cannot be split into subtasks that meet their
    /// deadlines.
    NoRoomInParts {
        /// Reservation that was demanded.
        asked: Reservation,
        /// Reserved share of all CPUs that the vCPU's affinity allows, rounded up to a millionth.
        promised: CpuShare,
        /// Share of these CPUs that may be reserved: all of them less the reserve of each.
        capacity: CpuShare,
        /// Number of these CPUs.
        cpus: usize,
        /// Dispatch overhead of the vCPU without a split. `None` if the host counts none.
        dispatching: Option<DispatchCost>,
        /// Longest slice with the demanded period that would be admitted instead. Zero if there is
        /// none.
        room: Span,
    },
    /// The CPUs that the vCPU's affinity allows have not enough capacity left together.
    NoRoomTogether {
        /// Reservation that was demanded.
        asked: Reservation,
        /// Reserved share of these CPUs, rounded up to a millionth.
        promised: CpuShare,
        /// Share of these CPUs that may be reserved: all of them less the reserve of each.
        capacity: CpuShare,
        /// Number of these CPUs.
        cpus: usize,
        /// Dispatch overhead of the reservation. `None` if the host counts none.
        dispatching: Option<DispatchCost>,
        /// Longest slice with the demanded period that would be admitted instead. Zero if there is
        /// none.
        room: Span,
    },
}

/// Cost of dispatching a vCPU that has a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchCost {
    /// Share of a CPU, rounded up to a millionth.
    pub share: CpuShare,
    /// Number of dispatches per second.
    pub a_second: u64,
}

impl From<ReservationError> for AdmitError {
    fn from(error: ReservationError) -> AdmitError {
        AdmitError::Reservation(error)
    }
}

impl AdmitError {
    /// Returns the demand to make instead. `None` if the error is not about capacity.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let (AdmitError::NoRoom { asked, room, .. }
        | AdmitError::NoRoomInParts { asked, room, .. }
        | AdmitError::NoRoomTogether { asked, room, .. }) = self
        else {
            return None;
        };
        let period = asked.period();
        Some(if room.is_zero() {
            alloc::format!(
                "no slice fits now with a period of {period}: release another reservation first"
            )
        } else {
            alloc::format!("use a slice of at most {room} every {period}")
        })
    }
}

impl fmt::Display for AdmitError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdmitError::Reservation(error) => error.fmt(out),
            AdmitError::SliceTooShort { slice, least } => {
                write!(out, "a slice of {slice} is too short: the shortest is {least}")
            }
            AdmitError::NoRoom { asked, promised, capacity, cpus, dispatching, .. } => {
                write_demand(out, *asked, *dispatching)?;
                write!(out, " does not fit: ")?;
                write_reserved(out, *promised, *capacity)?;
                write!(out, " the CPU")?;
                if *cpus > 1 {
                    write!(out, ", and no other CPU has more left")?;
                }
                Ok(())
            }
            AdmitError::NoRoomInParts { asked, promised, capacity, cpus, dispatching, .. } => {
                write_demand(out, *asked, *dispatching)?;
                write!(out, " does not fit, whole or split: ")?;
                write_reserved(out, *promised, *capacity)?;
                write!(out, " {cpus} CPU{}", if *cpus == 1 { "" } else { "s" })
            }
            AdmitError::NoRoomTogether { asked, promised, capacity, cpus, dispatching, .. } => {
                write_demand(out, *asked, *dispatching)?;
                write!(out, " does not fit: ")?;
                write_reserved(out, *promised, *capacity)?;
                write!(out, " {cpus} CPUs together")
            }
        }
    }
}

/// Writes the demanded reservation and its dispatch overhead.
fn write_demand(
    out: &mut fmt::Formatter<'_>,
    asked: Reservation,
    dispatching: Option<DispatchCost>,
) -> fmt::Result {
    let (slice, period, share) = (asked.slice(), asked.period(), asked.share());
    // A share that rounds to zero is not zero, and may be the one that does not fit.
    match share.ppm() {
        0 => write!(out, "{slice} every {period} (under 0.000001cpu)")?,
        _ => write!(out, "{slice} every {period} ({share})")?,
    }
    if let Some(DispatchCost { share, a_second }) = dispatching {
        write!(out, " plus {share} for {a_second} dispatches a second")?;
    }
    Ok(())
}

/// Writes the capacity reserved already and the most that may be reserved.
fn write_reserved(
    out: &mut fmt::Formatter<'_>,
    promised: CpuShare,
    capacity: CpuShare,
) -> fmt::Result {
    write!(out, "{promised} of at most {capacity} is already reserved on")
}

impl core::error::Error for AdmitError {}
