//! Processes whose threads are scheduled in a live run. This module starts the programs of a
//! scenario, finds their threads, and ends the programs that it started.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use slackline_load::{Node, Ports};
use slackline_scenario::{Domain, LiveTarget, Scenario, Threads};
use slackline_trace::Record;
use slackline_units::{Time, VcpuId};
use thiserror::Error;

use crate::load_order::{LoadCommand, LoadOrder, LoadRole, callers};
use crate::nodes::Nodes;
use crate::overdue::JobSchedule;
use crate::teller::{JobPipe, is_readable, record};
use slackline_linux::cgroup::{CgroupError, TreePlace};
use slackline_linux::family::ProgramFamily;
use slackline_linux::sys::{Tid, die_with_us};
use slackline_linux::thread::{ThreadError, ThreadRef};
use slackline_live::session::JoinTarget;
use slackline_live::vcpus::{self, FindError};

/// Reason why a domain has no threads to be scheduled.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// A program could not be started.
    #[error("cannot start `{program}`: {source}")]
    NotStarted {
        /// Name of the program.
        program: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// No port can be bound for a node of a parallel program.
    #[error("cannot open a port for a node of a parallel program: {source}")]
    NoPort {
        /// Error of the kernel.
        source: io::Error,
    },
    /// A program ended before it could be scheduled.
    #[error("`{program}` ended immediately after its start ({how})")]
    EndedAtOnce {
        /// Name of the program.
        program: String,
        /// Exit code or signal of the program, and the last line of its output.
        how: String,
        /// True if the exit code of the program was 0.
        is_success: bool,
    },
    /// The number of vCPU threads of a process is not the number of vCPUs that the scenario gives
    /// to its domain.
    #[error("process {pid} has {found} vCPU threads, but the domain has {wanted} vCPUs")]
    WrongCount {
        /// Id of the process.
        pid: i32,
        /// Number of vCPU threads that the process has.
        found: usize,
        /// Number of vCPUs that the domain has in the scenario.
        wanted: usize,
    },
    /// The domain has several vCPUs, although its process is scheduled as a whole.
    #[error("process {pid} is scheduled as one vCPU, but the domain has {wanted} vCPUs")]
    OneProcess {
        /// Id of the domain's process.
        pid: i32,
        /// Number of vCPUs that the domain has in the scenario.
        wanted: usize,
    },
    /// The vCPU threads cannot be found.
    #[error(transparent)]
    NotFound(#[from] FindError),
    /// The cgroup does not exist, or cannot be registered with the keeper.
    #[error(transparent)]
    Group(#[from] CgroupError),
    /// A thread has ended, or Slackline must not schedule it.
    #[error(transparent)]
    Thread(#[from] ThreadError),
}

impl ProcessError {
    /// Returns one line of advice on how to correct the error.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            ProcessError::NotStarted { .. } => {
                Some("install the program, or write its full path".into())
            }
            ProcessError::NoPort { .. } => Some("bring the loopback interface up".into()),
            ProcessError::EndedAtOnce { .. } => Some("run the command by itself to see why".into()),
            ProcessError::WrongCount { found, .. } => Some(format!("write vcpus = {found}")),
            ProcessError::OneProcess { .. } => {
                Some("write vcpus = 1, or threads = \"vcpus\" for a virtual machine monitor".into())
            }
            ProcessError::Group(error) => error.hint().map(str::to_owned),
            ProcessError::NotFound(error) => error.hint().map(str::to_owned),
            ProcessError::Thread(error) => Some(error.hint().into()),
        }
    }
}

/// Time within which a virtual machine monitor must start its vCPU threads.
const VCPUS_WITHIN: Duration = Duration::from_secs(5);

/// Time that a program may take to end after a termination signal.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Interval at which processes that were asked to end are checked.
const LOOK: Duration = Duration::from_millis(5);

/// Maximum time from the end of a thread until the exit status of its process is available.
const REAPED_WITHIN: Duration = Duration::from_millis(50);

