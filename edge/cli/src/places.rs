//! Files that a command reads and writes. No output may be the same file as an input or as another
//! output. Files are compared by device and inode, not by name.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::problem::Problem;

/// Files that a command writes.
#[derive(Debug)]
pub(crate) struct Places(Vec<Place>);

#[derive(Debug)]
struct Place {
    /// Purpose of the file in error messages: the name of an option, or standard output.
    what: String,
    is: Identity,
}

/// Identity of a file.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// Device and inode number of an existing file.
    There(u64, u64),
    /// Device and inode number of the folder of a file that does not exist yet, and the file's
    /// name.
    Coming(u64, u64, PathBuf),
}

impl Places {
    /// Returns the output files of these options, and standard output if it is a file.
    ///
    /// # Errors
    /// If two outputs are the same file, or the folder of an output does not exist.
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

    /// Adds an output file.
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

    /// Checks that an input file is not also an output. A missing file is no error here. The error
    /// is reported when the file is read.
    pub(crate) fn read(&self, what: &str, file: &Path) -> Result<(), Problem> {
        match identity(file) {
            Ok(Some(is)) => self.is_none_of_them(what, file, &is),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// Checks that no file in a folder or its subfolders is also an output.
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

/// Returns the identity of a file. If the file is `/dev/null`, `None`, because several outputs may
/// go to `/dev/null`.
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
