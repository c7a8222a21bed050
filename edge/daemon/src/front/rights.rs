//! Function by which the front process permanently drops all its rights.

use std::io;

use rustix::fs::{Gid, Uid};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, geteuid, set_dumpable_behavior, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// Maximum number of file descriptors of the front process: one for each connection, plus the
/// descriptors that the process needs for itself.
pub(crate) const DESCRIPTORS: u64 = 128;

/// Drops all rights of the calling thread: groups, capabilities, and every way to get new rights.
/// If the thread runs as root, it becomes `user`. After the call, the process can start neither
/// threads nor processes, and cannot be traced. Other threads of the process keep their rights
/// until they call this function too.
///
/// # Errors
/// If a right remains, or if there is no unprivileged user that the process can become.
pub(super) fn give_up(user: Option<(u32, u32)>) -> io::Result<()> {
    if geteuid().is_root() {
        let (uid, gid) = user.ok_or_else(|| {
            io::Error::other(
                "cannot drop privileges: this host has no user `slackline` or `nobody`",
            )
        })?;
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_no_new_privs(true)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let at_most = |most| Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::Nofile, at_most(DESCRIPTORS))?;
    setrlimit(Resource::Nproc, at_most(0))?;
    setrlimit(Resource::Core, at_most(0))?;
    Ok(())
}
