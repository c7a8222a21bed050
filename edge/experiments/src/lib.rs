//! Runs of scenarios, from one to very many, and the computation of their results. All front ends
//! use this crate.
//!
//! A run is a scenario, a host that produces [`Record`](slackline_trace::Record)s, and sinks that
//! take them. [`header`] has the headers of traces. [`Meters`] compute numbers from records, and
//! [`Outputs`] also write them to files. [`simulate`] runs a scenario on the simulated host and
//! computes its numbers. [`claims`] compares the numbers with the claims of the scenario.
//! [`grid::run`] runs many cases with many seeds on all cores. [`OverSeeds`] has statistics over
//! the seeds. [`axes`] make many scenarios out of one scenario, and [`alert`] is a test that
//! consists of many runs. [`room`] computes the capacity that admission leaves. [`manage`] closes
//! the loop: a rule changes shares between the rounds of a run.
//!
//! No function of this crate prints, uses a terminal or ends the process. Errors are returned, and
//! progress is passed to a callback, which can stop the runs.

#![forbid(unsafe_code)]

pub mod alert;
pub mod axes;
pub mod claims;
pub mod family;
mod files;
pub mod fit;
pub mod grid;
pub mod header;
pub mod manage;
mod metric;
mod numbers;
mod outputs;
mod over_seeds;
pub mod room;
mod simulate;

pub use files::{file_bytes, input_bytes};
pub use metric::NamedMetric;
pub use numbers::{Meters, Numbers, of_nothing};
pub use outputs::{OutputRequest, OutputResults, Outputs};
pub use over_seeds::OverSeeds;
pub use simulate::{
    SimulateError, SimulationResults, simulate, simulate_into, simulate_while, with_seed,
};
