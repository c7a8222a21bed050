//! Roles that users have through their groups, and the user as which the front process runs.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use slackline_service::Role;

/// Name of the group of operators. The user as which the front process runs has the same name.
pub const OPERATORS: &str = "slackline";

/// Name of the group whose members are administrators.
pub const ADMINISTRATORS: &str = "slackline-admin";

/// Name of the user as which the front process runs if the host has no user [`OPERATORS`].
const NOBODY: &str = "nobody";

/// Ids of the groups that give a role on this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct People {
    /// Id of the group of operators. `None` if the host has no such group.
    pub operators: Option<u32>,
    /// Id of the group of administrators. `None` if the host has no such group.
    pub administrators: Option<u32>,
}

impl People {
    /// Reads the groups from the host's group file.
    ///
    /// # Errors
    /// If the group file exists and cannot be read.
    pub fn of_this_host() -> io::Result<People> {
        read(Path::new("/etc/group")).map(|text| People::of(&text))
    }

    fn of(groups: &str) -> People {
        let group = |name| ids(groups, name).and_then(|ids| ids.first().copied());
        People { operators: group(OPERATORS), administrators: group(ADMINISTRATORS) }
    }

    /// Returns the role of a user who is in the groups `gids`. `None` if the groups give the user
    /// no role.
    #[must_use]
    pub fn role(&self, uid: u32, gids: &[u32]) -> Option<Role> {
        let is_in = |group: Option<u32>| group.is_some_and(|group| gids.contains(&group));
        if uid == 0 || is_in(self.administrators) {
            Some(Role::Administrator)
        } else if is_in(self.operators) {
            Some(Role::Operator)
        } else {
            None
        }
    }

    /// Returns the groups in `gids` that give a role.
    #[must_use]
    pub fn that_matter(&self, gids: &[u32]) -> Vec<u32> {
        let all = [self.operators, self.administrators];
        all.into_iter().flatten().filter(|group| gids.contains(group)).collect()
    }
}

/// Returns the members of the operators' group who are not in the administrators' group. Each has a
/// name, and a user id if that is known.
///
/// # Errors
/// If the host's files of users or groups exist and cannot be read.
pub fn members() -> io::Result<Vec<(String, Option<u32>)>> {
    Ok(members_of(&read(Path::new("/etc/group"))?, &read(Path::new("/etc/passwd"))?))
}

fn members_of(groups: &str, users: &str) -> Vec<(String, Option<u32>)> {
    let administrators = names_of(ADMINISTRATORS, groups, users);
    let mut all = names_of(OPERATORS, groups, users);
    // The front's own user makes no requests.
    all.retain(|name| *name != OPERATORS && !administrators.contains(name));
    let uid = |name: &str| ids(users, name)?.first().copied();
    all.into_iter().map(|name| (name.to_owned(), uid(name))).collect()
}

/// Returns the name of a user of this host who may not connect to the daemon's socket, because the
/// user is in neither of the two groups. `None` if the user may connect, or if the host's user file
/// does not contain the user. In that case another source, such as LDAP, can list the user's
/// groups.
///
/// # Errors
/// If the host's files of users or groups exist and cannot be read.
pub fn kept_from_socket(uid: u32) -> io::Result<Option<String>> {
    let (groups, users) = (read(Path::new("/etc/group"))?, read(Path::new("/etc/passwd"))?);
    Ok(kept_out(uid, &groups, &users))
}

fn kept_out(uid: u32, groups: &str, users: &str) -> Option<String> {
    let may_connect = [OPERATORS, ADMINISTRATORS].map(|group| names_of(group, groups, users));
    let has_uid = |line: &&str| {
        line.split(':').nth(2).and_then(|id| id.parse().ok()) == Some(uid) && uid != 0
    };
    let of_uid = users.lines().filter(has_uid).filter_map(|line| line.split(':').next());
    let names: Vec<&str> = of_uid.collect();
    let is_in = |name: &&str| may_connect.iter().any(|members| members.contains(name));
    let name = names.first().filter(|_| !names.iter().any(is_in))?;
    Some((*name).to_owned())
}

