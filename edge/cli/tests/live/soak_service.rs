//! Soak test: VMs of a daemon start, change, pause, stop and start again, with a fault every
//! minute. Four conditions must hold. The daemon schedules only threads that have a reservation,
//! and no acknowledged change is lost. `list` agrees with the kernel, and no process uses more and
//! more resources. Needs root.
//!
//! By default each fault happens once. `cargo xtask soak-service --minutes 120` runs longer.

#![allow(unreachable_pub)] // Shared by the modules of this test only.

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

/// Environment variable with the length of the test in seconds. The test causes a fault every
/// minute.
const LENGTH: &str = "SLACKLINE_SOAK_SECONDS";

/// Environment variable with the number of kills in direct succession.
const KILLS: &str = "SLACKLINE_SOAK_KILLS";

/// Lengths of time in seconds for which the daemon runs, with the faults in each. Growth can be
/// detected only if a process lives long, so in the long runs no fault kills the daemon's core
/// process.
const LIVES: [(u64, &[Fault]); 6] = [
    (130, &Fault::ALL),
    (130, &Fault::ALL),
    (130, &Fault::ALL),
    (1500, &Fault::BUT_THE_CORE),
    (1500, &Fault::BUT_OURS),
    (130, &Fault::ALL),
];

#[test]
fn entry_point_of_helper_vm() {
    machine::play();
}

#[test]
fn reservations_survive_every_fault_that_the_soak_test_injects() {
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
