//! Ending a process together with the process that started it.

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::LoadError;

/// Makes the kernel kill this process when the one that started it ends.
///
/// More exactly: when that process's *thread* that started this one ends. It should therefore be a
/// thread that lives as long as its process. `parent` is the process id of the starter, which the
/// starter must pass on: it may have ended before this is called, and then no process is left whose
/// end could be noticed.
///
/// # Errors
/// If our present parent is another process, or the kernel refuses.
pub fn end_with(parent: u32) -> Result<(), LoadError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| LoadError::NotTied { parent, source: error.into() })?;
    // Checked only after the kernel knows what to do: an end before that has changed our parent,
    // and one after it is noticed by the kernel.
    let now = getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
    if now == Some(parent) { Ok(()) } else { Err(LoadError::Orphaned { parent }) }
}
