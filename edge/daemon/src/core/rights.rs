//! Kernel capabilities of the daemon's main process. The process keeps the capabilities in its
//! systemd unit and drops all others, even if root starts it by hand.

use std::io;
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
};

use super::error::ServeError;
use crate::front::rights::DESCRIPTORS;

/// Capabilities that the daemon keeps: `CHOWN`, and the capabilities of its systemd unit, which the
/// unit file explains. The daemon needs `CHOWN` if systemd has not created the socket. The daemon
/// then gives the socket to its group.
const NEEDED: CapabilitySet = CapabilitySet::SYS_NICE
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::CHOWN);

/// Folders in which the kernel describes its trace events. If neither folder exists, the daemon
/// mounts the file system with these folders.
const EVENTS: [&str; 2] = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];

/// Permanently drops all capabilities that the daemon does not need. This applies to the calling
/// thread and to all threads that it starts later. Must be called while the process has only one
/// thread.
///
/// # Errors
/// If the kernel refuses. Some capabilities can have been dropped before the refusal.
pub(super) fn keep_what_is_needed() -> io::Result<()> {
    let is_mounted = EVENTS.iter().any(|path| Path::new(path).is_dir());
    let mounts = if is_mounted { CapabilitySet::empty() } else { CapabilitySet::SYS_ADMIN };
    let needed = NEEDED | mounts;
    let now = capabilities(None)?;
    // Without `SETPCAP` the bounding set cannot be reduced. The capabilities then come from a file,
    // and executing it again gives no more of them.
    if now.effective.contains(CapabilitySet::SETPCAP) {
        for one in CapabilitySet::all().difference(needed).iter() {
            // A capability that this kernel does not know is in no set.
            if capability_is_in_bounding_set(one).unwrap_or(false) {
                remove_capability_from_bounding_set(one)?;
            }
        }
    }
    clear_ambient_capability_set()?;
    let (effective, permitted) = (now.effective & needed, now.permitted & needed);
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?;
    Ok(())
}

/// Returns an error if the front process needs more file descriptors than `most`, the hard limit of
/// a process. `most` is `None` if there is no limit.
pub(super) fn enough_descriptors(most: Option<u64>) -> Result<(), ServeError> {
    match most {
        Some(most) if most < DESCRIPTORS => {
            Err(ServeError::FewDescriptors { most, needed: DESCRIPTORS })
        }
        _ => Ok(()),
    }
}

/// Raises the soft limit on this process's file descriptors to the hard limit. The session holds
/// two descriptors for each scheduled thread of a process tree, and a user can start many threads.
pub(super) fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, the present one is used.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_process_raises_its_file_descriptor_limit_to_hard_limit() {
        let limit = || getrlimit(Resource::Nofile);
        let Some(most) = limit().maximum else { return };
        let low = Rlimit { current: Some(most.min(900)), ..limit() };
        setrlimit(Resource::Nofile, low).unwrap();
        raise_descriptors();
        assert_eq!(limit().current, Some(most));
    }

    #[test]
    fn daemon_refuses_to_start_with_fewer_than_128_file_descriptors() {
        assert!(enough_descriptors(None).is_ok() && enough_descriptors(Some(128)).is_ok());
        let error = enough_descriptors(Some(127)).unwrap_err();
        let says = "cannot start: a process may open only 127 files, and the daemon needs 128";
        assert_eq!(error.to_string(), says);
        assert!(error.hint().is_some());
    }
}
