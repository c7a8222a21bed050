//! Commands of `hold -- COMMAND` that end before `hold` has limited them, such as a VM monitor with
//! a wrong option.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackline_live::vcpus::{self, FindError, VcpuThread};

use crate::command::{HeldCommand, exit_code};
use crate::problem::Problem;
use crate::terminal;

/// Time within which a VM must have started its vCPU threads.
const VCPUS_WITHIN: Duration = Duration::from_secs(5);

/// Interval at which the program looks for the vCPU threads of its command.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Longest wait for the end of a command that `hold` could not limit.
const ENDS_WITHIN: Duration = Duration::from_millis(200);

/// Waits until the command has started its vCPU threads, and returns these threads.
///
/// # Errors
/// If the command ends, if it starts no vCPU threads in time, or if a signal stops the program.
pub(super) fn await_vcpus(
    command: &mut HeldCommand,
    stop: &UnixStream,
) -> Result<Vec<VcpuThread>, Problem> {
    let deadline = Instant::now() + VCPUS_WITHIN;
    loop {
        match vcpus::find(command.pid().raw()) {
            Ok(found) => return Ok(found),
            Err(error) if command.status().is_some() || Instant::now() >= deadline => {
                return Err(not_found(&error));
            }
            Err(_) => {}
        }
        let mut stop = [PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
        // If the wait is interrupted, the next search is only earlier.
        let _ = poll(&mut stop, Some(&LOOK));
        if !stop[0].revents().is_empty() {
            return Err(Problem::Interrupted);
        }
    }
}

pub(super) fn not_found(error: &FindError) -> Problem {
    let hint = error.hint().map(str::to_owned);
    Problem::HostCannot { message: error.to_string(), hint }
}

/// Returns the result of a `hold` that could not limit its command for the reason `problem`. If the
/// command ends by itself within [`ENDS_WITHIN`], the result is the exit code of the command.
/// Otherwise, and if a signal stopped the program, it is `problem`.
pub(super) fn not_held(problem: Problem, mut command: HeldCommand) -> Result<(), Problem> {
    if matches!(problem, Problem::Interrupted) {
        return Err(problem);
    }
    match command.status_within(ENDS_WITHIN) {
        Some(status) => {
            terminal::tell("note:  the command ended before its vCPUs were scheduled\n");
            exit_code(status)
        }
        None => Err(problem),
    }
}
