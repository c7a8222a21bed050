//! Wire format of the reservation service, and a client. Requests, answers and refusals are sent
//! over HTTP, and over the link between the front process and the core process of the daemon.
//!
//! Parsers of untrusted input refuse unknown keys. A time is a text with a unit (`"2ms"`). Answers
//! contain each time also in nanoseconds, in a field with a name that ends in `_ns`.

#![forbid(unsafe_code)]

mod access;
pub mod client;
pub mod convert;
mod flight;
pub mod link;
mod numbers;
mod periods;
pub mod place;
mod plans;
mod predictions;
mod problem;
mod replies;
mod requests;
mod timeline;
mod times;
mod whatif;

pub use access::{Access, Grant, Role};
pub use flight::{CulpritTime, Culprits, Gap, Incident, KernelCheck, Recording, VcpuCulprits};
pub use numbers::{
    BOUNDS, CpuNumbers, Histogram, Numbers, ProcessNumbers, ReservationNumbers, VcpuNumbers,
};
pub use periods::{PredictedPeriods, RecordedPeriods, VmPeriods};
pub use plans::{AppliedPlan, Canary, PlannedChange};
pub use predictions::{Prediction, PredictionOutcome, PredictionRecord};
pub use problem::{Kind, NoRoom, OverBudget, Problem};
pub use replies::{
    Account, AppliedChange, Clock, Cost, Cpu, Delivery, Event, Health, Host, MOST_ACCOUNTS,
    Machine, OMITTED, Overload, Reservation, Room, RoomOn, State, Thread, money,
};
pub use requests::{
    Apply, Change, GangWord, Mechanism, NAME, RequestedMechanism, ReservationParameters, name_hint,
};
pub use slackline_service::{EventKind, gang};
pub use timeline::{PageCode, PageSession, Timeline, TimelineColumn, TimelineRun};
pub use times::{End, Length, Moment, Phase, Share};
pub use whatif::{
    AddedVm, FieldValue, LargestShare, MOST_CHANGES, MovedVm, SetParameters, WhatIf, WhatIfAnswer,
};

/// Name and binding of a VM or reservation that the caller may not see. No reservation has this
/// name.
pub const ANOTHER_VM: &str = "another VM";

/// Default path of the daemon's socket.
pub const SOCKET: &str = "/run/slackline/slackline.sock";

/// Maximum number of reservations or events in one answer.
pub const PAGE: usize = 500;

/// Maximum size of a request's body, in bytes. [`LONGEST_LIST`] applies to a list of reservations
/// instead.
pub const LONGEST_BODY: usize = 16 * 1024;

/// Maximum size of a list of reservations to apply, in bytes. It is enough for 1,000 VMs with the
/// longest names, if the names need no escapes in JSON. It is not enough for 1,000 cgroups with the
/// longest paths.
pub const LONGEST_LIST: usize = 640 * 1024;
