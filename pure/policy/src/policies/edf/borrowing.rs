//! Borrowed budget: a vCPU uses budget that its siblings in the VM leave unused. Not in [VSched].

pub(super) mod groups;
pub(super) mod loans;
