//! Tests of the search for VMs and other machines among real processes and cgroups. The tests show
//! that machines are found, that their threads can be scheduled, and that their end is reported.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, exit};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use slackline_daemon::find::{
    Absent, Ending, Kind, Machine, find, find_all, find_for, find_of, find_own, named, named_own,
};
use slackline_daemon::record::{TargetError, Targets};
use slackline_linux::cgroup::CgroupError;
use slackline_linux::thread::ThreadError;
use slackline_live::session::JoinTarget;
use slackline_service::{Binding, Identity, LookError};
use tempfile::TempDir;

/// Environment variable with thread names, one per line. It is set only for child processes of a
/// test.
const THREADS: &str = "SLACKLINE_TEST_THREADS";

/// Entry point of a child process. If a test has set the variable [`THREADS`], runs as a fake VM
/// whose threads have the names in that variable. Otherwise does nothing.
#[test]
fn entry_point_of_helper_vm() {
    let Ok(names) = env::var(THREADS) else { return };
    let (up, are_up) = channel();
    let threads = names.lines().map(|name| {
        let up = up.clone();
        let body = move || {
            up.send(()).expect("the main thread receives");
            loop {
                std::thread::park();
            }
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(body).expect("the thread starts")
    });
    let count = threads.count();
    are_up.iter().take(count).for_each(drop);
    println!("@");
    let _ = std::io::stdin().read(&mut [0]);
    exit(0);
}

/// A process that looks like a VM. It is killed when this value is dropped.
struct Fake {
    child: Child,
    _folder: TempDir,
}

impl Fake {
    /// Starts a copy of the test program as the program `program`. Under its own name, the copy
    /// would count as a part of the daemon.
    fn start(program: &str, words: &[&str], threads: &[&str]) -> Fake {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join(program);
        // `cp` writes the copy. If this process wrote it, children of parallel tests could inherit
        // it open for writing.
        let copied =
            Command::new("cp").arg(env::current_exe().unwrap()).arg(&copy).status().unwrap();
        assert!(copied.success());
        let mut command = Command::new(&copy);
        command
            .args(["--exact", "find::entry_point_of_helper_vm", "--nocapture", "--"])
            .args(words);
        command.env(THREADS, threads.join("\n"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = loop {
            match command.spawn() {
                // A child of another test still has the copy open for writing.
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    std::thread::yield_now();
                }
                started => break started.unwrap(),
            }
        };
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains('@') {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0, "the child has ended");
        }
        child.stdout = Some(out.into_inner());
        Fake { child, _folder: folder }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that does nothing. It is killed when this value is dropped.
struct Idle(Child);

impl Idle {
    /// Starts a process that first runs a shell script and then does nothing more.
    fn after(script: &str) -> Idle {
        let mut command = Command::new("sh");
        // The line that the script prints shows that the shell is loaded. A process that is still
        // loading its program has no command line.
        command.args(["-c", &format!("{script}\necho @; read line")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "@\n");
        Idle(child)
    }

    fn end(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a name that begins with `name` and that no other process on the host has.
fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn binding(text: impl AsRef<str>) -> Binding {
    text.as_ref().parse().unwrap_or_else(|error| panic!("{}: {error}", text.as_ref()))
}

fn wait_for(ending: &Ending) {
    let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
    while !ending.has_ended().unwrap() {
        let mut fds = [PollFd::from_borrowed_fd(ending.as_fd(), ending.events())];
        assert_eq!(poll(&mut fds, Some(&patience)), Ok(1), "no end within a minute");
    }
}

#[test]
fn vm_found_by_name_uuid_or_pid_has_same_identity() {
    let name = unique("web");
    let uuid = format!("0f9c27aa-0000-4000-8000-{:012x}", std::process::id());
    let words = ["-name", &format!("guest={name},debug-threads=on"), "-uuid", &uuid];
    // vCPU numbers have a gap and are out of order.
    let mut machine =
        Fake::start("qemu-system-x86_64", &words, &["CPU 2/TCG", "IO mon_iothread", "CPU 0/TCG"]);
    let by_name = binding(format!("qemu:{name}"));
    let found = find(&by_name).unwrap();
    assert_eq!((found.machine.kind, found.machine.name.as_str()), (Kind::Qemu, name.as_str()));
    assert_eq!(found.machine.binding, by_name);
    assert_eq!(found.machine.owner, rustix::process::getuid().as_raw());
    let vcpus: Vec<_> = found.machine.vcpus.iter().map(|it| (it.number, &*it.name)).collect();
    assert_eq!(vcpus, [(0, "CPU 0/TCG"), (2, "CPU 2/TCG")]);
    assert_eq!(found.machine.in_service().vcpus, [0, 2]);
    let Identity::Process { pid, .. } = found.machine.identity else { panic!("{found:?}") };
    assert_eq!(pid, machine.pid());

    for other in [format!("uuid:{uuid}"), format!("pid:{pid}")] {
        let other = find(&binding(other)).unwrap().machine;
        assert_eq!(other, found.machine);
    }
    assert!(find_all().unwrap().contains(&found.machine));
    assert_eq!(named(&name).unwrap(), std::slice::from_ref(&by_name));
    // Any user can choose this name, but the process is not in a cgroup made by libvirt.
    let error = find(&binding(format!("libvirt:{name}"))).unwrap_err();
    assert_eq!(error.in_service(), LookError::Absent, "{error}");

    // A second VM of the same user with the same name makes the name ambiguous.
    let namesake = Fake::start("qemu-system-x86_64", &words, &["CPU 0/TCG"]);
    assert!(matches!(find(&by_name), Err(Absent::Several { .. })));
    assert!(matches!(find_of(&by_name, Some(found.machine.owner)), Err(Absent::Several { .. })));
    drop(namesake);
    assert!(!found.machine.is_vouched);

    let Ok(JoinTarget::Thread(thread)) = found.join_target(2) else { panic!("no thread") };
    assert_eq!(thread.tid(), found.machine.vcpus[1].tid);
    assert!(matches!(found.join_target(1), Err(Absent::NotHere { .. })));

    assert!(!found.ending.has_ended().unwrap());
    machine.child.kill().unwrap();
    wait_for(&found.ending);
    assert!(found.join_target(2).is_err());
    machine.child.wait().unwrap();
    let error = find(&by_name).unwrap_err();
    assert!(matches!(error, Absent::NotHere { .. }) && error.is_yet_to_come(), "{error}");
}

#[test]
fn vms_of_every_hypervisor_are_found_by_their_escaped_names() {
    for (program, before, word, thread, kind, after) in [
        (
            "qemu-system-x86_64",
            "-name",
            "guest=NAME: \"a,,b\" \u{1b}[2J/x,debug-threads=on",
            "CPU 0/KVM",
            Kind::Qemu,
            "qemu:NAME: \"a,b\" \\x1b[2J\\x2fx",
        ),
        ("firecracker", "--id", "NAME", "fc_vcpu 0", Kind::Firecracker, "firecracker:NAME"),
        (
            "cloud-hypervisor",
            "--api-socket",
            "path=/run/vm/NAME.sock",
            "vcpu0",
            Kind::CloudHypervisor,
            "cloud-hypervisor:NAME",
        ),
    ] {
        let name = unique("odd");
        let fake = Fake::start(program, &[before, &word.replace("NAME", &name)], &[thread]);
        let by_name = binding(after.replace("NAME", &name));
        let found = find(&by_name).unwrap_or_else(|error| panic!("{by_name}: {error}"));
        assert_eq!((found.machine.kind, &found.machine.binding), (kind, &by_name));
        assert_eq!(found.machine.pid().unwrap().raw(), i32::try_from(fake.pid()).unwrap());
        assert_eq!(found.machine.vcpus.len(), 1);
    }
}

/// A VM without a lasting name gets a binding that contains its process id.
#[test]
fn vm_without_a_name_is_bound_by_its_process_id() {
    for (program, words, thread, kind) in [
        ("qemu-kvm", &["-S", "-m", "1G"], "CPU 3/KVM", Kind::Qemu),
        // An unknown VMM that names its threads like others do.
        ("monitor", &["a", "b", "c"], "vcpu3", Kind::Process),
    ] {
        let fake = Fake::start(program, words, &[thread]);
        let by_number = binding(format!("pid:{}", fake.pid()));
        let found = find(&by_number).unwrap();
        assert_eq!((found.machine.kind, &found.machine.binding), (kind, &by_number));
        assert_eq!(found.machine.in_service().vcpus, [3]);
    }
}

#[test]
fn process_bound_by_pid_is_scheduled_with_its_descendants() {
    let process = Idle::after("");
    let found = find(&binding(format!("pid:{}", process.0.id()))).unwrap();
    assert_eq!((found.machine.kind, &*found.machine.name), (Kind::Process, "sh"));
    let target = found.join_target(0);
    assert!(matches!(target, Ok(JoinTarget::Tree(pid)) if Some(pid) == found.machine.pid()));
    process.end();
    assert!(found.join_target(0).is_err());
}

#[test]
fn vm_name_is_ambiguous_unless_second_process_is_a_fork() {
    let name = unique("twice");
    let words = ["-name", name.as_str()];
    let first = Fake::start("qemu-system-x86_64", &words, &["CPU 0/TCG"]);
    let by_name = binding(format!("qemu:{name}"));
    {
        let _fork = Fake::start("qemu-system-x86_64", &words, &["worker"]);
        let found = find(&by_name).unwrap();
        assert_eq!(found.machine.pid().unwrap().raw(), i32::try_from(first.pid()).unwrap());
    }
    let _second = Fake::start("qemu-system-x86_64", &words, &["CPU 0/TCG"]);
    let error = find(&by_name).unwrap_err();
    assert!(matches!(error, Absent::Several { .. }) && !error.is_yet_to_come(), "{error}");
    let LookError::Unclear { says, hint: Some(hint) } = error.in_service() else {
        panic!("{error}")
    };
    assert!(says.contains(&first.pid().to_string()), "{says}");
    assert!(hint.contains("uuid:"), "{hint}");
    assert_eq!(named(&name).unwrap().len(), 2);
}

#[test]
fn kernel_threads_slackline_processes_and_init_cannot_be_scheduled() {
    let look = |pid: u32| find(&binding(format!("pid:{pid}"))).unwrap_err();
    let kernel = fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        // Kernel threads have no command line, and neither have zombies.
        let stat = fs::read(entry.path().join("stat")).ok()?;
        slackline_linux::thread::Stat::parse(&stat)?.is_of_kernel().then_some(pid)
    });
    let ours = std::process::id();
    let mut cases = vec![(look(1), "process 1"), (look(ours), "it belongs to Slackline")];
    cases.extend(kernel.map(|pid| (look(pid), "it is a kernel thread")));
    // A stand-in for the keeper: a child that runs this program, here under the name of a VM.
    let mut keeper = Command::new(env::current_exe().unwrap());
    keeper
        .arg0("qemu-system-x86_64")
        .args(["--exact", "find::entry_point_of_helper_vm", "--nocapture"])
        .env(THREADS, "vcpu0");
    let mut keeper = keeper.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    cases.push((look(keeper.id()), "it belongs to Slackline"));
    let all = find_all().unwrap();
    for pid in [1, ours, keeper.id()].into_iter().chain(kernel) {
        let has = |tid: slackline_linux::sys::Tid| u32::try_from(tid.raw()) == Ok(pid);
        assert!(!all.iter().any(|one| one.pid().is_some_and(has)), "process {pid} is listed");
    }
    keeper.kill().unwrap();
    keeper.wait().unwrap();
    for (error, says) in cases {
        assert!(matches!(error, Absent::Untouchable(_)), "{error:?}");
        assert!(error.to_string().contains(says), "{error}: not {says}");
        assert!(matches!(error.in_service(), LookError::Forbidden(_)), "{error}");
    }
    assert!(matches!(
        look(u32::try_from(i32::MAX).unwrap()),
        Absent::Untouchable(ThreadError::Gone { .. })
    ));
}

/// A version 2 cgroup made for a test. When this value is dropped, the cgroup and its processes are
/// removed.
struct Group(PathBuf);

impl Group {
    /// Creates a cgroup. If that is not possible, prints the reason and returns `None`.
    fn make(name: &str) -> Option<Group> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
        let Some(point) = mount.and_then(|line| line.split(' ').nth(4)) else {
            println!("skipped: needs cgroups of version 2");
            return None;
        };
        let folder = Path::new(point).join(unique(name));
        if let Err(error) = fs::create_dir(&folder) {
            println!("skipped: needs root ({error})");
            return None;
        }
        Some(Group(folder))
    }

    fn run(&self) -> Idle {
        Idle::after(&format!("echo $$ > {}/cgroup.procs", self.0.display()))
    }

    fn binding(&self) -> Binding {
        binding(format!("cgroup:/{}", self.0.file_name().unwrap().to_str().unwrap()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        // Killed processes leave the group soon after, when they are reaped.
        while fs::remove_dir(&self.0)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
        {
            std::thread::yield_now();
        }
    }
}

#[test]
fn cgroup_counts_as_one_vm_only_while_nonempty() {
    let Some(group) = Group::make("slackline-test-find") else { return };
    let by_path = group.binding();
    assert!(matches!(find(&by_path), Err(Absent::Empty { .. })));
    let child = group.run();
    let found = find(&by_path).unwrap();
    assert_eq!((found.machine.kind, found.machine.vcpus.len()), (Kind::Group, 0));
    assert_eq!(found.machine.in_service().vcpus, [0]);
    assert!(matches!(found.join_target(0), Ok(JoinTarget::Group(place)) if place.group == group.0));
    assert!(!found.ending.has_ended().unwrap());
    child.end();
    wait_for(&found.ending);

    // A process that is started in the cgroup later belongs to the same machine. A new cgroup with
    // the same path is another machine.
    let child = group.run();
    let again = find(&by_path).unwrap();
    assert_eq!(again.machine.identity, found.machine.identity);
    child.end();
    wait_for(&again.ending);
    drop(group);
    assert!(again.ending.has_ended().unwrap());
    let error = find(&by_path).unwrap_err();
    assert_eq!(error.in_service(), LookError::Absent, "{error}");
    let group = Group::make("slackline-test-find").expect("a group was created before");
    let child = group.run();
    assert_ne!(find(&by_path).unwrap().machine.identity, found.machine.identity);
    child.end();
}

#[test]
fn systemd_units_and_containers_are_found_by_their_cgroups() {
    let unit = format!("{}.service", unique("slackline-test-unit"));
    let Some(above) = Group::make("slackline-test-slice") else { return };
    let id = format!("{:064x}", std::process::id());
    for (name, kind, shown) in [
        (unit.clone(), Kind::Unit, unit.clone()),
        (format!("docker-{id}.scope"), Kind::Container, id),
    ] {
        let group = Group(above.0.join(name));
        fs::create_dir(&group.0).unwrap();
        let child = group.run();
        let all = find_all().unwrap();
        let machine =
            all.iter().find(|machine| machine.name == shown).expect("the machine is listed");
        assert_eq!(machine.kind, kind);
        let found = find(&machine.binding).unwrap();
        assert_eq!(found.machine.identity, machine.identity);
        if kind == Kind::Unit {
            assert_eq!(machine.binding, binding(format!("unit:{unit}")));
            let by_stem = named(unit.strip_suffix(".service").unwrap()).unwrap();
            assert_eq!(by_stem, std::slice::from_ref(&machine.binding));
        }
        child.end();
    }
}

/// The cgroup of the unit contains 1,001 other cgroups. At the end, it is removed before the
/// cgroup that contains it.
#[test]
fn unit_with_1001_child_cgroups_is_found_but_not_read() {
    let Some(above) = Group::make("slackline-test-nested") else { return };
    let unit = above.0.join(unique("slackline-test-nested") + ".service");
    fs::create_dir(&unit).unwrap();
    let groups = [Group(unit), above];
    let below = (0..1_001).map(|number| Group(groups[0].0.join(number.to_string())));
    let below: Vec<Group> = below.inspect(|group| fs::create_dir(&group.0).unwrap()).collect();
    let child = groups[0].run();
    let name = groups[0].0.file_name().unwrap().to_str().unwrap();
    let all = find_all().unwrap();
    let machine = all.iter().find(|machine| machine.name == name).expect("the unit is listed");
    let Ok(JoinTarget::Group(place)) = find(&machine.binding).unwrap().join_target(0) else {
        panic!("the unit is a cgroup")
    };
    let error = place.processes().unwrap_err();
    assert!(matches!(error, CgroupError::TooMany { most: 1_000, .. }), "{error}");
    let recorded = Targets::find(&[machine.binding.to_string()]);
    assert!(matches!(recorded, Err(TargetError::Absent { .. })), "{recorded:?}");
    child.end();
    drop(below);
}

#[test]
fn qmp_is_queried_only_if_qemu_threads_have_no_names() {
    let folder = tempfile::tempdir().unwrap();
    for (threads, monitor) in [("on", None), ("off", Some(["-qmp", "unix:qmp,server=on,wait=off"]))]
    {
        let name = unique(&format!("real, {threads}: x.y"));
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-S", "-nodefaults", "-no-user-config", "-display", "none", "-m", "16"]);
        qemu.args(["-machine", "pc", "-accel", "tcg", "-smp", "2"]);
        qemu.args(monitor.into_iter().flatten());
        qemu.args(["-name", &format!("{},debug-threads={threads}", name.replace(',', ",,"))]);
        qemu.args(["-qmp", "stdio"]).current_dir(folder.path());
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut machine = match qemu.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("skipped: needs qemu-system-x86");
                return;
            }
            started => Idle(started.unwrap()),
        };
        // QEMU answers once the whole VM has been created.
        let ask = b"{\"execute\":\"qmp_capabilities\"}\n";
        machine.0.stdin.as_mut().unwrap().write_all(ask).unwrap();
        let mut lines = BufReader::new(machine.0.stdout.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("\"return\"")), "QEMU is up");
        let by_name = binding(format!("qemu:{name}"));
        let found = find(&by_name).unwrap();
        assert_eq!(found.machine.in_service().vcpus, [0, 1], "{threads}");
        assert_eq!(found.machine.binding, by_name);
        assert!(matches!(found.join_target(1), Ok(JoinTarget::Thread(_))));
        machine.0.kill().unwrap();
        wait_for(&found.ending);
    }
}

/// A VM whose vCPU threads cannot be found is still listed, with the reason.
#[test]
fn vm_with_unknown_vcpus_is_listed_together_with_the_reason() {
    let twice = Fake::start(
        "cloud-hypervisor",
        &["--api-socket", "path=/tmp/twice-of-a-test.sock"],
        &["vcpu0", "vcpu1", "vcpu1"],
    );
    let mute = Fake::start("qemu-system-x86_64", &["-name", "guest=mute-of-a-test"], &["worker"]);
    let mshv = Fake::start(
        "qemu-system-x86_64",
        &["-name", "guest=mshv-of-a-test"],
        &["CPU 0/MSHV", "CPU 1/MSHV"],
    );
    let all = find_all().unwrap();
    let one = |fake: &Fake| {
        let is_it = |pid: slackline_linux::sys::Tid| u32::try_from(pid.raw()) == Ok(fake.pid());
        all.iter().find(|machine| machine.pid().is_some_and(is_it)).unwrap()
    };
    let why = |fake: &Fake| one(fake).why.clone().unwrap_or_default();
    assert!(why(&twice).contains("both have the name of vCPU 1"), "{}", why(&twice));
    assert!(why(&mute).contains("no thread has the name of a vCPU"), "{}", why(&mute));
    assert_eq!((one(&mshv).why.clone(), one(&mshv).vcpus.len()), (None, 2));
    let error = find(&one(&twice).binding).unwrap_err();
    assert!(!error.is_yet_to_come(), "{error}");
}

#[test]
fn vm_with_one_megabyte_command_line_is_listed_quickly() {
    let words = ["-name", "guest=long-line-of-a-test"].into_iter();
    let words: Vec<&str> = words.chain(["-qmp", "chardev:x"].repeat(40_000)).collect();
    let fake = Fake::start("qemu-system-x86_64", &words, &["worker"]);
    let began = Instant::now();
    let all = find_all().unwrap();
    let took = began.elapsed();
    let is_it = |machine: &&Machine| {
        machine.pid().is_some_and(|pid| u32::try_from(pid.raw()) == Ok(fake.pid()))
    };
    let machine = all.iter().find(is_it).unwrap();
    let why = machine.why.clone().unwrap_or_default();
    assert!(why.contains("the first 131072 bytes of its command line"), "{why}");
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// A process that looks like a QEMU whose threads have no names. Its monitor never answers.
struct Unanswered {
    fake: Fake,
    listener: UnixListener,
    _folder: TempDir,
}

impl Unanswered {
    fn start(name: &str) -> Unanswered {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp");
        let listener = UnixListener::bind(&socket).unwrap();
        let option = format!("unix:{},server=on", socket.display());
        let words = ["-name", &format!("guest={name}"), "-qmp", &option];
        let fake = Fake::start("qemu-system-x86_64", &words, &["worker"]);
        Unanswered { fake, listener, _folder: folder }
    }

    /// Returns true if a client has connected to the monitor since the last call.
    fn was_asked(&self) -> bool {
        self.listener.set_nonblocking(true).unwrap();
        self.listener.accept().is_ok()
    }
}

#[test]
fn vm_list_shows_error_of_last_unanswered_monitor_query() {
    let vm = Unanswered::start(&unique("silent"));
    let why = || {
        let pid = i32::try_from(vm.fake.pid()).unwrap();
        let all = find_all().unwrap();
        let is_it = |machine: &&Machine| machine.pid().is_some_and(|it| it.raw() == pid);
        all.iter().find(is_it).unwrap().why.clone()
    };
    assert_eq!(why(), None, "nobody has asked the monitor");
    let by_name = binding(format!("qemu:{}", unique("silent")));
    let error = find(&by_name).unwrap_err();
    assert!(error.to_string().contains("over QMP"), "{error}");
    assert!(why().is_some_and(|why| why.contains("did not arrive within 2 s")), "{:?}", why());
    // The reservation that waits gets the same reason again, and the monitor is not asked again.
    let first = error.in_background();
    let again = find(&by_name).unwrap_err();
    assert!(matches!(again, Absent::Silent { .. }), "{again:?}");
    let (LookError::Unclear { says, .. }, LookError::Unclear { says: then, .. }) =
        (first, again.in_background())
    else {
        panic!("{again}")
    };
    assert_eq!(says, then);
}

#[test]
fn vm_with_monitor_of_another_user_is_refused_without_query() {
    let vm = Unanswered::start(&unique("other"));
    let own = rustix::process::getuid().as_raw();
    for by in [format!("qemu:{}", unique("other")), format!("pid:{}", vm.fake.pid())] {
        let error = find_for(&binding(by), own, &|_| false).unwrap_err();
        assert_eq!(error.in_service(), LookError::NotYours(own), "{error}");
        assert!(!vm.was_asked());
    }
    let by_pid = binding(format!("pid:{}", vm.fake.pid()));
    assert!(matches!(find_for(&by_pid, own, &|user| user == own), Err(Absent::NoVcpus(_))));
    assert!(vm.was_asked());
}

#[test]
fn vm_of_another_user_looks_absent_to_tenant() {
    let name = unique("hidden");
    let fake = Fake::start("qemu-system-x86_64", &["-name", &name], &["CPU 0/KVM"]);
    let own = rustix::process::getuid().as_raw();
    let by_name = binding(format!("qemu:{name}"));
    let found = |may_have: bool| find_own(&by_name, own, &|_| may_have);
    assert!(matches!(found(false), Err(Absent::NotHere { .. })));
    assert_eq!(found(true).unwrap().machine.name, name);
    let number = |may_have: bool| named_own(&name, &|_| may_have).unwrap().len();
    assert_eq!([false, true].map(number), [0, 1]);
    drop(fake);
}
