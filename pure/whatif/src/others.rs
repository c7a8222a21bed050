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

/// Returns the parameters for an ordinary program that competes with VMs under this policy: the
/// first set in [`SHARES`] that the policy accepts. `None` if the policy accepts no set.
pub(crate) fn share(spec: &'static Spec) -> Option<Share> {
    let fits = |pairs: &&[(&str, &str)]| {
        let share = of(spec, pairs);
        Values::read_written(spec.share_fields, &written(&share)).is_ok()
    };
    SHARES.iter().copied().find(fits).map(|pairs| of(spec, pairs))
}

fn of(spec: &'static Spec, pairs: &[(&str, &str)]) -> Share {
    let known =
        pairs.iter().filter(|(name, _)| spec.share_fields.iter().any(|it| it.name == *name));
    known.map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}
