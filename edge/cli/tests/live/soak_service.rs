//! A daemon whose machines come, change, pause, go and come back, while a fault happens every
//! minute: nothing is left held that nobody reserved, nothing that was acknowledged is lost, what
//! `list` says is what the kernel says, and nothing grows. Needs root.
//!
//! Each fault once here; `cargo xtask soak-service --minutes 120` for longer.

#![allow(unreachable_pub)] // What topics of this test share is nobody else's.

mod faults;
mod growth;
mod machine;
mod model;
mod soak;

use std::env;
use std::time::Duration;

use crate::common::live;
use faults::Fault;
use soak::Soak;

/// How long it goes on, in seconds, with a fault a minute.
const LENGTH: &str = "SLACKLINE_SOAK_SECONDS";

/// How many kills follow each other at once.
const KILLS: &str = "SLACKLINE_SOAK_KILLS";

/// How long the daemon lives between two deaths, in seconds, and who may die meanwhile: what grows
/// shows in who lives long.
const LIVES: [(u64, &[Fault]); 6] = [
    (130, &Fault::ALL),
    (130, &Fault::ALL),
    (130, &Fault::ALL),
    (1500, &Fault::BUT_THE_CORE),
    (1500, &Fault::BUT_OURS),
    (130, &Fault::ALL),
];

#[test]
fn part_machine() {
    machine::play();
}

#[test]
fn whatever_happens_what_is_promised_is_kept_and_nothing_else_is_held() {
    let Some(live) = live::begin() else { return };
    let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (length, kills) = (number(LENGTH), number(KILLS));
    let Some(mut soak) = Soak::begin(&live) else { return };
    match (length, kills) {
        (None, None) => {
            for fault in Fault::ALL {
                soak.go_on(Duration::from_millis(200));
                soak.meet(fault);
            }
        }
        _ => {
            soak.kill_often(kills.unwrap_or(0));
            let length = Duration::from_secs(length.unwrap_or(0));
            for (life, faults) in LIVES.iter().cycle() {
                if soak.elapsed() >= length {
                    break;
                }
                soak.live_for(Duration::from_secs(*life).min(length - soak.elapsed()), faults);
            }
        }
    }
    soak.end();
}
