//! Tests of interrupts, stops and kills at any time during a run. Every thread is restored, and no
//! process remains. Needs root.

use std::time::Duration;

use crate::common::live::{self, Kernel, Live, Runner, Victim, let_pass, wait_until};
use rustix::process::Signal;

/// Returns the keepers of the test's runs: processes that restore threads if a run is killed.
fn keepers(live: &Live) -> Vec<i32> {
    live.processes_of("keep")
}

#[test]
fn live_run_that_receives_signal_prints_its_table_and_ends() {
    let Some(live) = live::begin() else { return };
    for (signal, threads) in
        [(Signal::INT, "process"), (Signal::TERM, "vcpus"), (Signal::HUP, "process")]
    {
        let victim = Victim::start();
        let runner = live.start(&victim.scenario(threads, "60s"));
        wait_until("the victim to be scheduled", || victim.is_held());
        let_pass(Duration::from_millis(300));
        runner.signal(signal);
        let ran = runner.end().ended_with(130).shows("victim").shows("delivered");
        let ran = ran.shows("note: stopped at ");
        assert_eq!(ran.err, "");
        victim.is_given_back();
        live.nothing_is_left();
    }
}

#[test]
fn json_output_of_interrupted_live_run_says_interrupted_true() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let scenario = victim.scenario("process", "60s");
    let runner = live.start_with("it", &scenario, &["--json"]);
    wait_until("the victim to be scheduled", || victim.is_held());
    let_pass(Duration::from_millis(300));
    runner.signal(Signal::INT);
    let ran = runner.end().ended_with(130);
    let json: serde_json::Value = serde_json::from_str(&ran.out).expect("valid JSON");
    assert_eq!(json["interrupted"], true, "{json}");
    assert_eq!(json["runs"].as_array().map(Vec::len), Some(1));
    victim.is_given_back();
    live.nothing_is_left();
}

/// A signal from the terminal reaches the load processes too.
#[test]
fn interrupt_key_ends_a_live_run_and_its_load_processes() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let runner = live.start(&victim.scenario("process", "60s"));
    wait_until("the victim to be scheduled", || victim.is_held());
    let_pass(Duration::from_millis(300));
    runner.signal_group(Signal::INT);
    runner.end().ended_with(130).shows("note: stopped at ");
    victim.is_given_back();
    live.nothing_is_left();
}

/// The terminal is closed while the run prints its progress. The failing output does not end the
/// run. A later signal ends the run.
#[test]
fn live_run_continues_if_its_terminal_is_closed() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let (outside, inside) = crate::common::terminal();
    let mut runner = live.start_on(inside, &victim.scenario("process", "60s"));
    wait_until("the victim to be scheduled", || victim.is_held());
    // The run shows no progress in the first two seconds.
    let_pass(Duration::from_millis(2500));
    drop(outside);
    let_pass(Duration::from_millis(500));
    assert!(runner.is_running() && victim.is_held());
    runner.signal(Signal::HUP);
    // The table cannot be printed, so the run fails.
    runner.end().ended_with(3);
    victim.is_given_back();
    live.nothing_is_left();
}

/// A signal arrives before the run starts. No table is printed, and every thread is restored.
#[test]
fn live_run_that_is_interrupted_before_start_restores_all_threads() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    for delay in [0, 30, 100, 200] {
        let runner = live.start(&victim.scenario("vcpus", "60s"));
        wait_until("the keeper", || !keepers(&live).is_empty());
        let_pass(Duration::from_millis(delay));
        runner.signal(Signal::INT);
        runner.end().ended_with(130);
        victim.is_given_back();
        live.nothing_is_left();
    }
}

#[test]
fn live_run_that_is_stopped_by_sigstop_continues_after_sigcont() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let runner = live.start(&victim.scenario("process", "3500ms"));
    wait_until("the victim to be scheduled", || victim.is_held());
    let_pass(Duration::from_millis(300));
    runner.signal(Signal::STOP);
    let_pass(Duration::from_secs(2));
    runner.signal(Signal::CONT);
    let ran = runner.end().ended_with(0).shows("victim");
    assert_eq!(ran.err, "");
    victim.is_given_back();
    live.nothing_is_left();
}

/// Process that the test kills: the program that runs the scenario, its keeper, or both. A keeper
/// restores threads if its run is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Whom {
    Runner,
    Keeper,
    Both,
    Load,
}

/// Ranges of times for a kill, in milliseconds after the start of the program. The set-up takes
/// about 220 ms, and the run 700 ms. So the ranges are in the set-up, at the start, in the middle
/// and at the end of the run. On a busy host they are at other stages, but the tested property is
/// the same.
const MOMENTS: [(u64, u64); 4] = [(1, 219), (219, 224), (300, 900), (915, 925)];

/// A deterministic sequence of pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn between(&mut self, least: u64, most: u64) -> u64 {
        // This is Knuth's linear congruential generator, whose high bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        least + (self.0 >> 33) % (most - least + 1)
    }
}

