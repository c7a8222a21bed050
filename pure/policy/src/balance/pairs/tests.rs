//! Runs of the balancer on pairs of CPUs, compared with results computed by hand: [balancer §5.1,
//! §5.2]. The head of `balance` says what [balancer] is.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, DomId, Span, VcpuId};

use super::super::groups::groups;
use super::super::swap::{Swap, swap};
use super::super::{BalancerCpu, Member, Move, PLACES, Ratio, SAMPLE, Tau, Weight};
use super::{SwapRules, ideal};

const LITERAL: SwapRules = SwapRules {
    close: 2,
    least: Ratio { some: 1, of: 8 },
    improves: false,
    thrift: false,
    by_lead: false,
    retries: false,
};

/// Rules of the balancer `repaired`.
const REPAIRED: SwapRules = SwapRules { improves: true, by_lead: true, retries: true, ..LITERAL };

fn run(loads: &[BalancerCpu], rules: &SwapRules, core_of: impl Fn(CpuId) -> CpuSet) -> Vec<Move> {
    super::run(loads, &groups(loads), rules, core_of)
}

fn weight(units: u64) -> Weight {
    Weight(units << PLACES)
}

/// Returns a CPU with `thousandths` of its time available. `members` are pairs of a weight and a
/// tau (CPU time per weight) in ten-thousandths. The vCPUs have consecutive ids from `first` on.
fn load(cpu: usize, thousandths: u64, first: u32, members: &[(u64, u64)]) -> BalancerCpu {
    let mut load =
        BalancerCpu::empty(CpuId::new(cpu), Span::from_ns(SAMPLE.ns() / 1_000 * thousandths));
    for (number, &(units, tau)) in (first..).zip(members) {
        let served = Tau { time: SAMPLE.ns() / 10_000 * tau, weight: 1 << PLACES };
        let vcpu = VcpuId::new(number, DomId::new(number), 0);
        let allowed = CpuSet::first_n(8);
        load.add(Member {
            vcpu,
            weight: weight(units),
            served,
            allowed,
            runnable: SAMPLE.ns(),
            lead: 0,
        });
    }
    load
}

fn pair(times: (u64, u64), hot: &[(u64, u64)], idle: &[(u64, u64)]) -> [BalancerCpu; 2] {
    let next = 1 + u32::try_from(hot.len()).unwrap();
    [load(0, times.0, 1, hot), load(1, times.1, next, idle)]
}

/// Returns a text that lists which vCPUs migrate from CPU 0 to CPU 1 ("there") and which migrate
/// from CPU 1 to CPU 0 ("back").
fn moves(loads: &[BalancerCpu], rules: &SwapRules) -> String {
    let moves = run(loads, rules, CpuSet::one);
    let going = |to: usize| {
        let here = moves.iter().filter(move |going| going.to == CpuId::new(to));
        here.map(|going| format!("v{} ", going.vcpu.slot())).collect::<String>()
    };
    let (there, back) = (going(1), going(0));
    match (there.is_empty(), back.is_empty()) {
        (true, true) => "none".into(),
        (false, true) => format!("{there}there"),
        (true, false) => format!("{back}back"),
        (false, false) => format!("{there}there, {back}back"),
    }
}

/// Cases N1 to N5 of [balancer]. They give the weight that should migrate (w_ideal), and the CPU
/// time per weight of the whole group (tau_ideal).
#[test]
fn balancer_ideal_weight_and_time_per_weight_equal_reference_values() {
    type Case = ((u64, u64), (u64, u64), (i128, i128), (u64, u64));
    let cases: [Case; 5] = [
        ((1_000, 1_000), (2, 1), (1, 2), (2, 3)),
        ((1_000, 1_000), (1, 0), (1, 2), (2, 1)),
        ((1_000, 750), (2, 1), (2, 7), (7, 12)),
        ((750, 1_000), (2, 1), (5, 7), (7, 12)),
        ((500, 1_000), (4, 2), (2, 1), (1, 4)),
    ];
    for (times, weights, (wanted, of), (time, for_weight)) in cases {
        let [hot, idle] = pair(times, &[(weights.0, 1)], &[(weights.1, 1)]);
        let ideal = ideal(&[&hot, &idle]);
        let pair = super::super::swap::wanted(&hot, &idle);
        assert_eq!(pair.0 * of, (wanted << PLACES) * pair.1, "w_ideal of {times:?} {weights:?}");
        let expected = Tau { time: SAMPLE.ns() * time, weight: for_weight << PLACES };
        assert!(ideal.compare(expected).is_eq(), "tau_ideal of {times:?} {weights:?}: {ideal:?}");
    }
    let [.., empty] = pair((1_000, 1_000), &[(1, 1)], &[]);
    let full = Tau { time: u64::MAX, weight: 1 };
    assert!(empty.tau().compare(full).is_gt(), "N2: tau is infinite without weight");
}

