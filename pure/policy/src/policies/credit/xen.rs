//! Rules of Xen that differ from Slackline's exact rules. Read them beside section 7 of the
//! reference on Credit.
//!
//! Credits are few and whole, and every active vCPU receives some. A cap, a share and a remainder
//! are rounded up to a credit (`accounting`, and `sharing` for the arithmetic). A vCPU that runs
//! when its CPU ticks pays for the whole tick (`ticks`). A vCPU that is over its cap at an
//! accounting is parked (`parking`). A vCPU whose class changes keeps its place in the list of
//! waiting vCPUs until the next tick sorts the list (`lists`).

mod accounting;
mod lists;
mod parking;
mod sharing;
mod ticks;
