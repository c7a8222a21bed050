//! Tests of CPUs, pauses and shares of vCPUs in scenarios that run live. Needs root.

use crate::common::live::{self, Live, Victim, delivered, wait_until};
use slackline_linux::sys::{Tid, get_affinity, online_cpus, set_affinity, thread_cpu_time};
use slackline_units::{CpuId, CpuSet};

fn scenario(victim: &Victim, cpus: usize, more: &str) -> String {
    format!(
        "title = \"terms\"\nlength = \"2s\"\npolicy = {{ name = \"edf\" }}\n[host]\ncpus = {cpus}\n\
         [[domain]]\nname = \"victim\"\nlive = {{ pid = {}, threads = \"process\" }}\n\
         share.edf = {{ slice = \"2ms\", period = \"10ms\" }}\n{more}",
        victim.pid()
    )
}

/// The VM may use all slack, which is nearly the whole CPU. It is paused for three quarters of the
/// run, so it receives about a quarter. It can receive half, if a busy host delays the pause.
#[test]
fn domain_paused_in_a_live_run_receives_no_cpu_time() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let more = "[[change]]\nat = \"500ms\"\ndomain = \"victim\"\npaused = true\n";
    live.place.write("it.toml", scenario(&victim, 1, more).as_bytes());
    let run = live.run(&["run", "it.toml", "--json"]).good();
    let run: serde_json::Value = serde_json::from_str(&run).unwrap();
    let got = delivered(&run["runs"][0], "victim");
    assert!(0 < got && got <= 500_000, "{got}");
    victim.is_given_back();
    // If the pause ends before the run, the VM continues.
    let more =
        more.to_owned() + "[[change]]\nat = \"600ms\"\ndomain = \"victim\"\npaused = false\n";
    let before = thread_cpu_time(victim.spinner).unwrap();
    live.place.write("it.toml", scenario(&victim, 1, &more).as_bytes());
    let run = live.run(&["run", "it.toml", "--json"]).good();
    let run: serde_json::Value = serde_json::from_str(&run).unwrap();
    assert!(
        delivered(&run["runs"][0], "victim") > 0
            && thread_cpu_time(victim.spinner).unwrap() > before
    );
    victim.is_given_back();
    live.nothing_is_left();
}

#[test]
fn vcpu_in_live_run_uses_only_cpus_in_its_affinity() {
    let Some(live) = live::begin() else { return };
    let online: Vec<CpuId> = online_cpus().unwrap().iter().collect();
    let [.., zero, one] = online[..] else {
        println!("skipped: needs two CPUs");
        return;
    };
    let victim = Victim::start();
    let more = "cpus = [1]\n[[change]]\nat = \"1s\"\ndomain = \"victim\"\ncpus = [0]\n";
    let runner = live.start_with("it", &scenario(&victim, 2, more), &["--save", "it.trace"]);
    for cpu in [one, zero] {
        wait_until("the victim to be there", || {
            get_affinity(victim.spinner).unwrap() == CpuSet::one(cpu)
        });
    }
    runner.end().ended_with(0).shows("victim");
    let ran = stretches(&live);
    let at = |it: &serde_json::Value| it["from_ns"].as_u64().unwrap();
    let moved = ran.iter().filter(|it| it["cpu"] == "cpu0").map(at).min().expect("it moved");
    assert!(moved >= 1_000_000_000, "{ran:?}");
    // Records of the previous CPU can arrive late, but begin at most 20 ms after the move.
    let is_late = |it: &&serde_json::Value| at(it) > moved + 20_000_000 && it["cpu"] != "cpu0";
    assert_eq!(ran.iter().find(is_late), None);
    victim.is_given_back();
    live.nothing_is_left();
}

/// The vCPU starts on the CPU that the scenario names, although other CPUs have capacity too. Later
/// it may use any CPU that its affinity allows.
#[test]
fn vcpu_in_a_live_run_starts_on_its_configured_cpu() {
    let Some(live) = live::begin() else { return };
    let online: Vec<CpuId> = online_cpus().unwrap().iter().collect();
    if online.len() < 2 {
        println!("skipped: needs two CPUs");
        return;
    }
    for (policy, start) in [("edf", 0), ("edf", 1), ("credit", 1)] {
        let share = if policy == "edf" {
            "share.edf = { slice = \"2ms\", period = \"10ms\", exact = true }\n"
        } else {
            ""
        };
        let scenario = format!(
            "title = \"starts\"\nlength = \"1s\"\npolicy = {{ name = {policy:?} }}\n[host]\n\
             cpus = 2\n[[domain]]\nname = \"one\"\nwork = {{ kind = \"spin\" }}\n\
             starts_on = {start}\n{share}"
        );
        live.place.write("it.toml", scenario.as_bytes());
        live.run(&["run", "it.toml", "--save", "it.trace"]).ended_with(0);
        let first = stretches(&live)[0].clone();
        assert_eq!(first["cpu"], format!("cpu{start}"), "{policy}: {first}");
        live.nothing_is_left();
    }
}

/// The vCPU is blocked when it joins. Its work begins at the time in the scenario.
#[test]
fn vcpu_in_live_run_is_blocked_until_configured_wake_time() {
    let Some(live) = live::begin() else { return };
    let scenario = "title = \"wakes\"\nlength = \"1500ms\"\npolicy = { name = \"edf\" }\n\
                    [[domain]]\nname = \"one\"\nwork = { kind = \"spin\" }\nwakes = \"700ms\"\n\
                    share.edf = { slice = \"2ms\", period = \"10ms\", exact = true }\n";
    live.place.write("it.toml", scenario.as_bytes());
    live.run(&["run", "it.toml", "--save", "it.trace"]).ended_with(0);
    // Before that it only uses CPU time for waiting.
    let (mut before, mut after) = (0, 0);
    for stretch in stretches(&live) {
        let part = |name: &str| stretch[name].as_u64().expect("a time");
        let of = if part("from_ns") < 700_000_000 { &mut before } else { &mut after };
        *of += part("used_ns");
    }
    assert!(before <= 5_000_000 && after >= 10_000_000, "{before} ns before, {after} ns after");
    live.nothing_is_left();
}