/// Returns the names of the members of a group, sorted. Empty if there is no such group.
fn names_of<'a>(name: &str, groups: &'a str, users: &'a str) -> BTreeSet<&'a str> {
    let group = groups.lines().find(|line| line.split(':').next() == Some(name));
    let Some(group) = group else { return BTreeSet::new() };
    let gid = group.split(':').nth(2).unwrap_or_default();
    let named = group.split(':').nth(3).unwrap_or_default().split(',');
    let is_primary = |line: &&str| line.split(':').nth(3) == Some(gid);
    let primary = users.lines().filter(is_primary).filter_map(|line| line.split(':').next());
    named.chain(primary).filter(|name| !name.is_empty()).collect()
}

/// Returns the user id and group id as which the front process runs. They are the ids of the user
/// [`OPERATORS`], or of `nobody` if the host has no such user. `None` if the host has neither user.
///
/// # Errors
/// If the host's user file exists and cannot be read.
pub fn front_user() -> io::Result<Option<(u32, u32)>> {
    read(Path::new("/etc/passwd")).map(|text| user_of(&text))
}

fn user_of(users: &str) -> Option<(u32, u32)> {
    let user = |name| match ids(users, name)?[..] {
        // The front must not run as root.
        [uid, gid] if uid != 0 && gid != 0 => Some((uid, gid)),
        _ => None,
    };
    user(OPERATORS).or_else(|| user(NOBODY))
}

/// Returns the one or two ids on the line for `name` in a file of users or groups, such as
/// `name:x:1000:100:...`. `None` if there is no such line.
fn ids(text: &str, name: &str) -> Option<Vec<u32>> {
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    let ids = line.split(':').skip(2).take(2).map_while(|id| id.parse().ok());
    Some(ids.collect())
}

fn read(path: &Path) -> io::Result<String> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_role_is_set_by_groups_and_root_is_administrator() {
        let people = People::of("root:x:0:\nslackline:x:990:ann\nslackline-admin:x:991:\n");
        assert_eq!(people, People { operators: Some(990), administrators: Some(991) });
        assert_eq!(people.role(1000, &[100]), None);
        assert_eq!(people.role(1000, &[100, 990]), Some(Role::Operator));
        assert_eq!(people.role(1000, &[990, 991]), Some(Role::Administrator));
        assert_eq!(people.role(0, &[]), Some(Role::Administrator));
        assert_eq!(people.that_matter(&[5, 991, 6]), [991]);
        let none = People::of("users:x:100:\n");
        assert_eq!((none.role(1000, &[100]), none.role(1000, &[0])), (None, None));
    }

    #[test]
    fn group_members_include_users_with_matching_primary_group() {
        let groups = "slackline:x:990:ann,bob,eve,dan\nslackline-admin:x:991:eve\n";
        let users = "ann:x:1000:100::/:\ncarl:x:1002:990::/:\nslackline:x:990:990::/:\n\
                     dan:x:1003:991::/:\n";
        let known = |name: &str, uid| (name.to_owned(), uid);
        let all = [known("ann", Some(1000)), known("bob", None), known("carl", Some(1002))];
        assert_eq!(members_of(groups, users), all);
        assert_eq!(members_of("users:x:100:ann\n", users), []);
    }

    #[test]
    fn user_outside_both_groups_is_kept_from_the_socket() {
        let groups = "slackline:x:990:ann\nslackline-admin:x:991:eve\nusers:x:100:bob\n";
        let users = "root:x:0:0::/:\nann:x:1000:100::/:\nbob:x:1001:100::/:\n\
                     carl:x:1002:990::/:\neve:x:1003:100::/:\n";
        let kept = |uid| kept_out(uid, groups, users);
        assert_eq!(kept(1001).as_deref(), Some("bob"));
        // The last user is unknown to the host's user file.
        let is_free = [0, 1000, 1002, 1003, 5001].map(|uid| kept(uid).is_none());
        assert_eq!(is_free, [true; 5]);
        // Two names can have the same user id.
        let twice = format!("robert:x:1001:990::/:\n{users}");
        assert_eq!(kept_out(1001, groups, &twice), None);
        assert_eq!(kept_out(1000, "users:x:100:ann\n", users).as_deref(), Some("ann"));
    }

    #[test]
    fn front_process_of_the_daemon_never_runs_as_root() {
        let nobody = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n";
        assert_eq!(user_of(nobody), Some((65534, 65534)));
        assert_eq!(user_of(&format!("slackline:x:990:991::/:\n{nobody}")), Some((990, 991)));
        assert_eq!(user_of(&format!("slackline:x:0:0::/:\n{nobody}")), Some((65534, 65534)));
        assert_eq!(user_of("root:x:0:0:root:/:/bin/sh\n"), None);
    }
}
