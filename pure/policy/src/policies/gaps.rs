//! GAPS: Credit, in which a VM with urgent work may precede other VMs that have credit too. Source:
//! Kim, Kim, Jeon, Seo and Lee, *Guest-Aware Priority-Based Virtual Machine Scheduling for Highly
//! Consolidated Server*, 2008. Accounts, lists and passes are those of Credit. This module only
//! selects the base rules of Credit and the rules by which guests' reports count.

mod page;

#[cfg(test)]
mod tests;

use alloc::boxed::Box;

use slackline_units::{CpuShare, Span};

use crate::policies::credit::{
    self, ClaimEnd, ClaimLimit, ClaimRules, ClaimScope, ClaimSource, ClaimTasks, Credit,
    CreditRules, RequeuePosition, TaskMatching, fields,
};
use crate::{Field, Spec, Topology, Values};

/// Longest `list-time` that is accepted.
const LONG: Span = Span::from_secs(3_600);

const RULES: Field = Field::choice(
    "rules",
    &["bounded", "paper", "paper-ro"],
    "Slackline's GAPS without starvation, the paper's GAPS, or its GAPS-RO (runnable tasks only)",
);
const BASE: Field = Field::choice(
    "base",
    &["as-rules", "exact", "xen-3.0.3", "xen-2006-10-30", "xen-3.0.4"],
    "rules of Credit on which gaps builds; as-rules: exact for bounded, else xen-3.0.4",
);
const TELL: Field = Field::choice(
    "tell",
    &["guest", "inferred", "none"],
    "source of claims: the guest's reports, the speed of its answers to I/O, or none",
);
const ANSWERS_WITHIN: Field = Field::span_within(
    "answers-within",
    "1ms",
    (Span::from_us(1), Span::from_secs(1)),
    "for tell = \"inferred\": CPU time within which a VM must answer to count as a server",
);
const CONSIDER: Field = Field::choice(
    "consider",
    &["as-rules", "run-queue", "all"],
    "tasks that can make a VM urgent: runnable tasks, or also blocked tasks with I/O pending",
);
const MATCH: Field = Field::choice(
    "match",
    &["list", "any", "exact"],
    "blocked tasks that can make a VM urgent: woken by I/O, any, or named by the driver domain",
);
const LIST: Field =
    Field::whole("list", "5", (0, 5), "number of tasks on the list of tasks that I/O woke last");
const LIST_TIME: Field = Field::span_within(
    "list-time",
    "1h",
    (Span::ZERO, LONG),
    "how long a task stays on the list of tasks that I/O woke last",
);
const AMONG: Field = Field::choice(
    "among",
    &["as-rules", "under", "all"],
    "vCPUs that may go ahead by a claim: only vCPUs with credit, or all",
);
const BOUND: Field = Field::choice(
    "bound",
    &["as-rules", "off", "on"],
    "apply boost-cap and boost-depth; on with rules = \"bounded\"",
);
const BOOST_CAP: Field = Field::share(
    "boost-cap",
    "25%",
    CpuShare::ONE,
    "part of its own share that a VM may receive ahead of others",
);
const BOOST_DEPTH: Field = Field::span_within(
    "boost-depth",
    "10ms",
    (Span::ZERO, Span::from_secs(1)),
    "how much of the allowance of boost-cap a VM may save up",
);
const ENDS: Field = Field::choice(
    "ends",
    &["as-rules", "slice", "claim"],
    "a timeslice ahead of others lasts its normal length, or ends earlier with the claim",
);
const PLACE: Field = Field::choice(
    "place",
    &["as-rules", "tail", "kept"],
    "place in the queue after a timeslice ahead of others: the tail, or the former place",
);

/// Description of the policy `gaps`.
pub(crate) const SPEC: Spec = Spec {
    name: "gaps",
    summary: "credit that lets urgent VMs go first, within bounds (Kim 2008)",
    page: page::PAGE,
    policy_fields: &[
        RULES,
        BASE,
        TELL,
        ANSWERS_WITHIN,
        CONSIDER,
        MATCH,
        LIST,
        LIST_TIME,
        AMONG,
        BOUND,
        BOOST_CAP,
        BOOST_DEPTH,
        ENDS,
        PLACE,
        fields::SLICE,
        fields::TICK,
        fields::PHASE,
        fields::ORDER,
        fields::OFFSET,
        fields::SAMPLING,
        fields::CREDITS,
        fields::BOOST,
        fields::PARK,
        fields::OVER_CAP,
        fields::FLOOR,
        fields::LEAVING,
        fields::NEWCOMERS,
        fields::ROTATION,
        fields::CHANGES,
        fields::PLACEMENT,
    ],
    share_fields: credit::SHARE_FIELDS,
    conflict: |_| None,
    promise: credit::SPEC.promise,
    keeps: credit::SPEC.keeps,
    limit: credit::SPEC.limit,
    together: None,
    payer: None,
    build: |values, topology| Box::new(build(values, topology)),
};

/// Builds the policy. A parameter that is `as-rules` takes its value from this table, in the column
/// of the rules that are selected:
///
/// | | bounded | paper | paper-ro |
/// |---|---|---|---|
/// | base | exact | xen-3.0.4 | xen-3.0.4 |
/// | consider | all | all | run-queue |
/// | among | all | under | under |
/// | bound | on | off | off |
/// | ends | claim | slice | slice |
/// | place | kept | tail | tail |
fn build(values: &Values, topology: &Topology) -> Credit {
    // Column of the table.
    let column = match values.choice(&RULES) {
        "paper" => 1,
        "paper-ro" => 2,
        _ => 0,
    };
    let word = |field: &Field, by_rules: [&'static str; 3]| match values.choice(field) {
        "as-rules" => by_rules[column],
        said => said,
    };
    let bound = ClaimLimit { cap: values.share(&BOOST_CAP), depth: values.span(&BOOST_DEPTH) };
    let belief = ClaimRules {
        tell: match values.choice(&TELL) {
            "inferred" => ClaimSource::Inferred(values.span(&ANSWERS_WITHIN)),
            _ => ClaimSource::Guest,
        },
        considers: match word(&CONSIDER, ["all", "all", "run-queue"]) {
            "run-queue" => ClaimTasks::RunQueue,
            _ => ClaimTasks::All,
        },
        matching: match values.choice(&MATCH) {
            "any" => TaskMatching::Any,
            "exact" => TaskMatching::Exact,
            _ => TaskMatching::List,
        },
        list: usize::try_from(values.whole(&LIST)).expect("the field allows at most five"),
        list_time: values.span(&LIST_TIME),
        bound: (word(&BOUND, ["on", "off", "off"]) == "on").then_some(bound),
        ends: match word(&ENDS, ["claim", "slice", "slice"]) {
            "slice" => ClaimEnd::Slice,
            _ => ClaimEnd::Claim,
        },
        among: match word(&AMONG, ["all", "under", "under"]) {
            "under" => ClaimScope::Under,
            _ => ClaimScope::All,
        },
        place: match word(&PLACE, ["kept", "tail", "tail"]) {
            "tail" => RequeuePosition::Tail,
            _ => RequeuePosition::Kept,
        },
    };
    let base = word(&BASE, ["exact", "xen-3.0.4", "xen-3.0.4"]);
    let belief = (values.choice(&TELL) != "none").then_some(belief);
    Credit::new(CreditRules::read(values, base), topology, belief)
}
