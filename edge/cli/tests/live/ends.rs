//! Tests of `reserve --until` and `change --until` with a real daemon. Needs root.

use std::time::{Duration, Instant};

use crate::common::live::{self, Victim, let_pass, wait_until};
use crate::common::service::Daemon;

#[test]
fn threads_are_restored_when_their_reservation_ends() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = Daemon::start(&live);
    let reserve = format!("reserve web --slice 2ms --until 2s --for pid:{}", victim.pid());
    let begun = Instant::now();
    daemon.run(&reserve).ended_with(0).shows(", until ");
    assert!(victim.is_held());
    wait_until("the reservation to end", || {
        daemon.ask("GET", "/v1/reservations/web", None).0 == 404
    });
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    victim.is_given_back();
    daemon.run("log web --csv --columns who,what").ended_with(0).shows("service,expired");
    daemon.run("room").ended_with(0);
}

#[test]
fn reservation_ending_while_no_daemon_runs_is_not_reactivated() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = Daemon::start(&live);
    daemon.run(&format!("reserve web --slice 2ms --for pid:{}", victim.pid())).ended_with(0);
    daemon.run("change web --until 1s").ended_with(0);
    daemon.kill();
    let_pass(Duration::from_secs(3));
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.ask("GET", "/v1/reservations/web", None).0, 404);
    victim.is_given_back();
    let log = daemon.run("log web --csv --columns what").ended_with(0).out;
    assert!(log.ends_with("change\nexpired\n"), "{log}");
}