struct Case {
    id: &'static str,
    times: (u64, u64),
    hot: &'static [(u64, u64)],
    idle: &'static [(u64, u64)],
    moves: &'static str,
}

const fn case(
    id: &'static str,
    times: (u64, u64),
    hot: &'static [(u64, u64)],
    idle: &'static [(u64, u64)],
    moves: &'static str,
) -> Case {
    Case { id, times, hot, idle, moves }
}

const WHOLE: (u64, u64) = (1_000, 1_000);

/// Swap cases S1 to S14 of [balancer], our notes on balancers, which are not in this repository. A
/// case has the available parts of CPUs 0 and 1, in thousandths. The vCPUs of each CPU follow, by
/// weight and by CPU time per weight in ten-thousandths. The text names the vCPUs that migrate
/// under the rules `LITERAL`.
const CASES: [Case; 14] = [
    case("S1", WHOLE, &[(1, 5_000), (1, 5_000)], &[(1, 10_000)], "v1 there, v3 back"),
    case("S2", WHOLE, &[(1, 5_156), (1, 5_005)], &[(1, 9_800)], "v2 there, v3 back"),
    case("S3", WHOLE, &[(1, 2_000); 5], &[(1, 10_000)], "v1 v2 v3 v4 there, v6 back"),
    case(
        "S4",
        WHOLE,
        &[(1, 2_000), (2, 2_000), (2, 2_000)],
        &[(1, 3_333), (2, 3_333)],
        "v1 v2 there, v5 back",
    ),
    case("S5", (500, 1_000), &[(1, 5_000)], &[], "v1 there"),
    case("S6", WHOLE, &[(4, 2_000), (1, 2_000)], &[(1, 5_000); 2], "v1 there, v3 v4 back"),
    case("S7", WHOLE, &[(5, 1_250), (2, 1_250), (1, 1_250)], &[(1, 10_000)], "v1 there, v4 back"),
    case("S8", (500, 1_000), &[(1, 1_250); 4], &[(1, 5_000); 2], "v1 v2 v3 v4 there, v5 v6 back"),
    case("S9", WHOLE, &[(1, 5_000), (1, 5_000)], &[(2, 5_000)], "none"),
    case(
        "S10",
        WHOLE,
        &[(1, 3_000), (1, 9_000), (1, 3_000)],
        &[(1, 10_000)],
        "v1 v3 there, v4 back",
    ),
    case("S11", WHOLE, &[(10, 910), (1, 910)], &[(1, 10_000)], "v2 there"),
    case("S12", WHOLE, &[(2, 1_667); 3], &[(4, 2_500)], "v1 v2 there, v4 back"),
    case("S13", (1_000, 150), &[(1, 2_500); 4], &[], "none"),
    case("S14", (750, 1_000), &[(1, 7_500)], &[], "none"),
];

#[test]
fn balancer_swaps_the_vcpus_that_a_hand_computation_selects() {
    for Case { id, times, hot, idle, moves: expected } in CASES {
        assert_eq!(moves(&pair(times, hot, idle), &LITERAL), expected, "{id}");
    }
}

/// Cases S1 and S8 of [balancer] with the rule `thrift`. Cases S13 and S14 with the rule
/// `improves`, under which more weight than w_ideal may migrate.
#[test]
fn balancer_swaps_hand_computed_vcpus_under_rules_improves_and_thrift() {
    let found = |id, rules| {
        let case = CASES.iter().find(|case| case.id == id).unwrap();
        moves(&pair(case.times, case.hot, case.idle), &rules)
    };
    let thrift = SwapRules { thrift: true, ..LITERAL };
    assert_eq!(found("S8", thrift), "v1 v2 there");
    assert_eq!(found("S1", thrift), "v1 there, v3 back", "thrift keeps the only pair");
    let improve = SwapRules { improves: true, ..LITERAL };
    assert_eq!(found("S14", improve), "v1 there");
    assert_eq!(found("S13", improve), "none", "the swap would lower the smaller of both taus");
}