/// A process of the run, which the run has started or found.
#[derive(Debug)]
struct Process {
    target: Target,
    /// Handle of the process. `None` if this run has not started the process.
    child: Option<Child>,
    /// Processes that the program has started. This field is set shortly before the program is
    /// ended.
    started: ProgramFamily,
    name: String,
    vcpus: Vec<VcpuId>,
    /// Node of a parallel program that the process runs, as a copy. `None` if the process is not
    /// such a node.
    node: Option<Node>,
    teller: Option<JobPipe>,
    /// Schedule of the jobs with deadlines, if the process is a load process with such jobs. `None`
    /// otherwise.
    schedule: Option<JobSchedule>,
    complaints: Option<ErrorOutput>,
}

/// Part of the host whose threads are scheduled: a process, given by its id, or a cgroup.
#[derive(Clone, Debug)]
enum Target {
    Process(i32),
    Group(TreePlace),
}

/// Standard error output of a program. The output is shown only if the program ends by itself.
#[derive(Debug)]
struct ErrorOutput {
    pipe: ChildStderr,
    last: Vec<u8>,
}

/// Maximum number of bytes of a program's standard error output that are kept.
const COMPLAINTS: usize = 1 << 12;

impl ErrorOutput {
    fn take(&mut self) {
        let mut bytes = [0; COMPLAINTS];
        while is_readable(&self.pipe, Duration::ZERO) {
            let Ok(count @ 1..) = self.pipe.read(&mut bytes) else { break };
            self.last.extend_from_slice(&bytes[..count]);
            self.last.drain(..self.last.len().saturating_sub(COMPLAINTS));
        }
    }

    /// Returns the last non-empty line of the output.
    fn last_line(&mut self) -> Option<String> {
        self.take();
        let text = String::from_utf8_lossy(&self.last);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        Some(line.chars().filter(|letter| !letter.is_control()).collect())
    }
}

/// A process that has ended although this run has not ended it.
#[derive(Debug)]
pub(crate) struct EndedProcess {
    pub(crate) name: String,
    pub(crate) vcpus: Vec<VcpuId>,
    /// Exit code or signal, in words.
    pub(crate) how: String,
}

/// All processes of the run whose threads are scheduled.
#[derive(Debug)]
pub(crate) struct ManagedProcesses {
    processes: Vec<Process>,
    nodes: Nodes,
}

impl ManagedProcesses {
    /// Creates an empty set, with ports for the nodes of the scenario.
    pub(crate) fn new(scenario: &Scenario) -> Result<ManagedProcesses, ProcessError> {
        let nodes = Nodes::bind(scenario).map_err(|source| ProcessError::NoPort { source })?;
        Ok(ManagedProcesses { processes: Vec::new(), nodes })
    }

    /// Starts or finds the processes of a domain. `files` is the port of the file server, and
    /// `origin` the time at which the run starts. Returns the ports on which the domain listens, if
    /// it has devices.
    pub(crate) fn start(
        &mut self,
        (scenario, domain): (&Scenario, &Domain),
        files: Option<u16>,
        origin: Time,
        load: LoadCommand<'_>,
    ) -> Result<Ports, ProcessError> {
        let seed = scenario.seed;
        let starts = |at: Time| origin + (at - Time::START);
        match &domain.live {
            None if domain.system.is_some() => {
                let system = domain.system.as_ref().expect("a domain with devices has a system");
                let from = callers(scenario, domain);
                let part = LoadRole::System { system, domain: domain.id, from, files };
                let mut command = load(&LoadOrder { part, seed, start: starts(domain.joins) });
                command.stdin(Stdio::null());
                let process = self.start_load(command, domain, domain.vcpus[0])?;
                // All threads of the process must exist before the process is scheduled.
                let ports = process.teller.as_mut().and_then(JobPipe::ready);
                return ports.ok_or_else(|| {
                    let status = process.reap();
                    process.ended_at_once(status)
                });
            }
            None => {
                for &vcpu in &domain.vcpus {
                    let node = self.nodes.take(vcpu);
                    let others = node.as_ref().map_or(&[][..], |node| &node.others);
                    let part = LoadRole::Program { program: domain.program_of(vcpu), vcpu, others };
                    let mut command =
                        load(&LoadOrder { part, seed, start: starts(domain.wakes(vcpu)) });
                    let copy = node.as_ref().and_then(|node| node.try_clone().ok());
                    let socket = node.map(|node| OwnedFd::from(node.socket));
                    command.stdin(socket.map_or_else(Stdio::null, Stdio::from));
                    let process = self.start_load(command, domain, vcpu)?;
                    process.node = copy;
                    let program = domain.program_of(vcpu);
                    let began = domain.wakes(vcpu);
                    process.schedule = JobSchedule::of(program, (seed, vcpu), began);
                }
            }
            Some(LiveTarget::Command { argv, .. }) => {
                let mut command = Command::new(&argv[0]);
                command.args(&argv[1..]).stdin(Stdio::null()).stdout(Stdio::null());
                command.stderr(Stdio::piped());
                let process = spawn(command, domain.name.clone(), domain.vcpus.clone())?;
                self.processes.push(process);
            }
            Some(LiveTarget::Pid { pid, .. }) => self.add(domain, Target::Process(*pid)),
            Some(LiveTarget::Cgroup { path }) => {
                self.add(domain, Target::Group(TreePlace::existing(Path::new(path))?));
            }
            Some(LiveTarget::Unit { name }) => {
                self.add(domain, Target::Group(TreePlace::of_unit(name)?));
            }
        }
        Ok(Ports::default())
    }

