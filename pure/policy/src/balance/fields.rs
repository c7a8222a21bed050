//! Parameters of balancers, for the policies that have a balancer.

use slackline_units::{CpuShare, Span};

use super::pairs::SwapRules;
use super::{CALL, Ratio};
use crate::{Field, Values};

pub(crate) const BALANCER: Field = Field::choice(
    "balancer",
    &["none", "thesis", "repaired", "planned"],
    "how best-effort vCPUs migrate between CPUs",
);
pub(crate) const SMT_BELIEVED: Field = Field::share(
    "smt-believed",
    "0.65cpu",
    CpuShare::ONE,
    "assumed speed of a hardware thread while another thread of its core is busy",
);
pub(crate) const TAU: Field = Field::choice(
    "tau",
    &["samples", "runs"],
    "slack per weight is averaged over samples of 100ms, or over runs of the balancer",
);
pub(crate) const CLOSE: Field = Field::choice(
    "close",
    &["1/2", "1/4", "1/8", "1/16"],
    "largest error of the weight that a swap moves, as a part of the ideal weight",
);
pub(crate) const LEAST_DIFFERENCE: Field = Field::choice(
    "least-difference",
    &["1/8", "0", "1/16", "1/4", "1/2"],
    "two CPUs swap if their slack per weight differs by more than this part of the ideal value",
);
pub(crate) const BALANCER_SLICE: Field = Field::span_within(
    "balancer-slice",
    "100us",
    (Span::ZERO, CALL),
    "CPU time of the balancer in every 50ms of CPU 0",
);

/// Parsed parameters of a balancer.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) rules: SwapRules,
    /// True if the CPU time per weight (tau) is averaged over runs of the balancer, false if it is
    /// averaged over samples. From the parameter `tau`.
    pub(crate) by_runs: bool,
    /// True if the balancer makes plans (module `planned`) instead of swapping vCPUs (module
    /// `pairs`).
    pub(crate) plans: bool,
    /// Assumed speed of a hardware thread while another thread of its core is busy, as a fraction.
    pub(crate) believed: Ratio,
    /// Share of one CPU that the balancer itself reserves.
    pub(crate) keeps: CpuShare,
}

impl Settings {
    /// Reads the parameters of a balancer. `None` if the parameters select no balancer.
    pub(crate) fn read(values: &Values) -> Option<Settings> {
        let kind = values.choice(&BALANCER);
        if kind == "none" {
            return None;
        }
        let is_repaired = kind != "thesis";
        let rules = SwapRules {
            close: part(values.choice(&CLOSE)).of,
            least: part(values.choice(&LEAST_DIFFERENCE)),
            improves: is_repaired,
            thrift: false,
            by_lead: is_repaired,
            retries: is_repaired,
        };
        let believed = u64::from(values.share(&SMT_BELIEVED).ppm());
        let believed = Ratio { some: believed, of: u64::from(CpuShare::ONE.ppm()) };
        let (by_runs, plans) = (values.choice(&TAU) == "runs", kind == "planned");
        let keeps = (values.span(&BALANCER_SLICE).ns() * 1_000_000).div_ceil(CALL.ns());
        let keeps =
            CpuShare::from_ppm(u32::try_from(keeps).expect("the field is limited to a whole CPU"));
        Some(Settings { rules, by_runs, plans, believed, keeps })
    }
}

/// Parses a fraction `1/n`, such as `1/4`. Returns zero for any other word.
fn part(word: &str) -> Ratio {
    let of = word.strip_prefix("1/").and_then(|of| of.parse().ok());
    of.map_or(Ratio { some: 0, of: 1 }, |of| Ratio { some: 1, of })
}
