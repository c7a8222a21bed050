//! Ends this process together with the process that started it.

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::LoadError;

/// Makes the kernel kill this process when its parent, the process that started it, ends. `parent`
/// is the process id of the parent. The parent must pass its id to this process.
///
/// More exactly, the kernel kills this process when the *thread* that started it ends. So that
/// thread should live as long as the parent. `parent` makes it possible to detect that the parent
/// ended before this call.
///
/// # Errors
/// If the current parent of this process is not `parent`, or the kernel refuses.
pub fn end_with(parent: u32) -> Result<(), LoadError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| LoadError::NotTied { parent, source: error.into() })?;
    // Checked after the request to the kernel. If the parent ended before the request, this process
    // now has another parent. If the parent ends later, the kernel kills this process.
    let now = getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
    if now == Some(parent) { Ok(()) } else { Err(LoadError::Orphaned { parent }) }
}
