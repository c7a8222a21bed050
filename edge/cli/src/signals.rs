//! Being asked to stop.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::problem::Problem;

/// What becomes true when somebody wants us to stop; asked a second time, we end at once.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, Problem> {
    let cannot = |source| Problem::Unreadable { file: "a signal".into(), source };
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first time the flag is not set yet.
        signal_hook::flag::register_conditional_default(signal, flag.clone()).map_err(cannot)?;
        signal_hook::flag::register(signal, flag.clone()).map_err(cannot)?;
    }
    Ok(flag)
}

/// A socket that becomes readable when somebody wants us to stop.
pub(crate) fn stop_signal() -> Result<(UnixStream, UnixStream), Problem> {
    raised_by(&[SIGINT, SIGTERM, SIGHUP])
}

/// The same of a daemon, and one that becomes readable when it is to read its files again.
pub(crate) fn daemon_signals() -> Result<[(UnixStream, UnixStream); 2], Problem> {
    Ok([raised_by(&[SIGINT, SIGTERM])?, raised_by(&[SIGHUP])?])
}

fn raised_by(signals: &[i32]) -> Result<(UnixStream, UnixStream), Problem> {
    let cannot = |source| Problem::Unreadable { file: "a socket pair".into(), source };
    let (read, write) = UnixStream::pair().map_err(cannot)?;
    for &signal in signals {
        let write = write.try_clone().map_err(cannot)?;
        signal_hook::low_level::pipe::register(signal, write).map_err(cannot)?;
    }
    Ok((read, write))
}
