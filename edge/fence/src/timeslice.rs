//! Use of a timeslice by the threads of a tree.

/// Use of a timeslice by the thread that is put first in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeslice {
    /// The thread runs to the end of the timeslice unless it blocks.
    Whole,
    /// The threads take turns of the kernel's quantum for `SCHED_RR`.
    Shared,
}
