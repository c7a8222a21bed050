//! What Xen did, and the exact rules do otherwise: to be read beside the reference, section 7.
//!
//! Credits are whole and few, and are given to all who are active: a cap, a share and a rest are
//! rounded up to one (`accounting`, and `sharing` for the arithmetic). Who runs as a CPU `ticks`
//! pays for all of the tick. `parking` holds to a cap who is over it at an accounting. `lists` are
//! in order from the next tick on.

mod accounting;
mod lists;
mod parking;
mod sharing;
mod ticks;
