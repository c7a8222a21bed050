//! One step of the host for each fact, and what the step leaves to be told to the kernel.

use slackline_host::policy::{Entitlement, Spec, Values};
use slackline_host::{Fact, Fault, Host, NextInLine, Report, Terms, Used};
use slackline_trace::{Entry, Named, Record, Sink};
use slackline_units::{CpuId, Span, Time, VcpuId};

use super::recording::Recording;
use super::{EventSource, GroupJoined, Joining, MachineError, NotDone};
use crate::alarm_clock::Wanted;
use crate::pcpu::Pcpus;
use crate::sys::{Tid, monotonic};
use crate::topology;
use crate::vcpu_threads::VcpuThreads;
use crate::watch::perf::{Event, What};

/// How often to look, at most, whether one that stands ready has been running unnoticed.
const GLANCE: Span = Span::from_ms(1);

/// The host, what it has ordered, and what has been seen of everybody.
pub(crate) struct Decider {
    pub(super) host: Host,
    pub(super) pcpus: Pcpus,
    /// By slot.
    pub(super) subjects: Vec<Option<VcpuThreads>>,
    /// By slot: the CPU it is kept on.
    pub(super) homes: Vec<Option<CpuId>>,
    /// By slot: whether we are keeping it from running.
    pub(super) held_back: Vec<bool>,
    /// By slot: whether it does not run, whatever it is due, until it is resumed.
    pub(super) paused: Vec<bool>,
    /// Whose threads are which, in order of their ids.
    pub(super) owners: Vec<(Tid, VcpuId)>,
    pub(super) source: EventSource,
    pub(super) events: Vec<Event>,
    pub(super) in_line: Vec<NextInLine>,
    /// When the run began, on the monotonic clock.
    pub(super) origin: Time,
    pub(super) last: Time,
    pub(super) records: Recording,
    /// Subjects whose threads are gone, to be taken out.
    pub(super) gone: Vec<VcpuId>,
    pub(super) is_over: bool,
}

impl Decider {
    pub(crate) fn new(
        spec: &Spec,
        values: &Values,
        real: &[CpuId],
        source: EventSource,
    ) -> Decider {
        Decider {
            host: Host::new(spec, values, &topology::of(real)),
            pcpus: Pcpus::new(real),
            subjects: Vec::new(),
            homes: Vec::new(),
            held_back: Vec::new(),
            paused: Vec::new(),
            owners: Vec::new(),
            source,
            events: Vec::with_capacity(1 << 12),
            in_line: Vec::with_capacity(64),
            origin: Time::START,
            last: Time::START,
            records: Recording::new(),
            gone: Vec::new(),
            is_over: false,
        }
    }

    /// The run begins.
    pub(crate) fn begin(&mut self, origin: Time) {
        self.origin = origin;
    }

    /// The time of the run.
    pub(crate) fn now(&self) -> Time {
        self.of_run(monotonic())
    }

