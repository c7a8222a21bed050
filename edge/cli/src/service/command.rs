//! `slackline reserve NAME -- COMMAND`: runs a command with a reservation, which ends with the
//! command.

use std::os::fd::AsFd;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::args::Reserve;
use super::{connect, in_same_terms, warn};
use crate::command::{HeldCommand, exit_code};
use crate::problem::Problem;
use crate::signals::stop_signal;
use crate::terminal;

/// Interval at which the program checks whether the command has ended, on kernels that do not
/// report the end of a process.
const LOOK: Duration = Duration::from_millis(100);

/// Runs a command that has a reservation from its first instruction on, and returns the command's
/// exit code. The daemon releases the reservation when the process of the command ends.
pub(super) fn reserve_command(args: &Reserve) -> Result<(), Problem> {
    let (stop, _raised) = stop_signal()?;
    let Some(mut command) = HeldCommand::start(&args.command)? else { return Ok(()) };
    let binding = format!("pid:{}", command.pid().raw());
    let wanted = args.much.wanted(Some(&binding), args.user);
    let mut client = connect(&args.at)?;
    let reserved = client.reserve(&args.name, &wanted);
    let (reservation, _) = reserved.map_err(|error| in_same_terms(&args.much, error))?;
    warn(&reservation);
    // Standard output belongs to the command.
    terminal::tell(&format!("note:  {}", super::show::one(&reservation)));
    command.go()?;
    match wait(&mut command, stop.as_fd()) {
        Some(status) => exit_code(status),
        None => {
            // Ends the command. If its child processes end too, this releases the reservation.
            drop(command);
            Err(Problem::Interrupted)
        }
    }
}

/// Waits for the end of the command. `None` if a signal asks this program to stop before that.
fn wait(command: &mut HeldCommand, stop: std::os::fd::BorrowedFd<'_>) -> Option<ExitStatus> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
    loop {
        if let Some(status) = command.status() {
            return Some(status);
        }
        let mut fds = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        fds.extend(command.ended_fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // After an error, the next round waits again.
        let ready = poll(&mut fds, Some(&timeout)).unwrap_or(0);
        if ready > 0 && !fds[0].revents().is_empty() {
            return None;
        }
    }
}
