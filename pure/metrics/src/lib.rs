//! A trace in, numbers out.
//!
//! A [`Meter`] is a [`slackline_trace::Sink`]: it folds records as they come into sums and
//! histograms, and [`Meter::view`] makes a [`Summary`] of them, at any time. Its size does not
//! depend on how long the run is. A [`MovingWindow`] does the same for the last while only. What is
//! in a summary has names, for programs ([`Summary::fields`]) and for claims ([`Summary::lookup`]).
//!
//! The measured window is from the end of the warm-up to the end of the run. Amounts of time count
//! as far as they lie in it: a stretch over its start is split in proportion. Everything else (a
//! wake, a period, a second, a job, a switch, a change) counts if it begins in it. What the machine
//! could not see is `None`; it is never turned into a number.
//!
//! Quantiles are of the values themselves up to a thousand of them, and then less than a
//! thousandth too high; the worst is always exact. A single value has none.
//!
//! How each number is defined stands where it is computed: shares and errors in `share`, deadlines
//! in `deadline`, delays and sums in `vcpu`.
//!
//! There is no float anywhere.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod alert;
mod cpu_seconds;
mod deadline;
mod distribution;
mod fields;
mod glossary;
mod lookup;
mod meter;
mod over_runs;
mod over_time;
mod overhead;
mod promise;
mod seconds;
mod share;
mod shared;
mod split;
mod stray;
mod summary;
mod vcpu;
mod window;
mod xenmon;

pub use alert::{AllocationErrors, WholeSeconds, allocation_error};
pub use cpu_seconds::{CpuSecond, CpuSeconds};
pub use distribution::{Distribution, ErrorDistribution, PartDistribution};
pub use fields::{Field, FieldValue};
pub use glossary::{GLOSSARY, Glossary, Term};
pub use lookup::{Measure, Unit, UnknownMetric};
pub use meter::Meter;
pub use over_runs::OverRuns;
pub use over_time::OverTime;
pub use overhead::OverheadTimes;
pub use stray::{StrayRecord, Unknown};
pub use summary::{CpuSummary, SharedCpu, Summary, VcpuSummary};
pub use window::MovingWindow;
pub use xenmon::{POINT, Point, XenMon, XenMonDomain, XenMonSummary};