    fn of_run(&self, at: Time) -> Time {
        Time::START + at.since(self.origin)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// What passes between machine and host is kept from now on.
    pub(crate) fn keep_exchanges(&mut self) {
        self.records.keep_exchanges();
    }

    /// Takes the records out that have come since the last time.
    pub(crate) fn take_records(&mut self, into: &mut Vec<Entry>) {
        self.records.take(into);
    }

    /// What people call a vCPU that is about to join.
    pub(crate) fn named(&mut self, named: &Named) {
        self.records.named(named);
    }

    /// Takes those out whose threads have ended.
    pub(crate) fn take_gone(&mut self) -> Vec<VcpuId> {
        std::mem::take(&mut self.gone)
    }

    /// What a thread does is noted from now on.
    pub(crate) fn watch(&mut self, tid: Tid, is_exact: bool) -> Result<(), MachineError> {
        match &mut self.source {
            EventSource::Perf(watch) if is_exact => watch.add_stopped(tid)?,
            EventSource::Perf(watch) => watch.add(tid)?,
            EventSource::Polled => {}
        }
        Ok(())
    }

    /// What a thread does is of no more interest.
    pub(crate) fn unwatch(&mut self, tid: Tid) {
        if let EventSource::Perf(watch) = &mut self.source {
            watch.remove(tid);
        }
    }

    /// What scheduling a CPU has cost.
    pub(crate) fn overhead(&mut self, cpu: CpuId, used: Span) {
        self.records.record(&Record::Overhead { cpu, used });
    }

    /// vCPUs join, all at this instant: of each group all or none.
    pub(crate) fn join(
        &mut self,
        groups: Vec<Vec<Joining>>,
    ) -> Result<Vec<GroupJoined>, MachineError> {
        self.observe()?;
        let mut results = Vec::with_capacity(groups.len());
        for group in groups {
            results.push(match self.join_group(group) {
                Err((_, NotDone::Machine(error))) => return Err(error),
                result => result,
            });
        }
        self.enact()?;
        Ok(results)
    }

    fn join_group(&mut self, group: Vec<Joining>) -> GroupJoined {
        let mut joined = Vec::new();
        for one in group {
            let vcpu = one.threads.vcpu;
            if let Err(error) = self.join_one(one) {
                let at = self.last;
                self.records.record(&Record::Declined { at, vcpu });
                for before in joined {
                    self.take_out(before).map_err(|error| (before, error.into()))?;
                }
                return Err((vcpu, error));
            }
            joined.push(vcpu);
        }
        Ok(())
    }

    fn join_one(&mut self, joining: Joining) -> Result<(), NotDone> {
        let Joining { threads: mut subject, share, cpus } = joining;
        let vcpu = subject.vcpu;
        if let Some(cpus) = cpus {
            let cpus = self.real_cpus(cpus);
            subject.confine(cpus).map_err(NotDone::Refused)?;
        }
        self.step(self.last, &[], Fact::Joined(vcpu, Terms { share: &share, cpus }))?;
        let slots = self.subjects.len().max(vcpu.slot() + 1);
        self.subjects.resize_with(slots, || None);
        self.pcpus.unreported.resize(slots, Span::ZERO);
        self.pcpus.unreported[vcpu.slot()] = Span::ZERO;
        self.homes.resize(slots, None);
        self.homes[vcpu.slot()] = None;
        self.held_back.resize(slots, false);
        self.held_back[vcpu.slot()] = false;
        self.paused.resize(slots, false);
        self.paused[vcpu.slot()] = false;
        // What it used while the run was being prepared is not the run's.
        for member in &mut subject.members {
            member.more()?;
            member.joined = Some(self.last);
        }
        let tids = subject.members.iter().map(|member| (member.held.thread().tid(), vcpu));
        self.owners.extend(tids);
        self.owners.sort_unstable();
        // Only now that its events are heard: what it did before, such as waking for the start of
        // the run, nobody has been told.
        let is_polled = matches!(self.source, EventSource::Polled);
        for member in &mut subject.members {
            member.is_awake = is_polled || member.is_runnable()?;
        }
        let is_awake = subject.members.iter().any(|member| member.is_awake);
        self.subjects[vcpu.slot()] = Some(subject);
        if is_awake {
            self.step(self.last, &[], Fact::Woke(vcpu))?;
        }
        Ok(())
    }

    /// The terms of a subject change; on failure the old ones stand.
    pub(crate) fn change(
        &mut self,
        vcpu: VcpuId,
        terms: Terms<'_>,
        due: Time,
    ) -> Result<(), NotDone> {
        self.observe()?;
        if !self.host.moment().is_member(vcpu) {
            return Ok(());
        }
        match terms.cpus {
            Some(cpus) => self.move_to(vcpu, terms, cpus)?,
            None => self.step(self.last, &[], Fact::TermsChanged(vcpu, terms))?,
        }
        self.enact()?;
        let at = self.now();
        self.records.record(&Record::Changed { due, at, vcpu });
        Ok(())
    }

    /// A subject leaves. Its threads are no longer ours to order about.
    pub(crate) fn leave(&mut self, vcpu: VcpuId) -> Result<(), MachineError> {
        self.observe()?;
        self.take_out(vcpu)?;
        self.enact()
    }

    fn take_out(&mut self, vcpu: VcpuId) -> Result<(), MachineError> {
        if self.subjects.get_mut(vcpu.slot()).and_then(Option::take).is_none() {
            return Ok(());
        }
        self.owners.retain(|&(_, owner)| owner != vcpu);
        self.step(self.last, &[], Fact::Left(vcpu)).map_err(broken)?;
        for pcpu in &mut self.pcpus.all {
            pcpu.running = pcpu.running.filter(|&(running, _)| running != vcpu);
        }
        Ok(())
    }

    /// The run ends now.
    pub(crate) fn end(&mut self) -> Result<(), MachineError> {
        self.is_over = true;
        self.observe()?;
        self.step(self.last, &[], Fact::Ended).map_err(broken)
    }

    /// The contract was broken or the kernel refused: nothing more is done.
    pub(crate) fn abandon(&mut self) {
        self.is_over = true;
    }

    /// A dispatcher looks after its CPU. Returns when it must look again at the latest.
    pub(crate) fn look(&mut self, cpu: CpuId) -> Result<Option<Time>, MachineError> {
        if self.is_over {
            return Ok(None);
        }
        let woken = self.now();
        if let Some(late) = self.pcpus.all[cpu.index()].clock.woke(woken) {
            self.records.record(&Record::RangLate { at: woken, cpu, late });
        }
        self.observe()?;
        let now = self.last;
        self.learn(cpu, woken);
        self.pass(cpu);
        // An alarm or limit that has passed is dealt with; each may bring the next one.
        loop {
            let pcpu = &self.pcpus.all[cpu.index()];
            let limit = pcpu.turn.and_then(|(_, until, _)| until).unwrap_or(Time::NEVER);
            let alarm = pcpu.alarm.unwrap_or(Time::NEVER);
            if limit.min(alarm) > now {
                break;
            }
            let fact = if limit <= alarm { Fact::LimitReached(cpu) } else { Fact::AlarmRang(cpu) };
            self.step(now, &[], fact).map_err(broken)?;
        }
        self.enact()?;
        Ok(self.set_clock(cpu))
    }

    /// What a look has been found to cost.
    pub(crate) fn costs(&mut self, cpu: CpuId, look: Span) {
        self.pcpus.all[cpu.index()].clock.costs(look);
    }

    /// How far away a time of the run is.
    pub(crate) fn until(&self, at: Time) -> Span {
        at.since(self.now())
    }

    fn learn(&mut self, cpu: CpuId, woken: Time) {
        let is_polled = matches!(self.source, EventSource::Polled);
        let pcpu = &mut self.pcpus.all[cpu.index()];
        let has_run = std::mem::take(&mut pcpu.has_run) || is_polled || pcpu.turn.is_none();
        pcpu.clock.learn(woken, has_run, pcpu.left);
    }

    /// Ordinary threads have had what our own have left them.
    fn pass(&mut self, cpu: CpuId) {
        let pcpu = &mut self.pcpus.all[cpu.index()];
        pcpu.fair_server.pass(self.last, pcpu.clock.cost());
        // Once it is paid the chosen one comes up again.
        pcpu.is_stale |= pcpu.is_paying && pcpu.fair_server.owed().is_none();
    }

    fn set_clock(&mut self, cpu: CpuId) -> Option<Time> {
        let pcpu = &mut self.pcpus.all[cpu.index()];
        let limit = pcpu.turn.and_then(|(_, until, _)| until);
        let is_due = pcpu.turn.is_some_and(|(.., entitlement)| entitlement == Entitlement::Due);
        pcpu.left = limit.filter(|_| is_due).map_or(Span::ZERO, |limit| limit.since(self.last));
        // One that stands ready runs unnoticed when the chosen one sleeps.
        let glance = pcpu.ready.map(|limit| limit.max(GLANCE));
        let glance = if pcpu.is_paying { pcpu.fair_server.owed() } else { glance };
        let glance = glance.map(|span| self.last.after(span));
        let is_awaited = pcpu.is_awaited;
        pcpu.clock.set(self.last, Wanted { limit, alarm: pcpu.alarm, glance, is_awaited })
    }

    /// Takes in what has happened up to now.
    pub(super) fn observe(&mut self) -> Result<(), MachineError> {
        let now = self.now();
        match &mut self.source {
            EventSource::Perf(watch) => {
                self.events.clear();
                let mut events = std::mem::take(&mut self.events);
                let drained = watch.drain(&mut events)?;
                if drained.lost > 0 {
                    // Who runs where is unknown until the next event of each.
                    self.pcpus.all.iter_mut().for_each(|pcpu| pcpu.running = None);
                }
                self.count(&events)?;
                for event in &events {
                    self.follow(*event)?;
                }
                self.events = events;
            }
            EventSource::Polled => self.poll(now)?,
        }
        self.last = self.last.max(now);
        Ok(())
    }

    /// Reads the clocks of the threads that have run. They are exact: whoever was switched out has
    /// been counted.
    fn count(&mut self, events: &[Event]) -> Result<(), MachineError> {
        let now = self.now();
        for subject in self.subjects.iter_mut().flatten() {
            for member in &mut subject.members {
                let tid = member.held.thread().tid();
                let switched = |event: &Event| event.tid == tid && event.what != What::Woke;
                if events.iter().any(switched) {
                    let most = member.joined.take().map_or(Span::MAX, |joined| now.since(joined));
                    let more = member.more()?.min(most);
                    self.pcpus.unreported[subject.vcpu.slot()] += more;
                }
            }
        }
        Ok(())
    }

    /// One event of one thread becomes time used, and a fact if its subject falls asleep or wakes.
    fn follow(&mut self, event: Event) -> Result<(), MachineError> {
        let Ok(place) = self.owners.binary_search_by_key(&event.tid, |&(tid, _)| tid) else {
            return Ok(());
        };
        let vcpu = self.owners[place].1;
        let at = self.of_run(event.at).max(self.last);
        let pcpu = self.pcpus.all.iter().position(|pcpu| pcpu.real == event.cpu);
        let was_awake = self.host.moment().is_awake(vcpu);
        let mut used = None;
        match event.what {
            What::SwitchedIn => {
                if let Some(pcpu) = pcpu {
                    self.pcpus.all[pcpu].running = Some((vcpu, at));
                }
            }
            What::SwitchedOut { .. } => {
                if let Some(pcpu) = pcpu {
                    used = self.pcpus.cut(CpuId::new(pcpu), at);
                    self.pcpus.all[pcpu].running = None;
                }
            }
            What::Woke => {}
        }
        // A thread that we stopped shows as asleep; it is not, it must not.
        let is_paused = self.paused[vcpu.slot()];
        if !self.held_back[vcpu.slot()] && !is_paused {
            let is_awake = event.what != What::SwitchedOut { ready: false };
            self.set_awake(vcpu, event.tid, is_awake);
        }
        let fact = match (was_awake, self.any_awake(vcpu)) {
            (true, false) => Fact::Blocked(vcpu),
            (false, true) if !is_paused => Fact::Woke(vcpu),
            _ if used.is_none() => return Ok(()),
            _ => Fact::Passed,
        };
        self.step(at, used.as_slice(), fact).map_err(broken)
    }

    /// Without events: what each has used since the last look, one after the other, since on one
    /// CPU they cannot have run at once.
    fn poll(&mut self, now: Time) -> Result<(), MachineError> {
        let last = self.last;
        let mut used = Vec::new();
        let mut cursors: Vec<Time> =
            self.pcpus.all.iter().map(|pcpu| pcpu.reported.max(last)).collect();
        for subject in self.subjects.iter_mut().flatten() {
            let Some(cpu) = self.homes[subject.vcpu.slot()] else { continue };
            for member in &mut subject.members {
                let from = cursors[cpu.index()];
                let ran = member.more()?.min(now.since(from));
                if !ran.is_zero() {
                    cursors[cpu.index()] = from + ran;
                    used.push(Used { vcpu: subject.vcpu, cpu, from, to: from + ran, ran });
                }
            }
        }
        for (pcpu, cursor) in self.pcpus.all.iter_mut().zip(cursors) {
            pcpu.reported = cursor;
        }
        self.step(now.max(last), &used, Fact::Passed).map_err(broken)
    }

    pub(super) fn step(
        &mut self,
        at: Time,
        used: &[Used],
        fact: Fact<'_>,
    ) -> Result<(), Box<Fault>> {
        self.last = at;
        self.host.step(Report { now: at, used, fact }, &mut self.pcpus, &mut self.records)?;
        if self.host.is_settled() {
            return Ok(());
        }
        let report = Report { now: at, used: &[], fact: Fact::Settled };
        self.host.step(report, &mut self.pcpus, &mut self.records)
    }

    pub(super) fn any_awake(&self, vcpu: VcpuId) -> bool {
        let subject = self.subjects[vcpu.slot()].as_ref();
        subject.is_some_and(|subject| subject.members.iter().any(|member| member.is_awake))
    }

    fn set_awake(&mut self, vcpu: VcpuId, tid: Tid, is_awake: bool) {
        let Some(subject) = &mut self.subjects[vcpu.slot()] else { return };
        for member in &mut subject.members {
            if member.held.thread().tid() == tid {
                member.is_awake = is_awake;
            }
        }
    }
}

#[allow(clippy::boxed_local)] // As the host hands it over.
pub(super) fn broken(fault: Box<Fault>) -> MachineError {
    match *fault {
        Fault::Broken(broken) => MachineError::Broken(broken),
        Fault::Declined { .. } => unreachable!("only joins and changes can be declined"),
    }
}
