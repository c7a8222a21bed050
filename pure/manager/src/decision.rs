//! A decision of the manager, with the reason for it.

use std::fmt;

use slackline_service::Name;
use slackline_units::{CpuShare, Span};

use crate::input::{PredictedVm, Round, uncovered};
use crate::proposal::Proposal;

/// Change of one reservation, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Number of the round.
    pub round: u64,
    /// VM whose reservation changes.
    pub name: Name,
    /// Share before the change.
    pub from: CpuShare,
    /// Share after the change.
    pub to: CpuShare,
    /// Reason for the change.
    pub why: ChangeReason,
}

/// Reason for a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeReason {
    /// The VM needs a larger reservation.
    Rise {
        /// Number of missed periods with the old share. This is the larger of two numbers: the
        /// misses predicted for the last `seconds` seconds, and the misses measured in the last
        /// round.
        misses: u64,
        /// Length of the time that the predictions cover, in whole seconds.
        seconds: u64,
        /// Predicted number of missed periods with the new share.
        predicted: u64,
        /// Number of periods in the last round in which the demand exceeded the reservation.
        uncovered: u64,
        /// VM whose reservation was reduced in the round before to make room, and the share that
        /// this VM gave up. `None` if no VM made room.
        from: Option<(Name, CpuShare)>,
    },
    /// The VM needs a smaller reservation.
    Fall {
        /// Demand of the VM in the last round, in percent of its old reservation.
        used: u64,
        /// Predicted number of missed periods with the new share.
        predicted: u64,
    },
    /// Another VM needs capacity that this VM gives up.
    Room {
        /// VM that needs the capacity.
        of: Name,
        /// Predicted number of missed periods with the new share.
        predicted: u64,
    },
    /// The measurements after the last change contradict its prediction. The text names the
    /// difference.
    Undo(String),
}

/// Returns the reason for a proposed change. `before` and `after` are the predictions without and
/// with this change. `given` is the change that was made in the round before, or `None` if there
/// was none.
pub(crate) fn why(
    round: &Round,
    it: &Proposal,
    (before, after): (&[PredictedVm], &[PredictedVm]),
    given: Option<&Decision>,
) -> ChangeReason {
    let (vm, predicted) = (&round.vms[it.vm], after[it.vm].misses);
    if let Some(of) = it.room_for {
        return ChangeReason::Room { of: round.vms[of].name.clone(), predicted };
    }
    if it.to < vm.share {
        let slice = u128::from(vm.period.ns()) * u128::from(vm.share.ppm()) / 1_000_000;
        let reserved = (slice * u128::from(vm.periods())).max(1);
        let used =
            u64::try_from(u128::from(vm.demanded().ns()) * 100 / reserved).unwrap_or(u64::MAX);
        return ChangeReason::Fall { used, predicted };
    }
    let of_this =
        |made: &&Decision| matches!(&made.why, ChangeReason::Room { of, .. } if *of == vm.name);
    let from = given.filter(of_this).map(|made| (made.name.clone(), made.from.less(made.to)));
    let seconds = before[it.vm].length / Span::from_secs(1);
    let misses = before[it.vm].misses.max(vm.misses);
    ChangeReason::Rise { misses, seconds, predicted, uncovered: uncovered(vm, vm.share), from }
}

impl fmt::Display for Decision {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decision { name, from, to, why, .. } = self;
        let (old, new) = (Percent(*from), Percent(*to));
        write!(out, "{name} {old} to {new} %: ")?;
        match why {
            ChangeReason::Rise { misses: 0, uncovered: 0, predicted, from, .. } => {
                write!(
                    out,
                    "its floor or goal needs a larger share, {misses} predicted",
                    misses = misses(*predicted)
                )?;
                taken(out, from.as_ref())
            }
            ChangeReason::Rise { misses: 0, uncovered, predicted, from, .. } => {
                let periods = CountedNoun(*uncovered, "period", "s");
                write!(
                    out,
                    "{periods} demanded more than reserved, {misses} predicted",
                    misses = misses(*predicted)
                )?;
                taken(out, from.as_ref())
            }
            ChangeReason::Rise { misses: missed, seconds, predicted, from, .. } => {
                let (missed, predicted) = (misses(*missed), misses(*predicted));
                write!(out, "{missed} in {seconds} s, {predicted} predicted")?;
                taken(out, from.as_ref())
            }
            ChangeReason::Fall { used, predicted } => {
                let predicted = misses(*predicted);
                write!(out, "demand was {used} % of the old share, {predicted} predicted")
            }
            ChangeReason::Room { of, predicted } => {
                let misses = misses(*predicted);
                write!(out, "makes room for {of}, {misses} predicted")
            }
            ChangeReason::Undo(why) => write!(out, "undone, {why}"),
        }
    }
}

fn taken(out: &mut fmt::Formatter<'_>, from: Option<&(Name, CpuShare)>) -> fmt::Result {
    match from {
        Some((name, part)) => {
            let part = Percent(*part);
            write!(out, "; {name}'s reservation fell by {part} points")
        }
        None => Ok(()),
    }
}

fn misses(count: u64) -> CountedNoun {
    CountedNoun(count, "miss", "es")
}

/// A number, a noun in the singular, and the ending that makes this noun plural.
struct CountedNoun(u64, &'static str, &'static str);

impl fmt::Display for CountedNoun {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CountedNoun(count, noun, plural) = self;
        write!(out, "{count} {noun}{}", if *count == 1 { "" } else { plural })
    }
}

/// A share in percent of a CPU, with one decimal place if it is not a whole number.
struct Percent(CpuShare);

impl fmt::Display for Percent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0.ppm() + 500) / 1_000;
        match tenths % 10 {
            0 => write!(out, "{}", tenths / 10),
            tenth => write!(out, "{}.{tenth}", tenths / 10),
        }
    }
}
