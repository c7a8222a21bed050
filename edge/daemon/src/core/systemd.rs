//! Notifications to systemd. They do nothing if systemd did not start the daemon.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;
use std::{env, io};

use sd_notify::NotifyState;
use slackline_linux::sys::inherited_fd;

/// Connection to systemd's notification socket.
pub(super) struct Systemd {
    /// Interval within which systemd expects a watchdog notification. `None` if there is no
    /// watchdog.
    pub(super) watchdog: Option<Duration>,
}

impl Systemd {
    pub(super) fn new() -> Systemd {
        Systemd { watchdog: sd_notify::watchdog_enabled() }
    }

    /// Sends a notification to systemd. A lost notification does no harm, because a later
    /// notification replaces it.
    fn say(states: &[NotifyState<'_>]) {
        let _ = sd_notify::notify(states);
    }

    pub(super) fn ready(&self, status: &str) {
        Systemd::say(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    pub(super) fn status(&self, status: &str) {
        Systemd::say(&[NotifyState::Status(status)]);
    }

    pub(super) fn alive(&self) {
        Systemd::say(&[NotifyState::Watchdog]);
    }

    pub(super) fn stopping(&self) {
        Systemd::say(&[NotifyState::Stopping]);
    }
}

/// Returns the listening socket that systemd passed. `None` if systemd passed no socket.
///
/// # Errors
/// If systemd passed several sockets, or a descriptor of another kind.
pub(super) fn listener() -> io::Result<Option<UnixListener>> {
    if env::var_os("LISTEN_FDS").is_none() {
        return Ok(None);
    }
    let mut fds = sd_notify::listen_fds()?;
    let wrong = |says: &str| io::Error::new(io::ErrorKind::InvalidInput, says.to_owned());
    let Some(number) = fds.next() else { return Ok(None) };
    if fds.next().is_some() {
        return Err(wrong("more than one socket was passed by LISTEN_FDS"));
    }
    let fd: OwnedFd = inherited_fd(number)?;
    let listener = UnixListener::from(fd);
    listener.local_addr().map_err(|_| wrong("the socket of LISTEN_FDS is not a Unix socket"))?;
    debug_assert!(listener.as_raw_fd() >= 3);
    Ok(Some(listener))
}
