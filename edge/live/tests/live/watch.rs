//! Watches real threads and checks what must hold on any machine, however busy.
//!
//! Nothing here waits for a length of time. Where a test needs a thread to be asleep it drains
//! until the watch says so, which is bounded only by the patience below, at whose end the test
//! fails.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, spawn, yield_now};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{read, write};
use rustix::process::Signal;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, TaskClock, Tid, get_affinity, monotonic, own_tid, set_affinity,
    set_scheduling, thread_cpu_time,
};
use slackline_linux::thread::TaskFd;
use slackline_live::watch::perf::{PerfRing, PerfWatch, WatchError};
use slackline_live::watch::{Event, EventSource, What};
use slackline_units::{CpuId, CpuSet, Span, Time};

/// How long anything may take before the test counts as hung.
const PATIENCE: Span = Span::from_secs(60);

/// How long the kernel takes for one switch, at most: its own clock of a thread starts before the
/// switch and the switched-in record is written after it, and likewise at the other end. Measured
/// at 1 us; the rest is for a host that is itself interrupted in between.
const SWITCH: Span = Span::from_us(50);

/// All CPUs together, and whom of all threads there are we want to hear of.
struct Watch {
    opened: PerfWatch,
    rings: Vec<PerfRing>,
    tids: Vec<Tid>,
    /// What was read, but may have been preceded by something in a ring that was read before.
    unripe: Vec<Event>,
}

impl Watch {
    fn add(&mut self, tid: Tid) -> Result<(), WatchError> {
        self.opened.add(tid)?;
        if !self.tids.contains(&tid) {
            self.tids.push(tid);
        }
        Ok(())
    }

    fn remove(&mut self, tid: Tid) {
        self.tids.retain(|&other| other != tid);
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.opened.wake_fds().map(|(_, fd)| fd).collect()
    }

    /// The events of all CPUs in the order in which they happened; what was lost.
    fn drain(&mut self, into: &mut Vec<Event>) -> u64 {
        // The kernel notes a sleep before it allows the wake, so what is earlier than this was
        // preceded by nothing that has not been seen yet.
        let until = monotonic();
        let Watch { rings, tids, unripe, .. } = self;
        let mut lost = 0;
        for ring in rings {
            let mut keep = |event: Event| {
                if tids.contains(&event.tid) {
                    unripe.push(event);
                }
            };
            lost += ring.drain(&mut keep).unwrap().lost;
        }
        unripe.sort_by_key(|event| (event.at, event.tid));
        let ripe = unripe.partition_point(|event| event.at < until);
        into.extend(unripe.drain(..ripe));
        lost
    }
}

fn watch() -> Option<Watch> {
    unless_skipped(PerfWatch::open())
}

