//! Plans computed by hand, and properties of all plans.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, DomId, VcpuId};

use super::super::groups::groups;
use super::super::{BalancerCpu, Member, PLACES, SAMPLE, Tau, Weight};
use super::{Item, Plan, PlanPacking, plan};

/// A CPU: its available time in thousandths of a CPU, and the weights of its vCPUs.
type Cpu<'a> = (u64, &'a [u64]);

fn loads(cpus: &[Cpu<'_>]) -> Vec<BalancerCpu> {
    let mut next = 0;
    let load = |(cpu, &(thousandths, weights)): (usize, &Cpu<'_>)| {
        let available = slackline_units::Span::from_ns(SAMPLE.ns() / 1_000 * thousandths);
        let mut load = BalancerCpu::empty(CpuId::new(cpu), available);
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

fn planned(loads: &[BalancerCpu]) -> Plan {
    plan(loads, &groups(loads), None)
}

/// Returns the planned rates in thousandths of a CPU, indexed by vCPU number.
fn rates(plan: &Plan, count: u32) -> Vec<u64> {
    let rate = |slot| plan.rate_of(VcpuId::new(slot, DomId::new(slot), 0));
    (0..count).map(|slot| (rate(slot) * 1_000).div_ceil(SAMPLE.ns())).collect()
}

/// Returns the pieces of each split vCPU: the CPU, and the quota in thousandths of the CPU.
fn pieces(plan: &Plan) -> Vec<Vec<(usize, u64)>> {
    let piece = |piece: &super::Piece| {
        (piece.cpu.index(), (piece.quota * 1_000 + SAMPLE.ns() / 2) / SAMPLE.ns())
    };
    plan.splits.iter().map(|split| split.pieces.iter().map(piece).collect()).collect()
}

#[test]
fn balancer_plans_vcpu_rates_by_weight_up_to_one_cpu() {
    let cases: [(&[Cpu<'_>], &[u64]); 6] = [
        (&[(1_000, &[1, 1]), (1_000, &[1])], &[667, 667, 667]),
        (&[(1_000, &[3]), (1_000, &[2, 2])], &[858, 572, 572]),
        // The heaviest vCPU gets at most one CPU: the CPU with the most room.
        (&[(1_000, &[10, 1]), (1_000, &[1, 1])], &[1_000, 334, 334, 334]),
        (&[(750, &[10, 1]), (500, &[1, 1])], &[750, 167, 167, 167]),
        // The two heaviest vCPUs divide the two CPUs with the most room.
        (&[(1_000, &[9]), (500, &[9]), (250, &[1])], &[750, 750, 250]),
        (&[(1_000, &[1]), (1_000, &[])], &[1_000]),
    ];
    for (cpus, expected) in cases {
        let loads = loads(cpus);
        let got = rates(&planned(&loads), u32::try_from(expected.len()).unwrap());
        assert_eq!(got, expected, "{cpus:?}");
    }
}

/// A vCPU that is runnable half of the time gets at most half a CPU and is not split.
#[test]
fn planned_rate_of_a_vcpu_never_exceeds_its_runnable_time() {
    let mut loads = loads(&[(1_000, &[4]), (1_000, &[1, 1])]);
    loads[0].members[0].runnable = SAMPLE.ns() / 2;
    let plan = planned(&loads);
    assert_eq!(rates(&plan, 3), [500, 750, 750]);
    assert!(plan.splits.iter().all(|split| split.vcpu.slot() != 0));
}

#[test]
fn planned_balancer_splits_vcpu_if_rate_fits_no_single_cpu() {
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

/// The smaller CPU takes the heaviest vCPU, which fills it. If the heaviest vCPU stayed on its
/// current CPU, neither CPU would have enough room for the other two vCPUs.
#[test]
fn planned_balancer_migrates_vcpus_if_that_avoids_a_split() {
    let plan = planned(&loads(&[(1_000, &[6]), (600, &[5, 5])]));
    assert_eq!(plan.splits, []);
    let mut cpus: Vec<_> =
        plan.whole.iter().map(|(vcpu, cpu)| (vcpu.slot(), cpu.index())).collect();
    cpus.sort_unstable();
    assert_eq!(cpus, [(0, 1), (1, 0), (2, 0)]);
}

/// A plan stays in force until a rate changes by more than a tenth, or a vCPU joins, leaves or
/// changes affinity.
#[test]
fn balancer_keeps_its_plan_until_rates_change_by_a_tenth() {
    let before = loads(&[(1_000, &[1, 1]), (1_000, &[1])]);
    let made = planned(&before);
    let again = |loads: &[BalancerCpu]| {
        !plan(loads, &groups(loads), Some(made.clone())).is_made_anew(&made)
    };
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

    /// Returns the place (CPU) of a vCPU by examining each CPU.
    fn plain_place(packing: &PlanPacking<'_>, item: &Item, stays: bool) -> Option<usize> {
        if stays && packing.fits(item, item.home) {
            return Some(item.home);
        }
        let room = |place: usize| packing.room[place];
        let open = || (0..packing.loads.len()).filter(|&place| packing.may_go(item, place));
        let enough = open().filter(|&place| packing.fits(item, place));
        let tightest = enough.min_by_key(|&place| (room(place), place != item.home, place));
        let roomiest = || open().max_by_key(|&place| (room(place), place == item.home, place));
        tightest.or_else(|| if item.is_tied { roomiest() } else { None })
    }

    /// Returns the places (CPUs) and quotas of a split vCPU by examining each CPU for each piece.
    fn plain_pieces(packing: &PlanPacking<'_>, item: &Item) -> Vec<(usize, u64)> {
        let mut left = item.rate;
        let mut taken: Vec<(usize, u64)> = Vec::new();
        while left > 0 {
            let ends = |place| packing.room[place] + packing.tolerance(place) >= left;
            let open = (0..packing.loads.len()).filter(|&place| {
                packing.may_go(item, place)
                    && packing.room[place] > 0
                    && taken.iter().all(|&(other, _)| other != place)
            });
            let best = open.max_by_key(|&place| {
                let is_free = packing.pieces[place] == 0;
                (ends(place) && is_free, is_free, packing.room[place], usize::MAX - place)
            });
            let Some(place) = best else { break };
            let quota = if ends(place) { left } else { packing.room[place] };
            taken.push((place, quota));
            left -= quota;
        }
        taken
    }

    /// Generates a time from a small set of values, so that many are equal and some differ by 1 or
    /// 2 ns.
    fn time() -> impl Strategy<Value = u64> {
        (0..9_u64, 0..3_u64).prop_map(|(eighths, ns)| SAMPLE.ns() / 8 * eighths + ns)
    }

    prop_compose! {
        fn item()(
            (rate, home, map, is_tied) in (time(), any::<u8>(), any::<u16>(), any::<bool>()),
        ) -> (u64, u8, u16, bool) {
            (rate, home, map, is_tied)
        }
    }

    proptest! {
        /// The search in order of unplanned time finds the same CPUs and pieces as a search of all
        /// CPUs.
        #[test]
        fn bin_packing_of_the_balancer_agrees_with_exhaustive_search(
            cpus in prop::collection::vec((time(), time()), 1..16),
            items in prop::collection::vec(item(), 0..40),
            stays in any::<bool>(),
        ) {
            let load = |(cpu, &(available, _)): (usize, &(u64, u64))| {
                BalancerCpu::empty(CpuId::new(cpu), slackline_units::Span::from_ns(available))
            };
            let loads: Vec<BalancerCpu> = cpus.iter().enumerate().map(load).collect();
            let rooms: Vec<u64> = cpus.iter().map(|&(all, room)| room.min(all)).collect();
            let group: Vec<usize> = (0..cpus.len()).collect();
            let mut packing = PlanPacking::new(&loads, &group, &rooms);
            for (slot, (rate, home, map, is_tied)) in (0..).zip(items) {
                let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
                let mine = group.iter().filter(|&place| map >> place & 1 == 1);
                let allowed = mine.map(|&place| CpuId::new(place)).collect();
                let home = usize::from(home) % group.len();
                let item = Item { vcpu, allowed, rate, home, is_tied };
                let place = packing.place_for(&item, stays);
                prop_assert_eq!(place, plain_place(&packing, &item, stays), "{:?}", item);
                if let Some(place) = place {
                    packing.put(&item, place);
                    continue;
                }
                let pieces = plain_pieces(&packing, &item);
                let (splits, whole) = (packing.splits.len(), packing.whole.len());
                packing.split(&item);
                let split = packing.splits[splits..].iter().flat_map(|split| &split.pieces);
                let split: Vec<_> = split.map(|piece| (piece.cpu.index(), piece.quota)).collect();
                if pieces.len() > 1 {
                    prop_assert_eq!(split, pieces, "{:?}", item);
                } else {
                    let cpu = pieces.first().map_or(home, |&(place, _)| place);
                    prop_assert_eq!(&packing.whole[whole..], &[(vcpu, CpuId::new(cpu))]);
                }
            }
        }

        /// Each vCPU is in the plan exactly once. Its quotas add up to its rate. If all vCPUs may
        /// run on all CPUs, no CPU is planned beyond its available time plus the tolerance
        /// (`SLOP`).
        #[test]
        fn balancer_plan_satisfies_each_vcpu_rate_and_overloads_no_cpu(
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
                prop_assert!(lacking <= 10, "{lacking} ns of {:?} are on no CPU", split);
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

/// Three vCPUs run on two CPUs, and one of them is split. Then other programs take a twentieth of
/// one CPU. No vCPU migrates, and the quotas follow the available time.
#[test]
fn balancer_keeps_placements_but_adapts_quotas_if_available_time_changes() {
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
