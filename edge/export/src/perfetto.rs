//! Export of a trace as a Perfetto file, which `ui.perfetto.dev` and `trace_processor` can open.
//!
//! In the file, every vCPU is a thread, and every domain a process. Run intervals are written as
//! the events `sched_switch` and `sched_waking`, as a Linux kernel would. So the viewer's
//! scheduling view, thread states and SQL tables work. A vCPU has the kernel priority 2 in reserved
//! time, and 120 in slack. All other records (reservations, changes, refusals, late jobs, late
//! timers) become events on tracks.
//!
//! Perfetto has a queue of events per CPU, which it sorts by time. Events with the same time stay
//! in the order of the file if they are in the same queue. The order of events in different queues
//! is undefined. Therefore:
//!
//! - A run interval is kept in memory until the next run interval on the same CPU is known. Only
//!   then is it known whether the CPU switched to another vCPU or became idle. So one run interval
//!   per CPU is kept in memory. Adjacent run intervals of a vCPU are merged, unless one is reserved
//!   time and the other slack, since an interval has only one priority.
//! - A wake-up is put into the queue of the CPU on which the vCPU last ran. There it follows the
//!   event with which the vCPU blocked, even if both have the same time. It is kept until the
//!   earlier events of that CPU are written. At most one wake-up per vCPU is kept at a time.
//! - If a vCPU starts on another CPU at the same time at which it stopped or woke, its start is
//!   written a nanosecond later. Otherwise the order of the two events would be undefined.
//! - Events are written in bundles of at most [`BUNDLE`] per CPU.

mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use prost::Message;
use slackline_trace::{Header, HostThread, HostThreadId, OffCpu, RanEnd, Record, Sink, VcpuName};
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::proto::{
    ASLEEP, CounterDescriptor, DebugAnnotation, FtraceEvent, FtraceEventBundle, Process,
    ProcessTree, RUNNABLE, SEQ_INCREMENTAL_STATE_CLEARED, SchedSwitchFtraceEvent,
    SchedWakingFtraceEvent, TYPE_COUNTER, TYPE_INSTANT, Thread, ThreadDescriptor, Trace,
    TracePacket, TrackDescriptor, TrackEvent, UNIT_TIME_NS,
};

/// Maximum number of events of a CPU in one bundle. A page of events in the kernel's ring has space
/// for about as many.
const BUNDLE: usize = 256;
/// Number of buffered bytes at which the buffer is written to the file.
const FLUSH_AT: usize = 1 << 16;
/// Id of the first thread. Id 0 is the idle thread, and small ids would look like ids of system
/// threads.
const FIRST_TID: i32 = 1000;
/// Id of the first CPU's track. It is above the ids of all threads' tracks.
const FIRST_CPU_TRACK: u64 = 1 << 40;
/// Sequence id of the only writer of the file.
const SEQUENCE: u32 = 1;

/// Kernel priority that is shown for a vCPU in reserved time. It is a real-time priority.
const PRIO_DUE: i32 = 2;
/// Kernel priority that is shown for a vCPU in slack and for an idle CPU. It is the priority of an
/// ordinary thread.
const PRIO_SPARE: i32 = 120;

/// Writes a trace as a Perfetto file.
///
/// Adding a record cannot fail. If the writer fails, [`Perfetto::finish`] returns the error.
pub struct Perfetto<W: Write> {
    out: Output<W>,
    threads: BTreeMap<ThreadKey, Thread>,
    /// Process ids by the name of the domain.
    processes: BTreeMap<String, i32>,
    next_tid: i32,
    cpus: Vec<CpuState>,
    places: BTreeMap<ThreadKey, Place>,
    /// vCPUs whose host threads are in the trace. The records of these threads show more precisely
    /// when a vCPU was on a CPU.
    watched: BTreeMap<HostThreadId, VcpuId>,
    observed: BTreeSet<VcpuId>,
}

/// Key of a thread in the file: a vCPU, or a host thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ThreadKey {
    Vcpu(VcpuId),
    Host(HostThreadId),
}

