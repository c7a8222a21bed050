//! Division of a timeslice among the threads of a process tree.

/// Division of a timeslice of a process tree, in which a chosen thread runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeslice {
    /// The thread that runs first may run until the timeslice ends.
    Whole,
    /// The threads take turns. Each thread runs for the kernel's quantum of `SCHED_RR`.
    Shared,
}
