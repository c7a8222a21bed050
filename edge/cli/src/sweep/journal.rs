//! File with the finished runs of a sweep, from which a killed sweep continues.
//!
//! The first line identifies the sweep. Each finished run adds a line. If the sweep was killed
//! while it wrote a line, that line is incomplete and is ignored. The file is locked against other
//! sweeps.
//!
//! Each line ends with a checksum. Files of the first format version have no checksums. Their cells
//! are checked instead, and lines that are added to them have no checksum either.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::input::{self, FNV_START, fnv};
use crate::problem::Problem;
use crate::terminal;

/// Separator between the cells of a line. Cells never contain this character, because names have no
/// control characters.
const BETWEEN: char = '\t';

/// Text at the end of the first line of a journal with checksums.
const CHECKED: &str = ", with checksums";

/// Maximum length of a journal, in bytes. The journal of a million runs is shorter.
const LONGEST: u64 = 1 << 30;

/// Opens or creates a journal. Refuses a link to another file, and a pipe, which would block. The
/// user has not chosen the name of the journal: it is derived from the name of the table.
fn open_regular(name: &Path) -> Result<File, Problem> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let cannot = |source| Problem::Unwritable { file: name.into(), source };
    let file = match options.custom_flags(flags.bits().cast_signed()).open(name) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => None,
        opened => Some(opened.map_err(cannot)?),
    };
    let is_regular = |file: &File| file.metadata().is_ok_and(|found| found.is_file());
    file.filter(is_regular).ok_or_else(|| Problem::BadOption {
        message: format!("cannot write {}: it is not a regular file", name.display()),
        hint: Some("remove it, or use another --csv file".into()),
    })
}

pub(super) struct Journal {
    name: PathBuf,
    /// True if each line ends with a checksum.
    is_checked: bool,
    file: Mutex<File>,
    /// Lines of complete runs that the file had when it was opened.
    found: Vec<String>,
}

