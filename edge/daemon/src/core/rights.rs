//! What of root's rights the core keeps: as much as the unit of systemd leaves it, also where root
//! has started it by hand.

use std::io;
use std::path::Path;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
};

/// As in the unit, where each is explained; and to give the socket, which systemd would have made,
/// to its group.
const NEEDED: CapabilitySet = CapabilitySet::SYS_NICE
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::CHOWN);

/// Where the kernel's events are told of; where that is mounted nowhere, we do it ourselves.
const EVENTS: [&str; 2] = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];

/// Gives up all other rights, for this thread and whatever it starts, for good. To be called before
/// there is another thread.
///
/// # Errors
/// The kernel's; then some are given up.
pub(super) fn keep_what_is_needed() -> io::Result<()> {
    let is_mounted = EVENTS.iter().any(|path| Path::new(path).is_dir());
    let mounts = if is_mounted { CapabilitySet::empty() } else { CapabilitySet::SYS_ADMIN };
    let needed = NEEDED | mounts;
    let now = capabilities(None)?;
    // Who may not take them out of the set has them from a file, and cannot get more by it.
    if now.effective.contains(CapabilitySet::SETPCAP) {
        for one in CapabilitySet::all().difference(needed).iter() {
            // One that this kernel does not know is in no set.
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
