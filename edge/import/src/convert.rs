//! Conversion of another program's recording to the records of a trace.

use std::collections::{BTreeMap, BTreeSet};

use slackline_linux::sys::Tid;
use slackline_live::recorder::assembler::{Assembler, RecordedVcpu};
use slackline_live::recorder::host::POLICY;
use slackline_live::recorder::identity::{Identify, Identity};
use slackline_live::watch::{Event, ThreadEventKind};
use slackline_trace::{
    Exchange, Fact, Header, HostThread, HostThreadKind, Note, Record, Sink, VcpuName, WakeMark,
    WrittenTerms,
};
use slackline_units::{CpuId, CpuSet, Time, VcpuId};

use crate::Target;
use crate::error::ImportError;
use crate::foreign::{Foreign, ForeignEvent, ForeignEventKind, ForeignThread};
use crate::targets::{RecognisedVcpus, is_kernel, recognise};

/// Longest run interval that is written as one record, in nanoseconds. A longer run interval is
/// split into several records.
const TICK: u64 = 100_000_000;

/// Weights for nice values from -20 to 19, as in the kernel. In the kernel, the first two are
/// larger than 65,535, the largest weight here.
const WEIGHTS: [u32; 40] = [
    65_535, 65_535, 56_483, 46_273, 36_291, 29_154, 23_254, 18_705, 14_949, 11_916, 9_548, 7_620,
    6_100, 4_904, 3_906, 3_121, 2_501, 1_991, 1_586, 1_277, 1_024, 820, 655, 526, 423, 335, 272,
    215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15,
];
/// Kernel priority of nice -20. Lower numbers are real-time priorities.
const FIRST_NICE: i32 = 100;

/// A recording that perf or ftrace made, completely read.
#[derive(Debug)]
pub struct Import {
    foreign: Foreign,
    recognised: RecognisedVcpus,
    /// CPUs of the recording, in order of number.
    cpus: Vec<CpuId>,
    /// CPUs on which each thread ran, as CPU numbers of the written trace. The key is the thread
    /// id.
    homes: BTreeMap<i32, CpuSet>,
}

impl Import {
    pub(crate) fn new(foreign: Foreign, targets: &[Target]) -> Result<Import, ImportError> {
        let recognised = recognise(&foreign, targets)?;
        let mut cpus: BTreeSet<CpuId> = foreign.events.iter().map(|event| event.cpu).collect();
        let online = foreign.cpus.unwrap_or(0).min(CpuId::LIMIT);
        cpus.extend((0..online).map(CpuId::new));
        let cpus: Vec<CpuId> = cpus.into_iter().collect();
        let mut homes: BTreeMap<i32, CpuSet> = BTreeMap::new();
        for event in &foreign.events {
            let index = cpus.binary_search(&event.cpu).expect("CPUs of all events are listed");
            if let ForeignEventKind::Switch { from, to, .. } = event.what {
                for tid in [from, to] {
                    homes.entry(tid).or_insert(CpuSet::NONE).insert(CpuId::new(index));
                }
            }
        }
        Ok(Import { foreign, recognised, cpus, homes })
    }

    /// Returns the names of the VMs in the recording.
    #[must_use]
    pub fn vms(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.recognised.vcpus.iter().map(|vcpu| vcpu.domain.as_str()).collect();
        names.dedup();
        names
    }

    /// Returns the assumptions about the recording, one sentence each.
    #[must_use]
    pub fn assumptions(&self) -> Vec<String> {
        let notes = self.notes();
        notes.into_iter().filter(|note| note.name == ASSUMED).map(|note| note.text).collect()
    }

    /// Returns the trace header for the recording.
    #[must_use]
    pub fn header(&self) -> Header {
        let title = format!("{} recording", self.foreign.kind.name());
        Header::of_recording(&title, POLICY, self.cpus.len(), Vec::new())
    }

