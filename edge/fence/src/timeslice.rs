//! Sharing of a timeslice by the threads of a process tree.

/// Mode in which the thread that is put first uses a timeslice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeslice {
    /// The thread runs to the end of the timeslice unless it blocks.
    Whole,
    /// The threads take turns. Each runs for the kernel's quantum for `SCHED_RR`.
    Shared,
}
