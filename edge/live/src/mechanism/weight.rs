//! Weights of cgroups: a cgroup and its sibling cgroups and threads receive CPU time in proportion
//! to their weights. A weight guarantees no amount, and limits nothing while no sibling wants the
//! CPU.
//!
//! The process tree is moved into a cgroup of its own, as for a quota. The siblings of that cgroup
//! are the threads and cgroups in its parent cgroup. A weight has no effect on other levels of the
//! hierarchy, and no effect between different CPUs.

use std::fmt;
use std::str::FromStr;

use slackline_fence::Fence;
use slackline_linux::cgroup::{CgroupError, Place, Step, Version, write};
use slackline_units::{Enforcement, Weight};

use super::quota::{groups_for, in_own_groups};
use super::{
    Abilities, Demand, EnforceTarget, KernelEnforcement, KernelMechanism, Mechanism, MechanismError,
};

/// Largest weight of a cgroup in the kernel.
const MOST: u16 = 10_000;

/// Weight of an ordinary thread of nice 0, in the unit of `cpu.weight` of cgroup version 2.
const USUAL: u64 = 100;

/// Weight of an ordinary thread of nice 0, in the unit of `cpu.shares` of cgroup version 1.
const USUAL_SHARES: u64 = 1_024;

/// Weight of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuWeight {
    /// Weight from 1 to 10000. An ordinary thread has 100.
    Of(Weight),
    /// No weight: the cgroup receives only CPU time that no other thread on the CPU wants
    /// (`cpu.idle`).
    Idle,
}

impl fmt::Display for CpuWeight {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuWeight::Of(weight) => weight.fmt(out),
            CpuWeight::Idle => out.write_str("idle"),
        }
    }
}

impl FromStr for CpuWeight {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuWeight, String> {
        if text == "idle" {
            return Ok(CpuWeight::Idle);
        }
        let weight = text.parse::<Weight>().ok().filter(|weight| weight.get() <= MOST);
        let weight = weight.ok_or_else(|| {
            format!("`{text}`: a weight is a whole number from 1 to {MOST}, or `idle`")
        })?;
        Ok(CpuWeight::Of(weight))
    }
}

/// The mechanism `weight`: a cgroup with the controller `cpu`, whose weight is set.
#[derive(Debug)]
pub(super) struct CgroupWeight;

impl Mechanism for CgroupWeight {
    fn enforcement(&self) -> Enforcement {
        Enforcement::Weight
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            guarantees: false,
            limits: false,
            least_slice: None,
            periods: None,
            pins: false,
            trees: true,
            survives: "the weight, until the cgroup is removed",
            undone_by: "the keeper, or `slackline doctor --free`",
        }
    }

    fn check(&self, target: &EnforceTarget, demand: Demand) -> Result<(), MechanismError> {
        weight_of(demand)?;
        groups_for(target, None, Enforcement::Weight).map(drop)
    }
}

impl KernelMechanism for CgroupWeight {
    fn apply(
        &self,
        target: &EnforceTarget,
        demand: Demand,
        fence: &mut Fence,
    ) -> Result<KernelEnforcement, MechanismError> {
        let weight = weight_of(demand)?;
        let groups = groups_for(target, None, Enforcement::Weight)?;
        in_own_groups(&groups, fence, |place| set(place, weight))
    }
}

fn weight_of(demand: Demand) -> Result<CpuWeight, MechanismError> {
    match demand {
        Demand::Weight(weight) => Ok(weight),
        Demand::Time(..) => Err(MechanismError::NoWeight),
    }
}

fn set(place: &Place, weight: CpuWeight) -> Result<(), CgroupError> {
    let (file, text) = match (weight, place.version) {
        (CpuWeight::Idle, _) => ("cpu.idle", "1".to_owned()),
        (CpuWeight::Of(weight), Version::V2) => ("cpu.weight", weight.to_string()),
        (CpuWeight::Of(weight), Version::V1) => ("cpu.shares", shares(weight).to_string()),
    };
    write(&place.group.join(file), &text, Step::Limit)
}

/// Converts a weight to `cpu.shares` of cgroup version 1. The kernel's default for `cpu.shares` is
/// 1024, and its minimum is 2.
fn shares(weight: Weight) -> u64 {
    (u64::from(weight.get()) * USUAL_SHARES / USUAL).max(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_v2_weight_100_equals_1024_shares_in_cgroup_v1() {
        let of = |weight| shares(Weight::new(weight).unwrap());
        assert_eq!([of(100), of(300), of(1), of(10_000)], [1_024, 3_072, 10, 102_400]);
    }

    #[test]
    fn cpu_weight_accepts_only_1_to_10000_or_idle() {
        for text in ["1", "300", "10000", "idle"] {
            assert_eq!(text.parse::<CpuWeight>().unwrap().to_string(), text);
        }
        for wrong in ["", "0", "10001", "-1", "Idle", "30%"] {
            assert!(wrong.parse::<CpuWeight>().is_err(), "{wrong}");
        }
    }
}
