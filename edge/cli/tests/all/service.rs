//! Tests of commands for the daemon. The daemon's front process, which parses requests, is real.
//! The tests act as the core process, and choose its answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::common::{PROGRAM, Ran, copy_program};
use rustix::process::{Pid, Signal, kill_process};
use slackline_control::link::{
    Answer, Ask, CoreMessage, LONGEST_ASKED, Lines, Request, line, message,
};
use slackline_control::{
    Clock, Delivery, Event, GangWord, Host, Kind, Length, Problem, Reservation, State,
};
use slackline_units::Span;
use tempfile::TempDir;

pub(crate) type Outcome = Result<Answer, Problem>;

/// The daemon's front process, which parses requests. The test acts as the core process, which
/// answers them.
pub(crate) struct Daemon {
    folder: TempDir,
    front: Child,
    asked: Mutex<Receiver<Request>>,
}

impl Daemon {
    /// Starts the daemon's front process. `None` if the test does not run as root, since the front
    /// process would then refuse the test's user.
    pub(crate) fn new(says: fn(&Request) -> Outcome) -> Option<Daemon> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let open = |path: PathBuf, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("the test owns the file");
        };
        open(folder.path().into(), 0o755);
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).expect("a socket");
        open(socket, 0o666);
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let front = Command::new(PROGRAM)
            .arg("serve-front")
            .stdin(OwnedFd::from(theirs))
            .stdout(OwnedFd::from(listener))
            .spawn()
            .expect("the program can be started");
        let (tell, asked) = channel();
        thread::spawn(move || be_core(ours, says, &tell));
        Some(Daemon { folder, front, asked: Mutex::new(asked) })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(args).arg("--socket").arg(self.folder.path().join("s"));
        command.stdin(Stdio::null()).env_remove("COLUMNS");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::new(&self.command(args).output().expect("the program can be started"))
    }

    /// Writes a file into the folder of the socket.
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).expect("a file");
    }

    /// Returns the path of a file in the folder of the socket.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub(crate) fn heard(&self) -> Request {
        let asked = self.asked.lock().expect("no thread panicked");
        asked.recv_timeout(Duration::from_secs(10)).expect("the core was asked")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.front.kill();
        let _ = self.front.wait();
    }
}

fn be_core(mut stream: UnixStream, says: fn(&Request) -> Outcome, tell: &Sender<Request>) {
    let (mut lines, mut part) = (Lines::new(LONGEST_ASKED), [0; 4096]);
    while let Ok(read @ 1..) = stream.read(&mut part) {
        lines.push(&part[..read]);
        while let Some(text) = lines.next_line().expect("a line") {
            let Ask { ticket, request, .. } = message(&text).expect("a request");
            let said = match says(&request) {
                Ok(answer) => CoreMessage::Answer { ticket, answer },
                Err(problem) => CoreMessage::Refused { ticket, problem: Box::new(problem) },
            };
            let _ = tell.send(request);
            if stream.write_all(&line(&said)).is_err() {
                return;
            }
        }
    }
}

pub(crate) fn reservation(name: &str) -> Reservation {
    let recent = Delivery {
        over_ns: 1_000_000_000,
        promised_ns: 400_000_000,
        due_ns: 400_000_000,
        used_ns: 300_000_000,
        deadlines: 200,
        missed: 1,
    };
    Reservation {
        name: name.into(),
        owner: "uid 0".into(),
        binding: format!("libvirt:{name}"),
        user: 0,
        slice: Length(Span::from_ms(2)),
        slice_ns: 2_000_000,
        period: Length(Span::from_ms(10)),
        period_ns: 10_000_000,
        exact: true,
        by_use: false,
        phase: None,
        phase_ns: None,
        enforce: slackline_control::Mechanism::Dispatcher,
        chosen: None,
        until: None,
        until_ns: None,
        gang: None,
        vcpus: 2,
        served: 1,
        state: State::Partial,
        why: Some("the VM has 1 vCPU, and 2 are reserved".into()),
        warning: None,
        revision: 7,
        recent: Some(recent),
        total: None,
        cost: None,
    }
}

