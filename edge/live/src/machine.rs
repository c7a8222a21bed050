//! The live host as a machine: facts from the kernel go in, orders to the kernel come out.
//!
//! What is learnt late is told with the time at which it happened. Of the vCPUs that are due on a
//! CPU the chosen one has the highest priority, and those that would come after it stand ready
//! right below: when the chosen one goes to sleep, the kernel runs the next at once, and the host
//! hears of both when its dispatcher next looks.

use std::io;

use slackline_host::policy::{Spec, Topology, Values};
use slackline_host::{Broken, Fact, Fault, Host, Report, Rung, Used};
use slackline_trace::{Record, Sink};
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::act::{ActError, FifoPriority};
use crate::fence::Held;
use crate::lane::Lanes;
use crate::subject::{Member, Subject};
use crate::sys::{Tid, monotonic};
use crate::watch::perf::{Event, PerfWatch, WatchError, What};

/// Right below the chosen vCPU: those that are due as well.
const NEXT: FifoPriority = FifoPriority::new(96).expect("a priority of FIFO");

/// How many are kept ready below the chosen one. More would cost a call each and help only if all
/// before them slept at once.
const READY: usize = 4;

/// How often to look, at most, whether one that stands ready has been running unnoticed.
const GLANCE: Span = Span::from_ms(1);

/// The shortest turn worth a timer: what the two switches around it take.
const LEAST: Span = Span::from_us(10);

/// What can be seen of the threads.
pub(crate) enum Sight {
    /// Every switch and wake.
    Perf(Box<PerfWatch>),
    /// Only what each has used, whenever we look; everybody counts as awake.
    Polled,
}

/// Why the machine cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The contract was broken: a bug.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The kernel refused something that is needed.
    #[error(transparent)]
    Act(#[from] ActError),
    /// What the threads do can no longer be seen.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// CPU time or state can no longer be read.
    #[error("cannot read the CPU time or the state of thread {tid}")]
    Unreadable {
        /// Whose.
        tid: Tid,
        /// What the kernel said.
        source: io::Error,
    },
}

impl MachineError {
    /// Whether this is a fault of ours, not of the machine.
    #[must_use]
    pub const fn is_bug(&self) -> bool {
        matches!(self, MachineError::Broken(_))
    }
}

/// The machine: owned by nobody in particular, locked by whoever has something to report.
pub(crate) struct Machine {
    host: Host,
    lanes: Lanes,
    /// By slot.
    subjects: Vec<Option<Subject>>,
    /// By slot: the CPU it is kept on.
    homes: Vec<Option<CpuId>>,
    /// By slot: whether we are keeping it from running.
    held_back: Vec<bool>,
    /// Whose threads are which, in order of their ids.
    owners: Vec<(Tid, VcpuId)>,
    sight: Sight,
    events: Vec<Event>,
    rungs: Vec<Rung>,
    /// When the run began, on the monotonic clock.
    origin: Time,
    last: Time,
    records: Vec<Record>,
    /// Subjects whose threads are gone, to be taken out.
    gone: Vec<VcpuId>,
    is_over: bool,
}

/// Room for the records of a second of the busiest run there is; taken out ten times a second.
const RECORDS: usize = 1 << 15;

