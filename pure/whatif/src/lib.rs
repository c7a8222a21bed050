//! Predictions from a recording: how its vCPUs would run with other parameters, another policy,
//! other VMs or other CPUs. The design is Slackline's own, not from a paper.
//!
//! A [`Recording`] is read from a trace. Its [`Model`] contains the demand, the parameters and the
//! fitted costs. [`Edit`]s change the model. The model is then written as a scenario, which the
//! simulated host runs. A simulation uses nothing else of the recording.
//!
//! Every model is simulated in two forms. In the *open* form, a job is ready at its recorded time,
//! or when the previous job ends if that is later. In the *closed* form, a job is ready after its
//! recorded think time, counted from the end of the previous job. Real guests behave like a mixture
//! of both, so a prediction is an interval.
//!
//! A VM whose vCPUs left and joined again, or whose CPU time the kernel enforced, is simulated
//! without a prediction ([`Model::left_out`]).
//!
//! [`gate`] simulates the unchanged model first. If neither form agrees with the recording, no
//! prediction is made.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod backlog;
mod cause;
mod change;
mod costs;
mod edit;
mod forecast;
mod form;
mod gate;
mod labels;
mod measure;
mod model;
mod other_names;
mod others;
mod phases;
mod recording;
mod simulate;
mod stays;
mod tasks;
mod verdict;
mod write;

pub use backlog::Backlog;
pub use cause::{Cause, SharesOfHalves};
pub use change::LastChange;
pub use edit::{Edit, EditError};
pub use forecast::{Forecast, Loss, Row, forecast, forecast_with};
pub use form::Form;
pub use gate::{Gate, gate, gate_with};
pub use measure::{Measures, SHARE_PPM};
pub use model::{Model, ModelError, PlannedReservation};
pub use recording::{Recorder, Recording};
pub use simulate::{ForecastError, ModelRun};
pub use stays::{LeftOutReason, LeftOutVm};
pub use tasks::RunBoth;
pub use verdict::{FormGate, GateRow, ORDINARY_SHARE_PPM, Tolerance, WAIT_PERCENT};
pub use write::WrittenScenario;
