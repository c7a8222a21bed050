//! What others have left behind who died: given back before anything of it is taken again.

use std::time::Duration;

use slackline_fence::{
    KeeperCommand, give_back_all, give_back_budgets, keepers_have_ended, leftovers,
};

/// How long the keeper of one that died is waited for: what it gives back must not be taken before
/// that. With 500 held it needs a third of a second.
const PATIENCE: Duration = Duration::from_secs(2);

/// What others who are dead left is given back, before anything of it is taken again.
pub(super) fn free_leftovers(keeper: &KeeperCommand, tell: &mut dyn FnMut(&str)) {
    if !keepers_have_ended(&keeper.state_directory, PATIENCE) {
        tell("the keeper of a killed run is still restoring threads");
    }
    let left = leftovers(&keeper.state_directory);
    for (thread, given_back) in left.threads.iter().zip(give_back_all(&left.threads)) {
        let whose = format!("thread {} of process {}", thread.tid(), thread.pid());
        match given_back {
            Ok(_) => tell(&format!("{whose} was left held by a killed run and is restored")),
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
