//! Tests of the watch for scheduling events, with real threads. They check properties that must
//! hold on every host, even on a busy one.
//!
//! No test sleeps for a fixed time. A test that needs a thread to be blocked reads events until the
//! watch reports the block, and fails after [`PATIENCE`].

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
use slackline_live::watch::{Event, EventSource, ThreadEventKind};
use slackline_units::{CpuId, CpuSet, Span, Time};

/// Timeout after which a test counts as hung.
const PATIENCE: Span = Span::from_secs(60);

/// Maximum duration of one context switch. When a thread is switched in or out, its CPU clock
/// starts or ends before the switch, and the kernel writes the record after the switch. A switch
/// takes 1 us as measured. The limit is larger because a hypervisor may interrupt the host during a
/// switch.
const SWITCH: Span = Span::from_us(50);

/// A watch with the event rings of all CPUs.
struct Watch {
    opened: PerfWatch,
    rings: Vec<PerfRing>,
    /// Threads whose events the test keeps.
    tids: Vec<Tid>,
    /// Events that were read but whose order is not final: an earlier event may still be in a ring
    /// that was read before.
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

    /// Drops all later events of a thread. The kernel still reports them, since the thread stays in
    /// the opened watch.
    fn remove(&mut self, tid: Tid) {
        self.tids.retain(|&other| other != tid);
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.opened.wake_fds().map(|(_, fd)| fd).collect()
    }

