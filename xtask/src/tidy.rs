//! Rules of this repository that no compiler checks. Each violation is printed as `file:line:
//! text`.

pub mod code;
pub mod functions;
pub mod graph;
pub mod licence;
pub mod links;
pub mod modules;
pub mod numbers;
pub mod supply;
pub mod text;
pub mod words;

use std::fmt;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::metadata::Metadata;
use crate::step;
use code::Code;

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    file: String,
    line: usize,
    says: String,
}

impl Finding {
    /// Creates a violation at a line, counted from 1.
    #[must_use]
    pub fn new(file: &str, line: usize, says: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, says: says.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.says)
    }
}

/// A text file of the repository.
#[derive(Debug)]
pub struct Source {
    /// Path of the file, relative to the root.
    pub path: String,
    /// Content of the file.
    pub text: String,
    /// Code of a Rust file without comments and strings. `None` if the file is not Rust.
    pub code: Option<Code>,
}

impl Source {
    /// Creates a file with this path and text.
    #[must_use]
    pub fn new(path: &str, text: &str) -> Self {
        let code = path.ends_with(".rs").then(|| Code::of(text));
        Self { path: path.to_owned(), text: text.to_owned(), code }
    }

    /// Returns true if a program has generated the file. Generated files are not checked for style.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.path == "Cargo.lock" || self.path.contains("/tests/fixtures/")
    }
}

/// Checks all rules and prints all violations. Returns true if there are none.
///
/// # Errors
///
/// If the repository cannot be read.
pub fn tidy(metadata: &Metadata) -> Result<bool> {
    let sources = sources()?;
    let mut faults = Vec::new();
    for source in &sources {
        faults.extend(text::check(source));
    }
    faults.extend(functions::check(&sources));
    faults.extend(graph::check(&sources, metadata));
    faults.extend(modules::check(&sources, metadata));
    faults.extend(supply::check(&sources, metadata)?);
    faults.extend(numbers::check(&sources));
    faults.extend(links::check(&sources));
    faults.extend(words::check(&sources));
    faults.sort();
    for fault in &faults {
        println!("{fault}");
    }
    Ok(faults.is_empty())
}

/// Prints each violation of a word rule in a folder.
///
/// # Errors
///
/// If the repository cannot be read.
pub fn list_words(folder: &str) -> Result<()> {
    for (rule, findings) in words::places(&sources()?) {
        for finding in findings.iter().filter(|finding| finding.file.starts_with(folder)) {
            println!("{rule:<12} {finding}");
        }
    }
    Ok(())
}

/// Lowers the committed counts of word violations to the present counts. Returns false if a count
/// has risen.
///
/// # Errors
///
/// If the repository cannot be read, or if the file of counts cannot be written.
pub fn lower_words() -> Result<bool> {
    match words::lowered(&sources()?) {
        Ok(text) => fs::write(words::PATH, text).map(|()| true).context("cannot write the counts"),
        Err(risen) => {
            risen.iter().for_each(|finding| println!("{finding}"));
            Ok(false)
        }
    }
}

/// Returns the text files of the repository, including files that are not committed yet.
fn sources() -> Result<Vec<Source>> {
    let mut git = Command::new("git");
    // In a container, another user may own the repository. Without this option, git would then
    // refuse to read it.
    git.args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others"]);
    let listing =
        step::output(git.arg("--exclude-standard")).context("tidy needs the repository")?;
    let mut sources = Vec::new();
    for path in listing.split('\0').filter(|path| !path.is_empty()) {
        // A deleted file is still listed until the deletion is committed. Pictures are not text and
        // are skipped.
        if let Ok(text) = fs::read_to_string(path) {
            sources.push(Source::new(path, &text));
        }
    }
    Ok(sources)
}

fn find<'a>(sources: &'a [Source], path: &str) -> Option<&'a Source> {
    sources.iter().find(|source| source.path == path)
}
