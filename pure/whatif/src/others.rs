//! Other programs of the recorded host, as domains and interference of a scenario.

use slackline_policy::{Spec, Values};

use crate::model::{Competitor, Share, written};
use crate::other_names::PREFIX;

/// Sets of parameters that let a domain use slack, with no reservation or only the smallest
/// possible reservation. Policies have different parameters, so the first set that a policy accepts
/// is used.
const SHARES: [&[(&str, &str)]; 4] = [
    &[("slice", "1ns"), ("budget", "1ns"), ("period", "1s"), ("extra", "true")],
    &[("slice", "1ns"), ("period", "1s")],
    &[("extra", "true")],
    &[],
];

/// Returns the name of the domain of a competitor.
pub(crate) fn name(competitor: &Competitor) -> String {
    format!("{PREFIX}{}", competitor.source)
}

/// Parameters that let a domain use slack without a reservation, under policies in which a slice of
/// zero reserves nothing.
const BEST_EFFORT: &[(&str, &str)] = &[("slice", "0s"), ("extra", "true")];

/// Returns the parameters for an ordinary program that competes with VMs under this policy:
/// [`BEST_EFFORT`] if these parameters reserve nothing, and otherwise the first set in [`SHARES`]
/// that the policy accepts. `None` if the policy accepts no set.
pub(crate) fn share(spec: &'static Spec) -> Option<Share> {
    let values = |share: &Share| Values::read_written(spec.share_fields, &written(share));
    let reserves_nothing = |share: &Share| {
        values(share).is_ok_and(|values| matches!((spec.promise)(&values), Ok(None)))
    };
    let best_effort = Some(of(spec, BEST_EFFORT)).filter(reserves_nothing);
    let least = || SHARES.iter().map(|pairs| of(spec, pairs)).find(|share| values(share).is_ok());
    best_effort.or_else(least)
}

fn of(spec: &'static Spec, pairs: &[(&str, &str)]) -> Share {
    let known =
        pairs.iter().filter(|(name, _)| spec.share_fields.iter().any(|it| it.name == *name));
    known.map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}
