//! `slackline agent` runs inside a Linux guest and reports its urgent tasks to the host. A policy
//! that uses these hints can run the guest before other VMs while the guest has an urgent task.
//!
//! The agent learns of wakes and switches of urgent tasks from the kernel's tracing. Without
//! tracing, it polls the tasks every 5 ms. The agent sends a report when the most urgent class with
//! a runnable task changes, at most a thousand times a second. While the guest has urgent work, the
//! agent repeats the report every 40 ms, because the host drops a report that is older than 100 ms.
//! The agent is one statically linked file, and needs only the kernel.

#![forbid(unsafe_code)]

mod channel;
mod rule;
mod stat;
mod tasks;
mod trace;
mod urgent;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::time::{Duration, Instant};

use slackline_units::TASKS;
use slackline_units::frame::{Frame, Says};

use channel::Channel;
use stat::{Stat, State};
use tasks::{Task, Tasks, best};
use trace::{Event, Trace};

pub use channel::{ChannelPlace, NoChannel, PORT};
pub use rule::{NoRule, Rule};

/// Parameters of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Channel to the host.
    pub to: ChannelPlace,
    /// Rules that select urgent tasks, at most four. The tasks that a rule selects form a class.
    /// The first rule selects the most urgent class. All tasks that no rule selects form the last
    /// class.
    pub rules: Vec<Rule>,
}

/// Maximum number of rules, each of which selects one class of urgent tasks. The class of ordinary
/// tasks needs no rule.
pub const MOST_RULES: usize = TASKS - 1;

/// Default rules: real-time tasks, then tasks with a nice value below zero.
pub const RULES: [Rule; 2] = [Rule::RealTime, Rule::Nice(-1)];

/// Interval at which the agent searches `/proc` for urgent tasks.
const SCAN: Duration = Duration::from_millis(200);
/// Number of scans after which the agent identifies the kernel threads of the guest again. Between
/// these scans the agent skips kernel threads. Most tasks of a small guest are kernel threads, and
/// reading them in each scan would be the largest cost of the agent.
const FORGET: u32 = 32;
/// Interval at which the agent polls the states of urgent tasks, if the kernel has no tracing.
const LOOK: Duration = Duration::from_millis(5);
/// Interval at which an unchanged report of urgent work is repeated.
const AGAIN: Duration = Duration::from_millis(40);
/// Minimum time between two reports of the agent.
const APART: Duration = Duration::from_millis(1);
/// Maximum number of urgent tasks that the agent watches. The size of the kernel's trace filter
/// limits this number.
const MOST_TASKS: usize = 64;

/// Reports the guest's urgent tasks until the process ends.
///
/// # Errors
/// If there is no channel to the host.
pub fn run(options: &Options, says: &mut dyn FnMut(&str)) -> Result<(), NoChannel> {
    let channel = Channel::open(&options.to)?;
    if let Err(error) = urgent::become_urgent() {
        says(&format!(
            "cannot run with highest priority and locked memory, so reports may be late: {error}"
        ));
    }
    let trace = Trace::begin();
    if let Err(error) = &trace {
        says(&format!(
            "cannot trace task wake-ups ({error}): tasks are polled every 5 ms, and wake-ups by \
             I/O go unreported"
        ));
    }
    let trace = trace.ok();
    let events = listen(trace.as_ref());
    let mut agent = Agent::new(options, channel, trace);
    loop {
        agent.go_on(&events);
    }
}

/// Starts to read the kernel's task events, and returns the channel on which they arrive. If
/// `trace` is `None`, no event arrives.
fn listen(trace: Option<&Trace>) -> Receiver<Event> {
    // If more than this number of events wait, a new scan is faster than reading them.
    let (tell, events) = sync_channel(1_024);
    let lines = trace.and_then(|trace| trace.lines().ok());
    std::thread::spawn(move || {
        let Some(lines) = lines else {
            // This thread keeps the sender. If the sender were dropped, the receiver would return
            // an error at once instead of waiting.
            let (_tell, (_never, never)) = (tell, channel::<()>());
            let _ = never.recv();
            return;
        };
        for line in BufReader::new(lines).lines().map_while(Result::ok) {
            if let Some(event) = Event::parse(&line)
                && tell.send(event).is_err()
            {
                return;
            }
        }
    });
    events
}

