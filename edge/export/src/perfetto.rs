//! A trace as a Perfetto file, which `ui.perfetto.dev` and `trace_processor` open.
//!
//! Every vCPU is a thread and every domain a process. What ran where is told as a Linux kernel
//! tells it, in `sched_switch` and `sched_waking` events, so that the viewer's own scheduling view,
//! thread states and SQL tables work. Due time has the kernel priority 2, spare time 120. The rest
//! (promises, changes, refusals, late jobs, late timers) becomes events on tracks.
//!
//! Order and memory. Perfetto keeps a queue a CPU, which it sorts by time; events of one time stay
//! in the order of the file within a queue, and come in any order between queues. Hence:
//!
//! - A stretch is held until the next one on its CPU is known, because only then is it clear
//!   whether the CPU changed to a vCPU or to nothing. So one stretch a CPU is held, and stretches
//!   of one vCPU that follow one another without a gap become one, unless one is due and the next
//!   is spare: priority belongs to a whole stretch.
//! - Waking goes into the queue of the CPU where the vCPU ran last: there it comes after the event
//!   that put the vCPU to sleep, even if both happened at one time. It is held until that CPU's
//!   events before it are written. A vCPU must run there again before another can be held there.
//! - A vCPU that starts on another CPU at the very time at which it stopped or woke is shown to
//!   start a nanosecond later, since the order of the two events would otherwise be open.
//! - Events are written in bundles of at most [`BUNDLE`] a CPU.

use std::collections::BTreeMap;
use std::io::{self, Write};

use prost::Message;
use slackline_trace::{Header, RanEnd, Record, Sink, VcpuName};
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::proto::{
    ASLEEP, CounterDescriptor, DebugAnnotation, FtraceEvent, FtraceEventBundle, Process,
    ProcessTree, RUNNABLE, SEQ_INCREMENTAL_STATE_CLEARED, SchedSwitchFtraceEvent,
    SchedWakingFtraceEvent, TYPE_COUNTER, TYPE_INSTANT, Thread, ThreadDescriptor, Trace,
    TracePacket, TrackDescriptor, TrackEvent, UNIT_TIME_NS,
};

/// Events of a CPU that are written together. A kernel's page of events holds about as many.
const BUNDLE: usize = 256;
/// Bytes that are written together.
const FLUSH_AT: usize = 1 << 16;
/// Numbers of threads begin here: 0 is the idle thread, and small ones look like the system's.
const FIRST_TID: i32 = 1000;
/// Numbers of the tracks of CPUs begin here, beyond those of the threads.
const FIRST_CPU_TRACK: u64 = 1 << 40;
/// We are the only writer of our files.
const SEQUENCE: u32 = 1;

/// Kernel priority of a vCPU that runs because it is owed the time: a real-time one.
const PRIO_DUE: i32 = 2;
/// Kernel priority of a vCPU that has time nobody is owed, and of an idle CPU: an ordinary one.
const PRIO_SPARE: i32 = 120;

/// Writes a trace as a Perfetto file.
///
/// Recording cannot fail; an error of the writer is kept and comes out of [`Perfetto::finish`].
pub struct Perfetto<W: Write> {
    out: Output<W>,
    threads: BTreeMap<VcpuId, Thread>,
    /// By the name of the domain.
    processes: BTreeMap<String, i32>,
    next_tid: i32,
    cpus: Vec<CpuState>,
    places: BTreeMap<VcpuId, Place>,
}

/// What is yet to be written of a CPU.
#[derive(Default)]
struct CpuState {
    open: Option<Stretch>,
    wakings: Vec<(Time, VcpuId)>,
    events: Vec<FtraceEvent>,
    is_counted: bool,
}

/// A vCPU on a CPU.
#[derive(Clone, Copy)]
struct Stretch {
    vcpu: VcpuId,
    from: Time,
    to: Time,
    due: bool,
    state: i64,
}

/// Where a vCPU ran last, until when, and when it last woke.
#[derive(Clone, Copy)]
struct Place {
    cpu: CpuId,
    left: Time,
    woke: Time,
}

impl Default for Place {
    /// A vCPU that has not run yet is woken on the first CPU.
    fn default() -> Place {
        Place { cpu: CpuId::new(0), left: Time::START, woke: Time::START }
    }
}

impl<W: Write> Perfetto<W> {
    /// Starts a file.
    #[must_use]
    pub fn new(out: W, header: &Header) -> Perfetto<W> {
        let mut perfetto = Perfetto {
            out: Output { out, buffer: Vec::new(), failed: None },
            threads: BTreeMap::new(),
            processes: BTreeMap::new(),
            next_tid: FIRST_TID,
            cpus: Vec::new(),
            places: BTreeMap::new(),
        };
        perfetto.cpus.resize_with(header.cpus, CpuState::default);
        perfetto
    }