pub(crate) fn fine(request: &Request) -> Outcome {
    Ok(match request {
        Request::List { name: Some(name), .. } => Answer::Reservations(vec![reservation(name)]),
        Request::List { .. } => Answer::Reservations(vec![reservation("db"), reservation("web")]),
        Request::Log { .. } => Answer::Events(vec![Event {
            seq: 7,
            at_ns: 1_191_153_659_000_000_000,
            principal: "uid 0".into(),
            verb: "reserve".into(),
            name: "web".into(),
            before: None,
            after: Some("2ms/10ms exact for 2 vCPUs, libvirt:web".into()),
            outcome: "reserve".into(),
            was_late: false,
        }]),
        Request::Find { .. } => Answer::Machines(Vec::new()),
        Request::Reserve { name, .. }
        | Request::Change { name, .. }
        | Request::Pause { name, .. }
        | Request::Resume { name, .. }
        | Request::Release { name, .. } => {
            let reservation = Box::new(reservation(name));
            Answer::Done { reservation, is_new: matches!(request, Request::Reserve { .. }) }
        }
        other => return Err(Problem::new(Kind::Bug, format!("{other:?}"))),
    })
}

#[test]
fn front_process_of_the_daemon_runs_without_privileges() {
    let Some(daemon) = Daemon::new(fine) else { return };
    daemon.run(&["list"]).good();
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.front.id()));
    let status = status.expect("the front runs");
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is not in {status}")).trim().to_owned()
    };
    for ids in ["Uid:", "Gid:"] {
        let ids = of(ids);
        assert!(ids.split_whitespace().all(|id| id != "0"), "{ids}");
    }
    assert_eq!(of("Groups:"), "");
    for capabilities in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(of(capabilities), "0000000000000000", "{capabilities}");
    }
    assert_eq!((of("NoNewPrivs:"), of("Threads:")), ("1".into(), "1".into()));
    // Mode 2 is a filter of system calls.
    assert_eq!(of("Seccomp:"), "2");
    // Only root may inspect the process, so the kernel makes root the owner of its files.
    let owner = std::os::unix::fs::MetadataExt::uid;
    let files = std::fs::metadata(format!("/proc/{}/environ", daemon.front.id()));
    assert_eq!(owner(&files.expect("the front runs")), 0);
}

#[test]
fn user_outside_the_slackline_groups_is_refused_by_the_daemon() {
    let Some(daemon) = Daemon::new(fine) else { return };
    // The copy is in a folder that every user may read. The build folder may not be readable.
    let program = daemon.folder.path().join("slackline");
    copy_program(&program);
    let mut command = Command::new(program);
    command.args(["list", "--socket"]).arg(daemon.folder.path().join("s"));
    let output = command
        .current_dir("/")
        .uid(65_534)
        .gid(65_534)
        .output()
        .expect("the program can be started");
    let ran = Ran::new(&output).refused(5);
    ran.says("this user may not use the daemon").says("groups slackline or slackline-admin");
    assert!(daemon.asked.lock().expect("no thread panicked").try_recv().is_err());
}

#[test]
fn reservation_commands_send_the_typed_values_to_the_daemon() {
    let Some(daemon) = Daemon::new(fine) else { return };
    let text = daemon
        .run(&["reserve", "web", "--cpu", "1.5", "--vcpus", "2", "--exact", "--for", "pid:17"])
        .good();
    let said = "web: 2ms in every 10ms for each of 2 vCPUs, and no more, 40.00 % of a CPU, for \
                libvirt:web; partial, revision 7: the VM has 1 vCPU, and 2 are reserved\n";
    assert_eq!(text, said);
    let Request::Reserve { name, wanted } = daemon.heard() else { panic!("another request") };
    let cpu = wanted.cpu.map(|share| share.0.ppm());
    assert_eq!((name.as_str(), cpu, wanted.exact), ("web", Some(1_500_000), true));
    assert_eq!((wanted.binding.as_deref(), wanted.slice), (Some("pid:17"), None));
    daemon.run(&["change", "web", "--slice", "3ms", "--at-least", "--if-revision", "7"]).good();
    let Request::Change { change, if_revision, .. } = daemon.heard() else {
        panic!("another request")
    };
    assert_eq!((change.slice, change.exact), (Some(Length(Span::from_ms(3))), Some(false)));
    assert_eq!((if_revision, change.why), (Some(7), None));
    daemon.run(&["change", "web", "--slice", "3ms", "--why", "31 misses in 30 s"]).good();
    let Request::Change { change, .. } = daemon.heard() else { panic!("another request") };
    assert_eq!(change.why.as_deref(), Some("31 misses in 30 s"));
    // Without a terminal, no confirmation is asked for.
    for verb in ["pause", "resume", "release"] {
        daemon.run(&[verb, "web", "--if-revision", "7"]).good();
        let request = format!("{:?}", daemon.heard()).to_lowercase();
        assert!(request.starts_with(verb) && request.contains("if_revision: some(7)"), "{request}");
    }
    assert_eq!(daemon.run(&["find", "x"]).good(), "no VM has `x` in its name or binding\n");
}

