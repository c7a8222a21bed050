//! Soak test of the mechanisms: each process of `hold` and of the daemon is killed while a
//! mechanism enforces. Afterwards no thread differs from its state before. Needs root.
//!
//! By default each process is killed once for each mechanism. `cargo xtask soak-mechanisms --rounds
//! 200` kills more often.

use std::env;
use std::time::{Duration, Instant};

use crate::common::live::{self, Live, Victim, kill, let_pass, wait_until};
use crate::common::service::Daemon;
use crate::enforce::{WAYS, is_enforced};
use crate::hold::Holding;
use rustix::process::Signal;

/// Environment variable with the number of kills for each mechanism.
const ROUNDS: &str = "SLACKLINE_SOAK_ROUNDS";

/// Options with which the dispatcher holds a VM.
const DISPATCHER: (&str, &[&str]) = ("dispatcher", &["--vcpus", "--slice", "2ms"]);

/// Processes of `hold` that a round kills together. Each process is named by a word of its command
/// line.
const OF_HOLD: [&[&str]; 3] = [&["hold"], &["keep"], &["hold", "keep"]];

/// Processes of the daemon that a round kills together. Each process is named by a word of its
/// command line.
const OF_DAEMON: [&[&str]; 4] = [&["serve"], &["serve-front"], &["keep"], &["serve", "keep"]];

/// Returns the number of kills for each mechanism.
fn rounds(usual: usize) -> usize {
    env::var(ROUNDS).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Kills processes of the test by words in their command lines. A keeper is first stopped, so that
/// it restores nothing before it is killed.
fn kill_all(live: &Live, words: &[&str]) {
    let pids: Vec<i32> = words.iter().flat_map(|word| live.processes_of(word)).collect();
    if words.len() > 1 {
        pids.iter().for_each(|&pid| kill(pid, Signal::STOP));
    }
    pids.iter().for_each(|&pid| kill(pid, Signal::KILL));
}

/// Kills processes of a `hold`, and waits until the `hold` has ended.
fn round_of_hold(live: &Live, way: &[&str], words: &[&str], after: Duration) {
    let victim = Victim::start();
    let pid = victim.pid().to_string();
    let holding = Holding::start(live, &[&["hold", "--pid", &pid], way].concat());
    wait_until("the mechanism to enforce", || is_enforced(&victim) || victim.is_held());
    let_pass(after);
    kill_all(live, words);
    match words {
        ["keep"] => {
            let_pass(Duration::from_millis(20));
            assert!(is_enforced(&victim) || victim.is_held(), "enforcement outlives the keeper");
            holding.signal(Signal::INT);
            holding.end().ended_with(0);
        }
        _ => {
            assert_eq!(holding.end().code, None);
            if words.contains(&"keep") {
                live.run(&["doctor", "--free"]).ended_with(0);
            }
        }
    }
    victim.is_given_back();
    assert!(!is_enforced(&victim), "{way:?} after {words:?} were killed");
    live.nothing_is_left();
}

/// Kills processes of a daemon that enforces one reservation, and ends the daemon. If `is_kept`,
/// the kernel goes on enforcing after the death of the daemon, until `doctor --free`.
fn round_of_daemon(live: &Live, (by, is_kept): (&str, bool), words: &[&str], after: Duration) {
    let victim = Victim::start();
    let cpu = live.cpu();
    let mut serve = vec!["serve", "--cpus", cpu.as_str(), "--state", "state", "--socket", "socket"];
    if is_kept {
        // A separate word `keep` would look like the keeper's command.
        serve.extend(["--on-death=keep", "--keep-for", "5min"]);
    }
    let daemon = Daemon::start_by(live, live.command(&serve)).expect("the daemon starts");
    let reserve = format!(
        "reserve web --slice 1ms --period 10ms --exact --for pid:{pid}",
        pid = victim.pid()
    );
    daemon.run(&format!("{reserve} --enforce {by}")).ended_with(0);
    let is_in_force = || is_enforced(&victim) || victim.is_held();
    assert!(is_in_force());
    let_pass(after);
    kill_all(live, words);
    if words.contains(&"serve") {
        daemon.kill();
        if is_kept {
            let_pass(Duration::from_millis(50));
            assert!(is_enforced(&victim), "{by} is kept after {words:?} were killed");
        }
        if is_kept || words.contains(&"keep") {
            live.run(&["doctor", "--free"]).ended_with(0);
        }
    } else {
        let is_replaced = || words.iter().all(|word| daemon.process_of(word).is_some());
        wait_until("the process to be replaced", is_replaced);
        assert!(is_in_force(), "{by} stays in force after {words:?} were killed");
        wait_until("the daemon to answer", || daemon.try_ask("GET", "/v1/host", None).is_some());
        daemon.run("release web").ended_with(0);
        daemon.end().ended_with(0);
    }
    victim.is_given_back();
    assert!(!is_enforced(&victim), "{by} after {words:?} were killed");
    live.nothing_is_left();
    std::fs::remove_dir_all(live.place.path("state")).expect("the daemon made its folder");
}

/// Runs all rounds of one mechanism, and prints how many there were.
fn all_rounds(name: &str, kills: &[&[&str]], round: impl Fn(&[&str], Duration)) {
    let (rounds, began) = (rounds(kills.len()), Instant::now());
    for number in 0..rounds {
        // A prime step visits all parts of a period.
        let after = Duration::from_millis(number as u64 * 37 % 100);
        round(kills[number % kills.len()], after);
    }
    println!("{name}: {rounds} rounds in {} s, all threads restored", began.elapsed().as_secs());
}

#[test]
fn threads_are_restored_after_process_kills_under_every_enforcement_mechanism() {
    let Some(live) = live::begin() else { return };
    for (name, way) in std::iter::once(DISPATCHER).chain(WAYS) {
        let round = |words: &[&str], after| round_of_hold(&live, way, words, after);
        all_rounds(&format!("hold by {name}"), &OF_HOLD, round);
    }
    for (by, is_kept) in [("dispatcher", false), ("deadline", false), ("deadline", true)] {
        let round = |words: &[&str], after| round_of_daemon(&live, (by, is_kept), words, after);
        let kept = if is_kept { ", kept" } else { "" };
        all_rounds(&format!("reserve by {by}{kept}"), &OF_DAEMON, round);
    }
}