impl Machine {
    pub(crate) fn new(spec: &Spec, values: &Values, real: &[CpuId], sight: Sight) -> Machine {
        Machine {
            host: Host::new(spec, values, Topology::flat(real.len())),
            lanes: Lanes::new(real),
            subjects: Vec::new(),
            homes: Vec::new(),
            held_back: Vec::new(),
            owners: Vec::new(),
            sight,
            events: Vec::with_capacity(1 << 12),
            rungs: Vec::with_capacity(64),
            origin: Time::START,
            last: Time::START,
            records: Vec::with_capacity(RECORDS),
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

    /// Takes the records out that have come since the last time.
    pub(crate) fn take_records(&mut self, into: &mut Vec<Record>) {
        into.clear();
        std::mem::swap(&mut self.records, into);
    }

    /// Adds a record of the machine itself.
    pub(crate) fn record(&mut self, record: &Record) {
        self.records.record(record);
    }

    /// Takes those out whose threads have ended.
    pub(crate) fn take_gone(&mut self) -> Vec<VcpuId> {
        std::mem::take(&mut self.gone)
    }

    /// What a thread does is noted from now on.
    pub(crate) fn watch(&mut self, tid: Tid) -> Result<(), MachineError> {
        if let Sight::Perf(watch) = &mut self.sight {
            watch.add(tid)?;
        }
        Ok(())
    }

    /// What a thread does is of no more interest.
    pub(crate) fn unwatch(&mut self, tid: Tid) {
        if let Sight::Perf(watch) = &mut self.sight {
            watch.remove(tid);
        }
    }

    /// What scheduling a CPU has cost.
    pub(crate) fn overhead(&mut self, cpu: CpuId, used: Span) {
        self.records.record(&Record::Overhead { cpu, used });
    }

    /// A subject joins.
    pub(crate) fn join(&mut self, mut subject: Subject, share: &Values) -> Result<(), JoinError> {
        let vcpu = subject.vcpu;
        self.observe()?;
        self.step(self.last, &[], Fact::Joined(vcpu, share.into())).map_err(JoinError::from)?;
        let slots = self.subjects.len().max(vcpu.slot() + 1);
        self.subjects.resize_with(slots, || None);
        self.lanes.unreported.resize(slots, Span::ZERO);
        self.lanes.unreported[vcpu.slot()] = Span::ZERO;
        self.homes.resize(slots, None);
        self.held_back.resize(slots, false);
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
        let is_polled = matches!(self.sight, Sight::Polled);
        for member in &mut subject.members {
            member.is_awake = is_polled || member.is_runnable()?;
        }
        let is_awake = subject.members.iter().any(|member| member.is_awake);
        self.homes[vcpu.slot()] = None;
        self.held_back[vcpu.slot()] = false;
        self.subjects[vcpu.slot()] = Some(subject);
        if is_awake {
            self.step(self.last, &[], Fact::Woke(vcpu)).map_err(JoinError::from)?;
        }
        Ok(self.enact()?)
    }

    /// The share of a subject changes; on failure the old one stands.
    pub(crate) fn change(
        &mut self,
        vcpu: VcpuId,
        share: &Values,
        due: Time,
    ) -> Result<(), JoinError> {
        self.observe()?;
        if !self.host.moment().is_member(vcpu) {
            return Ok(());
        }
        self.step(self.last, &[], Fact::TermsChanged(vcpu, share.into()))
            .map_err(JoinError::from)?;
        self.enact()?;
        let at = self.now();
        self.records.record(&Record::Changed { due, at, vcpu });
        Ok(())
    }

    /// A subject leaves. Its threads are no longer ours to order about.
    pub(crate) fn leave(&mut self, vcpu: VcpuId) -> Result<(), MachineError> {
        self.observe()?;
        if self.subjects.get_mut(vcpu.slot()).and_then(Option::take).is_none() {
            return Ok(());
        }
        self.owners.retain(|&(_, owner)| owner != vcpu);
        self.step(self.last, &[], Fact::Left(vcpu)).map_err(broken)?;
        for lane in &mut self.lanes.lanes {
            lane.running = lane.running.filter(|&(running, _)| running != vcpu);
        }
        self.enact()
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
        let woken = self.now();
        if let Some(due) = self.lanes.lanes[cpu.index()].armed.take()
            && woken >= due
        {
            self.records.record(&Record::RangLate { at: woken, cpu, late: woken - due });
        }
        self.observe()?;
        let now = self.last;
        // An alarm or limit that has passed is dealt with; each may bring the next one.
        loop {
            let lane = &self.lanes.lanes[cpu.index()];
            let limit = lane.turn.and_then(|(_, until, _)| until).unwrap_or(Time::NEVER);
            let alarm = lane.alarm.unwrap_or(Time::NEVER);
            if limit.min(alarm) > now {
                break;
            }
            let fact = if limit <= alarm { Fact::LimitReached(cpu) } else { Fact::AlarmRang(cpu) };
            self.step(now, &[], fact).map_err(broken)?;
        }
        self.enact()?;
        let due = self.next_look(cpu);
        self.lanes.lanes[cpu.index()].armed = due;
        Ok(due)
    }

    /// How far away a time of the run is.
    pub(crate) fn until(&self, at: Time) -> Span {
        at.since(self.now())
    }

    fn next_look(&self, cpu: CpuId) -> Option<Time> {
        let lane = &self.lanes.lanes[cpu.index()];
        // Whoever is chosen must get to run before we look again, or we would look for ever.
        let least = self.last.after(LEAST);
        let limit = lane.turn.and_then(|(_, until, _)| until).map(|until| until.max(least));
        // One that stands ready runs unnoticed when the chosen one sleeps.
        let glance = lane.ready.map(|limit| self.last.after(limit.max(GLANCE)));
        [limit, lane.alarm, glance].into_iter().flatten().min()
    }

    /// Takes in what has happened up to now.
    fn observe(&mut self) -> Result<(), MachineError> {
        let now = self.now();
        match &mut self.sight {
            Sight::Perf(watch) => {
                self.events.clear();
                let mut events = std::mem::take(&mut self.events);
                let drained = watch.drain(&mut events)?;
                if drained.lost > 0 {
                    // Who runs where is unknown until the next event of each.
                    self.lanes.lanes.iter_mut().for_each(|lane| lane.running = None);
                }
                self.count(&events)?;
                for event in &events {
                    self.follow(*event)?;
                }
                self.events = events;
            }
            Sight::Polled => self.poll(now)?,
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
                    self.lanes.unreported[subject.vcpu.slot()] += more;
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
        let lane = self.lanes.lanes.iter().position(|lane| lane.real == event.cpu);
        let was_awake = self.host.moment().is_awake(vcpu);
        let mut used = None;
        match event.what {
            What::SwitchedIn => {
                if let Some(lane) = lane {
                    self.lanes.lanes[lane].running = Some((vcpu, at));
                }
            }
            What::SwitchedOut { .. } => {
                if let Some(lane) = lane {
                    used = self.lanes.cut(CpuId::new(lane), at);
                    self.lanes.lanes[lane].running = None;
                }
            }
            What::Woke => {}
        }
        // A thread that we stopped shows as asleep; it is not, it must not.
        if !self.held_back[vcpu.slot()] {
            let is_awake = event.what != What::SwitchedOut { ready: false };
            self.set_awake(vcpu, event.tid, is_awake);
        }
        let fact = match (was_awake, self.any_awake(vcpu)) {
            (true, false) => Fact::Blocked(vcpu),
            (false, true) => Fact::Woke(vcpu),
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
            self.lanes.lanes.iter().map(|lane| lane.reported.max(last)).collect();
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
        for (lane, cursor) in self.lanes.lanes.iter_mut().zip(cursors) {
            lane.reported = cursor;
        }
        self.step(now.max(last), &used, Fact::Passed).map_err(broken)
    }

    fn step(&mut self, at: Time, used: &[Used], fact: Fact<'_>) -> Result<(), Box<Fault>> {
        self.last = at;
        self.host.step(Report { now: at, used, fact }, &mut self.lanes, &mut self.records)
    }

    fn any_awake(&self, vcpu: VcpuId) -> bool {
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

    /// Tells the kernel what has been ordered, for each CPU that it concerns.
    fn enact(&mut self) -> Result<(), MachineError> {
        for index in 0..self.lanes.lanes.len() {
            if self.lanes.lanes[index].is_stale {
                self.lanes.lanes[index].is_stale = false;
                self.enact_on(CpuId::new(index))?;
            }
        }
        Ok(())
    }

    fn enact_on(&mut self, cpu: CpuId) -> Result<(), MachineError> {
        let mut rungs = std::mem::take(&mut self.rungs);
        self.host.rungs(cpu, &mut rungs);
        let chosen = self.lanes.lanes[cpu.index()].turn.map(|(vcpu, ..)| vcpu);
        if let Some(vcpu) = chosen {
            self.homes[vcpu.slot()] = Some(cpu);
        }
        for rung in &rungs {
            self.homes[rung.vcpu.slot()].get_or_insert(cpu);
        }
        // Down first: whoever comes up must not meet the one it follows on its way.
        let mut result = Ok(());
        for slot in 0..self.subjects.len() {
            let Some(vcpu) = self.subjects[slot].as_ref().map(|subject| subject.vcpu) else {
                continue;
            };
            let is_due = rungs.iter().take(READY).any(|rung| rung.vcpu == vcpu);
            // One that has not been chosen yet has no home, and may have used more than its due: it
            // would never be chosen, and if nobody kept it from running it never would stop.
            if self.homes[slot].is_none_or(|home| home == cpu) && !is_due {
                let is_owed = rungs.iter().any(|rung| rung.vcpu == vcpu);
                result = result.and(self.put_down(vcpu, is_owed || chosen == Some(vcpu)));
            }
        }
        for (place, rung) in rungs.iter().take(READY).enumerate() {
            if self.homes[rung.vcpu.slot()] == Some(cpu) {
                let priority = if place == 0 { FifoPriority::CHOSEN } else { NEXT };
                result = result.and(self.put_up(rung.vcpu, priority));
            }
        }
        self.lanes.lanes[cpu.index()].ready =
            rungs.iter().take(READY).skip(1).filter_map(|rung| rung.limit).min();
        self.rungs = rungs;
        result
    }

    /// Makes a subject real-time.
    fn put_up(&mut self, vcpu: VcpuId, priority: FifoPriority) -> Result<(), MachineError> {
        let real = self.homes[vcpu.slot()].map(|home| self.lanes.lanes[home.index()].real);
        self.act(vcpu, |member| {
            if let Some(real) = real {
                member.held.pin(real)?;
            }
            member.held.raise(priority)
        })?;
        self.let_go(vcpu)
    }

    /// Gives a subject back to ordinary scheduling, or keeps it from running if it must not have
    /// more than its due.
    fn put_down(&mut self, vcpu: VcpuId, may_run: bool) -> Result<(), MachineError> {
        let real = self.homes[vcpu.slot()].map(|home| self.lanes.lanes[home.index()].real);
        self.act(vcpu, |member| {
            if let Some(real) = real {
                member.held.pin(real)?;
            }
            member.held.lower()
        })?;
        let is_exact = self.subjects[vcpu.slot()].as_ref().is_some_and(|subject| subject.exact);
        if is_exact && !may_run && self.host.moment().is_awake(vcpu) {
            self.held_back[vcpu.slot()] = true;
            self.act_on_first(vcpu, Held::hold_back)
        } else if is_exact && may_run {
            self.let_go(vcpu)
        } else {
            Ok(())
        }
    }

    fn let_go(&mut self, vcpu: VcpuId) -> Result<(), MachineError> {
        if !std::mem::replace(&mut self.held_back[vcpu.slot()], false) {
            return Ok(());
        }
        self.act_on_first(vcpu, Held::let_go)
    }

    /// Stopping a process stops all its threads: one order is enough.
    fn act_on_first(
        &mut self,
        vcpu: VcpuId,
        order: fn(&Held) -> Result<(), ActError>,
    ) -> Result<(), MachineError> {
        let mut is_first = true;
        self.act(vcpu, |member| {
            if std::mem::replace(&mut is_first, false) { order(&member.held) } else { Ok(()) }
        })
    }

    /// Does something to each thread of a subject; one that has ended is noted, not an error.
    fn act(
        &mut self,
        vcpu: VcpuId,
        mut order: impl FnMut(&mut Member) -> Result<(), ActError>,
    ) -> Result<(), MachineError> {
        let Some(subject) = &mut self.subjects[vcpu.slot()] else { return Ok(()) };
        for member in &mut subject.members {
            match order(member) {
                Ok(()) => {}
                Err(ActError::Gone { .. } | ActError::GivenBack { .. }) => {
                    if !self.gone.contains(&vcpu) {
                        self.gone.push(vcpu);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Why a share could not be given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    /// There is no room for it.
    #[error("{0}")]
    Declined(slackline_host::policy::AdmitError),
    /// Something else.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

impl From<Box<Fault>> for JoinError {
    fn from(fault: Box<Fault>) -> JoinError {
        match *fault {
            Fault::Declined { error, .. } => JoinError::Declined(error),
            Fault::Broken(broken) => JoinError::Machine(broken.into()),
        }
    }
}

#[allow(clippy::boxed_local)] // As the host hands it over.
fn broken(fault: Box<Fault>) -> MachineError {
    match *fault {
        Fault::Broken(broken) => MachineError::Broken(broken),
        Fault::Declined { .. } => unreachable!("only joins and changes can be declined"),
    }
}
