//! Signals that ask the program to stop or to reload files.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGTTIN};
use slackline_linux::sys::ignore_signal;

use crate::problem::Problem;

/// Returns the error for a signal handler that cannot be set up.
#[allow(clippy::needless_pass_by_value, reason = "`map_err` passes its error by value")]
pub(crate) fn cannot_set_up(source: std::io::Error) -> Problem {
    Problem::HostCannot { message: format!("cannot set up signal handlers: {source}"), hint: None }
}

/// Returns a flag that becomes true when a signal asks to stop. A second signal ends the program at
/// once.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, Problem> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The order matters: at the first signal the flag must not be set yet.
        signal_hook::flag::register_conditional_default(signal, flag.clone())
            .map_err(cannot_set_up)?;
        signal_hook::flag::register(signal, flag.clone()).map_err(cannot_set_up)?;
    }
    Ok(flag)
}

/// Returns a socket that becomes readable when a signal asks the program to stop, and the other end
/// of this socket pair.
pub(crate) fn stop_signal() -> Result<(UnixStream, UnixStream), Problem> {
    raised_by(&[SIGINT, SIGTERM, SIGHUP])
}

/// Returns two sockets for a daemon. One becomes readable when a signal asks to stop, the other
/// when a signal asks to reload files.
pub(crate) fn daemon_signals() -> Result<[(UnixStream, UnixStream); 2], Problem> {
    Ok([raised_by(&[SIGINT, SIGTERM])?, raised_by(&[SIGHUP])?])
}

/// Keeps the terminal from stopping this program while it schedules threads, for example by Ctrl-Z.
/// A stopped dispatcher would leave each thread either stopped or real-time. Programs that this
/// program starts can still be stopped.
pub(crate) fn stay_running() -> Result<(), Problem> {
    // A handler is used because programs that this program starts would inherit an ignored signal.
    // They do not inherit a handler.
    for signal in [SIGTSTP, SIGTTIN] {
        signal_hook::flag::register(signal, Arc::default()).map_err(cannot_set_up)?;
    }
    // `SIGTTOU` is ignored. With a handler, it would interrupt each write to the terminal forever.
    ignore_signal(Signal::TTOU).map_err(cannot_set_up)
}

fn raised_by(signals: &[i32]) -> Result<(UnixStream, UnixStream), Problem> {
    let (read, write) = UnixStream::pair().map_err(cannot_set_up)?;
    for &signal in signals {
        let write = write.try_clone().map_err(cannot_set_up)?;
        signal_hook::low_level::pipe::register(signal, write).map_err(cannot_set_up)?;
    }
    Ok((read, write))
}
