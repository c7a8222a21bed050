//! The connection between owner and keeper, from the owner's side. The owner is the process that
//! changes threads. The keeper restores the threads if the owner dies.

use std::ffi::OsString;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{SendFlags, send};
use thiserror::Error;

use super::entry::{Entry, TaskIdentity, path_text};

/// Time limit for an answer of the keeper. Normally the keeper answers within a millisecond,
/// because only dispatchers have a higher priority than the keeper. A host on which an answer takes
/// longer than this limit is too slow to schedule threads.
const PATIENCE: Duration = Duration::from_secs(5);

/// Command that starts the keeper. The started program must call only
/// [`keeper_main`](super::keeper_main).
#[derive(Clone, Debug)]
pub struct KeeperCommand {
    /// Path of the program. Usually it is the running program itself.
    pub program: PathBuf,
    /// Arguments with which the program runs as the keeper.
    pub arguments: Vec<OsString>,
    /// Directory of the journal. It must be on a file system that is emptied when the host
    /// restarts.
    pub state_directory: PathBuf,
    /// Time for which a [kept](super::Fence::keep_on_death) thread stays as it is after the owner's
    /// end. If `None`, the keeper restores all threads immediately.
    pub keep_for: Option<Duration>,
}

impl KeeperCommand {
    /// Default directory of the journal.
    pub const STATE_DIRECTORY: &str = "/run/slackline/held";

    /// Returns a command that starts this program with `arguments` as the keeper, with the journal
    /// in the default folder.
    #[must_use]
    pub fn ourselves<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> KeeperCommand {
        KeeperCommand {
            // The path of the program would be wrong: an update may have replaced the file there by
            // a version with another protocol.
            program: PathBuf::from("/proc/self/exe"),
            arguments: arguments.into_iter().map(Into::into).collect(),
            state_directory: PathBuf::from(KeeperCommand::STATE_DIRECTORY),
            keep_for: None,
        }
    }
}

/// Error in the communication with the keeper. The thread that the keeper should have recorded is
/// unchanged.
#[derive(Debug, Error)]
pub enum KeeperError {
    /// The keeper could not be started.
    #[error("cannot start {program}, the helper process that restores threads")]
    NotStarted {
        /// Path of the program.
        program: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The keeper has ended.
    #[error("the keeper has ended")]
    Gone {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The keeper did not answer within the time limit.
    #[error("the keeper has not answered within {} s", waited.as_secs())]
    Silent {
        /// Time limit that passed.
        waited: Duration,
    },
    /// The keeper answered with a line that is not in the protocol.
    #[error("the keeper sent the unexpected answer `{answer}` to `{told}`")]
    Confused {
        /// Line that was sent to the keeper.
        told: String,
        /// Line that the keeper answered.
        answer: String,
    },
}

/// Place where the keeper's list is: in the journal and in memory, or only in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JournalPlace {
    OnDisk,
    InMemory,
}

/// Owner's handle of a running keeper: the socket and the child process.
#[derive(Debug)]
pub(super) struct KeeperLink {
    link: UnixStream,
    child: Child,
}

impl KeeperLink {
    /// Starts a keeper and sends it the identity of the owner and all threads in `held`.
    pub(super) fn start(
        command: &KeeperCommand,
        owner: TaskIdentity,
        held: &mut dyn Iterator<Item = &Entry>,
    ) -> Result<(KeeperLink, JournalPlace), KeeperError> {
        let failed = |source| KeeperError::NotStarted { program: command.program.clone(), source };
        let (link, theirs) = UnixStream::pair().map_err(failed)?;
        link.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        // This line is sent before the keeper exists. So the keeper knows its owner even if this
        // process is killed while the keeper starts.
        let directory = path_text(&command.state_directory);
        let hello = format!("owner {} {} {directory}", owner.id, owner.started);
        say(&link, &hello).map_err(failed)?;
        let child = Command::new(&command.program)
            .args(&command.arguments)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let mut keeper = KeeperLink { link, child };
        let facts: Vec<String> = held.map(Entry::to_line).collect();
        let kept = keeper.hears(&[hello]).and_then(|_| keeper.tell_all(&facts));
        match kept.and_then(|_| keeper.tell("all")) {
            Ok(kept) => Ok((keeper, kept)),
            Err(error) => {
                keeper.end();
                Err(error)
            }
        }
    }

