//! Test helper that checks a schedule drawn as text. Each vCPU has a line with the times at which
//! it has work, and each CPU has a line with the vCPUs that it ran. A column is a millisecond. The
//! policy runs under the real host, and switches cost nothing.
//!
//! ```text
//! NAME [field=value | flag]...   rrrrzzzz    r: runnable, z: blocked
//! cpuN                           aaaa....    first letter of the running vCPU; a dot if idle
//! ```
//!
//! Each vCPU is a VM of its own. Lines with the same `of=WORD` are the vCPUs of one VM.
//!
//! With `UPDATE=1` in the environment the `cpu` lines are rewritten in the source.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::Location;
use std::sync::Mutex;

use slackline_host::policy::{Account, Groups, RawValue, Spec, Topology, Values};
use slackline_host::{CpuUse, Fact, Hardware, Host, Order, Outcome, Report};
use slackline_trace::Record;
use slackline_units::{
    CpuId, CpuSet, DomId, Span, Task, TaskId, Tasks, Time, Urgency, VcpuHint, VcpuId,
};

const COLUMN: Span = Span::from_ms(1);

/// Runs the drawn vCPUs under a policy and compares the `cpu` lines with the drawing.
#[track_caller]
pub(crate) fn picture(policy: &str, drawing: &str) {
    picture_on(1, policy, drawing);
}

/// Runs a drawing like `picture`, on a host whose cores have `threads` neighbouring CPUs each.
#[track_caller]
pub(crate) fn picture_on(threads: usize, policy: &str, drawing: &str) {
    let lines: Vec<PictureLine<'_>> = drawing.lines().filter_map(PictureLine::read).collect();
    let (cpus, vcpus): (Vec<_>, Vec<_>) =
        lines.into_iter().partition(|line| line.name.starts_with("cpu"));
    let drawn = Model::new(policy, &vcpus, &neighbours(cpus.len(), threads)).run(&vcpus);
    let expected: Vec<&str> = cpus.iter().map(|line| line.timeline).collect();
    if drawn == expected {
        return;
    }
    if std::env::var_os("UPDATE").is_some() {
        rewrite(Location::caller(), &drawn);
        return;
    }
    let mut message = String::new();
    for (line, drawn) in cpus.iter().zip(&drawn) {
        let _ = writeln!(message, "{} expected {}", line.name, line.timeline);
        let _ = writeln!(message, "{} drawn    {drawn}", line.name);
    }
    panic!("under `{policy}`:\n{message}");
}

/// Returns one socket whose cores have `threads` neighbouring CPUs each.
fn neighbours(cpus: usize, threads: usize) -> Topology {
    let all: Vec<CpuId> = (0..cpus).map(CpuId::new).collect();
    let socket = vec![CpuSet::first_n(cpus)];
    let cores = all.chunks(threads).map(|core| core.iter().copied().collect()).collect();
    let (caches, nodes, sockets) = (socket.clone(), socket.clone(), socket);
    let groups = Groups { cores, caches, nodes, sockets };
    Topology::new(cpus, &groups).expect("cores within one socket form a topology")
}

/// Timeslice that lasted until the limit set by the policy.
pub(crate) struct PictureTimeslice {
    /// First letter of the name of the vCPU that ran.
    pub(crate) who: char,
    pub(crate) ran: Span,
    /// State of the vCPU as users see it, at the end of the timeslice.
    pub(crate) account: Account,
}

/// Returns the first `count` timeslices on one CPU, to the nanosecond. No vCPU blocks. The first
/// vCPU wakes at the start and runs alone for `alone`. Then the other vCPUs wake, in order.
pub(crate) fn turns(
    policy: &str,
    drawing: &str,
    alone: Span,
    count: usize,
) -> Vec<PictureTimeslice> {
    let vcpus: Vec<PictureLine<'_>> = drawing.lines().filter_map(PictureLine::read).collect();
    let mut model = Model::new(policy, &vcpus, &Topology::flat(1));
    for index in 0..vcpus.len() {
        let share = model.shares[index].clone();
        model.step(Fact::Joined(vcpu(index), (&share).into()));
    }
    model.step(Fact::Woke(vcpu(0)));
    model.step(Fact::Settled);
    model.state.now += alone;
    (1..vcpus.len()).for_each(|index| model.step(Fact::Woke(vcpu(index))));
    model.step(Fact::Settled);
    let cpu = CpuId::new(0);
    let turn = |_| {
        let (who, until, since) = model.state.running[&cpu];
        // Timers that were due while the first vCPU was alone expire late.
        model.state.now = until.expect("the timeslice has a limit").max(model.state.now);
        model.step(Fact::LimitReached(cpu));
        model.step(Fact::Settled);
        let name = vcpus[who.slot()].name.chars().next().expect("a vCPU has a name");
        PictureTimeslice {
            who: name,
            ran: model.state.now - since,
            account: model.host.account(who),
        }
    };
    (0..count).map(turn).collect()
}

