//! Who is scheduled: starts the programs of a scenario, finds the threads, and ends what it
//! started.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use slackline_load::Ports;
use slackline_load::system::Callers;
use slackline_scenario::io::Client;
use slackline_scenario::{Domain, LiveSubject, Program, Scenario, System, Threads};
use slackline_trace::Record;
use slackline_units::{DomId, Time, VcpuId};
use thiserror::Error;

use crate::fence::{Fence, FenceError};
use crate::outside;
use crate::sys::{ThreadClock, Tid, die_with_us};
use crate::teller::{Teller, is_readable, record};
use crate::thread::{ThreadError, ThreadRef, threads_of};
use crate::vcpu_threads::{Member, VcpuThreads};
use crate::vcpus::{self, FindError};
use crate::way::Hold;

/// What a load process is to do.
#[derive(Debug)]
pub struct LoadOrder<'a> {
    /// Which part it plays.
    pub part: Part<'a>,
    /// The seed of the run.
    pub seed: u64,
    /// When it begins, on the monotonic clock.
    pub start: Time,
}

/// A part that a load process plays.
#[derive(Debug)]
pub enum Part<'a> {
    /// A vCPU with a program.
    Program {
        /// The steps.
        program: &'a Program,
        /// Whose draws it makes.
        vcpu: VcpuId,
    },
    /// A domain with tasks that need devices.
    System {
        /// The tasks.
        system: &'a System,
        /// Whose draws they make.
        domain: DomId,
        /// Who talks to it.
        from: Callers,
        /// The port of the server that it asks for files, if it does.
        files: Option<u16>,
    },
    /// Somebody outside.
    Client {
        /// What it does.
        client: &'a Client,
        /// Its number, which says what it draws.
        number: usize,
        /// The port that it talks to.
        port: u16,
        /// When it begins, in the time of the run.
        begins: Time,
    },
    /// The server outside that tasks ask for files.
    Files,
}

/// Makes the command of a load process, which writes what it has to tell on its standard output.
pub type LoadCommand<'a> = &'a dyn Fn(&LoadOrder<'_>) -> Command;

/// Why a domain cannot be scheduled here.
#[derive(Debug, Error)]
pub enum CastError {
    /// A program could not be started.
    #[error("cannot start `{program}`: {source}")]
    NotStarted {
        /// The program.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program ended before it could be scheduled.
    #[error("`{program}` ended at once ({how})")]
    EndedAtOnce {
        /// The program.
        program: String,
        /// How, and what it last said.
        how: String,
    },
    /// There are more or fewer threads than vCPUs.
    #[error("process {pid} has {found} vCPU threads, but the domain has {wanted} vCPUs")]
    WrongCount {
        /// The process.
        pid: i32,
        /// How many there are.
        found: usize,
        /// How many the scenario says.
        wanted: usize,
    },
    /// A domain whose process is scheduled as one has several vCPUs.
    #[error("process {pid} is scheduled as one, but the domain has {wanted} vCPUs")]
    OneProcess {
        /// The process.
        pid: i32,
        /// How many vCPUs the scenario says.
        wanted: usize,
    },
    /// The vCPU threads cannot be found.
    #[error(transparent)]
    NotFound(#[from] FindError),
    /// A thread is gone or not ours to touch.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// A thread cannot be held.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// What a thread has used cannot be read.
    #[error("cannot read the CPU time of thread {tid}: {source}")]
    Unreadable {
        /// Whose.
        tid: Tid,
        /// What the kernel said.
        source: io::Error,
    },
}

impl CastError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            CastError::NotStarted { .. } => Some("is it installed, and in PATH?".into()),
            CastError::EndedAtOnce { .. } => Some("try the command by itself".into()),
            CastError::WrongCount { found, .. } => Some(format!("write vcpus = {found}")),
            CastError::OneProcess { .. } => {
                Some("write vcpus = 1, or threads = \"vcpus\" for a virtual machine monitor".into())
            }
            CastError::NotFound(error) => error.hint().map(str::to_owned),
            CastError::Fence(FenceError::HeldElsewhere { .. }) => Some(
                "wait for that run; `slackline doctor --free` gives back what a killed one left"
                    .into(),
            ),
            CastError::Thread(error) | CastError::Fence(FenceError::Thread(error)) => {
                Some(about_thread(error).into())
            }
            CastError::Fence(FenceError::Stopped { pid }) => Some(format!("kill -CONT {pid}")),
            CastError::Fence(_) | CastError::Unreadable { .. } => {
                Some("`slackline doctor` says what this machine allows".into())
            }
        }
    }
}

