//! The policies: one file for each policy. A long policy also has a folder of the same name.

mod atropos;
mod bvt;
mod credit;
mod edf;
mod fair;
mod gaps;
mod gedf;
mod round_robin;
mod sedf;

use crate::Spec;

/// All policies that a live host can run, in the order in which help pages and tables list them.
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

/// Policies that are only simulated: models of other schedulers, which no live host can run.
pub const SIMULATED_ONLY: &[&Spec] = &[&fair::SPEC];

/// Returns the policy with this name. `None` if there is no such policy.
#[must_use]
pub fn find(name: &str) -> Option<&'static Spec> {
    ALL.iter().chain(SIMULATED_ONLY).copied().find(|spec| spec.name == name)
}

/// Returns true if the policy is only simulated.
#[must_use]
pub fn is_simulated_only(spec: &Spec) -> bool {
    SIMULATED_ONLY.iter().any(|it| it.name == spec.name)
}
