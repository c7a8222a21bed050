//! Where vCPUs may run and that they are paused, in scenarios that are played live. Needs root.

mod common;

use common::live::{self, Victim, delivered, wait_until};
use slackline_live::sys::{get_affinity, online_cpus, thread_cpu_time};
use slackline_units::{CpuId, CpuSet};

#[test]
fn part_victim() {
    live::play_victim();
}

fn scenario(victim: &Victim, cpus: usize, more: &str) -> String {
    format!(
        "title = \"terms\"\nlength = \"2s\"\npolicy = {{ name = \"edf\" }}\n[host]\ncpus = {cpus}\n\
         [[domain]]\nname = \"victim\"\nlive = {{ pid = {}, threads = \"process\" }}\n\
         share.edf = {{ slice = \"2ms\", period = \"10ms\" }}\n{more}",
        victim.pid()
    )
}

/// It may use what nobody claims, which is nearly all; paused for three quarters of the run it gets
/// a quarter, or half at most where a pause takes half a second to be made.
#[test]
fn a_pause_of_a_scenario_holds_live() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let more = "[[change]]\nat = \"500ms\"\ndomain = \"victim\"\npaused = true\n";
    live.place.write("it.toml", scenario(&victim, 1, more).as_bytes());
    let run = live.run(&["run", "it.toml", "--json"]).good();
    let run: serde_json::Value = serde_json::from_str(&run).unwrap();
    let got = delivered(&run["runs"][0], "victim");
    assert!(0 < got && got <= 500_000, "{got}");
    victim.is_given_back();
    // And with its end before that of the run it goes on.
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
fn the_cpus_of_a_scenario_hold_live() {
    let Some(live) = live::begin() else { return };
    let online: Vec<CpuId> = online_cpus().unwrap().iter().collect();
    let [.., zero, one] = online[..] else {
        println!("skipped: needs two CPUs");
        return;
    };
    let victim = Victim::start();
    let more = "cpus = [1]\n[[change]]\nat = \"1s\"\ndomain = \"victim\"\ncpus = [0]\n";
    let runner = live.start(&scenario(&victim, 2, more));
    for cpu in [one, zero] {
        wait_until("the victim to be there", || {
            get_affinity(victim.spinner).unwrap() == CpuSet::one(cpu)
        });
    }
    runner.end().ended_with(0).shows("victim");
    victim.is_given_back();
    live.nothing_is_left();
}

/// Joins, changes that are taken and declined, a pause and a leave go through host and policy once
/// more, and to the same orders.
#[test]
fn what_is_changed_and_declined_on_the_way_replays() {
    let Some(live) = live::begin() else { return };
    live.place.write("it.toml", live::COMES_AND_GOES.as_bytes());
    let told = live.run(&["run", "it.toml", "--save", "it.trace"]).good();
    assert!(told.contains("declined at 1500.000ms: `stays`: "), "{told}");
    let told = live.run(&["replay", "it.trace"]).good();
    assert!(told.ends_with(" orders, the same\n"), "{told}");
    live.nothing_is_left();
}
