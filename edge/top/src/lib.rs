//! The screen of `slackline top`: a table of VMs that is drawn again as their numbers change.
//!
//! A source, which runs on another thread, sends [`Snapshot`]s and follows the user's choices
//! ([`Steering`]). [`run`] draws the snapshots until the user quits. It draws only after a new
//! snapshot or a key, and sends only changed cells to the terminal. This crate formats numbers but
//! computes none: sources give them in parts per million and nanoseconds.

#![forbid(unsafe_code)]

mod columns;
mod screen;
mod snapshot;
mod terminal;
mod view;

pub use columns::SortKey;
pub use screen::draw;
pub use snapshot::{CpuLine, Snapshot, VmRow};
pub use terminal::{Steering, run};
pub use view::{Key, View};