/// Two vCPUs have 0.4 CPU together, and one of them is paused. With `spread = "even"`, the other
/// vCPU receives its equal share, and at most a quarter more. With `spread = "use"`, it receives
/// more, because it also receives the unused budget of the paused vCPU. Replaying the trace gives
/// the same decisions.
#[test]
fn busy_vcpu_in_live_run_receives_unused_budget_of_sibling() {
    let Some(live) = live::begin() else { return };
    let [even, by_use] = ["even", "use"].map(|spread| {
        let scenario = format!(
            "title = \"siblings\"\nlength = \"3s\"\nwarmup = \"500ms\"\n\
             policy = {{ name = \"edf\" }}\n[[domain]]\nname = \"web\"\nvcpus = 2\n\
             work = {{ kind = \"spin\" }}\n\
             share.edf = {{ cpu = \"40%\", period = \"20ms\", exact = true, \
             spread = \"{spread}\" }}\n\
             [[change]]\nat = \"1ms\"\ndomain = \"web.1\"\npaused = true\n"
        );
        live.place.write("it.toml", scenario.as_bytes());
        let run = live.run(&["run", "it.toml", "--save", "it.trace", "--json"]).good();
        let run: serde_json::Value = serde_json::from_str(&run).unwrap();
        let told = live.run(&["replay", "it.trace"]).good();
        assert!(told.ends_with(" decisions, all as recorded\n"), "{told}");
        delivered(&run["runs"][0], "web.0")
    });
    assert!(0 < even && even <= 250_000, "{even} of 0.2 CPUs");
    assert!(by_use > 200_000, "{by_use} is not more than half of 0.4 CPUs");
    assert!(even < by_use && by_use <= 500_000, "{by_use} of 0.4 CPUs, and {even} of 0.2");
    live.nothing_is_left();
}

/// Returns the run intervals of the saved run.
fn stretches(live: &Live) -> Vec<serde_json::Value> {
    let shown = live.run(&["show", "it.trace", "--list", "--json", "--for", "10s"]).good();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    shown["stretches"].as_array().expect("a list").clone()
}

/// The trace has joins, accepted and refused changes, a pause and a leave. Replaying the trace
/// gives the same decisions.
#[test]
fn replay_of_a_live_run_repeats_its_changes_and_refusals() {
    let Some(live) = live::begin() else { return };
    live.place.write("it.toml", live::COMES_AND_GOES.as_bytes());
    let told = live.run(&["run", "it.toml", "--save", "it.trace"]).good();
    assert!(told.contains("`stays` at 1500.000ms: "), "{told}");
    let told = live.run(&["replay", "it.trace"]).good();
    assert!(told.ends_with(" decisions, all as recorded\n"), "{told}");
    live.nothing_is_left();
}

/// Another program that always computes on the CPU of the run.
struct Stranger(std::process::Child);

impl Stranger {
    fn start(cpu: CpuId) -> Stranger {
        let mut command = std::process::Command::new("sh");
        let child = command.args(["-c", "while :; do :; done"]).spawn().expect("there is a shell");
        let stranger = Stranger(child);
        let tid = i32::try_from(stranger.0.id()).ok().and_then(Tid::new).expect("a process");
        set_affinity(tid, &CpuSet::one(cpu)).expect("root may set the affinity");
        stranger
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Another program always computes on the CPU of the run, so the CPU is never idle. The only vCPU
/// of the run is limited to a fifth of the CPU.
#[test]
fn live_run_measures_and_saves_cpu_time_of_other_programs() {
    let Some(live) = live::begin() else { return };
    let last = online_cpus().unwrap().iter().last().expect("a CPU");
    let _stranger = Stranger::start(last);
    let scenario = "title = \"beside others\"\nlength = \"2500ms\"\nwarmup = \"500ms\"\n\
                    policy = { name = \"edf\" }\n[[domain]]\nname = \"web\"\n\
                    work = { kind = \"spin\" }\n\
                    share.edf = { slice = \"2ms\", period = \"10ms\", exact = true }\n";
    live.place.write("it.toml", scenario.as_bytes());
    let cpu = format!("--cpus={}", last.index());
    let told = live.run(&["run", "it.toml", &cpu, "--save", "it.trace", "--json"]).good();
    let run: serde_json::Value = serde_json::from_str(&told).unwrap();
    let (run, row) = (&run["runs"][0], &run["runs"][0]["cpus"][0]);
    let part = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}")) / 1e6;
    let length = run["length_ns"].as_f64().expect("a length");
    let busy = row["busy_ns"].as_f64().expect("a time") / length;
    let (others, stolen, unused) = (part("others_ppm"), part("stolen_ppm"), part("unused_ppm"));
    assert!(unused <= 0.1 && others + stolen >= 0.5, "{row}");
    // The remainder is dispatching, and ticks at both ends.
    let all = busy + others + stolen + unused;
    assert!((0.8..=1.05).contains(&all), "{all} of {row}");
    let shown = live.run(&["show", "it.trace", "--json"]).good();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(&shown["runs"][0]["cpus"][0], row);
    live.run(&["show", "it.trace", "--table"]).ended_with(0).shows("others %").shows("unused %");
    live.nothing_is_left();
}
