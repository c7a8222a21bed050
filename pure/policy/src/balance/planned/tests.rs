//! Plans by hand, and what holds of every plan.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, DomId, VcpuId};

use super::super::groups::groups;
use super::super::{Load, Member, PLACES, SAMPLE, Tau, Weight};
use super::{Plan, plan};

/// Thousandths left of a CPU, and the weights there.
type Cpu<'a> = (u64, &'a [u64]);

fn loads(cpus: &[Cpu<'_>]) -> Vec<Load> {
    let mut next = 0;
    let load = |(cpu, &(thousandths, weights)): (usize, &Cpu<'_>)| {
        let available = slackline_units::Span::from_ns(SAMPLE.ns() / 1_000 * thousandths);
        let mut load = Load::empty(CpuId::new(cpu), available);
        for &units in weights {
            let vcpu = VcpuId::new(next, DomId::new(next), 0);
            next += 1;
            let (weight, served) = (Weight(units << PLACES), Tau::default());
            let (allowed, runnable) = (CpuSet::first_n(cpus.len()), SAMPLE.ns());
            load.add(Member { vcpu, weight, served, allowed, runnable, lead: 0 });
        }
        load
    };
    cpus.iter().enumerate().map(load).collect()
}

fn planned(loads: &[Load]) -> Plan {
    plan(loads, &groups(loads), None)
}

/// Thousandths of a CPU, by id.
fn rates(plan: &Plan, count: u32) -> Vec<u64> {
    let rate = |slot| plan.rate_of(VcpuId::new(slot, DomId::new(slot), 0));
    (0..count).map(|slot| (rate(slot) * 1_000).div_ceil(SAMPLE.ns())).collect()
}

/// By split: CPUs with thousandths there.
fn pieces(plan: &Plan) -> Vec<Vec<(usize, u64)>> {
    let piece = |piece: &super::Piece| {
        (piece.cpu.index(), (piece.quota * 1_000 + SAMPLE.ns() / 2) / SAMPLE.ns())
    };
    plan.splits.iter().map(|split| split.pieces.iter().map(piece).collect()).collect()
}

#[test]
fn rates_are_by_weight_as_far_as_cpus_can_give_it() {
    let cases: [(&[Cpu<'_>], &[u64]); 6] = [
        (&[(1_000, &[1, 1]), (1_000, &[1])], &[667, 667, 667]),
        (&[(1_000, &[3]), (1_000, &[2, 2])], &[858, 572, 572]),
        // The heaviest cannot have more than a CPU, on the roomiest of them.
        (&[(1_000, &[10, 1]), (1_000, &[1, 1])], &[1_000, 334, 334, 334]),
        (&[(750, &[10, 1]), (500, &[1, 1])], &[750, 167, 167, 167]),
        // The two heaviest share the two roomiest.
        (&[(1_000, &[9]), (500, &[9]), (250, &[1])], &[750, 750, 250]),
        (&[(1_000, &[1]), (1_000, &[])], &[1_000]),
    ];
    for (cpus, expected) in cases {
        let loads = loads(cpus);
        let got = rates(&planned(&loads), u32::try_from(expected.len()).unwrap());
        assert_eq!(got, expected, "{cpus:?}");
    }
}

/// Who sleeps half of the time has no more than half a CPU, and is not split.
#[test]
fn who_sleeps_has_what_it_can_use() {
    let mut loads = loads(&[(1_000, &[4]), (1_000, &[1, 1])]);
    loads[0].members[0].runnable = SAMPLE.ns() / 2;
    let plan = planned(&loads);
    assert_eq!(rates(&plan, 3), [500, 750, 750]);
    assert!(plan.splits.iter().all(|split| split.vcpu.slot() != 0));
}

#[test]
fn who_fits_nowhere_is_split() {
    assert_eq!(
        pieces(&planned(&loads(&[(1_000, &[1, 1]), (1_000, &[1])]))),
        [[(0, 333), (1, 333)]]
    );
    assert_eq!(
        pieces(&planned(&loads(&[(1_000, &[3]), (1_000, &[2, 2])]))),
        [[(1, 429), (0, 143)]],
        "R9"
    );
    let fit = planned(&loads(&[(1_000, &[1, 1]), (1_000, &[1, 1])]));
    assert_eq!(fit.splits, []);
    let moved = planned(&loads(&[(1_000, &[1, 1]), (1_000, &[])]));
    assert_eq!(moved.splits, []);
    assert!(moved.whole[0].1 != moved.whole[1].1);
}

/// A plan holds until a rate has moved by a tenth, or somebody came, went or is bound elsewhere.
#[test]
fn a_plan_holds_while_little_changes() {
    let before = loads(&[(1_000, &[1, 1]), (1_000, &[1])]);
    let made = planned(&before);
    let again =
        |loads: &[Load]| !plan(loads, &groups(loads), Some(made.clone())).is_made_anew(&made);
    let with = |thousandths| {
        let mut loads = before.clone();
        loads[0].available = SAMPLE.ns() / 1_000 * thousandths;
        loads
    };
    assert!(again(&with(900)), "5 % less each");
    assert!(!again(&with(700)), "15 % less each");
    let mut bound = before.clone();
    bound[0].members[0].allowed = CpuSet::one(CpuId::new(0));
    assert!(!again(&bound));
}

mod random {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Everybody is in the plan once, where it may be; quotas come to rates; no CPU is given
        /// away twice beyond the slop, where all may run everywhere.
        #[test]
        fn plans_give_everybody_its_rate(
            cpus in prop::collection::vec(
                (100..=1_000_u64, prop::collection::vec(1..5_u64, 0..5)), 1..9),
        ) {
            let cpus: Vec<Cpu<'_>> = cpus.iter().map(|(time, on)| (*time, &on[..])).collect();
            let loads = loads(&cpus);
            let plan = planned(&loads);
            let count: usize = cpus.iter().map(|(_, on)| on.len()).sum();
            let mut seen: Vec<usize> = plan.whole.iter().map(|(vcpu, _)| vcpu.slot()).collect();
            seen.extend(plan.splits.iter().map(|split| split.vcpu.slot()));
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..count).collect::<Vec<_>>());
            let mut given = vec![0; cpus.len()];
            for &(vcpu, cpu) in &plan.whole {
                given[cpu.index()] += plan.rate_of(vcpu);
            }
            for split in &plan.splits {
                let quotas: u64 = split.pieces.iter().map(|piece| piece.quota).sum();
                let lacking = split.rate - quotas;
                prop_assert!(lacking <= 10, "{lacking} ns of {:?} are nowhere", split);
                for piece in &split.pieces {
                    given[piece.cpu.index()] += piece.quota;
                }
            }
            for (load, given) in loads.iter().zip(given) {
                let most = load.available + load.available / 64 * 4;
                prop_assert!(given <= most, "{} has {given} of {}", load.cpu, load.available);
            }
        }
    }
}

/// Three on two CPUs, one of them split. Then others than ours have a twentieth of one CPU: nobody
/// is moved for that, and what is split goes by what there is now.
#[test]
fn a_plan_that_holds_goes_by_what_there_is_now() {
    let before = planned(&loads(&[(1_000, &[1, 1]), (1_000, &[1])]));
    let (whole, split) = (before.whole.clone(), before.splits[0].clone());
    assert_eq!(pieces(&before), [[(0, 333), (1, 333)]]);
    let less = loads(&[(950, &[1, 1]), (1_000, &[1])]);
    let now = plan(&less, &groups(&less), Some(before.clone()));
    assert!(!now.is_made_anew(&before));
    assert_eq!((now.whole, now.splits[0].vcpu), (whole, split.vcpu));
    assert_eq!(now.splits[0].rate, 65_000_000);
    let quotas = now.splits[0].pieces.iter().map(|piece| (piece.cpu.index(), piece.quota));
    assert_eq!(quotas.collect::<Vec<_>>(), [(0, 30_000_000), (1, 35_000_000)]);
}
