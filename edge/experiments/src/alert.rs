//! ALERT, the allocation error test: the error of the shares that a policy delivers in each second.
//! Source: Cherkasova, Gupta, Vahdat, "Comparison of the Three CPU Schedulers in Xen", 2007,
//! section 5.2.
//!
//! A [`Case`] is a policy with some of its parameters. [`Trials`] limit a domain that always
//! computes to a number of target shares, with each case and several seeds. A [`CaseResult`] has
//! the error of every second, for simulated policies and for mechanisms of a host.

mod case;
mod result;
mod trials;

pub use case::{AS_PUBLISHED, Case, CaseError, Form, OURS, Trial, assumptions, usual_cases};
pub use result::{CaseResult, DomainErrors, Limiter, percent};
pub use trials::{PUBLISHED_LENGTH, TrialError, TrialFault, Trials, target_of_percent};