    /// Sends a line and waits until the keeper has recorded it. Returns the place where the
    /// keeper's list is.
    pub(super) fn tell(&mut self, fact: &str) -> Result<JournalPlace, KeeperError> {
        self.tell_all(&[fact.to_owned()])
    }

    /// Sends many lines, and waits until the keeper has recorded them. The keeper writes all of
    /// them to the journal together.
    pub(super) fn tell_all(&mut self, facts: &[String]) -> Result<JournalPlace, KeeperError> {
        /// Number of lines that are sent before their answers are read. The socket has space for
        /// this number of answers.
        const AT_ONCE: usize = 256;
        let mut kept = JournalPlace::OnDisk;
        for facts in facts.chunks(AT_ONCE) {
            let said = say(&self.link, &facts.join("\n"));
            said.map_err(|source| KeeperError::Gone { source })?;
            kept = self.hears(facts)?;
        }
        Ok(kept)
    }

    /// Reads one answer for each line that was sent. Returns the place where the keeper's list is.
    fn hears(&mut self, facts: &[String]) -> Result<JournalPlace, KeeperError> {
        let answers = self.answers(facts.len()).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => KeeperError::Silent { waited: PATIENCE },
            _ => KeeperError::Gone { source: error },
        })?;
        let mut kept = JournalPlace::OnDisk;
        for (told, answer) in facts.iter().zip(answers.lines()) {
            match answer {
                "journal" => {}
                "no-journal" => kept = JournalPlace::InMemory,
                answer => {
                    let (told, answer) = (told.clone(), answer.to_owned());
                    return Err(KeeperError::Confused { told, answer });
                }
            }
        }
        Ok(kept)
    }

    /// Reads `count` answers of the keeper. `count` must be the number of lines that have no answer
    /// yet.
    fn answers(&mut self, count: usize) -> io::Result<String> {
        /// Maximum length of an answer in bytes. Every answer in the protocol is shorter.
        const LONGEST: usize = 80;
        let (mut text, mut lines) = (Vec::new(), 0);
        let mut buffer = [0; LONGEST];
        while lines < count && text.len() < LONGEST * count {
            match self.link.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    lines += buffer[..length].iter().filter(|&&byte| byte == b'\n').count();
                    text.extend_from_slice(&buffer[..length]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the process id of the keeper.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the keeper before it can restore any thread.
    pub(super) fn kill(&mut self) {
        // The keeper is usually dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Lets the keeper restore all threads that are still on its list, and waits until the keeper
    /// has ended.
    pub(super) fn end(&mut self) {
        // The keeper reads the end of the stream, as after the end of the owner.
        let _ = self.link.shutdown(Shutdown::Write);
        // If the keeper was killed, this only reaps it.
        let _ = self.child.wait();
    }
}

impl AsFd for KeeperLink {
    /// Returns the socket to the keeper. Between calls, the socket becomes readable only when the
    /// keeper is dead and the kernel has closed the other end. While the keeper is alive, the call
    /// that sends a line also reads its answer.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// Sends a line to the keeper.
fn say(link: &UnixStream, fact: &str) -> io::Result<()> {
    let line = format!("{fact}\n");
    let mut left = line.as_bytes();
    while !left.is_empty() {
        // A plain write to a killed keeper would raise SIGPIPE, which kills this process.
        match send(link, left, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(sent) => left = &left[sent..],
        }
    }
    Ok(())
}

/// Returns the path of the journal of `owner`. `None` if the keeper has not written a journal.
pub(super) fn journal_if(
    kept: JournalPlace,
    directory: &Path,
    owner: TaskIdentity,
) -> Option<PathBuf> {
    (kept == JournalPlace::OnDisk).then(|| super::journal::path_for(directory, owner))
}
