//! Live runs of scenarios. A run starts or finds the processes of the scenario. It requests the
//! scenario's changes from a session, each at its time.

mod timed_actions;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::Path;

use slackline_host::policy::AdmitError;
use slackline_load::Ports;
use slackline_scenario::{Action, ActionKind, Domain, Scenario, ScenarioError, actions};
use slackline_trace::{Entry, Record, Sink};
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};
use thiserror::Error;

use crate::host_threads::{HostThreads, end_host_threads};
use crate::load_order::LoadCommand;
use crate::outside::{ExternalProcesses, LostRequests};
use crate::processes::{ManagedProcesses, ProcessError};
use crate::told::{hand_on, take_told};
use slackline_fence::KeeperCommand;
use slackline_linux::sys::monotonic;
use slackline_live::Punctual;
use slackline_live::agents::{AgentError, AgentStatistics};
use slackline_live::mechanism::DeadlineThread;
use slackline_live::relay::{RelayError, RelayStatistics};
use slackline_live::session::{
    self, DeadlineConflict, HearError, JoinId, PreparedGroup, Request, RequestError, RequestedId,
    Session, SessionError,
};

/// Parameters of a live run, without the scenario itself.
pub struct Options<'a> {
    /// CPUs of this host to be scheduled: as many as the scenario has.
    pub cpus: Vec<CpuId>,
    /// Command that starts the keeper, which restores all threads if this process dies.
    pub keeper: KeeperCommand,
    /// CPU time of a dispatcher pass, which admission adds to each reservation.
    pub dispatch: Span,
    /// Function that makes the command of a load process.
    pub load: LoadCommand<'a>,
    /// Descriptor that becomes readable when the run should stop early. `None` if nothing stops the
    /// run early.
    pub stop: Option<BorrowedFd<'a>>,
    /// Function that is called about ten times per second with the time of the run.
    pub progress: &'a mut dyn FnMut(Time),
}

/// Results of a live run apart from its trace.
#[derive(Debug, Default)]
pub struct PlayResults {
    /// Time at which the run was stopped early. `None` if the run reached its end.
    pub stopped: Option<Time>,
    /// Changes and joins during the run that were not admitted: time, vCPU and reason.
    pub declined: Vec<(Time, VcpuId, String)>,
    /// Processes that ended before the end of the run: time, name, and exit code or signal in
    /// words.
    pub ended: Vec<(Time, String, String)>,
    /// Counts of each client that gave up requests.
    pub lost: Vec<LostRequests>,
    /// Statistics of the connections to agents in guests.
    pub heard: Vec<AgentStatistics>,
    /// Statistics of the relays, which forward data to guests.
    pub relayed: Vec<RelayStatistics>,
    /// Number of times that the keeper died and was replaced.
    pub keepers_lost: u32,
    /// vCPUs that became contested, because another program keeps control of their threads: time,
    /// vCPU and a description of the change.
    pub contested: Vec<(Time, VcpuId, String)>,
    /// Number of changes by other programs that the session has undone.
    pub undone: usize,
}

