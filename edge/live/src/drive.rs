//! Runs a scenario on this machine: sets up, lets a dispatcher a CPU do the work, and gives
//! everything back.
//!
//! A dispatcher is a thread at the highest real-time priority on each managed CPU. It sleeps until
//! its CPU needs it, looks, and sleeps again. The manager, this thread, sits right below: it
//! carries out what the scenario says at given times, notices who ended, and takes the records
//! away.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use slackline_host::policy::{AdmitError, Values};
use slackline_scenario::{Domain, Scenario, ScenarioError};
use slackline_trace::{Entry, Knowledge, Named, Record, Sink};
use slackline_units::{CpuId, Span, Time, VcpuId};
use thiserror::Error;

use crate::cast::{Cast, CastError, LoadCommand};
use crate::dispatcher::{Dispatcher, become_real_time, poke, stop_dispatchers, wait_for};
use crate::fence::{Fence, FenceError, GiveBackError, KeeperCommand};
use crate::machine::{EventSource, Joining, LiveHost, MachineError, NotDone};
use crate::outside::{Losses, Outside};
use crate::sys::{Scheduling, SchedulingOf, lock_memory, monotonic, own_tid, set_scheduling};
use crate::vcpu_threads::VcpuThreads;
use crate::watch::perf::PerfWatch;
use crate::way::FifoPriority;

/// What a live run needs besides its scenario.
pub struct Options<'a> {
    /// The CPUs of this machine that are scheduled, as many as the scenario has.
    pub cpus: Vec<CpuId>,
    /// How to start the keeper.
    pub keeper: KeeperCommand,
    /// How to start a load process.
    pub load: LoadCommand<'a>,
    /// Readable when the run is to stop early.
    pub stop: Option<BorrowedFd<'a>>,
    /// Called a few times a second with the time of the run.
    pub progress: &'a mut dyn FnMut(Time),
}

/// What a live run has to tell besides its trace.
#[derive(Debug, Default)]
pub struct Finished {
    /// When it was stopped, if it was before its end.
    pub stopped: Option<Time>,
    /// Changes and late joins that could not be admitted: when, of whom, and why.
    pub declined: Vec<(Time, VcpuId, AdmitError)>,
    /// Who ended by itself before the end: when, its name, and how.
    pub ended: Vec<(Time, String, String)>,
    /// Requests of clients that were given up.
    pub lost: Vec<Losses>,
    /// How often the keeper had died and was replaced.
    pub keepers_lost: u32,
}

/// Why a scenario does not run here.
#[derive(Debug, Error)]
pub enum LiveError {
    /// Real-time scheduling is refused.
    #[error("cannot schedule in real time here: {source}")]
    NoRealTime {
        /// What the kernel said.
        source: io::Error,
    },
    /// Memory cannot be locked.
    #[error("cannot lock memory: {source}")]
    NoLockedMemory {
        /// What the kernel said.
        source: io::Error,
    },
    /// A descriptor that the dispatchers need cannot be made.
    #[error("cannot set up the dispatchers: {source}")]
    NoDispatcher {
        /// What the kernel said.
        source: io::Error,
    },
    /// The fence cannot be set up.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// A domain cannot be scheduled.
    #[error("`{domain}`: {source}")]
    Cast {
        /// What people call it.
        domain: String,
        /// Where it stands in the scenario.
        line: usize,
        /// Why.
        source: CastError,
    },
    /// The set cannot be admitted.
    #[error("cannot admit `{domain}`: {error}")]
    Declined {
        /// What people call it.
        domain: String,
        /// Where it stands in the scenario.
        line: usize,
        /// Why.
        error: AdmitError,
    },
    /// A share that is needed is missing.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The scenario says something that only the simulated host can do.
    #[error("{what} can only be simulated")]
    OnlySimulated {
        /// What.
        what: &'static str,
        /// Where it stands in the scenario.
        line: usize,
    },
    /// The run broke off.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A dispatcher panicked: a bug.
    #[error("the dispatcher of {cpu} panicked")]
    Panicked {
        /// Of which CPU.
        cpu: CpuId,
    },
    /// Something could not be given back.
    #[error("cannot give everything back: {}", listed(errors))]
    NotGivenBack {
        /// What.
        errors: Vec<GiveBackError>,
    },
}

