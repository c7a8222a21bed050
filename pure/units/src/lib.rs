//! Time, shares and ids: each quantity that crosses a crate boundary in Slackline, as a type of its
//! own.
//!
//! Nothing in this crate reads a clock or the host. A bare integer becomes a quantity only in this
//! crate, through a constructor that names its unit. The operators `+`, `-` and `*` panic on
//! overflow and never wrap.

#![no_std]
#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

#[cfg(test)]
extern crate alloc;

mod enforcement;
mod entitlement;
pub mod frame;
mod grid;
mod id;
mod share;
mod time;
mod told;
mod unseen;
mod urgency;
mod virt;
mod wall_time;
mod weight;

pub use enforcement::{Enforcement, ParseEnforcementError};
pub use entitlement::Entitlement;
pub use grid::{GridClock, Periods};
pub use id::{ClientId, CpuId, CpuSet, CpuSetIter, DomId, TaskId, VcpuId};
pub use share::{CpuShare, ParseShareError, Reservation, ReservationError};
pub use time::{ParseSpanError, Span, Time};
pub use told::{Pending, TASKS, Task, Tasks, VcpuHint};
pub use unseen::{UNSEEN, is_unseen};
pub use urgency::Urgency;
pub use virt::{Pace, VirtualSpan, VirtualTime};
pub use wall_time::{ParseWallTimeError, WallTime};
pub use weight::{ParseWeightError, Weight};
