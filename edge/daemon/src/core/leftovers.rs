//! Threads and budgets that killed runs of Slackline have changed and not restored. The daemon
//! restores them before it schedules any such thread again.

use std::time::Duration;

use slackline_fence::{
    KeeperCommand, Leftover, give_back_all, give_back_budgets, keepers_have_ended, leftovers,
};
use slackline_live::mechanism::DeadlineThread;

/// Longest wait for the keeper processes of killed runs to end. A keeper restores the threads of
/// its run, and must have finished before such a thread is scheduled again. It takes a third of a
/// second for 500 threads.
const PATIENCE: Duration = Duration::from_secs(2);

/// Restores the threads and budgets that killed runs left changed. Reports each restored thread
/// with `tell`.
pub(super) fn free_leftovers(keeper: &KeeperCommand, tell: &mut dyn FnMut(&str)) {
    if !keepers_have_ended(&keeper.state_directory, PATIENCE) {
        tell("the keeper of a killed run is still restoring threads");
    }
    let mut left = leftovers(&keeper.state_directory);
    left.threads.retain(|thread| !thread.is_kept());
    for (thread, given_back) in left.threads.iter().zip(give_back_all(&left.threads)) {
        let whose = format!("thread {} of process {}", thread.tid(), thread.pid());
        match given_back {
            Ok(_) => tell(&format!(
                "{whose} was left stopped or real-time by a killed run, and was now restored"
            )),
            Err(error) => tell(&format!("cannot restore {whose}: {error}")),
        }
    }
    for line in give_back_budgets(&keeper.state_directory) {
        tell(&line.to_string());
    }
    for error in &left.unread {
        tell(&error.to_string());
    }
}

/// Restores the threads for which the kernel still enforces a reservation of a killed daemon, if
/// this daemon has not adopted that reservation.
pub(super) fn free_kept(keeper: &KeeperCommand, tell: &mut dyn FnMut(&str)) {
    let mut left = leftovers(&keeper.state_directory);
    left.threads.retain(Leftover::is_kept);
    for (thread, given_back) in left.threads.iter().zip(give_back_all(&left.threads)) {
        let whose = format!("thread {} of process {}", thread.tid(), thread.pid());
        match given_back {
            Ok(_) => {
                tell(&format!(
                    "{whose} was restored: the kernel still enforced its reservation, and that \
                     reservation no longer exists"
                ));
            }
            Err(error) => tell(&format!("cannot restore {whose}: {error}")),
        }
    }
}

/// Returns the deadline threads of all programs, except those that a killed daemon left under the
/// kernel's enforcement. The reservations of these threads are in the ledger, so admission counts
/// them already.
pub(super) fn deadline_threads_not_kept(keeper: &KeeperCommand) -> Vec<DeadlineThread> {
    let left = leftovers(&keeper.state_directory);
    let mut threads = DeadlineThread::all();
    threads.retain(|one| !left.threads.iter().any(|left| left.tid() == one.tid));
    threads
}
