//! Output file that gets its name only when it is complete.
//!
//! Until then the file has no name, so that nothing remains of it if the program is killed. On file
//! systems without unnamed files, the file is a hidden file in the same folder until then.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use tempfile::NamedTempFile;

use crate::problem::Problem;

/// Prefix of the names of hidden files.
const PREFIX: &str = ".slackline-";

/// Permission bits of output files, before the umask applies.
const MODE: u32 = 0o666;

/// An output file that is not complete yet.
pub(crate) struct Pending {
    file: PendingFile,
    name: PathBuf,
}

enum PendingFile {
    /// A device or a pipe, which is written to directly.
    Itself,
    /// An unnamed file, and the folder in which it will be named.
    Nameless(File, PathBuf),
    Hidden(NamedTempFile),
}

/// Writer of an output file.
pub(crate) type Out = BufWriter<File>;

impl Pending {
    /// Creates an output file that will get the name `name` when it is complete.
    pub(crate) fn new(name: &Path) -> Result<(Pending, Out), Problem> {
        Pending::open(name).map_err(|source| Problem::Unwritable { file: name.into(), source })
    }

    fn open(name: &Path) -> io::Result<(Pending, Out)> {
        let name = match fs::metadata(name) {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            // A device or a pipe is written to, not replaced.
            Ok(found) if !found.is_file() => {
                let out = File::options().write(true).open(name)?;
                return Ok((
                    Pending { file: PendingFile::Itself, name: name.into() },
                    BufWriter::new(out),
                ));
            }
            // A link is kept. The file that it leads to is replaced.
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

    /// Gives a complete file its name.
    pub(crate) fn keep(self, written: io::Result<()>) -> Result<(), Problem> {
        let Pending { file, name } = self;
        let named = || match file {
            PendingFile::Itself => Ok(()),
            PendingFile::Nameless(file, folder) => {
                file.sync_all()?;
                give_name(&file, &folder, &name)
            }
            PendingFile::Hidden(file) => {
                file.as_file().sync_all()?;
                file.persist(&name).map(|_| ()).map_err(|error| plain(error.error))
            }
        };
        written.and_then(|()| named()).map_err(|source| Problem::Unwritable { file: name, source })
    }
}

/// Creates a new output file in a folder. Returns the file, and a second handle for writing.
fn begin(folder: &Path) -> io::Result<(PendingFile, File)> {
    let nameless = OFlags::TMPFILE.bits().cast_signed();
    let opened = File::options().write(true).mode(MODE).custom_flags(nameless).open(folder);
    // If unnamed files are not supported, a hidden file is used. Any other error occurs again for
    // the hidden file, and is reported there.
    if let Ok(file) = opened {
        let out = file.try_clone()?;
        return Ok((PendingFile::Nameless(file, folder.into()), out));
    }
    let mut hidden = tempfile::Builder::new();
    let hidden = hidden.prefix(PREFIX).permissions(Permissions::from_mode(MODE));
    let hidden = hidden.tempfile_in(folder).map_err(plain)?;
    let out = hidden.reopen()?;
    Ok((PendingFile::Hidden(hidden), out))
}

/// Gives a name to an unnamed file. An existing file with that name is replaced atomically: the
/// new file first gets a hidden name, and is then renamed.
fn give_name(file: &File, folder: &Path, name: &Path) -> io::Result<()> {
    /// Maximum number of hidden names that are tried. A name is in use only if a process was killed
    /// while it replaced a file.
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

/// Returns the error without the path of the hidden file, which the user does not know.
fn plain(error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() { error } else { error.kind().into() }
}