/// A vCPU that wakes once and never blocks, and the urgency that it reports.
pub(crate) struct Hog {
    pub(crate) wakes: Span,
    pub(crate) urgency: Option<u8>,
}

/// Start of a timeslice.
pub(crate) struct Dispatch {
    pub(crate) at: Time,
    /// Index of the vCPU that runs.
    pub(crate) who: usize,
    /// State of the dispatched vCPU as users see it, at the start of the timeslice.
    pub(crate) account: Account,
}

/// Returns all timeslices on one CPU that begin before `end`. A hog reports its urgency when it
/// joins.
pub(crate) fn dispatches(policy: &str, hogs: &[Hog], end: Span) -> Vec<Dispatch> {
    dispatches_told(policy, hogs, &[], end)
}

/// Returns all timeslices on one CPU that begin before `end`, like `dispatches`. `later` lists
/// further reports in order of time: the time, the index of the reporting hog, and its hint.
pub(crate) fn dispatches_told(
    policy: &str,
    hogs: &[Hog],
    later: &[(Span, usize, VcpuHint)],
    end: Span,
) -> Vec<Dispatch> {
    let lines: Vec<PictureLine<'_>> =
        hogs.iter().filter_map(|_| PictureLine::read("hog r")).collect();
    let mut model = Model::new(policy, &lines, &Topology::flat(1));
    for (index, hog) in hogs.iter().enumerate() {
        let share = model.shares[index].clone();
        model.step(Fact::Joined(vcpu(index), (&share).into()));
        let Some(urgency) = hog.urgency.map(Urgency) else { continue };
        let task = |_| Task { id: TaskId::new(0), urgency };
        let runnable = std::array::from_fn(|place| (place == 0).then_some(()).map(task));
        let told = VcpuHint::Tasks(Tasks { runnable, ..Tasks::default() });
        model.step(Fact::Told(vcpu(index), &told));
    }
    let wakes = hogs.iter().enumerate().map(|(index, hog)| (hog.wakes, index, None));
    let told = later.iter().map(|(at, index, told)| (*at, *index, Some(told)));
    let mut events: Vec<(Span, usize, Option<&VcpuHint>)> = wakes.chain(told).collect();
    events.sort_by_key(|&(at, index, told)| (at, told.is_some(), index));
    for (at, index, told) in events.into_iter().take_while(|&(at, ..)| at < end) {
        model.run_until(Time::START + at);
        model.ring_due();
        model.step(told.map_or(Fact::Woke(vcpu(index)), |told| Fact::Told(vcpu(index), told)));
    }
    model.run_until(Time::START + end);
    std::mem::take(&mut model.dispatches)
}

struct PictureLine<'a> {
    name: &'a str,
    /// Name that all lines of a VM have in common (`of=NAME`). `None` if the vCPU is a VM of its
    /// own.
    of: Option<&'a str>,
    share: Vec<&'a str>,
    timeline: &'a str,
}

impl<'a> PictureLine<'a> {
    fn read(line: &'a str) -> Option<PictureLine<'a>> {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let timeline = words.pop()?;
        let name = words.first().copied().expect("a line has a name and a timeline");
        let (of, share): (Vec<&str>, Vec<&str>) =
            words.split_off(1).into_iter().partition(|word| word.starts_with("of="));
        Some(PictureLine { name, of: of.first().copied(), share, timeline })
    }

    fn wants(&self, column: usize) -> bool {
        self.timeline.as_bytes().get(column) == Some(&b'r')
    }
}

fn given<'a>(word: &&'a str) -> (&'a str, RawValue<'a>) {
    match word.split_once('=') {
        Some((name, "true")) => (name, RawValue::Flag(true)),
        Some((name, "false")) => (name, RawValue::Flag(false)),
        Some((name, value)) if value.parse::<i64>().is_ok() => (name, RawValue::Number(value)),
        Some((name, value)) => (name, RawValue::Text(value)),
        None => (word, RawValue::Flag(true)),
    }
}

