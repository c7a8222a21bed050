//! Records of a run, and their file format. This crate stores observations and computes nothing
//! from them.
//!
//! A *record* is an event for readers and metrics. An *exchange* is one message between the
//! hardware and the host that drives the policy. All exchanges in their order are enough to replay
//! a run.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod effort;
mod encode;
mod exchange;
mod header;
mod host_thread;
mod read;
mod record;
mod sink;
mod write;

pub use effort::{Effort, Implausible, TooManyPoints};
pub use exchange::{CpuUse, Exchange, Fact, KeptFact, Order, Outcome, WrittenTerms};
pub use header::Header;
pub use host_thread::{HostThread, HostThreadId, HostThreadKind, Note};
pub use read::{IndexedTrace, ReadError, Reader};
pub use record::{Knowledge, OffCpu, OverheadKind, RanEnd, Record, Service, WakeMark};
pub use sink::{Entry, Sink, VcpuName};
pub use write::{Checksum, Writer};