    /// Adds a process or cgroup of a domain, which this run has found and not started.
    fn add(&mut self, domain: &Domain, target: Target) {
        self.processes.push(Process {
            target,
            child: None,
            started: ProgramFamily::default(),
            name: domain.name.clone(),
            vcpus: domain.vcpus.clone(),
            node: None,
            teller: None,
            schedule: None,
            complaints: None,
        });
    }

    fn start_load(
        &mut self,
        mut command: Command,
        domain: &Domain,
        vcpu: VcpuId,
    ) -> Result<&mut Process, ProcessError> {
        command.stdout(Stdio::piped());
        let mut process = spawn(command, domain.vcpu_name(vcpu), vec![vcpu])?;
        let stdout = process.child.as_mut().and_then(|child| child.stdout.take());
        process.teller = stdout.map(JobPipe::new);
        self.processes.push(process);
        Ok(self.processes.last_mut().expect("the process was added above"))
    }

    /// Returns for each vCPU of a started domain what is to be scheduled as the vCPU: threads,
    /// processes or a cgroup.
    pub(crate) fn find(
        &mut self,
        domain: &Domain,
    ) -> Result<Vec<(VcpuId, JoinTarget)>, ProcessError> {
        let by_vcpu = matches!(
            &domain.live,
            Some(
                LiveTarget::Command { threads: Threads::Vcpus, .. }
                    | LiveTarget::Pid { threads: Threads::Vcpus, .. }
            )
        );
        let mut found = Vec::new();
        for process in &mut self.processes {
            if !process.vcpus.iter().any(|vcpu| domain.vcpus.contains(vcpu)) {
                continue;
            }
            let threads = if by_vcpu { process.by_vcpu() } else { process.as_one() };
            found.extend(threads.map_err(|error| process.explain().unwrap_or(error))?);
        }
        Ok(found)
    }

    /// Returns an error if a program of these vCPUs ended before its threads could be scheduled.
    /// The error has the exit code or signal. `None` if all programs run.
    pub(crate) fn explain(&mut self, vcpus: &[VcpuId]) -> Option<ProcessError> {
        let mut processes = self.processes.iter_mut();
        let is_theirs = |vcpu: &VcpuId| vcpus.contains(vcpu);
        processes.find(|process| process.vcpus.iter().any(is_theirs))?.explain()
    }

    /// Returns the processes that ended by themselves or lost a vCPU thread. `gone` has the vCPUs
    /// whose threads have ended.
    pub(crate) fn ended(&mut self, gone: &[VcpuId]) -> Vec<EndedProcess> {
        let mut ended = Vec::new();
        for process in &mut self.processes {
            let status = process.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if status.is_some() || process.vcpus.iter().any(|vcpu| gone.contains(vcpu)) {
                let (name, vcpus) = (process.name.clone(), process.vcpus.clone());
                let status = status.or_else(|| process.reap());
                ended.push(EndedProcess { name, vcpus, how: process.how(status) });
            }
        }
        ended
    }

    /// Appends the records that load processes have reported. `origin` is the start of the run. A
    /// job that was done after `until`, a time of the run, still counts as overdue.
    pub(crate) fn take_jobs(&mut self, (origin, until): (Time, Time), into: &mut Vec<Record>) {
        for process in &mut self.processes {
            process.take_jobs((origin, until), into);
            if let Some(complaints) = &mut process.complaints {
                complaints.take();
            }
        }
    }

