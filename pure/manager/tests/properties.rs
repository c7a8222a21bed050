//! Random rounds with wrong measurements, and with bad predictors. A predictor answers correctly,
//! randomly, a round late, without one of the VMs, or not at all.

use std::collections::BTreeMap;

use slackline_demand::DemandCounts;
use slackline_manager::{
    ChangeReason, Decision, Goals, Manager, Pace, PredictedVm, Predictor, Round, VmRound,
};
use slackline_units::{CpuShare, Span};

/// Number of seeds of an ordinary test run. `cargo xtask manager` sets a larger number in
/// `SLACKLINE_MANAGER_SEEDS`.
const SEEDS: u64 = 3_000;

/// Number of rounds that are run for each seed.
const ROUNDS: u64 = 40;

const PERIODS: u64 = 500;

/// Random numbers: the generator splitmix64.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn ppm(&mut self, bound: u64) -> CpuShare {
        CpuShare::from_ppm(u32::try_from(self.below(bound)).expect("bounds are small"))
    }
}

/// Behaviour of a drawn predictor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Honesty {
    Right,
    Wrong,
    /// Answers with the prediction for the round before.
    Late,
    Silent,
    /// Answers for a wrong number of VMs.
    Confused,
}

struct DrawnPredictor<'a> {
    honesty: Honesty,
    demand: &'a [u64],
    draws: &'a mut Draws,
    before: &'a mut Option<Vec<PredictedVm>>,
}

impl Predictor for DrawnPredictor<'_> {
    fn predict(&mut self, shares: &[CpuShare]) -> Option<Vec<PredictedVm>> {
        let right = |(share, demand): (&CpuShare, &u64)| PredictedVm {
            misses: if u64::from(share.ppm()) < *demand { PERIODS } else { 0 },
            periods: PERIODS,
            share_ppm: ((*demand).min(share.ppm().into()), *demand),
            length: Span::from_secs(5),
        };
        let now: Vec<PredictedVm> = shares.iter().zip(self.demand).map(right).collect();
        match self.honesty {
            Honesty::Right => Some(now),
            Honesty::Silent => None,
            Honesty::Late => self.before.replace(now),
            Honesty::Confused => Some(now.into_iter().skip(1).collect()),
            Honesty::Wrong => Some(
                now.into_iter()
                    .map(|it| PredictedVm {
                        misses: self.draws.below(2 * PERIODS),
                        share_ppm: (self.draws.below(1_000_000), self.draws.below(2_000_000)),
                        ..it
                    })
                    .collect(),
            ),
        }
    }
}

/// Draws the VMs of a host. Some of their reservations begin below the floor or above the ceiling.
fn vms(draws: &mut Draws) -> Vec<VmRound> {
    let count = 1 + draws.below(5);
    let vm = |number: u64| {
        let floor = draws.ppm(150_000);
        let goals = Goals {
            misses_ppm: (draws.below(4) > 0).then(|| draws.ppm(50_000).ppm()),
            at_least: (draws.below(3) == 0).then(|| draws.ppm(300_000)),
            use_ppm: (draws.below(3) == 0).then(|| 1 + draws.ppm(1_000_000).ppm()),
        };
        VmRound {
            name: format!("vm{number}").parse().expect("it is a name"),
            period: Span::from_ms([1, 10, 100][usize::try_from(draws.below(3)).expect("small")]),
            share: draws.ppm(250_000),
            floor,
            ceiling: CpuShare::from_ppm(floor.ppm() + draws.ppm(900_000).ppm()),
            priority: u8::try_from(draws.below(4)).expect("small"),
            goals,
            demand: DemandCounts::new(),
            misses: 0,
            received: Span::ZERO,
        }
    };
    (0..count).map(vm).collect()
}

/// Measures a round. In one of eight rounds, the measured numbers are random and wrong.
fn measure(vm: &mut VmRound, demand: u64, draws: &mut Draws) {
    let lies = draws.below(8) == 0;
    let amount = vm.period * demand / 1_000_000;
    vm.demand = DemandCounts::from([(amount, PERIODS - 9), (amount + amount / 10, 9)]);
    let reserved = u64::from(vm.share.ppm());
    vm.misses = if demand > reserved { draws.below(PERIODS) } else { 0 };
    vm.received = Span::from_secs(5) * demand.min(reserved) / 1_000_000;
    if lies {
        vm.misses = draws.next();
        vm.received = Span::from_ns(draws.next() >> draws.below(60));
        let amount = Span::from_ns(draws.below(1_000_000_000));
        vm.demand = BTreeMap::from([(amount, draws.below(PERIODS))]);
    }
}

