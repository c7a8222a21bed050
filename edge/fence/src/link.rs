//! The owner's end of the conversation with its keeper.

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

use super::entry::{Entry, Who, path_text};

/// How long the keeper may take to answer. It has nothing else to do and is more urgent than all
/// but the dispatchers, so it answers within a millisecond; a host where it needs this long is one
/// where threads had better not be held.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to run as the keeper: a program that does nothing but
/// [`keeper_main`](super::keeper_main).
#[derive(Clone, Debug)]
pub struct KeeperCommand {
    /// The program, usually the running one.
    pub program: PathBuf,
    /// Its arguments, which make it the keeper.
    pub arguments: Vec<OsString>,
    /// Where the journal is kept. Must be emptied when the host restarts.
    pub state_directory: PathBuf,
}

impl KeeperCommand {
    /// Where the journal is kept unless somebody says otherwise.
    pub const STATE_DIRECTORY: &str = "/run/slackline/held";

    /// The running program with these arguments, and the usual directory.
    #[must_use]
    pub fn ourselves<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> KeeperCommand {
        KeeperCommand {
            // Not the path it was started by: what is there may have been replaced since, by a
            // version that speaks differently.
            program: PathBuf::from("/proc/self/exe"),
            arguments: arguments.into_iter().map(Into::into).collect(),
            state_directory: PathBuf::from(KeeperCommand::STATE_DIRECTORY),
        }
    }
}

/// Why the keeper does not know what it should. The thread concerned has not been touched.
#[derive(Debug, Error)]
pub enum KeeperError {
    /// It could not be started.
    #[error("cannot start the keeper {program}")]
    NotStarted {
        /// The program.
        program: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is gone.
    #[error("the keeper has ended")]
    Gone {
        /// What the kernel said.
        source: io::Error,
    },
    /// It does not answer.
    #[error("the keeper has not answered within {} s", waited.as_secs())]
    Silent {
        /// How long it had.
        waited: Duration,
    },
    /// It answers what no keeper answers.
    #[error("the keeper answered `{answer}` to `{told}`")]
    Confused {
        /// What it was told.
        told: String,
        /// What it answered.
        answer: String,
    },
}

/// Whether the list is also in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    OnDisk,
    InMemory,
}

/// A running keeper.
#[derive(Debug)]
pub(super) struct Keeper {
    link: UnixStream,
    child: Child,
}

impl Keeper {
    /// Starts a keeper that knows its owner and all threads in `held`.
    pub(super) fn start(
        command: &KeeperCommand,
        owner: Who,
        held: &mut dyn Iterator<Item = &Entry>,
    ) -> Result<(Keeper, Kept), KeeperError> {
        let failed = |source| KeeperError::NotStarted { program: command.program.clone(), source };
        let (link, theirs) = UnixStream::pair().map_err(failed)?;
        link.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        // Before there is a keeper: whenever we are killed from now on, it knows whose it is.
        let directory = path_text(&command.state_directory);
        let hello = format!("owner {} {} {directory}", owner.id, owner.started);
        say(&link, &hello).map_err(failed)?;
        let child = Command::new(&command.program)
            .args(&command.arguments)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let mut keeper = Keeper { link, child };
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

    /// Tells a fact and waits until the keeper has it.
    pub(super) fn tell(&mut self, fact: &str) -> Result<Kept, KeeperError> {
        self.tell_all(&[fact.to_owned()])
    }

    /// Tells many facts, which are written down together, and waits until the keeper has them.
    pub(super) fn tell_all(&mut self, facts: &[String]) -> Result<Kept, KeeperError> {
        /// The answers to so many wait in the socket until all are told.
        const AT_ONCE: usize = 256;
        let mut kept = Kept::OnDisk;
        for facts in facts.chunks(AT_ONCE) {
            let said = say(&self.link, &facts.join("\n"));
            said.map_err(|source| KeeperError::Gone { source })?;
            kept = self.hears(facts)?;
        }
        Ok(kept)
    }

    /// Waits until the keeper has the facts it was told.
    fn hears(&mut self, facts: &[String]) -> Result<Kept, KeeperError> {
        let answers = self.answers(facts.len()).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => KeeperError::Silent { waited: PATIENCE },
            _ => KeeperError::Gone { source: error },
        })?;
        let mut kept = Kept::OnDisk;
        for (told, answer) in facts.iter().zip(answers.lines()) {
            match answer {
                "journal" => {}
                "no-journal" => kept = Kept::InMemory,
                answer => {
                    let (told, answer) = (told.clone(), answer.to_owned());
                    return Err(KeeperError::Confused { told, answer });
                }
            }
        }
        Ok(kept)
    }

    /// So many lines. There are never more under way.
    fn answers(&mut self, count: usize) -> io::Result<String> {
        /// Longer than any answer; a keeper that says more is none.
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

    /// The keeper's process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the keeper at once, before it could give anything back.
    pub(super) fn kill(&mut self) {
        // It may be dead already, which is the usual reason to come here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Lets the keeper give back whatever it still knows of, and waits until it has ended.
    pub(super) fn end(&mut self) {
        // The keeper sees the same as if we had closed our end.
        let _ = self.link.shutdown(Shutdown::Write);
        // If it was killed it is only reaped here.
        let _ = self.child.wait();
    }
}

impl AsFd for Keeper {
    /// Readable when the keeper is dead, since the kernel then closes its end: what it says it says
    /// when asked, and that is read at once.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// Sends a line.
fn say(link: &UnixStream, fact: &str) -> io::Result<()> {
    let line = format!("{fact}\n");
    let mut left = line.as_bytes();
    while !left.is_empty() {
        // Not a plain write: a keeper that was killed must not kill us by SIGPIPE.
        match send(link, left, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(sent) => left = &left[sent..],
        }
    }
    Ok(())
}

/// The journal of `owner`, if the keeper says that there is one.
pub(super) fn journal_if(kept: Kept, directory: &Path, owner: Who) -> Option<PathBuf> {
    (kept == Kept::OnDisk).then(|| super::journal::path_for(directory, owner))
}