/// Reason why a scenario cannot be run on this host.
#[derive(Debug, Error)]
pub enum LiveError {
    /// The host does not allow the run, or the run failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The threads of a domain cannot be found or started.
    #[error("`{domain}`: {source}")]
    Process {
        /// Name of the domain, as users see it.
        domain: String,
        /// Line of the domain in the scenario, counted from 1.
        line: usize,
        /// Error that states the reason.
        source: ProcessError,
    },
    /// A domain's vCPUs cannot be scheduled with the scenario's parameters.
    #[error("`{domain}`: {source}")]
    Request {
        /// Name of the domain, as users see it.
        domain: String,
        /// Line of the domain in the scenario, counted from 1.
        line: usize,
        /// Error that states the reason.
        source: RequestError,
    },
    /// Not all domains can be admitted, since their reservations exceed the capacity.
    #[error("cannot admit `{domain}`: {error}")]
    Declined {
        /// Name of the domain, as users see it.
        domain: String,
        /// Line of the domain in the scenario, counted from 1.
        line: usize,
        /// Error that states the reason.
        error: AdmitError,
    },
    /// Deadline threads of other programs could make the domains miss deadlines.
    #[error(transparent)]
    DeadlineThreads(#[from] DeadlineConflict),
    /// The connection to the agent of a domain cannot be opened.
    #[error("`{domain}`: {source}")]
    Agent {
        /// Name of the domain, as users see it.
        domain: String,
        /// Line of the domain in the scenario, counted from 1.
        line: usize,
        /// Error that states the reason.
        source: AgentError,
    },
    /// The relay to the guest of a domain cannot be opened.
    #[error("`{domain}`: {source}")]
    Relay {
        /// Name of the domain, as users see it.
        domain: String,
        /// Line of the domain in the scenario, counted from 1.
        line: usize,
        /// Error that states the reason.
        source: RelayError,
    },
    /// A vCPU has no share, although the policy needs a share.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The scenario contains something that only the simulated host can do.
    #[error("cannot run live: {what} can only be simulated")]
    OnlySimulated {
        /// Description of the part that only the simulated host can do.
        what: &'static str,
        /// Line in the scenario, counted from 1.
        line: usize,
    },
}

impl LiveError {
    /// Returns one line of advice on how to correct the error.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            LiveError::Session(error) => error.hint(),
            LiveError::Process { source, .. } => source.hint(),
            LiveError::Request { source, .. } => source.hint(),
            LiveError::DeadlineThreads(_) => Some(DeadlineConflict::HINT.into()),
            LiveError::OnlySimulated { .. } => Some("use `slackline sim`".into()),
            LiveError::Agent { .. } | LiveError::Relay { .. } => {
                Some("use a socket path of at most 107 bytes".into())
            }
            LiveError::Declined { .. } | LiveError::Scenario(_) => None,
        }
    }

    /// Returns true if the error is a bug of Slackline and not a property of the host.
    #[must_use]
    pub const fn is_bug(&self) -> bool {
        match self {
            LiveError::Session(error) => error.is_bug(),
            LiveError::Request { source: RequestError::Host(error), .. } => error.is_bug(),
            _ => false,
        }
    }
}

/// Time from the start of the load processes to the start of the run. For each load process,
/// [`LEAD_EACH`] is added.
const LEAD: Span = Span::from_ms(200);
const LEAD_EACH: Span = Span::from_ms(10);

/// Maximum time between two rounds. Each round collects records and checks processes.
const ROUND: Span = Span::from_ms(100);

/// Runs the scenario on this host.
///
/// # Errors
/// If the run cannot be set up, or fails. After an error all threads are restored.
pub fn run<S: Sink>(
    scenario: &Scenario,
    mut options: Options<'_>,
    sink: &mut S,
) -> Result<PlayResults, LiveError> {
    check(scenario)?;
    // Tests if this thread may become real-time, before anything is changed.
    drop(Punctual::begin().map_err(|source| SessionError::NoRealTime { source })?);
    let mut play = Play::set_up(scenario, &options)?;
    if sink.wants_exchanges() {
        play.session.keep_exchanges();
        play.host_threads = Some(HostThreads::new(&play.session, &options.cpus, sink));
    }
    let result = play.begin().and_then(|()| play.manage(&mut options, sink));
    play.end(result, sink)
}

/// Checks that a live host supports everything in the scenario.
///
/// # Errors
/// If the scenario needs something that only the simulator supports.
pub fn check(scenario: &Scenario) -> Result<(), LiveError> {
    let only_simulated = |what, line| Err(LiveError::OnlySimulated { what, line });
    if slackline_host::policy::is_simulated_only(scenario.policy.spec) {
        return only_simulated("a policy that models another scheduler", 1);
    }
    let is_wide = |domain: &&Domain| domain.system.is_some() && domain.vcpus.len() > 1;
    if let Some(domain) = scenario.domains.iter().find(|it| it.live.is_none() && is_wide(it)) {
        return only_simulated("a domain with tasks and several vCPUs", domain.line);
    }
    if let Some(domain) = scenario.domains.iter().find(|it| it.live.is_none() && it.program.locks())
    {
        return only_simulated("a domain whose vCPUs share a spin lock", domain.line);
    }
    for client in scenario.io.iter().flat_map(|io| &io.clients) {
        let domain = &scenario.domains[client.to];
        if domain.live.is_some() {
            return only_simulated("a client of a domain with the key `live`", domain.line);
        }
    }
    Ok(())
}

