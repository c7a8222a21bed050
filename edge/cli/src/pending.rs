//! A file that appears under its name only when it is whole.
//!
//! Until then it has no name at all, so that nothing is left of it whoever kills us when; where the
//! file system has no files without names, it has a hidden one in the same folder.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use tempfile::NamedTempFile;

use crate::problem::Problem;

/// What hidden names begin with.
const PREFIX: &str = ".slackline-";

/// A result is for everybody the umask lets.
const MODE: u32 = 0o666;

/// A file on its way.
pub(crate) struct Pending {
    file: Begun,
    name: PathBuf,
}

enum Begun {
    /// A device, a pipe: written to under its own name.
    Itself,
    /// In this folder.
    Nameless(File, PathBuf),
    Hidden(NamedTempFile),
}

/// Where it is written to.
pub(crate) type Out = BufWriter<File>;

impl Pending {
    /// Begins a file that will have this name.
    pub(crate) fn new(name: &Path) -> Result<(Pending, Out), Problem> {
        Pending::open(name).map_err(|source| Problem::Unwritable { file: name.into(), source })
    }

    fn open(name: &Path) -> io::Result<(Pending, Out)> {
        let name = match fs::metadata(name) {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            // A device or a pipe is written to, never replaced.
            Ok(found) if !found.is_file() => {
                let out = File::options().write(true).open(name)?;
                return Ok((
                    Pending { file: Begun::Itself, name: name.into() },
                    BufWriter::new(out),
                ));
            }
            // A link stays, and what it leads to is replaced.
            Ok(_) => fs::canonicalize(name)?,
            Err(_) => name.into(),
        };
        let folder = match name.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let (file, out) = begin(folder)?;
        Ok((Pending { file, name }, BufWriter::new(out)))
    }

    /// The file is whole: gives it its name.
    pub(crate) fn keep(self, written: io::Result<()>) -> Result<(), Problem> {
        let Pending { file, name } = self;
        let named = || match file {
            Begun::Itself => Ok(()),
            Begun::Nameless(file, folder) => {
                file.sync_all()?;
                give_name(&file, &folder, &name)
            }
            Begun::Hidden(file) => {
                file.as_file().sync_all()?;
                file.persist(&name).map(|_| ()).map_err(|error| plain(error.error))
            }
        };
        written.and_then(|()| named()).map_err(|source| Problem::Unwritable { file: name, source })
    }
}

/// A new file in a folder, and what it is written through.
fn begin(folder: &Path) -> io::Result<(Begun, File)> {
    let nameless = OFlags::TMPFILE.bits().cast_signed();
    let opened = File::options().write(true).mode(MODE).custom_flags(nameless).open(folder);
    // Whatever is in its way is also in the way of a hidden one, or is that it is not supported.
    if let Ok(file) = opened {
        let out = file.try_clone()?;
        return Ok((Begun::Nameless(file, folder.into()), out));
    }
    let mut hidden = tempfile::Builder::new();
    let hidden = hidden.prefix(PREFIX).permissions(Permissions::from_mode(MODE));
    let hidden = hidden.tempfile_in(folder).map_err(plain)?;
    let out = hidden.reopen()?;
    Ok((Begun::Hidden(hidden), out))
}

/// Names a file that has no name. What has this name already is replaced in one step, which needs a
/// hidden name for a moment.
fn give_name(file: &File, folder: &Path, name: &Path) -> io::Result<()> {
    /// Only names that somebody was killed with in that moment are taken.
    const TRIES: u32 = 100;
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |to: &Path| linkat(CWD, &*itself, CWD, to, AtFlags::SYMLINK_FOLLOW);
    match link(name) {
        Err(rustix::io::Errno::EXIST) => {}
        result => return Ok(result?),
    }
    let hidden = |number| folder.join(format!("{PREFIX}{}-{number}", std::process::id()));
    let mut free = (0..TRIES).map(hidden).map(|hidden| link(&hidden).map(|()| hidden));
    let hidden = free.find(|tried| *tried != Err(rustix::io::Errno::EXIST));
    let hidden = hidden.unwrap_or(Err(rustix::io::Errno::EXIST))?;
    fs::rename(&hidden, name).inspect_err(|_| {
        let _ = fs::remove_file(&hidden);
    })
}

/// What the kernel said, without the name of a file that nobody has heard of.
fn plain(error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() { error } else { error.kind().into() }
}