impl LiveError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            LiveError::NoRealTime { .. } if rustix::process::geteuid().is_root() => Some(
                "this cgroup or container may have no real-time time; `slackline doctor` tells"
                    .into(),
            ),
            LiveError::NoRealTime { .. } | LiveError::NoLockedMemory { .. } => {
                Some("run as root; `slackline doctor` says what this machine allows".into())
            }
            LiveError::Cast { source, .. } => source.hint(),
            LiveError::OnlySimulated { .. } => Some("`slackline sim` does it".into()),
            LiveError::NotGivenBack { .. } => Some("`slackline doctor --free` tries again".into()),
            LiveError::Machine(error) if error.is_bug() => None,
            LiveError::Fence(_) | LiveError::NoDispatcher { .. } | LiveError::Machine(_) => {
                Some("`slackline doctor` says what this machine allows".into())
            }
            LiveError::Declined { .. } | LiveError::Scenario(_) | LiveError::Panicked { .. } => {
                None
            }
        }
    }
}

fn listed(errors: &[GiveBackError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// About what a switch there and back takes: the kernel counts it to one side of a switch and may
/// stamp it to the other.
const RESOLUTION: Span = Span::from_us(5);

/// What can be known of the threads of this machine.
#[must_use]
pub fn knowledge() -> Knowledge {
    let sees = PerfWatch::open().is_ok_and(|watch| watch.knows_wakes());
    Knowledge { sleep: sees, stretches: sees, resolution: RESOLUTION }
}

/// How long before the run begins its load processes are started.
const LEAD: Span = Span::from_ms(200);
const LEAD_EACH: Span = Span::from_ms(10);

/// How long the manager sleeps at most: records are taken away and processes looked after.
const ROUND: Span = Span::from_ms(100);

/// Runs the scenario here.
///
/// # Errors
/// When it cannot be set up, or breaks off. Everything is given back in any case.
pub fn run<S: Sink>(
    scenario: &Scenario,
    mut options: Options<'_>,
    sink: &mut S,
) -> Result<Finished, LiveError> {
    check_abilities(scenario)?;
    try_real_time()?;
    let mut run = Run::set_up(scenario, &options)?;
    let result = run.go(scenario, &mut options, sink);
    let given_back = run.take_down();
    let outcome = result?;
    given_back.map(|()| outcome)
}

/// Spare time is handed out by ordinary scheduling, which knows nothing of single CPUs and pauses.
fn check_abilities(scenario: &Scenario) -> Result<(), LiveError> {
    let only_simulated = |what, line| Err(LiveError::OnlySimulated { what, line });
    let is_wide = |domain: &&Domain| domain.system.is_some() && domain.vcpus.len() > 1;
    if let Some(domain) = scenario.domains.iter().find(|it| it.live.is_none() && is_wide(it)) {
        return only_simulated("a domain with devices and several vCPUs", domain.line);
    }
    for client in scenario.io.iter().flat_map(|io| &io.clients) {
        let domain = &scenario.domains[client.to];
        if domain.live.is_some() {
            return only_simulated("a client of a domain with a `live` of its own", domain.line);
        }
    }
    if let Some(domain) = scenario.domains.iter().find(|domain| domain.is_confined()) {
        return only_simulated("`cpus` of a domain", domain.line);
    }
    for change in &scenario.changes {
        if change.cpus.is_some() {
            return only_simulated("`cpus` of a change", change.line);
        }
        if change.hold.is_some() {
            return only_simulated("`paused`", change.line);
        }
    }
    Ok(())
}

/// Finds out whether this thread may be real-time, before anything is touched.
fn try_real_time() -> Result<(), LiveError> {
    let before = crate::sys::get_scheduling(own_tid());
    let before = before.map_err(|source| LiveError::NoRealTime { source })?;
    become_real_time(FifoPriority::KEEPER)?;
    set_scheduling(own_tid(), &before).map_err(|source| LiveError::NoRealTime { source })
}

/// Something that the scenario says happens at a given time.
#[derive(Clone, Debug)]
enum Action {
    Join(usize),
    Change(VcpuId, Values),
    Leave(usize),
}

/// Everything that must be taken down again.
struct Run {
    machine: Arc<LiveHost>,
    // The fence comes before the cast: threads are given back before their processes are ended.
    fence: Fence,
    cast: Cast,
    outside: Outside,
    /// By time, last first.
    actions: Vec<(Time, Action)>,
    origin: Time,
    watch_fds: Vec<(CpuId, OwnedFd)>,
    outcome: Finished,
    spare_records: Vec<Entry>,
}

impl Run {
    fn set_up(scenario: &Scenario, options: &Options<'_>) -> Result<Run, LiveError> {
        let mut actions = actions(scenario);
        actions.sort_by_key(|&(at, _)| at);
        actions.reverse();
        let fence = Fence::start(options.keeper.clone())?;
        let mut cast = Cast::default();
        let count = scenario.domains.iter().map(|domain| domain.vcpus.len() as u64).sum::<u64>();
        let clients = scenario.io.as_ref().map_or(0, |io| io.clients.len() as u64);
        let origin = monotonic() + LEAD + LEAD_EACH * (count + clients);
        let mut outside = Outside::new(&options.cpus);
        let about = |domain: &Domain| {
            let (name, line) = (domain.name.clone(), domain.line);
            move |source| LiveError::Cast { domain: name, line, source }
        };
        let files = outside.start_files(scenario, options.load);
        let files = files.map_err(about(&scenario.domains[0]))?;
        let mut ports = Vec::new();
        for domain in &scenario.domains {
            let start = origin + (domain.joins - Time::START);
            let started = cast.start((scenario, domain), files, start, options.load);
            ports.push(started.map_err(about(domain))?);
        }
        let started = outside.start_clients(scenario, &ports, origin, options.load);
        started.map_err(about(&scenario.domains[0]))?;
        let (source, watch_fds) = open_source()?;
        let policy = &scenario.policy;
        let machine = LiveHost::new(policy.spec, &policy.values, &options.cpus, source);
        let machine = Arc::new(machine);
        let (outcome, spare_records) = (Finished::default(), Vec::new());
        Ok(Run {
            machine,
            fence,
            cast,
            outside,
            actions,
            origin,
            watch_fds,
            outcome,
            spare_records,
        })
    }

    fn go<S: Sink>(
        &mut self,
        scenario: &Scenario,
        options: &mut Options<'_>,
        sink: &mut S,
    ) -> Result<Finished, LiveError> {
        lock_memory().map_err(|source| LiveError::NoLockedMemory { source })?;
        become_real_time(FifoPriority::KEEPER)?;
        // The threads are held before the clock starts; nothing is done to them until it does.
        let mut subjects = Vec::new();
        let first = self.actions.iter().rev().take_while(|(at, _)| *at == Time::START).cloned();
        for (_, action) in first.collect::<Vec<_>>() {
            if let Action::Join(index) = action {
                subjects.extend(self.hold(scenario, index)?);
                self.actions.pop();
            }
        }
        self.wait_for_origin();
        self.machine.begin(self.origin);
        // Before anybody else is made real-time: whoever comes later might never get to run.
        let dispatchers = self.start_dispatchers(options)?;
        let joined = self.join(scenario, subjects);
        poke(&dispatchers);
        let result = joined.and_then(|()| self.manage(scenario, options, sink, &dispatchers));
        let ended = match &result {
            Ok(()) => self.machine.end().map_err(LiveError::from),
            Err(_) => {
                self.machine.abandon();
                Ok(())
            }
        };
        let stopped = stop_dispatchers(dispatchers, &self.machine);
        self.pump(sink);
        // The first thing that went wrong is what is told.
        result.and(stopped).and(ended)?;
        self.outcome.lost = self.outside.losses();
        Ok(std::mem::take(&mut self.outcome))
    }

    fn hold(&mut self, scenario: &Scenario, index: usize) -> Result<Vec<VcpuThreads>, LiveError> {
        let domain = &scenario.domains[index];
        let spec = scenario.policy.spec;
        let mut exact = Vec::new();
        for &vcpu in &domain.vcpus {
            let promise = (spec.promise)(&domain.share(vcpu, spec)?).ok().flatten();
            exact.extend(promise.filter(|promise| promise.exact).map(|_| vcpu));
        }
        let subjects = self.cast.hold(domain, &exact, &mut self.fence);
        let subjects = subjects.map_err(|source| cast_error(domain, source))?;
        let machine = &self.machine;
        for subject in &subjects {
            for member in &subject.members {
                machine.watch(member.held.thread().tid(), subject.exact)?;
            }
        }
        Ok(subjects)
    }

    /// All of them at one instant, so that periods that begin together are looked after together.
    fn join(&mut self, scenario: &Scenario, subjects: Vec<VcpuThreads>) -> Result<(), LiveError> {
        let home = |vcpu: VcpuId| {
            let mut domains = scenario.domains.iter();
            domains.find(|domain| domain.vcpus.contains(&vcpu)).expect("somebody of the scenario")
        };
        let mut joining = Vec::new();
        for subject in subjects {
            let (vcpu, domain) = (subject.vcpu, home(subject.vcpu));
            let (name, at) = (domain.vcpu_name(vcpu), self.machine.now());
            self.machine.named(&Named { at, vcpu, name, domain: domain.name.clone() });
            let share = domain.share(vcpu, scenario.policy.spec)?;
            joining.push(Joining { threads: subject, share, cpus: None });
        }
        let results = self.machine.join(vec![joining])?;
        results.into_iter().collect::<Result<(), _>>().map_err(|(vcpu, error)| match error {
            NotDone::Machine(error) => LiveError::Machine(error),
            NotDone::Refused(error) => LiveError::Machine(error.into()),
            NotDone::Declined(error) => {
                let Domain { name, line, .. } = home(vcpu);
                LiveError::Declined { domain: name.clone(), line: *line, error }
            }
        })
    }

    fn wait_for_origin(&self) {
        loop {
            let left = self.origin.since(monotonic());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_nanos(left.ns()));
        }
    }

    fn start_dispatchers(&self, options: &Options<'_>) -> Result<Vec<Dispatcher>, LiveError> {
        let start = |(index, &real): (usize, &CpuId)| {
            let watched = self.watch_fds.iter().find(|(cpu, _)| *cpu == real);
            let watched = watched.map(|(_, fd)| fd.try_clone()).transpose();
            let watched = watched.map_err(|source| LiveError::NoDispatcher { source })?;
            Dispatcher::start(CpuId::new(index), real, Arc::clone(&self.machine), watched)
        };
        let mut dispatchers = Vec::new();
        for cpu in options.cpus.iter().enumerate() {
            match start(cpu) {
                Ok(dispatcher) => dispatchers.push(dispatcher),
                Err(error) => {
                    self.machine.abandon();
                    let _ = stop_dispatchers(dispatchers, &self.machine);
                    return Err(error);
                }
            }
        }
        Ok(dispatchers)
    }

    /// Until the end of the run: what the scenario says, who ended, records, the keeper.
    fn manage<S: Sink>(
        &mut self,
        scenario: &Scenario,
        options: &mut Options<'_>,
        sink: &mut S,
        dispatchers: &[Dispatcher],
    ) -> Result<(), LiveError> {
        let end = Time::START + scenario.length;
        loop {
            let now = self.machine.now();
            if now >= end || self.machine.is_over() {
                return Ok(());
            }
            while self.actions.last().is_some_and(|&(at, _)| at <= now) {
                let (at, action) = self.actions.pop().expect("an action is due");
                self.act(scenario, at, action)?;
                poke(dispatchers);
            }
            self.look_after_processes(dispatchers)?;
            self.pump(sink);
            (options.progress)(now);
            let next = self.actions.last().map_or(end, |&(at, _)| at).min(end);
            let wait = next.since(self.machine.now()).min(ROUND);
            let mut fds = vec![PollFd::from_borrowed_fd(self.fence.keeper_fd(), PollFlags::IN)];
            fds.extend(options.stop.map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
            wait_for(&mut fds, wait);
            let keeper_died = !fds[0].revents().is_empty();
            let stopped = fds.get(1).is_some_and(|stop| !stop.revents().is_empty());
            if keeper_died {
                self.fence.revive()?;
                self.outcome.keepers_lost += 1;
            }
            if stopped {
                self.outcome.stopped = Some(self.machine.now());
                return Ok(());
            }
        }
    }

    fn act(&mut self, scenario: &Scenario, at: Time, action: Action) -> Result<(), LiveError> {
        match action {
            Action::Join(index) => {
                let held = self.hold(scenario, index)?;
                match self.join(scenario, held) {
                    Err(LiveError::Declined { error, .. }) => {
                        let domain = &scenario.domains[index];
                        self.decline(at, domain.vcpus[0], error);
                        self.release(&domain.vcpus)?;
                        self.cast.end(&domain.vcpus);
                    }
                    result => result?,
                }
            }
            Action::Change(vcpu, share) => match self.machine.change(vcpu, (&share).into(), at) {
                Err(NotDone::Declined(error)) => {
                    self.outcome.declined.push((at, vcpu, error));
                }
                Err(NotDone::Refused(error)) => return Err(MachineError::Act(error).into()),
                Err(NotDone::Machine(error)) => return Err(error.into()),
                Ok(()) => {}
            },
            Action::Leave(index) => {
                let vcpus = &scenario.domains[index].vcpus;
                self.release(vcpus)?;
                self.cast.end(vcpus);
            }
        }
        Ok(())
    }

    fn decline(&mut self, at: Time, vcpu: VcpuId, error: AdmitError) {
        self.machine.record(&Record::Declined { at, vcpu });
        self.outcome.declined.push((at, vcpu, error));
    }

    /// Takes vCPUs out and gives their threads back.
    fn release(&mut self, vcpus: &[VcpuId]) -> Result<(), LiveError> {
        for &vcpu in vcpus {
            self.machine.leave(vcpu)?;
            for tid in self.cast.threads_of(vcpu) {
                self.machine.unwatch(tid);
                let given_back = self.fence.release(tid);
                given_back.map_err(|error| LiveError::NotGivenBack { errors: vec![error] })?;
            }
        }
        Ok(())
    }

    /// Takes those out whose processes or threads have ended.
    fn look_after_processes(&mut self, dispatchers: &[Dispatcher]) -> Result<(), LiveError> {
        let (now, gone) = {
            let machine = &self.machine;
            (machine.now(), machine.take_gone())
        };
        let ended = self.cast.ended(&gone);
        for ended in &ended {
            self.release(&ended.vcpus)?;
            self.cast.end(&ended.vcpus);
            self.outcome.ended.push((now, ended.name.clone(), ended.how.clone()));
        }
        if !ended.is_empty() {
            poke(dispatchers);
        }
        let outside = self.outside.ended().into_iter().map(|(name, how)| (now, name, how));
        self.outcome.ended.extend(outside);
        Ok(())
    }

    /// Hands the records on that have come.
    fn pump<S: Sink>(&mut self, sink: &mut S) {
        let mut records = std::mem::take(&mut self.spare_records);
        self.machine.take_records(&mut records);
        // What a dispatcher says on leaving comes after the end, and yet belongs before it.
        let is_end = |entry: &Entry| matches!(entry, Entry::Record(Record::Ended { .. }));
        let end = records.iter().position(is_end);
        let end = end.map(|place| records.remove(place));
        let mut told = Vec::new();
        self.cast.take_jobs(self.origin, &mut told);
        self.outside.take_records(self.origin, &mut told);
        if let Some(Entry::Record(Record::Ended { at })) = end {
            // Load processes go on until they are ended; what they do then is not of the run.
            told.retain(|record| record.when().1 <= at);
        }
        records.extend(told.into_iter().map(Entry::Record));
        records.extend(end);
        records.iter().for_each(|entry| entry.pass_to(sink));
        self.spare_records = records;
    }

    fn take_down(mut self) -> Result<(), LiveError> {
        let given_back = self.fence.release_all();
        self.cast.end_everything();
        let ordinary = Scheduling::Other { nice: 0 };
        let ordinary = SchedulingOf { class: ordinary, reset_on_fork: false };
        // We may become less urgent at any time; and if not, we end soon.
        let _ = set_scheduling(own_tid(), &ordinary);
        given_back.map_err(|errors| LiveError::NotGivenBack { errors })
    }
}

fn cast_error(domain: &Domain, source: CastError) -> LiveError {
    LiveError::Cast { domain: domain.name.clone(), line: domain.line, source }
}

fn actions(scenario: &Scenario) -> Vec<(Time, Action)> {
    let mut actions = Vec::new();
    for (index, domain) in scenario.domains.iter().enumerate() {
        actions.push((domain.joins, Action::Join(index)));
        actions.extend(domain.leaves.map(|at| (at, Action::Leave(index))));
    }
    for change in &scenario.changes {
        let Some(share) = change.share(scenario.policy.spec) else { continue };
        for &vcpu in scenario.vcpus_of(change) {
            actions.push((change.at, Action::Change(vcpu, share.clone())));
        }
    }
    actions
}

fn open_source() -> Result<(EventSource, Vec<(CpuId, OwnedFd)>), LiveError> {
    match PerfWatch::open() {
        Ok(watch) if watch.knows_wakes() => {
            let own = |(cpu, fd): (CpuId, BorrowedFd<'_>)| Ok((cpu, fd.try_clone_to_owned()?));
            let fds = watch.wake_fds().map(own).collect::<io::Result<_>>();
            let fds = fds.map_err(|source| LiveError::NoDispatcher { source })?;
            Ok((EventSource::Perf(Box::new(watch)), fds))
        }
        _ => Ok((EventSource::Polled, Vec::new())),
    }
}
