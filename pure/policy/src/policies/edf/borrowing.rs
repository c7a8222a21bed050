//! Borrowing: a vCPU of a domain uses the budget that its siblings leave. Not in VSched.

pub(super) mod groups;
pub(super) mod loans;
