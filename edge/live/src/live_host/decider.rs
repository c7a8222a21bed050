//! The decider reports each event of a vCPU to the host (run states and policy), one at a time. It
//! collects the resulting orders for the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slackline_host::policy::Entitlement;
use slackline_host::{CpuUse, Fact, Fault, Host, NextInLine, Report, VcpuTerms};
use slackline_trace::{Record, Sink};
use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, Span, Time, VcpuId};

use super::recording::Recording;
use super::run_intervals::RunIntervals;
use super::view::{PassEvents, Sighting};
use super::{LiveHostError, NotDone};
use crate::alarm_clock::PassTimes;
use crate::pcpu::Pcpus;
use crate::vcpu_threads::{Home, WatchedThread};
use crate::watch::ThreadEventKind;
use crate::way::VcpuHandle;
use slackline_linux::step::ActError;
use slackline_linux::sys::Tid;

/// Shortest time after which a dispatcher checks, without an event, that the chosen vCPU still
/// runs. If the chosen vCPU has blocked, the next vCPU in line runs in its place.
const GLANCE: Span = Span::from_ms(1);

/// The host (run states and policy) with its orders, and the live state of all vCPUs.
pub(super) struct Decider {
    pub(super) host: Host,
    pub(super) pcpus: Pcpus,
    /// vCPUs of the live host, by slot. `None` for a free slot.
    pub(super) vcpus: Vec<Option<Vcpu>>,
    /// Slots of the vCPUs that may use several CPUs simultaneously. Each pass reads these vCPUs. A
    /// search among hundreds of vCPUs would take most of the time of a pass.
    pub(super) wide: BTreeSet<usize>,
    pub(super) in_line: Vec<NextInLine>,
    /// vCPUs whose class may have to change, although they are neither chosen nor next in line on a
    /// CPU.
    pub(super) touched: Vec<VcpuId>,
    /// vCPUs that joined or woke and are not pinned to a CPU yet. The list is only used with a
    /// policy that divides slack by weight.
    pub(super) unbound: Vec<VcpuId>,
    /// Sequence number of the latest list of orders to the kernel.
    pub(super) number: u64,
    /// True if the kernel reports no scheduling events. Then only CPU time can be read.
    pub(super) is_polled: bool,
    /// Start of the run, on the monotonic clock.
    origin: Time,
    /// Current time of the run.
    pub(super) now: Time,
    /// Latest time of the run of any event reported to the host. Times reported to the host never
    /// fall. If an event of one CPU is read after a later event of another CPU, the earlier event
    /// is reported with this latest time. The CPU time of the earlier event is still charged at the
    /// time when it was used.
    told: Time,
    pub(super) records: Recording,
    /// vCPUs whose threads have all ended. They are about to be removed.
    pub(super) gone: Vec<VcpuId>,
    /// vCPUs with a thread that events have shown to run on an unmanaged CPU.
    pub(super) away: Vec<VcpuId>,
    /// vCPUs for which the kernel refused an order since [`take_refused`](Decider::take_refused)
    /// was last called.
    pub(super) refused: Vec<VcpuId>,
    /// Refused orders that would have restored or resumed threads. The session takes them.
    pub(super) failures: Vec<(VcpuId, ActError)>,
    pub(super) is_over: bool,
}

/// State of one vCPU in the live host.
pub(super) struct Vcpu {
    pub(super) vcpu: VcpuId,
    pub(super) handle: Arc<VcpuHandle>,
    pub(super) threads: BTreeMap<Tid, ThreadRecord>,
    /// Virtual time of a process tree: the least CPU time received among its runnable threads. The
    /// value never falls.
    pub(super) virtual_time: Span,
    /// True if the vCPU is a process tree, whose threads can start and end while the tree is
    /// scheduled.
    pub(super) is_tree: bool,
    /// CPUs (kernel numbers) on which threads of this vCPU may run simultaneously. The CPU times of
    /// these threads are added up and charged as if they came from one CPU. `None` if this vCPU
    /// uses one CPU at a time.
    pub(super) wide: Option<CpuSet>,
    /// Reservation of this vCPU, if the reservation is a hard limit, so that the vCPU receives no
    /// slack. `None` if the vCPU has no hard limit.
    pub(super) hard_limit: Option<Reservation>,
    pub(super) home: Arc<Home>,
    /// Time of the run at which this vCPU was stopped. `None` if it is not stopped.
    pub(super) held_since: Option<Time>,
    /// True if an event showed that a thread of this vCPU ran after the stop.
    pub(super) runs_after_stop: bool,
    /// True while this vCPU is paused, at a user's request or because it has left its CPUs or its
    /// cgroup too often.
    pub(super) is_paused: bool,
    /// True while this vCPU is paused because it has left its CPUs or its cgroup too often,
    /// provided that it was runnable when the pause began. Such a pause is recorded as a stop. A
    /// pause at a user's request is not.
    pub(super) has_escaped: bool,
    /// True while another program controls this vCPU's threads. Slackline then leaves that
    /// program's changes in place and gives the threads no orders.
    pub(super) is_left: bool,
    /// CPU time that the vCPU used while `is_left` was true and that is not recorded yet.
    pub(super) used_left: Span,
    /// Time of the run up to which the vCPU's CPU time has been recorded while `is_left` is true.
    pub(super) left_until: Time,
}

