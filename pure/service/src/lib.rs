//! Decides about reservations: who may have what, under which name, and what comes of it when
//! machines come and go.
//!
//! A [`Service`] is told what happened and what time it is, one [`Input`] after the other, and does
//! what follows through a [`World`]: it looks for machines, promises them time, writes down what it
//! promised, and answers whoever asked. It knows no file, no socket, no clock and no thread; the
//! same inputs with the same answers of the world come to the same every time.
//!
//! Three rules hold throughout. What is promised is decided by the policy alone: there is no second
//! sum here. What is done to threads is undone by whoever holds them when we die, so a command
//! takes effect before it is written down; its answer waits until it is. And what is not written
//! down in the end is taken back, as far as that takes nothing from anybody.

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
mod input;
mod key_order;
mod keys;
mod limits;
mod machine;
mod name;
mod overload;
mod principal;
mod refusal;
mod request;
mod row;
mod service;
mod terms;
mod world;
mod writer;

pub use answer::{Action, Answer, AppliedChange, Health, Listed, Warning};
pub use binding::{Binding, BindingError, BindingKind, UNSEEN};
pub use budget::{Budget, Budgets, RESERVATIONS_OF_ONE};
pub use domains::NO_RESERVATION;
pub use event::{Event, Happened};
pub use input::{Asked, Input, LedgerFault};
pub use key_order::{KEYS_IN_ALL, KEYS_OF_ONE, KeyOrder};
pub use limits::{Rate, Rates};
pub use machine::{Declined, Identity, LookError, Machine, Room, Seats};
pub use name::{Holder, Key, Name, NameError};
pub use overload::{CpuLoad, OVERHEAD_WINDOW, OverheadWindow};
pub use principal::{NoPrincipal, Principal, Role, Verb};
pub use refusal::Refusal;
pub use request::{Request, Ticket};
pub use row::{Reason, Row, State};
pub use service::{MOST_RESERVATIONS, MOST_TARGETS, Service, Settings, Sought};
pub use terms::{Amount, Terms, TermsError};
pub use world::{Commit, Joining, Kept, Loaded, World};
