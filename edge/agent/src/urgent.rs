//! Raises the priority of the agent above all ordinary tasks of the guest, and locks the agent's
//! memory. A guest whose real-time tasks never block must start the agent under `chrt`.

use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::setpriority_process;

/// Gives this process the lowest nice value, and locks its memory.
pub(crate) fn become_urgent() -> io::Result<()> {
    const LEAST_NICE: i32 = -20;
    // Try both calls even if one fails: a process may be permitted to make only one of them.
    let locked = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE);
    setpriority_process(None, LEAST_NICE)?;
    Ok(locked?)
}