/// Events of a CPU that have not been written yet.
#[derive(Default)]
struct CpuState {
    open: Option<Stretch>,
    wakings: Vec<(Time, ThreadKey)>,
    events: Vec<FtraceEvent>,
    is_counted: bool,
}

/// Run interval of a vCPU on a CPU, before it is written.
#[derive(Clone, Copy)]
struct Stretch {
    thread: ThreadKey,
    from: Time,
    to: Time,
    due: bool,
    state: i64,
}

/// CPU on which a vCPU last ran, with the end of that run interval and the last wake-up of the
/// vCPU.
#[derive(Clone, Copy)]
struct Place {
    cpu: CpuId,
    left: Time,
    woke: Time,
}

impl Default for Place {
    /// Returns the state of a vCPU that has not run yet. Its wake-ups are written to the first
    /// CPU's queue.
    fn default() -> Place {
        Place { cpu: CpuId::new(0), left: Time::START, woke: Time::START }
    }
}

impl<W: Write> Perfetto<W> {
    /// Starts a file for the run that the trace header describes.
    #[must_use]
    pub fn new(out: W, header: &Header) -> Perfetto<W> {
        let mut perfetto = Perfetto {
            out: Output { out, buffer: Vec::new(), failed: None },
            threads: BTreeMap::new(),
            processes: BTreeMap::new(),
            next_tid: FIRST_TID,
            cpus: Vec::new(),
            places: BTreeMap::new(),
            watched: BTreeMap::new(),
            observed: BTreeSet::new(),
        };
        perfetto.cpus.resize_with(header.cpus, CpuState::default);
        perfetto
    }

    /// Ends the file and flushes the writer.
    ///
    /// # Errors
    /// If any write or the flush failed. Errors of earlier writes are kept until here, and the
    /// first error is returned.
    pub fn finish(mut self) -> io::Result<()> {
        for index in 0..self.cpus.len() {
            let cpu = CpuId::new(index);
            self.vacate(cpu);
            self.wakings(cpu, Time::NEVER, None);
            self.write_bundle(cpu);
        }
        self.out.finish()
    }

    /// Writes the name of a thread and the description of its track, unless they were written
    /// before.
    fn describe(&mut self, key: ThreadKey, at: Time, name: &str, domain: &str) {
        if self.threads.get(&key).is_some_and(|thread| thread.name == name) {
            return;
        }
        let tid = self.next_tid;
        self.next_tid += 1;
        let mut processes = Vec::new();
        let process = self.processes.entry(domain.into()).or_insert_with(|| {
            processes.push(Process { pid: tid, ppid: 0, cmdline: vec![domain.into()] });
            tid
        });
        let thread = Thread { tid, name: name.into(), tgid: *process };
        let track = ThreadDescriptor {
            pid: thread.tgid,
            tid: i64::from(tid),
            thread_name: thread.name.clone(),
        };
        self.threads.insert(key, thread.clone());
        let is_first = tid == FIRST_TID;
        self.out.packet(TracePacket {
            timestamp: Some(at.ns()),
            process_tree: Some(ProcessTree { processes, threads: vec![thread] }),
            sequence_flags: is_first.then_some(SEQ_INCREMENTAL_STATE_CLEARED),
            ..TracePacket::default()
        });
        let (uuid, thread) = (track_of(tid), Some(track));
        self.out.track(TrackDescriptor { uuid, thread, ..TrackDescriptor::default() });
    }

    /// Returns a thread of the file. If the thread has no name yet, a description is written first.
    fn thread_of(&mut self, key: ThreadKey) -> &Thread {
        if !self.threads.contains_key(&key) {
            let (name, domain) = match key {
                ThreadKey::Vcpu(vcpu) => (vcpu.to_string(), vcpu.domain().to_string()),
                ThreadKey::Host(thread) => (format!("thread {}", thread.number()), "host".into()),
            };
            self.describe(key, Time::START, &name, &domain);
        }
        &self.threads[&key]
    }