fn about_thread(error: &ThreadError) -> &'static str {
    match error {
        ThreadError::Gone { .. } => "is it still running? `ps -p` tells",
        ThreadError::Kernel { .. } | ThreadError::Init | ThreadError::Ourselves { .. } => {
            "name a process that the machine does not live on"
        }
        ThreadError::NotPermitted { .. } | ThreadError::Unreadable { .. } => "run as root",
    }
}

/// How long a virtual machine monitor may take to start its vCPU threads.
const VCPUS_WITHIN: Duration = Duration::from_secs(5);

/// How long a program that is asked to end may take.
const END_WITHIN: Duration = Duration::from_secs(2);

/// How long the kernel may take from a thread's end to that of its process.
const REAPED_WITHIN: Duration = Duration::from_millis(50);

/// Something we started, or found.
#[derive(Debug)]
struct Process {
    pid: i32,
    /// None if it was there before us.
    child: Option<Child>,
    name: String,
    vcpus: Vec<VcpuId>,
    teller: Option<Teller>,
    complaints: Option<Complaints>,
    threads: Vec<ThreadRef>,
}

/// What a program writes on its standard error: kept back, and told only if it ends by itself.
#[derive(Debug)]
struct Complaints {
    pipe: ChildStderr,
    last: Vec<u8>,
}

/// How much of them is kept, in bytes.
const COMPLAINTS: usize = 1 << 12;

impl Complaints {
    fn take(&mut self) {
        let mut bytes = [0; COMPLAINTS];
        while is_readable(&self.pipe, Duration::ZERO) {
            let Ok(count @ 1..) = self.pipe.read(&mut bytes) else { break };
            self.last.extend_from_slice(&bytes[..count]);
            self.last.drain(..self.last.len().saturating_sub(COMPLAINTS));
        }
    }

    /// The last line.
    fn last_line(&mut self) -> Option<String> {
        self.take();
        let text = String::from_utf8_lossy(&self.last);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        Some(line.chars().filter(|letter| !letter.is_control()).collect())
    }
}

/// A process that has ended by itself.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) vcpus: Vec<VcpuId>,
    /// How.
    pub(crate) how: String,
}

/// Everybody who is scheduled.
#[derive(Debug, Default)]
pub(crate) struct Cast {
    processes: Vec<Process>,
}

impl Cast {
    /// Starts what a domain needs, or finds it; `files` is the port of the file server. Where it
    /// listens, if it has devices.
    pub(crate) fn start(
        &mut self,
        (scenario, domain): (&Scenario, &Domain),
        files: Option<u16>,
        start: Time,
        load: LoadCommand<'_>,
    ) -> Result<Ports, CastError> {
        let seed = scenario.seed;
        match &domain.live {
            None if domain.system.is_some() => {
                let system = domain.system.as_ref().expect("it has one");
                let from = outside::callers(scenario, domain);
                let part = Part::System { system, domain: domain.id, from, files };
                let order = LoadOrder { part, seed, start };
                let process = self.start_load(&order, domain, domain.vcpus[0], load)?;
                // All its threads must be there before they are held.
                let ports = process.teller.as_mut().and_then(Teller::ready);
                return ports.ok_or_else(|| {
                    let status = process.reap();
                    let (program, how) = (process.name.clone(), process.how(status));
                    CastError::EndedAtOnce { program, how }
                });
            }
            None => {
                for &vcpu in &domain.vcpus {
                    let part = Part::Program { program: &domain.program, vcpu };
                    self.start_load(&LoadOrder { part, seed, start }, domain, vcpu, load)?;
                }
            }
            Some(LiveSubject::Command { argv, .. }) => {
                let mut command = Command::new(&argv[0]);
                command.args(&argv[1..]).stdin(Stdio::null()).stdout(Stdio::null());
                command.stderr(Stdio::piped());
                let process = spawn(command, domain.name.clone(), domain.vcpus.clone())?;
                self.processes.push(process);
            }
            Some(LiveSubject::Pid { pid, .. }) => self.processes.push(Process {
                pid: *pid,
                child: None,
                name: domain.name.clone(),
                vcpus: domain.vcpus.clone(),
                teller: None,
                complaints: None,
                threads: Vec::new(),
            }),
        }
        Ok(Ports::default())
    }

    fn start_load(
        &mut self,
        order: &LoadOrder<'_>,
        domain: &Domain,
        vcpu: VcpuId,
        load: LoadCommand<'_>,
    ) -> Result<&mut Process, CastError> {
        let mut command = load(order);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = spawn(command, domain.vcpu_name(vcpu), vec![vcpu])?;
        let stdout = process.child.as_mut().and_then(|child| child.stdout.take());
        process.teller = stdout.map(Teller::new);
        self.processes.push(process);
        Ok(self.processes.last_mut().expect("it was put there"))
    }

