//! Tests of live runs with clients outside of the scheduled VMs. All clients and servers are real
//! processes that use the loopback interface. Needs root.

use std::fs;
use std::time::Duration;

use crate::common::Ran;
use crate::common::live::{self, Live, Runner, kill, let_pass, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use slackline_linux::sys::{Tid, process_cpu_time};
use slackline_units::Span;

/// Returns a scenario with a web server, and with a driver domain that a live run ignores.
fn scenario(length: &str, more: &str) -> String {
    format!(
        "title = \"web\"\nlength = \"{length}\"\npolicy = {{ name = \"edf\" }}\n\
         [driver]\ndomain = \"dom0\"\nreceive = \"13us\"\n\
         [[domain]]\nname = \"dom0\"\n\
         share.edf = {{ slice = \"1ms\", period = \"10ms\" }}\n\
         [[domain]]\nname = \"web\"\nkernel = {{ receive = \"17us\" }}\n\
         work = {{ kind = \"web-server\", each = \"100us\", response = \"10KiB\" }}\n\
         share.edf = {{ slice = \"4ms\", period = \"10ms\" }}\n{more}"
    )
}

const HTTPERF: &str = "[[client]]\nkind = \"httperf\"\nto = \"web\"\nrate = 200\n";

const NOTE: &str = "note:  a live run ignores ";

fn run_json(live: &Live, scenario: &str) -> Value {
    live.place.write("it.toml", scenario.as_bytes());
    let ran = live.run(&["run", "it.toml", "--json"]).ended_with(0);
    assert!(ran.err.starts_with(NOTE) && ran.err.lines().count() == 1, "{}", ran.err);
    let whole: Value = serde_json::from_str(&ran.out).expect("JSON");
    whole["runs"][0].clone()
}

fn vcpu<'a>(run: &'a Value, name: &str) -> &'a Value {
    let vcpus = run["vcpus"].as_array().unwrap();
    vcpus.iter().find(|vcpu| vcpu["name"] == name).unwrap()
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or_else(|| panic!("{field} of {of}"))
}

#[test]
fn run_and_compare_commands_report_response_times_of_live_servers() {
    let Some(live) = live::begin() else { return };
    let run = run_json(&live, &scenario("1500ms", HTTPERF));
    let web = vcpu(&run, "web");
    assert!(number(web, "jobs_done") > 0 && number(web, "jobs_late") == 0, "{web}");
    assert!(number(web, "response_p99_ns") >= number(web, "response_p50_ns"));
    // Each answer takes 100 us of the CPU time that the VM received.
    assert!(number(web, "delivered_ns") >= number(web, "jobs_done") * 100_000, "{web}");
    assert_eq!(number(vcpu(&run, "dom0"), "jobs_done"), 0);
    live.nothing_is_left();
    let compare = ["compare", "it.toml", "--live", "--json", "--report", "it.html"];
    let ran = live.run(&compare).ended_with(0).says(NOTE);
    let whole: Value = serde_json::from_str(&ran.out).expect("JSON");
    for run in whole["runs"].as_array().unwrap() {
        assert!(number(vcpu(run, "web"), "jobs_done") > 0, "{run}");
    }
    let html = String::from_utf8(live.place.read("it.html")).expect("text");
    for machine in ["simulated", "live"] {
        assert_eq!(html.matches(&format!(", {machine}, seed 1</h2>")).count(), 1, "a timeline");
    }
    live.nothing_is_left();
}

/// Returns a domain that is a node of a parallel program.
fn node(name: &str, slice: &str, compute: &str) -> String {
    format!(
        "[[domain]]\nname = \"{name}\"\n\
         work = {{ kind = \"bsp\", program = \"p\", compute = \"{compute}\" }}\n\
         share.edf = {{ slice = \"{slice}\", period = \"20ms\", exact = true }}\n"
    )
}

/// A node that waits uses a few milliseconds of CPU time per second.
#[test]
fn live_bsp_node_continues_after_another_node_is_killed() {
    let Some(live) = live::begin() else { return };
    let nodes = node("one", "4ms", "500us") + &node("other", "4ms", "500us");
    let head = "title = \"p\"\nlength = \"60s\"\npolicy = { name = \"edf\" }\n";
    let runner = live.start(&format!("{head}{nodes}"));
    let used = |pid: i32| process_cpu_time(Tid::new(pid).unwrap()).unwrap_or_default();
    let mut nodes = Vec::new();
    wait_until("both nodes to compute", || {
        nodes = live.processes_of("load");
        nodes.len() == 2 && nodes.iter().all(|&pid| used(pid) > Span::from_ms(50))
    });
    kill(nodes[0], Signal::KILL);
    let before = used(nodes[1]);
    wait_until("the other node to compute", || used(nodes[1]) > before + Span::from_ms(300));
    runner.signal(Signal::INT);
    runner.end();
    live.nothing_is_left();
}