/// State of a thread in the live host.
pub(super) struct ThreadRecord {
    pub(super) thread: Arc<WatchedThread>,
    pub(super) is_awake: bool,
    /// Time of the latest event or reading of the thread's state, on the monotonic clock. Events
    /// before this time are ignored.
    pub(super) since: Time,
    pub(super) intervals: RunIntervals,
    /// CPU time that the thread has received. Of the threads of a tree, the thread with the least
    /// value runs first. When a thread wakes, its value is raised at least to the tree's virtual
    /// time. Otherwise the thread would catch up on the time in which it was blocked.
    pub(super) received: Span,
    /// True if the thread has run since it woke. If it has not run, it may have been woken only
    /// because its cgroup was thawed.
    pub(super) has_run: bool,
    /// True if the thread runs on an unmanaged CPU, according to its latest event.
    pub(super) is_elsewhere: bool,
}

/// Threads of a vCPU that is about to join.
pub(super) struct NewcomerVcpu {
    pub(super) home: Arc<Home>,
    pub(super) known: Vec<ThreadRecord>,
    pub(super) is_tree: bool,
    pub(super) wide: Option<CpuSet>,
}

impl Vcpu {
    pub(super) fn new(
        handle: VcpuHandle,
        joined: NewcomerVcpu,
        hard_limit: Option<Reservation>,
    ) -> Vcpu {
        let (vcpu, handle) = (handle.vcpu, Arc::new(handle));
        let NewcomerVcpu { home, known, is_tree, wide } = joined;
        let threads = known.into_iter().map(|known| (known.thread.tid, known)).collect();
        Vcpu {
            vcpu,
            handle,
            threads,
            virtual_time: Span::ZERO,
            is_tree,
            wide,
            hard_limit,
            home,
            held_since: None,
            runs_after_stop: false,
            is_paused: false,
            has_escaped: false,
            is_left: false,
            used_left: Span::ZERO,
            left_until: Time::START,
        }
    }

    /// Returns true if a dispatcher has stopped this vCPU, or if it is paused. While the vCPU is
    /// stopped, the reported states of its threads are not valid. The kernel reports a stopped
    /// thread as blocked, although a thread that blocked earlier may have become runnable.
    pub(super) const fn is_stopped(&self) -> bool {
        self.held_since.is_some() || self.is_paused
    }
}

impl Decider {
    pub(super) fn new(host: Host, real: &[CpuId], is_polled: bool) -> Decider {
        Decider {
            host,
            pcpus: Pcpus::new(real),
            vcpus: Vec::new(),
            wide: BTreeSet::new(),
            in_line: Vec::with_capacity(64),
            touched: Vec::new(),
            unbound: Vec::new(),
            number: 0,
            is_polled,
            origin: Time::START,
            now: Time::START,
            told: Time::START,
            records: Recording::new(),
            gone: Vec::new(),
            away: Vec::new(),
            refused: Vec::new(),
            failures: Vec::new(),
            is_over: false,
        }
    }

    /// Starts the run. `origin` is the start of the run on the monotonic clock.
    pub(super) fn begin(&mut self, origin: Time) {
        self.origin = origin;
    }

    /// Converts a monotonic time to the time of the run.
    pub(super) fn of_run(&self, at: Time) -> Time {
        Time::START + at.since(self.origin)
    }

