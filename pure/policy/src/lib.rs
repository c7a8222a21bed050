//! Scheduling policies and the trait that they implement, [`Policy`].
//!
//! A policy is a value. The host reports events to it and asks it one question: which vCPU runs on
//! a given CPU, and for how long? Events change the policy (`&mut self`); the question does not
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
pub use policies::{ALL, SIMULATED_ONLY, find, is_simulated_only};
pub use slackline_units::{Entitlement, VcpuHint};

/// Decides which vCPU runs on each CPU, and for how long.
///
/// An event handler (`&mut self`) changes the policy; a query (`&self`) does not. An event handler
/// returns the CPUs to reschedule: the CPUs whose `pick` may have changed, except the CPU of the
/// event, which is always rescheduled. The CPU of an event is the CPU on which the vCPU stops or
/// has to stop, or the CPU whose timer expired. Some events have no CPU.
///
/// The caller guarantees:
/// - `at.now()` never decreases from one call to the next.
/// - `at` describes the host after the event that is being reported.
/// - The occupant of a CPU is charged up to `at.now()` before a call that concerns the CPU. Before
///   `on_timer`, the occupants of all CPUs in `timer_charges` are charged. Before `on_wake`, the
///   occupant of the CPU on which the woken vCPU ran last is charged. If the woken vCPU has not run
///   yet, the occupants of all CPUs that its affinity allows are charged.
/// - The CPU of the event and the CPUs that a handler returned are rescheduled after all events of
///   the instant. They are rescheduled in order of CPU number. If the running vCPU blocks or
///   yields, its CPU is rescheduled at once.
///
/// The policy guarantees:
/// - `pick` returns only a vCPU that `at` calls eligible for that CPU.
/// - The timer of a CPU (`next_timer`) is never in the past. After it expired and `on_timer` was
///   called, the timer is unset or set to a later time.
/// - The timer of a CPU changes only in a call that concerns the CPU or that returns the CPU to be
///   rescheduled.
/// - The same calls in the same order give the same results on every host.
pub trait Policy: Send {
    /// Admits a vCPU to the schedule. The vCPU counts as blocked until its first wake.
    ///
    /// # Errors
    /// If the parameters of the vCPU cannot be honoured beside the existing reservations.
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError>;

    /// Handles the join of a vCPU that has just been admitted, and returns the CPUs to reschedule.
    /// The newcomer itself counts as blocked. But its parameters may apply to all vCPUs of its VM,
    /// and so let another vCPU of that VM run.
    fn on_join(&mut self, _at: &Moment, _vcpu: VcpuId) -> CpuSet {
        CpuSet::NONE
    }

    /// Changes the parameters of a vCPU and returns the CPUs to reschedule. After an error the old
    /// parameters stay in force.
    ///
    /// # Errors
    /// If the new parameters cannot be honoured beside the other reservations.
    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError>;

    /// Removes a vCPU and returns the CPUs to reschedule. A later vCPU can get the same id.
    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet;

    /// Handles the wake of a vCPU. Returns the CPUs whose occupant the vCPU may preempt and, if the
    /// vCPU is bound to a CPU, that CPU too. If none of these CPUs picks the vCPU, the host offers
    /// the vCPU to one idle CPU.
    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet;

    /// Handles the start of a run interval: the vCPU now occupies a CPU.
    fn on_start(&mut self, _at: &Moment, _vcpu: VcpuId) -> CpuSet {
        CpuSet::NONE
    }

    /// Charges a vCPU for `ran`, the CPU time that it received since its last charge.
    ///
    /// On a live host the vCPU may have occupied no managed CPU in that time: the kernel's ordinary
    /// scheduler can run the vCPU in slack.
    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet;

    /// Handles the end of a timeslice of a vCPU that stays runnable: the vCPU reached the limit of
    /// its `pick`, or it yielded.
    fn on_timeslice_end(&mut self, _at: &Moment, _vcpu: VcpuId, _why: TimesliceEnd) -> CpuSet {
        CpuSet::NONE
    }

