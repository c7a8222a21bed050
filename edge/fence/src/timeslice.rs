//! Division of a timeslice among the threads of a process tree.

/// Division of a timeslice of a process tree. One thread runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeslice {
    /// The first thread may run until the timeslice ends.
    Whole,
    /// The threads take turns. Each runs for the kernel's quantum for `SCHED_RR`.
    Shared,
}
