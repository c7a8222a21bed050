//! Whoever is interrupted, stopped or killed, and whenever: every thread is given back, and nobody
//! is left. Needs root.

use std::time::Duration;

use crate::common::live::{self, Kernel, Live, Runner, Victim, let_pass, wait_until};
use rustix::process::Signal;

/// The keepers of the test's runs.
fn keepers(live: &Live) -> Vec<i32> {
    live.processes_of("keep")
}

#[test]
fn a_signal_ends_the_run_with_a_table_and_nothing_held() {
    let Some(live) = live::begin() else { return };
    for (signal, threads) in
        [(Signal::INT, "process"), (Signal::TERM, "vcpus"), (Signal::HUP, "process")]
    {
        let victim = Victim::start();
        let runner = live.start(&victim.scenario(threads, "60s"));
        wait_until("the victim to be held", || victim.is_held());
        let_pass(Duration::from_millis(300));
        runner.signal(signal);
        let ran = runner.end().ended_with(130).shows("victim").shows("delivered");
        let ran = ran.shows("note: stopped at ");
        assert_eq!(ran.err, "");
        victim.is_given_back();
        live.nothing_is_left();
    }
}

/// On a terminal the load processes hear it as well.
#[test]
fn a_key_on_the_terminal_ends_the_run_as_well() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let runner = live.start(&victim.scenario("process", "60s"));
    wait_until("the victim to be held", || victim.is_held());
    let_pass(Duration::from_millis(300));
    runner.signal_group(Signal::INT);
    runner.end().ended_with(130).shows("note: stopped at ");
    victim.is_given_back();
    live.nothing_is_left();
}

/// Whoever sits there goes away while the run tells how far it is: nobody hears it any more, and
/// that ends nothing; what ends it is the signal.
#[test]
fn a_terminal_that_is_closed_takes_nothing_with_it() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let (outside, inside) = crate::common::terminal();
    let mut runner = live.start_on(inside, &victim.scenario("process", "60s"));
    wait_until("the victim to be held", || victim.is_held());
    // It tells nothing in the first two seconds.
    let_pass(Duration::from_millis(2500));
    drop(outside);
    let_pass(Duration::from_millis(500));
    assert!(runner.is_running() && victim.is_held());
    runner.signal(Signal::HUP);
    // The table cannot be shown.
    runner.end().ended_with(3);
    victim.is_given_back();
    live.nothing_is_left();
}

/// Before anything runs there is no table to show, but as much to give back.
#[test]
fn a_signal_while_a_run_is_set_up_ends_it_too() {
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
fn a_run_that_was_stopped_for_a_while_goes_on_to_its_end() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let runner = live.start(&victim.scenario("process", "3500ms"));
    wait_until("the victim to be held", || victim.is_held());
    let_pass(Duration::from_millis(300));
    runner.signal(Signal::STOP);
    let_pass(Duration::from_secs(2));
    runner.signal(Signal::CONT);
    let ran = runner.end().ended_with(0).shows("victim");
    assert_eq!(ran.err, "");
    victim.is_given_back();
    live.nothing_is_left();
}

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Whom {
    Runner,
    Keeper,
    Both,
    Load,
}

/// Moments in milliseconds after the run was started: its set-up takes about 220, and it lasts 700
/// from there, so these are set-up, the first moments, the middle and the end. A busy machine moves
/// all of them, which is no less good a test.
const MOMENTS: [(u64, u64); 4] = [(1, 219), (219, 224), (300, 900), (915, 925)];

/// A sequence of numbers that look random, the same in every run.
struct Dice(u64);

impl Dice {
    fn between(&mut self, least: u64, most: u64) -> u64 {
        // Knuth's linear congruential generator; its high bits are the good ones.
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

/// One run in which somebody is killed, at a moment in this part of it.
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
        // The run goes on, unless it had not begun: then it says why it does not.
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

/// Nobody is left to give anything back: it is found and given back by hand. A keeper that had not
/// been killed, because it was started only then, does it by itself.
///
/// That nothing else is left is looked for only afterwards: while the victim spins as a real-time
/// thread, the kernel's own work on its CPU, which ends processes, gets a twentieth of it.
fn both_are_dead(live: &Live, victim: &Victim) {
    let says = format!("of process {} ", victim.pid());
    if victim.is_held() {
        let doctor = live.run(&["doctor"]).good();
        // One that is being given back just now is on no list any more.
        assert!(doctor.contains(&says) || !victim.is_held(), "{doctor}");
    }
    live.run(&["doctor", "--free"]).good();
    let doctor = live.run(&["doctor"]).good();
    assert!(!doctor.contains(&says), "{doctor}");
}

fn kill_at_every_part(kernel: Kernel, whom: Whom, seed: u64) {
    let Some(live) = live::begin_on(kernel) else { return };
    // Another number tries other moments.
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
fn the_runner_is_killed() {
    kill_at_every_part(Kernel::Ours, Whom::Runner, 1);
    kill_at_every_part(Kernel::Ours, Whom::Runner, 2);
}

#[test]
fn the_keeper_is_killed() {
    kill_at_every_part(Kernel::Ours, Whom::Keeper, 3);
    kill_at_every_part(Kernel::Ours, Whom::Keeper, 4);
}

#[test]
fn the_runner_and_its_keeper_are_killed() {
    kill_at_every_part(Kernel::Ours, Whom::Both, 5);
    kill_at_every_part(Kernel::Ours, Whom::Both, 6);
}

#[test]
fn a_load_process_is_killed() {
    kill_at_every_part(Kernel::Ours, Whom::Load, 7);
}

/// Without the descriptors that newer kernels have of threads and processes.
#[cfg(target_arch = "x86_64")]
#[test]
fn whoever_is_killed_on_an_old_kernel() {
    for (whom, seed) in [(Whom::Runner, 8), (Whom::Keeper, 9), (Whom::Both, 10), (Whom::Load, 11)] {
        kill_at_every_part(Kernel::Linux44, whom, seed);
    }
}

/// A keeper that dies in the middle is replaced, and the new one does what the old one would have.
#[test]
fn a_keeper_that_was_replaced_gives_back_as_well() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let runner = live.start(&victim.scenario("vcpus", "10s"));
    wait_until("the victim to be held", || victim.is_held());
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