/// A scenario that is being played.
struct Play<'a> {
    scenario: &'a Scenario,
    // The session is dropped before the processes: threads are restored before processes are ended.
    session: Session,
    processes: ManagedProcesses,
    outside: ExternalProcesses,
    /// Remaining actions of the scenario, in reverse order of time.
    actions: Vec<Action>,
    /// Id in the session of each vCPU of the scenario that has joined.
    ids: BTreeMap<VcpuId, JoinId>,
    origin: Time,
    outcome: PlayResults,
    records: Vec<Entry>,
    /// Records of processes that have ended during the run. They are kept until they are passed to
    /// the sink.
    told: Vec<Record>,
    /// Deadline threads of all programs, as they were before the run.
    deadline_threads: Vec<DeadlineThread>,
    /// Recorder of host threads besides the vCPUs. `None` if the trace is not saved.
    host_threads: Option<HostThreads>,
}

impl<'a> Play<'a> {
    fn set_up(scenario: &'a Scenario, options: &Options<'_>) -> Result<Play<'a>, LiveError> {
        let mut actions = actions(scenario);
        actions.reverse();
        let count = scenario.domains.iter().map(|domain| domain.vcpus.len() as u64).sum::<u64>();
        let clients = scenario.io.as_ref().map_or(0, |io| io.clients.len() as u64);
        let origin = monotonic() + LEAD + LEAD_EACH * (count + clients);
        let first = &scenario.domains[0];
        let processes = ManagedProcesses::new(scenario);
        let mut processes = processes.map_err(|error| of_process(first, error))?;
        let mut outside = ExternalProcesses::new(&options.cpus);
        let files = outside.start_files(scenario, options.load);
        let files = files.map_err(|error| of_process(first, error))?;
        let mut ports: Vec<Ports> = Vec::new();
        for domain in &scenario.domains {
            let started = processes.start((scenario, domain), files, origin, options.load);
            ports.push(started.map_err(|error| of_process(domain, error))?);
        }
        let started = outside.start_clients(scenario, &ports, origin, options.load);
        started.map_err(|error| of_process(first, error))?;
        let session = Session::open(&session::Options {
            cpus: options.cpus.clone(),
            policy: scenario.policy.spec,
            values: scenario.policy.values.clone(),
            keeper: options.keeper.clone(),
            owned: None,
            dispatch: Some(options.dispatch),
            origin: Some(origin),
            // Phases do not follow the wall clock, so that periods begin at the same times in every
            // live run and in the simulation.
            wall_clock: None,
        })?;
        let (ids, outcome, records) = (BTreeMap::new(), PlayResults::default(), Vec::new());
        Ok(Play {
            scenario,
            session,
            processes,
            outside,
            actions,
            ids,
            origin,
            outcome,
            records,
            told: Vec::new(),
            deadline_threads: DeadlineThread::all(),
            host_threads: None,
        })
    }

    /// Joins all vCPUs that are present from the start. They join at the same instant.
    fn begin(&mut self) -> Result<(), LiveError> {
        let mut groups = Vec::new();
        while let Some(action) = self.actions.pop_if(|action| action.at == Time::START) {
            match action.what {
                ActionKind::Join if action.vcpu.number() == 0 => {
                    let domain = self.scenario.domain_of(action.vcpu);
                    let prepared = self.prepare_unless_done(domain)?;
                    groups.extend(prepared.map(|prepared| (domain, prepared)));
                }
                ActionKind::Join => {}
                _ => {
                    self.actions.push(action);
                    break;
                }
            }
        }
        let (domains, groups): (Vec<_>, Vec<_>) = groups.into_iter().unzip();
        self.wait_for_origin();
        for (domain, result) in domains.into_iter().zip(self.session.join_prepared(groups)?) {
            let ids = result.map_err(|error| of_request(domain, error.error))?;
            self.ids.extend(domain.vcpus.iter().copied().zip(ids));
            self.hear(domain)?;
            self.let_go_on(domain, Time::START)?;
        }
        self.session.check_deadline_threads(&self.deadline_threads)?;
        Ok(())
    }

    /// Lets the joined vCPUs of a domain leave the CPUs on which the scenario starts them. From
    /// then on the vCPUs may run on all CPUs that the scenario allows.
    fn let_go_on(&mut self, domain: &Domain, at: Time) -> Result<(), LiveError> {
        for &vcpu in &domain.vcpus {
            if let (Some(_), Some(&id)) = (domain.starts_on(vcpu), self.ids.get(&vcpu)) {
                match self.session.move_to(id, self.scenario.cpus(vcpu), at) {
                    Err(RequestError::Over) => {}
                    result => result.map_err(|error| of_request(domain, error))?,
                }
            }
        }
        Ok(())
    }

    /// Connects the agent and the relay of a domain's guest, if the guest has them.
    fn hear(&mut self, domain: &Domain) -> Result<(), LiveError> {
        let ids = domain.vcpus.iter().filter_map(|vcpu| self.ids.get(vcpu).copied());
        let ids: Vec<JoinId> = ids.collect();
        let (name, line) = (domain.name.clone(), domain.line);
        let mut heard = Ok(());
        if let Some(relay) = &domain.relay {
            let ends = (Path::new(&relay.guest), Path::new(&relay.outside));
            heard = self.session.relay(ids[0], &name, ends);
        }
        if let Some(path) = &domain.agent {
            heard = heard.and_then(|()| self.session.hear(&ids, &name, Path::new(path)));
        }
        heard.map_err(|error| match error {
            HearError::Session(error) => error.into(),
            HearError::Nowhere(source) => LiveError::Agent { domain: name, line, source },
            HearError::NoWay(source) => LiveError::Relay { domain: name, line, source },
        })
    }

    /// Finds the threads of a domain and registers them with the keeper, which restores them.
    fn prepare(&mut self, domain: &Domain) -> Result<PreparedGroup, LiveError> {
        let mut group = Vec::new();
        let found = self.processes.find(domain).map_err(|error| of_process(domain, error))?;
        for (vcpu, who) in found {
            let share = domain.share(vcpu, self.scenario.policy.spec)?;
            group.push(Request {
                who,
                name: domain.vcpu_name(vcpu),
                domain: domain.name.clone(),
                called: RequestedId::Exactly(vcpu),
                share,
                cpus: domain.starts_on(vcpu).map(CpuSet::one).or(domain.cpus(vcpu)),
            });
        }
        let prepared = self.session.prepare(group);
        prepared.map_err(|error| match self.processes.explain(&domain.vcpus) {
            Some(ended) => of_process(domain, ended),
            None => of_request(domain, error.error),
        })
    }

    /// Prepares the vCPUs of a domain. If the domain's program has already ended with exit code 0,
    /// returns `None`: a short program may do that.
    fn prepare_unless_done(&mut self, domain: &Domain) -> Result<Option<PreparedGroup>, LiveError> {
        match self.prepare(domain) {
            Err(LiveError::Process {
                source: ProcessError::EndedAtOnce { program, how, is_success: true },
                ..
            }) => {
                self.processes.end(&domain.vcpus);
                self.outcome.ended.push((self.session.now(), program, how));
                Ok(None)
            }
            prepared => prepared.map(Some),
        }
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

    /// Runs until the end: carries out changes, checks processes and passes records on.
    fn manage<S: Sink>(
        &mut self,
        options: &mut Options<'_>,
        sink: &mut S,
    ) -> Result<(), LiveError> {
        let end = Time::START + self.scenario.length;
        loop {
            let now = self.session.now();
            if now >= end {
                return Ok(());
            }
            while let Some(action) = self.actions.pop_if(|action| action.at <= now) {
                self.act(action)?;
            }
            let seen = self.session.poll(&mut self.records)?;
            if let Some(host_threads) = &mut self.host_threads {
                host_threads.learn(&self.records);
                host_threads.take(&self.session, &mut self.records);
            }
            self.outcome.keepers_lost += u32::from(seen.keeper_replaced);
            let found = seen.contested.iter();
            let found = found.map(|(id, finding)| (now, id.vcpu(), finding.to_string()));
            self.outcome.contested.extend(found);
            self.outcome.undone += seen.meddled.len();
            let gone: Vec<VcpuId> = seen.ended.iter().map(|id| id.vcpu()).collect();
            self.look_after_processes(now, &gone)?;
            self.hand_on(sink);
            if self.session.is_over() {
                return Ok(());
            }
            (options.progress)(now);
            let next = self.actions.last().map_or(end, |action| action.at).min(end);
            let wait = next.since(self.session.now()).min(ROUND);
            let stop = options.stop.as_slice();
            if self.session.wait(stop, wait).contains(&true) {
                self.outcome.stopped = Some(self.session.now());
                return Ok(());
            }
        }
    }

    /// Records which processes the programs of these vCPUs have started, so that they are ended
    /// together with the programs.
    fn note_started(&mut self, vcpus: &[VcpuId]) {
        for vcpu in vcpus {
            let Some(&id) = self.ids.get(vcpu).filter(|_| self.processes.is_ours(*vcpu)) else {
                continue;
            };
            self.processes.started(*vcpu, self.session.processes_of(id));
        }
    }

    /// Collects the records of jobs that are done. Also collects the overdue jobs of the vCPUs
    /// `vcpus`, which are about to leave.
    fn note_overdue(&mut self, vcpus: &[VcpuId]) {
        let told = take_told((self.origin, Time::NEVER), &mut self.processes, &mut self.outside);
        self.told.extend(told);
        self.told.extend(self.processes.overdue(vcpus, self.session.now()));
    }

    /// Removes vCPUs from the session.
    fn leave(&mut self, vcpus: &[VcpuId]) -> Result<(), LiveError> {
        self.note_started(vcpus);
        for vcpu in vcpus {
            let Some(id) = self.ids.remove(vcpu) else { continue };
            match self.session.leave(id) {
                // The vCPU or the session has ended by itself.
                Ok(()) | Err(RequestError::Unknown { .. } | RequestError::Over) => {}
                Err(RequestError::NotGivenBack { errors }) => {
                    return Err(SessionError::NotGivenBack { errors }.into());
                }
                Err(error) => return Err(of_request(self.scenario.domain_of(*vcpu), error)),
            }
        }
        Ok(())
    }

    /// Removes vCPUs whose processes or threads have ended, and notes them in the results.
    fn look_after_processes(&mut self, now: Time, gone: &[VcpuId]) -> Result<(), LiveError> {
        for ended in self.processes.ended(gone) {
            self.leave(&ended.vcpus)?;
            self.processes.end(&ended.vcpus);
            self.outcome.ended.push((now, ended.name, ended.how));
        }
        let outside = self.outside.ended().into_iter().map(|(name, how)| (now, name, how));
        self.outcome.ended.extend(outside);
        Ok(())
    }

    /// Passes new records to the sink.
    fn hand_on<S: Sink>(&mut self, sink: &mut S) {
        let mut told = std::mem::take(&mut self.told);
        told.extend(take_told((self.origin, Time::NEVER), &mut self.processes, &mut self.outside));
        hand_on(&mut self.records, told, sink);
    }

    /// Ends the run and restores all threads. If several steps fail, the first error is returned.
    fn end<S: Sink>(
        mut self,
        result: Result<(), LiveError>,
        sink: &mut S,
    ) -> Result<PlayResults, LiveError> {
        let vcpus: Vec<VcpuId> = self.ids.keys().copied().collect();
        self.note_started(&vcpus);
        let Play { session, mut processes, mut outside, origin, host_threads, .. } = self;
        let (mut records, mut told, mut outcome) = (Vec::new(), self.told, self.outcome);
        outcome.heard = session.heard();
        outcome.relayed = session.relayed();
        let closed = session.close(&mut records);
        if let Some(host_threads) = host_threads {
            end_host_threads(host_threads, origin, &mut records);
        }
        let end = match records.last() {
            Some(Entry::Record(Record::Ended { at })) => Some(*at),
            _ => None,
        };
        let until = end.unwrap_or(Time::NEVER);
        told.extend(take_told((origin, until), &mut processes, &mut outside));
        told.extend(end.into_iter().flat_map(|at| processes.overdue(&vcpus, at)));
        hand_on(&mut records, told, sink);
        processes.end_everything();
        result?;
        closed?;
        outcome.lost = outside.losses();
        Ok(outcome)
    }
}

fn of_process(domain: &Domain, source: ProcessError) -> LiveError {
    LiveError::Process { domain: domain.name.clone(), line: domain.line, source }
}

fn of_request(domain: &Domain, source: RequestError) -> LiveError {
    let (domain, line) = (domain.name.clone(), domain.line);
    match source {
        RequestError::Declined(error) => LiveError::Declined { domain, line, error },
        RequestError::Host(error) => LiveError::Session(SessionError::Host(error)),
        source => LiveError::Request { domain, line, source },
    }
}
