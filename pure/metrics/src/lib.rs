//! A trace in, numbers out.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod deadline;
mod distribution;
mod fields;
mod layout;
mod lookup;
mod meter;
mod numbers;
mod promise;
mod share;
mod split;
mod summary;
mod table;
mod vcpu;

pub use distribution::{Distribution, ErrorDistribution, PartDistribution};
pub use fields::{Field, FieldValue};
pub use lookup::{Measure, UnknownMetric};
pub use meter::Meter;
pub use summary::{CpuSummary, Summary, VcpuSummary};
pub use table::side_by_side;
