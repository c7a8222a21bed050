//! Tests of targets with several threads or processes that are scheduled as one vCPU. The threads
//! or processes receive equal shares of the target's CPU time. The tests need root.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, begin, cpus, options, request, share};
use crate::escapes::Group;
use slackline_host::policy::{Values, find};
use slackline_linux::cgroup::TreePlace;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, die_with_us, own_tid, set_scheduling, thread_cpu_time,
};
use slackline_live::session::{JoinTarget, Options, Session};
use slackline_units::{CpuSet, Span};

/// Number of threads or processes of a target.
const MEMBERS: usize = 5;

/// Period of the reservations. The period is long compared with the delays on a busy test machine.
const PERIOD: Span = Span::from_ms(100);

/// Number of consecutive periods over which each member receives its equal share.
const PERIODS: u64 = 10;

fn spin(nice: i32) -> ! {
    let class = SchedulingOf { class: Scheduling::Other { nice }, reset_on_fork: false };
    set_scheduling(own_tid(), &class).unwrap();
    std::io::stdout().write_all(format!("@{}\n", own_tid()).as_bytes()).unwrap();
    loop {
        std::hint::spin_loop();
    }
}

/// Runs as a target whose threads or processes compute all the time, if a test has started this
/// program as such a target. Each thread or process prints its thread id.
#[test]
fn entry_point_of_helper_busy_target() {
    let Ok(part) = std::env::var(common::PART) else { return };
    let words: Vec<&str> = part.split(' ').collect();
    let nice = |step: &str, at: i32| step.parse::<i32>().unwrap() * at;
    let members = i32::try_from(MEMBERS).unwrap();
    match words[..] {
        ["members", "threads", step] => {
            let spinners = (0..members).map(|at| nice(step, at));
            spinners.for_each(|nice| drop(std::thread::spawn(move || spin(nice))));
        }
        ["members", "processes", step] => {
            for at in 0..members {
                let mut command = common::again("rotation::entry_point_of_helper_busy_target");
                command.env(common::PART, format!("member {}", nice(step, at)));
                die_with_us(&mut command);
                std::mem::forget(command.spawn().unwrap());
            }
        }
        ["member", nice] => spin(nice.parse().unwrap()),
        _ => return,
    }
    loop {
        std::thread::park();
    }
}

/// A target process whose threads or child processes (members) compute all the time.
struct Members {
    child: Child,
    tids: Vec<Tid>,
}

impl Members {
    /// Starts a target whose members are `threads` or `processes`, as `kind` says. Each member has
    /// a nice value that is higher by `step` than that of the member before.
    fn start(kind: &str, step: i32) -> Members {
        let mut command = common::again("rotation::entry_point_of_helper_busy_target");
        command.env(common::PART, format!("members {kind} {step}"));
        command.stdout(Stdio::piped());
        die_with_us(&mut command);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = lines.filter_map(|line| Tid::new(line.rsplit_once('@')?.1.parse().ok()?));
        let tids = said.take(MEMBERS).collect::<Vec<_>>();
        assert_eq!(tids.len(), MEMBERS);
        Members { child, tids }
    }

    fn pid(&self) -> Tid {
        Tid::new(i32::try_from(self.child.id()).unwrap()).unwrap()
    }

