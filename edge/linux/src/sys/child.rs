//! Child processes: commands that are killed when this process ends, and commands that wait for
//! permission to start.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use super::Tid;

/// Makes the kernel kill the process of this command when the thread that starts it ends for any
/// reason. So the starting thread should live as long as this process.
pub fn die_with_us(command: &mut Command) {
    let us = std::process::id();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // Checked after the request to the kernel: if the parent ended before the request, the
        // kernel sends no signal.
        let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
        let is_ours = parent.and_then(|pid| u32::try_from(pid).ok()) == Some(us);
        if is_ours { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    };
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe {
        command.pre_exec(tie);
    }
}

/// Value that makes a waiting process execute its command.
const GO: u64 = 1;
/// Value that makes a waiting process exit.
const GIVE_UP: u64 = 2;

/// Interval, 100 ms, at which a waiting process checks that its parent still exists.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A process that was forked for a command and waits before it executes the command. Meanwhile the
/// caller can set its scheduling. Dropping this value before [`go`](WaitingCommand::go) ends the
/// process.
#[derive(Debug)]
pub struct WaitingCommand {
    pid: Tid,
    /// Counter from which the waiting process reads [`GO`] or [`GIVE_UP`].
    gate: OwnedFd,
    /// Thread that waits until the process has executed its command. `None` after this thread was
    /// joined.
    spawning: Option<JoinHandle<io::Result<Child>>>,
}

impl WaitingCommand {
    /// Forks the process of a command.
    ///
    /// # Errors
    /// If the kernel has no space for another process, thread or descriptor.
    pub fn start(mut command: Command) -> io::Result<WaitingCommand> {
        let (pid_reader, pid_writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let gate = eventfd(0, EventfdFlags::CLOEXEC)?;
        let waits_at = gate.try_clone()?;
        let parent = getpid();
        let wait = move || {
            let pid = getpid().as_raw_nonzero().get();
            rustix::io::write(&pid_writer, &pid.to_ne_bytes())?;
            wait_at(&waits_at, parent)?;
            // This process may ignore `SIGTTOU`. The command must not inherit that.
            // SAFETY: the call installs no handler, so the signal runs no code of this process.
            let _ = unsafe { libc::signal(libc::SIGTTOU, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
        unsafe {
            command.pre_exec(wait);
        }
        // `spawn` returns only when the new process has called exec, so it runs on another thread.
        // That thread then drops the command, and with it this process's copy of `pid_writer`.
        let spawning = std::thread::Builder::new().spawn(move || command.spawn())?;
        let mut pid = [0; 4];
        let length = retry_on_intr(|| rustix::io::read(&pid_reader, &mut pid))?;
        let pid = Tid::new(i32::from_ne_bytes(pid)).filter(|_| length == pid.len());
        let Some(pid) = pid else {
            let failed = joined(spawning).err();
            return Err(failed.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()));
        };
        Ok(WaitingCommand { pid, gate, spawning: Some(spawning) })
    }

    /// Returns the id of the process. The command will have the same id.
    #[must_use]
    pub const fn pid(&self) -> Tid {
        self.pid
    }

    /// Lets the process execute its command.
    ///
    /// # Errors
    /// If the command cannot be executed. In that case the process has ended.
    pub fn go(mut self) -> io::Result<Child> {
        self.tell(GO);
        self.spawning.take().map_or_else(|| Err(io::ErrorKind::NotFound.into()), joined)
    }

    fn tell(&self, word: u64) {
        // The write cannot block, since the counter has space for the sum of both values.
        let _ = retry_on_intr(|| rustix::io::write(&self.gate, &word.to_ne_bytes()));
    }
}

impl Drop for WaitingCommand {
    fn drop(&mut self) {
        if let Some(spawning) = self.spawning.take() {
            self.tell(GIVE_UP);
            let _ = joined(spawning);
        }
    }
}

/// Waits in the new process until the parent allows it to execute the command.
fn wait_at(gate: &OwnedFd, parent: Pid) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(gate, PollFlags::IN)], Some(&LOOK)) {
            Ok(0) if getppid() != Some(parent) => return Err(Errno::SRCH.into()),
            Ok(0) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    let mut word = [0; 8];
    rustix::io::read(gate, &mut word)?;
    if word == GO.to_ne_bytes() { Ok(()) } else { Err(Errno::CANCELED.into()) }
}

fn joined(spawning: JoinHandle<io::Result<Child>>) -> io::Result<Child> {
    spawning.join().unwrap_or_else(|_| Err(io::Error::other("the spawning thread panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_started_in_waiting_state_executes_only_when_released() {
        let mut command = Command::new("sh");
        command.args(["-c", "exit 7"]);
        let waiting = WaitingCommand::start(command).unwrap();
        let pid = waiting.pid();
        let mut child = waiting.go().unwrap();
        assert_eq!(i32::try_from(child.id()).unwrap(), pid.raw());
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }

    #[test]
    fn nonexistent_command_in_waiting_state_fails_when_released() {
        let waiting = WaitingCommand::start(Command::new("/no/such/program")).unwrap();
        assert_eq!(waiting.go().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn command_dropped_in_waiting_state_never_executes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ran");
        let mut command = Command::new("touch");
        command.arg(&file);
        let waiting = WaitingCommand::start(command).unwrap();
        let pid = waiting.pid();
        drop(waiting);
        assert!(!file.exists());
        let folder = format!("/proc/{pid}");
        assert!(!std::path::Path::new(&folder).exists(), "the dropped process is reaped");
    }
}