    /// Handles a block: the vCPU has no more work, or the host keeps a vCPU with work from running.
    fn on_block(&mut self, _at: &Moment, _vcpu: VcpuId) -> CpuSet {
        CpuSet::NONE
    }

    /// Handles a hint from a vCPU about its tasks, or about I/O that it does for another VM.
    fn on_hint(&mut self, _at: &Moment, _vcpu: VcpuId, _told: &VcpuHint) -> CpuSet {
        CpuSet::NONE
    }

    /// Prepares the next `pick` for `cpu`. A policy that stores its decisions makes its decision in
    /// this call. A policy that decides in `pick` itself does nothing.
    fn prepare_pick(&mut self, _at: &Moment, _cpu: CpuId) -> CpuSet {
        CpuSet::NONE
    }

    /// Returns the vCPU to run on `cpu` from now on, and the limit of its timeslice. The limit may
    /// be zero.
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

    /// Returns true if a vCPU is boosted: it precedes other vCPUs now because of its last wake-up.
    /// While the vCPU runs, a boost ends only in `charge` or `on_timer`.
    fn is_boosted(&self, _vcpu: VcpuId) -> bool {
        false
    }

    /// Sets the clock to which periods with a fixed phase are aligned. From now on that clock is
    /// ahead of the host's time by `ahead`. Periods that have begun are not changed, so no CPU has
    /// to be rescheduled.
    fn set_clock(&mut self, _at: &Moment, _ahead: Span) {}

    /// Returns the longest slice per `period` that admission control would grant now to one more
    /// vCPU whose affinity is `allowed` (at least one CPU). The result is exact to the nanosecond
    /// and leaves capacity for the dispatch overhead of that vCPU. `None` if the policy reserves no
    /// slices, or admits every vCPU.
    fn available_slice(&self, _at: &Moment, _period: Span, _allowed: CpuSet) -> Option<Span> {
        None
    }

    /// Returns the sum of slice/period of all reservations on a CPU, without dispatch overhead.
    /// `None` if the policy does not reserve slices on single CPUs.
    fn reserved(&self, _cpu: CpuId) -> Option<CpuShare> {
        None
    }

    /// Returns true if the policy divides slack by weight, false if equally. If true, a vCPU on a
    /// shared host can receive slack only while it is the picked vCPU of a CPU. The other vCPUs of
    /// that CPU receive none until they are picked.
    fn weighs_slack(&self) -> bool {
        false
    }

    /// Returns the policy's state of a vCPU as (name, text) rows, for display.
    fn account(&self, vcpu: VcpuId) -> Account;
}

/// Decision of [`Policy::pick`] for one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// No vCPU runs: the CPU stays idle.
    Idle,
    /// A vCPU runs on the CPU.
    Run {
        /// The vCPU to run. It must be eligible for the CPU, according to the state that the host
        /// reported.
        vcpu: VcpuId,
        /// Longest timeslice. With `None` the vCPU runs until the next event.
        limit: Option<Span>,
        /// Entitlement by which the vCPU runs: its budget or slack. Recorded in the trace.
        entitlement: Entitlement,
    },
}

/// Cause of the end of a timeslice after which the vCPU is still runnable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimesliceEnd {
    /// The vCPU has run for as long as its `Pick` allows.
    Limit,
    /// The vCPU yielded the rest of its timeslice.
    Yield,
}

