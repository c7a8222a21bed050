//! The files of a command: what it reads and what it writes. None of those that it writes is
//! another of them, however their names are written: what is told apart is files, not names.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::problem::Problem;

/// The files that a command writes.
#[derive(Debug)]
pub(crate) struct Places(Vec<Place>);

#[derive(Debug)]
struct Place {
    /// What it is for: an option, or standard output.
    what: String,
    is: Identity,
}

/// Which file it is.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// One that there is, by its device and number.
    There(u64, u64),
    /// One that there will be, by its folder's device and number, and its name in it.
    Coming(u64, u64, PathBuf),
}

impl Places {
    /// Those of these options that are given, and standard output where it is a file.
    ///
    /// # Errors
    /// When two are one file, or one would be in a folder that is not there.
    pub(crate) fn of(options: &[(&str, Option<&Path>)]) -> Result<Places, Problem> {
        let mut places = Places(Vec::new());
        let shown = fs::metadata("/proc/self/fd/1").ok().filter(Metadata::is_file);
        if let Some(shown) = shown {
            let is = Identity::There(shown.dev(), shown.ino());
            places.0.push(Place { what: "standard output".into(), is });
        }
        for (what, file) in options {
            if let Some(file) = file {
                places.write(what, file)?;
            }
        }
        Ok(places)
    }

    /// One more that is written.
    pub(crate) fn write(&mut self, what: &str, file: &Path) -> Result<(), Problem> {
        if file == Path::new("-") {
            return Err(Problem::BadOption {
                message: format!("cannot write {what} to `-`"),
                hint: Some("use /dev/stdout, or ./- for a file named `-`".into()),
            });
        }
        let cannot = |source| Problem::Unwritable { file: file.into(), source };
        if let Some(is) = identity(file).map_err(cannot)? {
            self.is_none_of_them(what, file, &is)?;
            self.0.push(Place { what: what.into(), is });
        }
        Ok(())
    }

    /// One that is read: is none of those that are written. Whether it is there is found out by
    /// reading it.
    pub(crate) fn read(&self, what: &str, file: &Path) -> Result<(), Problem> {
        match identity(file) {
            Ok(Some(is)) => self.is_none_of_them(what, file, &is),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// All files of a folder are read, and of the folders in it.
    pub(crate) fn read_all(&self, what: &str, folder: &Path) -> Result<(), Problem> {
        let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
        for entry in entries.flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            match is_folder {
                true => self.read_all(what, &entry.path())?,
                false => self.read(what, &entry.path())?,
            }
        }
        Ok(())
    }

    fn is_none_of_them(&self, what: &str, file: &Path, is: &Identity) -> Result<(), Problem> {
        let Some(same) = self.0.iter().find(|place| place.is == *is) else { return Ok(()) };
        let file = file.display();
        Err(Problem::BadOption {
            message: format!("{} and {what} are the same file, {file}", same.what),
            hint: Some("name a different file for each".into()),
        })
    }
}

/// Which file a name leads to; none for what forgets everything.
fn identity(file: &Path) -> io::Result<Option<Identity>> {
    match fs::metadata(file) {
        Ok(found) if is_null(&found)? => Ok(None),
        Ok(found) => Ok(Some(Identity::There(found.dev(), found.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = file.file_name().ok_or(error)?;
            let folder = match file.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            };
            let folder = fs::metadata(folder)?;
            Ok(Some(Identity::Coming(folder.dev(), folder.ino(), name.into())))
        }
        Err(error) => Err(error),
    }
}

fn is_null(found: &Metadata) -> io::Result<bool> {
    Ok(found.file_type().is_char_device() && found.rdev() == fs::metadata("/dev/null")?.rdev())
}
