//! Overruns: CPU time that a vCPU used beyond its budget because it was stopped late.

mod debt;
pub(super) mod history;
pub(super) mod leniency;

#[cfg(test)]
mod tests;
