//! What is recorded of a run, and its file format. Everything worth knowing leaves through here;
//! nothing is computed.
//!
//! A *record* tells what happened, for people and for metrics. An *exchange* is one thing that
//! passed between a machine and its host; all of them, in their order, are enough to replay a run.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod effort;
mod encode;
mod exchange;
mod header;
mod read;
mod record;
mod sink;
mod write;

pub use effort::{Effort, Implausible};
pub use exchange::{Exchange, Fact, KeptFact, Order, Outcome, Used, WrittenTerms};
pub use header::Header;
pub use read::{ReadError, Reader};
pub use record::{Knowledge, OverheadKind, RanEnd, Record, Service};
pub use sink::{Entry, Named, Sink};
pub use write::{Checksum, Writer};
