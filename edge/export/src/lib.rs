//! A trace in other people's formats. Everything here is a sink: records stream in, and nothing is
//! kept that grows with the length of the run.

#![forbid(unsafe_code)]

mod perfetto;
pub mod proto;

pub use perfetto::Perfetto;
