//! Division of a timeslice among the threads of a process tree.

/// Division of a timeslice of a process tree between the thread that runs first and the other
/// threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeslice {
    /// The thread may run until the timeslice ends.
    Whole,
    /// The threads take turns. Each runs for the kernel's quantum for `SCHED_RR`.
    Shared,
}