    /// Returns the monotonic time up to which events have been processed.
    pub(super) fn monotonic(&self) -> Time {
        self.origin + (self.now - Time::START)
    }

    /// Returns the list of vCPUs for which the kernel refused an order, and clears the list.
    pub(super) fn take_refused(&mut self) -> Vec<VcpuId> {
        std::mem::take(&mut self.refused)
    }

    /// Returns the list of vCPUs whose threads have all ended, and clears the list.
    pub(super) fn take_gone(&mut self) -> Vec<VcpuId> {
        std::mem::take(&mut self.gone)
    }

    /// Adds a vCPU with these parameters. If one of its threads is runnable, the vCPU wakes.
    pub(super) fn join(&mut self, vcpu: Vcpu, terms: VcpuTerms<'_>) -> Result<(), NotDone> {
        let id = vcpu.vcpu;
        self.step(self.now, &[], Fact::Joined(id, terms))?;
        let slots = self.vcpus.len().max(id.slot() + 1);
        self.vcpus.resize_with(slots, || None);
        self.pcpus.unreported.resize(slots, Span::ZERO);
        self.pcpus.ahead.resize(slots, Span::ZERO);
        self.pcpus.unreported[id.slot()] = Span::ZERO;
        self.touched.push(id);
        let is_awake = vcpu.threads.values().any(|known| known.is_awake);
        if vcpu.wide.is_some() {
            self.wide.insert(id.slot());
        }
        self.vcpus[id.slot()] = Some(vcpu);
        if is_awake {
            self.step(self.now, &[], Fact::Woke(id))?;
        }
        Ok(())
    }

    /// Changes the parameters of a vCPU. On failure the old parameters stay in force. `due` is the
    /// time for which the change was requested; it is only recorded.
    pub(super) fn change(
        &mut self,
        vcpu: VcpuId,
        terms: VcpuTerms<'_>,
        due: Time,
    ) -> Result<(), NotDone> {
        if !self.host.moment().is_member(vcpu) {
            return Ok(());
        }
        match terms.cpus {
            Some(cpus) => self.move_to(vcpu, terms, cpus)?,
            None => self.step(self.now, &[], Fact::TermsChanged(vcpu, terms))?,
        }
        self.touched.push(vcpu);
        self.records.record(&Record::Changed { due, at: self.now, vcpu });
        Ok(())
    }

    /// Removes a vCPU and returns its state. `None` if the vCPU is not present.
    pub(super) fn leave(&mut self, vcpu: VcpuId) -> Result<Option<Vcpu>, LiveHostError> {
        self.note_let_go(vcpu);
        self.wide.remove(&vcpu.slot());
        let left = self.vcpus.get_mut(vcpu.slot()).and_then(Option::take);
        if left.is_some() {
            self.pcpus.refused.retain(|&(refused, ..)| refused != vcpu);
            self.gone.retain(|&gone| gone != vcpu);
            self.step(self.now, &[], Fact::Left(vcpu)).map_err(broken)?;
            for pcpu in &mut self.pcpus.all {
                pcpu.running = pcpu.running.filter(|&(running, _)| running != vcpu);
            }
        }
        Ok(left)
    }

    /// Returns the largest slice that one more vCPU with this period could reserve, if its affinity
    /// is `allowed`. `None` if the policy has no reservations or admits any slice.
    pub(super) fn room(
        &mut self,
        period: Span,
        allowed: CpuSet,
    ) -> Result<Option<Span>, LiveHostError> {
        self.step(self.now, &[], Fact::Passed).map_err(broken)?;
        Ok(self.host.room(period, allowed))
    }

    /// Returns the sum of all reservations on a CPU, without dispatch overhead. `None` if the
    /// policy does not reserve slices on single CPUs.
    pub(super) fn reserved(&self, cpu: CpuId) -> Option<CpuShare> {
        self.host.reserved(cpu)
    }

    /// Sets the offset from the time of the run to the wall clock, to which phases of periods
    /// refer. The offset takes effect immediately.
    pub(super) fn wall_clock_set(&mut self, ahead: Span) -> Result<(), LiveHostError> {
        self.step(self.now, &[], Fact::ClockSet(ahead)).map_err(broken)
    }

    /// Ends the run now.
    pub(super) fn end(&mut self) -> Result<(), LiveHostError> {
        self.is_over = true;
        let all: Vec<VcpuId> = self.vcpus.iter().flatten().map(|known| known.vcpu).collect();
        all.into_iter().for_each(|vcpu| self.note_let_go(vcpu));
        self.step(self.now, &[], Fact::Ended).map_err(broken)
    }

