//! A sign of life, so that whoever comes after us knows how long nobody kept the promises.
//!
//! It is written a few times a second, by a thread that must never wait for a disk: it is beside
//! the socket, where a host has memory and no disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use slackline_linux::sys::monotonic;
use slackline_units::{Span, Time};

/// How often one is given: so much too long a lapse is said to have been, at most.
pub(super) const EVERY: Span = Span::from_ms(250);

/// A file in which it stands who is alive.
#[derive(Debug)]
pub(super) struct Alive {
    file: File,
    boot: String,
    /// How often a daemon was started here again since the host was.
    pub(super) restarts: u64,
}

impl Alive {
    /// Begins to give signs, for the socket at this path. Says when the last one was given, if that
    /// was since the host was started.
    pub(super) fn begin(socket: &Path, boot: &str) -> io::Result<(Alive, Option<Time>)> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".alive");
        let mut options = OpenOptions::new();
        // A link is somebody else's.
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let mut file = options.open(PathBuf::from(path))?;
        let mut text = String::new();
        // What makes no sense tells nothing.
        let _ = (&mut file).take(200).read_to_string(&mut text);
        let before = before(&text, boot);
        let restarts = before.map_or(0, |(restarts, _)| restarts + 1);
        let mut alive = Alive { file, boot: boot.to_owned(), restarts };
        alive.sign();
        Ok((alive, before.map(|(_, at)| at)))
    }

    /// We are alive.
    pub(super) fn sign(&mut self) {
        let text = format!(
            "{} {:020} {:020}\n",
            self.boot,
            self.restarts,
            monotonic().since(Time::START).ns()
        );
        // One that cannot be given makes a lapse seem longer.
        let _ = self.file.write_all_at(text.as_bytes(), 0);
    }
}

/// How often there was a start before, and when the last sign was given.
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
    fn who_comes_next_knows_since_when_nobody_was_alive() {
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
        // Times of another boot mean nothing, nor does what somebody else wrote.
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
