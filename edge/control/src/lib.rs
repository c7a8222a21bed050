//! The service's words as others see them: what is asked over HTTP and on the link between front
//! and core, what is answered, what is refused, and a client that asks.
//!
//! What is read from strangers knows its keys and refuses all others. Lengths of time are texts
//! with a unit (`"2ms"`); answers carry the same in nanoseconds, as `..._ns`.

#![forbid(unsafe_code)]

mod access;
pub mod client;
pub mod convert;
pub mod link;
mod numbers;
pub mod place;
mod problem;
mod replies;
mod requests;
mod times;

pub use access::{Access, Grant, Role};
pub use numbers::{
    BOUNDS, CpuNumbers, Histogram, Numbers, ProcessNumbers, ReservationNumbers, VcpuNumbers,
};
pub use problem::{Kind, NoRoom, OverBudget, Problem};
pub use replies::{
    AppliedChange, Clock, Cost, Cpu, Delivered, Event, Health, Host, Machine, Overload,
    Reservation, Room, RoomOn, State, Thread, money,
};
pub use requests::{Apply, Change, GangWord, NAME, Wanted};
pub use slackline_service::{Happened, gang};
pub use times::{Length, Phase, Share};

/// Where the daemon listens unless somebody says otherwise.
pub const SOCKET: &str = "/run/slackline/slackline.sock";

/// How many reservations or events an answer has at most.
pub const PAGE: usize = 500;

/// The most that the body of a request may have, in bytes.
pub const LONGEST_BODY: usize = 16 * 1024;

/// Maximum size of a list of reservations to apply, in bytes: 1,000 of them fit.
pub const LONGEST_LIST: usize = 384 * 1024;