    /// Holds the threads of a domain that has been started, one subject a vCPU; those vCPUs are
    /// `exact` that get what they are promised and no more.
    pub(crate) fn hold(
        &mut self,
        domain: &Domain,
        exact: &[VcpuId],
        fence: &mut Fence,
    ) -> Result<Vec<VcpuThreads>, CastError> {
        let by_vcpu = matches!(
            &domain.live,
            Some(
                LiveSubject::Command { threads: Threads::Vcpus, .. }
                    | LiveSubject::Pid { threads: Threads::Vcpus, .. }
            )
        );
        let mut subjects = Vec::new();
        for process in &mut self.processes {
            if !process.vcpus.iter().any(|vcpu| domain.vcpus.contains(vcpu)) {
                continue;
            }
            let held = if by_vcpu {
                process.hold_by_vcpu(exact, fence)
            } else {
                process.hold_as_one(exact, fence).map(|subject| vec![subject])
            };
            subjects.extend(held.map_err(|error| process.explain(error))?);
        }
        Ok(subjects)
    }

    /// Which processes have ended by themselves, or lost a thread that is scheduled: `gone` are
    /// those that the machine found so.
    pub(crate) fn ended(&mut self, gone: &[VcpuId]) -> Vec<Ended> {
        let mut ended = Vec::new();
        for process in &mut self.processes {
            let status = process.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if status.is_some() || process.has_lost(gone) {
                let (name, vcpus) = (process.name.clone(), process.vcpus.clone());
                let status = status.or_else(|| process.reap());
                ended.push(Ended { name, vcpus, how: process.how(status) });
            }
        }
        ended
    }

    /// The threads of a vCPU.
    pub(crate) fn threads_of(&self, vcpu: VcpuId) -> Vec<Tid> {
        let of = |process: &&Process| process.vcpus.contains(&vcpu);
        let process = self.processes.iter().find(of);
        process.map_or(Vec::new(), |process| {
            let place = process.vcpus.iter().position(|&other| other == vcpu);
            let one = process.vcpus.len() > 1;
            let tids = process.threads.iter().map(ThreadRef::tid).enumerate();
            tids.filter(|&(at, _)| !one || Some(at) == place).map(|(_, tid)| tid).collect()
        })
    }

    /// Reads what load processes say they have done; `origin` is when the run began.
    pub(crate) fn take_jobs(&mut self, origin: Time, into: &mut Vec<Record>) {
        for process in &mut self.processes {
            process.take_jobs(origin, into);
            if let Some(complaints) = &mut process.complaints {
                complaints.take();
            }
        }
    }

    /// Ends a domain's processes, if we started them.
    pub(crate) fn end(&mut self, vcpus: &[VcpuId]) {
        let (mut ending, staying) = std::mem::take(&mut self.processes)
            .into_iter()
            .partition(|process| process.vcpus.iter().all(|vcpu| vcpus.contains(vcpu)));
        self.processes = staying;
        end_all(&mut ending);
    }

    /// Ends everything that we started.
    pub(crate) fn end_everything(&mut self) {
        end_all(&mut self.processes);
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        self.end_everything();
    }
}