    /// Ends the file.
    ///
    /// # Errors
    /// The first error of the writer.
    pub fn finish(mut self) -> io::Result<()> {
        for index in 0..self.cpus.len() {
            let cpu = CpuId::new(index);
            self.vacate(cpu);
            self.wakings(cpu, Time::NEVER, None);
            self.write_bundle(cpu);
        }
        self.out.finish()
    }

    /// Says who there is from now on, and on which track its events are.
    fn describe(&mut self, named: &VcpuName) {
        let VcpuName { vcpu, name, domain, .. } = named;
        if self.threads.get(vcpu).is_some_and(|thread| thread.name == *name) {
            return;
        }
        let tid = self.next_tid;
        self.next_tid += 1;
        let mut processes = Vec::new();
        let process = self.processes.entry(domain.clone()).or_insert_with(|| {
            processes.push(Process { pid: tid, ppid: 0, cmdline: vec![domain.clone()] });
            tid
        });
        let thread = Thread { tid, name: name.clone(), tgid: *process };
        let track = ThreadDescriptor {
            pid: thread.tgid,
            tid: i64::from(tid),
            thread_name: thread.name.clone(),
        };
        self.threads.insert(*vcpu, thread.clone());
        let is_first = tid == FIRST_TID;
        self.out.packet(TracePacket {
            timestamp: Some(named.at.ns()),
            process_tree: Some(ProcessTree { processes, threads: vec![thread] }),
            sequence_flags: is_first.then_some(SEQ_INCREMENTAL_STATE_CLEARED),
            ..TracePacket::default()
        });
        let (uuid, thread) = (track_of(tid), Some(track));
        self.out.track(TrackDescriptor { uuid, thread, ..TrackDescriptor::default() });
    }

    /// Who is called what; nobody is told of before it is named.
    fn thread_of(&mut self, vcpu: VcpuId) -> &Thread {
        if !self.threads.contains_key(&vcpu) {
            let (name, domain) = (vcpu.to_string(), vcpu.domain().to_string());
            self.describe(&VcpuName { at: Time::START, vcpu, name, domain });
        }
        &self.threads[&vcpu]
    }

    fn instant(&mut self, vcpu: VcpuId, at: Time, name: &str, more: &[(&str, String)]) {
        let track = track_of(self.thread_of(vcpu).tid);
        self.out.instant(track, at, name, more);
    }

    fn state_of(&mut self, cpu: CpuId) -> &mut CpuState {
        if self.cpus.len() <= cpu.index() {
            self.cpus.resize_with(cpu.index() + 1, CpuState::default);
        }
        &mut self.cpus[cpu.index()]
    }

    fn ran(&mut self, cpu: CpuId, mut next: Stretch) {
        let place = self.places.entry(next.vcpu).or_default();
        if place.cpu != cpu && next.from <= place.left.max(place.woke) {
            next.from = place.left.max(place.woke).after(Span::from_ns(1));
        }
        let open = self.state_of(cpu).open;
        // One CPU's stretches do not overlap; a live host's measurements are held to that too.
        next.from = next.from.max(open.map_or(Time::START, |open| open.to));
        next.to = next.to.max(next.from);
        self.places.entry(next.vcpu).and_modify(|place| {
            place.cpu = cpu;
            place.left = next.to;
        });
        if let Some(open) = open {
            if open.to == next.from && open.vcpu == next.vcpu && open.due == next.due {
                next.from = open.from;
                self.state_of(cpu).open = Some(next);
                return;
            }
            if open.to < next.from {
                self.vacate(cpu);
            }
        }
        self.switch(cpu, next.from, Some(next));
    }

    /// Ends what runs on a CPU, and leaves it idle.
    fn vacate(&mut self, cpu: CpuId) {
        if let Some(open) = self.state_of(cpu).open {
            self.switch(cpu, open.to, None);
        }
    }

    fn switch(&mut self, cpu: CpuId, at: Time, next: Option<Stretch>) {
        let before = self.state_of(cpu).open;
        self.wakings(cpu, at, before.map(|before| before.vcpu));
        let (prev_comm, prev_pid, prev_prio) = self.thread(cpu, before);
        let (next_comm, next_pid, next_prio) = self.thread(cpu, next);
        let prev_state = before.map_or(RUNNABLE, |before| before.state);
        let switch = SchedSwitchFtraceEvent {
            prev_comm,
            prev_pid,
            prev_prio,
            prev_state,
            next_comm,
            next_pid,
            next_prio,
        };
        let pid = prev_pid.cast_unsigned();
        let sched_switch = Some(switch);
        self.event(cpu, FtraceEvent { timestamp: at.ns(), pid, sched_switch, sched_waking: None });
        self.state_of(cpu).open = next;
    }