/// Checks that a change respects floor, ceiling and admission.
fn check(round: &Round, made: &Decision) -> Result<(), String> {
    let vm = round.vms.iter().find(|vm| vm.name == made.name).ok_or("the VM is not there")?;
    let sum: u64 = round.vms.iter().map(|vm| u64::from(vm.share.ppm())).sum();
    let after = sum - u64::from(vm.share.ppm()) + u64::from(made.to.ppm());
    if made.from != vm.share || made.to == vm.share {
        return Err(format!("{made} does not begin at {}", vm.share));
    }
    if made.to < vm.floor || made.to > vm.ceiling {
        return Err(format!("{made} is not within {} and {}", vm.floor, vm.ceiling));
    }
    if made.to > vm.share && after > u64::from(round.capacity.ppm()) {
        return Err(format!("{made} makes {after} of {}", round.capacity));
    }
    if vm.goals == Goals::default() {
        return Err(format!("{made} changes a VM without goals"));
    }
    Ok(())
}

/// Runs the rounds of one seed, and returns the decision of each round.
fn run(seed: u64) -> Vec<Option<Decision>> {
    let mut draws = Draws(seed);
    let mut vms = vms(&mut draws);
    let capacity = CpuShare::from_ppm(draws.ppm(1_000_000).ppm().max(100_000));
    let mut manager = Manager::new(Pace::default());
    let mut before = None;
    let mut demand: Vec<u64> = vms.iter().map(|_| draws.below(400_000)).collect();
    let mut all = Vec::new();
    for number in 0..ROUNDS {
        for (vm, demand) in vms.iter_mut().zip(&mut demand) {
            if draws.below(6) == 0 {
                *demand = draws.below(600_000);
            }
            measure(vm, *demand, &mut draws);
        }
        let round = Round { number, length: Span::from_secs(5), capacity, vms: vms.clone() };
        let honesty = match draws.below(6) {
            0 => Honesty::Wrong,
            1 => Honesty::Late,
            2 => Honesty::Silent,
            3 => Honesty::Confused,
            _ => Honesty::Right,
        };
        let mut predictor = DrawnPredictor {
            honesty,
            demand: &demand,
            draws: &mut Draws(seed ^ number),
            before: &mut before,
        };
        let made = manager.round(&round, &mut predictor);
        if let Some(made) = &made {
            check(&round, made).unwrap_or_else(|why| panic!("seed {seed}, round {number}: {why}"));
            let is_new = !matches!(made.why, ChangeReason::Undo(_));
            let is_mute = matches!(honesty, Honesty::Silent | Honesty::Confused);
            assert!(!(is_new && is_mute), "seed {seed}, round {number}: {made} is not predicted");
            // The service may refuse a change, the user may make another change, and a VM may
            // leave.
            match draws.below(10) {
                0 => {}
                1 => vms[0].share = draws.ppm(250_000),
                2 if vms.len() > 1 => {
                    vms.pop();
                    demand.pop();
                }
                _ => {
                    let vm = vms.iter_mut().find(|vm| vm.name == made.name);
                    vm.expect("it was checked").share = made.to;
                }
            }
        }
        all.push(made);
    }
    all
}

#[test]
#[allow(clippy::disallowed_methods)] // The long form of this test has more seeds.
fn manager_with_wrong_inputs_respects_floor_ceiling_and_capacity() {
    let seeds = std::env::var("SLACKLINE_MANAGER_SEEDS").ok().and_then(|text| text.parse().ok());
    let made: usize =
        (0..seeds.unwrap_or(SEEDS)).map(|seed| run(seed).iter().flatten().count()).sum();
    assert!(made > 1_000, "only {made} changes were made");
}

#[test]
fn manager_with_equal_inputs_makes_equal_decisions() {
    for seed in 0..100 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

#[test]
fn manager_raises_share_below_floor_even_without_deadline_misses() {
    let mut draws = Draws(7);
    let mut vm = vms(&mut draws).remove(0);
    vm.goals = Goals { misses_ppm: Some(1_000), ..Goals::default() };
    (vm.share, vm.floor, vm.ceiling) =
        (CpuShare::from_ppm(180_000), CpuShare::from_ppm(400_000), CpuShare::ONE);
    vm.demand = DemandCounts::from([(vm.period * 15 / 100, PERIODS)]);
    let length = Span::from_secs(5);
    let round = Round { number: 0, length, capacity: CpuShare::ONE, vms: vec![vm] };
    let mut predictor = DrawnPredictor {
        honesty: Honesty::Right,
        demand: &[150_000],
        draws: &mut draws,
        before: &mut None,
    };
    let made = Manager::new(Pace::default()).round(&round, &mut predictor);
    let made = made.expect("the floor is a promise");
    assert_eq!(made.to, CpuShare::from_ppm(400_000));
    assert!(made.to_string().contains("its floor or goal needs a larger share"), "{made}");
}
