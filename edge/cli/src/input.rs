//! Reading of scenario files and of the files that they name.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use slackline_experiments::file_bytes;
use slackline_scenario::{FileBytes, LONGEST, Scenario, ScenarioError};
use slackline_units::Span;

use crate::claims;
use crate::places::Places;
use crate::problem::Problem;

/// Path that replaces `-` on the command line.
pub(crate) const STANDARD_INPUT: &str = "/dev/stdin";

/// Maximum length of a text that is read, in bytes. This length is enough for a scenario with a
/// million domains, the maximum.
const LONGEST_TEXT: u64 = 1 << 28;

/// File of a scenario, and the options that change how it is read.
pub(crate) struct Source<'a> {
    pub(crate) file: &'a Path,
    pub(crate) places: &'a Places,
    pub(crate) length: Option<Span>,
    /// Checksums of the files that the scenario names. `None` if they are not needed.
    pub(crate) sums: Option<FileSums>,
}

/// Checksum of each file that a scenario names, by the name in the scenario.
pub(crate) type FileSums = Mutex<BTreeMap<String, u64>>;

impl Source<'_> {
    /// Parses a scenario from the text of this file, or from a text derived from it. Fails if a
    /// file that the scenario names is also an output.
    pub(crate) fn scenario(&self, text: &str) -> Result<Result<Scenario, Problem>, ScenarioError> {
        let is_standard_input = self.file == Path::new(STANDARD_INPUT);
        let folder = self.file.parent().filter(|_| !is_standard_input).unwrap_or(Path::new(""));
        let named = RefCell::new(Vec::new());
        let load = |name: &str| {
            let file = folder.join(name);
            named.borrow_mut().push(file.clone());
            let bytes = file_bytes(&file)?;
            if let Some(sums) = &self.sums {
                let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
                if !sums.contains_key(name) {
                    sums.insert(name.to_owned(), sum_of(bytes.as_ref())?);
                }
            }
            Ok(bytes)
        };
        let scenario = Scenario::with_bytes(text, &load)?;
        let mut named = named.take().into_iter();
        let read = named.try_for_each(|file| self.places.read("a recording", &file));
        Ok(read.map(|()| scenario))
    }

    /// Checks the claims of a scenario, and sets its length if the user requested a length.
    pub(crate) fn checked(&self, mut scenario: Scenario) -> Result<Scenario, Problem> {
        claims::check_measured(self.file, &scenario)?;
        if let Some(length) = self.length {
            set_length(&mut scenario, length)?;
        }
        Ok(scenario)
    }
}

/// Returns the FNV-1a hash of a file.
fn sum_of(file: &dyn FileBytes) -> Result<u64, String> {
    let (mut sum, mut offset) = (FNV_START, 0);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read_at(offset, &mut buffer)?;
        if read == 0 {
            return Ok(sum);
        }
        sum = fnv(sum, &buffer[..read]);
        offset += read as u64;
    }
}

/// Hash of no bytes, with which [`fnv`] begins.
pub(crate) const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// Continues the 64-bit FNV-1a hash `hash` with further bytes.
pub(crate) fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(hash, step)
}

fn set_length(scenario: &mut Scenario, length: Span) -> Result<(), Problem> {
    let warmup = scenario.warmup;
    if length <= warmup {
        return Err(Problem::BadOption {
            message: format!("--length {length} is not longer than the warm-up of {warmup}"),
            hint: Some(format!("write a --length of at least {}", warmup * 2)),
        });
    }
    if length > LONGEST {
        return Err(Problem::BadOption {
            message: format!("--length {length} is longer than a year"),
            hint: Some(format!("write a --length of at most {LONGEST}")),
        });
    }
    scenario.length = length;
    Ok(())
}

/// Opens a file for reading. Standard input may be any kind of file, such as a pipe.
pub(crate) fn open(file: &Path) -> io::Result<File> {
    if file == Path::new(STANDARD_INPUT) {
        return Ok(io::stdin().as_fd().try_clone_to_owned()?.into());
    }
    File::open(file)
}

/// Returns the contents of a file. Fails if they are not UTF-8, or too long.
pub(crate) fn text(file: &Path) -> Result<String, Problem> {
    let unreadable = |source| Problem::Unreadable { file: file.into(), source };
    let mut bytes = Vec::new();
    let mut opened = open(file).map_err(unreadable)?.take(LONGEST_TEXT + 1);
    opened.read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LONGEST_TEXT {
        return Err(Problem::TooLong { file: file.into(), longest: LONGEST_TEXT });
    }
    match String::from_utf8(bytes) {
        Ok(text) => match text.find('\0') {
            None => Ok(text),
            Some(at) => Err(not_text(file, text.as_bytes(), at)),
        },
        Err(error) => Err(not_text(file, error.as_bytes(), error.utf8_error().valid_up_to())),
    }
}

/// Returns the error about the first byte that is not UTF-8. `at` is the position of this byte.
fn not_text(file: &Path, bytes: &[u8], at: usize) -> Problem {
    let good = String::from_utf8_lossy(&bytes[..at]);
    let last = good.rsplit('\n').next().unwrap_or_default();
    let (line, column) = (good.matches('\n').count() + 1, last.chars().count() + 1);
    Problem::NotText { file: file.into(), line, column, byte: bytes[at] }
}

/// Refuses a list of policies that has the same policy twice.
pub(crate) fn without_repeats(policies: &[String]) -> Result<(), Problem> {
    let repeated = |at: usize| policies[..at].contains(&policies[at]);
    let Some(at) = (0..policies.len()).find(|&at| repeated(at)) else { return Ok(()) };
    Err(Problem::BadOption {
        message: format!("--policies has `{}` twice", policies[at]),
        hint: Some("name each policy once".into()),
    })
}

/// Returns the scenario of a file, with its policy replaced by `policy`.
pub(crate) fn under(file: &Path, scenario: &Scenario, policy: &str) -> Result<Scenario, Problem> {
    scenario.with_policy(policy).map_err(|error| Problem::Scenario { file: file.into(), error })
}

/// Parses the name of an input file on the command line.
#[allow(clippy::unnecessary_wraps)] // The type of option parsers.
pub(crate) fn file(name: &str) -> Result<PathBuf, String> {
    Ok(if name == "-" { STANDARD_INPUT } else { name }.into())
}
