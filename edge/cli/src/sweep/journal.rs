//! The runs of a sweep that are done, on disk, so that whoever is killed goes on from there.
//!
//! A line for each run, written when it is done, behind a line that says of what sweep they are. A
//! line that is not whole was being written as somebody died, and does not count. It is locked, so
//! that nobody else writes there.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::problem::Problem;

/// Between the cells of a line: in no name, as those hold no control characters.
const BETWEEN: char = '\t';

pub(super) struct Journal {
    name: PathBuf,
    file: Mutex<File>,
    /// The lines of runs that were there.
    found: Vec<String>,
}

impl Journal {
    /// The one of this name, if it is of this sweep; begins one where there is none, or where
    /// `fresh` says so.
    pub(super) fn open(name: PathBuf, of: &str, fresh: bool) -> Result<Journal, Problem> {
        let cannot = |source| Problem::Unwritable { file: name.clone(), source };
        let options = File::options().read(true).write(true).create(true).truncate(false).clone();
        let mut file = options.open(&name).map_err(cannot)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Problem::BadOption {
                    message: format!("cannot write {}: another sweep uses it", name.display()),
                    hint: Some("wait for that sweep, or use another --csv file".into()),
                });
            }
            Err(TryLockError::Error(source)) => return Err(cannot(source)),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(cannot)?;
        let text = String::from_utf8_lossy(&bytes);
        // Behind the last line break something was being written.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut lines = whole.lines();
        let found = match lines.next() {
            Some(line) if line == of && !fresh => lines.map(str::to_owned).collect(),
            Some(_) if !fresh => {
                return Err(Problem::BadOption {
                    message: format!(
                        "cannot continue {}: it has runs of another sweep",
                        name.display()
                    ),
                    hint: Some(
                        "use the same file, policies, seeds and length, or --fresh to start over"
                            .into(),
                    ),
                });
            }
            _ => Vec::new(),
        };
        let kept = match found.is_empty() {
            true => 0,
            false => whole.len() as u64,
        };
        file.set_len(kept).and_then(|()| file.seek(SeekFrom::End(0))).map_err(cannot)?;
        if kept == 0 {
            file.write_all(format!("{of}\n").as_bytes()).map_err(cannot)?;
        }
        Ok(Journal { name, file: Mutex::new(file), found })
    }

    /// The cells of each run that was done, by its number, of so many of so many cells.
    pub(super) fn take_done(&mut self, jobs: usize, width: usize) -> BTreeMap<usize, Vec<String>> {
        let read = |line: String| {
            let mut cells = line.split(BETWEEN).map(str::to_owned);
            let job = cells.next()?.parse().ok().filter(|&job| job < jobs)?;
            let cells: Vec<String> = cells.collect();
            (cells.len() == width).then_some((job, cells))
        };
        std::mem::take(&mut self.found).into_iter().filter_map(read).collect()
    }

    /// A run is done.
    pub(super) fn add(&self, job: usize, cells: &[String]) -> Result<(), Problem> {
        let mut line = job.to_string();
        for cell in cells {
            line.push(BETWEEN);
            line += cell;
        }
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let cannot = |source| Problem::Unwritable { file: self.name.clone(), source };
        file.write_all(line.as_bytes()).map_err(cannot)
    }

    /// All are done, and the table is there: nobody needs it any more.
    pub(super) fn end(self) -> Result<(), Problem> {
        let cannot = |source| Problem::Unwritable { file: self.name.clone(), source };
        std::fs::remove_file(&self.name).map_err(cannot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_whole_is_found_again_and_nothing_of_another_sweep() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("it.part");
        let open = |of: &str, fresh| Journal::open(name.clone(), of, fresh);
        let mut journal = open("one", false).unwrap();
        assert!(journal.take_done(9, 2).is_empty());
        assert!(open("one", false).is_err(), "it is locked");
        let cells = |text: &str| vec![text.to_owned(), String::new()];
        journal.add(3, &cells("a, b")).unwrap();
        journal.add(1, &cells("c")).unwrap();
        drop(journal);
        // Somebody was killed in the middle of a line.
        File::options().append(true).open(&name).unwrap().write_all(b"2\thalf").unwrap();
        assert!(open("two", false).is_err(), "it is of another sweep");
        let mut journal = open("one", false).unwrap();
        journal.add(2, &cells("d")).unwrap();
        let wanted = |pairs: &[(usize, &str)]| -> BTreeMap<usize, Vec<String>> {
            pairs.iter().map(|&(job, text)| (job, cells(text))).collect()
        };
        assert_eq!(journal.take_done(9, 2), wanted(&[(1, "c"), (3, "a, b")]));
        drop(journal);
        let mut journal = open("one", false).unwrap();
        assert_eq!(journal.take_done(9, 2), wanted(&[(1, "c"), (2, "d"), (3, "a, b")]));
        drop(journal);
        assert!(open("two", true).unwrap().take_done(9, 2).is_empty());
    }
}