/// State of a running agent.
struct Agent<'a> {
    rules: &'a [Rule],
    channel: Channel,
    trace: Option<Trace>,
    tasks: Tasks,
    watched: Vec<u32>,
    /// Process ids of the known kernel threads. The set is cleared every [`FORGET`] scans.
    kernels: BTreeSet<u32>,
    /// Number of scans so far.
    scans: u32,
    /// For each vCPU: the last report that was sent, and the time at which it was sent. `None` if
    /// the current report must be sent.
    told: Vec<Option<(Says, Instant)>>,
    sequence: u32,
    last: Option<Instant>,
    /// Time at which the agent retries a report that could not be sent.
    retry: Instant,
    next_scan: Instant,
    next_look: Instant,
}

impl<'a> Agent<'a> {
    fn new(options: &'a Options, channel: Channel, trace: Option<Trace>) -> Agent<'a> {
        let vcpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let now = Instant::now();
        Agent {
            rules: &options.rules,
            channel,
            trace,
            tasks: Tasks::default(),
            watched: Vec::new(),
            kernels: BTreeSet::new(),
            scans: 0,
            told: vec![None; vcpus],
            sequence: first_sequence(),
            last: None,
            retry: now,
            next_scan: now,
            next_look: now,
        }
    }

    /// Waits for the next event, and sends the reports that are due.
    fn go_on(&mut self, events: &Receiver<Event>) {
        let due = self.next_tell().into_iter().chain([self.next_scan, self.next_look]).min();
        let wait = due.unwrap_or(self.next_scan).saturating_duration_since(Instant::now());
        match events.recv_timeout(wait) {
            Ok(event) => {
                self.take(event);
                events.try_iter().for_each(|event| self.take(event));
            }
            Err(RecvTimeoutError::Timeout) => {}
            // Tracing has ended. The agent continues with polling.
            Err(RecvTimeoutError::Disconnected) => {
                self.trace = None;
                std::thread::sleep(wait.min(LOOK));
            }
        }
        let now = Instant::now();
        if now >= self.next_scan {
            self.next_scan = now + SCAN;
            self.scan();
        } else if now >= self.next_look && self.trace.is_none() {
            self.look();
        }
        self.next_look = if self.trace.is_none() { now + LOOK } else { self.next_scan };
        if self.channel.has_news() {
            self.told.fill(None);
        }
        self.tell(now);
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Woke { tid, cpu, by_interrupt } => self.tasks.woke(tid, cpu, by_interrupt),
            Event::LeftCpu { tid, state, cpu } => self.tasks.is_at(tid, state, cpu),
        }
    }

    /// Finds the urgent tasks of the guest, reads their states, and sets the trace to these tasks.
    fn scan(&mut self) {
        let (mut tasks, mut ordinary) = (BTreeMap::new(), 0);
        if self.scans.is_multiple_of(FORGET) {
            self.kernels.clear();
        }
        self.scans = self.scans.wrapping_add(1);
        let own = std::process::id();
        for pid in numbers("/proc") {
            if pid == own || self.kernels.contains(&pid) {
                continue;
            }
            for tid in numbers(&format!("/proc/{pid}/task")) {
                let Some(stat) = stat_of(pid, tid) else { continue };
                if stat.is_kernels {
                    self.kernels.insert(pid);
                    continue;
                }
                match self.class_of(tid, &stat) {
                    Some((class, urgency)) if tasks.len() < MOST_TASKS => {
                        let Stat { cpu, state, .. } = stat;
                        tasks.insert(tid, Task { class, urgency, cpu, state });
                    }
                    _ => ordinary += usize::from(stat.state == State::Wants),
                }
            }
        }
        self.tasks.set(tasks, ordinary);
        let watched: Vec<u32> = self.tasks.numbers().collect();
        if watched != self.watched {
            if let Some(trace) = &self.trace
                && trace.watch(&watched).is_err()
            {
                self.trace = None;
            }
            self.watched = watched;
        }
    }

    /// Reads the current states of the known urgent tasks.
    fn look(&mut self) {
        for &tid in &self.watched {
            let stat = stat_of(tid, tid);
            let (state, cpu) = stat.map_or((State::Neither, 0), |stat| (stat.state, stat.cpu));
            self.tasks.is_at(tid, state, cpu);
        }
    }

    fn class_of(&self, tid: u32, stat: &Stat) -> Option<(usize, slackline_units::Urgency)> {
        let cgroup = || fs::read_to_string(format!("/proc/{tid}/cgroup")).ok();
        let class = self.rules.iter().position(|rule| rule.is_about(stat, cgroup))?;
        Some((class, self.rules[class].urgency(stat)))
    }

