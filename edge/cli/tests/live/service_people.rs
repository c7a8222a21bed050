//! Tests of `slackline serve`: permissions of users, reloading of files, and capabilities of the
//! daemon. Needs root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::live::{self, Victim, wait_until};
use crate::common::service::{Daemon, Machine};
use crate::common::{Place, Ran};
use rustix::process::Signal;
use serde_json::json;
use slackline_linux::sys::{Scheduling, Tid, get_scheduling, online_cpus};

/// Prices, groups and certificates are reloaded while reservations stay in force. If a file is
/// invalid, the previous values stay in force.
#[test]
fn daemon_reloads_prices_on_sighup_and_ignores_an_invalid_file() {
    let Some(live) = live::begin() else { return };
    let price = |text: &str| {
        let text = format!("currency = \"EUR\"\ncpu-hour = \"{text}\"\n");
        live.place.write("prices", text.as_bytes());
    };
    price("0.04");
    let words = ["serve", "--cpus", &live.cpu(), "--state", "state", "--socket", "socket"];
    let mut command = live.command(&words);
    command.args(["--prices", "prices"]);
    let daemon = Daemon::start_by(&live, command).expect("a daemon");
    let victim = Victim::start();
    assert_eq!(daemon.reserve("web", &victim, "2ms").0, 201);
    let cost = || daemon.one("web")["cost"]["hour"].clone();
    assert_eq!(cost(), "0.008");
    let front = || daemon.process_of("serve-front");
    let first = front();
    price("0.08");
    live::kill(daemon.pid(), Signal::HUP);
    wait_until("the new price", || cost() == "0.016");
    wait_until("another front", || front().is_some_and(|other| Some(other) != first));
    price("dear");
    live::kill(daemon.pid(), Signal::HUP);
    wait_until("the refusal", || daemon.said().contains("which stay as they were: prices:2:12"));
    assert_eq!((cost(), daemon.one("web")["state"].clone()), ("0.016".into(), "active".into()));
    daemon.end().ended_with(0);
    victim.is_given_back();
    live.nothing_is_left();
}

