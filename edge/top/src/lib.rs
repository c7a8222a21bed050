//! The screen of `slackline top`: a table of VMs that is drawn again as their numbers change.
//!
//! A source thread sends [`Snapshot`]s and reads the user's [`Steering`]. [`run`] draws them until
//! the user quits. It draws only after a snapshot or a key, and only changed cells are sent to the
//! terminal. Numbers are formatted here and never computed: a source gives them in parts per
//! million and nanoseconds.

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
