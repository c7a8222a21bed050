//! The workload manager: changes reservations as the demand of VMs changes, and predicts each
//! change before it is made. The design is Slackline's own, not from a paper.
//!
//! Each *round* takes a few seconds. At the end of a round the [`Manager`] gets the demand of each
//! VM in each of its periods, and proposes changes of single reservations. For each proposal, a
//! [`Predictor`] simulates the last seconds with the change and without. The manager makes the
//! first change whose prediction is acceptable. The next round tests this change: if the
//! measurements contradict the prediction, the manager undoes the change. The service compares a
//! canary (the VM that a plan changes first) with its prediction by the same rule.
//!
//! Even if measurements or predictions are wrong, no change sets a reservation below its floor or
//! above its ceiling. No rise makes the sum of the reservations exceed the capacity.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod controller;
mod decision;
mod input;
mod limits;
mod proposal;
mod target;

pub use controller::Manager;
pub use decision::{ChangeReason, Decision};
pub use input::{Goals, PredictedVm, Predictor, Round, VmRound};
pub use limits::RoundError;
pub use proposal::Pace;
pub use target::{quantile, target};
