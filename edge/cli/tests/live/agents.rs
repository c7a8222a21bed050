//! Tests of guest agents. Processes act as guests on one CPU. Other VMs must not lose CPU time if
//! an agent lies, floods, sends garbage, stops reporting or dies. Needs root and a second CPU.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::live::{self, Live, delivered};
use rustix::process::Signal;
use serde_json::Value;
use slackline_trace::{Entry, Exchange, Fact, Reader};
use slackline_units::frame::{Class, FRAME, Frame, Says};
use slackline_units::{Span, TASKS, Tasks, Time, Urgency, VcpuHint, VcpuId};

/// Returns the table of a domain. Its live target is a process that acts as a guest with an agent.
/// `more` is added to the arguments of the process.
fn guest(live: &Live, name: &str, more: &[&str]) -> String {
    let socket = live.place.path(&format!("{name}.sock"));
    let program = env!("CARGO_BIN_EXE_slackline");
    let mut argv = vec![program, "load", "guest", "--each", "200us", "--agent"];
    argv.push(socket.to_str().expect("a path in UTF-8"));
    argv.extend(more);
    format!(
        "[[domain]]\nname = \"{name}\"\nlive = {{ command = {argv:?}, threads = \"vcpus\", \
         agent = {socket:?} }}\n"
    )
}

/// Returns a scenario of one CPU with `hogs` VMs that always compute, and the domains in `others`.
fn scenario(policy: &str, length: &str, hogs: usize, others: &str) -> String {
    let hogs = (0..hogs).map(|number| {
        format!("[[domain]]\nname = \"hog{number}\"\nwork = {{ kind = \"spin\" }}\n")
    });
    format!(
        "title = \"guests that tell\"\nlength = \"{length}\"\nwarmup = \"1s\"\n\
         policy = {{ name = \"{policy}\" }}\n[host]\ncpus = 1\n{}{others}",
        hogs.collect::<String>()
    )
}

/// Starts a thread that waits 2.5 s and then runs a client that pings a guest. The thread returns
/// the client's report.
fn client(live: &Live, port: u16) -> JoinHandle<Value> {
    let mut command = live.command(&["load", "ping", "--rate", "20", "--json", "--length", "3s"]);
    command.args(["--to", &port.to_string()]);
    std::thread::spawn(move || {
        sleep(2_500);
        let output = command.output().expect("a client");
        serde_json::from_slice(&output.stdout).expect("JSON")
    })
}

/// Returns a port that is free at the moment.
fn port() -> u16 {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.local_addr().expect("a bound socket has an address").port()
}

/// Five VMs on one CPU always compute, and one of them also answers requests. That VM answers
/// sooner with the policy `gaps` than with `credit`. Other load on the host can delay the client,
/// so the test allows three tries.
#[test]
fn guest_with_agent_responds_sooner_under_policy_gaps_than_credit() {
    let Some(live) = live::begin() else { return };
    let mut tries = Vec::new();
    for _ in 0..3 {
        let [credit, gaps] = ["credit", "gaps"].map(|policy| median_response(&live, policy));
        // On an idle host, `gaps` needs at most a third of the time.
        if gaps * 4 < credit * 3 {
            return;
        }
        tries.push((credit, gaps));
    }
    panic!("median responses in ns under credit and gaps: {tries:?}");
}