/// Asks all to end, and after a while makes them.
fn end_all(processes: &mut [Process]) {
    for child in processes.iter_mut().filter_map(|process| process.child.as_mut()) {
        // One that has been waited for has no number any more that would be its own.
        if matches!(child.try_wait(), Ok(None)) {
            let pid = rustix::process::Pid::from_child(child);
            for signal in [rustix::process::Signal::TERM, rustix::process::Signal::CONT] {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    }
    let deadline = Instant::now() + END_WITHIN;
    for child in processes.iter_mut().filter_map(|process| process.child.as_mut()) {
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            sleep(Duration::from_millis(2));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn spawn(mut command: Command, name: String, vcpus: Vec<VcpuId>) -> Result<Process, CastError> {
    let program = command.get_program().to_string_lossy().into_owned();
    die_with_us(&mut command);
    let child = command.spawn();
    let mut child = child.map_err(|source| CastError::NotStarted { program, source })?;
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    let complaints = child.stderr.take().map(|pipe| Complaints { pipe, last: Vec::new() });
    let (teller, threads) = (None, Vec::new());
    Ok(Process { pid, child: Some(child), name, vcpus, teller, complaints, threads })
}

impl Process {
    /// The process as one subject: all the threads it has now.
    fn hold_as_one(
        &mut self,
        exact: &[VcpuId],
        fence: &mut Fence,
    ) -> Result<VcpuThreads, CastError> {
        let [vcpu] = self.vcpus[..] else {
            return Err(CastError::OneProcess { pid: self.pid, wanted: self.vcpus.len() });
        };
        let exact = exact.contains(&vcpu);
        self.check_running()?;
        let mut members = Vec::new();
        for tid in threads_of(self.tid()?)? {
            // Stopping a process stops all its threads, so one of them is enough.
            let stops = exact && members.is_empty();
            let hold = if stops { Hold::Process } else { Hold::Nothing };
            members.push(self.hold(tid, hold, fence)?);
        }
        Ok(VcpuThreads { vcpu, members, exact, priority: None })
    }

    /// Each thread that is a vCPU as a subject.
    fn hold_by_vcpu(
        &mut self,
        exact: &[VcpuId],
        fence: &mut Fence,
    ) -> Result<Vec<VcpuThreads>, CastError> {
        let tids = self.wait_for_vcpus()?;
        let mut subjects = Vec::new();
        for (&vcpu, tid) in self.vcpus.clone().iter().zip(tids) {
            let exact = exact.contains(&vcpu);
            let hold = if exact { Hold::Thread } else { Hold::Nothing };
            let members = vec![self.hold(tid, hold, fence)?];
            subjects.push(VcpuThreads { vcpu, members, exact, priority: None });
        }
        Ok(subjects)
    }

    /// Of a program of ours whose threads could not be held because it had just ended, more is
    /// known than that: how it ended.
    fn explain(&mut self, error: CastError) -> CastError {
        let status = self.reap();
        if status.is_none() {
            return error;
        }
        CastError::EndedAtOnce { program: self.name.clone(), how: self.how(status) }
    }

    /// Whether one of its vCPUs has no thread any more. One that is a process of many threads goes
    /// on without some of them: they come and go.
    fn has_lost(&self, gone: &[VcpuId]) -> bool {
        let is_gone = |thread: &ThreadRef| thread.is_gone().unwrap_or(false);
        if self.vcpus.len() == 1 {
            return !self.threads.is_empty() && self.threads.iter().all(is_gone);
        }
        self.threads.iter().any(is_gone) || self.vcpus.iter().any(|vcpu| gone.contains(vcpu))
    }

    /// How it ended, if we started it and it has ended, or is about to.
    fn reap(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + REAPED_WITHIN;
        loop {
            match self.child.as_mut()?.try_wait() {
                Ok(None) if Instant::now() < deadline => sleep(Duration::from_millis(1)),
                status => return status.ok().flatten(),
            }
        }
    }

    fn hold(&mut self, tid: Tid, hold: Hold, fence: &mut Fence) -> Result<Member, CastError> {
        let pid = self.tid()?;
        let unreadable = |source| CastError::Unreadable { tid, source };
        let thread = ThreadRef::open(pid, tid)?;
        let held = fence.hold(&thread, hold)?;
        self.threads.push(thread);
        let clock = ThreadClock::open(tid).map_err(unreadable)?;
        let used = clock.read().map_err(unreadable)?;
        Ok(Member { held, is_awake: false, clock, used, joined: None })
    }

    fn wait_for_vcpus(&mut self) -> Result<Vec<Tid>, CastError> {
        let deadline = Instant::now() + VCPUS_WITHIN;
        loop {
            self.check_running()?;
            let found = vcpus::find(self.pid);
            let wanted = self.vcpus.len();
            match found {
                Ok(found) if found.len() == wanted => {
                    return Ok(found.iter().filter_map(|vcpu| Tid::new(vcpu.tid)).collect());
                }
                _ if Instant::now() < deadline => sleep(Duration::from_millis(10)),
                Ok(found) => {
                    let (pid, found) = (self.pid, found.len());
                    return Err(CastError::WrongCount { pid, found, wanted });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn check_running(&mut self) -> Result<(), CastError> {
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        match status {
            Some(_) => {
                let (program, how) = (self.name.clone(), self.how(status));
                Err(CastError::EndedAtOnce { program, how })
            }
            None => Ok(()),
        }
    }

    /// How it ended, in words, with the last of its own.
    fn how(&mut self, status: Option<ExitStatus>) -> String {
        let how = match status.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => format!("exit code {code}"),
            Some((None, Some(signal))) => format!("signal {signal}"),
            _ => "a thread of it has ended".into(),
        };
        match self.complaints.as_mut().and_then(Complaints::last_line) {
            Some(line) => format!("{how}; it said: {line}"),
            None => how,
        }
    }

    fn tid(&self) -> Result<Tid, CastError> {
        let none = || {
            let tid = crate::sys::own_tid();
            CastError::Thread(ThreadError::Gone { pid: tid, tid })
        };
        Tid::new(self.pid).ok_or_else(none)
    }

    fn take_jobs(&mut self, origin: Time, into: &mut Vec<Record>) {
        let notes = self.teller.as_mut().map(Teller::take).unwrap_or_default();
        into.extend(notes.into_iter().filter_map(|note| record(note, self.vcpus[0], origin)));
    }
}
