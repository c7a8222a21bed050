//! The scheduling policies, and the one trait behind which they stand.
//!
//! A policy is a value. It is told facts and asked one question: who runs on this CPU, for how
//! long? Facts change it (`&mut self`); the question cannot (`&self`). It never sees a clock, a
//! thread, a random number, a name, a log, a float, or the machine.

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
pub use api::field::{Field, FieldError, Given, Kind, Value, Values};
pub use api::moment::Moment;
pub use api::nearest::nearest;
pub use api::roster::Roster;
pub use api::spec::{Payer, Promise, ShareText, Spec};
pub use api::topology::{Groups, Level, Topology, TopologyError};
pub use policies::{ALL, find};
pub use slackline_units::{Entitlement, Told};

/// Decides which vCPU runs. Facts change a policy; questions never do. Every fact returns the CPUs
/// to ask: those whose answer may be another one now, beside the CPU that the fact concerns, if it
/// concerns one: that on which the vCPU ran last and stops, or is to stop, and the one that rings.
///
/// The caller promises:
/// - `at.now()` never decreases from one call to the next;
/// - occupants are charged up to `at.now()` before a call that concerns their CPU, before a `wake`
///   of a vCPU that last ran there, and before a `ring` that needs their accounts; before the
///   `wake` of one that has not run yet and might run on their CPU, too;
/// - `at` describes the host as it is once the fact being told has happened;
/// - the CPUs that a fact returns are asked, and so is the CPU that the fact concerns: once all
///   facts of the instant have been told, in order of their number; where who runs blocks or yields
///   its CPU is asked at once.
///
/// The policy promises:
/// - `pick` names only a vCPU that `at` calls eligible for that CPU;
/// - an alarm is not in the past, and once rung it is gone or later;
/// - the alarm of a CPU changes only in a call that concerns the CPU or returns it;
/// - the same calls in the same order give the same answers, on every machine.
pub trait Policy: Send {
    /// A vCPU joins, asleep.
    ///
    /// # Errors
    /// When its share cannot be honoured beside those already promised.
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError>;

    /// The share of a vCPU changes. On failure the old share stands. Returns the CPUs to ask again.
    ///
    /// # Errors
    /// When the new share cannot be honoured beside those already promised.
    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError>;

    /// A vCPU is gone, and its id may be used again.
    fn leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet;

    /// A vCPU has work again. Returns the CPUs to ask: those whose occupant may have to give way,
    /// and the one it is bound to if it is bound. If none of them takes the vCPU, the host offers
    /// it to one idle CPU.
    fn wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet;

    /// A vCPU has begun to run.
    fn start(&mut self, _at: &Moment, _vcpu: VcpuId) -> CpuSet {
        CpuSet::NONE
    }

    /// A vCPU used `ran` of CPU time, as measured, since it was last charged.
    ///
    /// On a live machine this may be a vCPU that no CPU was given to: ordinary scheduling let it
    /// have time that nobody claimed.
    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet;

    /// A vCPU reached its limit, or yielded, and still has work.
    fn turn_over(&mut self, _at: &Moment, _vcpu: VcpuId, _why: TurnEnd) -> CpuSet {
        CpuSet::NONE
    }

    /// A vCPU has no more work, or is held although it has some.
    fn block(&mut self, _at: &Moment, _vcpu: VcpuId) -> CpuSet {
        CpuSet::NONE
    }

    /// A vCPU tells something about its tasks, or about I/O that it does for another domain.
    fn hear(&mut self, _at: &Moment, _vcpu: VcpuId, _told: &Told) -> CpuSet {
        CpuSet::NONE
    }

    /// `cpu` is asked next. A policy that keeps what it decides, rather than working its answer out
    /// from what it knows, decides here.
    fn pass(&mut self, _at: &Moment, _cpu: CpuId) -> CpuSet {
        CpuSet::NONE
    }

    /// Who should be on `cpu` from now on, and for how long at most. A turn may have no length.
    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick;

    /// When the policy must be rung for `cpu` even if nothing happens there before.
    fn alarm(&self, _cpu: CpuId) -> Option<Time> {
        None
    }

    /// The CPUs whose occupants' accounts `ring` will look at, beside that of `cpu`.
    fn ring_needs(&self, _at: &Moment, cpu: CpuId) -> CpuSet {
        CpuSet::one(cpu)
    }

    /// The alarm of `cpu` went off.
    fn ring(&mut self, _at: &Moment, _cpu: CpuId) -> CpuSet {
        CpuSet::NONE
    }