    /// Handles the expired time limits and timers of a CPU. Must be called after the CPU's events
    /// have been read. `woken` is the time when the CPU's dispatcher woke.
    pub(super) fn expire_timers(&mut self, cpu: CpuId, woken: Time) -> Result<(), LiveHostError> {
        let now = self.now;
        self.pcpus.all[cpu.index()].is_called = false;
        if let Some(late) = self.pcpus.all[cpu.index()].clock.woke(woken) {
            self.records.record(&Record::RangLate { at: woken, cpu, late });
        }
        if !self.learn(cpu, woken) {
            self.ask_chosen(cpu)?;
        }
        self.pay(cpu);
        self.try_again(cpu)?;
        // Handling a limit or timer may set the next one, so this repeats until none has expired.
        // If the timeslice ended before the timer expired, both are reported before the policy
        // decides.
        loop {
            let pcpu = &self.pcpus.all[cpu.index()];
            let limit = pcpu.turn.and_then(|(_, until, _)| until).unwrap_or(Time::NEVER);
            let alarm = pcpu.alarm.unwrap_or(Time::NEVER);
            if limit <= now && limit <= alarm {
                self.step(now, &[], Fact::LimitReached(cpu)).map_err(broken)?;
            }
            if alarm <= now {
                self.step(now, &[], Fact::AlarmRang(cpu)).map_err(broken)?;
            }
            self.choose()?;
            if limit.min(alarm) > now {
                return Ok(());
            }
        }
    }

    /// Adjusts the CPU's timer. Returns true if the chosen vCPU has run since the last pass, or if
    /// no vCPU was chosen.
    fn learn(&mut self, cpu: CpuId, woken: Time) -> bool {
        let pcpu = &mut self.pcpus.all[cpu.index()];
        let has_run = std::mem::take(&mut pcpu.has_run) || self.is_polled || pcpu.turn.is_none();
        pcpu.clock.learn(woken, has_run, pcpu.left);
        has_run
    }

    /// Updates the CPU time that a CPU owes to ordinary threads. If a vCPU must begin or stop
    /// running as an ordinary thread to pay this debt, the CPU gets new orders.
    fn pay(&mut self, cpu: CpuId) {
        let pcpu = &mut self.pcpus.all[cpu.index()];
        pcpu.fair_server.pass(self.now, pcpu.clock.cost());
        // When the debt is paid, the chosen vCPU becomes real-time again.
        let is_to_be_paid =
            pcpu.fair_server.is_to_be_paid(pcpu.is_paying, pcpu.is_awaited || !pcpu.is_paying);
        pcpu.is_stale |= pcpu.is_paying != is_to_be_paid;
    }

    /// Allows vCPUs of a CPU to be chosen again if the kernel refused an order for them some time
    /// ago (see `refusals`).
    fn try_again(&mut self, cpu: CpuId) -> Result<(), LiveHostError> {
        while let Some(place) =
            self.pcpus.refused.iter().position(|&(_, home, again)| home == cpu && again <= self.now)
        {
            let (vcpu, ..) = self.pcpus.refused.swap_remove(place);
            self.touched.push(vcpu);
            self.step(self.now, &[], Fact::Allowed(vcpu)).map_err(broken)?;
        }
        Ok(())
    }

    /// Sets the timer of a CPU's dispatcher and returns the time at which it expires. `None` if no
    /// pass is needed.
    pub(super) fn set_clock(&mut self, cpu: CpuId) -> Option<Time> {
        let pcpu = &mut self.pcpus.all[cpu.index()];
        let limit = pcpu.turn.and_then(|(_, until, _)| until);
        let is_due = pcpu.turn.is_some_and(|(.., entitlement)| entitlement != Entitlement::Spare);
        pcpu.left = limit.filter(|_| is_due).map_or(Span::ZERO, |limit| limit.since(self.now));
        // If the chosen vCPU blocks, the next vCPU in line runs, and no event wakes the dispatcher.
        let glance = pcpu.ready.map(|limit| limit.max(GLANCE));
        let glance = if pcpu.is_paying { pcpu.fair_server.owed() } else { glance };
        let glance = glance.map(|span| self.now.after(span));
        pcpu.clock.set(self.now, PassTimes { limit, alarm: pcpu.alarm, glance })
    }