    /// Returns the time at which the next report is due. A report is due if its content has
    /// changed, if it must be repeated, or if it could not be sent. `None` if no report is due.
    fn next_tell(&self) -> Option<Instant> {
        let each = (0..).zip(&self.told).filter_map(|(vcpu, told)| match told {
            Some((says, at)) if best(says) != best(&self.tasks.of(vcpu)) => Some(*at),
            Some((says, at)) => says.claims().then(|| *at + AGAIN),
            None => Some(self.retry),
        });
        let due = each.min()?;
        Some(self.last.map_or(due, |last| due.max(last + APART)))
    }

    /// Sends each report that has changed, or that must be repeated by now.
    fn tell(&mut self, now: Instant) {
        for vcpu in 0..self.told.len() {
            let number = u16::try_from(vcpu).unwrap_or(u16::MAX);
            let says = self.tasks.of(number);
            let is_told = self.told[vcpu].is_some_and(|(told, at)| {
                best(&told) == best(&says) && (!says.claims() || now < at + AGAIN)
            });
            if is_told || self.last.is_some_and(|last| now < last + APART) {
                continue;
            }
            self.sequence = self.sequence.wrapping_add(1);
            let frame = Frame { vcpu: number, sequence: self.sequence, says };
            let sent = self.channel.send(&frame.to_bytes());
            self.told[vcpu] = sent.then_some((says, now));
            if !sent {
                self.retry = now + AGAIN;
            }
            self.last = Some(now);
        }
    }
}

/// Returns the first sequence number of an agent: the milliseconds since the system booted.
///
/// An agent sends at most one report per millisecond. So the first number of a restarted agent is
/// higher than the last number of the previous agent. The host needs this order: it cannot tell two
/// agents at one virtio-serial port apart, and drops each frame that is older than the latest
/// frame.
fn first_sequence() -> u32 {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let ms = up.tv_sec.wrapping_mul(1_000).wrapping_add(up.tv_nsec / 1_000_000);
    // The value wraps, as all sequence numbers do.
    u32::try_from(ms & i64::from(u32::MAX)).unwrap_or(0)
}

/// Returns the names of the entries of `folder` that are numbers, such as process ids in `/proc`.
fn numbers(folder: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn stat_of(pid: u32, tid: u32) -> Option<Stat> {
    // A caller that knows no process id passes the thread id twice: `/proc/TID/task/TID` exists for
    // every thread.
    Stat::parse(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    use slackline_units::Urgency;
    use slackline_units::frame::FRAME;

    use super::*;

    /// Returns an agent in a guest with `vcpus` vCPUs and one blocked urgent task, and the host's
    /// end of the channel to this agent.
    fn agent<'a>(options: &'a Options, path: &PathBuf, vcpus: usize) -> (Agent<'a>, UnixStream) {
        let channel = Channel::open(&options.to).expect("a socket");
        let host = UnixStream::connect(path).expect("the agent listens");
        let mut agent = Agent::new(options, channel, None);
        assert!(agent.channel.has_news());
        agent.told = vec![None; vcpus];
        let task = Task { class: 0, urgency: Urgency(99), cpu: 0, state: State::Waits };
        agent.tasks.set([(7, task)].into(), 0);
        (agent, host)
    }

    fn options(name: &str) -> (Options, PathBuf) {
        let path = std::env::temp_dir().join(format!("slackline-{name}-{}", std::process::id()));
        (Options { to: ChannelPlace::Socket(path.clone()), rules: vec![Rule::RealTime] }, path)
    }

    /// If the channel is full, the agent retries the report before the next scan. The host then
    /// gets the new report before the previous report expires there.
    #[test]
    fn agent_retries_dropped_report_before_the_previous_report_expires() {
        let (options, path) = options("full");
        let (mut agent, _host) = agent(&options, &path, 1);
        while agent.channel.send(&[0; FRAME]) {}
        let now = Instant::now();
        agent.tell(now);
        assert_eq!((agent.told[0], agent.next_tell()), (None, Some(now + AGAIN)));
    }

    /// After a report for one vCPU, the agent waits a millisecond before it sends a report for
    /// another vCPU.
    #[test]
    fn agent_sends_reports_about_different_vcpus_a_millisecond_apart() {
        let (options, path) = options("three");
        let (mut agent, _host) = agent(&options, &path, 3);
        let mut now = Instant::now();
        for told in 1..=3 {
            agent.tell(now);
            assert_eq!(agent.told.iter().flatten().count(), told);
            let next = agent.next_tell().expect("a report of urgent work is repeated");
            assert_eq!(next - now, if told < 3 { APART } else { AGAIN - 2 * APART });
            now = next;
        }
    }
}
