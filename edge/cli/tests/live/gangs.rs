//! Tests of gangs with members on two daemons, which schedule different CPUs. The daemons act as
//! two hosts. Needs root.

use std::process::Stdio;
use std::time::Duration;

use crate::common::Ran;
use crate::common::live::{self, Live, Victim, let_pass, wait_until};
use crate::common::service::{Machine, ask, spawn_on};
use rustix::process::Signal;
use serde_json::Value;
use slackline_linux::sys::online_cpus;

const HOSTS: [&str; 2] = ["socket-a", "socket-b"];

/// Starts both daemons. Prints a note and returns `None` if the host has a single CPU.
fn two_hosts(live: &Live) -> Option<[Machine; 2]> {
    let cpus: Vec<String> =
        online_cpus().unwrap().iter().map(|cpu| cpu.index().to_string()).collect();
    let [.., one, other] = &cpus[..] else {
        println!("skipped: needs two CPUs");
        return None;
    };
    let daemons = [(one, "a"), (other, "b")].map(|(cpu, host)| {
        let (state, socket) = (format!("state-{host}"), format!("socket-{host}"));
        Machine(spawn_on(cpu, live, &state, &socket))
    });
    for host in HOSTS {
        wait_until("a daemon to answer", || live.run(&["list", "--socket", host]).code == Some(0));
    }
    Some(daemons)
}

/// Writes a gang file that has one of these VMs on each daemon.
fn write(live: &Live, name: &str, slice: &str, machines: [&str; 2]) {
    let members = HOSTS.iter().zip(machines).map(|(host, machine)| {
        format!("[[member]]\nhost = \"{host}\"\nfor = \"{machine}\"\nvcpus = 1\n")
    });
    let members: String = members.collect();
    let terms = format!("slice = \"{slice}\"\nperiod = \"10ms\"\nphase = \"3ms\"\nexact = true\n");
    let text = format!("name = \"{name}\"\n{terms}{members}");
    live.place.write(&format!("{name}.toml"), text.as_bytes());
}

fn shown(live: &Live, host: &str, name: &str) -> Option<Value> {
    let path = format!("/v1/reservations/{name}");
    let (status, reservation) = ask(&live.place.path(host), "GET", &path, None)?;
    (status == 200).then_some(reservation)
}

#[test]
fn gang_begins_on_both_live_hosts_or_on_no_host() {
    let Some(live) = live::begin() else { return };
    let Some(mut daemons) = two_hosts(&live) else { return };
    let victims = [Victim::start(), Victim::start()];
    let machines = [0, 1].map(|index: usize| format!("pid:{}", victims[index].pid()));
    write(&live, "bsp", "3ms", [&machines[0], &machines[1]]);
    let mut watcher = live.command(&["gang", "bsp.toml", "--watch"]);
    watcher.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let watcher = watcher.spawn().expect("the program can be started");
    for (host, name) in HOSTS.into_iter().zip(["bsp-1", "bsp-2"]) {
        wait_until("a member to begin", || {
            // Root may send 50 requests per second, and the watcher sends some as well.
            let_pass(Duration::from_millis(50));
            shown(&live, host, name).is_some_and(|one| one["state"] == "active")
        });
        let one = shown(&live, host, name).unwrap();
        assert_eq!((&one["gang"], &one["phase"]), (&"bsp".into(), &"3ms".into()), "{one}");
    }
    assert!(victims.iter().all(Victim::is_held));
    // If one host has no capacity, no member stays on the other, and the error names the host and
    // the amount.
    let fill = ["reserve", "fill", "--slice", "5ms", "--vcpus", "1", "--for", "qemu:fill"];
    live.run(&[&fill[..], &["--socket", HOSTS[1]]].concat()).ended_with(0);
    write(&live, "big", "4ms", ["qemu:one", "qemu:two"]);
    let refused = live.run(&["gang", "big.toml"]).ended_with(4);
    refused
        .says("cannot start gang big, so no member keeps a reservation: big-2 on socket-b")
        .says("4ms");
    assert_eq!(shown(&live, HOSTS[0], "big-1"), None);
    // If one member is lost, the daemon of the other is notified, and that member continues.
    let [first, second] = victims;
    drop(second);
    let said = Ran::new(&watcher.wait_with_output().expect("the watcher ends")).ended_with(3);
    said.shows("gang bsp starts in")
        .says("gang bsp lost its member bsp-2, so the other members keep their reservations");
    let alone = shown(&live, HOSTS[0], "bsp-1").expect("the other member continues");
    assert_eq!((&alone["state"], &alone["gang"]), (&"active".into(), &Value::Null), "{alone}");
    live.run(&["log", "bsp-1", "--socket", HOSTS[0]]).ended_with(0).shows("gang-broken");
    assert!(first.is_held());
    for daemon in &mut daemons {
        live::kill(i32::try_from(daemon.0.id()).unwrap(), Signal::TERM);
        wait_until("a daemon to end", || daemon.0.try_wait().unwrap().is_some());
    }
    first.is_given_back();
    live.nothing_is_left();
}