    /// Writes the wakings up to `at`. Those at that very time come before a switch that they may be
    /// the cause of, but after the one that put their own vCPU to sleep.
    fn wakings(&mut self, cpu: CpuId, at: Time, leaving: Option<VcpuId>) {
        let comes_first = |&mut (woke, vcpu): &mut (Time, VcpuId)| {
            woke < at || woke == at && leaving != Some(vcpu)
        };
        let ready: Vec<_> = self.state_of(cpu).wakings.extract_if(.., comes_first).collect();
        for (woke, vcpu) in ready {
            let thread = self.thread_of(vcpu);
            let waking = SchedWakingFtraceEvent {
                comm: thread.name.clone(),
                pid: thread.tid,
                prio: PRIO_SPARE,
                target_cpu: i32::try_from(cpu.index()).expect("at most 256 CPUs"),
            };
            // The idle thread wakes everybody: who really did is not recorded.
            let sched_waking = Some(waking);
            let timestamp = woke.ns();
            let event = FtraceEvent { timestamp, pid: 0, sched_switch: None, sched_waking };
            self.event(cpu, event);
        }
    }

    fn woke(&mut self, at: Time, vcpu: VcpuId) {
        let place = self.places.entry(vcpu).or_default();
        place.woke = at;
        let cpu = place.cpu;
        self.state_of(cpu).wakings.push((at, vcpu));
        if self.state_of(cpu).wakings.len() > BUNDLE {
            // Only on a host that sees vCPUs wake but not run. Perfetto sorts what comes late.
            self.wakings(cpu, Time::NEVER, None);
        }
    }

    /// A vCPU that left waits for nothing: it is shown asleep from then on.
    fn left(&mut self, vcpu: VcpuId) {
        let open = self.places.get(&vcpu).map(|place| place.cpu);
        let open = open.and_then(|cpu| self.state_of(cpu).open.as_mut());
        if let Some(open) = open.filter(|open| open.vcpu == vcpu) {
            open.state = ASLEEP;
        }
    }

    fn event(&mut self, cpu: CpuId, event: FtraceEvent) {
        self.state_of(cpu).events.push(event);
        if self.state_of(cpu).events.len() >= BUNDLE {
            self.write_bundle(cpu);
        }
    }

    fn write_bundle(&mut self, cpu: CpuId) {
        let event = std::mem::take(&mut self.state_of(cpu).events);
        if event.is_empty() {
            return;
        }
        let cpu = u32::try_from(cpu.index()).expect("at most 256 CPUs");
        let ftrace_events = Some(FtraceEventBundle { cpu, event });
        self.out.packet(TracePacket { ftrace_events, ..TracePacket::default() });
    }

    fn thread(&mut self, cpu: CpuId, stretch: Option<Stretch>) -> (String, i32, i32) {
        match stretch {
            Some(stretch) => {
                let prio = if stretch.due { PRIO_DUE } else { PRIO_SPARE };
                let thread = self.thread_of(stretch.vcpu);
                (thread.name.clone(), thread.tid, prio)
            }
            None => (format!("swapper/{}", cpu.index()), 0, PRIO_SPARE),
        }
    }

    /// Raises the counter of a CPU when its timer should have rung, and lowers it when it did: the
    /// counter is as high and as wide as the timer was late.
    fn rang_late(&mut self, at: Time, cpu: CpuId, late: Span) {
        let uuid = FIRST_CPU_TRACK + cpu.index() as u64;
        if !std::mem::replace(&mut self.state_of(cpu).is_counted, true) {
            let name = Some(format!("timer lateness {cpu}"));
            let counter = Some(CounterDescriptor { unit: UNIT_TIME_NS });
            self.out.track(TrackDescriptor { uuid, name, thread: None, counter });
        }
        let due = Time::START.after(at.since(Time::START).left_after(late));
        for (at, value) in [(due, late), (at, Span::ZERO)] {
            self.out.count(uuid, at, value);
        }
    }
}

impl<W: Write> Sink for Perfetto<W> {
    fn named(&mut self, named: &VcpuName) {
        self.describe(named);
    }