/// Simulated hardware in which no operation takes time.
struct Model {
    host: Host,
    ids: Vec<VcpuId>,
    shares: Vec<Values>,
    state: State,
    trace: Vec<Record>,
    dispatches: Vec<Dispatch>,
}

#[derive(Default)]
struct State {
    /// vCPUs whose timeslices began in the current step.
    begun: Vec<VcpuId>,
    /// By CPU: the running vCPU, the end of its timeslice, and the time up to which its CPU time
    /// was measured.
    running: BTreeMap<CpuId, (VcpuId, Option<Time>, Time)>,
    alarms: BTreeMap<CpuId, Time>,
    now: Time,
}

impl State {
    /// Clears a timeslice limit that was reached, so that it is reported only once.
    fn end_limit(&mut self, cpu: CpuId) {
        if let Some((_, until, _)) = self.running.get_mut(&cpu) {
            *until = None;
        }
    }
}

impl Hardware for State {
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<CpuUse> {
        let (vcpu, _, since) = self.running.get_mut(&cpu)?;
        let from = std::mem::replace(since, now);
        Some(CpuUse { vcpu: *vcpu, cpu, from, to: now, ran: now - from })
    }

    fn carry_out(&mut self, order: Order) -> Outcome {
        match order {
            Order::Run { cpu, vcpu, until, .. } => {
                let before = self.running.get(&cpu).map(|&(vcpu, until, _)| (vcpu, until));
                if before != Some((vcpu, until)) {
                    self.begun.push(vcpu);
                }
                // The host has measured the CPU up to now before it gives an order for that CPU.
                self.running.insert(cpu, (vcpu, until, self.now));
            }
            Order::Idle { cpu } => {
                self.running.remove(&cpu);
            }
        }
        Outcome::Done
    }

    fn set_alarm(&mut self, cpu: CpuId, alarm: Option<Time>) {
        match alarm {
            Some(alarm) => self.alarms.insert(cpu, alarm),
            None => self.alarms.remove(&cpu),
        };
    }
}