fn kill_whom(live: &Live, runner: &Runner<'_>, whom: Whom) {
    let keepers = keepers(live);
    let loads = live.processes_of("load");
    if matches!(whom, Whom::Keeper | Whom::Both) {
        keepers.into_iter().for_each(|pid| live::kill(pid, Signal::KILL));
    }
    if matches!(whom, Whom::Runner | Whom::Both) {
        runner.signal(Signal::KILL);
    }
    if whom == Whom::Load {
        loads.into_iter().for_each(|pid| live::kill(pid, Signal::KILL));
    }
}

/// Makes one run, in which a process of kind `whom` is killed after this delay.
fn kill_at(live: &Live, whom: Whom, threads: &str, delay: Duration) {
    let victim = Victim::start();
    let runner = live.start(&victim.scenario(threads, "700ms"));
    let_pass(delay);
    kill_whom(live, &runner, whom);
    let ran = runner.end();
    match whom {
        Whom::Runner | Whom::Both => {
            assert!(matches!(ran.code, None | Some(0)), "{:?}: {}", ran.code, ran.err);
        }
        // The run continues. If it had not started yet, it fails with a reason.
        _ => match ran.code {
            Some(0) => {}
            _ => drop(ran.refused(3)),
        },
    }
    if whom == Whom::Both {
        both_are_dead(live, &victim);
    }
    victim.is_given_back();
    live.nothing_is_left();
}

/// Checks the victim after the program and its keeper were killed. No process remains that could
/// restore the threads, so `doctor` finds and restores them. A keeper that had just been started
/// can survive and restore the threads itself.
///
/// Other leftovers of the run are checked only after `doctor` has restored the threads. Until then
/// the victim computes as a real-time thread, and the kernel has only a twentieth of the victim's
/// CPU for the work of ending processes.
fn both_are_dead(live: &Live, victim: &Victim) {
    let says = format!("of process {} ", victim.pid());
    if victim.is_held() {
        let doctor = live.run(&["doctor"]).good();
        // A thread that is being restored right now is on no list.
        assert!(doctor.contains(&says) || !victim.is_held(), "{doctor}");
    }
    live.run(&["doctor", "--free"]).good();
    let doctor = live.run(&["doctor"]).good();
    assert!(!doctor.contains(&says), "{doctor}");
}

fn kill_at_every_part(kernel: Kernel, whom: Whom, seed: u64) {
    let Some(live) = live::begin_on(kernel) else { return };
    // A number in this environment variable selects other times of the kills.
    let more = std::env::var("SLACKLINE_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let mut dice = Dice(seed + 16 * more.unwrap_or(0));
    dice.between(0, 1);
    for (round, (least, most)) in MOMENTS.into_iter().enumerate() {
        let threads = ["process", "vcpus"][(round + usize::from(seed.is_multiple_of(2))) % 2];
        let delay = Duration::from_micros(dice.between(least * 1000, most * 1000));
        println!("{whom:?} is killed after {delay:?}, {threads}");
        kill_at(&live, whom, threads, delay);
    }
}

#[test]
fn threads_are_restored_if_live_run_is_killed() {
    kill_at_every_part(Kernel::Ours, Whom::Runner, 1);
    kill_at_every_part(Kernel::Ours, Whom::Runner, 2);
}

#[test]
fn threads_are_restored_if_keeper_dies() {
    kill_at_every_part(Kernel::Ours, Whom::Keeper, 3);
    kill_at_every_part(Kernel::Ours, Whom::Keeper, 4);
}

#[test]
fn threads_are_restored_after_kill_of_live_run_and_keeper() {
    kill_at_every_part(Kernel::Ours, Whom::Both, 5);
    kill_at_every_part(Kernel::Ours, Whom::Both, 6);
}

#[test]
fn threads_are_restored_if_load_process_of_run_is_killed() {
    kill_at_every_part(Kernel::Ours, Whom::Load, 7);
}

/// The program under test runs on a simulated kernel without pidfds.
#[cfg(target_arch = "x86_64")]
#[test]
fn threads_are_restored_after_kills_on_kernel_without_pidfds() {
    for (whom, seed) in [(Whom::Runner, 8), (Whom::Keeper, 9), (Whom::Both, 10), (Whom::Load, 11)] {
        kill_at_every_part(Kernel::Linux44, whom, seed);
    }
}

/// A keeper that dies is replaced. If the program dies later, the new keeper restores the threads.
#[test]
fn second_keeper_process_restores_threads_of_killed_live_run() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let runner = live.start(&victim.scenario("vcpus", "10s"));
    wait_until("the victim to be scheduled", || victim.is_held());
    let_pass(Duration::from_millis(200));
    let first = keepers(&live);
    assert_eq!(first.len(), 1);
    live::kill(first[0], Signal::KILL);
    wait_until("another keeper", || keepers(&live).iter().any(|pid| !first.contains(pid)));
    runner.signal(Signal::KILL);
    assert_eq!(runner.end().code, None);
    victim.is_given_back();
    live.nothing_is_left();
}