/// Trap 13 of [balancer]: weight 10 on a whole CPU, weight 0.5 on a tenth of a CPU. A migration of
/// weight 0.68 is close to the ideal, w_ideal. But the CPU that takes over that weight would then
/// have less CPU time per weight than the other CPU had before. The option `improves` rejects the
/// migration.
#[test]
fn balancer_option_rejects_swaps_that_lower_minimum_time_per_weight() {
    let heavy = Weight((932 << PLACES) / 100);
    let light = Weight((68 << PLACES) / 100);
    let mut hot = load(0, 1_000, 1, &[(0, 1_000), (0, 900)]);
    hot.members[0].weight = heavy;
    hot.members[1].weight = light;
    hot.weight = heavy.0 + light.0;
    let mut idle = load(1, 100, 3, &[(0, 2_000)]);
    idle.members[0].weight = Weight(1 << (PLACES - 1));
    idle.members[0].allowed = CpuSet::one(CpuId::new(1));
    idle.weight = 1 << (PLACES - 1);
    hot.members[0].allowed = CpuSet::one(CpuId::new(0));
    let rules = [LITERAL, SwapRules { improves: true, ..LITERAL }];
    let [literal, guarded] = rules.map(|rules| moves(&[hot.clone(), idle.clone()], &rules));
    assert_eq!(literal, "v2 there");
    assert_eq!(guarded, "none");
}

/// A vCPU that is bound to one CPU counts in the weight of that CPU, but does not migrate.
#[test]
fn balancer_never_migrates_a_vcpu_bound_to_one_cpu() {
    let mut loads = pair(WHOLE, &[(1, 5_000), (1, 5_000)], &[(1, 10_000)]);
    loads[0].members[0].allowed = CpuSet::one(CpuId::new(0));
    assert_eq!(moves(&loads, &LITERAL), "v2 there, v3 back");
    loads[0].members[1].allowed = CpuSet::one(CpuId::new(0));
    loads[0].reach = CpuSet::one(CpuId::new(0));
    assert_eq!(moves(&loads, &LITERAL), "none");
}

/// Figure 4.3 of the thesis: a vCPU of CPU 1 may also run on CPU 3, so all four CPUs are one group.
/// Yet CPU 0 must not swap with CPU 2 or 3, on which its own vCPU may not run.
#[test]
fn balancer_swaps_two_vcpus_only_if_affinity_allows_both_moves() {
    let mut loads =
        Vec::from([load(0, 1_000, 1, &[(4, 2_500)]), load(1, 1_000, 2, &[(1, 3_000); 3])]);
    loads.push(load(2, 1_000, 5, &[(1, 10_000)]));
    loads.push(load(3, 1_000, 6, &[(1, 10_000)]));
    let sets = |cpus: &[usize]| cpus.iter().map(|&cpu| CpuId::new(cpu)).collect::<CpuSet>();
    let confine = |load: &mut BalancerCpu, cpus: &CpuSet| {
        load.reach = CpuSet::one(load.cpu);
        load.reach.add(cpus);
        load.members.iter_mut().for_each(|member| member.allowed = *cpus);
    };
    confine(&mut loads[0], &sets(&[0, 1]));
    confine(&mut loads[1], &sets(&[0, 1]));
    confine(&mut loads[2], &sets(&[2, 3]));
    confine(&mut loads[3], &sets(&[2, 3]));
    loads[1].members[0].allowed = sets(&[0, 1, 3]);
    loads[1].reach.insert(CpuId::new(3));
    let moves = run(&loads, &SwapRules { retries: true, ..LITERAL }, CpuSet::one);
    assert!(!moves.is_empty());
    for going in moves {
        let member = loads.iter().flat_map(|load| &load.members);
        let allowed =
            member.filter(|member| member.vcpu == going.vcpu).map(|member| member.allowed);
        assert!(allowed.into_iter().all(|allowed| allowed.contains(going.to)), "{going:?}");
    }
}

