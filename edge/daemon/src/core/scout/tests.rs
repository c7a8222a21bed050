//! Tests of the scout.

use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::*;

fn machine(kind: Kind, name: &str, uuid: Option<&str>) -> Machine {
    Machine {
        kind,
        name: name.into(),
        binding: Binding::new(BindingKind::Libvirt, name).unwrap(),
        uuid: uuid.map(Into::into),
        owner: 64,
        is_vouched: true,
        identity: Identity::Group { inode: 1 },
        vcpus: Vec::new(),
        threads: Vec::new(),
        why: None,
        group: None,
    }
}

fn awaited(binding: &str, reason: Option<Reason>) -> AwaitedVm {
    let ms = Span::from_ms;
    let each = slackline_units::Reservation::new(ms(1), ms(10)).unwrap();
    let terms = slackline_service::Terms::new(each, true, 1).unwrap();
    let (name, owner) = ("web".parse().unwrap(), slackline_service::Principal::User(64));
    let row = Row::new(name, (owner, 64), terms, binding.parse().unwrap());
    AwaitedVm { row, reason }
}

#[test]
fn unchanged_reason_of_absent_vm_is_not_reported_again() {
    let gone = |one: &AwaitedVm| {
        one.not_found(&Absent::NotHere { binding: one.row.binding.clone() }).is_some()
    };
    let binding: Binding = "qemu:web".parse().unwrap();
    assert!(!gone(&awaited("qemu:web", Some(Reason::Absent(binding.clone())))));
    assert!(gone(&awaited("qemu:web", Some(Reason::Unavailable("silent".into())))));
    assert!(!gone(&awaited("qemu:web", None)), "it waits for capacity");
    assert!(gone(&awaited("pid:77", None)), "the reservation ends with the process");
    let tid = |raw| Tid::new(raw).unwrap();
    let several = || Absent::Several { binding: binding.clone(), first: tid(7), second: tid(8) };
    let waits = awaited("qemu:web", Some(Reason::Absent(binding.clone())));
    let Some(ScoutFinding::NotFound(.., error)) = waits.not_found(&several()) else {
        panic!("two VMs with the name are not reported")
    };
    let known = awaited("qemu:web", Some(Reason::not_found(&waits.row, &error)));
    assert!(known.not_found(&several()).is_none());
}

#[test]
fn libvirt_domain_that_was_renamed_is_found_by_its_uuid() {
    let [one, two] =
        ["0f9c27aa-0000-4000-8000-000000000001", "0f9c27aa-0000-4000-8000-000000000002"];
    let awaited = |by_uuid: Option<&str>| {
        let by_uuid = by_uuid.map(|uuid| Binding::new(BindingKind::Uuid, uuid).unwrap());
        let AwaitedVm { row, reason } = awaited("libvirt:web", None);
        AwaitedVm { row: Row { by_uuid, ..row }, reason }
    };
    let shop = machine(Kind::Libvirt, "shop", Some(one));
    let others = [
        machine(Kind::Libvirt, "db", Some(two)),
        machine(Kind::Libvirt, "none", None),
        // Any user can choose the name of a QEMU outside of libvirt's cgroups.
        machine(Kind::Qemu, "qemu", Some(one)),
    ];
    let mut all = others.to_vec();
    assert!(awaited(Some(one)).renamed(&all).is_none());
    all.push(shop.clone());
    assert_eq!(awaited(Some(one)).renamed(&all), Some(&shop));
    assert!(awaited(None).renamed(&all).is_none());
    all.push(machine(Kind::Libvirt, "copy", Some(one)));
    assert!(awaited(Some(one)).renamed(&all).is_none(), "two domains have the UUID");
}