/// A reservation waits for a VM. A VM of another user with the same name starts, and does not get
/// the reservation.
#[test]
fn waiting_reservation_ignores_same_named_vm_of_another_user() {
    const STRANGER: u32 = 54_321;
    let Some(live) = live::begin() else { return };
    let name = format!("taken-{}", std::process::id());
    let daemon = Daemon::start(&live);
    let body = json!({ "slice": "2ms", "vcpus": 1, "for": format!("qemu:{name}") });
    let (status, made) = daemon.ask("PUT", "/v1/reservations/web", Some(&body));
    assert_eq!((status, &made["state"], &made["user"]), (201, &json!("waiting"), &json!(0)));
    let stranger = Machine::start_by(&name, STRANGER);
    let why = || daemon.one("web")["why"].as_str().unwrap_or_default().to_owned();
    wait_until("the VM of the other user", || {
        why().contains("uid 54321, and this reservation is for uid")
    });
    assert_eq!(daemon.one("web")["state"], "waiting");
    // The right VM gets the reservation while the other one runs.
    let machine = Machine::start(&name);
    wait_until("the machine to be found", || daemon.one("web")["state"] == "active");
    // The reservation is not passed on, not even after the daemon was killed.
    daemon.kill();
    drop(machine);
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.one("web")["state"], "waiting");
    // An administrator may reserve for the stranger's VM explicitly.
    let (status, _) = daemon.ask("DELETE", "/v1/reservations/web", None);
    assert_eq!(status, 200);
    let body = json!({ "slice": "2ms", "for": format!("qemu:{name}"), "user": 1 });
    let (status, problem) = daemon.ask("PUT", "/v1/reservations/web", Some(&body));
    assert_eq!((status, &problem["type"]), (404, &json!("no-machine")), "{problem}");
    let body = json!({ "slice": "2ms", "for": format!("qemu:{name}") });
    let (status, made) = daemon.ask("PUT", "/v1/reservations/web", Some(&body));
    assert_eq!((status, &made["user"]), (201, &json!(STRANGER)), "{made}");
    drop(stranger);
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// The test uses a client on another host, from the creation of its token to the token's
/// revocation.
#[test]
fn remote_client_keeps_role_and_limits_until_token_is_revoked() {
    let Some(live) = live::begin() else { return };
    let path = |name: &str| live.place.path(name);
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(path("certificate"), signed.cert.pem()).unwrap();
    fs::write(path("key"), signed.signing_key.serialize_pem()).unwrap();
    // The port is free now.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let tls = ["--listen", &address, "--certificate", "certificate", "--key", "key"];
    let cpu = live.cpu();
    let serve = ["serve", "--cpus", &cpu, "--state", "state", "--socket", "socket"];
    let serve = [&serve[..], &tls[..]].concat();
    // A key that other users may read is refused.
    fs::set_permissions(path("key"), fs::Permissions::from_mode(0o644)).unwrap();
    live.run(&serve).refused(2).says("key: other users may access it (mode 0644)");
    fs::set_permissions(path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    let daemon = Daemon::start_by(&live, live.command(&serve)).expect("the daemon answers");

    let local = |words: &str| daemon.run(words);
    let token = local("access add alice --role operator --cpu 15% --users 0").good();
    assert!(token.starts_with("slk_") && token.trim_end().len() == 68, "{token}");
    fs::write(path("token"), &token).unwrap();
    let url = format!("https://localhost:{}", address.rsplit(':').next().unwrap());
    let remote = |words: &str, token: &str| {
        let at = ["--host", &url, "--ca", "certificate", "--token", token];
        let words: Vec<&str> = words.split(' ').chain(at).collect();
        live.run(&words)
    };
    fs::set_permissions(path("token"), fs::Permissions::from_mode(0o644)).unwrap();
    remote("list", "token").refused(2).says("token: other users may access it");
    fs::set_permissions(path("token"), fs::Permissions::from_mode(0o600)).unwrap();
    remote("list", "token").ended_with(0);
    // A reload keeps the certificate in force if the file has errors.
    let good = fs::read(path("certificate")).unwrap();
    fs::write(path("certificate"), "no certificate").unwrap();
    live::kill(daemon.pid(), Signal::HUP);
    wait_until("the invalid certificate to be refused", || {
        daemon.said().contains("cannot reload certificates, which stay as they were")
    });
    assert!(daemon.said().contains("groups take effect when the certificates are valid"));
    fs::write(path("certificate"), good).unwrap();
    remote("list", "token").ended_with(0);
    let victim = Victim::start();
    let reserve = format!("reserve web --slice 1ms --period 10ms --for pid:{}", victim.pid());
    remote(&reserve, "token").ended_with(0);
    assert_eq!(daemon.one("web")["owner"], "@alice");
    let over = remote("change web --slice 2ms", "token");
    over.refused(4).says("@alice would have 0.2cpu in total, more than the limit of 0.15cpu");
    remote("access list", "token").refused(5).says("`access` is not permitted for role operator");
    let root = local("access add carol --role administrator").good();
    fs::write(path("root"), &root).unwrap();
    fs::set_permissions(path("root"), fs::Permissions::from_mode(0o600)).unwrap();
    remote("access list", "root").refused(5).says("`access` is not permitted over the network");
    // The token is shown only in the answer.
    let list = local("access list --json").good();
    assert!(list.contains("@alice") && !list.contains(token.trim_end()), "{list}");
    let ledger = fs::read(path("state/ledger.db-wal")).unwrap();
    let secret = token.trim_end().as_bytes();
    assert!(!ledger.windows(secret.len()).any(|part| part == secret), "the ledger has the token");

    local("access revoke alice").ended_with(0);
    remote("list", "token").refused(5).says("does not know this token");
    assert!(victim.is_held(), "the reservation stays in force");
    daemon.end().ended_with(0);
    victim.is_given_back();
    live.nothing_is_left();
}

/// An operator may make reservations only for the operator's own VMs. Other requests fail with exit
/// code 5.
#[test]
fn operator_may_reserve_only_for_vms_of_that_operator() {
    const OPERATOR: u32 = 65_534;
    const GROUP: u32 = 54_323;
    let Some(live) = live::begin() else { return };
    let groups = live.place.path("group");
    let known = fs::read_to_string("/etc/group").unwrap();
    let known = known.lines().filter(|line| !line.starts_with("slackline"));
    let known: String = known.map(|line| format!("{line}\n")).collect();
    fs::write(&groups, format!("{known}slackline:x:{GROUP}:\n")).unwrap();
    // Only the daemon sees a host with this group.
    let Some(daemon) = Daemon::start_with_groups(&live, &groups) else { return };
    let name = |whose: &str| format!("{whose}-{}", std::process::id());
    let own = Machine::start_by(&name("mine"), OPERATOR);
    let other = Machine::start_by(&name("theirs"), 0);
    let ask = |words: &str| {
        let words: Vec<&str> = words.split(' ').chain(["--socket", "socket"]).collect();
        let command = live.place.command_of_nobody(&words);
        Ran::new(&command.expect("the test runs as root").gid(GROUP).output().unwrap())
    };
    // Without a grant the user is a tenant, to whom the VMs of other users look absent.
    let hidden = name("theirs");
    let asked = ask(&format!("reserve web --slice 1ms --period 10ms --for qemu:{hidden}"));
    asked.refused(2).says(&format!("cannot count the vCPUs of qemu:{hidden}: it is not on"));
    let asked = ask(&format!("reserve web --slice 1ms --period 10ms --for pid:{}", other.0.id()));
    asked.refused(5).says("belongs to uid 0, and uid 65534 may not reserve for VMs of that user");
    // A VM that does not run yet cannot be claimed for another user either.
    let asked = ask("reserve web --slice 1ms --period 10ms --vcpus 1 --for qemu:later --user 0");
    asked.refused(5).says("qemu:later: the VM belongs to uid 0");
    ask(&format!("reserve web --slice 1ms --period 10ms --for qemu:{}", name("mine")))
        .ended_with(0);
    assert_eq!(daemon.one("web")["owner"], json!(format!("uid {OPERATOR}")));
    ask("release web").ended_with(0);
    // An administrator may extend the operator's permissions, within limits.
    let admin = |words: &str| daemon.run(&format!("access {words}"));
    ask("access list").refused(5);
    admin("add 65534 --role operator --cpu 15% --machines 2 --users 0").ended_with(0);
    let theirs = format!("qemu:{}", name("theirs"));
    ask(&format!("reserve web --slice 1ms --period 10ms --for {theirs}")).ended_with(0);
    let over = ask("reserve db --slice 1ms --period 10ms --vcpus 1 --for qemu:later");
    over.refused(4).says("uid 65534 would have 0.2cpu in total, more than the limit of 0.15cpu");
    ask("change web --slice 2ms").refused(4).says("uid 65534 would have 0.2cpu");
    ask("reserve db --slice 50us --period 10ms --vcpus 1 --for qemu:later").ended_with(0);
    let over = ask("reserve third --slice 50us --period 10ms --vcpus 1 --for qemu:third");
    over.refused(4).says("would have 3 reservations, more than the limit of 2");
    // Grants survive the daemon, as reservations do.
    daemon.kill();
    let Some(daemon) = Daemon::start_with_groups(&live, &groups) else { return };
    let admin = |words: &str| daemon.run(&format!("access {words}"));
    assert!(admin("list").ended_with(0).out.contains("uid 65534"));
    // The limits and the users of the grant are still in force.
    ask("change web --slice 2ms").refused(4).says("more than the limit of 0.15cpu");
    ask("reserve third --slice 50us --period 10ms --vcpus 1 --for qemu:third --user 1")
        .refused(5)
        .says("the VM belongs to uid 1");
    admin("add 65534 --role viewer").ended_with(0);
    ask("release web").refused(5).says("cannot release: the caller's role");
    ask("list").ended_with(0);
    admin("revoke 65534").ended_with(0);
    admin("revoke 65534").refused(2).says("there is no grant for 65534");
    ask("release web").ended_with(0);
    let verbs = ["granted", "revoked"].map(|verb| daemon.run("log").out.contains(verb));
    assert_eq!(verbs, [true, true]);
    drop((own, other));
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

#[test]
fn second_daemon_cannot_share_cpus_or_ledger_or_socket() {
    let Some(live) = live::begin() else { return };
    let daemon = Daemon::start(&live);
    let cpu = live.cpu();
    let refused =
        live.run(&["serve", "--cpus", &cpu, "--state", "other", "--socket", "other.sock"]);
    refused.refused(3).says("another slackline, process ");
    let first = online_cpus().unwrap().iter().next().unwrap().index().to_string();
    if first != cpu {
        let refused =
            live.run(&["serve", "--cpus", &first, "--state", "state", "--socket", "other.sock"]);
        refused.refused(3).says("another process uses it");
        let refused =
            live.run(&["serve", "--cpus", &first, "--state", "other", "--socket", "socket"]);
        refused.refused(3).says("another daemon already listens there");
    } else {
        println!("skipped: the ledger and the socket, because they need a second CPU");
    }
    assert_eq!(daemon.ask("GET", "/health", None).1["good"], true);
    daemon.end().ended_with(0);
    live.run(&["serve", "--cpus", "255", "--state", "state"]).refused(2);
    live.nothing_is_left();
}

#[test]
fn daemon_processes_have_few_capabilities_and_front_process_has_none() {
    let Some(live) = live::begin() else { return };
    let daemon = Daemon::start(&live);
    let status = |pid: i32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |pid: i32, name: &str| {
        let text = status(pid);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{name} of {pid}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let front = daemon.process_of("serve-front").unwrap();
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(front, name), "0000000000000000", "{name}");
    }
    assert_eq!(field(front, "NoNewPrivs"), "1");
    let class = get_scheduling(Tid::new(front).unwrap()).unwrap().class;
    assert_eq!(class, Scheduling::Other { nice: -20 });
    let uids = field(front, "Uid");
    assert!(uids.split(' ').all(|uid| uid != "0"), "{uids}");
    let gids = field(front, "Gid");
    assert!(gids.split(' ').all(|gid| gid != "0"), "{gids}");
    // Core and keeper have the capabilities to hold and restore threads, and no others. None of
    // their threads can mount file systems, load modules, trace or change the network.
    let is_there = |path: &str| std::path::Path::new(path).is_dir();
    let is_mounted =
        is_there("/sys/kernel/tracing/events") || is_there("/sys/kernel/debug/tracing/events");
    let (chown, dac_override, kill, setgid, setuid) = (0, 1, 5, 6, 7);
    let (ipc_lock, sys_admin, sys_nice, perfmon) = (14, 21, 23, 38);
    let mut most: u64 = [chown, dac_override, kill, setgid, setuid, ipc_lock, sys_nice, perfmon]
        .iter()
        .map(|bit| 1_u64 << bit)
        .sum();
    most |= u64::from(!is_mounted) << sys_admin;
    for part in [daemon.pid(), daemon.process_of("keep").unwrap()] {
        assert_eq!(field(part, "Uid"), "0 0 0 0");
        for thread in fs::read_dir(format!("/proc/{part}/task")).unwrap() {
            let thread = thread.unwrap().path();
            // A thread that has just ended is left out.
            let Ok(text) = fs::read_to_string(thread.join("status")) else { continue };
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                let line = text.lines().find_map(|line| line.strip_prefix(set)).unwrap();
                let has = u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap();
                assert_eq!(has & !most, 0, "{set} of {} is {has:x}", thread.display());
            }
        }
    }
    daemon.kill();
    live.nothing_is_left();
}

/// The tool `systemd-analyze security` rates the exposure of the daemon under its systemd unit: at
/// most 4.0 of 10.
#[test]
fn systemd_rates_exposure_of_daemon_unit_at_most_4() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/systemd/slackline.service");
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", "--no-pager", "--threshold=40", unit]);
    let Ok(output) = analyze.output() else {
        println!("skipped: needs systemd-analyze");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = said.lines().find(|line| line.contains("Overall exposure level"));
    let Some(line) = line else {
        println!("skipped: needs a systemd-analyze that reads unit files: {said}");
        return;
    };
    assert!(output.status.success(), "more than 4.0: {line}");
}

#[test]
fn serve_command_without_root_is_refused() {
    let place = Place::new();
    let arguments = ["serve", "--state", "state", "--socket", "socket"];
    let Some(mut command) = place.command_of_nobody(&arguments) else { return };
    Ran::new(&command.output().unwrap()).refused(3);
}
