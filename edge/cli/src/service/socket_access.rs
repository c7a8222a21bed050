//! Warning about a grant for a local user who cannot reach the daemon.

use slackline_daemon::people::{ADMINISTRATORS, OPERATORS, kept_from_socket};

use crate::terminal;

/// Prints a warning if a grant is for a local user who may not connect to the daemon's socket. The
/// text `whom` is the number of a local user or the name of a remote client.
pub(super) fn warn_of_missing_group(whom: &str) {
    let Ok(uid) = whom.parse() else { return };
    // The grant is valid even if the host's lists of users and groups cannot be read.
    if let Ok(Some(name)) = kept_from_socket(uid) {
        terminal::tell(&warning(uid, &name));
    }
}

fn warning(uid: u32, name: &str) -> String {
    format!(
        "warning: uid {uid} ({name}) cannot connect to the daemon: the user is in neither of the \
         groups {OPERATORS} and {ADMINISTRATORS}\nhint:  run `sudo usermod --append --groups \
         {OPERATORS} {name}`; the user must then log in again\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_about_user_outside_groups_includes_command_to_add_user() {
        let expected = "warning: uid 1001 (bob) cannot connect to the daemon: the user is in \
                        neither of the groups slackline and slackline-admin\nhint:  run `sudo \
                        usermod --append --groups slackline bob`; the user must then log in \
                        again\n";
        assert_eq!(warning(1001, "bob"), expected);
    }
}