/// Returns the vCPU id of each line. Lines with the same `of` get the domain of the first of these
/// lines, and vCPU numbers that count up from zero.
fn ids(lines: &[PictureLine<'_>]) -> Vec<VcpuId> {
    let id = |(index, line): (usize, &PictureLine<'_>)| {
        let before = &lines[..index];
        let first = line.of.and_then(|of| before.iter().position(|other| other.of == Some(of)));
        let Some(first) = first else { return vcpu(index) };
        let number = before.iter().filter(|other| other.of == line.of).count();
        let number = u16::try_from(number).expect("a picture is small");
        let slot = u32::try_from(index).expect("a picture is small");
        VcpuId::new(slot, vcpu(first).domain(), number)
    };
    lines.iter().enumerate().map(id).collect()
}

fn vcpu(index: usize) -> VcpuId {
    let number = u32::try_from(index).expect("a picture is small");
    VcpuId::new(number, DomId::new(number), 0)
}

impl Model {
    fn new(policy: &str, vcpus: &[PictureLine<'_>], topology: &Topology) -> Model {
        let words: Vec<&str> = policy.split_whitespace().collect();
        let spec: &Spec = slackline_host::policy::find(words[0]).expect("the policy is listed");
        let values = Values::read(spec.policy_fields, words[1..].iter().map(given));
        let host = Host::new(spec, &values.expect("the parameters are valid"), topology);
        let share = |line: &PictureLine<'_>| {
            let share = Values::read(spec.share_fields, line.share.iter().map(given));
            share.expect("the parameters of the vCPU are valid")
        };
        let shares = vcpus.iter().map(share).collect();
        let (trace, dispatches) = (Vec::new(), Vec::new());
        Model { host, ids: ids(vcpus), shares, state: State::default(), trace, dispatches }
    }

    /// Runs the drawn vCPUs. Returns one line of text per CPU, with one letter per column.
    fn run(mut self, vcpus: &[PictureLine<'_>]) -> Vec<String> {
        let columns = vcpus.iter().map(|line| line.timeline.len()).max().unwrap_or(0);
        for index in 0..vcpus.len() {
            let share = self.shares[index].clone();
            self.step(Fact::Joined(self.ids[index], (&share).into()));
        }
        for column in 0..columns {
            self.change_wants(vcpus, column);
            self.run_until(Time::START + COLUMN * (column as u64 + 1));
        }
        self.step(Fact::Ended);
        self.draw(vcpus, columns)
    }

    /// Blocks vCPUs that have no more work, then expires timers that are due, then wakes vCPUs that
    /// have new work.
    fn change_wants(&mut self, vcpus: &[PictureLine<'_>], column: usize) {
        let wanted = |line: &PictureLine<'_>| column > 0 && line.wants(column - 1);
        let lines = || vcpus.iter().enumerate();
        for (index, _) in lines().filter(|(_, line)| wanted(line) && !line.wants(column)) {
            self.step(Fact::Blocked(self.ids[index]));
        }
        self.ring_due();
        for (index, _) in lines().filter(|(_, line)| !wanted(line) && line.wants(column)) {
            self.step(Fact::Woke(self.ids[index]));
        }
    }

    fn ring_due(&mut self) {
        let due = |(&cpu, &alarm): (&CpuId, &Time)| (alarm <= self.state.now).then_some(cpu);
        let due: Vec<CpuId> = self.state.alarms.iter().filter_map(due).collect();
        for cpu in due {
            self.state.alarms.remove(&cpu);
            self.step(Fact::AlarmRang(cpu));
        }
    }

    /// Runs the host up to `end`. Events exactly at `end` are handled with the next column of the
    /// drawing, after the vCPUs that block in that column.
    fn run_until(&mut self, end: Time) {
        loop {
            let limits = self.state.running.iter();
            let limits = limits.filter_map(|(&cpu, &(_, until, _))| Some((until?, 1, cpu)));
            let alarms = self.state.alarms.iter().map(|(&cpu, &alarm)| (alarm, 0, cpu));
            let next = limits.chain(alarms).min().filter(|&(at, ..)| at < end);
            if !self.host.is_settled() && next.is_none_or(|(at, ..)| at > self.state.now) {
                self.step(Fact::Settled);
                continue;
            }
            let Some((at, kind, cpu)) = next else { break };
            self.state.now = at.max(self.state.now);
            if kind == 0 {
                self.state.alarms.remove(&cpu);
                self.step(Fact::AlarmRang(cpu));
            } else {
                self.state.end_limit(cpu);
                self.step(Fact::LimitReached(cpu));
            }
        }
        self.state.now = end;
    }

    fn step(&mut self, fact: Fact<'_>) {
        let now = self.state.now;
        let report = Report { now, used: &[], fact };
        self.host.step(report, &mut self.state, &mut self.trace).expect("the contract is kept");
        for who in std::mem::take(&mut self.state.begun) {
            let account = self.host.account(who);
            self.dispatches.push(Dispatch { at: now, who: who.slot(), account });
        }
    }

    fn draw(&self, vcpus: &[PictureLine<'_>], columns: usize) -> Vec<String> {
        let mut lines = vec![vec!['.'; columns]; self.host.moment().cpus()];
        for record in &self.trace {
            let Record::Ran { vcpu, cpu, from, to, .. } = *record else { continue };
            let letter = vcpus[vcpu.slot()].name.chars().next().expect("a vCPU has a name");
            // A column shows the vCPU that ran in its middle.
            for (column, place) in lines[cpu.index()].iter_mut().enumerate() {
                let middle = Time::START + COLUMN * column as u64 + COLUMN / 2;
                if from <= middle && middle < to {
                    *place = letter;
                }
            }
        }
        lines.into_iter().map(|line| line.into_iter().collect()).collect()
    }
}

/// Lock held while a source file is rewritten, since tests run in parallel.
static WRITING: Mutex<()> = Mutex::new(());

fn rewrite(at: &Location<'_>, drawn: &[String]) {
    let _one_at_a_time = WRITING.lock();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let path = format!("{root}{}", at.file());
    let source = std::fs::read_to_string(&path).expect("the source of the test is readable");
    let mut drawn = drawn.iter();
    let mut next = drawn.next();
    let mut lines = Vec::new();
    for (index, line) in source.lines().enumerate() {
        let is_ours = index >= at.line() as usize && line.trim_start().starts_with("cpu");
        match next.filter(|_| is_ours) {
            Some(timeline) => {
                let end = line.rfind(char::is_whitespace).expect("a name precedes the timeline");
                lines.push(format!("{}{timeline}", &line[..=end]));
                next = drawn.next();
            }
            None => lines.push(line.to_string()),
        }
    }
    std::fs::write(&path, lines.join("\n") + "\n").expect("the source of the test is writable");
}
