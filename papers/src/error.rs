//! What can be wrong with a paper's folder, where, and what to type instead.

use std::io;
use std::path::PathBuf;

use slackline_policy::nearest;
use thiserror::Error;

/// Why a paper cannot be read, run or written.
#[derive(Debug, Error)]
pub enum PaperError {
    /// There are no papers in the folder.
    #[error("no papers are in {}", folder.display())]
    NoPapers {
        /// The folder.
        folder: PathBuf,
    },
    /// No paper has this name.
    #[error("there is no paper `{name}`")]
    UnknownPaper {
        /// As written.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// A paper has no experiment of this name, and no figure or table either.
    #[error("{paper} has no experiment `{name}`")]
    UnknownExperiment {
        /// The paper.
        paper: String,
        /// As written.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", file.display())]
    Unwritable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file says something wrong.
    #[error("{}:{line}:{column}: {kind}", file.display())]
    InFile {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The column in characters, counted from 1.
        column: usize,
        /// What is wrong.
        kind: Box<FileFault>,
    },
    /// Somebody wanted no more runs.
    #[error("stopped after {runs} of {of} runs")]
    Stopped {
        /// So many were done.
        runs: usize,
        /// Of so many.
        of: usize,
    },
    /// An experiment is played by a machine, and there is none.
    #[error("cannot simulate {experiment}: it can only run live")]
    OnlyLive {
        /// The experiment.
        experiment: String,
    },
    /// The machine that plays an experiment could not go on.
    #[error("at {point}: {source}")]
    Unplayable {
        /// The point.
        point: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Nothing has been run yet of what a report is asked for.
    #[error("{paper} has no results yet")]
    NoResults {
        /// The paper.
        paper: String,
    },
}

/// What is wrong with a file of a paper.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileFault {
    /// It is no TOML, or lacks a key, or has one too many.
    #[error("{message}")]
    Syntax {
        /// The parser's words.
        message: String,
    },
    /// A name that nothing has.
    #[error("there is no {what} `{name}`")]
    Unknown {
        /// What it should be.
        what: &'static str,
        /// As written.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// Two things have one name.
    #[error("there is a {what} `{name}` already")]
    Twice {
        /// What has it.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Something must be there.
    #[error("{place} has no `{key}`")]
    Missing {
        /// What needs it.
        place: &'static str,
        /// The key.
        key: &'static str,
        /// How one would write it.
        example: &'static str,
    },
    /// A text does not have the form it should have.
    #[error("`{written}` is not a {what}")]
    NotA {
        /// As written.
        written: String,
        /// What it should be.
        what: &'static str,
        /// How one would write it.
        example: &'static str,
    },
    /// A path leads nowhere in the scenario.
    #[error("the scenario has no value at `{path}`: {why}")]
    BadPath {
        /// As written.
        path: String,
        /// Where it ends.
        why: String,
    },
    /// The scenario that comes of a point is wrong.
    #[error("at {point}: {message}")]
    BadScenario {
        /// The point.
        point: String,
        /// What is wrong.
        message: String,
        /// What to type instead.
        hint: Option<String>,
    },
    /// A comparison does not fit what was published.
    #[error("cannot test `{published}` by `{test}`: it is {is}")]
    WrongTest {
        /// The published value.
        published: String,
        /// What it is.
        is: String,
        /// The test.
        test: &'static str,
    },
}

impl PaperError {
    /// What to type instead, in a line.
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

/// What may have been meant, or else all that there is.
fn meant(name: &str, known: &[String]) -> String {
    match nearest(name, known.iter().map(String::as_str)) {
        Some(other) => format!("did you mean `{other}`?"),
        None if known.is_empty() => "there are none".to_owned(),
        None => format!("use one of {}", known.join(", ")),
    }
}
