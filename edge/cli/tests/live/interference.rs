//! Tests of admission beside deadline threads of other programs, and beside other processes of
//! Slackline. Needs root.

use crate::common::live::{self, Victim, wait_until};
use crate::enforce_service::{slice, start};
use crate::hold::Holding;
use rustix::process::Signal;
use slackline_linux::sys::{Scheduling, SchedulingOf, set_scheduling};
use slackline_units::Span;

/// Sets `SCHED_DEADLINE` for the busy thread of a victim, as another program would.
fn set_deadline(victim: &Victim, runtime: Span, period: Span) {
    let class = Scheduling::Deadline { runtime, deadline: period, period };
    let reset_on_fork = true;
    set_scheduling(victim.spinner, &SchedulingOf { class, reset_on_fork }).expect("bandwidth");
}

/// A thread of another program has 2 ms in every 10 ms by `SCHED_DEADLINE`. This thread can run for
/// 4 ms in one period of a vCPU.
#[test]
fn reservation_is_refused_beside_deadline_thread_of_another_program() {
    let Some(live) = live::begin() else { return };
    let (victim, other) = (Victim::start(), Victim::start());
    let daemon = start(&live, &[]);
    set_deadline(&other, Span::from_ms(2), Span::from_ms(10));
    let reserve = format!("reserve web --period 10ms --exact --for pid:{} --slice", victim.pid());
    let ran = daemon.run(&format!("{reserve} 7ms")).ended_with(4);
    ran.says("deadline threads can take 4ms of a window of 10ms").says("use a slice of at most ");
    victim.is_given_back();
    daemon.run(&format!("{reserve} 5ms")).ended_with(0);
    daemon.run("change web --slice 7ms").ended_with(4).says("deadline threads can take");
    daemon.run("change web --slice 4ms").ended_with(0);
    daemon.run("release web").ended_with(0);
    victim.is_given_back();
    daemon.end().ended_with(0);
    let pid = victim.pid().to_string();
    let hold = ["hold", "--pid", &pid, "--vcpus", "--period", "10ms", "--slice", "7ms"];
    live.run(&hold).ended_with(4).says("deadline threads can take 4ms of a window of 10ms");
    victim.is_given_back();
    live.nothing_is_left();
}

/// Returns a scenario with one VM, which reserves `slice` in every 10 ms. `more` is appended.
fn scenario(slice: &str, more: &str) -> String {
    format!(
        "title = \"beside\"\nlength = \"1s\"\npolicy = {{ name = \"edf\" }}\n\
         [[domain]]\nname = \"web\"\nwork = {{ kind = \"spin\" }}\n{}{more}",
        share(slice)
    )
}

fn share(slice: &str) -> String {
    format!("share.edf = {{ slice = \"{slice}\", period = \"10ms\", exact = true }}\n")
}

/// A thread of another program has 2 ms in every 10 ms by `SCHED_DEADLINE`, so it can run for 4 ms
/// in a vCPU's period of 10 ms.
#[test]
fn scenario_is_refused_beside_deadline_thread_of_another_program() {
    let Some(live) = live::begin() else { return };
    let other = Victim::start();
    set_deadline(&other, Span::from_ms(2), Span::from_ms(10));
    live.place.write("it.toml", scenario("7ms", "").as_bytes());
    let cpu = live.cpu();
    let run = ["run", "it.toml", "--cpus", &cpu];
    live.run(&run).ended_with(4).says("deadline threads can take 4ms of a window of 10ms");
    live.nothing_is_left();
    let joins = |name: &str, slice: &str| {
        let joins = "joins = \"500ms\"";
        let work = "work = { kind = \"spin\" }";
        format!("[[domain]]\nname = \"{name}\"\n{work}\n{joins}\n{}", share(slice))
    };
    let change = "[[change]]\nat = \"700ms\"\ndomain = \"web\"\n".to_owned() + &share("7ms");
    let more = joins("late", "5ms") + &joins("fits", "1ms") + &change;
    live.place.write("it.toml", scenario("2ms", &more).as_bytes());
    let ran = live.run(&run).ended_with(0);
    let refused = |name| format!("note: admission refused a join or change of `{name}` at ");
    let ran = ran.shows(&refused("web")).shows(&refused("late"));
    assert!(!ran.out.contains(&refused("fits")), "{}", ran.out);
    live.nothing_is_left();
}

