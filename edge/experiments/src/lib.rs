//! Scenarios in, numbers out: what it takes to make one run or very many, for every front end.
//!
//! A run is a scenario, a machine that tells [`Record`](slackline_trace::Record)s, and sinks that
//! take them. [`header`] says what its trace says about itself; [`Meters`] make numbers of its
//! records; [`Outputs`] keep them in files as well. [`simulate`] is all of that for the
//! simulated host. [`claims`] holds the numbers against what the scenario says will
//! come of it. [`grid::run`] makes many runs, of many cases with many seeds, over all cores, and
//! [`OverSeeds`] is what a number of them comes to; [`axes`] make many scenarios of one, and
//! [`alert`] is a test made of such runs.
//!
//! Nothing here prints, asks a terminal anything or ends the process: what is wrong is returned,
//! how far it is is told to whoever wants to know, and who wants to stop says so there.

#![forbid(unsafe_code)]

pub mod alert;
pub mod axes;
pub mod claims;
pub mod family;
pub mod grid;
pub mod header;
mod metric;
mod numbers;
mod outputs;
mod over_seeds;
mod simulate;

pub use metric::NamedMetric;
pub use numbers::{Meters, Numbers, of_nothing};
pub use outputs::{Kept, Outputs, Wanted};
pub use over_seeds::OverSeeds;
pub use simulate::{SimulateError, Simulated, simulate, simulate_while, with_seed};
