//! Periods of a server: replenishment, wake-ups, and the period after the current one.

pub(super) mod next;
mod server;
