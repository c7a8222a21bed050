//! Processes that we start.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Has the kernel kill the process of this command when the thread that starts it ends, however
/// that comes about. The thread should live as long as our process.
pub fn die_with_us(command: &mut Command) {
    let us = std::process::id();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // Asked only after the kernel knows what to do: had we ended before, nobody would tell.
        let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
        let is_ours = parent.and_then(|pid| u32::try_from(pid).ok()) == Some(us);
        if is_ours { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    };
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe {
        command.pre_exec(tie);
    }
}