    /// Passes the records of the recording to a sink.
    pub fn pass_to(&self, sink: &mut impl Sink) {
        self.notes().iter().for_each(|note| sink.note(note));
        let events = &self.foreign.events;
        let Some((first, last)) = events.first().zip(events.last()) else { return };
        let origin = Time::from_ns(first.at);
        let numbered = self.cpus.iter().zip(0..).map(|(&real, index)| (real, CpuId::new(index)));
        let threads = Threads::new(&self.foreign.threads, &self.recognised.vcpus);
        let mut assembler = Assembler::new(origin, numbered, (self.foreign.mark, threads));
        let vcpus = &self.recognised.vcpus;
        let tids = vcpus.iter().map(|vcpu| (vcpu.vcpu, vcpu.tid.raw())).collect();
        let mut sink = WithTerms { sink, import: self, tids };
        let sink = &mut sink;
        assembler.begin(self.recognised.vcpus.clone(), sink);
        let mut latest: BTreeMap<CpuId, u64> = BTreeMap::new();
        let mut next_tick = first.at;
        for event in events {
            if event.at >= next_tick {
                assembler.tick(Time::from_ns(event.at), sink);
                next_tick = event.at.saturating_add(TICK);
            }
            let before = latest.insert(event.cpu, event.at).unwrap_or(first.at);
            if let ForeignEventKind::Lost { events } = event.what {
                let gap = (Time::from_ns(before), Time::from_ns(event.at));
                assembler.lost(event.cpu, gap, events, sink);
            }
            assembler.take(&told(event), sink);
        }
        assembler.finish(Time::from_ns(last.at), sink);
    }

    fn notes(&self) -> Vec<Note> {
        let numbers: Vec<String> = self.cpus.iter().map(|cpu| cpu.index().to_string()).collect();
        let mark = match self.foreign.mark {
            WakeMark::Waking => "sched_waking",
            WakeMark::Wakeup => "sched_wakeup",
        };
        let mut notes = vec![
            ("recorder", self.foreign.recorder.clone()),
            ("origin", self.foreign.kind.name().to_owned()),
            ("kernel", self.foreign.kernel.clone()),
            ("cpus", numbers.join(",")),
            ("sight", format!("sched_switch; wakes by {mark}")),
            (ASSUMED, self.recognised.how.clone()),
            (ASSUMED, "weights follow from nice values; weights of cgroups are unknown".into()),
            (ASSUMED, "each CPU is a core of its own".into()),
            (ASSUMED, "each vCPU may run only on CPUs on which it ran in the recording".into()),
            (ASSUMED, "no VM has a quota or a reservation".into()),
        ];
        if self.foreign.cpus.is_none() {
            let count = self.cpus.len();
            let plural = if count == 1 { "" } else { "s" };
            let text = format!("the host has the {count} CPU{plural} that had events");
            notes.push((ASSUMED, text));
        }
        if !self.foreign.has_processes {
            let text = "each thread is a process of its own, as the text names no processes";
            notes.push((ASSUMED, text.into()));
        }
        if !self.has_wakes() {
            let text = "a thread wakes when it gets a CPU, as the recording has no wake-ups";
            notes.push((ASSUMED, text.into()));
        }
        let lost = self.lost();
        notes.push(("lost", format!("{lost} events")));
        let is_told = |(_, text): &(&str, String)| !text.is_empty();
        let note = |(name, text): (&str, String)| Note { name: name.into(), text };
        notes.into_iter().filter(is_told).map(note).collect()
    }

    /// Returns the number of events that the recorder certainly lost. The true number can be
    /// higher.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let lost = self.foreign.events.iter().map(|event| match event.what {
            ForeignEventKind::Lost { events } => events,
            _ => 0,
        });
        lost.fold(0, u64::saturating_add)
    }

    fn has_wakes(&self) -> bool {
        let is_wake = |it: &ForeignEvent| matches!(it.what, ForeignEventKind::Woke { .. });
        self.foreign.events.iter().any(is_wake)
    }
}

/// Sink that passes records on, and adds the parameters of each vCPU before it joins.
struct WithTerms<'a, S> {
    sink: &'a mut S,
    import: &'a Import,
    /// Thread id of each vCPU.
    tids: BTreeMap<VcpuId, i32>,
}

