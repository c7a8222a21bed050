//! Numbers and traces as text for a terminal. Values that are computed here are only for display.
//!
//! [`summary`] makes tables of one run, [`side_by_side`] of several runs, [`xenmon`] of XenMon's
//! metrics, and [`plain`] of arbitrary columns. Values are rounded, and all values of a column have
//! the same unit. [`Timeline`] draws when each vCPU ran, and [`Listing`] and [`RunList`] list the
//! times. These three are sinks for a trace.
//!
//! No floating-point numbers are used: values are rounded as integers.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod by_metric;
mod layout;
mod list;
mod numbers;
mod over_runs;
mod paint;
mod passes;
mod plain;
mod shown;
mod summary;
mod timeline;
mod xenmon;

pub use by_metric::{MetricValues, by_metric};
pub use layout::Cell;
pub use list::{Listing, RunList, RunListError, why};
pub use numbers::{milliseconds, part_percent, percent};
pub use over_runs::{Case, over_points, over_runs};
pub use paint::Paint;
pub use passes::{Passes, SchedulingPass, entitled};
pub use plain::{Plain, plain};
pub use shown::shown;
pub use summary::{side_by_side, summary};
pub use timeline::{Glyphs, Timeline, WindowError};
pub use xenmon::xenmon;
