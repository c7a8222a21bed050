//! ALERT, the allocation error test: how exactly a policy delivers shares, second by second.
//! Source: Cherkasova, Gupta, Vahdat, "Comparison of the Three CPU Schedulers in Xen", 2007,
//! section 5.2.
//!
//! A [`Case`] is a policy with some of its parameters. [`Trials`] limit a domain that never stops
//! to one target after the other under each case, with several seeds; a [`CaseResult`] has the
//! error of every second, whoever did the limiting.

mod case;
mod result;
mod trials;

pub use case::{AS_PUBLISHED, Case, CaseError, Form, OURS, Trial, assumptions};
pub use result::{CaseResult, Limiter, Run, percent};
pub use trials::{TrialError, TrialFault, Trials};
