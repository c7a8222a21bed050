//! Errors in the files of a paper, with their positions. Some errors have a hint.

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
        /// Name that the user requested.
        name: String,
        /// Names of all papers.
        known: Vec<String>,
    },
    /// A paper has no experiment, figure or table of this name.
    #[error("{paper} has no experiment `{name}`")]
    UnknownExperiment {
        /// Name of the paper.
        paper: String,
        /// Name that the user requested.
        name: String,
        /// Names of the paper's experiments and figures.
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
    /// A file of a paper has invalid contents.
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
    /// The user stopped the runs before all were complete.
    #[error("stopped after {runs} of {of} runs")]
    Stopped {
        /// Number of runs that are complete.
        runs: usize,
        /// Total number of runs.
        of: usize,
    },
    /// An experiment needs a live host, and the caller has provided none.
    #[error("cannot simulate {experiment}: it can only run live")]
    OnlyLive {
        /// Name of the experiment.
        experiment: String,
    },
    /// The live host failed during an experiment.
    #[error("at {point}: {source}")]
    Unplayable {
        /// Title of the point whose run failed.
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

/// Fault in the contents of a paper's file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileFault {
    /// The text is not TOML, or a key is missing or unknown.
    #[error("{message}")]
    Syntax {
        /// Message of the TOML parser.
        message: String,
    },
    /// A name in the file refers to nothing.
    #[error("there is no {what} `{name}`")]
    Unknown {
        /// Kind of thing to which the name should refer.
        what: &'static str,
        /// Name as it is in the file.
        name: String,
        /// Valid names of this kind.
        known: Vec<String>,
    },
    /// Two things of the same kind have the same name.
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
        /// Table or value in which the key is missing.
        place: &'static str,
        /// Name of the missing key.
        key: &'static str,
        /// The key with a value, as users write it.
        example: &'static str,
    },
    /// A text does not have the required format.
    #[error("`{written}` is not a {what}")]
    NotA {
        /// Text as it is in the file.
        written: String,
        /// Description of the required format.
        what: &'static str,
        /// Example of the required format.
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
    /// The scenario at a point is invalid.
    #[error("at {point}: {message}")]
    BadScenario {
        /// Title of the point.
        point: String,
        /// Message of the scenario's error.
        message: String,
        /// Hint of the scenario's error. `None` if the error has no hint.
        hint: Option<String>,
    },
    /// The test of a comparison does not fit the published value.
    #[error("cannot test `{published}` by `{test}`: the published value is {is}")]
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
    /// Returns one line of advice about what to write instead. `None` if the message is sufficient.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            PaperError::NoPapers { .. } => {
                Some("run the command in the folder with `papers/`, or use --papers FOLDER".into())
            }
            PaperError::UnknownPaper { name, known } => Some(meant(name, known)),
            PaperError::UnknownExperiment { name, known, .. } => Some(meant(name, known)),
            PaperError::InFile { kind, .. } => kind.hint(),
            PaperError::NoResults { paper } => {
                Some(format!("make results with `slackline paper run {paper}`"))
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
                Some("write `domain.NAME.KEY`, `host.KEY`, or `policy` for the whole table".into())
            }
            FileFault::WrongTest { .. } => Some(
                "use `value` for a number, `inside` for a range, `ranked` for a series, and any \
                 other test for a word"
                    .into(),
            ),
            FileFault::Syntax { .. } => None,
        }
    }
}

/// Returns the name that was probably meant, or all names if none is similar.
fn meant(name: &str, known: &[String]) -> String {
    match nearest(name, known.iter().map(String::as_str)) {
        Some(other) => format!("did you mean `{other}`?"),
        None if known.is_empty() => "there are none".to_owned(),
        None => format!("use one of {}", known.join(", ")),
    }
}
