//! The policies: one file for each, with a folder beside it if it is long.

mod atropos;
mod bvt;
mod credit;
mod edf;
mod gaps;
mod gedf;
mod round_robin;
mod sedf;

use crate::Spec;

/// All policies, in the order in which help pages and tables list them.
///
/// A new policy is one new file in this folder and one line in this list.
pub const ALL: &[&Spec] = &[
    &edf::SPEC,
    &round_robin::SPEC,
    &atropos::SPEC,
    &bvt::SPEC,
    &sedf::SPEC,
    &gedf::SPEC,
    &credit::SPEC,
    &gaps::SPEC,
];

/// Returns the policy with this name. `None` if there is no such policy.
#[must_use]
pub fn find(name: &str) -> Option<&'static Spec> {
    ALL.iter().copied().find(|spec| spec.name == name)
}
