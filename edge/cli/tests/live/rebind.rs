//! Tests of `slackline change NAME --for BINDING`, of `reserve NAME -- COMMAND` and of libvirt
//! domains. They need root.

use std::path::PathBuf;

use crate::common::live::{self, Victim, wait_until};
use crate::common::service::{Daemon, Machine};
use serde_json::json;

#[test]
fn vm_is_restored_when_reservation_is_rebound_to_another_vm() {
    let Some(live) = live::begin() else { return };
    let (victim, other) = (Victim::start(), Victim::start());
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &victim, "2ms").0, 201);
    assert_eq!(daemon.reserve("db", &other, "2ms").0, 201);
    let to_other = format!("change web --for pid:{}", other.pid());
    daemon.run(&to_other).ended_with(2).says("has reservation db already");
    assert!(victim.is_held() && other.is_held());
    daemon.run("release db").ended_with(0);
    wait_until("the other VM to be free", || daemon.run(&to_other).code == Some(0));
    victim.is_given_back();
    assert!(other.is_held());
    let one = daemon.one("web");
    assert_eq!((&one["slice"], &one["state"]), (&json!("2ms"), &json!("active")), "{one}");
    // One command changes the binding and the slice, in two requests.
    daemon.run(&format!("change web --for pid:{} --slice 3ms", victim.pid())).ended_with(0);
    assert_eq!(daemon.one("web")["slice"], "3ms");
    assert!(victim.is_held());
    daemon.run("change web --for pid:1999999999").ended_with(2).says("cannot find");
    assert!(victim.is_held());
    daemon.run("change w* --for pid:1").ended_with(2).says("pattern");
}

#[test]
fn reservation_rebound_from_process_id_to_vm_name_stays_active() {
    let Some(live) = live::begin() else { return };
    let name = format!("old-{}", std::process::id());
    let machine = Machine::start(&name);
    let daemon = Daemon::start(&live);
    let pid = machine.0.id();
    daemon.run(&format!("reserve web --slice 2ms --for pid:{pid}")).ended_with(0);
    let before = daemon.one("web")["total"]["over_ns"].as_u64();
    daemon.run(&format!("change web --for qemu:{name}")).ended_with(0).shows("active");
    let one = daemon.one("web");
    assert_eq!((&one["for"], &one["state"]), (&json!(format!("qemu:{name}")), &json!("active")));
    assert!(one["total"]["over_ns"].as_u64() >= before, "{one}");
    // The reservation waits for a VM that has not started yet.
    daemon.run("change web --for qemu:later").ended_with(0).shows("waiting");
    let both = json!({ "for": format!("qemu:{name}"), "slice": "3ms" });
    let (status, problem) = daemon.ask("PATCH", "/v1/reservations/web", Some(&both));
    assert_eq!((status, &problem["type"]), (400, &json!("bad")), "{problem}");
}

/// A fake libvirt domain: a VM process in a cgroup that is named as libvirt names the cgroups of
/// its domains.
struct Domain {
    machine: Option<Machine>,
    group: PathBuf,
}

impl Domain {
    fn start(name: &str, uuid: &str) -> Option<Domain> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let slice = PathBuf::from(line.split(' ').nth(4)?).join("machine.slice");
        let group = slice.join(format!("machine-qemu\\x2d1\\x2d{name}.scope"));
        std::fs::create_dir_all(&group).ok()?;
        let machine = Machine::start_with(&["-name", name, "-uuid", uuid], 0);
        std::fs::write(group.join("cgroup.procs"), machine.0.id().to_string()).ok()?;
        Some(Domain { machine: Some(machine), group })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.machine = None;
        wait_until("the cgroup to be empty", || {
            std::fs::remove_dir(&self.group).is_ok() || !self.group.is_dir()
        });
        // The folder stays if it has other cgroups.
        let _ = self.group.parent().map(std::fs::remove_dir);
    }
}

