//! Parameters of the policy and of its vCPUs.

use alloc::vec::Vec;

use slackline_units::{CpuShare, Periods, Reservation, ReservationError};

use crate::{Field, FieldError, Promise, Values};

pub(super) const RESERVE: Field =
    Field::share("reserve", "0.05cpu", CpuShare::ONE, "part of each CPU that is never reserved");
pub(super) const PLACE: Field = Field::choice(
    "place",
    &["spread", "pack", "split"],
    "CPU of a new vCPU: the one with most capacity left, the first that fits, or several",
);
pub(super) const QUANTUM: Field =
    Field::positive_span("quantum", "10ms", "length of a timeslice in slack");

pub(super) const SLICE: Field =
    Field::required_span("slice", "CPU time of each vCPU in every period");
pub(super) const PERIOD: Field =
    Field::required_span("period", "length of a period; the slice is due by its end");
pub(super) const EXACT: Field = Field::flag("exact", "hard limit: no slack, even if the CPU idles");
pub(super) const OVERRUN: Field = Field::choice(
    "overrun",
    &["forgive", "repay"],
    "an overrun is paid from slack if there is some, or always deducted from later slices",
);

pub(super) const PHASE: Field =
    Field::maybe_span("phase", "delay of each period's start after a multiple of the period");
pub(super) const SPREAD: Field = Field::choice(
    "spread",
    &["even", "use"],
    "unused budget is forfeited, or lent to vCPUs of the same VM",
);

pub(super) const UNBLOCKING: Field = Field::choice(
    "unblocking",
    &["proportional", "new-period"],
    "a vCPU that wakes keeps its period and a part of its budget, or starts a new period",
);

/// Returns true if a new period begins when a vCPU without a phase wakes.
pub(super) fn begins_at_wake(values: &Values) -> bool {
    values.choice(&UNBLOCKING) == "new-period"
}

/// Returns an error if splitting is combined with periods that begin at wakes, since subtasks run
/// at fixed times of a period. Otherwise returns `None`.
pub(super) fn conflict(values: &Values) -> Option<FieldError> {
    let needs: Vec<_> = alloc::vec![(&UNBLOCKING, "proportional")];
    let is_split = values.choice(&PLACE) == "split";
    (is_split && begins_at_wake(values)).then_some(FieldError::Alone(&PLACE, "split", needs))
}

/// Returns the reservation that the parameters of a vCPU make.
pub(super) fn promise(share: &Values) -> Result<Option<Promise>, ReservationError> {
    let Periods { reservation, phase } = periods(share)?;
    // A borrower may exceed its slice, even if all vCPUs of the VM have a hard limit.
    let bounded = share.flag(&EXACT);
    let by_use = is_by_use(share);
    Ok(Some(Promise { reservation, exact: bounded && !by_use, bounded, by_use, phase }))
}

/// Returns the slice, the period and the phase of a vCPU.
pub(super) fn periods(share: &Values) -> Result<Periods, ReservationError> {
    let reservation = Reservation::new(share.span(&SLICE), share.span(&PERIOD))?;
    Ok(Periods { reservation, phase: share.maybe_span(&PHASE) })
}

/// Returns true if the vCPU may borrow unused budget of its siblings (`spread = "use"`).
pub(super) fn is_by_use(share: &Values) -> bool {
    share.choice(&SPREAD) == "use"
}
