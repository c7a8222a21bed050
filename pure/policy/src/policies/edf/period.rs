//! Periods of a server: replenishment, wake-ups, and the period after the current period.

pub(super) mod next;
mod server;