    fn instant(&mut self, vcpu: VcpuId, at: Time, name: &str, more: &[(&str, String)]) {
        let track = track_of(self.thread_of(ThreadKey::Vcpu(vcpu)).tid);
        self.out.instant(track, at, name, more);
    }

    fn on_cpu(&mut self, thread: HostThreadId, cpu: CpuId, (from, to): (Time, Time), end: OffCpu) {
        let state = if end == OffCpu::Blocked { ASLEEP } else { RUNNABLE };
        let vcpu = self.watched.get(&thread).copied();
        let thread = vcpu.map_or(ThreadKey::Host(thread), ThreadKey::Vcpu);
        self.ran(cpu, Stretch { thread, from, to, due: false, state });
    }

    fn unfinished(&mut self, vcpu: VcpuId, at: Time, (released, deadline): (Time, Time)) {
        let (released, deadline) = (released.to_string(), deadline.to_string());
        let more = [("released", released), ("deadline", deadline)];
        self.instant(vcpu, at, "never finished", &more);
    }

    fn state_of(&mut self, cpu: CpuId) -> &mut CpuState {
        if self.cpus.len() <= cpu.index() {
            self.cpus.resize_with(cpu.index() + 1, CpuState::default);
        }
        &mut self.cpus[cpu.index()]
    }