/// One node has 2 ms in every 20 ms and needs all of it for a round of the parallel program. So the
/// other node has to wait for that node in each round.
#[test]
fn slow_live_bsp_node_limits_rate_of_other_nodes() {
    let Some(live) = live::begin() else { return };
    let (quick, held) = (node("quick", "4ms", "500us"), node("held", "2ms", "2ms"));
    let head = "title = \"p\"\nlength = \"1500ms\"\npolicy = { name = \"edf\" }\n";
    live.place.write("it.toml", format!("{head}{quick}{held}").as_bytes());
    let ran = live.run(&["run", "it.toml", "--json"]).ended_with(0);
    let whole: Value = serde_json::from_str(&ran.out).expect("JSON");
    let run = &whole["runs"][0];
    let [quick, held] = ["quick", "held"].map(|name| number(vcpu(run, name), "jobs_done"));
    assert!(quick.abs_diff(held) <= 1 && quick > 0, "{quick} and {held} rounds");
    // Alone, the quick node would complete eight rounds in each of 75 periods.
    let used = number(vcpu(run, "held"), "delivered_ns");
    assert!(held * 2_000_000 <= used + 2_000_000, "{held} rounds in {used} ns");
    assert!(held <= 2 * 75, "{held} rounds");
    live.nothing_is_left();
}

/// The scenario has every kind of workload and client.
#[test]
fn every_workload_and_client_kind_runs_on_live_host() {
    let Some(live) = live::begin() else { return };
    let domain = |name: &str, work: &str| {
        format!(
            "[[domain]]\nname = \"{name}\"\nwork = {{ {work} }}\n\
             share.edf = {{ slice = \"1ms\", period = \"20ms\" }}\n"
        )
    };
    let client = |kind: &str, to: &str, more: &str| {
        format!("[[client]]\nkind = \"{kind}\"\nto = \"{to}\"\n{more}\n")
    };
    let more = [
        domain("echo", "kind = \"echo\", each = \"50us\""),
        domain("disk", "kind = \"disk-read\", each = \"50us\", block = \"8KiB\", readers = 2"),
        domain("send", "kind = \"send\", each = \"50us\", block = \"8KiB\""),
        domain("sink", "kind = \"sink\""),
        domain("make", "kind = \"compile\", jobs = 2, each = \"1ms\", read = \"8KiB\""),
        client("ab", "web", "at_once = 2"),
        client("ping", "echo", "every = \"2ms\""),
        client("ping", "sink", "every = \"2ms\""),
        client("iperf", "sink", "window = \"64KiB\""),
        client("ttcp", "send", "window = \"64KiB\"\nway = \"out\""),
    ];
    let run = run_json(&live, &scenario("2s", &more.concat()));
    for answers in ["web", "echo", "sink"] {
        assert!(number(vcpu(&run, answers), "jobs_done") > 0, "{answers}: {run}");
    }
    for moves in ["disk", "send", "sink"] {
        assert!(number(vcpu(&run, moves), "moved_bytes") > 0, "{moves}: {run}");
    }
    assert!(number(vcpu(&run, "disk"), "moved_bytes").is_multiple_of(8192));
    // The compilation computes, however long its reads take.
    assert!(number(vcpu(&run, "make"), "delivered_ns") >= 1_000_000, "{run}");
    live.nothing_is_left();
}

#[test]
fn live_run_reports_requests_to_departed_domain_as_timed_out() {
    let Some(live) = live::begin() else { return };
    let text = scenario("1500ms", HTTPERF);
    let text = text.replace("name = \"web\"\n", "name = \"web\"\nleaves = \"700ms\"\n");
    live.place.write("it.toml", text.as_bytes());
    let ran = live.run(&["run", "it.toml"]).ended_with(0).says(NOTE);
    ran.shows("note: httperf of web: ").shows(" requests timed out, ");
    // The end of a client that is done is not reported.
    let stops = HTTPERF.to_owned() + "from = \"200ms\"\nuntil = \"600ms\"\n";
    live.place.write("it.toml", scenario("1500ms", &stops).as_bytes());
    let ran = live.run(&["run", "it.toml"]).ended_with(0).says(NOTE);
    assert!(!ran.out.contains("note: "), "{}", ran.out);
    live.nothing_is_left();
}

#[test]
fn simulation_only_scenario_feature_is_refused_in_live_run() {
    let Some(live) = live::begin() else { return };
    for (from, to, says) in [
        (
            "name = \"web\"\n",
            "name = \"web\"\nvcpus = 2\n",
            "a domain with tasks and several vCPUs",
        ),
        (
            "name = \"web\"\n",
            "name = \"web\"\nlive = { command = [\"sleep\", \"9\"] }\n",
            "a client of a domain with the key `live`",
        ),
    ] {
        let text = scenario("1s", HTTPERF).replace(from, to);
        live.place.write("it.toml", text.as_bytes());
        let ran = live.run(&["run", "it.toml"]).ended_with(3).says("error: it.toml:");
        ran.says(says).says("can only be simulated").says("hint:  use `slackline sim`");
    }
    live.nothing_is_left();
}

