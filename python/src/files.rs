//! Reading of files with a limit, so that a wrong path cannot use up the memory.

use std::fs::File;
use std::io::Read as _;

use pyo3::prelude::*;

use crate::error;

/// Maximum size in bytes of a file that is read at once.
const LONGEST: u64 = 1 << 28;

/// Reads a whole file.
pub(crate) fn bytes(path: &str) -> PyResult<Vec<u8>> {
    let unreadable = |error| error::of_file(path, &error);
    let mut file = File::open(path).map_err(unreadable)?.take(LONGEST + 1);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LONGEST {
        let why = format!("cannot read {path}: it has more than {LONGEST} bytes");
        return Err(error::of_value(why, "check the file name"));
    }
    Ok(bytes)
}

/// Reads a text file.
pub(crate) fn text(path: &str) -> PyResult<String> {
    String::from_utf8(bytes(path)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let before = &error.as_bytes()[..at];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let why = format!("{path}:{line}: not a text file: byte {:#04x}", error.as_bytes()[at]);
        error::of_value(why, "name a text file in TOML")
    })
}

/// Returns true if a file begins with some bytes.
pub(crate) fn begins_with(path: &str, start: &[u8]) -> PyResult<bool> {
    let unreadable = |error| error::of_file(path, &error);
    let mut read = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(start.len() as u64).read_to_end(&mut read).map_err(unreadable)?;
    Ok(read == start)
}