/// `hold` schedules a CPU that the daemon does not manage.
#[test]
fn daemon_enforces_by_sched_deadline_while_hold_schedules_another_cpu() {
    let Some(live) = live::begin() else { return };
    if live.cpu() == "0" {
        println!("skipped: needs two CPUs");
        return;
    }
    let (victim, held) = (Victim::start(), Victim::start());
    let pid = held.pid().to_string();
    let hold = ["hold", "--pid", &pid, "--vcpus", "--slice", "1ms", "--cpus", "0"];
    let holding = Holding::start(&live, &hold);
    wait_until("the other process to be held", || held.is_held());
    let daemon = start(&live, &[]);
    let reserve =
        format!("reserve web --slice 1ms --period 10ms --exact --for pid:{}", victim.pid());
    daemon.run(&format!("{reserve} --enforce deadline")).ended_with(0);
    assert_eq!(slice(&victim), Some(Span::from_ms(1)));
    daemon.run("release web").ended_with(0);
    victim.is_given_back();
    daemon.end().ended_with(0);
    holding.signal(Signal::INT);
    holding.end().ended_with(0);
    held.is_given_back();
    live.nothing_is_left();
}

/// The deadline thread of `hold` could run on the CPUs of the daemon, whose admission does not
/// count that thread.
#[test]
fn hold_by_sched_deadline_is_refused_while_daemon_schedules_cpus() {
    let Some(live) = live::begin() else { return };
    let victim = Victim::start();
    let daemon = start(&live, &[]);
    let pid = victim.pid().to_string();
    let hold = ["hold", "--pid", &pid, "--vcpus", "--slice", "1ms", "--enforce", "deadline"];
    let by = format!("another slackline, process {},", daemon.pid());
    live.run(&hold).ended_with(4).says(&by).says("slackline reserve --enforce deadline");
    victim.is_given_back();
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// The trial uses a deadline thread, which could delay the vCPUs of the daemon.
#[test]
fn mechanism_trial_is_refused_while_a_daemon_schedules_cpus() {
    let Some(live) = live::begin() else { return };
    let results = || std::fs::read_to_string("/run/slackline/trial").ok();
    let before = results();
    let daemon = start(&live, &[]);
    let by = format!("another slackline, process {},", daemon.pid());
    live.run(&["doctor", "--trial"]).ended_with(3).says(&by).says("stop that process first");
    assert_eq!(results(), before);
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

#[test]
fn reported_available_slice_is_admitted_but_not_one_microsecond_more() {
    let Some(live) = live::begin() else { return };
    let (victim, other) = (Victim::start(), Victim::start());
    let daemon = start(&live, &[]);
    let reserve = |name: &str, victim: &Victim, slice: &str| {
        let (pid, more) = (victim.pid(), "--period 10ms --exact");
        format!("reserve {name} --for pid:{pid} --slice {slice} {more}")
    };
    let web = reserve("web", &victim, "3ms") + " --enforce deadline";
    daemon.run(&web).ended_with(0);
    let (_, room) = daemon.ask("GET", "/v1/room?period=10ms", None);
    let room = room["cpus"][0]["slice_ns"].as_u64().expect("a number") / 1_000;
    let above = daemon.run(&reserve("db", &other, &format!("{}us", room + 1))).ended_with(4);
    above.says("deadline threads can take");
    daemon.run(&reserve("db", &other, &format!("{room}us"))).ended_with(0);
    daemon.end().ended_with(0);
    live.nothing_is_left();
}

/// Another program has reserved 90 % of a CPU with `SCHED_DEADLINE`. So the kernel has too little
/// bandwidth left for the old and the new slice at the same time. On a test machine with more than
/// two CPUs the bandwidth can be enough for both slices.
#[test]
fn sched_deadline_slice_change_is_admitted_without_counting_old_slice() {
    let Some(live) = live::begin() else { return };
    let (victim, other) = (Victim::start(), Victim::start());
    set_deadline(&other, Span::from_ms(900), Span::from_secs(1));
    let daemon = start(&live, &[]);
    let pid = victim.pid();
    let web = format!("reserve web --for pid:{pid} --slice 5ms --period 10ms --exact");
    daemon.run(&format!("{web} --enforce deadline")).ended_with(0);
    for us in [4_500, 5_500, 3_000, 5_000] {
        daemon.run(&format!("change web --slice {us}us")).ended_with(0);
        assert_eq!(slice(&victim), Some(Span::from_us(us)));
    }
    // The dispatcher refuses this slice, after the thread has left its class.
    daemon.run("change web --slice 9900us --enforce dispatcher").ended_with(4);
    wait_until("the kernel to enforce again", || slice(&victim) == Some(Span::from_ms(5)));
    daemon.run("change web --slice 4ms").ended_with(0);
    assert_eq!(slice(&victim), Some(Span::from_ms(4)));
    daemon.run("release web").ended_with(0);
    victim.is_given_back();
    daemon.end().ended_with(0);
    live.nothing_is_left();
}
