//! How much of anything a scenario may have.

/// How many systems a scenario may have.
pub(crate) const MOST_SYSTEMS: usize = 10_000;
/// How many tasks a system may have.
pub(crate) const MOST_TASKS: usize = 10_000;
/// How many packets or requests can wait anywhere at most.
pub(crate) const MOST_WAITING: usize = 1 << 16;
/// How many can wait in a ring unless more or fewer are said.
pub(crate) const RING: usize = 256;
