//! What is recorded of a run, and its file format. Everything worth knowing leaves through here;
//! nothing is computed.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod exchange;
mod file;
mod record;

pub use exchange::{Exchange, Fact, Order, Outcome, Used, WrittenTerms};
pub use file::{Header, ReadError, Reader, VcpuName, Writer};
pub use record::{Knowledge, RanEnd, Record, Service, Sink};
