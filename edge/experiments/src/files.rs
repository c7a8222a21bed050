//! Reading of the files that a scenario names.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use slackline_scenario::{FileBytes, NamedFile};

/// Maximum size in bytes of an input that is kept in memory. Only inputs that are not regular files
/// are kept in memory.
const LONGEST_INPUT: u64 = 1 << 28;

/// Path of a regular file. The file is opened only while it is read, because a run can have more
/// recordings than a process may have open files.
struct RegularFile {
    path: String,
}

impl FileBytes for RegularFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, String> {
        let file = File::open(&self.path).map_err(|error| reason(&error))?;
        file.read_at(into, offset).map_err(|error| reason(&error))
    }

    fn path(&self) -> Option<&str> {
        Some(&self.path)
    }
}

/// Contents of an input that can be read only once, such as a pipe.
struct Input(Vec<u8>);

impl FileBytes for Input {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, String> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.0.get(offset..));
        rest.unwrap_or_default().read(into).map_err(|error| reason(&error))
    }
}

/// Returns the contents of a file that a scenario names. Regular files may have any size, and are
/// read later. Other inputs, such as a pipe, are read immediately and kept in memory.
///
/// # Errors
/// If the file cannot be opened, is a folder, or is a pipe with too many bytes. The error does not
/// contain the name of the file.
pub fn file_bytes(path: &Path) -> NamedFile {
    let file = File::open(path).map_err(|error| reason(&error))?;
    let kind = file.metadata().map_err(|error| reason(&error))?.file_type();
    if let (true, Some(path)) = (kind.is_file(), path.to_str()) {
        return Ok(Arc::new(RegularFile { path: path.to_owned() }));
    }
    input_bytes(file)
}

/// Returns the contents of an input that can be read only once.
///
/// # Errors
/// If the input cannot be read, or has too many bytes.
pub fn input_bytes(input: impl Read) -> NamedFile {
    let mut bytes = Vec::new();
    let read = input.take(LONGEST_INPUT + 1).read_to_end(&mut bytes);
    read.map_err(|error| reason(&error))?;
    if bytes.len() as u64 > LONGEST_INPUT {
        let most = LONGEST_INPUT;
        return Err(format!(
            "the input is not a regular file, and has more than {most} bytes, the maximum"
        ));
    }
    Ok(Arc::new(Input(bytes)))
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".into(),
        io::ErrorKind::IsADirectory => "it is a folder".into(),
        _ => error.to_string(),
    }
}
