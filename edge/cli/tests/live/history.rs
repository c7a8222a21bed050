//! Tests of `slackline history` with a daemon that is killed and restarted: CPU time by hour. Needs
//! root.

use std::time::{Duration, Instant};

use crate::common::live::{self, Victim, let_pass, wait_until};
use crate::common::service::{Daemon, Machine};
use serde_json::Value;

/// Hours of a reservation's history. Sums over these hours are computed in seconds.
struct Sums(Vec<Value>);

impl Sums {
    fn of(daemon: &Daemon<'_>, name: &str) -> Sums {
        let path = format!("/v1/history/{name}?since=3h");
        let (status, body) = daemon.ask("GET", &path, None);
        assert_eq!(status, 200, "{body}");
        Sums(body.as_array().unwrap().clone())
    }

    fn sum(&self, key: &str) -> f64 {
        self.0.iter().map(|hour| hour[key].as_f64().unwrap()).sum::<f64>() / 1e9
    }
}

#[test]
fn history_counts_time_without_a_running_daemon_as_unknown() {
    let Some(live) = live::begin() else { return };
    let name = format!("day-{}", std::process::id());
    let machine = Machine::start(&name);
    let daemon = Daemon::start(&live);
    let reserved = Instant::now();
    let command = format!("reserve {name} --slice 2ms --exact --vcpus 1 --for qemu:{name}");
    daemon.run(&command).ended_with(0);
    let_pass(Duration::from_secs(3));
    let before = Sums::of(&daemon, &name);
    let used = before.sum("delivered_ns");
    // The reservation is a fifth of a CPU. A busy test machine may deliver less.
    let passed = reserved.elapsed().as_secs_f64();
    assert!(used > 0.1 && used < passed * 0.3 + 0.1, "{used} s of {passed} s");
    assert!(before.sum("unknown_ns") < 0.01, "{:?}", before.0);
    let share = before.sum("reserved_ns") / before.sum("existed_ns");
    assert!((share - 0.2).abs() < 0.001, "{share}");
    let killed = Instant::now();
    daemon.kill();
    let_pass(Duration::from_secs(2));
    let without = killed.elapsed().as_secs_f64();
    let daemon = Daemon::start(&live);
    let answers = killed.elapsed().as_secs_f64();
    wait_until("a later account", || {
        Sums::of(&daemon, &name).sum("existed_ns") > before.sum("existed_ns") + without + 1.0
    });
    let after = Sums::of(&daemon, &name);
    let unknown = after.sum("unknown_ns");
    // The query before the kill, at most 0.2 s earlier, has written the last account.
    assert!(unknown >= without, "{unknown} s of at least {without} s");
    assert!(unknown <= answers + 1.0, "{unknown} s of at most {answers} s");
    // Without the daemon the VM used a whole CPU. None of that counts as delivered.
    let most = used + (killed.elapsed().as_secs_f64() - without) * 0.5 + 0.1;
    assert!(after.sum("delivered_ns") < most, "{:?}", after.0);
    daemon.run(&format!("history {name} --csv")).ended_with(0).shows("from,existed,unknown");
    daemon.run(&format!("history {name} --by day")).ended_with(0).shows("delivered");
    daemon.run("history nobody").ended_with(0).shows("no CPU use of nobody is recorded");
    // The history of a reservation outlives the reservation.
    daemon.run(&format!("release {name}")).ended_with(0);
    let_pass(Duration::from_millis(1_200));
    let ended = Sums::of(&daemon, &name);
    assert!(ended.sum("existed_ns") >= after.sum("existed_ns"), "{:?}", ended.0);
    daemon.end().ended_with(0);
    let daemon = Daemon::start(&live);
    let again = Sums::of(&daemon, &name);
    assert_eq!(again.0, ended.0);
    drop(machine);
}

#[test]
fn history_counts_unsaved_time_before_daemon_kill_as_unknown() {
    let Some(live) = live::begin() else { return };
    let name = format!("new-{}", std::process::id());
    let machine = Machine::start(&name);
    let daemon = Daemon::start(&live);
    daemon.run(&format!("reserve {name} --slice 2ms --vcpus 1 --for qemu:{name}")).ended_with(0);
    // No query is sent meanwhile, since a query would write an account.
    let_pass(Duration::from_millis(1_500));
    daemon.kill();
    let_pass(Duration::from_secs(1));
    let daemon = Daemon::start(&live);
    let sums = Sums::of(&daemon, &name);
    let (existed, unknown) = (sums.sum("existed_ns"), sums.sum("unknown_ns"));
    assert!(existed >= 2.4 && unknown >= 2.0, "{:?}", sums.0);
    drop(machine);
}

#[test]
fn history_counts_time_of_reservation_in_contested_state() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &victim, "2ms").0, 201);
    let_pass(Duration::from_millis(2_500));
    live::kill(victim.pid(), rustix::process::Signal::STOP);
    wait_until("the reservation to be contested", || daemon.one("web")["state"] == "contested");
    let_pass(Duration::from_secs(2));
    let sums = Sums::of(&daemon, "web");
    let (contested, existed) = (sums.sum("contested_ns"), sums.sum("existed_ns"));
    assert!(contested >= 1.9 && contested <= existed - 2.0, "{:?}", sums.0);
    live::kill(victim.pid(), rustix::process::Signal::CONT);
    wait_until("the reservation to be active", || daemon.one("web")["state"] == "active");
    let before = Sums::of(&daemon, "web").sum("contested_ns");
    let_pass(Duration::from_millis(1_500));
    let after = Sums::of(&daemon, "web").sum("contested_ns");
    assert!(after - before < 1.2, "{before} s, then {after} s");
}
