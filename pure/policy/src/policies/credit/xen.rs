//! Rules of Xen that differ from Slackline's exact rules. Read them beside section 7 of the
//! reference on Credit.
//!
//! Credits are few and whole, and every active vCPU receives some. A cap, a share and a remainder
//! are rounded up to a credit (`accounting`, and `sharing` for the arithmetic). A vCPU that runs
//! when its CPU ticks pays for the whole tick (`ticks`). A vCPU that an accounting finds over its
//! cap is parked (`parking`). A list is in order from the next tick on (`lists`).

mod accounting;
mod lists;
mod parking;
mod sharing;
mod ticks;
