//! The workload manager: changes reservations as the demand of VMs changes, and predicts each
//! change before it is made. The design is Slackline's own, not from a paper.
//!
//! Each *round* takes a few seconds. At the end of a round the [`Manager`] gets the demand of each
//! VM per period, as exact counts, and proposes one change. A [`Predictor`] simulates the last
//! seconds with the change and without. The change is made only if the prediction is better by a
//! margin. The next round tests the change. If the VM does not do as predicted, the manager undoes
//! the change. The service uses the same rule for a canary, the change of a plan that is tested
//! before all others.
//!
//! After every round the following holds, even if measurements or predictions are wrong. No change
//! sets a reservation below its floor or above its ceiling. No change makes the sum of the
//! reservations exceed the capacity.

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
