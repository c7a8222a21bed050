//! ALERT, the allocation error test: it measures how far the CPU time that a policy delivers in
//! each second deviates from the target share. Source: Cherkasova, Gupta, Vahdat, "Comparison of
//! the Three CPU Schedulers in Xen", 2007, section 5.2.
//!
//! A [`Case`] is a policy with some of its parameters. [`Trials`] are the runs: in each run,
//! domains that always compute are limited to a target share. There is one run for each case,
//! target share and seed. A [`CaseResult`] has the error of every second, for a simulated policy or
//! for a mechanism of a host.

mod case;
mod result;
mod trials;

pub use case::{AS_PUBLISHED, Case, CaseError, Form, OURS, Trial, assumptions, usual_cases};
pub use result::{CaseResult, DomainErrors, Limiter, percent};
pub use trials::{PUBLISHED_LENGTH, TrialError, TrialFault, Trials, target_of_percent};
