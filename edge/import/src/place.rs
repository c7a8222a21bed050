//! Positions in files, as errors name them.

use std::fmt;

/// Position in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Offset in the file in bytes.
    Byte(u64),
    /// Number of the line, counted from 1.
    Line(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Byte(byte) => write!(out, "byte {byte}"),
            Place::Line(line) => write!(out, "line {line}"),
        }
    }
}
