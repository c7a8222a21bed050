//! Metrics that are computed from a trace.
//!
//! A [`Meter`] is a [`slackline_trace::Sink`]. The meter adds records up into sums and histograms,
//! and [`Meter::view`] returns a [`Summary`] of them at any time. The size of a meter does not
//! depend on the length of the run. A [`MovingWindow`] returns a summary of the most recent part of
//! the run only. The numbers of a summary have names, for programs ([`Summary::fields`]) and for
//! claims ([`Summary::lookup`]).
//!
//! The measured window lasts from the end of the warm-up to the end of the run. Only the part of a
//! time interval that lies within the window counts. A run interval that began before the window is
//! divided in proportion. Everything else (a wake, a period, a second, a job, a switch, a change)
//! counts if it begins in the window. A number that the host could not observe is `None`.
//!
//! Quantiles of up to 1,024 values are exact. Quantiles of more values are less than a thousandth
//! too high. The worst value is always exact. A single value has no quantiles in a summary;
//! [`Summary::lookup`] returns the value itself.
//!
//! Each number is defined where it is computed: shares and errors in `share`, deadlines in
//! `deadline`, delays and sums in `vcpu`.
//!
//! The crate uses no floating point.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod alert;
mod cpu_seconds;
mod cumulative;
mod deadline;
mod distribution;
mod fields;
mod glossary;
mod jobs;
mod lookup;
mod meter;
mod over_runs;
mod over_time;
mod overhead;
mod promise;
mod schedule;
mod seconds;
mod share;
mod shared;
mod split;
mod stray;
mod summary;
mod vcpu;
mod why;
mod window;
mod xenmon;

pub use alert::{AllocationErrors, WholeSeconds, allocation_error};
pub use cpu_seconds::{CpuSecond, CpuSeconds};
pub use cumulative::Cumulative;
pub use distribution::{Distribution, ErrorDistribution, PartDistribution};
pub use fields::{Field, FieldValue};
pub use glossary::{GLOSSARY, Glossary, Term};
pub use jobs::{ClientSummary, TaskSummary};
pub use lookup::{Measure, Unit, UnknownMetric};
pub use meter::Meter;
pub use over_runs::OverRuns;
pub use over_time::OverTime;
pub use overhead::OverheadTimes;
pub use schedule::{
    BLOCKS, Change, Difference, LEAST_SAMPLES, Metric, MetricUnit, Schedule, ScheduleMeter,
    difference,
};
pub use stray::{StrayRecord, Unknown};
pub use summary::{CpuSummary, SharedCpu, Summary, VcpuSummary};
pub use why::{Answer, Blame, Check, Culprit, CulpritFinder, Gap};
pub use window::MovingWindow;
pub use xenmon::{POINT, Point, XenMon, XenMonDomain, XenMonSummary};