mod random {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        /// Generates a CPU: its available time, and its vCPUs by weight and tau (CPU time per
        /// weight).
        fn cpu()(
            time in 0..1_000_u64,
            members in prop::collection::vec((0..9_u64, 0..20_000_u64), 0..6),
        ) -> (u64, Vec<(u64, u64)>) {
            (time, members)
        }
    }

    fn loads(cpus: &[(u64, Vec<(u64, u64)>)], maps: &[u8]) -> Vec<BalancerCpu> {
        let mut next = 0;
        let mut loads = Vec::new();
        for (cpu, (time, members)) in cpus.iter().enumerate() {
            let mut load = load(cpu, *time, next, members);
            load.reach = CpuSet::one(load.cpu);
            for member in &mut load.members {
                let map = maps[member.vcpu.slot() % maps.len()];
                let cpus = (0..8).filter(|&cpu| map >> cpu & 1 == 1).map(CpuId::new);
                member.allowed = cpus.chain([load.cpu]).collect();
                load.reach.add(&member.allowed);
            }
            next += u32::try_from(members.len()).unwrap();
            loads.push(load);
        }
        loads
    }

    proptest! {
        /// A vCPU migrates at most once in a run, from its CPU to one that its affinity allows. No
        /// core has two threads that each take over vCPUs in a pair. Under our repaired rules the
        /// lower tau of a pair (CPU time per weight) does not fall, unless equal weights are
        /// exchanged.
        #[test]
        fn balancer_swaps_obey_affinity_and_keep_minimum_time_per_weight(
            cpus in prop::collection::vec(cpu(), 2..8),
            maps in prop::collection::vec(any::<u8>(), 5),
            repaired in any::<bool>(),
        ) {
            let loads = loads(&cpus, &maps);
            let core_of = |cpu: CpuId| {
                let first = cpu.index() / 2 * 2;
                [first, first + 1].into_iter().map(CpuId::new).collect::<CpuSet>()
            };
            let rules = SwapRules {
                improves: repaired,
                thrift: repaired,
                by_lead: repaired,
                retries: repaired,
                ..LITERAL
            };
            let moves = run(&loads, &rules, core_of);
            let mut seen = Vec::new();
            // The idle side is the one with the higher tau.
            let mut idle: Vec<CpuId> = Vec::new();
            for going in &moves {
                let from = &loads[going.from.index()];
                let member = from.members.iter().find(|member| member.vcpu == going.vcpu);
                let member = member.expect("a migrating vCPU is on the CPU that it leaves");
                prop_assert!(member.allowed.contains(going.to));
                prop_assert!(!seen.contains(&going.vcpu));
                seen.push(going.vcpu);
                let is_idle = loads[going.to.index()].tau().compare(from.tau()).is_gt();
                if is_idle && !idle.contains(&going.to) {
                    let core = core_of(going.to);
                    prop_assert!(idle.iter().all(|&cpu| !core.contains(cpu)), "{moves:?}");
                    idle.push(going.to);
                }
            }
            let total = |cpu: CpuId| {
                let weight = |going: &Move| {
                    let members = loads.iter().flat_map(|load| &load.members);
                    let mut own = members.filter(|member| member.vcpu == going.vcpu);
                    i128::from(own.next().unwrap().weight.0)
                };
                let came = moves.iter().filter(|going| going.to == cpu).map(weight);
                let went = moves.iter().filter(|going| going.from == cpu).map(weight);
                came.sum::<i128>() - went.sum::<i128>()
            };
            for going in moves.iter().filter(|_| repaired) {
                let (from, to) = (&loads[going.from.index()], &loads[going.to.index()]);
                let lower = if from.tau().compare(to.tau()).is_lt() { from } else { to };
                for load in [from, to].into_iter().filter(|load| total(load.cpu) != 0) {
                    let weight = u64::try_from(i128::from(load.weight) + total(load.cpu)).unwrap();
                    let after = Tau { weight, ..load.tau() };
                    prop_assert!(after.compare(lower.tau()).is_ge(), "{moves:?}");
                }
            }
        }

        /// If all CPUs and vCPUs differ in tau (CPU time per weight), reversing the ids changes no
        /// migration.
        #[test]
        fn balancer_swaps_ignore_vcpu_ids_if_all_loads_differ(
            hot in prop::collection::btree_map(1..50_u64, 0..2_000_u64, 1..6),
            idle in prop::collection::btree_map(50..90_u64, 2_000..9_000_u64, 0..6),
        ) {
            let mut taus: Vec<u64> = hot.values().chain(idle.values()).copied().collect();
            taus.sort_unstable();
            taus.dedup();
            prop_assume!(taus.len() == hot.len() + idle.len());
            let sorted = |members: &std::collections::BTreeMap<u64, u64>| {
                let mut members: Vec<(u64, u64)> = members.iter().map(|(&w, &t)| (w, t)).collect();
                members.sort_unstable();
                members
            };
            let (hot, idle) = (sorted(&hot), sorted(&idle));
            let reversed = |members: &[(u64, u64)]| {
                members.iter().rev().copied().collect::<Vec<_>>()
            };
            let by_weight = |hot: &[(u64, u64)], idle: &[(u64, u64)], rules| {
                let loads = pair((1_000, 2_000), hot, idle);
                let ideal = ideal(&[&loads[0], &loads[1]]);
                let found = swap(&loads[0], &loads[1], ideal, rules);
                found.map(|Swap { there, back }| {
                    let weights = |load: &BalancerCpu, ids: Vec<VcpuId>| {
                        let is_named = |member: &&Member| ids.contains(&member.vcpu);
                        let members = load.members.iter().filter(is_named);
                        let mut weights: Vec<u64> = members.map(|member| member.weight.0).collect();
                        weights.sort_unstable();
                        weights
                    };
                    (weights(&loads[0], there), weights(&loads[1], back))
                })
            };
            for rules in [&LITERAL, &REPAIRED] {
                let there = by_weight(&hot, &idle, rules);
                prop_assert_eq!(there, by_weight(&reversed(&hot), &reversed(&idle), rules));
            }
        }
    }
}