#[test]
fn reservation_is_enforced_again_after_its_libvirt_domain_is_renamed() {
    let Some(live) = live::begin() else { return };
    let number = std::process::id();
    let (old, new) = (format!("old{number}"), format!("new{number}"));
    let uuid = format!("0f9c27aa-0000-4000-8000-{number:012}");
    let Some(domain) = Domain::start(&old, &uuid) else { return };
    let daemon = Daemon::start(&live);
    daemon.run(&format!("reserve web --slice 2ms --for libvirt:{old}")).ended_with(0);
    drop(domain);
    wait_until("the reservation to wait", || daemon.one("web")["state"] == "waiting");
    daemon.kill();
    let daemon = Daemon::start(&live);
    let Some(_domain) = Domain::start(&new, &uuid) else { return };
    wait_until("the VM to be scheduled again", || daemon.one("web")["state"] == "active");
    assert_eq!(daemon.one("web")["for"], format!("libvirt:{new}"));
    let log = daemon.run("log web --csv --columns what").ended_with(0).out;
    assert!(log.contains(&format!("renamed: libvirt:{old} is now libvirt:{new}")), "{log}");
}

/// File in which libvirt keeps the state of a domain. It is removed when this value is dropped.
struct StatusFile(PathBuf);

impl StatusFile {
    fn of(name: &str) -> StatusFile {
        let folder = PathBuf::from("/run/libvirt/qemu");
        std::fs::create_dir_all(&folder).unwrap();
        StatusFile(folder.join(format!("{name}.xml")))
    }

    fn write(&self, state: &str, pid: u32) {
        let text = format!("<domstatus state='{state}' reason='user' pid='{pid}'>\n</domstatus>");
        std::fs::write(&self.0, text).unwrap();
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        // Folders stay if they have other files.
        for folder in self.0.ancestors().skip(1).take(2) {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

#[test]
fn reservation_is_listed_as_suspended_while_libvirt_guest_is_paused() {
    let Some(live) = live::begin() else { return };
    let name = format!("paused{}", std::process::id());
    let uuid = format!("0f9c27ab-0000-4000-8000-{:012}", std::process::id());
    let Some(domain) = Domain::start(&name, &uuid) else { return };
    let pid = domain.machine.as_ref().unwrap().0.id();
    let file = StatusFile::of(&name);
    let daemon = Daemon::start(&live);
    daemon.run(&format!("reserve web --slice 2ms --for libvirt:{name}")).ended_with(0);
    for (state, listed) in [("paused", "suspended"), ("running", "active")] {
        file.write(state, pid);
        wait_until("the state of the guest", || daemon.one("web")["state"] == listed);
    }
    file.write("paused", pid);
    wait_until("the state of the guest", || daemon.one("web")["state"] == "suspended");
    let why = daemon.one("web")["why"].to_string();
    assert!(why.contains("libvirt reports that the guest is paused (user)"), "{why}");
}

#[test]
fn reserve_command_returns_exit_code_of_program_and_releases_reservation() {
    let Some(live) = live::begin() else { return };
    let daemon = Daemon::start(&live);
    let reserve = ["reserve", "job", "--cpu", "20%", "--exact", "--socket", "socket", "--"];
    let script = "read state < /proc/$$/sched; cat /proc/$$/cgroup; exit 7";
    let ran = live.run(&[&reserve[..], &["sh", "-c", script]].concat());
    let ran = ran.ended_with(7).says("job: 2ms in every 10ms, and no more, 20.00 % of a CPU");
    assert!(ran.out.contains(':'), "the output is the command's: {}", ran.out);
    wait_until("the reservation to be released", || {
        daemon.ask("GET", "/v1/reservations/job", None).0 == 404
    });
    // A command whose reservation does not fit is not started.
    let ran =
        live.run(&["reserve", "big", "--cpu", "99%", "--socket", "socket", "--", "echo", "x"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(4), ""), "{}", ran.err);
    live.run(&[&reserve[..], &["/nowhere"]].concat()).ended_with(2);
}