    /// Appends the events of all CPUs in order of time. Returns the number of lost events.
    fn drain(&mut self, into: &mut Vec<Event>) -> u64 {
        // The kernel records a block before it allows the wake-up. So when the rings have been
        // read, every event that led to an event before this time has been read too.
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

/// Returns the opened watch. If the host does not allow the watch, prints that the test is skipped
/// and returns `None`.
fn unless_skipped(opened: Result<(PerfWatch, Vec<PerfRing>), WatchError>) -> Option<Watch> {
    match opened {
        Ok((opened, rings)) => Some(Watch { opened, rings, tids: Vec::new(), unripe: Vec::new() }),
        Err(
            why @ (WatchError::NoPerf { .. }
            | WatchError::NotPermitted { .. }
            | WatchError::NoTracepoint(_)
            | WatchError::Namespace { .. }),
        ) => {
            println!("skipped: needs perf events: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// A thread that waits until it is started, performs one action, and waits again until this value
/// is dropped.
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

    /// Waits until the worker has performed its action.
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

/// Uses an amount of CPU time in the calling thread.
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

/// Reads events until the last event of a thread is `what`.
fn drain_until(watch: &mut Watch, events: &mut Vec<Event>, tid: Tid, what: ThreadEventKind) {
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

/// Returns the blocks, wake-ups and switches of one thread, oldest first.
fn of(events: &[Event], tid: Tid) -> Vec<Event> {
    let is_of = |event: &Event| event.tid == tid && !is_of_life(event.what);
    events.iter().copied().filter(is_of).collect()
}

/// Returns true if the event is the start of a new thread or the exit of a thread.
fn is_of_life(what: ThreadEventKind) -> bool {
    matches!(what, ThreadEventKind::Forked { .. } | ThreadEventKind::Ending)
}

fn count(events: &[Event], what: ThreadEventKind) -> usize {
    events.iter().filter(|event| event.what == what).count()
}

const ASLEEP: ThreadEventKind = ThreadEventKind::SwitchedOut { ready: false };
const PREEMPTED: ThreadEventKind = ThreadEventKind::SwitchedOut { ready: true };

/// Asserts that the events of one thread are in an order that is possible.
fn check_order(events: &[Event]) {
    for pair in events.windows(2) {
        let [first, second] = pair else { unreachable!() };
        assert!(first.at <= second.at, "not in order of time: {first:?}, {second:?}");
        let possible = match first.what {
            // A wake-up that ends no block is recorded too.
            ThreadEventKind::SwitchedIn => second.what != ThreadEventKind::SwitchedIn,
            ThreadEventKind::SwitchedOut { ready: true } | ThreadEventKind::Woke => {
                !matches!(second.what, ThreadEventKind::SwitchedOut { .. })
                    || first.what == ThreadEventKind::Woke
            }
            // A wake-up on an idle CPU may have no record.
            ThreadEventKind::SwitchedOut { ready: false } => {
                matches!(second.what, ThreadEventKind::Woke | ThreadEventKind::SwitchedIn)
            }
            ThreadEventKind::Forked { .. } | ThreadEventKind::Ending => {
                unreachable!("`of` leaves out starts and exits")
            }
        };
        assert!(possible, "{first:?} cannot be followed by {second:?}");
    }
}

/// Returns the run intervals of a thread: from each switch in to the next switch out.
fn stretches(events: &[Event]) -> Vec<(Time, Time)> {
    let mut stretches = Vec::new();
    let mut since = None;
    for event in events {
        match event.what {
            ThreadEventKind::SwitchedIn => since = Some(event.at),
            ThreadEventKind::SwitchedOut { .. } => {
                stretches.extend(since.take().map(|at| (at, event.at)));
            }
            ThreadEventKind::Woke | ThreadEventKind::Forked { .. } | ThreadEventKind::Ending => {}
        }
    }
    stretches
}

/// Waits until one of the file descriptors is readable, for at most `patience`. Returns false after
/// a timeout.
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

/// The start of a process is reported before the process runs, and its exit before the process is
/// switched out for the last time.
#[test]
fn child_events_come_in_order_fork_run_exit_switch_out() {
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
    let place = |tid: Tid, what: ThreadEventKind| {
        let is_it = |event: &Event| event.tid == tid && event.what == what;
        events.iter().position(is_it).unwrap_or_else(|| panic!("no {what:?} in {events:?}"))
    };
    let born = place(starter.tid, ThreadEventKind::Forked { child });
    let ran = place(child, ThreadEventKind::SwitchedIn);
    let ending = place(child, ThreadEventKind::Ending);
    let gone = events.iter().rposition(|event| event.tid == child && event.what == ASLEEP);
    assert!(born < ran && ran < ending && Some(ending) < gone, "{events:?}");
}

#[test]
fn each_sleep_of_thread_is_reported_as_block_or_preemption() {
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
    // A thread that is preempted between setting its timer and going to sleep may find the timer
    // expired and not block. So each sleep is a block or a preemption.
    let blocked = count(&events, ASLEEP);
    assert!(blocked + count(&events, PREEMPTED) >= 20, "{events:?}");
    // The first wake-up may end a block from before the thread was watched.
    assert!(count(&events, ThreadEventKind::Woke) <= blocked + 1, "{events:?}");
}

#[test]
fn waker_on_same_cpu_causes_one_wake_event_and_notification() {
    let Some(mut watch) = watch() else { return };
    let cpu = some_cpu();
    let (from, to) = pipe();
    let sleeper = Worker::new(move || {
        pin_to(cpu);
        while read(&from, &mut [0; 1]).unwrap() == 1 {}
    });
    // The test runs on the CPU of the worker, so that this CPU is never idle during a wake-up.
    pin_to(cpu);
    watch.add(sleeper.tid).unwrap();
    sleeper.start();
    let mut events = Vec::new();
    drain_until(&mut watch, &mut events, sleeper.tid, ASLEEP);
    // The worker may have started on another CPU. The first byte wakes it on the CPU of the test.
    write(&to, b"x").unwrap();
    drain_until(&mut watch, &mut events, sleeper.tid, ASLEEP);
    for _ in 0..20 {
        events.clear();
        drain_until_idle(&mut watch, &mut events, sleeper.tid);
        events.clear();
        let fds = watch.wake_fds();
        while readable(&fds, Span::ZERO) {}
        write(&to, b"x").unwrap();
        assert!(readable(&fds, PATIENCE), "the wake-up caused no notification");
        drain_until(&mut watch, &mut events, sleeper.tid, ASLEEP);
        check_order(&events);
        assert_eq!(count(&events, ThreadEventKind::Woke), 1, "{events:?}");
        assert!(events.iter().all(|event| event.cpu == cpu), "{events:?}");
        let fds = watch.wake_fds();
        assert!(!readable(&fds, Span::ZERO), "switches caused a notification");
    }
    drop(to);
    sleeper.finished();
}

/// Reads events until a thread is idle. A thread counts as idle when procfs has shown it as
/// sleeping twice and no event came between the two readings.
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
fn run_intervals_of_thread_add_up_to_its_cpu_time() {
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
    // The error of each run interval is at most one switch at either end. Unlike the clocks of the
    // scheduler and of perf, CLOCK_MONOTONIC is adjusted, by at most 500 millionths.
    let switches = SWITCH * (2 * stretches.len() as u64);
    let give = switches + sum / 2_000;
    let apart = |a: Span, b: Span| a.left_after(b) + b.left_after(a);
    assert!(apart(sum, perf) <= give, "run intervals {sum}, perf's clock {perf}, tolerance {give}");
    // The scheduler's clock leaves out the time that it knows was used by interrupts and by the
    // hypervisor. The kernel counts three kinds of such time, and rounding may hide a hundredth of
    // a second of each.
    let taken = Span::from_ms(10) * (taken_from_threads() - taken + 3);
    let figures = format!("run intervals {sum}, scheduler's clock {scheduler}");
    assert!(scheduler <= sum + give, "{figures}, tolerance {give}");
    assert!(sum <= scheduler + give + taken, "{figures}, tolerance {give} + {taken}");
}

/// Returns the time that interrupts and the hypervisor have taken since the host booted, in
/// hundredths of a second. The result is the sum of three values of the kernel, each rounded down.
fn taken_from_threads() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let all = stat.lines().next().unwrap().split_ascii_whitespace().skip(1);
    // user nice system idle iowait irq softirq steal
    all.skip(5).take(3).map(|number| number.parse::<u64>().unwrap()).sum()
}

#[test]
fn run_intervals_of_two_threads_on_one_cpu_never_overlap() {
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
fn full_perf_ring_reports_number_of_lost_records() {
    let Some(mut watch) = unless_skipped(PerfWatch::with_rings_of(4096)) else { return };
    let cpu = some_cpu();
    let [(in_there, to_there), (in_here, to_here)] = [pipe(), pipe()];
    // Both threads run on one CPU, so each round switches between them and records at least 96
    // bytes. The records of all rounds do not fit into a page, which is the minimum size of a ring.
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

/// Returns the page size, as the kernel reports it to every process.
fn page_size() -> usize {
    let auxv = std::fs::read("/proc/self/auxv").unwrap();
    let words: Vec<usize> = auxv
        .chunks_exact(size_of::<usize>())
        .map(|word| usize::from_ne_bytes(word.try_into().unwrap()))
        .collect();
    // 6 is AT_PAGESZ, the page size.
    words.chunks_exact(2).find(|pair| pair[0] == 6).unwrap()[1]
}

/// A process that is killed at the end of the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn process_stopped_by_signal_is_reported_blocked_until_sigcont() {
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
    drain_until(&mut watch, &mut events, tid, ThreadEventKind::SwitchedIn);
    check_order(&events);
    assert!(!held.has_exited().unwrap());
    spinner.0.kill().unwrap();
    spinner.0.wait().unwrap();
    assert!(held.has_exited().unwrap());
    assert!(held.signal(Signal::CONT).is_err());
    watch.drain(&mut events);
}

/// The dispatcher resumes a thread with a real-time priority. The wake-up of this thread must not
/// wake the dispatcher.
#[test]
fn resuming_a_real_time_thread_does_not_wake_the_dispatcher() {
    let Some(mut watch) = watch() else { return };
    // The test watches the first process. The second runs on the same CPU, so that this CPU is
    // never idle.
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
        drain_until(&mut watch, &mut events, tid, ThreadEventKind::SwitchedIn);
        assert_eq!(count(&of(&events, tid), ThreadEventKind::Woke), 1, "{events:?}");
        let fds = watch.wake_fds();
        assert_eq!(readable(&fds, Span::ZERO), notifies, "{class:?}");
    }
}

#[test]
fn watching_an_exited_thread_is_refused_with_its_thread_id() {
    let Some(mut watch) = watch() else { return };
    let tid = spawn(own_tid).join().unwrap();
    // `join` returns when the kernel has cleared the thread's id, a short time before the thread
    // has exited. Until then the watch accepts the thread.
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
