//! Guests that tell: processes that play them, on one CPU, and what becomes of the others when one
//! of them lies, floods, sends rubbish, falls silent or dies. Needs root and a second CPU.

use std::fs::File;
use std::io::{BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::live::{self, Live, delivered};
use serde_json::Value;
use slackline_trace::{Entry, Exchange, Fact, Reader};
use slackline_units::frame::{Class, FRAME, Frame, Says};
use slackline_units::{Span, TASKS, Tasks, Time, Urgency, VcpuHint, VcpuId};

/// The end of a domain's table: a process with this socket.
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

/// A scenario of one CPU in which `hog`s compute beside others.
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

/// Asks a guest so many times a second, once a run has begun; says what became of that.
fn client(live: &Live, port: u16) -> JoinHandle<Value> {
    let mut command = live.command(&["load", "ping", "--rate", "20", "--json", "--length", "6s"]);
    command.args(["--to", &port.to_string()]);
    std::thread::spawn(move || {
        sleep(2_500);
        let output = command.output().expect("a client");
        serde_json::from_slice(&output.stdout).expect("JSON")
    })
}

/// A port that is free now.
fn port() -> u16 {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.local_addr().expect("it has one").port()
}

/// Four VMs that compute and one that also serves, on one CPU: under `gaps` its answers come sooner
/// than under `credit`. Another load on this host delays the client, so three tries are allowed.
#[test]
fn server_in_a_busy_guest_answers_sooner_if_its_agent_reports() {
    let Some(live) = live::begin() else { return };
    let mut tries = Vec::new();
    for _ in 0..3 {
        let [credit, gaps] = ["credit", "gaps"].map(|policy| mean_response(&live, policy));
        // A third or less where nothing else runs.
        if gaps * 4 < credit * 3 {
            return;
        }
        tries.push((credit, gaps));
    }
    panic!("mean responses in ns under credit and gaps: {tries:?}");
}

/// The mean response of the server in ns. Shares are equal under each policy, and the recorded
/// facts give the same orders again.
fn mean_response(live: &Live, policy: &str) -> u64 {
    let port = port();
    let others = guest(live, "web", &["--port", &port.to_string()]);
    live.place.write("it.toml", scenario(policy, "10s", 4, &others).as_bytes());
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
        // Of what this machine left for all of them.
        assert!(share.abs_diff(all / 5) <= all / 5 / 10, "{policy}: {shares:?}");
    }
    let told = live.run(&["replay", "it.trace"]).good();
    assert!(told.ends_with(" orders, the same\n"), "{policy}: {told}");
    live.nothing_is_left();
    answers["response_mean_ns"].as_u64().expect("answers")
}

/// A frame that claims something as urgent as can be.
fn claim(sequence: u32) -> [u8; FRAME] {
    let class = Class { urgency: Urgency(0), runnable: 1, blocked: 0, woken: false };
    let mut classes = [None; TASKS];
    classes[0] = Some(class);
    Frame { vcpu: 0, sequence, says: Says::Classes(classes) }.to_bytes()
}

/// What was told in a run: when, and whether it claimed something.
fn told(live: &Live) -> Vec<(Time, VcpuId, bool)> {
    let file = File::open(live.place.path("it.trace")).expect("a trace");
    let mut reader = Reader::new(BufReader::new(file)).expect("a trace");
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

/// For how long each claim was there at most, of those that ended.
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

/// Two that compute beside one whose agent does this; what came of it.
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
        let agent = scope.spawn(|| acts(listener.accept().expect("the host comes").0));
        let ran = live.run(&["run", "it.toml", "--json", "--save", "it.trace"]);
        agent.join().expect("it acts");
        ran
    });
    std::fs::remove_file(&socket).expect("it is there");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).expect("JSON");
    let shares = ["bad", "hog0", "hog1"].map(|name| delivered(&json["runs"][0], name));
    let again = live.run(&["replay", "it.trace"]).good();
    assert!(again.ends_with(" orders, the same\n"), "{again}");
    live.nothing_is_left();
    println!("{shares:?}\n{}", ran.err);
    (ran.err, shares.to_vec())
}

