//! Other programs of the recorded host, as domains and interference of a scenario.

use slackline_policy::{Spec, Values};
use slackline_units::{DomId, VcpuId};

use crate::model::{Competitor, Share, written};

/// Prefix of the names of domains that represent programs and not VMs. No recorded VM can have a
/// name with this prefix, because the service only allows lower case.
const PREFIX: &str = "OTHERS-";

/// Sets of parameters that give a domain slack and no reservation, or the smallest possible one.
/// Policies have different parameters, so the first set that a policy accepts is used.
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

/// Returns true if a recorded vCPU is the service's own front process, which is no VM.
pub(crate) fn is_of_service(vcpu: VcpuId) -> bool {
    vcpu.domain() == DomId::OF_SERVICE
}

/// Returns the name of the domain for a stay of the service's front process. `index` is the index
/// of the stay in the recorded demand.
pub(crate) fn service_name(index: usize) -> String {
    format!("{PREFIX}front-{index}")
}

/// Returns true if `name` is the name of a domain that represents a program and not a VM.
pub(crate) fn is_other(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Returns the parameters for an ordinary program that competes with VMs under this policy: the
/// first set in [`SHARES`] that the policy accepts. `None` if the policy accepts none.
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
