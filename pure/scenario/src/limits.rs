//! Maximum numbers of domains, tasks and waiting packets in a scenario.

/// Maximum number of domains with an operating system in a scenario.
pub(crate) const MOST_SYSTEMS: usize = 10_000;
/// Maximum number of tasks of one operating system.
pub(crate) const MOST_TASKS: usize = 10_000;
/// Maximum number of packets or requests that can wait in a ring.
pub(crate) const MOST_WAITING: usize = 1 << 16;
/// Default number of packets that can wait in a ring.
pub(crate) const RING: usize = 256;