    /// Returns a record for each job of these vCPUs that is not done at the time `at` of the run,
    /// although its deadline has passed.
    pub(crate) fn overdue(&self, vcpus: &[VcpuId], at: Time) -> Vec<Record> {
        let is_theirs = |process: &&Process| process.vcpus.iter().any(|it| vcpus.contains(it));
        let processes = self.processes.iter().filter(is_theirs);
        let schedules = processes.filter_map(|process| process.schedule.as_ref());
        schedules.flat_map(|schedule| schedule.overdue(at)).collect()
    }

    /// Returns true if this run started the program of a vCPU, and therefore ends it.
    pub(crate) fn is_ours(&self, vcpu: VcpuId) -> bool {
        let of = self.processes.iter().find(|process| process.vcpus.contains(&vcpu));
        of.is_some_and(|process| process.child.is_some())
    }

    /// Stores the list of processes that the program of a vCPU has started. They will be ended
    /// together with the program.
    pub(crate) fn started(&mut self, vcpu: VcpuId, started: Vec<Tid>) {
        let mut processes = self.processes.iter_mut();
        if let Some(process) = processes.find(|process| process.vcpus.contains(&vcpu)) {
            started.into_iter().for_each(|pid| process.started.add(pid));
        }
    }

    /// Ends the processes of a domain that this run started.
    pub(crate) fn end(&mut self, vcpus: &[VcpuId]) {
        let (mut ending, staying) = std::mem::take(&mut self.processes)
            .into_iter()
            .partition(|process| process.vcpus.iter().all(|vcpu| vcpus.contains(vcpu)));
        self.processes = staying;
        end_all(&mut ending);
    }

    /// Ends all processes that this run started.
    pub(crate) fn end_everything(&mut self) {
        end_all(&mut self.processes);
    }
}

impl Drop for ManagedProcesses {
    fn drop(&mut self) {
        self.end_everything();
    }
}

