//! The journal: a file with the list of held threads. A later program restores the threads from the
//! journal if both the owner and the keeper are killed.
//!
//! Each owner has one file, `PID-START.held`, with one line for each thread. The file is always
//! replaced as a whole, so a reader never sees an incomplete file. It is removed when no thread is
//! held. The folder should be on a file system that is emptied when the host restarts, since no
//! thread survives a restart.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::entry::{Entry, TaskIdentity, trees_first};
use super::give_back::{GiveBackError, GivenBack, exists, give_back as give_entry_back, is_moot};
use slackline_linux::cgroup::restore_grace_periods;
use slackline_linux::sys::Tid;
use slackline_linux::thread::StartTime;

pub(super) const SUFFIX: &str = "held";

/// Error when a journal is read or updated.
#[derive(Debug, Error)]
pub enum JournalError {
    /// The kernel refused to read or write a file.
    #[error("cannot read or write {path}")]
    Refused {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A line of the journal is not a valid entry. Probably another version of the program wrote
    /// it.
    #[error("{path}:{line}: not a valid entry of a scheduled thread")]
    Garbled {
        /// Path of the journal.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
    },
}

/// Error when a leftover thread is restored: a thread that a dead Slackline process has not
/// restored.
#[derive(Debug, Error)]
pub enum LeftoverError {
    /// The thread could not be restored.
    #[error(transparent)]
    GiveBack(#[from] GiveBackError),
    /// The thread was restored, but its entry could not be removed from the journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// A leftover thread: a Slackline process (the owner) had recorded it, and died before restoring
/// it.
#[derive(Clone, Debug)]
pub struct Leftover {
    owner: Tid,
    journal: PathBuf,
    entry: Entry,
}

impl Leftover {
    /// Returns the process id of the owner, which has died.
    #[must_use]
    pub fn owner(&self) -> Tid {
        self.owner
    }

    /// Returns the id of the process that the thread belongs to.
    #[must_use]
    pub fn pid(&self) -> Tid {
        self.entry.process.id
    }

    /// Returns the id of the thread.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.entry.thread.id
    }

    /// Returns true if the kernel still enforces this thread's limit for some time, as the dead
    /// owner had ordered. During that time, a new Slackline process can adopt the thread.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.entry.kept_for().is_some()
    }

    /// Returns the time for which the thread is left as it is after the owner's death. `None` if
    /// the thread is not [kept](Leftover::is_kept).
    #[must_use]
    pub fn kept_for(&self) -> Option<Duration> {
        self.entry.kept_for()
    }

    /// Returns the path of the journal that names the thread.
    #[must_use]
    pub fn journal(&self) -> &Path {
        &self.journal
    }
}

/// Threads that dead Slackline processes have not restored, and errors that occurred while their
/// journals were read.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Threads that dead Slackline processes changed and that are not restored yet.
    pub threads: Vec<Leftover>,
    /// Errors: one for each journal that could not be read, or one if the directory could not be
    /// read. A journal that could not be read may list more threads.
    pub unread: Vec<JournalError>,
}

/// Returns the threads that dead Slackline processes did not restore, read from the journals in
/// `directory`. Changes nothing. An entry is left out if its thread has exited and its cgroup is
/// gone.
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
        // An owner whose state cannot be read counts as alive, so its threads are not restored.
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

/// Restores a thread of a dead Slackline process, and removes the thread from the journal. The call
/// can be repeated.
///
/// # Errors
/// If the thread could not be restored, or the journal could not be updated.
pub fn give_back(leftover: &Leftover) -> Result<GivenBack, LeftoverError> {
    let results = give_back_all(std::slice::from_ref(leftover));
    results.into_iter().next().expect("give_back_all returns one result for each thread")
}

/// Restores many threads as [`give_back`] does, but updates each journal only once. Returns one
/// result for each thread, in order. If a journal cannot be updated, this error replaces the result
/// of the last thread of that journal.
#[must_use]
pub fn give_back_all(leftovers: &[Leftover]) -> Vec<Result<GivenBack, LeftoverError>> {
    let mut results = Vec::with_capacity(leftovers.len());
    // Leftovers of one journal are adjacent, in the order in which they were found.
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
    restore_grace_periods();
    results
}

