//! Tests that schedule CPUs of this host, one at a time. They need root.

#[path = "../common/mod.rs"]
mod common;

mod agents;
mod balancers;
mod ends;
mod enforce;
mod enforce_service;
mod faults;
mod full_disk;
mod gangs;
mod history;
mod hold;
mod hold_commands;
mod interference;
mod kills;
mod manage;
mod nested;
mod old_kernel;
mod outside;
mod page;
mod papers;
mod plans;
mod policies;
mod rebind;
mod scrape;
mod service;
mod service_people;
mod soak_mechanisms;
mod soak_service;
mod terms;
mod thousand;
mod trees;
mod unit;
mod whatif;
mod why;

/// Entry point of the *victims*: child processes that tests start from this program and then
/// schedule. Does nothing if the test harness runs it as a test.
#[test]
fn entry_point_of_helper_scheduled_process() {
    common::live::play_victim();
}
