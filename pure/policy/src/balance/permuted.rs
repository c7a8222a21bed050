//! Ids are names: where nothing is equal, whoever is called otherwise goes to the same place.
//! [balancer §5.4]

use alloc::vec::Vec;

use proptest::prelude::*;
use slackline_units::{CpuId, CpuSet, DomId, VcpuId};

use super::groups::groups;
use super::pairs::{self, Rules};
use super::{Load, Member, Move, Parts, SAMPLE, Tau, Weight, planned};

const CPUS: usize = 6;

/// Somebody, but for its name: where it is, weight, time for that, how far ahead, where it may be.
type Somebody = (usize, u64, u64, i64, u8);

fn vcpu(slot: usize) -> VcpuId {
    let slot = u32::try_from(slot).unwrap();
    VcpuId::new(slot, DomId::new(slot), 0)
}

/// The CPUs as they are with these names, each of whose members stand in order of that.
fn loads(left: &[u64], all: &[Somebody], names: &[usize]) -> Vec<Load> {
    let mut loads: Vec<Load> = (0..CPUS)
        .map(|cpu| Load { available: left[cpu], ..Load::empty(CpuId::new(cpu), SAMPLE) })
        .collect();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|&who| names[who]);
    for who in order {
        let (cpu, weight, time, lead, may) = all[who];
        let mut allowed: CpuSet = CpuSet::one(CpuId::new(cpu));
        allowed.extend((0..CPUS).filter(|to| may >> to & 1 == 1).map(CpuId::new));
        let (weight, served) = (Weight(weight), Tau { time, weight });
        let runnable = SAMPLE.ns();
        loads[cpu].add(Member { vcpu: vcpu(names[who]), weight, served, allowed, runnable, lead });
    }
    loads
}

/// By who it is, not by what it is called.
fn told(mut moves: Vec<Move>, names: &[usize]) -> Vec<(usize, CpuId, CpuId)> {
    let who = |going: &Move| names.iter().position(|&name| vcpu(name) == going.vcpu).unwrap();
    let mut told: Vec<_> =
        moves.drain(..).map(|going| (who(&going), going.from, going.to)).collect();
    told.sort_unstable();
    told
}

/// Whether no two weights, nor two times for them, are the same.
fn is_without_ties(all: &[Somebody]) -> bool {
    let differ = |key: fn(&Somebody) -> u128| {
        let mut keys: Vec<u128> = all.iter().map(key).collect();
        keys.sort_unstable();
        keys.windows(2).all(|pair| pair[0] != pair[1])
    };
    differ(|one| one.1.into())
        && differ(|one| (u128::from(one.2) << 64) / u128::from(one.1))
        && differ(|one| one.3.unsigned_abs().into())
}

proptest! {
    #[test]
    fn whoever_is_called_otherwise_goes_to_the_same_place(
        left in prop::collection::vec(SAMPLE.ns() / 4..SAMPLE.ns(), CPUS),
        all in prop::collection::vec(
            (0..CPUS, 1_u64 << 14..1 << 18, 1_u64 << 20..1 << 27, 0_i64..1 << 40, any::<u8>()),
            1..20,
        ),
        names in Just((0..20_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        prop_assume!(is_without_ties(&all));
        let as_drawn: Vec<usize> = (0..20).collect();
        let [first, second] = [&as_drawn, &names].map(|names| loads(&left, &all, names));
        for is_repaired in [false, true] {
            let rules = Rules {
                close: Parts { some: 1, of: 2 },
                least: Parts { some: 1, of: 8 },
                improves: is_repaired,
                thrift: false,
                by_lead: is_repaired,
                retries: is_repaired,
            };
            let run = |loads: &[Load], names: &[usize]| {
                told(pairs::run(loads, &groups(loads), &rules, CpuSet::one), names)
            };
            prop_assert_eq!(run(&first, &as_drawn), run(&second, &names));
        }
        let rates = |loads: &[Load], names: &[usize]| {
            let plan = planned::plan(loads, &groups(loads), None);
            let rate = |who: usize| plan.rate_of(vcpu(names[who]));
            (0..all.len()).map(rate).collect::<Vec<u64>>()
        };
        prop_assert_eq!(rates(&first, &as_drawn), rates(&second, &names));
    }
}
