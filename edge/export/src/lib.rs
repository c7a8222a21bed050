//! A trace in other people's formats, and as a picture in the terminal. Everything here is a sink:
//! records stream in, and nothing is kept that grows with the length of the run.

#![forbid(unsafe_code)]

mod columns;
mod list;
mod perfetto;
mod picture;
pub mod proto;
mod ruler;
mod timeline;

pub use list::{Listing, RunList, RunListError};
pub use perfetto::Perfetto;
pub use timeline::{Glyphs, Paint, Timeline, WindowError};