#[test]
fn list_and_log_commands_print_tables_that_fit_40_columns() {
    let Some(daemon) = Daemon::new(fine) else { return };
    for verb in ["list", "log"] {
        let output = daemon
            .command(&[verb])
            .env("COLUMNS", "40")
            .output()
            .expect("the program can be started");
        let text = Ran::new(&output).good();
        for line in text.lines() {
            assert!(line.chars().count() <= 40, "{line}\n{text}");
        }
    }
    let wide = daemon
        .command(&["list"])
        .env("COLUMNS", "140")
        .output()
        .expect("the program can be started");
    let text = Ran::new(&wide).good();
    for shown in ["web", "2ms!", "1/2", "40.00", "30.00", "0.50", "75.00", "partial"] {
        assert!(text.contains(shown), "`{shown}` is not in\n{text}");
    }
    let log = daemon.run(&["log", "web", "--last", "3"]).good();
    assert!(log.contains("2007-09-30 12:00:59"), "{log}");
    let json = daemon.run(&["list", "--json"]).good();
    let all: Vec<Reservation> = serde_json::from_str(&json).expect("JSON");
    assert_eq!(all, [reservation("db"), reservation("web")]);
}

#[test]
fn daemon_refusal_is_printed_with_hint_and_sets_exit_code() {
    fn says(request: &Request) -> Outcome {
        let (kind, hint) = match request {
            Request::Reserve { .. } => (Kind::NoRoom, "the longest slice that fits is 3ms"),
            Request::Change { .. } => (Kind::Stale, "look again"),
            Request::Pause { .. } => (Kind::NotAllowed, "ask somebody"),
            Request::Release { .. } => (Kind::NotDurable, "make room"),
            _ => (Kind::Bug, "tell us"),
        };
        Err(Problem::new(kind, "both numbers").hinting(hint))
    }
    let Some(daemon) = Daemon::new(says) else { return };
    for (args, code, hint) in [
        (&["reserve", "web", "--slice", "5ms"][..], 4, "the longest slice that fits is 3ms"),
        (&["change", "web", "--slice", "5ms"], 2, "look again"),
        (&["pause", "web"], 5, "ask somebody"),
        (&["release", "web"], 3, "make room"),
        (&["room"], 70, "tell us"),
    ] {
        daemon.run(args).refused(code).says("both numbers").says(hint);
    }
    daemon.run(&["reserve", "Web/..", "--slice", "5ms"]).refused(2).says("'W' at character 1");
    daemon.run(&["change", "web"]).refused(2).says("no new parameter is given");
    let ran = daemon.run(&["reserve", "web", "--slice", "5"]).ended_with(2);
    ran.says("has no unit; write it as `4ms`");
}

#[test]
fn commands_without_running_daemon_fail_with_hint_to_start_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("nobody");
    for verb in ["find", "list", "watch", "room", "log"] {
        let command = Command::new(PROGRAM).arg(verb).arg("--socket").arg(&socket).output();
        let ran = Ran::new(&command.expect("the program can be started")).refused(3);
        ran.says("no daemon listens at").says("slackline serve");
    }
}