    fn used(&self) -> Vec<Span> {
        self.tids.iter().map(|tid| thread_cpu_time(*tid).unwrap()).collect()
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parameters with which a target is scheduled.
#[derive(Clone, Copy, Debug)]
struct Held {
    kind: &'static str,
    nice_step: i32,
    /// Slice that all members together receive in each period, on each CPU.
    slice: Span,
    cpus: usize,
    is_exact: bool,
    is_group: bool,
}

/// Result of a measurement: the differences between the CPU times of a target's members and an
/// equal share.
struct Unevenness {
    /// Largest difference of any member from an equal share, over ten consecutive periods.
    worst: Span,
    /// Smallest CPU time that any member received in the whole run.
    least: Span,
}

/// Schedules a target and measures how its members share its CPU time. `None` if the host has no
/// version 2 cgroups.
fn unevenness(held: Held) -> Option<Unevenness> {
    let members = Members::start(held.kind, held.nice_step);
    let group = if held.is_group { Some(Group::with(members.pid())?) } else { None };
    for (group, tid) in
        group.iter().flat_map(|group| members.tids.iter().map(move |it| (group, it)))
    {
        std::fs::write(group.0.join("cgroup.procs"), tid.to_string()).unwrap();
    }
    let state = tempfile::tempdir().unwrap();
    let all = cpus(held.cpus);
    let set: CpuSet = all.iter().copied().collect();
    let who = match &group {
        Some(group) => JoinTarget::Group(TreePlace::existing(&group.0).ok()?),
        None if held.cpus > 1 => JoinTarget::Wide(members.pid(), set),
        None => JoinTarget::Tree(members.pid()),
    };
    let mut session = Session::open(&options(vec![all[0]], state.path())).unwrap();
    let us = |span: Span| span.ns() / 1_000;
    let terms = share(us(held.slice), us(PERIOD), held.is_exact);
    session.join(vec![request(who, terms)]).unwrap();
    let began = Instant::now();
    let elapsed = || Span::from_us(u64::try_from(began.elapsed().as_micros()).unwrap());
    let mut seen: Vec<(Span, Vec<Span>)> = Vec::new();
    while elapsed() < PERIOD * 26 {
        session.poll(&mut Vec::new()).unwrap();
        let _ = session.wait(&[], Span::from_ms(10));
        seen.push((elapsed(), members.used()));
    }
    session.close(&mut Vec::new()).unwrap();
    let mut worst = Span::ZERO;
    // The first three periods are left out, since the target joins in them.
    let whole = seen.iter().filter(|(at, _)| *at > PERIOD * 3).collect::<Vec<_>>();
    for (at, before) in &whole {
        let after = whole.iter().find(|(now, _)| *now >= *at + PERIOD * PERIODS);
        let Some((_, after)) = after else { break };
        let received = after.iter().zip(before).map(|(now, then)| *now - *then);
        let received: Vec<Span> = received.collect();
        let even = received.iter().copied().sum::<Span>() / u64::try_from(MEMBERS).unwrap();
        let off = received.iter().map(|one| one.left_after(even) + even.left_after(*one));
        worst = worst.max(off.max()?);
    }
    let (first, last) = (whole.first()?, whole.last()?);
    let received = last.1.iter().zip(&first.1).map(|(now, then)| *now - *then);
    let received: Vec<Span> = received.collect();
    let even = received.iter().copied().sum::<Span>() / u64::try_from(MEMBERS).unwrap();
    let least = *received.iter().min()?;
    println!("{held:?}: {worst} from an equal share, at least {least} of {even}");
    Some(Unevenness { worst, least })
}

const HELD: Held = Held {
    kind: "processes",
    nice_step: 0,
    slice: Span::from_ms(50),
    cpus: 1,
    is_exact: true,
    is_group: false,
};

/// Asserts that the members of a target share its CPU time equally: the CPU time of each member
/// differs from an equal share by at most one slice per CPU that the target uses. The difference
/// can be that large because, with a hard limit, the whole slice of a period on a CPU goes to a
/// single member.
fn is_even(held: Held) {
    let Some(Unevenness { worst, .. }) = unevenness(held) else {
        println!("skipped: needs cgroups of version 2 that can be written");
        return;
    };
    // The tolerance covers late stops. Without a hard limit it also covers slack, which the members
    // share as ordinary threads. On several CPUs it also covers members that are running when their
    // CPU time is read, since the kernel counts their time only at the next tick.
    let more = Span::from_ms(if held.is_exact && held.cpus == 1 { 5 } else { 20 });
    let most = held.slice * held.cpus as u64 + more;
    assert!(worst <= most, "{worst}, at most {most}: {held:?}");
}

#[test]
fn threads_sharing_hard_limit_receive_equal_time_in_ten_periods() {
    let Some(_alone) = begin() else { return };
    is_even(HELD);
    is_even(Held { kind: "threads", ..HELD });
    is_even(Held { is_group: true, ..HELD });
}

#[test]
fn threads_sharing_a_work_conserving_reservation_receive_equal_time() {
    let Some(_alone) = begin() else { return };
    is_even(Held { is_exact: false, ..HELD });
    is_even(Held { is_exact: false, kind: "threads", ..HELD });
}

#[test]
fn threads_with_unequal_nice_values_share_reserved_time_equally() {
    let Some(_alone) = begin() else { return };
    is_even(Held { nice_step: 4, ..HELD });
    is_even(Held { nice_step: 4, kind: "threads", ..HELD });
    let held = Held { nice_step: 4, is_exact: false, ..HELD };
    let Unevenness { least, .. } = unevenness(held).unwrap();
    // Slack is divided by nice values, and slices are not. The run has 23 slices, so each of the
    // five members receives at least four slices.
    assert!(least >= held.slice * 4, "{least}");
}

#[test]
fn threads_sharing_hard_limit_on_two_cpus_receive_equal_time() {
    let Some(_alone) = begin() else { return };
    if cpus(2).len() < 2 {
        println!("skipped: needs two CPUs");
        return;
    }
    is_even(Held { cpus: 2, slice: Span::from_ms(40), ..HELD });
    is_even(Held { cpus: 2, slice: Span::from_ms(40), kind: "threads", ..HELD });
}

/// Two process trees take turns on one CPU. At each turn the priorities of both trees change.
#[test]
fn threads_of_two_alternating_process_trees_receive_similar_cpu_time() {
    let Some(_alone) = begin() else { return };
    let trees = [Members::start("processes", 0), Members::start("processes", 0)];
    let state = tempfile::tempdir().unwrap();
    let policy = find("round-robin").unwrap();
    let values = Values::defaults(policy.policy_fields).unwrap();
    let options = Options { policy, values, ..options(cpus(1), state.path()) };
    let mut session = Session::open(&options).unwrap();
    for tree in &trees {
        let share = Values::defaults(policy.share_fields).unwrap();
        session.join(vec![request(JoinTarget::Tree(tree.pid()), share)]).unwrap();
    }
    let mut go_on = |length: Duration| {
        let until = Instant::now() + length;
        while Instant::now() < until {
            session.poll(&mut Vec::new()).unwrap();
            let _ = session.wait(&[], Span::from_ms(10));
        }
        trees.iter().flat_map(Members::used).collect::<Vec<Span>>()
    };
    let before = go_on(Duration::from_millis(500));
    let after = go_on(Duration::from_secs(5));
    session.close(&mut Vec::new()).unwrap();
    let received: Vec<Span> = after.iter().zip(&before).map(|(now, then)| *now - *then).collect();
    let (least, most) = (received.iter().min().unwrap(), received.iter().max().unwrap());
    assert!(*most <= *least * 3, "{received:?}");
}
