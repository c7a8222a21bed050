//! Option `--part K/N` of a sweep.

use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Maximum number of parts of a sweep.
const MOST_PARTS: u32 = 1_000_000;

/// A part of a sweep: the K-th of N.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartOfSweep {
    /// Number of the part, from 1.
    number: u32,
    /// Number of parts of the sweep.
    of: u32,
}

impl FromStr for PartOfSweep {
    type Err = String;

    /// Reads a part from text such as `3/8`.
    fn from_str(text: &str) -> Result<PartOfSweep, String> {
        let words = text.split_once('/');
        let numbers = words.and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        let Some((number, of)) = numbers else {
            return Err("is not a part; write it as `3/8`".into());
        };
        if !(1..=MOST_PARTS).contains(&of) || !(1..=of).contains(&number) {
            return Err(format!("parts are 1/N to N/N, and N is at most {MOST_PARTS}"));
        }
        Ok(PartOfSweep { number, of })
    }
}

impl std::fmt::Display for PartOfSweep {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", self.number, self.of)
    }
}

impl PartOfSweep {
    /// Returns true if a run belongs to this part.
    pub(crate) fn has(self, job: usize) -> bool {
        job % self.of as usize == self.number as usize - 1
    }

    /// Returns the name of the file of this part, beside the table `csv`.
    pub(crate) fn file(self, csv: &Path) -> PathBuf {
        let mut name = csv.as_os_str().to_owned();
        name.push(format!(".{}-of-{}", self.number, self.of));
        name.into()
    }

    /// Returns the number of the part, from 1.
    pub(crate) fn number(self) -> u32 {
        self.number
    }

    /// Returns the number of parts of the sweep.
    pub(crate) fn of(self) -> u32 {
        self.of
    }
}