#[test]
fn watch_command_prints_reservations_each_second_until_stopped() {
    let Some(daemon) = Daemon::new(fine) else { return };
    let mut watch = daemon.command(&["watch", "web", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("the program can be started");
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    for _ in 0..2 {
        let line = lines.next().expect("a line").expect("text");
        let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["reservations"][0]["name"], "db", "{line}");
    }
    let pid = i32::try_from(watch.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, Signal::INT).expect("the command runs");
    assert_eq!(watch.wait().expect("the command ends").code(), Some(0));
}

#[test]
fn service_help_pages_explain_every_command_state_and_refusal() {
    let pages = ["service", "refusals"].map(|topic| {
        let output = Command::new(PROGRAM)
            .args(["help", topic])
            .output()
            .expect("the program can be started");
        Ran::new(&output).good()
    });
    let page = pages.concat();
    let words = State::ALL.map(|(state, _)| state.word()).into_iter();
    let words = words.chain(Kind::ALL.map(Kind::word));
    let verbs = ["serve", "find", "reserve", "change", "pause", "resume", "release", "list"];
    for word in words.chain(verbs).chain(["watch", "room", "log"]) {
        assert!(page.contains(&format!("\n  {word} ")), "`{word}` is not explained:\n{page}");
    }
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
}

pub(crate) fn clock(ahead: Duration, id: &str) -> Host {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    Host {
        revision: 0,
        name: id.into(),
        version: "1".into(),
        policy: "edf".into(),
        cpus: Vec::new(),
        reserve_ppm: 100_000,
        reservations: 0,
        waiting: 0,
        clock: Clock {
            id: id.into(),
            shows_ns: u64::try_from((now + ahead).as_nanos()).expect("this century"),
            error_ns: Some(100_000),
        },
    }
}

fn of_gang(request: &Request) -> Outcome {
    match request {
        Request::Host => Ok(Answer::Host(clock(Duration::ZERO, "one"))),
        Request::Gang {
            word:
                GangWord::Hold { name, .. }
                | GangWord::Begin { name, .. }
                | GangWord::Break { name, .. },
        } => Ok(Answer::Done { reservation: Box::new(reservation(name)), is_new: false }),
        other => Err(Problem::new(Kind::Bug, format!("{other:?}"))),
    }
}

fn full(request: &Request) -> Outcome {
    match request {
        Request::Gang { .. } => {
            let problem = Problem::new(Kind::NoRoom, "95 % is promised, and 90 % may be");
            Err(problem.hinting("the longest slice that fits is 3ms"))
        }
        other => of_gang(other),
    }
}

fn elsewhere(request: &Request) -> Outcome {
    match request {
        Request::Host => Ok(Answer::Host(clock(Duration::from_secs(30), "another"))),
        other => of_gang(other),
    }
}

/// Runs `slackline gang` with members on these hosts, and returns its result.
fn gang_of(hosts: [&Daemon; 2], more: &str) -> Ran {
    let members = hosts.map(|host| {
        let socket = host.folder.path().join("s");
        format!("[[member]]\nhost = \"{}\"\n", socket.display())
    });
    let text = format!(
        "name = \"bsp\"\nslice = \"4ms\"\nperiod = \"10ms\"\nstrict = true\n{more}{}",
        members.concat()
    );
    let file = hosts[0].folder.path().join("gang.toml");
    std::fs::write(&file, text).expect("a file");
    let mut command = Command::new(PROGRAM);
    command.arg("gang").arg(file).stdin(Stdio::null()).env_remove("COLUMNS");
    Ran::new(&command.output().expect("the program can be started"))
}

#[test]
fn gang_begins_only_after_reservation_on_all_hosts() {
    let (Some(one), Some(other)) = (Daemon::new(of_gang), Daemon::new(of_gang)) else { return };
    gang_of([&one, &other], "phase = \"3ms\"\n").ended_with(0).shows("gang bsp starts in");
    let begins = [(&one, "bsp-1"), (&other, "bsp-2")].map(|(daemon, called)| {
        assert_eq!(daemon.heard(), Request::Host);
        let held = Request::Gang {
            word: GangWord::Hold {
                gang: "bsp".into(),
                name: called.into(),
                wanted: slackline_control::ReservationParameters {
                    slice: Some(Length(Span::from_ms(4))),
                    period: Some(Length(Span::from_ms(10))),
                    phase: Some(Length(Span::from_ms(3))),
                    ..slackline_control::ReservationParameters::default()
                },
            },
        };
        assert_eq!(daemon.heard(), held);
        let Request::Gang { word: GangWord::Begin { at_ns, strict: true, .. } } = daemon.heard()
        else {
            panic!("the gang was not told to begin")
        };
        at_ns
    });
    assert_eq!(begins[0], begins[1]);
    // The VMs are first scheduled 20 ms before a period that all members begin together.
    assert_eq!((begins[0] + 20_000_000) % 10_000_000, 3_000_000);
}

#[test]
fn gang_refused_by_one_host_is_released_on_other_hosts() {
    let (Some(one), Some(other)) = (Daemon::new(of_gang), Daemon::new(full)) else { return };
    let ran = gang_of([&one, &other], "").ended_with(4);
    ran.says("bsp-2 on ").says("95 % is promised, and 90 % may be").says("fits is 3ms");
    let words = [one.heard(), one.heard(), one.heard()];
    let [Request::Host, Request::Gang { word: GangWord::Hold { .. } }, last] = &words else {
        panic!("{words:?}")
    };
    let Request::Gang { word: GangWord::Break { name, lost, .. } } = last else {
        panic!("{last:?}")
    };
    assert!(name == "bsp-1" && lost.starts_with("bsp-2 on "), "{name} {lost}");
}

#[test]
fn gang_is_refused_before_any_reservation_if_host_clocks_differ() {
    let (Some(one), Some(other)) = (Daemon::new(of_gang), Daemon::new(elsewhere)) else { return };
    let ran = gang_of([&one, &other], "").ended_with(3);
    ran.says("differ by").says("the slice of 4ms");
    assert_eq!((one.heard(), other.heard()), (Request::Host, Request::Host));
    assert!(one.asked.lock().expect("no thread panicked").try_recv().is_err());
}