/// Nobody lost anything to it: of what the machine left for them, each had its third.
#[track_caller]
fn are_equal(shares: &[u64]) {
    let third = shares.iter().sum::<u64>() / 3;
    assert!(shares.iter().all(|share| share.abs_diff(third) <= third / 20), "{shares:?}");
}

fn sleep(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Whoever says something urgent and then nothing more, three times, claims it for 200 ms at most:
/// 100 ms, a turn of each of the others, and 5 ms. So does whoever dies, at once.
#[test]
fn a_claim_that_is_not_told_again_is_gone_and_so_is_one_of_the_dead() {
    let Some(live) = live::begin() else { return };
    let (said, shares) = beside(&live, |mut host| {
        for sequence in 1..4 {
            sleep(800);
            host.write_all(&claim(sequence)).expect("it is heard");
        }
        sleep(800);
        host.write_all(&claim(4)).expect("it is heard");
        sleep(20);
    });
    let claims = claims(&told(&live));
    println!("{claims:?}");
    let [lapsed @ .., dead] = &claims[..] else { panic!("no claim was heard") };
    assert_eq!(lapsed.len(), 3, "{claims:?}");
    // On a machine that does other things one of them may be late.
    assert!(lapsed.iter().min() <= Some(&Span::from_ms(200)), "{claims:?}");
    assert!(lapsed.iter().all(|claim| *claim >= Span::from_ms(100)), "{claims:?}");
    assert!(lapsed.iter().max() <= Some(&Span::from_ms(1_200)), "{claims:?}");
    assert!(*dead <= Span::from_ms(200), "{claims:?}");
    assert!(said.contains("note: agent of bad: 4 frames received; claims expired: 3 "), "{said}");
    assert!(said.contains("; disconnected: 1; "), "{said}");
    are_equal(&shares);
}

/// One that always has something urgent to do gains nothing in the long run.
#[test]
fn a_liar_has_its_share_and_no_more() {
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

/// As many frames as go into the socket, for three seconds; a thousand things a second are told.
#[test]
fn a_flood_is_the_flooders_own() {
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
    assert!(told.len() as u64 <= most, "{} things told, {most} at most", told.len());
    are_equal(&shares);
}

/// What is no frame is dropped, and ends a claim at once; a good one is heard again.
#[test]
fn rubbish_is_silence() {
    let Some(live) = live::begin() else { return };
    let (said, shares) = beside(&live, |mut host| {
        sleep(500);
        host.write_all(&claim(1)).expect("it is heard");
        sleep(10);
        // Bytes without an order, none of which begin a frame.
        let bytes = |number: u32| ((number * number) >> 3).to_le_bytes();
        let rubbish: Vec<u8> = (0..1_000).flat_map(bytes).collect();
        host.write_all(&rubbish).expect("it is taken");
        sleep(500);
        host.write_all(&claim(1)).expect("it is heard");
        sleep(500);
    });
    let claims = claims(&told(&live));
    assert_eq!(claims.len(), 2, "{claims:?}");
    assert!(claims[0] < Span::from_ms(100), "{claims:?}");
    assert!(said.contains("; dropped: "), "{said}");
    assert!(said.contains("; claims expired: 1 "), "{said}");
    are_equal(&shares);
}

/// The guest of `cargo xtask guest`, which is made if it is not there; none where that cannot be.
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

/// A virtual machine, emulated, that computes and has an urgent server, asked through a relay; the
/// kernel is told this as well. It says where it is once it is up in `NAME.log`.
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

/// A real virtual machine with our agent in it, which is killed after five seconds, beside a
/// process that computes: what its urgent task is at gets to the policy, what the dead claimed is
/// gone within 200 ms, and the run can be played again.
#[test]
fn a_guest_of_qemu_tells_and_what_its_agent_claimed_dies_with_it() {
    let Some(live) = live::begin() else { return };
    let Some(cache) = guest_of_qemu() else { return };
    let guest = qemu(&live, &cache, "guest", "slackline.agent=nice=-1 slackline.stop=5");
    live.place.write("it.toml", scenario("gaps", "25s", 1, &guest).as_bytes());
    let ran = live.run(&["run", "it.toml", "--json", "--save", "it.trace"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    println!("{}", ran.err);
    let told = told(&live);
    let claimed = told.iter().filter(|(.., claims_something)| *claims_something).count();
    println!("{} things told, {claimed} claims", told.len());
    assert!(claimed > 10, "{}", ran.err);
    // From the last word of the agent until it counted for nothing, where nothing follows for long.
    let silence = |at: usize| told.get(at + 1).is_none_or(|next| next.0 - told[at].0 > SILENT);
    let last_words = (1..told.len()).filter(|&at| !told[at].2 && told[at - 1].2 && silence(at));
    let lapses: Vec<Span> = last_words.map(|at| told[at].0 - told[at - 1].0).collect();
    println!("{lapses:?}");
    assert!(!lapses.is_empty(), "{}", ran.err);
    // On a machine that does other things one of them may be late.
    assert!(lapses.iter().min() <= Some(&Span::from_ms(200)), "{lapses:?}");
    assert!(lapses.iter().max() <= Some(&Span::from_ms(1_200)), "{lapses:?}");
    assert!(ran.err.contains("; claims expired: "), "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).expect("JSON");
    let shares = ["guest", "hog0"].map(|name| delivered(&json["runs"][0], name));
    // Others that run here, QEMU's own threads among them, take their time from either: a busy
    // machine left 50 and 47 %.
    assert!(shares[1] >= shares[0] - shares[0] / 5, "{shares:?}");
    let again = live.run(&["replay", "it.trace"]).good();
    assert!(again.ends_with(" orders, the same\n"), "{again}");
    live.nothing_is_left();
}

/// For so long an agent that was killed says nothing at least.
const SILENT: Span = Span::from_ms(500);

/// Asks a guest 20 times a second, once it is up; says what became of that.
fn asks(live: &Live, name: &str) -> JoinHandle<Value> {
    let log = live.place.path(&format!("{name}.log"));
    let outside = live.place.path(&format!("{name}.outside"));
    let mut command = live.command(&["load", "ping", "--rate", "20", "--json", "--length", "15s"]);
    command.arg("--to").arg(outside);
    std::thread::spawn(move || {
        let end = Instant::now() + Duration::from_secs(35);
        let is_up = || std::fs::read_to_string(&log).is_ok_and(|it| it.contains("guest ready"));
        while !is_up() && Instant::now() < end {
            sleep(100);
        }
        sleep(2_000);
        let output = command.output().expect("a client");
        serde_json::from_slice(&output.stdout).expect("JSON")
    })
}

/// Two virtual machines on one CPU, each with an urgent server beside what it computes, an agent in
/// one of them, and one that computes: what is asked of the one that tells is answered sooner.
#[test]
fn a_guest_of_qemu_that_tells_answers_sooner_than_one_that_does_not() {
    let Some(live) = live::begin() else { return };
    let Some(cache) = guest_of_qemu() else { return };
    let tells = qemu(&live, &cache, "tells", "slackline.agent=nice=-1");
    let silent = qemu(&live, &cache, "silent", "");
    let file = scenario("gaps", "55s", 1, &format!("{tells}{silent}"));
    live.place.write("it.toml", file.as_bytes());
    let asked = ["tells", "silent"].map(|name| asks(&live, name));
    let ran = live.run(&["run", "it.toml", "--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    println!("{}", ran.err);
    let answers = asked.map(|asked| asked.join().expect("a client"));
    println!("{answers:?}");
    assert!(ran.err.contains("note: relay of tells: "), "{}", ran.err);
    assert!(answers.iter().all(|it| it["answered"].as_u64() > Some(200)), "{answers:?}");
    // Not the mean: a single halt of the guest of 1.8 s was once most of it.
    let [tells, silent] = answers.map(|it| it["response_p50_ns"].as_u64().expect("answers"));
    // Mostly less than a tenth.
    assert!(tells * 4 < silent * 3, "{tells} and {silent} ns");
    live.nothing_is_left();
}