/// Sends a termination signal to all processes, and kills those that have not ended after
/// [`END_WITHIN`].
fn end_all(processes: &mut [Process]) {
    let ask = [Signal::TERM, Signal::CONT];
    for child in processes.iter_mut().filter_map(|process| process.child.as_mut()) {
        // The id of a process that has been waited for may belong to another process.
        if matches!(child.try_wait(), Ok(None)) {
            let pid = rustix::process::Pid::from_child(child);
            for signal in ask {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    }
    for process in processes.iter() {
        ask.iter().for_each(|signal| process.started.signal(*signal));
    }
    let deadline = Instant::now() + END_WITHIN;
    let is_there = |process: &mut Process| {
        process.started.find_started();
        let child = process.child.as_mut().map(Child::try_wait);
        matches!(child, Some(Ok(None))) || !process.started.has_ended()
    };
    loop {
        // All processes are examined in each round, because each can start further processes.
        let is_there: Vec<bool> = processes.iter_mut().map(is_there).collect();
        if !is_there.contains(&true) || Instant::now() >= deadline {
            break;
        }
        sleep(LOOK);
    }
    for process in processes {
        process.started.kill();
        if let Some(child) = &mut process.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        // A process that was killed has not reported its end.
        if let Some(node) = process.node.take() {
            node.report_end();
        }
    }
}

fn spawn(mut command: Command, name: String, vcpus: Vec<VcpuId>) -> Result<Process, ProcessError> {
    let program = command.get_program().to_string_lossy().into_owned();
    die_with_us(&mut command);
    let child = command.spawn();
    let mut child = child.map_err(|source| ProcessError::NotStarted { program, source })?;
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    let complaints = child.stderr.take().map(|pipe| ErrorOutput { pipe, last: Vec::new() });
    let (target, started) = (Target::Process(pid), ProgramFamily::default());
    let child = Some(child);
    let (node, teller, schedule) = (None, None, None);
    Ok(Process { target, child, started, name, vcpus, node, teller, schedule, complaints })
}

impl Process {
    /// Returns the only vCPU of the domain. If the target is a cgroup, the vCPU consists of all its
    /// threads. If the target is a process, the vCPU consists of the threads of the process and of
    /// its descendants. A load process has no descendants.
    fn as_one(&mut self) -> Result<Vec<(VcpuId, JoinTarget)>, ProcessError> {
        let [vcpu] = self.vcpus[..] else {
            return Err(ProcessError::OneProcess { pid: self.pid(), wanted: self.vcpus.len() });
        };
        if let Target::Group(place) = &self.target {
            return Ok(vec![(vcpu, JoinTarget::Group(place.clone()))]);
        }
        self.check_running()?;
        // Load processes start no other processes.
        let who = if self.teller.is_some() { JoinTarget::Process } else { JoinTarget::Tree };
        Ok(vec![(vcpu, who(self.tid()?))])
    }

    /// Returns each vCPU of the domain, with the thread of the process that runs the vCPU.
    fn by_vcpu(&mut self) -> Result<Vec<(VcpuId, JoinTarget)>, ProcessError> {
        let tids = self.wait_for_vcpus()?;
        let pid = self.tid()?;
        let mut found = Vec::new();
        for (&vcpu, tid) in self.vcpus.iter().zip(tids) {
            found.push((vcpu, JoinTarget::Thread(ThreadRef::open(pid, tid)?)));
        }
        Ok(found)
    }

    fn explain(&mut self) -> Option<ProcessError> {
        let status = Some(self.reap()?);
        Some(self.ended_at_once(status))
    }

    fn ended_at_once(&mut self, status: Option<ExitStatus>) -> ProcessError {
        let is_success = status.is_some_and(|status| status.success());
        let (program, how) = (self.name.clone(), self.how(status));
        ProcessError::EndedAtOnce { program, how, is_success }
    }

    /// Returns the exit status of a process that this run started. Waits up to [`REAPED_WITHIN`]
    /// for the process to end. `None` if the process still runs after that time.
    fn reap(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + REAPED_WITHIN;
        loop {
            match self.child.as_mut()?.try_wait() {
                Ok(None) if Instant::now() < deadline => sleep(Duration::from_millis(1)),
                status => return status.ok().flatten(),
            }
        }
    }

    fn wait_for_vcpus(&mut self) -> Result<Vec<Tid>, ProcessError> {
        let deadline = Instant::now() + VCPUS_WITHIN;
        loop {
            self.check_running()?;
            let found = vcpus::find(self.pid());
            let wanted = self.vcpus.len();
            match found {
                Ok(found) if found.len() == wanted => {
                    return Ok(found.iter().filter_map(|vcpu| Tid::new(vcpu.tid)).collect());
                }
                _ if Instant::now() < deadline => sleep(Duration::from_millis(10)),
                Ok(found) => {
                    let (pid, found) = (self.pid(), found.len());
                    return Err(ProcessError::WrongCount { pid, found, wanted });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn check_running(&mut self) -> Result<(), ProcessError> {
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        match status {
            Some(_) => Err(self.ended_at_once(status)),
            None => Ok(()),
        }
    }

    /// Describes the end of the process in words, with the last line of its output.
    fn how(&mut self, status: Option<ExitStatus>) -> String {
        let how = match status.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => format!("exit code {code}"),
            Some((None, Some(signal))) => format!("signal {signal}"),
            _ => "one of its threads has ended".into(),
        };
        match self.complaints.as_mut().and_then(ErrorOutput::last_line) {
            Some(line) => format!("{how}; last output: {line}"),
            None => how,
        }
    }

    fn tid(&self) -> Result<Tid, ProcessError> {
        let none = || {
            let tid = slackline_linux::sys::own_tid();
            ProcessError::Thread(ThreadError::Gone { pid: tid, tid })
        };
        Tid::new(self.pid()).ok_or_else(none)
    }

    /// Returns the process id. Zero if the target is a cgroup.
    fn pid(&self) -> i32 {
        match self.target {
            Target::Process(pid) => pid,
            Target::Group(_) => 0,
        }
    }

    fn take_jobs(&mut self, (origin, until): (Time, Time), into: &mut Vec<Record>) {
        let notes = self.teller.as_mut().map(JobPipe::take).unwrap_or_default();
        for note in notes {
            let Some(record) = record(note, (self.vcpus[0], None), origin) else { continue };
            if let Some(schedule) = &mut self.schedule {
                schedule.note(&record, until);
            }
            into.push(record);
        }
    }
}
