//! Messages of the daemon to systemd's journal. Each kind of message has an id that never changes.
//!
//! By the id, an administrator can filter messages with `journalctl MESSAGE_ID=...`, even if a
//! later version changes the text. Without a journal, messages are lines on standard error.

use std::env;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Kind of a message to the administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Text with which each message of this kind begins.
    pub begin: &'static str,
    /// Value of `MESSAGE_ID` in the journal.
    pub id: &'static str,
    /// Syslog priority of the message, from 0 (emergency) to 7 (debug).
    pub priority: u8,
    /// Meaning of the message and advice for the administrator, as printed in the documentation.
    pub meaning: &'static str,
}

/// All kinds of messages after which an administrator may have to act.
pub const NOTICES: [Notice; 11] = [
    Notice {
        begin: "ready on CPU",
        id: "498d4f9997435b9ba9d3fa05d026d35a",
        priority: 6,
        meaning: "the daemon is ready",
    },
    Notice {
        begin: "no reservation was enforced for",
        id: "07e91d211d1558f28fe2613eba2f59b0",
        priority: 4,
        meaning: "no daemon ran for the stated time; VMs ran as ordinary threads",
    },
    Notice {
        begin: "the keeper died and was replaced",
        id: "a97ba38be51e5b26bedb0399a529a3eb",
        priority: 4,
        meaning: "the keeper process was killed; nothing to do unless this repeats",
    },
    Notice {
        begin: "the front process ended and was replaced",
        id: "6f00613561855527aed5aaa07e9900ed",
        priority: 4,
        meaning: "the front process was killed; clients connect again",
    },
    Notice {
        begin: "cannot write the ledger",
        id: "d81a42e52e335a1fbe2b82939939c137",
        priority: 3,
        meaning: "no change is accepted until the ledger can be written; \
                  see `df /var/lib/slackline`",
    },
    Notice {
        begin: "cannot write the history",
        id: "0fcacf264c495dfe89bdfc8f5d0ec571",
        priority: 3,
        meaning: "the history is written later, or lost if the daemon ends before that",
    },
    Notice {
        begin: "cannot back up the ledger",
        id: "6f29d59da7ec50aa8862f12a0c2409af",
        priority: 4,
        meaning: "the daemon tries the backup again in an hour; see `df /var/lib/slackline`",
    },
    Notice {
        begin: "cannot write a heartbeat",
        id: "3f0b24c31de25492b1852937aef03dae",
        priority: 4,
        meaning: "after a crash, the time without a daemon is not reported; \
                  see `ls -ld /run/slackline`",
    },
    Notice {
        begin: "cannot reserve CPU for the front process",
        id: "d4dee746ec805438abe4ebeecfcc4c73",
        priority: 4,
        meaning: "requests may be answered late; release a reservation",
    },
    Notice {
        begin: "cannot restore ",
        id: "9b7c01e775d558849a2221c3678e4a63",
        priority: 3,
        meaning: "a thread of a killed run keeps its scheduling class; \
                  see `slackline doctor --free`",
    },
    Notice {
        begin: "cannot reload ",
        id: "2bdaceca801c53b2acccbdec2926d047",
        priority: 3,
        meaning: "the old contents of a file stay in force; correct the file, and reload again",
    },
];

/// Syslog priority of messages whose kind is not in [`NOTICES`]: 5, which means notice.
const OTHER: u8 = 5;

/// Path of the journal's socket.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Receiver of the daemon's messages: the journal, or standard error.
#[derive(Debug)]
pub struct Messages {
    journal: Option<UnixDatagram>,
}

impl Messages {
    /// Chooses the receiver of messages: the journal if standard error leads to the journal, and
    /// otherwise standard error.
    #[must_use]
    pub fn open() -> Messages {
        let is_journal = env::var("JOURNAL_STREAM").is_ok_and(|stream| is_stderr(&stream));
        Messages { journal: is_journal.then(|| connect(Path::new(SOCKET)).ok()).flatten() }
    }

    /// Sends a message without waiting. If the message cannot be sent to the journal, it goes to
    /// standard error. If that fails too, the message is lost.
    pub fn send(&self, line: &str) {
        let sent = self.journal.as_ref().is_some_and(|it| it.send(&fields(line)).is_ok());
        if !sent {
            let _ = writeln!(io::stderr(), "slackline: {line}");
        }
    }
}

fn connect(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Returns true if `stream` names this process's standard error, in the form `DEVICE:INODE`.
fn is_stderr(stream: &str) -> bool {
    let stat = rustix::fs::fstat(io::stderr().as_fd());
    stat.is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Returns a message as fields in the native format of the journal.
fn fields(line: &str) -> Vec<u8> {
    let notice = NOTICES.iter().find(|notice| line.starts_with(notice.begin));
    let priority = notice.map_or(OTHER, |notice| notice.priority);
    let mut text = format!("SYSLOG_IDENTIFIER=slackline\nPRIORITY={priority}\n");
    if let Some(notice) = notice {
        text += &format!("MESSAGE_ID={}\n", notice.id);
    }
    // A text with its length may have several lines.
    let mut bytes = (text + "MESSAGE\n").into_bytes();
    bytes.extend(u64::try_from(line.len()).unwrap_or(u64::MAX).to_le_bytes());
    bytes.extend(line.as_bytes());
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn notice_is_sent_to_systemd_journal_with_id_and_priority() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let messages = Messages { journal: Some(connect(&path).unwrap()) };
        messages.send("cannot write the ledger: no space\nleft");
        let mut bytes = [0; 512];
        let length = journal.recv(&mut bytes).unwrap();
        let id =
            NOTICES.iter().find(|notice| notice.begin == "cannot write the ledger").unwrap().id;
        let mut expected =
            format!("SYSLOG_IDENTIFIER=slackline\nPRIORITY=3\nMESSAGE_ID={id}\nMESSAGE\n")
                .into_bytes();
        expected.extend(38_u64.to_le_bytes());
        expected.extend(b"cannot write the ledger: no space\nleft\n");
        assert_eq!(String::from_utf8_lossy(&bytes[..length]), String::from_utf8_lossy(&expected));
        // A message that is not in NOTICES has no id.
        assert!(!String::from_utf8(fields("reloaded prices")).unwrap().contains("MESSAGE_ID"));
    }

    #[test]
    fn every_notice_id_is_unique_and_used_by_the_daemon() {
        let ids: BTreeSet<&str> = NOTICES.iter().map(|notice| notice.id).collect();
        assert_eq!(ids.len(), NOTICES.len());
        assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|it| it.is_ascii_hexdigit())));
        let sources = [
            include_str!("core.rs"),
            include_str!("core/leftovers.rs"),
            include_str!("core/reload.rs"),
        ];
        for notice in NOTICES {
            let text = format!("\"{}", notice.begin);
            assert!(sources.iter().any(|source| source.contains(&text)), "{}", notice.begin);
        }
    }

    #[test]
    fn stderr_counts_as_journal_only_if_variable_journal_stream_matches() {
        assert!(!is_stderr("1:2") && !is_stderr(""));
        let stat = rustix::fs::fstat(io::stderr().as_fd()).unwrap();
        assert!(is_stderr(&format!("{}:{}", stat.st_dev, stat.st_ino)));
    }

    #[test]
    fn every_notice_id_is_explained_in_the_operations_manual() {
        let manual = include_str!("../../../docs/operations.md");
        for Notice { begin, id, .. } in NOTICES {
            assert!(manual.contains(id), "{begin} {id}");
        }
    }
}
