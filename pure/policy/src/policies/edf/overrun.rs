//! Overruns: CPU time beyond the budget, because a vCPU was stopped late.

mod debt;
pub(super) mod history;
