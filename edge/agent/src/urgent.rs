//! Being there in time: before all ordinary tasks of the guest, and all in memory. Who has work in
//! real time that never sleeps starts the agent under `chrt`.

use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::setpriority_process;

/// Gives the program the least nice value, and keeps it in memory.
pub(crate) fn become_urgent() -> io::Result<()> {
    const LEAST_NICE: i32 = -20;
    // Who may not have the one may still have the other.
    let locked = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE);
    setpriority_process(None, LEAST_NICE)?;
    Ok(locked?)
}