    fn record(&mut self, record: &Record) {
        match *record {
            Record::Ran { vcpu, cpu, from, to, end, due, .. } => {
                let state = if end == RanEnd::Blocked { ASLEEP } else { RUNNABLE };
                self.ran(cpu, Stretch { vcpu, from, to, due, state });
            }
            Record::Woke { at, vcpu } => self.woke(at, vcpu),
            Record::Left { at, vcpu } => {
                self.left(vcpu);
                self.instant(vcpu, at, "left", &[]);
            }
            Record::Promised { at, vcpu, reservation, exact, phase } => {
                let promise = reservation.map_or("nothing".into(), |promise| promise.to_string());
                let extra = if exact { "no more" } else { "and what is left" };
                let mut more = vec![("reservation", promise), ("beyond it", extra.into())];
                more.extend(phase.map(|phase| ("phase", phase.to_string())));
                self.instant(vcpu, at, "promised", &more);
            }
            Record::Changed { due, at, vcpu } => {
                let more = [("asked for at", due.to_string()), ("took", at.since(due).to_string())];
                self.instant(vcpu, at, "changed", &more);
            }
            Record::Declined { at, vcpu } => self.instant(vcpu, at, "declined", &[]),
            Record::Refused { at, vcpu, cpu } => {
                self.instant(vcpu, at, "refused", &[("where", cpu.to_string())]);
            }
            Record::Job { vcpu, released, deadline, done, .. } if done > deadline => {
                let more = [
                    ("released", released.to_string()),
                    ("deadline", deadline.to_string()),
                    ("late", done.since(deadline).to_string()),
                ];
                self.instant(vcpu, done, "deadline missed", &more);
            }
            Record::Unfinished { at, vcpu, released, deadline, .. } => {
                let (released, deadline) = (released.to_string(), deadline.to_string());
                let more = [("released", released), ("deadline", deadline)];
                self.instant(vcpu, at, "never finished", &more);
            }
            Record::RangLate { at, cpu, late } => self.rang_late(at, cpu, late),
            // A sleeping vCPU is told of by the end of its stretch; the others have no place here.
            Record::Joined { .. }
            | Record::ClockSet { .. }
            | Record::Blocked { .. }
            | Record::Paused { .. }
            | Record::Job { .. }
            | Record::Spun { .. }
            | Record::Served { .. }
            | Record::Moved { .. }
            | Record::Slowed { .. }
            | Record::Stopped { .. }
            | Record::Spent { .. }
            | Record::Elsewhere { .. }
            | Record::Overhead { .. }
            | Record::Accounted { .. }
            | Record::Ended { .. } => {}
        }
    }
}

/// Puts packets together into larger writes.
struct Output<W: Write> {
    out: W,
    buffer: Vec<u8>,
    failed: Option<io::Error>,
}

impl<W: Write> Output<W> {
    fn packet(&mut self, packet: TracePacket) {
        let packet = TracePacket { trusted_packet_sequence_id: Some(SEQUENCE), ..packet };
        let trace = Trace { packet: vec![packet] };
        trace.encode(&mut self.buffer).expect("a vector has room");
        if self.buffer.len() >= FLUSH_AT {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.failed.is_none() {
            self.failed = self.out.write_all(&self.buffer).err();
        }
        self.buffer.clear();
    }

    fn finish(mut self) -> io::Result<()> {
        self.flush();
        self.failed.map_or(Ok(()), Err)?;
        self.out.flush()
    }

    fn track(&mut self, track: TrackDescriptor) {
        self.packet(TracePacket { track_descriptor: Some(track), ..TracePacket::default() });
    }

    fn instant(&mut self, track_uuid: u64, at: Time, name: &str, more: &[(&str, String)]) {
        let annotation = |(name, value): &(&str, String)| DebugAnnotation {
            string_value: value.clone(),
            name: (*name).into(),
        };
        let event = TrackEvent {
            debug_annotations: more.iter().map(annotation).collect(),
            r#type: TYPE_INSTANT,
            track_uuid,
            categories: vec!["slackline".into()],
            name: Some(name.into()),
            counter_value: None,
        };
        self.track_event(at, event);
    }

    fn count(&mut self, track_uuid: u64, at: Time, value: Span) {
        let event = TrackEvent {
            r#type: TYPE_COUNTER,
            track_uuid,
            counter_value: Some(value.ns().cast_signed()),
            ..TrackEvent::default()
        };
        self.track_event(at, event);
    }

    fn track_event(&mut self, at: Time, event: TrackEvent) {
        self.packet(TracePacket {
            timestamp: Some(at.ns()),
            track_event: Some(event),
            ..TracePacket::default()
        });
    }
}

fn track_of(tid: i32) -> u64 {
    u64::from(tid.cast_unsigned())
}
