//! Recorder of a host: records all threads on all CPUs. The caller names the threads that are also
//! recorded as vCPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use slackline_linux::sys::{monotonic, online_cpus, process_of};
use slackline_linux::wall_clock::WallClock;
use slackline_trace::{Header, Note, Record, Sink, WakeMark};
use slackline_units::{CpuId, Enforcement, Time, VcpuId};

use super::assembler::{Assembler, RecordedVcpu};
use super::identity::Procfs;
use super::offline::OfflineCpus;
use crate::session::SessionThread;
use crate::topology;
use crate::watch::Event;
use crate::watch::host::{HostWatch, RING_BYTES, take_until};
use crate::watch::perf::WatchError;

/// Policy name in the trace header of a recording of a host without reservations.
pub const POLICY: &str = "fair";

/// Updates an assembler after the threads of a session's vCPUs have changed from `before` to `now`.
/// `names` has the name and the VM of each vCPU. If a vCPU has no name there, its threads are left
/// out.
pub fn follow(
    assembler: &mut Assembler<Procfs>,
    (before, now): (&BTreeSet<SessionThread>, &BTreeSet<SessionThread>),
    names: &BTreeMap<VcpuId, (String, String)>,
) {
    let mut shrunk: BTreeSet<&str> = BTreeSet::new();
    for thread in before.difference(now) {
        assembler.forget(thread.vcpu, thread.tid);
        shrunk.extend(names.get(&thread.vcpu).map(|(_, domain)| domain.as_str()));
    }
    // The processes of the remaining threads get the name of their VM again below.
    for domain in &shrunk {
        assembler.identities().remove_vm(domain);
        assembler.forget_monitors(domain);
    }
    for thread in now {
        let SessionThread { vcpu, tid, is_of_tree } = *thread;
        let Some((name, domain)) = names.get(&vcpu).cloned() else { continue };
        let is_new = !before.contains(thread);
        if (is_new || shrunk.contains(domain.as_str()))
            && let Ok(process) = process_of(tid)
        {
            assembler.identities().add_vm(process, &domain);
        }
        if is_new {
            let by = Enforcement::Dispatcher;
            assembler.know(RecordedVcpu { tid, vcpu, name, domain, by, is_of_tree });
        }
    }
}

/// An open recorder of a whole host.
#[derive(Debug)]
pub struct HostRecorder {
    watch: HostWatch,
    assembler: Assembler<Procfs>,
    origin: Time,
    cpus: Vec<CpuId>,
    /// Events that cannot be recorded yet, because another CPU may still report an earlier event.
    waiting: Vec<Event>,
    /// Monotonic time up to which events have been recorded.
    drained: Time,
    /// Number of lost events.
    lost: u64,
    offline: OfflineCpus,
}

impl HostRecorder {
    /// Opens the recorder. The recording starts at the time of this call.
    ///
    /// # Errors
    /// If the kernel does not allow events of whole CPUs, this process lacks a privilege, or
    /// tracefs is not available.
    pub fn open(identities: Procfs) -> Result<HostRecorder, WatchError> {
        let mut watch = HostWatch::open(RING_BYTES)?;
        // Drop the events that happened before all CPUs were observed.
        watch.drain(&mut Vec::new())?;
        let origin = monotonic();
        let cpus: Vec<CpuId> = watch.cpus().collect();
        let index = |(index, &real): (usize, &CpuId)| (real, CpuId::new(index));
        let numbered = cpus.iter().enumerate().map(index);
        let assembler = Assembler::new(origin, numbered, (watch.mark(), identities));
        Ok(HostRecorder {
            watch,
            assembler,
            origin,
            cpus,
            waiting: Vec::new(),
            drained: origin,
            lost: 0,
            offline: OfflineCpus::new(origin),
        })
    }

    /// Returns the trace header of the recording.
    #[must_use]
    pub fn header(&self, title: &str) -> Header {
        let groups = topology::of(&self.cpus).levels();
        Header::of_recording(title, POLICY, self.cpus.len(), groups)
    }

    /// Records the properties of the host, and begins to record the vCPUs in `vcpus`.
    pub fn begin(&mut self, vcpus: Vec<RecordedVcpu>, sink: &mut impl Sink) {
        notes(&self.cpus, self.watch.mark()).iter().for_each(|note| sink.note(note));
        let ahead = WallClock::default().offset().ahead + self.origin.since(Time::START);
        sink.record(&Record::ClockSet { at: Time::START, ahead });
        self.assembler.begin(vcpus, sink);
    }

    /// Returns the assembler, which converts events to records.
    pub fn assembler(&mut self) -> &mut Assembler<Procfs> {
        &mut self.assembler
    }

    /// Returns the current time of the recording.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::START + monotonic().since(self.origin)
    }

    /// Records the events since the last call.
    ///
    /// # Errors
    /// If the kernel's records cannot be parsed.
    pub fn step(&mut self, sink: &mut impl Sink) -> Result<(), WatchError> {
        // All events before this moment are in the rings.
        let until = monotonic();
        for loss in self.watch.drain(&mut self.waiting)? {
            self.lost += loss.events;
            self.assembler.lost(loss.cpu, (self.drained, until), loss.events, sink);
        }
        let events = take_until(&mut self.waiting, until);
        self.assembler.take(&events, sink);
        self.assembler.tick(until, sink);
        let recorded = (&mut self.assembler, &*self.cpus);
        self.offline.look(recorded, until, || online_cpus().ok(), sink);
        self.drained = until;
        Ok(())
    }

    /// Records the remaining events and the end of the recording. Returns the number of lost
    /// events.
    ///
    /// # Errors
    /// If the kernel's records cannot be parsed.
    pub fn finish(mut self, sink: &mut impl Sink) -> Result<u64, WatchError> {
        self.step(sink)?;
        self.assembler.finish(self.drained, sink);
        Ok(self.lost)
    }
}

/// Returns notes with the properties of this host that a reader of a recording needs.
#[must_use]
pub fn notes(cpus: &[CpuId], mark: WakeMark) -> Vec<Note> {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default().trim_end().to_owned();
    let mark = match mark {
        WakeMark::Waking => "sched_waking",
        WakeMark::Wakeup => "sched_wakeup",
    };
    let numbers: Vec<String> = cpus.iter().map(|cpu| cpu.index().to_string()).collect();
    let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let notes = [
        ("recorder", format!("slackline {}", env!("CARGO_PKG_VERSION"))),
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("host", read("/proc/sys/kernel/hostname")),
        ("cpus", numbers.join(",")),
        ("clock", read(clock)),
        ("sight", format!("perf switch records; wakes by {mark}")),
    ];
    notes.into_iter().map(|(name, text)| Note { name: name.into(), text }).collect()
}