/// Removes the entries `free` from a journal. Also removes entries whose thread has exited and
/// whose cgroup is gone.
pub(super) fn take_out(journal: &Path, free: &[&Entry]) -> Result<(), JournalError> {
    let mut left = read(journal)?;
    left.retain(|entry| !free.contains(&entry) && !is_moot(entry));
    write(journal, &left.iter().collect::<Vec<_>>())
}

/// Returns the process id of an owner other than `me` whose journal lists a thread. The owner may
/// have died. `None` if no such journal lists the thread, or if the thread's entry is marked
/// `kept`.
pub(super) fn holder_of(directory: &Path, me: TaskIdentity, thread: TaskIdentity) -> Option<Tid> {
    // The result only serves an early error message, so a journal that cannot be read is ignored.
    let others = all(directory).ok()?.into_iter().filter(|&(owner, _)| owner != me);
    let is_it =
        |entry: &Entry| entry.thread == thread && entry.kept_for().is_none() && !is_moot(entry);
    let names = |path: &Path| read(path).is_ok_and(|list| list.iter().any(is_it));
    others.into_iter().find(|(_, path)| names(path)).map(|(owner, _)| owner.id)
}

/// Returns the journal and the entry of `thread`, if the caller can adopt the thread from a dead
/// owner. The entry must be marked `kept`, which means that the kernel still enforces the thread's
/// limit. Returns `None` if there is no such entry, or if Slackline also stops or limits the thread
/// by other means, such as a cgroup.
pub(super) fn kept_by_dead(directory: &Path, thread: TaskIdentity) -> Option<(PathBuf, Entry)> {
    let dead = |owner: TaskIdentity| matches!(exists(owner.id, owner), Ok(false));
    let journals = all(directory).ok()?.into_iter().filter(|&(owner, _)| dead(owner));
    let is_it = |it: &Entry| it.thread == thread && it.kept_for().is_some();
    journals.into_iter().find_map(|(_, path)| {
        let found = read(&path).ok()?.into_iter().find(is_it)?;
        Some((path, found))
    })
}

/// Removes each journal of a dead owner in which no thread remains to be restored.
pub(super) fn sweep(directory: &Path) {
    for (owner, path) in all(directory).unwrap_or_default() {
        let dead = matches!(exists(owner.id, owner), Ok(false));
        if dead && read(&path).is_ok_and(|entries| entries.iter().all(is_moot)) {
            // If the removal fails, the next sweep tries again.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Returns the path of the journal of `owner`.
pub(super) fn path_for(directory: &Path, owner: TaskIdentity) -> PathBuf {
    directory.join(format!("{}-{}.{SUFFIX}", owner.id, owner.started))
}

/// Creates the folder of journals. Only this user may access it, because a privileged program acts
/// on the contents of the journals.
pub(super) fn make_directory(directory: &Path) -> Result<(), JournalError> {
    let mut folder = DirBuilder::new();
    folder.recursive(true);
    // Other users may have directories of their own in the parent directory, so they can enter it.
    let above = directory.parent().map_or(Ok(()), |above| folder.mode(0o755).create(above));
    let made = above.and_then(|()| folder.mode(0o700).create(directory));
    made.map_err(|source| refused(directory, source))
}

/// Replaces the contents of a journal by `entries`. If `entries` is empty, removes the journal.
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

/// Reads the entries of a journal. If the file does not exist, the list is empty.
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

/// Returns all journals in a directory with their owners, sorted by path. If the directory does not
/// exist, the list is empty.
fn all(directory: &Path) -> Result<Vec<(TaskIdentity, PathBuf)>, JournalError> {
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

/// Returns the owner whose process id and start time are in the name of a file. `None` if the name
/// is not `PID-START.` followed by `suffix`.
pub(super) fn owner_of(path: &Path, suffix: &str) -> Option<TaskIdentity> {
    if path.extension()? != suffix {
        return None;
    }
    let (id, started) = path.file_stem()?.to_str()?.split_once('-')?;
    let started = StartTime::from_ticks(started.parse().ok()?);
    Some(TaskIdentity { id: Tid::new(id.parse().ok()?)?, started })
}

fn refused(path: &Path, source: io::Error) -> JournalError {
    JournalError::Refused { path: path.to_path_buf(), source }
}
