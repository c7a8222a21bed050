//! The manager with its real predictor, in simulated runs.

use slackline_scenario::Scenario;
use slackline_units::{CpuShare, Span};

use super::*;

const ROUND: Span = Span::from_secs(1);

/// Default number of drawn runs. `SLACKLINE_MANAGER_RUNS` sets another number.
const SEEDS: u64 = 4;

fn scenario(text: &str, seed: u64) -> Scenario {
    let series = Series::read(text).expect("the text is a series");
    let made =
        SeriesRun { round: ROUND, seed, noise_ppm: 100_000, is_limited: false, policy: "edf" };
    series.scenario(&made).expect("the series suits the policy")
}

fn plan() -> ManagePlan {
    let goals = GoalList::default().leaving(BATCH);
    ManagePlan { goals, round: ROUND, window: 2, pace: Pace::default() }
}

/// Returns a series of two VMs. The first VM needs twice as much from round `at` on.
fn step(at: usize, rounds: usize) -> String {
    let line = |round| if round < at { "15.0,20.0\n" } else { "30.0,20.0\n" };
    let lines: String = (0..rounds).map(line).collect();
    format!("# a step\nweb,db\n{lines}")
}

#[test]
fn manager_raises_share_after_vm_demand_doubles_and_states_reason() {
    let run = plan().run(&scenario(&step(8, 20), 1), RuleKind::Manager).expect("it is admitted");
    let rise = run.decisions.iter().find(|(at, _)| at.ns() >= 8_000_000_000);
    let (at, says) = rise.expect("the demand doubles");
    assert_eq!(at.ns(), 9_000_000_000, "{says}");
    assert!(says.starts_with("web ") && says.contains("misses"), "{says}");
    let last = run.rounds.last().expect("there are rounds");
    assert!(last.shares[0] >= last.needs[0], "{:?}", last.shares);
    assert_eq!(run.declined, 0);
}

#[test]
fn managed_simulation_makes_equal_decisions_if_repeated_with_same_input() {
    let scenario = scenario(&step(8, 20), 3);
    let [one, other] = [0, 1].map(|_| plan().run(&scenario, RuleKind::Manager).expect("it runs"));
    assert_eq!(one.decisions, other.decisions);
    let shares = |run: &ManagedRun| -> Vec<Vec<CpuShare>> {
        run.rounds.iter().map(|round| round.shares.clone()).collect()
    };
    assert_eq!(shares(&one), shares(&other));
}

#[test]
fn manager_with_whatif_predictor_keeps_floor_ceiling_and_admission_limit() {
    let goals = "[all]\nfloor = \"8%\"\nceiling = \"45%\"\n[vm.batch]\nleave = true\n";
    let goals = GoalList::read(goals).expect("the goals are valid");
    let seeds = std::env::var("SLACKLINE_MANAGER_RUNS").ok().and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(SEEDS) {
        let series = drawn_series(seed);
        let made =
            SeriesRun { round: ROUND, seed, noise_ppm: 100_000, is_limited: false, policy: "edf" };
        let scenario = series.scenario(&made).expect("the series suits the policy");
        let plan = ManagePlan { goals: goals.clone(), ..plan() };
        let run = plan.run(&scenario, RuleKind::Manager).expect("it is admitted");
        let first = run.rounds[0].shares.clone();
        for (number, round) in run.rounds.iter().enumerate() {
            let sum: u32 = round.shares.iter().map(|share| share.ppm()).sum();
            assert!(sum <= 940_000, "seed {seed}, round {number}: {sum}");
            for (share, first) in round.shares.iter().zip(&first) {
                let (least, most) = (first.ppm().min(80_000), first.ppm().max(450_000));
                assert!((least..=most).contains(&share.ppm()), "seed {seed}, round {number}");
            }
        }
        assert_eq!(run.declined, 0, "seed {seed}");
    }
}

#[test]
fn oracle_rule_has_no_misses_and_under_12_percent_overreservation() {
    let all = plan().compare(&scenario(&step(8, 24), 1)).expect("it is admitted");
    let of = |kind| {
        let run = all.iter().find(|(rule, _)| *rule == kind).map(|(_, run)| score(run, ROUND));
        run.expect("each rule was run")
    };
    let (fixed, oracle) = (of(RuleKind::Fixed), of(RuleKind::Oracle));
    assert_eq!(oracle.misses, 0);
    assert!(oracle.over_ppm < 120_000, "{oracle:?}");
    assert!(of(RuleKind::Manager).over_ppm < of(RuleKind::Neon).over_ppm);
    assert_eq!(fixed.changes, 0);
}

#[test]
fn scenario_without_a_managed_vm_is_refused() {
    let goals = GoalList::read("[all]\nleave = true\n").expect("the goals are valid");
    let plan = ManagePlan { goals, ..plan() };
    let error = plan.run(&scenario(&step(2, 4), 1), RuleKind::Manager);
    assert!(matches!(error, Err(ManageError::NoVms { policy: "edf" })));
    let short = ManagePlan { round: Span::from_secs(3), ..plan };
    let error = short.run(&scenario(&step(2, 4), 1), RuleKind::Manager);
    assert!(matches!(error, Err(ManageError::Short { .. })));
}

#[test]
fn manager_refuses_vm_with_spin_or_interactive_workload() {
    let text = |work: &str| {
        format!(
            "title = 't'\nlength = '4s'\npolicy = {{ name = 'edf' }}\n[[domain]]\nname = 'web'\n\
             work = {{ {work} }}\nshare.edf = {{ slice = '3ms', period = '10ms' }}\n"
        )
    };
    let with_task = |work: &str| {
        let task = "kernel = { quantum = '1ms' }\n[[domain.task]]\nwork = { WORK }\n\
                    [domain.share]\nedf = { slice = '3ms', period = '10ms' }\n";
        let text = text("");
        let (head, _) = text.split_once("work").expect("a VM has work");
        head.to_owned() + &task.replace("WORK", work)
    };
    let interactive = "kind = 'interactive', compute = '2ms', sleep = '8ms'";
    let endless = "kind = 'replay', list = ['1ms']";
    let closed = ["kind = 'spin'", interactive, endless];
    for text in closed.map(text).into_iter().chain(closed.map(with_task)) {
        let scenario = Scenario::read(&text).expect("the scenario is valid");
        let error = plan().run(&scenario, RuleKind::Manager).expect_err("the work is closed");
        assert!(error.to_string().starts_with("cannot manage `web`: its work "), "{error}");
    }
    let open = "kind = 'periodic', period = '10ms', work = '2ms'";
    for text in [text(open), with_task(open)] {
        let scenario = Scenario::read(&text).expect("the scenario is valid");
        assert!(plan().run(&scenario, RuleKind::Manager).is_ok());
    }
}
