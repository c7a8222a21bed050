//! Process of a command that a user gives after `--`, as in `hold -- COMMAND`. The process waits
//! before its first instruction, so that a limit can be applied to the whole command. The command
//! can be ended together with the processes that it started.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use slackline_linux::family::ProgramFamily;
use slackline_linux::sys::{Tid, WaitingCommand};
use slackline_linux::thread::TaskFd;

use crate::problem::Problem;
use crate::terminal;

/// Maximum time from SIGTERM until the command and its processes have ended. After that they get
/// SIGKILL.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Interval at which the program checks whether the command and its processes have ended.
const LOOK: Duration = Duration::from_millis(10);

/// A command that this program started. It is ended when this value is dropped.
pub(crate) struct HeldCommand {
    program: String,
    pid: Tid,
    process: Process,
    /// Descriptor that becomes readable when the command has ended. `None` if the kernel does not
    /// support pidfds.
    ended: Option<TaskFd>,
}

enum Process {
    /// The process exists, and waits for permission to execute the command.
    Waiting(WaitingCommand),
    Runs(Child),
    /// The process could not execute the command.
    Failed,
}

impl HeldCommand {
    /// Starts the process of a command. The process waits before it executes the command. `None` if
    /// `words` is empty.
    pub(crate) fn start(words: &[String]) -> Result<Option<HeldCommand>, Problem> {
        let Some((program, arguments)) = words.split_first() else { return Ok(None) };
        let mut command = Command::new(program);
        command.args(arguments);
        let waiting = WaitingCommand::start(command).map_err(|why| not_started(program, &why))?;
        let pid = waiting.pid();
        let ended = TaskFd::open(pid).ok();
        let (program, process) = (program.clone(), Process::Waiting(waiting));
        Ok(Some(HeldCommand { program, pid, process, ended }))
    }

    pub(crate) const fn pid(&self) -> Tid {
        self.pid
    }

    /// Lets the process execute the command. Does nothing if the process already executes it.
    pub(crate) fn go(&mut self) -> Result<(), Problem> {
        match std::mem::replace(&mut self.process, Process::Failed) {
            Process::Waiting(waiting) => {
                let child = waiting.go().map_err(|why| not_started(&self.program, &why))?;
                self.process = Process::Runs(child);
            }
            process => self.process = process,
        }
        Ok(())
    }

    /// Returns the exit status of the command, if it has ended.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        match &mut self.process {
            Process::Runs(child) => child.try_wait().ok().flatten(),
            Process::Waiting(_) | Process::Failed => None,
        }
    }

    /// Returns the exit status of the command if it ends within `most`. If the process has not
    /// executed the command yet, returns `None` at once.
    pub(crate) fn status_within(&mut self, most: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + most;
        while matches!(self.process, Process::Runs(_)) {
            match self.status() {
                None if Instant::now() < until => std::thread::sleep(LOOK),
                status => return status,
            }
        }
        None
    }

    /// Returns a descriptor that becomes readable when the command has ended. `None` if the kernel
    /// does not support pidfds.
    pub(crate) fn ended_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ended.as_ref().and_then(TaskFd::pollable)
    }

    /// Ends the command and all processes that it started: first by SIGTERM, then by SIGKILL.
    /// `list` returns the processes that exist at the time of its call. A process that is started
    /// after the SIGTERM gets only the SIGKILL.
    pub(crate) fn end_with(&mut self, mut list: impl FnMut() -> Vec<Tid>) {
        let mut family = ProgramFamily::default();
        list().into_iter().for_each(|pid| family.add(pid));
        family.find_started();
        family.signal(Signal::TERM);
        let began = Instant::now();
        loop {
            // The exit status is read, so that the kernel no longer lists the process.
            let _ = self.status();
            list().into_iter().for_each(|pid| family.add(pid));
            family.find_started();
            // A killed process that still runs is stuck in the kernel.
            if family.has_ended() || began.elapsed() > END_WITHIN * 2 {
                return;
            }
            if began.elapsed() > END_WITHIN {
                family.kill();
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Prints a warning about processes that the command started and that still run. They are no
    /// longer limited.
    pub(super) fn tell_left(&self, started: &[(Tid, TaskFd)]) {
        let runs = |(pid, process): &&(Tid, TaskFd)| {
            *pid != self.pid && matches!(process.has_exited(), Ok(false))
        };
        let left: Vec<String> =
            started.iter().filter(runs).map(|(pid, _)| pid.to_string()).collect();
        if !left.is_empty() {
            let (program, list) = (&self.program, left.join(", "));
            terminal::tell(&format!(
                "note:  {program} has ended; processes that it started still run, no longer \
                 scheduled: {list}\n"
            ));
        }
    }
}

impl Drop for HeldCommand {
    /// Ends the command, first by SIGTERM, then by SIGKILL.
    fn drop(&mut self) {
        let Process::Runs(child) = &mut self.process else { return };
        // After its exit status was read, the process id may belong to another process.
        if matches!(child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        let deadline = Instant::now() + END_WITHIN;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Converts the exit status of a command to an exit code of this program, as a shell does. Success
/// is `Ok`.
pub(crate) fn exit_code(status: ExitStatus) -> Result<(), Problem> {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    match code.and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Ok(()),
        code => Err(Problem::CommandEnded { code: code.unwrap_or(1) }),
    }
}

fn not_started(program: &str, why: &io::Error) -> Problem {
    Problem::BadOption {
        message: format!("cannot start `{program}`: {why}"),
        hint: Some("install the program, or write its full path".into()),
    }
}