#[test]
fn suspended_guest_is_recognized_from_its_libvirt_status_file() {
    let notes = |state: &str| {
        format!(
            "<!--\nWARNING\n-->\n\
             <domstatus state='{state}' reason='user' pid='77'>\n  <taint flag='x'/>"
        )
    };
    let pid = Tid::new(77).unwrap();
    assert_eq!(read_state(&notes("paused"), pid).as_deref(), Some("paused (user)"));
    assert_eq!(read_state(&notes("running"), pid), None);
    assert_eq!(read_state(&notes("paused"), Tid::new(78).unwrap()), None);
    assert_eq!(read_state("", pid), None);
}

#[test]
fn libvirt_status_file_outside_its_folder_is_never_read() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("qemu");
    std::fs::create_dir(&inside).unwrap();
    for at in [folder.path(), &inside] {
        std::fs::write(at.join("web.xml"), "<domstatus ").unwrap();
    }
    assert_eq!(notes_of(&inside, "web").as_deref(), Some("<domstatus "));
    let outside = folder.path().join("web").display().to_string();
    for name in ["../web", "./web", &outside, "..", "none"] {
        assert_eq!(notes_of(&inside, name), None, "{name}");
    }
    std::os::unix::fs::symlink("../web.xml", inside.join("link.xml")).unwrap();
    assert_eq!(notes_of(&inside, "link"), None);
    // Reading a pipe without a writer would block forever.
    let pipe = inside.join("pipe.xml");
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert_eq!(notes_of(&inside, "pipe"), None);
}

#[test]
fn discovery_pass_never_queries_qemu_monitor_of_another_user() {
    let name = format!("not-asked-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("qmp");
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let option = format!("unix:{},server=on", socket.display());
    let mut qemu = Command::new("sh");
    let arguments = ["-c", "echo @; read line", "-name", &name, "-qmp", &option];
    qemu.arg0("qemu-system-x86_64").args(arguments);
    // The reservations are for VMs of uid 64 and of root, and the VM belongs to another user.
    let own = match rustix::process::getuid().as_raw() {
        0 => 65_534,
        own => own,
    };
    if rustix::process::getuid().is_root() {
        qemu.uid(own);
    }
    let mut qemu = qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    qemu.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
    let all = [64, 0].map(|user| {
        let old = Some(Reason::Unavailable("old".into()));
        let mut awaited = awaited(&format!("qemu:{name}"), old);
        awaited.row.user = user;
        awaited
    });
    let found = std::sync::Mutex::new(Vec::new());
    look_around(&all, &[], &|seen| found.lock().unwrap().push(seen));
    qemu.kill().unwrap();
    qemu.wait().unwrap();
    let found = found.into_inner().unwrap();
    assert_eq!(found.len(), 2);
    for seen in &found {
        let ScoutFinding::NotFound(_, user, error) = seen else { panic!("another finding") };
        assert_eq!(*error, LookError::NotYours(own), "for VMs of {user}");
    }
    assert!(listener.accept().is_err(), "the monitor has no connection");
}

#[test]
fn silent_monitors_of_one_user_delay_discovery_pass_only_once() {
    let mut all = Vec::new();
    let held = (0..3).map(|number| {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp");
        let listener = UnixListener::bind(&socket).unwrap();
        let option = format!("unix:{},server=on", socket.display());
        let mut qemu = Command::new("sh");
        qemu.arg0("qemu-system-x86_64").args(["-c", "echo @; read line", "-qmp", &option]);
        let mut qemu = qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        qemu.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
        let pid = Tid::new(i32::try_from(qemu.id()).unwrap()).unwrap();
        all.push((qemu, listener, folder));
        let machine = machine(Kind::Qemu, "silent", None);
        let (domain, is_wanting) = (DomId::new(number), false);
        ReservedVm { domain, machine, pid, is_wanting, unclear: None }
    });
    let held: Vec<ReservedVm> = held.collect();
    let began = Instant::now();
    look_around(&[], &held, &|_| {});
    let took = began.elapsed();
    for (qemu, ..) in &mut all {
        qemu.kill().unwrap();
        qemu.wait().unwrap();
    }
    let expected = Duration::from_millis(1_900)..Duration::from_millis(3_900);
    assert!(expected.contains(&took), "{took:?}");
}
