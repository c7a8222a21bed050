//! The list of held threads as a file, for when owner and keeper were both killed.
//!
//! One file an owner, `PID-START.held`, with a line a thread. It is replaced as a whole, so it is
//! never seen half written, and is removed when nothing is held. The directory is meant to be on a
//! file system that a restart empties, as the threads do not survive one either.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::entry::{Entry, Who, trees_first};
use super::give_back::{GiveBackError, GivenBack, exists, give_back as give_entry_back, is_moot};
use slackline_linux::sys::Tid;
use slackline_linux::thread::StartTime;

pub(super) const SUFFIX: &str = "held";

/// Why a journal cannot be read or brought up to date.
#[derive(Debug, Error)]
pub enum JournalError {
    /// The kernel refused.
    #[error("cannot read or write {path}")]
    Refused {
        /// The file or directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A line does not describe a held thread: another version of the program wrote it.
    #[error("{path}:{line}: not a valid entry of a held thread")]
    Garbled {
        /// The journal.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

/// Why a thread that was left behind is still not free.
#[derive(Debug, Error)]
pub enum LeftoverError {
    /// The thread could not be given back.
    #[error(transparent)]
    GiveBack(#[from] GiveBackError),
    /// The thread is free, but the journal still names it.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// A thread that is still held though whoever held it is dead.
#[derive(Clone, Debug)]
pub struct Leftover {
    owner: Tid,
    journal: PathBuf,
    entry: Entry,
}

impl Leftover {
    /// The process that held it, which is dead.
    #[must_use]
    pub fn owner(&self) -> Tid {
        self.owner
    }

    /// The process that the thread belongs to.
    #[must_use]
    pub fn pid(&self) -> Tid {
        self.entry.process.id
    }

    /// The thread.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.entry.thread.id
    }

    /// The file that says so.
    #[must_use]
    pub fn journal(&self) -> &Path {
        &self.journal
    }
}

/// What the dead have left behind.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Threads that should be given back.
    pub threads: Vec<Leftover>,
    /// What could not be read. More threads may be named there.
    pub unread: Vec<JournalError>,
}

/// Threads that owners now dead held and did not give back, by the journals in `directory`.
/// Changes nothing. Entries of which nothing is left (thread exited, group gone) are not listed.
#[must_use]
pub fn leftovers(directory: &Path) -> Leftovers {
    let mut found = Leftovers::default();
    let journals = match all(directory) {
        Ok(journals) => journals,
        Err(error) => {
            found.unread.push(error);
            return found;
        }
    };
    for (owner, path) in journals {
        // What cannot be found out is taken to be alive: its threads are its own business.
        if exists(owner.id, owner).unwrap_or(true) {
            continue;
        }
        match read(&path) {
            Err(error) => found.unread.push(error),
            Ok(mut entries) => {
                trees_first(&mut entries);
                let left = entries.into_iter().filter(|entry| !is_moot(entry));
                let journal = |entry| Leftover { owner: owner.id, journal: path.clone(), entry };
                found.threads.extend(left.map(journal));
            }
        }
    }
    found
}

/// Gives a thread back that was left behind, and takes it out of the journal. Can be repeated.
///
/// # Errors
/// When the thread is still not as it was, or the journal could not be brought up to date.
pub fn give_back(leftover: &Leftover) -> Result<GivenBack, LeftoverError> {
    let results = give_back_all(std::slice::from_ref(leftover));
    results.into_iter().next().expect("an answer for the one thread")
}

/// The same of many, each journal brought up to date once. Says of each, in their order, what came
/// of it; that a journal could not be brought up to date is said of the last of its threads.
#[must_use]
pub fn give_back_all(leftovers: &[Leftover]) -> Vec<Result<GivenBack, LeftoverError>> {
    let mut results = Vec::with_capacity(leftovers.len());
    // As they were found: those of one journal after each other.
    for of_one in leftovers.chunk_by(|a, b| a.journal == b.journal) {
        let mut free = Vec::with_capacity(of_one.len());
        for leftover in of_one {
            let given_back = give_entry_back(&leftover.entry);
            if given_back.is_ok() {
                free.push(&leftover.entry);
            }
            results.push(given_back.map_err(LeftoverError::from));
        }
        if let Err(error) = take_out(&of_one[0].journal, &free)
            && let Some(last) = results.last_mut()
        {
            *last = Err(error.into());
        }
    }
    results
}

/// Takes entries out of a journal, and those of which nothing is left.
fn take_out(journal: &Path, free: &[&Entry]) -> Result<(), JournalError> {
    let mut left = read(journal)?;
    left.retain(|entry| !free.contains(&entry) && !is_moot(entry));
    write(journal, &left.iter().collect::<Vec<_>>())
}

/// The owner other than `me` whose journal names a thread, alive or dead.
pub(super) fn holder_of(directory: &Path, me: Who, thread: Who) -> Option<Tid> {
    // This is a courtesy to the user; what cannot be read does not keep us from working.
    let others = all(directory).ok()?.into_iter().filter(|&(owner, _)| owner != me);
    let is_it = |entry: &Entry| entry.thread == thread && !is_moot(entry);
    let names = |path: &Path| read(path).is_ok_and(|list| list.iter().any(is_it));
    others.into_iter().find(|(_, path)| names(path)).map(|(owner, _)| owner.id)
}

/// Removes the journals of dead owners that name nothing which is left.
pub(super) fn sweep(directory: &Path) {
    for (owner, path) in all(directory).unwrap_or_default() {
        let dead = matches!(exists(owner.id, owner), Ok(false));
        if dead && read(&path).is_ok_and(|entries| entries.iter().all(is_moot)) {
            // What cannot be removed is swept another time.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Where the journal of `owner` is.
pub(super) fn path_for(directory: &Path, owner: Who) -> PathBuf {
    directory.join(format!("{}-{}.{SUFFIX}", owner.id, owner.started))
}

/// Makes the directory, readable only by us: it steers what a privileged program will do.
pub(super) fn make_directory(directory: &Path) -> Result<(), JournalError> {
    let mut folder = DirBuilder::new();
    folder.recursive(true);
    // Above it others have to get to what is theirs.
    let above = directory.parent().map_or(Ok(()), |above| folder.mode(0o755).create(above));
    let made = above.and_then(|()| folder.mode(0o700).create(directory));
    made.map_err(|source| refused(directory, source))
}

/// Replaces a journal; an empty one is removed.
pub(super) fn write(path: &Path, entries: &[&Entry]) -> Result<(), JournalError> {
    if entries.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(|source| refused(path, source)),
        };
    }
    let mut text = String::new();
    for entry in entries {
        text += &entry.to_line();
        text += "\n";
    }
    let new = path.with_extension("new");
    fs::write(&new, text).map_err(|source| refused(&new, source))?;
    fs::rename(&new, path).map_err(|source| refused(path, source))
}

/// The entries of a journal; none if there is no such file.
pub(super) fn read(path: &Path) -> Result<Vec<Entry>, JournalError> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|source| refused(path, source))?,
    };
    let entry = |(index, line)| {
        let garbled = || JournalError::Garbled { path: path.to_path_buf(), line: index + 1 };
        Entry::from_line(line).ok_or_else(garbled)
    };
    text.lines().enumerate().map(entry).collect()
}

/// All journals in a directory with their owners, in order of name; none if there is no directory.
fn all(directory: &Path) -> Result<Vec<(Who, PathBuf)>, JournalError> {
    let failed = |source| refused(directory, source);
    let list = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        list => list.map_err(failed)?,
    };
    let mut paths = Vec::new();
    for file in list {
        paths.push(file.map_err(failed)?.path());
    }
    paths.sort();
    Ok(paths.into_iter().filter_map(|path| Some((owner_of(&path, SUFFIX)?, path))).collect())
}

/// Whose a file with this ending is.
pub(super) fn owner_of(path: &Path, suffix: &str) -> Option<Who> {
    if path.extension()? != suffix {
        return None;
    }
    let (id, started) = path.file_stem()?.to_str()?.split_once('-')?;
    let started = StartTime::from_ticks(started.parse().ok()?);
    Some(Who { id: Tid::new(id.parse().ok()?)?, started })
}

fn refused(path: &Path, source: io::Error) -> JournalError {
    JournalError::Refused { path: path.to_path_buf(), source }
}