/// The threads of the VM compute on all CPUs when the run begins, and the policy has not picked the
/// VM yet. The VM is charged for the CPU time beyond its share, and is stopped until the excess is
/// paid back.
#[test]
fn hard_limited_domain_with_several_threads_stays_within_its_share() {
    let Some(live) = live::begin() else { return };
    let more = "[[domain]]\nname = \"hog\"\nwork = { kind = \"spin\" }\n\
                share.edf = { slice = \"4ms\", period = \"10ms\" }\n\
                [[client]]\nkind = \"ab\"\nto = \"web\"\nat_once = 8\n";
    let text = scenario("2s", more).replace("10KiB\"", "10KiB\", processes = 4");
    let text =
        text.replace("\"4ms\", period = \"10ms\" }", "\"2ms\", period = \"10ms\", exact = true }");
    for _ in 0..3 {
        let run = run_json(&live, &text);
        let web = vcpu(&run, "web");
        // The excess over a fifth allows for late enforcement.
        assert!(number(web, "delivered_ppm") <= 250_000, "{web}");
        // The charged time is the time that the threads used on any CPU: 100 us per request.
        assert!(number(web, "jobs_done") * 100_000 <= number(web, "delivered_ns") * 5 / 4, "{web}");
        live.nothing_is_left();
    }
}

/// Returns two groups of processes of a run: the processes of the scheduled VMs, and the clients
/// outside of them.
fn parts(live: &Live) -> (Vec<i32>, Vec<i32>) {
    (live.processes_of("tasks"), live.processes_of("caller"))
}

/// Starts a run in which a domain reads files, so that a file server process runs too.
fn busy(live: &Live) -> Runner<'_> {
    let more = "[[domain]]\nname = \"make\"\nshare.edf = { slice = \"1ms\", period = \"20ms\" }\n\
                work = { kind = \"compile\", each = \"1ms\", read = \"8KiB\" }\n";
    let runner = live.start(&scenario("60s", &(more.to_owned() + HTTPERF)));
    let is_there = || {
        let (tasks, callers) = parts(live);
        tasks.len() == 3 && callers.len() == 1 && live.processes_of("files").len() == 1
    };
    wait_until("all processes of the run", is_there);
    let_pass(Duration::from_millis(500));
    runner
}

/// Returns the CPUs on which a process may run, as the kernel formats them.
fn cpus_of(pid: i32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process exists");
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.expect("the kernel reports the CPUs").trim().to_owned()
}

#[test]
fn clients_of_live_run_use_only_cpus_without_scheduled_vms() {
    let Some(live) = live::begin() else { return };
    let runner = busy(&live);
    let (tasks, callers) = parts(&live);
    let scheduled = cpus_of(tasks[0]);
    if slackline_linux::sys::online_cpus().unwrap().len() > 1 {
        for outside in callers.into_iter().chain(live.processes_of("files")) {
            assert_ne!(cpus_of(outside), scheduled);
        }
    } else {
        println!("skipped: needs another CPU than the one that is scheduled");
    }
    runner.signal(Signal::INT);
    runner.end().ended_with(130).shows("note: stopped at ");
    live.nothing_is_left();
}

#[test]
fn live_run_continues_after_client_or_server_process_is_killed() {
    let Some(live) = live::begin() else { return };
    for word in ["caller", "files", "tasks"] {
        let mut runner = busy(&live);
        live.processes_of(word).into_iter().for_each(|pid| kill(pid, Signal::KILL));
        let_pass(Duration::from_millis(500));
        assert!(runner.is_running());
        runner.signal(Signal::INT);
        let ran = runner.end().ended_with(130);
        let name = match word {
            "caller" => "note: `httperf of web` ended by itself at ",
            "files" => "note: `the file server` ended by itself at ",
            _ => "note: `web` ended by itself at ",
        };
        ran.shows(name);
        live.nothing_is_left();
    }
}

#[test]
fn killed_live_run_leaves_no_server_or_client_process() {
    let Some(live) = live::begin() else { return };
    let runner = busy(&live);
    runner.signal(Signal::KILL);
    let Ran { code, .. } = runner.end();
    assert_eq!(code, None);
    live.nothing_is_left();
    assert_eq!(live.place.files(), ["it.err", "it.out", "it.toml"]);
    // The runner is also killed during its set-up.
    for delay in [5, 30, 100, 250] {
        let runner = live.start(&scenario("60s", HTTPERF));
        let_pass(Duration::from_millis(delay));
        runner.signal(Signal::KILL);
        assert_eq!(runner.end().code, None);
        live.nothing_is_left();
    }
}
