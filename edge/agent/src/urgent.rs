//! Raises the priority of the agent above all ordinary tasks of the guest, and locks its memory. A
//! guest with real-time tasks that never block must start the agent under `chrt`.

use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::setpriority_process;

/// Sets the lowest nice value, and locks the memory of the program.
pub(crate) fn become_urgent() -> io::Result<()> {
    const LEAST_NICE: i32 = -20;
    // A process that may not do one may still do the other.
    let locked = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE);
    setpriority_process(None, LEAST_NICE)?;
    Ok(locked?)
}