/// State of a vCPU for display, one (name, text) pair per row.
pub type Account = Vec<(&'static str, String)>;

/// Reason why a vCPU or its new parameters cannot be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmitError {
    /// Slice and period do not form a valid reservation, for example because the slice exceeds the
    /// period.
    Reservation(ReservationError),
    /// The slice is shorter than the policy can enforce.
    SliceTooShort {
        /// Slice that was requested.
        slice: Span,
        /// Shortest slice that the policy accepts.
        least: Span,
    },
    /// The reservation fits on no single CPU.
    NoRoom {
        /// Reservation that was requested.
        asked: Reservation,
        /// Reserved share of the CPU with the most available capacity, rounded up to a millionth.
        promised: CpuShare,
        /// Share of one CPU that may be reserved: one CPU minus the policy's reserve.
        capacity: CpuShare,
        /// Number of CPUs that were tried: all CPUs that the vCPU's affinity allows.
        cpus: usize,
        /// Dispatch overhead of the requested reservation. `None` if the host states no cost of a
        /// dispatch.
        dispatching: Option<DispatchCost>,
        /// Longest slice with the requested period that would be admitted instead. Zero if no slice
        /// would be.
        room: Span,
        /// Time from now until the reservation fits, if no reservation changes before. Until then,
        /// shares that vCPUs gave up stay reserved, because these vCPUs have used more CPU time
        /// than they have accrued. Zero if the reservation would not fit even then, or if the
        /// policy does not compute this time.
        free_after: Span,
    },
    /// The reservation fits on no CPU as a whole, and it cannot be split into subtasks that meet
    /// their deadlines.
    NoRoomInParts {
        /// Reservation that was requested.
        asked: Reservation,
        /// Total reserved share of the CPUs that the vCPU's affinity allows, rounded up to a
        /// millionth.
        promised: CpuShare,
        /// Total share that may be reserved on the CPUs that the affinity allows: each CPU minus
        /// the policy's reserve.
        capacity: CpuShare,
        /// Number of CPUs that the vCPU's affinity allows.
        cpus: usize,
        /// Dispatch overhead of the reservation if it were not split. `None` if the host states no
        /// cost of a dispatch.
        dispatching: Option<DispatchCost>,
        /// Longest slice with the requested period that would be admitted instead. Zero if no slice
        /// would be.
        room: Span,
    },
    /// A set of CPUs has too little capacity left in total. The set contains all CPUs that the
    /// vCPU's affinity allows, and can contain more.
    NoRoomTogether {
        /// Reservation that was requested.
        asked: Reservation,
        /// Total reserved share of the vCPUs that may run only on CPUs of the set, rounded up to a
        /// millionth.
        promised: CpuShare,
        /// Total share that may be reserved on the CPUs of the set: each CPU minus the policy's
        /// reserve.
        capacity: CpuShare,
        /// Number of CPUs in the set.
        cpus: usize,
        /// Dispatch overhead of the requested reservation. `None` if the host states no cost of a
        /// dispatch.
        dispatching: Option<DispatchCost>,
        /// Longest slice with the requested period that would be admitted instead. Zero if no slice
        /// would be.
        room: Span,
    },
}

/// Cost of dispatching a vCPU with a reservation, as shown in an admission error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchCost {
    /// Dispatch cost as a share of a CPU, rounded up to a millionth.
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
    /// Returns a hint that names a smaller reservation to request. `None` if the error is not about
    /// capacity.
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
                    write!(out, ", and no other CPU has more capacity left")?;
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

/// Writes the requested reservation and its dispatch overhead.
fn write_demand(
    out: &mut fmt::Formatter<'_>,
    asked: Reservation,
    dispatching: Option<DispatchCost>,
) -> fmt::Result {
    let (slice, period, share) = (asked.slice(), asked.period(), asked.share());
    // A share below 0.5 ppm rounds to zero. "0cpu does not fit" would be misleading.
    match share.ppm() {
        0 => write!(out, "{slice} every {period} (under 0.000001cpu)")?,
        _ => write!(out, "{slice} every {period} ({share})")?,
    }
    if let Some(DispatchCost { share, a_second }) = dispatching {
        write!(out, " plus {share} for {a_second} dispatches a second")?;
    }
    Ok(())
}

/// Writes the share that is reserved already and the share that may be reserved in all.
fn write_reserved(
    out: &mut fmt::Formatter<'_>,
    promised: CpuShare,
    capacity: CpuShare,
) -> fmt::Result {
    write!(out, "{promised} of at most {capacity} is already reserved on")
}

impl core::error::Error for AdmitError {}
