//! Admission control: exact tests of which reservations fit on which CPUs, and placement of vCPUs.

pub(crate) mod bookings;
pub(crate) mod demand;
pub(crate) mod dispatch_overhead;
pub(crate) mod fit;
pub(crate) mod load;
pub(crate) mod placement;
pub(crate) mod set_books;
pub(crate) mod split;
pub(crate) mod subtasks;
pub(crate) mod trial;
pub(crate) mod zero_lag;
