//! Reservation service: decides which owner may reserve CPU time for which VM, and applies the
//! reservations when VMs start and stop.
//!
//! A [`Service`] receives one [`Input`] after the other, each with the current time, and acts
//! through a [`World`]. Through the world, the service looks VMs up, reserves CPU time for them,
//! commits reservations to the ledger, and replies to callers. The service itself uses no file,
//! socket, clock or thread. Equal inputs and equal results of the world always lead to equal
//! outputs.
//!
//! Three rules always hold:
//! - Only the policy decides about admission. The service keeps no sum of shares of its own.
//! - A request takes effect before its change is committed, and its reply is sent after the commit.
//!   If the service dies in between, a separate process, the keeper, restores the scheduling
//!   parameters that the threads had before.
//! - A change that cannot be committed is reverted, unless reverting it would take CPU time from
//!   another reservation.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod binding;
mod book;
mod budget;
mod deed;
mod domains;
mod event;
pub mod gang;
pub mod history;
mod input;
mod key_order;
mod keys;
mod limits;
mod machine;
mod mechanism;
mod name;
mod overload;
mod plan;
mod principal;
mod raise;
mod refusal;
mod request;
mod row;
mod service;
mod terms;
mod world;
mod writer;

pub use answer::{Action, Answer, AppliedChange, Health, ListedReservation, Warning};
pub use binding::{Binding, BindingError, BindingKind};
pub use budget::{
    Budget, Budgets, MOST_RESERVATIONS, MOST_VCPUS, RESERVATIONS_OF_ONE, VCPUS_OF_ONE,
};
pub use domains::NO_RESERVATION;
pub use event::{Event, EventKind};
pub use input::{ClientRequest, Input, LedgerFault};
pub use key_order::{KEY_BYTES_IN_ALL, KEY_BYTES_OF_ONE, KEYS_IN_ALL, KEYS_OF_ONE, KeyOrder};
pub use limits::{Rate, Rates};
pub use machine::{CpuCapacity, Identity, LookError, Machine, Seats, WorldError};
pub use mechanism::{MechanismChoice, WantedMechanism};
pub use name::{Holder, Key, Name, NameError};
pub use overload::{CpuLoad, OVERHEAD_WINDOW, OverheadWindow};
pub use plan::{
    LONGEST_WATCH, MeasuredVm, PLAN_BYTES, PLANS_BYTES, Plan, PlanStage, PlanStep, SHARE_LIMIT_PPM,
    SHORTEST_WATCH, VmPrediction, exceeds_prediction,
};
pub use principal::{NoPrincipal, Principal, Role, Verb};
pub use raise::Raise;
pub use refusal::Refusal;
pub use request::{Request, Ticket};
pub use row::{Reason, Row, State};
pub use service::{MOST_TARGETS, Service, Settings, VmLookup};
pub use terms::{Amount, MechanismLimit, Terms, TermsError};
pub use world::{Commit, JoiningDomain, KeptAnswer, LedgerContents, World};