    /// Processes the events of a CPU that were read, up to the time `now` of the run.
    pub(super) fn apply_drained(
        &mut self,
        news: &PassEvents,
        now: Time,
    ) -> Result<(), LiveHostError> {
        if let Some(cpu) = news.cpu.filter(|_| news.is_lossy) {
            // The running thread is unknown until the next event.
            self.pcpus.all[cpu.index()].running = None;
        }
        for &(vcpu, more) in &news.used {
            if let Some(left) = self.get_mut(vcpu).filter(|known| known.is_left) {
                left.used_left += more;
            } else if let Some(unreported) = self.pcpus.unreported.get_mut(vcpu.slot()) {
                *unreported += more;
            }
        }
        self.now = self.now.max(now);
        let ahead = news.cpu.map_or_else(Vec::new, |cpu| self.stretches(cpu, &news.sightings));
        for &(vcpu, length) in &ahead {
            if let Some(ahead) = self.pcpus.ahead.get_mut(vcpu.slot()) {
                *ahead += length;
            }
        }
        news.sightings.iter().try_for_each(|sighting| self.follow(news.cpu, sighting))?;
        for &(vcpu, _) in &ahead {
            if let Some(ahead) = self.pcpus.ahead.get_mut(vcpu.slot()) {
                *ahead = Span::ZERO;
            }
        }
        Ok(())
    }

    /// Computes the run intervals on a CPU from the CPU's events. Returns for each interval the
    /// vCPU that ran and the length.
    fn stretches(&self, cpu: CpuId, sightings: &[Sighting]) -> Vec<(VcpuId, Span)> {
        let pcpu = &self.pcpus.all[cpu.index()];
        let mut running = pcpu.running.map(|(vcpu, since)| (vcpu, since.max(pcpu.reported)));
        let mut stretches = Vec::new();
        for Sighting { at, thread, what, .. } in sightings.iter().filter(|it| it.on == pcpu.real) {
            let at = self.of_run(*at);
            let is_on = running.is_some_and(|(vcpu, _)| vcpu == thread.vcpu);
            match what {
                ThreadEventKind::SwitchedIn if !is_on => running = Some((thread.vcpu, at)),
                ThreadEventKind::SwitchedOut { .. } if is_on => {
                    let ran = running.take().map(|(vcpu, since)| (vcpu, at.since(since)));
                    stretches.extend(ran);
                }
                _ => {}
            }
        }
        stretches.extend(running.map(|(vcpu, since)| (vcpu, self.now.since(since))));
        stretches
    }

    /// Processes one event of a thread. Reports to the host the CPU time used before the event. If
    /// the vCPU blocks or wakes by the event, reports that change of state to the host too.
    fn follow(&mut self, cpu: Option<CpuId>, sighting: &Sighting) -> Result<(), LiveHostError> {
        let Sighting { at: seen, thread, what, on } = sighting;
        let cpu = cpu.filter(|cpu| self.pcpus.all[cpu.index()].real == *on);
        let vcpu = thread.vcpu;
        let is_new = matches!(what, ThreadEventKind::Forked { .. });
        if *seen < thread.joined || !(is_new || self.knows(thread)) {
            return Ok(());
        }
        let at = self.of_run(*seen);
        let was_awake = self.host.moment().is_awake(vcpu);
        if let ThreadEventKind::Forked { .. } = what {
            self.meet(thread, *seen);
        }
        if self.get(vcpu).is_some_and(|known| known.is_left) {
            self.note(thread, (*what, *on), *seen);
            return Ok(());
        }
        let mut used = None;
        self.note_running_after_stop(vcpu, *what, at);
        self.note_place(thread, *what, cpu);
        if let Some(cpu) = cpu {
            let running = self.pcpus.all[cpu.index()].running;
            let is_on = running.is_some_and(|(running, _)| running == vcpu);
            match what {
                ThreadEventKind::SwitchedIn if !is_on => {
                    self.pcpus.all[cpu.index()].running = Some((vcpu, at));
                }
                ThreadEventKind::SwitchedOut { .. } if is_on => {
                    used = self.pcpus.cut(cpu, at);
                    self.pcpus.all[cpu.index()].running = None;
                }
                _ => {}
            }
        }
        self.note(thread, (*what, *on), *seen);
        let fact = match (was_awake, self.is_any_awake(vcpu)) {
            (true, false) => {
                // A stopped vCPU whose last thread has ended must not stay stopped.
                self.touched.extend(self.get(vcpu).filter(|it| it.is_stopped()).map(|it| it.vcpu));
                Fact::Blocked(vcpu)
            }
            (false, true) => {
                self.touched.push(vcpu);
                Fact::Woke(vcpu)
            }
            _ if used.is_none() => return Ok(()),
            _ => Fact::Passed,
        };
        self.step(at, used.as_slice(), fact).map_err(broken)
    }