fn unless_skipped(opened: Result<(PerfWatch, Vec<PerfRing>), WatchError>) -> Option<Watch> {
    match opened {
        Ok((opened, rings)) => Some(Watch { opened, rings, tids: Vec::new(), unripe: Vec::new() }),
        Err(
            why @ (WatchError::NoPerf { .. }
            | WatchError::NotPermitted { .. }
            | WatchError::NoTracepoint(_)
            | WatchError::Namespace { .. }),
        ) => {
            println!("skipped: needs perf events ({why})");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// A thread that does one thing when told to, and then lives on until dropped.
struct Worker {
    tid: Tid,
    go: Option<Sender<()>>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn new(work: impl FnOnce() + Send + 'static) -> Worker {
        let (tell, told) = channel();
        let (go, start) = channel();
        let (finish, done) = channel();
        let thread = spawn(move || {
            tell.send(own_tid()).unwrap();
            if start.recv().is_ok() {
                work();
                finish.send(()).unwrap();
                let _ = start.recv();
            }
        });
        Worker { tid: told.recv().unwrap(), go: Some(go), done, thread: Some(thread) }
    }

    fn start(&self) {
        self.go.as_ref().unwrap().send(()).unwrap();
    }

    fn finished(&self) {
        self.done.recv_timeout(Duration::from_nanos(PATIENCE.ns())).unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.go.take());
        let _ = self.thread.take().unwrap().join();
    }
}

/// Uses this much CPU time.
fn burn(time: Span) {
    let start = thread_cpu_time(own_tid()).unwrap();
    while thread_cpu_time(own_tid()).unwrap() - start < time {}
}

fn pin_to(cpu: CpuId) {
    set_affinity(own_tid(), &CpuSet::one(cpu)).unwrap();
}

fn some_cpu() -> CpuId {
    get_affinity(own_tid()).unwrap().first().unwrap()
}

fn drain(watch: &mut Watch, events: &mut Vec<Event>) {
    assert_eq!(watch.drain(events), 0);
}

/// Drains until the last thing a thread did is this.
fn drain_until(watch: &mut Watch, events: &mut Vec<Event>, tid: Tid, what: What) {
    let start = monotonic();
    loop {
        drain(watch, events);
        if events.iter().rfind(|event| event.tid == tid).is_some_and(|event| event.what == what) {
            return;
        }
        assert!(monotonic() - start < PATIENCE, "no {what:?} of {tid}: {events:?}");
        yield_now();
    }
}

/// When one thread slept, was woken and ran, oldest first.
fn of(events: &[Event], tid: Tid) -> Vec<Event> {
    let is_of = |event: &Event| event.tid == tid && !is_of_life(event.what);
    events.iter().copied().filter(is_of).collect()
}

/// Whether somebody begins or ends.
fn is_of_life(what: What) -> bool {
    matches!(what, What::Forked { .. } | What::Ending)
}

fn count(events: &[Event], what: What) -> usize {
    events.iter().filter(|event| event.what == what).count()
}

const ASLEEP: What = What::SwitchedOut { ready: false };
const PREEMPTED: What = What::SwitchedOut { ready: true };

/// Whether the events of one thread can follow each other in this order.
fn check_order(events: &[Event]) {
    for pair in events.windows(2) {
        let [first, second] = pair else { unreachable!() };
        assert!(first.at <= second.at, "time goes back: {first:?}, {second:?}");
        let possible = match first.what {
            // A wake that ends no sleep is noted too.
            What::SwitchedIn => second.what != What::SwitchedIn,
            What::SwitchedOut { ready: true } | What::Woke => {
                !matches!(second.what, What::SwitchedOut { .. }) || first.what == What::Woke
            }
            // A wake on an idle CPU may go unnoted.
            What::SwitchedOut { ready: false } => {
                matches!(second.what, What::Woke | What::SwitchedIn)
            }
            What::Forked { .. } | What::Ending => unreachable!("left out before"),
        };
        assert!(possible, "{first:?} cannot be followed by {second:?}");
    }
}

/// When a thread was on a CPU, from each switch in to the next switch out.
fn stretches(events: &[Event]) -> Vec<(Time, Time)> {
    let mut stretches = Vec::new();
    let mut since = None;
    for event in events {
        match event.what {
            What::SwitchedIn => since = Some(event.at),
            What::SwitchedOut { .. } => stretches.extend(since.take().map(|at| (at, event.at))),
            What::Woke | What::Forked { .. } | What::Ending => {}
        }
    }
    stretches
}

fn readable(fds: &[BorrowedFd<'_>], patience: Span) -> bool {
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let seconds = i64::try_from(patience / Span::from_secs(1)).unwrap();
    let ready = poll(&mut polled, Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })).unwrap();
    assert!(polled.iter().all(|fd| PollFlags::IN.contains(fd.revents())));
    ready > 0
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

/// Of a process that is started, that it is there is told before it runs; of one that ends, that it
/// does before it leaves its CPU for the last time: nothing that it did is nobody's.
#[test]
fn what_a_thread_starts_is_told_before_it_runs_and_its_end_before_it_is_gone() {
    let Some(mut watch) = watch() else { return };
    let cpu = some_cpu();
    let (tell, told) = channel();
    let starter = Worker::new(move || {
        pin_to(cpu);
        let mut child = Command::new("true").spawn().unwrap();
        tell.send(Tid::new(i32::try_from(child.id()).unwrap()).unwrap()).unwrap();
        child.wait().unwrap();
    });
    watch.add(starter.tid).unwrap();
    starter.start();
    let child = told.recv().unwrap();
    watch.tids.push(child);
    starter.finished();
    let mut events = Vec::new();
    drain(&mut watch, &mut events);
    let place = |tid: Tid, what: What| {
        let is_it = |event: &Event| event.tid == tid && event.what == what;
        events.iter().position(is_it).unwrap_or_else(|| panic!("no {what:?} in {events:?}"))
    };
    let born = place(starter.tid, What::Forked { child });
    let ran = place(child, What::SwitchedIn);
    let ending = place(child, What::Ending);
    let gone = events.iter().rposition(|event| event.tid == child && event.what == ASLEEP);
    assert!(born < ran && ran < ending && Some(ending) < gone, "{events:?}");
}

#[test]
fn a_sleeper_blocks_and_is_woken_by_turns() {
    let Some(mut watch) = watch() else { return };
    let sleeper = Worker::new(|| {
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let mut events = Vec::new();
    watch.add(sleeper.tid).unwrap();
    watch.add(sleeper.tid).unwrap();
    sleeper.start();
    sleeper.finished();
    drain(&mut watch, &mut events);
    let events = of(&events, sleeper.tid);
    check_order(&events);
    // A thread kept off its CPU between setting its timer and going to sleep does not block: each
    // sleep is a block or a preemption.
    let blocked = count(&events, ASLEEP);
    assert!(blocked + count(&events, PREEMPTED) >= 20, "{events:?}");
    // The first wake may be of a sleep before it was watched.
    assert!(count(&events, What::Woke) <= blocked + 1, "{events:?}");
}

#[test]
fn a_wake_by_a_thread_on_the_same_cpu_is_noted_and_notifies_once() {
    let Some(mut watch) = watch() else { return };
    let cpu = some_cpu();
    let (from, to) = pipe();
    let sleeper = Worker::new(move || {
        pin_to(cpu);
        while read(&from, &mut [0; 1]).unwrap() == 1 {}
    });
    // On the same CPU, so that it never idles while a wake is carried out.
    pin_to(cpu);
    watch.add(sleeper.tid).unwrap();
    sleeper.start();
    let mut events = Vec::new();
    drain_until(&mut watch, &mut events, sleeper.tid, ASLEEP);
    // The worker may have slept elsewhere first; this wakes it where it belongs.
    write(&to, b"x").unwrap();
    drain_until(&mut watch, &mut events, sleeper.tid, ASLEEP);
    for _ in 0..20 {
        events.clear();
        drain_until_idle(&mut watch, &mut events, sleeper.tid);
        events.clear();
        let fds = watch.wake_fds();
        while readable(&fds, Span::ZERO) {}
        write(&to, b"x").unwrap();
        assert!(readable(&fds, PATIENCE), "a wake that nobody is notified of");
        drain_until(&mut watch, &mut events, sleeper.tid, ASLEEP);
        check_order(&events);
        assert_eq!(count(&events, What::Woke), 1, "{events:?}");
        assert!(events.iter().all(|event| event.cpu == cpu), "{events:?}");
        let fds = watch.wake_fds();
        assert!(!readable(&fds, Span::ZERO), "switches have notified");
    }
    drop(to);
    sleeper.finished();
}

/// Drains until a thread that blocks in a read has nothing more to do: its state in procfs says so
/// twice with no event in between.
fn drain_until_idle(watch: &mut Watch, events: &mut Vec<Event>, tid: Tid) {
    let start = monotonic();
    let asleep = || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('S')
    };
    loop {
        drain(watch, events);
        let before = events.len();
        let first = asleep();
        drain(watch, events);
        if first && asleep() && events.len() == before {
            return;
        }
        assert!(monotonic() - start < PATIENCE);
        yield_now();
    }
}

#[test]
fn stretches_on_a_cpu_add_up_to_the_time_used() {
    let Some(mut watch) = watch() else { return };
    let spinner = Worker::new(|| burn(Span::from_ms(200)));
    watch.add(spinner.tid).unwrap();
    let clock = TaskClock::open(spinner.tid).unwrap();
    let mut events = Vec::new();
    drain_until_idle(&mut watch, &mut events, spinner.tid);
    events.clear();
    let taken = taken_from_threads();
    let before = (thread_cpu_time(spinner.tid).unwrap(), clock.read().unwrap());
    spinner.start();
    spinner.finished();
    drain_until_idle(&mut watch, &mut events, spinner.tid);
    let after = (thread_cpu_time(spinner.tid).unwrap(), clock.read().unwrap());
    check_order(&events);
    let stretches = stretches(&events);
    let sum: Span = stretches.iter().map(|&(from, to)| to - from).sum();
    let (scheduler, perf) = (after.0 - before.0, after.1 - before.1);
    // Each stretch may be off by a switch at either end, and the clocks of the scheduler and of
    // perf run free of the adjustment, at most 500 millionths, that CLOCK_MONOTONIC is under.
    let switches = SWITCH * (2 * stretches.len() as u64);
    let give = switches + sum / 2_000;
    let apart = |a: Span, b: Span| a.left_after(b) + b.left_after(a);
    assert!(apart(sum, perf) <= give, "{sum} noted, {perf} by perf's clock, give {give}");
    // The scheduler's clock leaves out what it knows the hypervisor and interrupts to have taken.
    // Three sorts are counted, and rounding may hide one hundredth of each.
    let taken = Span::from_ms(10) * (taken_from_threads() - taken + 3);
    assert!(scheduler <= sum + give, "{sum} noted, {scheduler} used, give {give}");
    assert!(sum <= scheduler + give + taken, "{sum} noted, {scheduler} used, give {give}+{taken}");
}

/// The time that interrupts and the hypervisor have taken since the host started, in hundredths of
/// a second, each sort rounded down.
fn taken_from_threads() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let all = stat.lines().next().unwrap().split_ascii_whitespace().skip(1);
    // user nice system idle iowait irq softirq steal
    all.skip(5).take(3).map(|number| number.parse::<u64>().unwrap()).sum()
}

#[test]
fn two_threads_on_one_cpu_are_never_both_on_it() {
    let Some(mut watch) = watch() else { return };
    let cpu = some_cpu();
    let work = move || {
        pin_to(cpu);
        burn(Span::from_ms(40));
    };
    let pair = [Worker::new(work), Worker::new(work)];
    pair.iter().for_each(|worker| watch.add(worker.tid).unwrap());
    pair.iter().for_each(Worker::start);
    pair.iter().for_each(Worker::finished);
    let mut events = Vec::new();
    drain(&mut watch, &mut events);
    assert!(events.windows(2).all(|pair| (pair[0].at, pair[0].tid) <= (pair[1].at, pair[1].tid)));
    events.retain(|event| event.cpu == cpu);
    let [ours, theirs] = pair.each_ref().map(|worker| stretches(&of(&events, worker.tid)));
    assert!(!ours.is_empty() && !theirs.is_empty());
    for (from, to) in ours {
        for &(start, end) in &theirs {
            assert!(to <= start || end <= from, "{from}..{to} and {start}..{end} at once");
        }
    }
}

#[test]
fn a_ring_without_room_says_so() {
    let Some(mut watch) = unless_skipped(PerfWatch::with_rings_of(4096)) else { return };
    let cpu = some_cpu();
    let [(in_there, to_there), (in_here, to_here)] = [pipe(), pipe()];
    // On one CPU each round makes both switch. That is 96 bytes a round at least, so these rounds
    // do not fit into a page, which is the least a ring has.
    let rounds = page_size() / 64;
    let echo = Worker::new(move || {
        pin_to(cpu);
        while read(&in_there, &mut [0; 1]).unwrap() == 1 {
            write(&to_here, b"x").unwrap();
        }
    });
    let caller = Worker::new(move || {
        pin_to(cpu);
        for _ in 0..rounds {
            write(&to_there, b"x").unwrap();
            read(&in_here, &mut [0; 1]).unwrap();
        }
    });
    watch.add(echo.tid).unwrap();
    watch.add(caller.tid).unwrap();
    echo.start();
    caller.start();
    caller.finished();
    assert!(watch.drain(&mut Vec::new()) > 0);
}

/// As the kernel tells every process.
fn page_size() -> usize {
    let auxv = std::fs::read("/proc/self/auxv").unwrap();
    let words: Vec<usize> = auxv
        .chunks_exact(size_of::<usize>())
        .map(|word| usize::from_ne_bytes(word.try_into().unwrap()))
        .collect();
    // AT_PAGESZ
    words.chunks_exact(2).find(|pair| pair[0] == 6).unwrap()[1]
}

/// A process that is killed when the test is over.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_stopped_process_looks_asleep_until_it_continues() {
    let Some(mut watch) = watch() else { return };
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
    let mut spinner = Process(command.spawn().unwrap());
    let tid = Tid::new(i32::try_from(spinner.0.id()).unwrap()).unwrap();
    let held = TaskFd::open(tid).unwrap();
    watch.add(tid).unwrap();
    let clock = TaskClock::open(tid).unwrap();
    let start = monotonic();
    while clock.read().unwrap().is_zero() {
        assert!(monotonic() - start < PATIENCE);
        yield_now();
    }
    let mut events = Vec::new();
    held.signal(Signal::STOP).unwrap();
    drain_until(&mut watch, &mut events, tid, ASLEEP);
    held.signal_process(Signal::CONT).unwrap();
    drain_until(&mut watch, &mut events, tid, What::SwitchedIn);
    check_order(&events);
    assert!(!held.has_exited().unwrap());
    spinner.0.kill().unwrap();
    spinner.0.wait().unwrap();
    assert!(held.has_exited().unwrap());
    assert!(held.signal(Signal::CONT).is_err());
    watch.drain(&mut events);
}

/// Letting somebody go who was stopped must not wake the one who does it.
#[test]
fn nobody_is_notified_of_a_stopped_thread_that_goes_on_raised() {
    let Some(mut watch) = watch() else { return };
    // One of them is watched; the other keeps its CPU from idling.
    let spinners = [(); 2].map(|()| {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        let spinner = Process(command.spawn().unwrap());
        let tid = Tid::new(i32::try_from(spinner.0.id()).unwrap()).unwrap();
        set_affinity(tid, &CpuSet::one(some_cpu())).unwrap();
        (tid, spinner)
    });
    let tid = spinners[0].0;
    let held = TaskFd::open(tid).unwrap();
    watch.add(tid).unwrap();
    let ordinary = Scheduling::Other { nice: 0 };
    let raised = |priority| Scheduling::Fifo { priority };
    let cases = [(ordinary, true), (raised(97), false), (raised(90), false), (ordinary, true)];
    for (class, notifies) in cases {
        held.signal(Signal::STOP).unwrap();
        let mut events = Vec::new();
        drain_until(&mut watch, &mut events, tid, ASLEEP);
        if set_scheduling(tid, &SchedulingOf { class, reset_on_fork: false }).is_err() {
            println!("skipped: needs the privilege to make a thread real-time");
            break;
        }
        let fds = watch.wake_fds();
        while readable(&fds, Span::ZERO) {}
        held.signal_process(Signal::CONT).unwrap();
        let mut events = Vec::new();
        drain_until(&mut watch, &mut events, tid, What::SwitchedIn);
        assert_eq!(count(&of(&events, tid), What::Woke), 1, "{events:?}");
        let fds = watch.wake_fds();
        assert_eq!(readable(&fds, Span::ZERO), notifies, "{class:?}");
    }
}

#[test]
fn a_thread_that_has_ended_is_refused_by_name() {
    let Some(mut watch) = watch() else { return };
    let tid = spawn(own_tid).join().unwrap();
    // Joining returns when the kernel clears the thread's id, just before the thread is gone.
    let start = monotonic();
    loop {
        match watch.add(tid) {
            Err(WatchError::NoThread { tid: named }) => return assert_eq!(named, tid),
            result => result.unwrap(),
        }
        watch.remove(tid);
        assert!(monotonic() - start < PATIENCE);
        yield_now();
    }
}

#[test]
fn a_thread_no_longer_watched_is_not_heard_of() {
    let Some(mut watch) = watch() else { return };
    let [gone, stays] = [0, 1].map(|_| Worker::new(|| burn(Span::from_ms(1))));
    watch.add(gone.tid).unwrap();
    watch.add(stays.tid).unwrap();
    gone.start();
    gone.finished();
    watch.remove(gone.tid);
    stays.start();
    stays.finished();
    let mut events = Vec::new();
    drain_until(&mut watch, &mut events, stays.tid, ASLEEP);
    assert!(events.iter().all(|event| event.tid == stays.tid));
}