impl Journal {
    /// Opens the journal `name` if it belongs to the same sweep. Creates a new journal if no such
    /// journal exists, or if `fresh` is true.
    pub(super) fn open(name: PathBuf, of: &str, fresh: bool) -> Result<Journal, Problem> {
        let cannot = |source| Problem::Unwritable { file: name.clone(), source };
        let mut file = open_regular(&name)?;
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
        (&mut file).take(LONGEST + 1).read_to_end(&mut bytes).map_err(cannot)?;
        if bytes.len() as u64 > LONGEST {
            return Err(Problem::TooLong { file: name, longest: LONGEST });
        }
        let text = String::from_utf8_lossy(&bytes);
        // Text after the last line break is an incomplete line.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut lines = whole.lines();
        let first = lines.next().filter(|_| !fresh);
        let is_checked = first.is_none_or(|line| line.ends_with(CHECKED));
        let found = match first {
            Some(line) if is_same_sweep(line, of) => lines.map(str::to_owned).collect(),
            Some(_) => {
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
            None => Vec::new(),
        };
        let found = runs(found, is_checked).map_err(|line| Problem::BadOption {
            message: format!("{}: line {line} is damaged", name.display()),
            hint: Some("add --fresh to discard the finished runs and start again".into()),
        })?;
        if !is_checked {
            let name = name.display();
            terminal::tell(&format!(
                "note: {name} has no checksums, so each value in it was checked\n"
            ));
        }
        let kept = match found.is_empty() {
            true => 0,
            false => whole.len() as u64,
        };
        file.set_len(kept).and_then(|()| file.seek(SeekFrom::End(0))).map_err(cannot)?;
        if kept == 0 {
            file.write_all(format!("{of}{CHECKED}\n").as_bytes()).map_err(cannot)?;
        }
        let is_checked = is_checked || kept == 0;
        Ok(Journal { name, is_checked, file: Mutex::new(file), found })
    }

    /// Returns the cells of each finished run by its number. Lines are dropped if their run number
    /// is not below `jobs`, or if they do not have `width` cells.
    pub(super) fn take_done(&mut self, jobs: usize, width: usize) -> BTreeMap<usize, Vec<String>> {
        let read = |line: String| {
            let mut cells = line.split(BETWEEN).map(str::to_owned);
            let job = cells.next()?.parse().ok().filter(|&job| job < jobs)?;
            let cells: Vec<String> = cells.collect();
            (cells.len() == width).then_some((job, cells))
        };
        std::mem::take(&mut self.found).into_iter().filter_map(read).collect()
    }

    /// Returns true if the journal has no line yet.
    pub(super) fn is_new(&self) -> bool {
        self.found.is_empty()
    }

    /// Adds the line of a finished run.
    pub(super) fn add(&self, job: usize, cells: &[String]) -> Result<(), Problem> {
        self.add_line(&job.to_string(), cells)
    }

    /// Adds a line that begins with `key`.
    pub(super) fn add_line(&self, key: &str, cells: &[String]) -> Result<(), Problem> {
        let mut line = key.to_owned();
        for cell in cells {
            line.push(BETWEEN);
            line += cell;
        }
        if self.is_checked {
            let sum = checksum(&line);
            line.push(BETWEEN);
            line += &sum;
        }
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let cannot = |source| Problem::Unwritable { file: self.name.clone(), source };
        file.write_all(line.as_bytes()).map_err(cannot)
    }

    /// Removes the file after all runs have been written to the table.
    pub(super) fn end(self) -> Result<(), Problem> {
        let cannot = |source| Problem::Unwritable { file: self.name.clone(), source };
        std::fs::remove_file(&self.name).map_err(cannot)
    }
}

/// Contents of a journal whose sweep is no longer running.
pub(super) struct ReadJournal {
    /// Line that identifies the sweep.
    pub(super) of: String,
    /// Cells of all whole lines, in the order in which they were written.
    pub(super) lines: Vec<Vec<String>>,
}

/// Reads the journal of a part of a sweep.
///
/// # Errors
/// If the file cannot be read, is not a journal with checksums, or is damaged.
pub(super) fn read(name: &Path) -> Result<ReadJournal, Problem> {
    let bad = |what: &str, hint: &str| Problem::BadOption {
        message: format!("cannot join {}: {what}", name.display()),
        hint: Some(hint.into()),
    };
    let text = input::text(name)?;
    let is_whole = text.ends_with('\n');
    let mut lines = text.lines();
    let of = lines.next().and_then(|line| line.strip_suffix(CHECKED));
    let is_of_sweep = |of: &&str| of.starts_with("slackline ") && of.contains(" sweep ");
    let Some(of) = of.filter(is_of_sweep) else {
        let hint = "name files that `slackline sweep --part` wrote";
        return Err(bad("it is not a part of a sweep", hint));
    };
    let again = "run its `slackline sweep --part` again with --fresh";
    if !is_whole {
        return Err(bad("its last line is not complete", again));
    }
    let lines = runs(lines.map(str::to_owned).collect(), true)
        .map_err(|line| bad(&format!("line {line} is damaged"), again))?;
    let cells = |line: &String| line.split(BETWEEN).map(str::to_owned).collect();
    Ok(ReadJournal { of: of.to_owned(), lines: lines.iter().map(cells).collect() })
}

/// Returns true if the first line of a journal identifies the same sweep, written by any version of
/// the program.
fn is_same_sweep(line: &str, of: &str) -> bool {
    let line = line.strip_suffix(CHECKED).unwrap_or(line);
    without_version(line) == without_version(of)
}

/// Splits a first line, `slackline VERSION sweep ...`, into the parts before and after the version.
fn without_version(line: &str) -> (&str, &str) {
    let mut words = line.splitn(3, ' ');
    let (program, _version) = (words.next().unwrap_or_default(), words.next());
    (program, words.next().unwrap_or_default())
}

/// Returns the lines of runs without their checksums.
///
/// # Errors
/// If a line is damaged. The error is the number of the first such line.
fn runs(lines: Vec<String>, is_checked: bool) -> Result<Vec<String>, usize> {
    let read = |(number, line): (usize, String)| {
        let run = if is_checked {
            let (run, sum) = line.rsplit_once(BETWEEN).unwrap_or_default();
            (checksum(run) == sum).then(|| run.to_owned())
        } else {
            line.split(BETWEEN).all(is_cell).then_some(line)
        };
        run.ok_or(number)
    };
    (2..).zip(lines).map(read).collect()
}

/// Returns true if a text is a valid cell: a number, empty, or the outcome of a run.
fn is_cell(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let whole = whole.strip_prefix('-').unwrap_or(whole);
    matches!(text, "" | "done" | "refused") || is_number(whole) && is_number(part)
}

/// Returns the FNV-1a hash of a line, in hexadecimal digits.
fn checksum(line: &str) -> String {
    format!("{:016x}", fnv(FNV_START, line.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_journal_that_is_a_link_or_pipe_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (name, other) = (folder.path().join("it.part"), folder.path().join("other"));
        let says = || Journal::open(name.clone(), "one", true).err().unwrap().to_string();
        std::fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &name).unwrap();
        assert!(says().ends_with("it.part: it is not a regular file"), "{}", says());
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "kept");
        std::fs::remove_file(&name).unwrap();
        let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &name, fifo, mode, 0).unwrap();
        assert!(says().ends_with("it.part: it is not a regular file"), "{}", says());
    }

    #[test]
    fn sweep_journal_restores_finished_runs_only_for_the_same_sweep() {
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
        // A sweep was killed while it wrote a line.
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

    const OF: &str = "slackline 0.1.0 sweep 00 seeds 1 to 2, 2 runs";

    #[test]
    fn damaged_sweep_journal_is_refused_and_intact_journal_is_restored() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("it.part");
        let open = || Journal::open(name.clone(), OF, false);
        open().unwrap().add(0, &["done".to_owned(), "1.5".to_owned()]).unwrap();
        open().unwrap().add(1, &["done".to_owned(), "2.5".to_owned()]).unwrap();
        let whole = std::fs::read_to_string(&name).unwrap();
        for (line, was, is) in [
            (3, "2.5", "3.5"),
            (3, "2.5", "\u{1b}[2J"),
            (2, "1.5", "15"),
            (3, "1\tdone", "0\tdone"),
        ] {
            std::fs::write(&name, whole.replace(was, is)).unwrap();
            let Err(Problem::BadOption { message, .. }) = open() else { panic!("{was} is {is}") };
            assert!(message.ends_with(&format!(": line {line} is damaged")), "{message}");
        }
        std::fs::write(&name, whole).unwrap();
        assert_eq!(open().unwrap().take_done(2, 2).len(), 2);
    }

    #[test]
    fn sweep_command_continues_journal_of_older_program_version() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("it.part");
        let open = || Journal::open(name.clone(), OF, false);
        let old = "slackline 0.0.9 sweep 00 seeds 1 to 2, 2 runs\n0\tdone\t1.500\n";
        std::fs::write(&name, old).unwrap();
        let mut journal = open().unwrap();
        assert_eq!(journal.take_done(2, 2).len(), 1);
        // The file is continued without checksums.
        journal.add(1, &["done".to_owned(), "-7".to_owned()]).unwrap();
        drop(journal);
        assert_eq!(std::fs::read_to_string(&name).unwrap(), format!("{old}1\tdone\t-7\n"));
        assert_eq!(open().unwrap().take_done(2, 2).len(), 2);
        for cell in ["\u{1b}[2J", "1e5", "=1+1", "1.", "-", "0x1", "\u{202e}1"] {
            std::fs::write(&name, format!("{OF}\n0\tdone\t{cell}\n")).unwrap();
            assert!(open().is_err(), "{cell:?}");
        }
    }
}
