//! Heartbeat file of the daemon. From this file the next daemon computes how long reservations were
//! not enforced.
//!
//! The thread that writes the file several times a second must never wait for a disk. So the file
//! is in the folder of the socket, which hosts keep in memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use slackline_linux::sys::monotonic;
use slackline_units::{Span, Time};

/// Minimum interval between heartbeats. The core writes them, and sleeps for at most 50 ms. So a
/// heartbeat is at most 250 ms old, and the reported time without a daemon is too long by at most
/// 250 ms.
pub(super) const EVERY: Span = Span::from_ms(200);

/// Heartbeat file, with the boot id, the number of restarts and the time of the last heartbeat.
#[derive(Debug)]
pub(super) struct Alive {
    file: File,
    boot: String,
    /// Number of daemon restarts since the host was booted.
    pub(super) restarts: u64,
}

impl Alive {
    /// Starts the heartbeat in the file beside the socket `socket`. Also returns the time of the
    /// last heartbeat of an earlier daemon. This time is `None` if no daemon has run since the host
    /// was booted.
    pub(super) fn begin(socket: &Path, boot: &str) -> io::Result<(Alive, Option<Time>)> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".alive");
        let mut options = OpenOptions::new();
        // A symbolic link is not ours, so it is not followed.
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let mut file = options.open(PathBuf::from(path))?;
        let mut text = String::new();
        // A file that cannot be parsed counts as absent.
        let _ = (&mut file).take(200).read_to_string(&mut text);
        let before = before(&text, boot);
        let restarts = before.map_or(0, |(restarts, _)| restarts + 1);
        let mut alive = Alive { file, boot: boot.to_owned(), restarts };
        alive.sign();
        Ok((alive, before.map(|(_, at)| at)))
    }

    /// Writes a heartbeat with the current time.
    pub(super) fn sign(&mut self) {
        let text = format!(
            "{} {:020} {:020}\n",
            self.boot,
            self.restarts,
            monotonic().since(Time::START).ns()
        );
        // A heartbeat that cannot be written makes a later lapse seem longer.
        let _ = self.file.write_all_at(text.as_bytes(), 0);
    }
}

/// Parses a heartbeat file and returns the number of restarts and the time of the last heartbeat.
/// `None` if the text is not a heartbeat of this boot.
fn before(text: &str, boot: &str) -> Option<(u64, Time)> {
    let mut words = text.strip_suffix('\n')?.split(' ');
    let (of, restarts, at) = (words.next()?, words.next()?, words.next()?);
    let at = Time::from_ns(at.parse().ok()?);
    (of == boot && words.next().is_none() && at <= monotonic())
        .then_some((restarts.parse().ok()?, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarted_daemon_finds_its_restart_count_and_last_heartbeat() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let before = monotonic();
        let (first, none) = Alive::begin(&socket, "boot").unwrap();
        assert_eq!((first.restarts, none), (0, None));
        drop(first);
        let (mut second, last) = Alive::begin(&socket, "boot").unwrap();
        let last = last.unwrap();
        assert!(before <= last && last <= monotonic(), "{last:?}");
        second.sign();
        let (third, later) = Alive::begin(&socket, "boot").unwrap();
        assert_eq!((second.restarts, third.restarts), (1, 2));
        assert!(later.unwrap() > last);
        // Times of another boot are ignored, and so are texts in another format.
        assert_eq!(Alive::begin(&socket, "another").unwrap().1, None);
        for text in ["", "boot", "boot 1 2", "boot 1 x\n", "boot 1 99999999999999999999\n"] {
            std::fs::write(folder.path().join("socket.alive"), text).unwrap();
            assert_eq!(Alive::begin(&socket, "boot").unwrap().1, None, "{text}");
        }
        std::fs::remove_file(folder.path().join("socket.alive")).unwrap();
        std::os::unix::fs::symlink("elsewhere", folder.path().join("socket.alive")).unwrap();
        assert!(Alive::begin(&socket, "boot").is_err());
    }
}
