//! Errors of a paper's folder, with their place in a file. Some have a hint.

use std::io;
use std::path::PathBuf;

use slackline_policy::nearest;
use thiserror::Error;

/// Reason why a paper cannot be read, run or written.
#[derive(Debug, Error)]
pub enum PaperError {
    /// The folder contains no papers.
    #[error("no papers are in {}", folder.display())]
    NoPapers {
        /// Path of the folder.
        folder: PathBuf,
    },
    /// No paper has this name.
    #[error("there is no paper `{name}`")]
    UnknownPaper {
        /// Name that was asked for.
        name: String,
        /// Names of all papers.
        known: Vec<String>,
    },
    /// A paper has no experiment, figure or table of this name.
    #[error("{paper} has no experiment `{name}`")]
    UnknownExperiment {
        /// Name of the paper.
        paper: String,
        /// Name that was asked for.
        name: String,
        /// Names of the experiments and figures of the paper.
        known: Vec<String>,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", file.display())]
    Unreadable {
        /// Path of the file.
        file: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", file.display())]
    Unwritable {
        /// Path of the file.
        file: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file of a paper is faulty.
    #[error("{}:{line}:{column}: {kind}", file.display())]
    InFile {
        /// Path of the file.
        file: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// Column in characters, counted from 1.
        column: usize,
        /// Kind of the fault.
        kind: Box<FileFault>,
    },
    /// The user stopped the runs.
    #[error("stopped after {runs} of {of} runs")]
    Stopped {
        /// Number of runs that were done.
        runs: usize,
        /// Number of runs in all.
        of: usize,
    },
    /// An experiment needs a live host, and none was given.
    #[error("cannot simulate {experiment}: it can only run live")]
    OnlyLive {
        /// Name of the experiment.
        experiment: String,
    },
    /// The live host could not go on with an experiment.
    #[error("at {point}: {source}")]
    Unplayable {
        /// Title of the point.
        point: String,
        /// Error of the live host.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A report needs results, and the paper has none yet.
    #[error("{paper} has no results yet")]
    NoResults {
        /// Name of the paper.
        paper: String,
    },
}

/// Fault of a file of a paper.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileFault {
    /// The text is not TOML, or a key is missing or unknown.
    #[error("{message}")]
    Syntax {
        /// Message of the TOML parser.
        message: String,
    },
    /// A name does not exist.
    #[error("there is no {what} `{name}`")]
    Unknown {
        /// Kind of thing that should have the name.
        what: &'static str,
        /// Name as it is in the file.
        name: String,
        /// Names that exist and can be used in place of the unknown name.
        known: Vec<String>,
    },
    /// Two things have one name.
    #[error("there is a {what} `{name}` already")]
    Twice {
        /// Kind of the two things.
        what: &'static str,
        /// Name of both things.
        name: String,
    },
    /// A required key is missing.
    #[error("{place} has no `{key}`")]
    Missing {
        /// Table or value that needs the missing key.
        place: &'static str,
        /// Name of the missing key.
        key: &'static str,
        /// The key with a value, as users write it.
        example: &'static str,
    },
    /// A text has the wrong form.
    #[error("`{written}` is not a {what}")]
    NotA {
        /// Text as it is in the file.
        written: String,
        /// Description of the form that the text should have.
        what: &'static str,
        /// Example of the form.
        example: &'static str,
    },
    /// A path leads to no value of the scenario.
    #[error("the scenario has no value at `{path}`: {why}")]
    BadPath {
        /// Path as it is in the file.
        path: String,
        /// Reason, with the part of the path that does not exist.
        why: String,
    },
    /// The scenario of a point is faulty.
    #[error("at {point}: {message}")]
    BadScenario {
        /// Title of the point.
        point: String,
        /// Message of the scenario's error.
        message: String,
        /// Hint of the scenario's error. `None` if it has none.
        hint: Option<String>,
    },
    /// The test of a comparison does not fit the published value.
    #[error("cannot test `{published}` by `{test}`: it is {is}")]
    WrongTest {
        /// Id of the published value.
        published: String,
        /// Kind of the published value.
        is: String,
        /// Name of the test.
        test: &'static str,
    },
}

impl PaperError {
    /// Returns what to type instead, in a line. `None` if the message says enough.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            PaperError::NoPapers { .. } => {
                Some("run it in the folder with `papers/`, or use --papers FOLDER".into())
            }
            PaperError::UnknownPaper { name, known } => Some(meant(name, known)),
            PaperError::UnknownExperiment { name, known, .. } => Some(meant(name, known)),
            PaperError::InFile { kind, .. } => kind.hint(),
            PaperError::NoResults { paper } => {
                Some(format!("make them with `slackline paper run {paper}`"))
            }
            PaperError::Unreadable { .. }
            | PaperError::Unwritable { .. }
            | PaperError::OnlyLive { .. }
            | PaperError::Unplayable { .. }
            | PaperError::Stopped { .. } => None,
        }
    }
}

impl FileFault {
    fn hint(&self) -> Option<String> {
        match self {
            FileFault::Unknown { name, known, .. } => Some(meant(name, known)),
            FileFault::Missing { example, .. } | FileFault::NotA { example, .. } => {
                Some(format!("write {example}"))
            }
            FileFault::Twice { .. } => Some("give one of them another name".into()),
            FileFault::BadScenario { hint, .. } => hint.clone(),
            FileFault::BadPath { .. } => {
                Some("write `domain.NAME.KEY`, `host.KEY`, or `policy` for all of a table".into())
            }
            FileFault::WrongTest { .. } => Some(
                "use `value` for a number, `inside` for a range, `ranked` for a series, and one \
                      of the others for a word"
                    .into(),
            ),
            FileFault::Syntax { .. } => None,
        }
    }
}

/// Returns the name that was probably meant, or else all names.
fn meant(name: &str, known: &[String]) -> String {
    match nearest(name, known.iter().map(String::as_str)) {
        Some(other) => format!("did you mean `{other}`?"),
        None if known.is_empty() => "there are none".to_owned(),
        None => format!("use one of {}", known.join(", ")),
    }
}