/// Runs the scenario with `policy`. Returns the median response time of the server in nanoseconds.
/// Asserts that the shares are equal, and that replaying the trace gives the same decisions.
fn median_response(live: &Live, policy: &str) -> u64 {
    let port = port();
    let others = guest(live, "web", &["--port", &port.to_string()]);
    live.place.write("it.toml", scenario(policy, "6s", 4, &others).as_bytes());
    let client = client(live, port);
    let ran = live.run(&["run", "it.toml", "--json", "--save", "it.trace"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).expect("JSON");
    let answers = client.join().expect("a client");
    println!("{policy}: {answers} {}", ran.err);
    let shares = ["web", "hog0", "hog1", "hog2", "hog3"];
    let shares = shares.map(|name| delivered(&json["runs"][0], name));
    println!("{shares:?}");
    let all: u64 = shares.iter().sum();
    for share in shares {
        // Shares are compared within the CPU time that the host left for all of the VMs.
        assert!(share.abs_diff(all / 5) <= all / 5 / 10, "{policy}: {shares:?}");
    }
    let told = live.run(&["replay", "it.trace"]).good();
    assert!(told.ends_with(" decisions, all as recorded\n"), "{policy}: {told}");
    live.nothing_is_left();
    answers["response_p50_ns"].as_u64().expect("answers")
}

/// Returns an agent's frame that claims the highest urgency.
fn claim(sequence: u32) -> [u8; FRAME] {
    let class = Class { urgency: Urgency(0), runnable: 1, blocked: 0, woken: false };
    let mut classes = [None; TASKS];
    classes[0] = Some(class);
    Frame { vcpu: 0, sequence, says: Says::Classes(classes) }.to_bytes()
}

/// Returns the agent's reports in a run: the time, the vCPU, and true if the report claims urgency.
fn told(live: &Live) -> Vec<(Time, VcpuId, bool)> {
    let file = File::open(live.place.path("it.trace")).expect("a trace");
    let mut reader = Reader::new(file).expect("a trace");
    let mut all = Vec::new();
    while let Some(entry) = reader.next_entry().expect("an entry") {
        if let Entry::Exchange(Exchange::Reported { now, fact: Fact::Told(vcpu, told) }) = entry
            && let VcpuHint::Tasks(tasks) = *told
        {
            all.push((now, vcpu, tasks != Tasks::default()));
        }
    }
    all
}

/// Returns the duration of each claim of urgency that has ended.
fn claims(told: &[(Time, VcpuId, bool)]) -> Vec<Span> {
    let mut since = None;
    let mut claims = Vec::new();
    for &(at, _, claims_something) in told {
        match (since, claims_something) {
            (None, true) => since = Some(at),
            (Some(from), false) => {
                claims.push(at.since(from));
                since = None;
            }
            _ => {}
        }
    }
    claims
}

/// Runs two VMs that always compute, and a VM whose agent is simulated by `acts`. Returns the notes
/// of the run, and the shares of all VMs.
fn beside(live: &Live, acts: impl FnOnce(UnixStream) + Send) -> (String, Vec<u64>) {
    let socket = live.place.path("bad.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let program = env!("CARGO_BIN_EXE_slackline");
    let bad = format!(
        "[[domain]]\nname = \"bad\"\nlive = {{ command = [{program:?}, \"load\", \"spin\"], \
         agent = {socket:?} }}\n"
    );
    live.place.write("it.toml", scenario("gaps", "5s", 2, &bad).as_bytes());
    let ran = std::thread::scope(|scope| {
        let agent = scope.spawn(|| acts(listener.accept().expect("the host connects").0));
        let ran = live.run(&["run", "it.toml", "--json", "--save", "it.trace"]);
        agent.join().expect("the agent does not panic");
        ran
    });
    std::fs::remove_file(&socket).expect("the socket exists");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).expect("JSON");
    let shares = ["bad", "hog0", "hog1"].map(|name| delivered(&json["runs"][0], name));
    let again = live.run(&["replay", "it.trace"]).good();
    assert!(again.ends_with(" decisions, all as recorded\n"), "{again}");
    live.nothing_is_left();
    println!("{shares:?}\n{}", ran.err);
    (ran.err, shares.to_vec())
}

/// Asserts that each of three VMs received a third of the CPU time that the host left to them. So
/// no VM lost time because of the agent.
#[track_caller]
fn are_equal(shares: &[u64]) {
    let third = shares.iter().sum::<u64>() / 3;
    assert!(shares.iter().all(|share| share.abs_diff(third) <= third / 20), "{shares:?}");
}

fn sleep(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// An agent claims urgency and then stops reporting, three times. Without further reports, a claim
/// counts for 100 ms, and then until the guest has run for 5 ms. A working agent would report in
/// these 5 ms. Each other VM may run for a timeslice before the guest runs. So the test allows 200
/// ms for a claim to end. The claim of an agent that dies must also end within 200 ms.
#[test]
fn urgency_claim_expires_if_its_agent_is_silent_or_dies() {
    let Some(live) = live::begin() else { return };
    let (said, shares) = beside(&live, |mut host| {
        for sequence in 1..4 {
            sleep(800);
            host.write_all(&claim(sequence)).expect("the host reads the frame");
        }
        sleep(800);
        host.write_all(&claim(4)).expect("the host reads the frame");
        sleep(20);
    });
    let claims = claims(&told(&live));
    println!("{claims:?}");
    let [lapsed @ .., dead] = &claims[..] else { panic!("no claim was heard") };
    assert_eq!(lapsed.len(), 3, "{claims:?}");
    // On a busy host, one claim may end late.
    assert!(lapsed.iter().min() <= Some(&Span::from_ms(200)), "{claims:?}");
    assert!(lapsed.iter().all(|claim| *claim >= Span::from_ms(100)), "{claims:?}");
    assert!(lapsed.iter().max() <= Some(&Span::from_ms(1_200)), "{claims:?}");
    assert!(*dead <= Span::from_ms(200), "{claims:?}");
    assert!(said.contains("note: agent of bad: 4 frames received; claims expired: 3 "), "{said}");
    assert!(said.contains("; disconnected: 1; "), "{said}");
    are_equal(&shares);
}

/// A VM whose agent always claims urgency runs earlier than others, but receives no more CPU time
/// in the long run.
#[test]
fn vm_that_always_claims_urgency_gains_no_cpu_time() {
    let Some(live) = live::begin() else { return };
    let (said, shares) = beside(&live, |mut host| {
        for sequence in 1.. {
            if host.write_all(&claim(sequence)).is_err() {
                break;
            }
            sleep(40);
        }
    });
    assert!(said.contains(" frames received"), "{said}");
    are_equal(&shares);
}

/// The agent sends frames as fast as it can for three seconds. At most a thousand reports per
/// second reach the policy.
#[test]
fn agent_frame_flood_takes_no_cpu_time_from_vms() {
    let Some(live) = live::begin() else { return };
    let (said, shares) = beside(&live, |mut host| {
        let end = Instant::now() + Duration::from_secs(3);
        let mut sequence = 0;
        while Instant::now() < end {
            let many: Vec<u8> = (sequence..sequence + 64).flat_map(claim).collect();
            if host.write_all(&many).is_err() {
                break;
            }
            sequence += 64;
        }
    });
    assert!(said.contains("; superseded: "), "{said}");
    let told = told(&live);
    assert!(told.len() > 100, "{}", told.len());
    let (first, last) = (told[0].0, told[told.len() - 1].0);
    let most = (last.since(first) / Span::from_ms(1)) + 40;
    assert!(
        told.len() as u64 <= most,
        "{} reports reached the policy, at most {most} may",
        told.len()
    );
    are_equal(&shares);
}

/// An agent sends invalid bytes, which are dropped and end its claim at once. Valid frames after
/// them count again.
#[test]
fn agent_that_sends_invalid_bytes_loses_its_urgency_claim() {
    let Some(live) = live::begin() else { return };
    let (said, shares) = beside(&live, |mut host| {
        sleep(500);
        host.write_all(&claim(1)).expect("the host reads the frame");
        sleep(10);
        // The bytes are irregular, and none of them begins a frame.
        let bytes = |number: u32| ((number * number) >> 3).to_le_bytes();
        let rubbish: Vec<u8> = (0..1_000).flat_map(bytes).collect();
        host.write_all(&rubbish).expect("the host reads the bytes");
        sleep(500);
        host.write_all(&claim(1)).expect("the host reads the frame");
        sleep(500);
    });
    let claims = claims(&told(&live));
    assert_eq!(claims.len(), 2, "{claims:?}");
    assert!(claims[0] < Span::from_ms(100), "{claims:?}");
    assert!(said.contains("; dropped: "), "{said}");
    assert!(said.contains("; claims expired: 1 "), "{said}");
    are_equal(&shares);
}

/// Returns the folder of the guest image that `cargo xtask guest` builds. The image is built if
/// necessary. `None` if it cannot be built.
fn guest_of_qemu() -> Option<PathBuf> {
    let has_qemu = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let made = Command::new(cargo).args(["xtask", "guest"]).current_dir(&root).output();
    let made = made.is_ok_and(|output| output.status.success());
    if !has_qemu || !made {
        println!("skipped: needs qemu-system-x86 and the guest of `cargo xtask guest`");
        return None;
    }
    Some(root.join(".cache/guest"))
}

/// Returns the scenario table of an emulated VM that always computes and has an urgent server.
/// Requests to this server go through a relay. `more` is added to the kernel's command line. The
/// guest writes to `NAME.log` when it has booted.
fn qemu(live: &Live, cache: &Path, name: &str, more: &str) -> String {
    let file = |name: &str| cache.join(name).display().to_string();
    let path = |what: &str| live.place.path(&format!("{name}.{what}")).display().to_string();
    let append = format!(
        "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable nowatchdog \
         rcupdate.rcu_cpu_stall_suppress=1 slackline.work=serve {more}"
    );
    let plain = "qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot \
                 -machine pc -accel tcg -smp 1 -m 96 -device virtio-serial-pci";
    let mut argv: Vec<String> = plain.split_whitespace().map(str::to_owned).collect();
    let mut add = |option: &str, value: String| argv.extend([option.to_owned(), value]);
    add("-name", format!("{name},debug-threads=on"));
    add("-kernel", file("vmlinuz"));
    add("-initrd", file("initramfs.cpio"));
    add("-append", append);
    add("-serial", format!("file:{}", path("log")));
    for (id, port) in [("gaps", "slackline.gaps.0"), ("echo", "slackline.echo")] {
        add("-chardev", format!("socket,id={id},path={},server=on,wait=off", path(id)));
        add("-device", format!("virtserialport,chardev={id},name={port}"));
    }
    let (agent, echo, outside) = (path("gaps"), path("echo"), path("outside"));
    format!(
        "[[domain]]\nname = {name:?}\nlive = {{ command = {argv:?}, threads = \"vcpus\", \
         agent = {agent:?}, relay = {{ guest = {echo:?}, outside = {outside:?} }} }}\n"
    )
}

/// A real VM with an agent competes with a process that always computes. The agent is killed after
/// five seconds. The state of the guest's urgent task reaches the policy, and a claim ends within
/// 200 ms after the agent's death. The trace can be replayed.
#[test]
fn urgency_claim_of_qemu_guest_ends_when_agent_is_killed() {
    let Some(live) = live::begin() else { return };
    let Some(cache) = guest_of_qemu() else { return };
    let guest = qemu(&live, &cache, "guest", "slackline.agent=nice=-1 slackline.stop=5");
    let file = scenario("gaps", "60s", 1, &guest);
    let runner = live.start_with("it", &file, &["--json", "--save", "it.trace"]);
    let log = live.place.path("guest.log");
    live::wait_until("the guest to boot", || is_up(&log));
    // The agent is killed after five seconds.
    sleep(10_000);
    runner.signal(Signal::INT);
    let ran = runner.end();
    assert_eq!(ran.code, Some(130), "{}", ran.err);
    println!("{}", ran.err);
    let told = told(&live);
    let claimed = told.iter().filter(|(.., claims_something)| *claims_something).count();
    println!("{} reports, {claimed} claims", told.len());
    assert!(claimed > 10, "{}", ran.err);
    // Each silence begins with the agent's last claim before a long pause, and ends when that claim
    // expires.
    let silence = |at: usize| told.get(at + 1).is_none_or(|next| next.0 - told[at].0 > SILENT);
    let last_words = (1..told.len()).filter(|&at| !told[at].2 && told[at - 1].2 && silence(at));
    let lapses: Vec<Span> = last_words.map(|at| told[at].0 - told[at - 1].0).collect();
    println!("{lapses:?}");
    assert!(!lapses.is_empty(), "{}", ran.err);
    // On a busy host, one claim may end late.
    assert!(lapses.iter().min() <= Some(&Span::from_ms(200)), "{lapses:?}");
    assert!(lapses.iter().max() <= Some(&Span::from_ms(1_200)), "{lapses:?}");
    assert!(ran.err.contains("; claims expired: "), "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).expect("JSON");
    let shares = ["guest", "hog0"].map(|name| delivered(&json["runs"][0], name));
    // Other programs, such as QEMU's own threads, take CPU time from both: on a busy host 50 % and
    // 47 % were left.
    assert!(shares[1] >= shares[0] - shares[0] / 5, "{shares:?}");
    let again = live.run(&["replay", "it.trace"]).good();
    assert!(again.ends_with(" decisions, all as recorded\n"), "{again}");
    live.nothing_is_left();
}

/// Minimum time without reports after which the test considers the agent dead.
const SILENT: Span = Span::from_ms(500);

/// Returns true if the log of a guest says that the guest has booted.
fn is_up(log: &Path) -> bool {
    std::fs::read_to_string(log).is_ok_and(|text| text.contains("guest ready"))
}

/// Starts a thread that waits until a guest has booted, and then runs a client. The client sends 20
/// pings per second to the guest. The thread returns the client's report.
fn asks(live: &Live, name: &str) -> JoinHandle<Value> {
    let log = live.place.path(&format!("{name}.log"));
    let outside = live.place.path(&format!("{name}.outside"));
    let mut command = live.command(&["load", "ping", "--rate", "20", "--json", "--length", "12s"]);
    command.arg("--to").arg(outside);
    std::thread::spawn(move || {
        live::wait_until("the guest to boot", || is_up(&log));
        sleep(2_000);
        let output = command.output().expect("a client");
        serde_json::from_slice(&output.stdout).expect("JSON")
    })
}

/// Three VMs on one CPU always compute. Two of them also have an urgent server, and one of these
/// two has an agent. The server of the VM with the agent answers sooner than the server of the VM
/// without an agent.
#[test]
fn qemu_guest_with_agent_answers_sooner_than_without_agent() {
    let Some(live) = live::begin() else { return };
    let Some(cache) = guest_of_qemu() else { return };
    let tells = qemu(&live, &cache, "tells", "slackline.agent=nice=-1");
    let silent = qemu(&live, &cache, "silent", "");
    let file = scenario("gaps", "100s", 1, &format!("{tells}{silent}"));
    let runner = live.start_with("it", &file, &["--json"]);
    let asked = ["tells", "silent"].map(|name| asks(&live, name));
    let answers = asked.map(|asked| asked.join().expect("a client"));
    println!("{answers:?}");
    runner.signal(Signal::INT);
    let ran = runner.end();
    assert_eq!(ran.code, Some(130), "{}", ran.err);
    println!("{}", ran.err);
    assert!(ran.err.contains("note: relay of tells: "), "{}", ran.err);
    assert!(answers.iter().all(|it| it["answered"].as_u64() > Some(150)), "{answers:?}");
    // The median is compared. A single pause of the guest of 1.8 s once dominated the mean.
    let [tells, silent] = answers.map(|it| it["response_p50_ns"].as_u64().expect("answers"));
    // Usually the ratio is less than a tenth.
    assert!(tells * 4 < silent * 3, "{tells} and {silent} ns");
    live.nothing_is_left();
}
