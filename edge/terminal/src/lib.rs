//! Numbers and traces as people see them in a terminal. Nothing is computed here that is not shown
//! at once, and nothing that is shown is ever read back.
//!
//! [`summary`] makes tables of what a run amounted to, [`side_by_side`] of several runs, [`xenmon`]
//! of XenMon's metrics, [`plain`] of anything: rounded, in units that whole
//! columns share. [`Timeline`] draws who ran when, [`Listing`] and [`RunList`] write it down: three
//! sinks that a trace streams into.
//!
//! There is no float anywhere: what people see is rounded as integers are.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod layout;
mod list;
mod numbers;
mod over_runs;
mod paint;
mod passes;
mod plain;
mod summary;
mod timeline;
mod xenmon;

pub use layout::Cell;
pub use list::{Listing, RunList, RunListError, why};
pub use numbers::{part_percent, percent};
pub use over_runs::{Case, over_points, over_runs};
pub use paint::Paint;
pub use passes::{Passes, SchedulingPass, entitled};
pub use plain::{Plain, plain};
pub use summary::{side_by_side, summary};
pub use timeline::{Glyphs, Timeline, WindowError};
pub use xenmon::xenmon;