    /// Returns true if the thread belongs to a vCPU that is present. Returns false if the thread
    /// belongs to an earlier vCPU with the same id, or has been removed.
    pub(super) fn knows(&self, thread: &Arc<WatchedThread>) -> bool {
        let vcpu = self.vcpus.get(thread.vcpu.slot()).and_then(Option::as_ref);
        let known = vcpu.and_then(|vcpu| vcpu.threads.get(&thread.tid));
        known.is_some_and(|known| Arc::ptr_eq(&known.thread, thread))
    }

    /// Updates the state of a thread, or removes the thread if it has ended. A thread that
    /// Slackline has stopped is reported as blocked by the kernel; such reports are ignored. Events
    /// on different CPUs, such as a block and a wake-up, may be read in the wrong order. In that
    /// case the event with the later time determines the state.
    fn note(&mut self, thread: &WatchedThread, (what, on): (ThreadEventKind, CpuId), since: Time) {
        let Some(vcpu) = &mut self.vcpus[thread.vcpu.slot()] else { return };
        let is_awake = what != ThreadEventKind::SwitchedOut { ready: false };
        if let Some(known) = vcpu.threads.get_mut(&thread.tid) {
            known.count(what, on, since);
        }
        if !is_awake && thread.is_of_tree && thread.is_ending() {
            vcpu.forget_thread(thread.tid);
            return;
        }
        let (is_stopped, least) = (vcpu.is_stopped(), vcpu.least_received());
        let Some(known) = vcpu.threads.get_mut(&thread.tid) else { return };
        if !is_stopped && since >= known.since {
            if is_awake && !known.is_awake {
                known.received = known.received.max(least);
                known.has_run = false;
            }
            known.has_run |= what == ThreadEventKind::SwitchedIn;
            known.is_awake = is_awake;
            known.since = since;
        }
    }

    /// Returns the threads of a vCPU.
    pub(super) fn threads_of(&self, vcpu: VcpuId) -> Vec<Arc<WatchedThread>> {
        let threads = self.get(vcpu).into_iter().flat_map(|known| known.threads.values());
        threads.map(|known| Arc::clone(&known.thread)).collect()
    }

    pub(super) fn is_any_awake(&self, vcpu: VcpuId) -> bool {
        let vcpu = self.vcpus[vcpu.slot()].as_ref();
        let may_run = |vcpu: &Vcpu| !vcpu.is_paused && !vcpu.is_left;
        vcpu.is_some_and(|vcpu| may_run(vcpu) && vcpu.threads.values().any(|it| it.is_awake))
    }

    /// Reports one event to the host. If a vCPU blocks or yields, its CPU is rescheduled
    /// immediately. Other CPUs are rescheduled in [`settle`](Decider::settle).
    pub(super) fn step(
        &mut self,
        at: Time,
        used: &[CpuUse],
        fact: Fact<'_>,
    ) -> Result<(), Box<Fault>> {
        self.told = self.told.max(at);
        let now = self.told;
        self.host.step(Report { now, used, fact }, &mut self.pcpus, &mut self.records)
    }

    /// Reports to the host that all events of a pass or request are known, so that the host
    /// decides. Each CPU that the events concern is rescheduled only once, even if there were many
    /// events.
    pub(super) fn choose(&mut self) -> Result<(), LiveHostError> {
        if self.is_over || self.host.is_settled() {
            return Ok(());
        }
        self.step(self.told, &[], Fact::Settled).map_err(broken)
    }
}

#[allow(clippy::boxed_local)] // The host returns it boxed.
pub(super) fn broken(fault: Box<Fault>) -> LiveHostError {
    match *fault {
        Fault::Broken(broken) => LiveHostError::Broken(broken),
        Fault::Declined { .. } => unreachable!("only joins and changes can be declined"),
    }
}