    /// The clock by which phases are told is so far ahead of the host's time from now on. Periods
    /// that have begun go on as they are, so no answer is another one.
    fn set_clock(&mut self, _at: &Moment, _ahead: Span) {}

    /// The longest slice in every such period that would be admitted now, for one more who may run
    /// on these CPUs, at least one: exactly, with all that admission counts. None where slices are
    /// not promised, or are promised to everybody who asks.
    fn room(&self, _at: &Moment, _period: Span, _allowed: CpuSet) -> Option<Span> {
        None
    }

    /// Returns the sum of all reservations on a CPU, without the overhead that admission counts.
    /// `None` where slices are not reserved on single CPUs.
    fn reserved(&self, _cpu: CpuId) -> Option<CpuShare> {
        None
    }

    /// Whether spare time is shared out too, not alike: then on a machine that is not ours alone
    /// only who is picked has a part in it, and the others of its CPU have none meanwhile.
    fn weighs_spare_time(&self) -> bool {
        false
    }

    /// What the policy is willing to show about a vCPU, for people to look at.
    fn account(&self, vcpu: VcpuId) -> Account;
}

/// The answer to the one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Nobody. Idle is an answer, not a vCPU.
    Idle,
    /// This vCPU.
    Run {
        /// Who.
        vcpu: VcpuId,
        /// For how long at most; no limit means until something else happens.
        limit: Option<Span>,
        /// By what right.
        entitlement: Entitlement,
    },
}

/// Why a turn is over although there is more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// The limit of the pick was reached.
    Limit,
    /// The vCPU gave the rest of its turn away.
    Yield,
}

/// What a policy is willing to show about a vCPU: a name and a text a row.
pub type Account = Vec<(&'static str, String)>;

/// Why a share cannot be honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmitError {
    /// The slice and period make no sense by themselves.
    Reservation(ReservationError),
    /// The slice is shorter than a policy can keep.
    SliceTooShort {
        /// What was asked for.
        slice: Span,
        /// The shortest there is.
        least: Span,
    },
    /// No CPU has that much left to promise.
    NoRoom {
        /// What was asked for.
        asked: Reservation,
        /// What the CPU with the most room has promised already, rounded up to a millionth.
        promised: CpuShare,
        /// What one CPU may promise: a whole one less the reserve.
        capacity: CpuShare,
        /// How many CPUs were tried: all on which it may run.
        cpus: usize,
        /// What looking after it takes besides, where that is counted.
        dispatching: Option<Dispatching>,
        /// The longest slice of such a period that would be admitted in its place; zero is none.
        room: Span,
    },
    /// It fits on no CPU as a whole, nor in parts of which each would be in time.
    NoRoomInParts {
        /// What was asked for.
        asked: Reservation,
        /// What has been promised on the CPUs on which it may run, rounded up to a millionth.
        promised: CpuShare,
        /// What they may promise: all of them less the reserve of each.
        capacity: CpuShare,
        /// How many they are.
        cpus: usize,
        /// What looking after it takes besides, where that is counted and it is not split.
        dispatching: Option<Dispatching>,
        /// The longest slice of such a period that would be admitted in its place; zero is none.
        room: Span,
    },
    /// The CPUs on which it may run have not that much left to promise together.
    NoRoomTogether {
        /// What was asked for.
        asked: Reservation,
        /// What has been promised on them already, rounded up to a millionth.
        promised: CpuShare,
        /// What they may promise: all of them less the reserve of each.
        capacity: CpuShare,
        /// How many they are.
        cpus: usize,
        /// What looking after it takes besides, where that is counted.
        dispatching: Option<Dispatching>,
        /// The longest slice of such a period that would be admitted in its place; zero is none.
        room: Span,
    },
}

/// What looking after a reservation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatching {
    /// How much of a CPU, rounded up to a millionth.
    pub share: CpuShare,
    /// How often in a second.
    pub a_second: u64,
}

impl From<ReservationError> for AdmitError {
    fn from(error: ReservationError) -> AdmitError {
        AdmitError::Reservation(error)
    }
}

impl AdmitError {
    /// What to ask for instead.
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
    dispatching: Option<Dispatching>,
) -> fmt::Result {
    let (slice, period, share) = (asked.slice(), asked.period(), asked.share());
    // What rounds to nothing is something all the same, and may be what is too much.
    match share.ppm() {
        0 => write!(out, "{slice} every {period} (under 0.000001cpu)")?,
        _ => write!(out, "{slice} every {period} ({share})")?,
    }
    if let Some(Dispatching { share, a_second }) = dispatching {
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
