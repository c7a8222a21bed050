//! Predictions from a recording: the demand of its vCPUs under other parameters, another policy,
//! other neighbours or other CPUs. Ours, not from a paper.
//!
//! A [`Recording`] is read from a trace. A [`Model`] of it holds demand, parameters and fitted
//! costs, takes [`Edit`]s and writes scenarios, which the simulated host runs. Nothing else of the
//! recording goes into a simulation.
//!
//! Every model is simulated twice. In the *open* form a job is ready at its recorded time, or when
//! the job before ends. In the *closed* form a job is ready after the recorded think time, counted
//! from the end of the job before. Real guests lie between the two, so a prediction is an interval.
//!
//! [`gate`] simulates the unchanged model first. If neither form repeats what was recorded, no
//! prediction is made.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod cause;
mod edit;
mod forecast;
mod form;
mod gate;
mod measure;
mod model;
mod others;
mod recording;
mod simulate;
mod verdict;
mod write;

pub use cause::Cause;
pub use edit::{Edit, EditError};
pub use forecast::{Forecast, Loss, Row, forecast};
pub use form::Form;
pub use gate::{Gate, gate};
pub use measure::Measures;
pub use model::{Model, ModelError, PlannedReservation};
pub use recording::{Recorder, Recording};
pub use simulate::ForecastError;
pub use verdict::{FormGate, GateRow, ORDINARY_SHARE_PPM, SHARE_PPM, Tolerance, WAIT_PERCENT};
pub use write::WrittenScenario;
