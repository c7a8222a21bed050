//! Deterministic simulation of the service: people, machines, the ledger and the scheduler's real
//! policy, with faults and deaths, and what must hold after each step.

mod checks;
mod disk;
mod draw;
mod drawn;
mod exhaustive;
mod kernel;
mod run;
mod scheduler;
mod world;

use world::Lie;

/// Says how many seeds to run, and from which one on: `N` or `N from M`.
const SEEDS: &str = "SLACKLINE_SEEDS";

/// How many are run otherwise: a few seconds on one core.
const FEW: u64 = 3000;

/// What a seed that fails has to say, with the last of what happened.
fn failure(seed: u64, lie: Option<Lie>) -> String {
    let Err((error, trace)) = drawn::run(seed, lie, true) else {
        return format!("seed {seed} fails only without a trace");
    };
    let last = trace.len().saturating_sub(60);
    format!("seed {seed}: {error}\n{}", trace[last..].join("\n"))
}

#[test]
fn whatever_happens_promises_are_kept_or_taken_back_whole() {
    #[allow(clippy::disallowed_methods)] // How much is tried, not what comes of it.
    let asked = std::env::var(SEEDS).unwrap_or_default();
    let (seeds, from) = asked.split_once(" from ").unwrap_or((&asked, "0"));
    let seeds: u64 = seeds.parse().unwrap_or(FEW);
    let from: u64 = from.parse().unwrap_or(0);
    let mut all = drawn::Tally::default();
    for seed in from..from + seeds {
        match drawn::run(seed, None, false) {
            Ok(tally) => {
                all.deaths += tally.deaths;
                all.done += tally.done;
                all.no_room += tally.no_room;
                all.not_durable += tally.not_durable;
            }
            Err(_) => panic!("{}", failure(seed, None)),
        }
    }
    // Else nothing was tried that could have gone wrong.
    let each = [all.deaths, all.done, all.no_room, all.not_durable];
    assert!(seeds < 100 || each.iter().all(|&count| u64::from(count) > seeds / 10), "{all:?}");
}

#[test]
fn every_lie_of_the_world_is_found() {
    for lie in Lie::ALL {
        let found = (0..2000).find(|&seed| drawn::run(seed, Some(lie), false).is_err());
        assert!(found.is_some(), "{lie:?} is not found in 2,000 seeds");
    }
}