    fn ran(&mut self, cpu: CpuId, mut next: Stretch) {
        let place = self.places.entry(next.thread).or_default();
        if place.cpu != cpu && next.from <= place.left.max(place.woke) {
            next.from = place.left.max(place.woke).after(Span::from_ns(1));
        }
        let open = self.state_of(cpu).open;
        // In the file, run intervals of a CPU must not overlap. Run intervals that a live host
        // measured can overlap.
        next.from = next.from.max(open.map_or(Time::START, |open| open.to));
        next.to = next.to.max(next.from);
        self.places.entry(next.thread).and_modify(|place| {
            place.cpu = cpu;
            place.left = next.to;
        });
        if let Some(open) = open {
            if open.to == next.from && open.thread == next.thread && open.due == next.due {
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

    /// Ends the current run interval of a CPU, after which the CPU is idle.
    fn vacate(&mut self, cpu: CpuId) {
        if let Some(open) = self.state_of(cpu).open {
            self.switch(cpu, open.to, None);
        }
    }

    fn switch(&mut self, cpu: CpuId, at: Time, next: Option<Stretch>) {
        let before = self.state_of(cpu).open;
        self.wakings(cpu, at, before.map(|before| before.thread));
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

    /// Writes the kept wake-ups of a CPU up to the time `at`. A wake-up at exactly `at` may have
    /// caused a switch at that time, so it is written before the switch. The wake-up of the thread
    /// `leaving` is an exception. That thread blocks in the switch, so its wake-up is written after
    /// the switch.
    fn wakings(&mut self, cpu: CpuId, at: Time, leaving: Option<ThreadKey>) {
        let comes_first = |&mut (woke, thread): &mut (Time, ThreadKey)| {
            woke < at || woke == at && leaving != Some(thread)
        };
        let ready: Vec<_> = self.state_of(cpu).wakings.extract_if(.., comes_first).collect();
        for (woke, thread) in ready {
            let thread = self.thread_of(thread);
            let waking = SchedWakingFtraceEvent {
                comm: thread.name.clone(),
                pid: thread.tid,
                prio: PRIO_SPARE,
                target_cpu: i32::try_from(cpu.index()).expect("at most 256 CPUs"),
            };
            // The idle thread is shown as the waker, because the trace does not record the real
            // waker.
            let sched_waking = Some(waking);
            let timestamp = woke.ns();
            let event = FtraceEvent { timestamp, pid: 0, sched_switch: None, sched_waking };
            self.event(cpu, event);
        }
    }

    fn woke(&mut self, at: Time, thread: ThreadKey) {
        let place = self.places.entry(thread).or_default();
        place.woke = at;
        let cpu = place.cpu;
        self.state_of(cpu).wakings.push((at, thread));
        if self.state_of(cpu).wakings.len() > BUNDLE {
            // So many wake-ups are kept only if the host observes wake-ups but no run intervals.
            // They are written now, perhaps too late. Perfetto sorts late events.
            self.wakings(cpu, Time::NEVER, None);
        }
    }

    /// Records that a vCPU has left the host. The file then shows it as blocked.
    fn left(&mut self, vcpu: VcpuId) {
        let thread = ThreadKey::Vcpu(vcpu);
        let open = self.places.get(&thread).map(|place| place.cpu);
        let open = open.and_then(|cpu| self.state_of(cpu).open.as_mut());
        if let Some(open) = open.filter(|open| open.thread == thread) {
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
                let thread = self.thread_of(stretch.thread);
                (thread.name.clone(), thread.tid, prio)
            }
            None => (format!("swapper/{}", cpu.index()), 0, PRIO_SPARE),
        }
    }

    fn promised(&mut self, (at, vcpu): (Time, VcpuId), record: &Record) {
        let Record::Promised { reservation, exact, phase, by, .. } = *record else { return };
        let promise = reservation.map_or("nothing".into(), |promise| promise.to_string());
        let extra = if exact { "no CPU time" } else { "slack" };
        let mut more = vec![("reservation", promise), ("beyond the reservation", extra.into())];
        more.extend(phase.map(|phase| ("phase", phase.to_string())));
        more.extend(by.is_of_kernel().then(|| ("enforced by", by.to_string())));
        self.instant(vcpu, at, "promised", &more);
    }

    /// Draws a late timer on the counter of its CPU. The counter equals the lateness, from the time
    /// at which the timer was due until it expired.
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
        self.describe(ThreadKey::Vcpu(named.vcpu), named.at, &named.name, &named.domain);
    }

    fn host_thread(&mut self, thread: &HostThread) {
        if let Some(vcpu) = thread.vcpu {
            self.watched.insert(thread.id, vcpu);
            self.observed.insert(vcpu);
        } else {
            let domain = if thread.vm.is_empty() { &thread.command } else { &thread.vm };
            self.describe(ThreadKey::Host(thread.id), thread.at, &thread.name, domain);
        }
    }

    fn record(&mut self, record: &Record) {
        match *record {
            Record::Ran { vcpu, cpu, from, to, end, due, .. } => {
                if !self.observed.contains(&vcpu) {
                    let state = if end == RanEnd::Blocked { ASLEEP } else { RUNNABLE };
                    let thread = ThreadKey::Vcpu(vcpu);
                    self.ran(cpu, Stretch { thread, from, to, due, state });
                }
            }
            Record::OnCpu { thread, cpu, from, to, end } => {
                self.on_cpu(thread, cpu, (from, to), end);
            }
            Record::Awoken { at, thread, .. } if !self.watched.contains_key(&thread) => {
                self.woke(at, ThreadKey::Host(thread));
            }
            Record::Woke { at, vcpu } => self.woke(at, ThreadKey::Vcpu(vcpu)),
            Record::Left { at, vcpu } => {
                self.left(vcpu);
                self.instant(vcpu, at, "left", &[]);
            }
            Record::Promised { at, vcpu, .. } => self.promised((at, vcpu), record),
            Record::Changed { due, at, vcpu } => {
                let more = [("requested at", due.to_string()), ("took", at.since(due).to_string())];
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
                self.unfinished(vcpu, at, (released, deadline));
            }
            Record::RangLate { at, cpu, late } => self.rang_late(at, cpu, late),
            // The end of a run interval shows that a vCPU blocked. The other records have no
            // counterpart in the file.
            Record::Joined { .. }
            | Record::ClockSet { .. }
            | Record::Blocked { .. }
            | Record::Paused { .. }
            | Record::Boosted { .. }
            | Record::ClientStarted { .. }
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
            | Record::Awoken { .. }
            | Record::Halted { .. }
            | Record::Lost { .. }
            | Record::Counted { .. }
            | Record::Ended { .. } => {}
        }
    }
}

/// Buffer that combines packets into larger writes to the file.
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