impl<S: Sink> Sink for WithTerms<'_, S> {
    fn record(&mut self, record: &Record) {
        if let Record::Joined { at, vcpu } = *record {
            let tid = self.tids.get(&vcpu).copied();
            let thread = tid.and_then(|tid| self.import.foreign.threads.get(&tid));
            let weight = weight(thread.and_then(|thread| thread.priority));
            let homes = tid.and_then(|tid| self.import.homes.get(&tid)).copied();
            let cpus = homes.filter(|homes| homes.len() < self.import.cpus.len());
            let terms = WrittenTerms { share: format!("weight={weight}"), cpus };
            let fact = Fact::Joined(vcpu, Box::new(terms));
            self.sink.exchange(&Exchange::Reported { now: at, fact });
        }
        self.sink.record(record);
    }

    fn named(&mut self, named: &VcpuName) {
        self.sink.named(named);
    }

    fn host_thread(&mut self, thread: &HostThread) {
        self.sink.host_thread(thread);
    }
}

/// Name of the notes that state assumptions.
const ASSUMED: &str = "assumed";

/// Returns the events of a trace that correspond to one event of a recording.
fn told(event: &ForeignEvent) -> Vec<Event> {
    let (at, here) = (Time::from_ns(event.at), event.cpu);
    let of = |tid: i32, cpu: CpuId, what: ThreadEventKind| {
        Tid::new(tid).map(|tid| Event { at, tid, cpu, what })
    };
    let events = match event.what {
        ForeignEventKind::Switch { from, is_ready, to } => [
            of(from, here, ThreadEventKind::SwitchedOut { ready: is_ready }),
            of(to, here, ThreadEventKind::SwitchedIn),
        ],
        ForeignEventKind::Woke { tid, target } => [of(tid, target, ThreadEventKind::Woke), None],
        ForeignEventKind::Forked { parent, child } => {
            let child = Tid::new(child);
            [child.and_then(|child| of(parent, here, ThreadEventKind::Forked { child })), None]
        }
        ForeignEventKind::Ending { tid } => [of(tid, here, ThreadEventKind::Ending), None],
        ForeignEventKind::Lost { .. } => [None, None],
    };
    events.into_iter().flatten().collect()
}

/// Returns the weight of a thread. A thread with an unknown or real-time priority has the weight of
/// nice 0.
fn weight(priority: Option<i32>) -> u32 {
    let nice = priority.and_then(|priority| usize::try_from(priority - FIRST_NICE).ok());
    nice.and_then(|nice| WEIGHTS.get(nice)).copied().unwrap_or(WEIGHTS[20])
}

/// Identities of threads, as the recording states them.
struct Threads<'a> {
    all: &'a BTreeMap<i32, ForeignThread>,
    /// Name of the VM of each process that has vCPUs.
    vms: BTreeMap<i32, &'a str>,
}

impl<'a> Threads<'a> {
    fn new(all: &'a BTreeMap<i32, ForeignThread>, vcpus: &'a [RecordedVcpu]) -> Threads<'a> {
        let mut vms = BTreeMap::new();
        for vcpu in vcpus {
            if let Some(process) = all.get(&vcpu.tid.raw()).and_then(|thread| thread.process) {
                vms.entry(process).or_insert(vcpu.domain.as_str());
            }
        }
        Threads { all, vms }
    }
}

impl Identify for Threads<'_> {
    fn identify(&mut self, tid: Tid) -> Identity {
        let unknown = ForeignThread::default();
        let Threads { all: threads, vms } = self;
        let thread = threads.get(&tid.raw()).unwrap_or(&unknown);
        let pid = thread.process.unwrap_or(tid.raw());
        let name = match thread.name.as_str() {
            "" => format!("thread {tid}"),
            name => name.to_owned(),
        };
        let main = threads.get(&pid).map(|main| main.name.clone());
        let command = main.filter(|name| !name.is_empty()).unwrap_or_else(|| name.clone());
        let vm = thread.process.and_then(|process| vms.get(&process));
        let vm = vm.map(|vm| (*vm).to_owned()).unwrap_or_default();
        let kind = if is_kernel(thread) {
            HostThreadKind::Kernel
        } else if vm.is_empty() {
            HostThreadKind::Process
        } else {
            HostThreadKind::Monitor
        };
        let (process, user, group) = (Tid::new(pid), 0, String::new());
        Identity { kind, process, user, name, command, vm, group }
    }
}
