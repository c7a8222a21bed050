//! What can go wrong, how it is said, and with which code we exit.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use slackline_live::drive::LiveError;
use slackline_scenario::ScenarioError;
use slackline_sim::RunError;
use slackline_trace::ReadError;
use thiserror::Error;

/// Everything a command can end with besides success.
#[derive(Debug, Error)]
pub(crate) enum Problem {
    /// The scenario says something wrong.
    #[error("{}:{}:{}: {error}", file.display(), error.line, error.column)]
    Scenario { file: PathBuf, error: ScenarioError },
    /// The scenario asks for more than can be promised.
    #[error("{}:{line}: {message}", file.display())]
    Declined { file: PathBuf, line: usize, message: String },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", file.display())]
    Unreadable { file: PathBuf, source: io::Error },
    /// A file is not what it should be.
    #[error("{}: {error}", file.display())]
    BadTrace { file: PathBuf, error: ReadError },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", file.display())]
    Unwritable { file: PathBuf, source: io::Error },
    /// An option makes no sense.
    #[error("{message}")]
    BadOption { message: String, hint: Option<String> },
    /// A claim names what nobody measures.
    #[error("{}:{line}: {message}", file.display())]
    BadClaim { file: PathBuf, line: usize, message: String, hint: Option<String> },
    /// This machine does not allow it.
    #[error("{0}")]
    Live(LiveError),
    /// A live run cannot start here, and says so before it has touched anything.
    #[error("{message}")]
    HostCannot { message: String, hint: Option<String> },
    /// A workload could not go on.
    #[error("{0}")]
    Load(#[from] slackline_load::LoadError),
    /// Standard output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    /// The contract between the parts was broken.
    #[error("{message}")]
    Bug { message: String, kept: Option<PathBuf> },
    /// Somebody wanted us to stop.
    #[error("stopped by a signal")]
    Interrupted,
    /// Some claims do not hold; they have been printed.
    #[error("{0} of the claims failed")]
    ClaimsFailed(usize),
}

impl Problem {
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Problem::ClaimsFailed(_) => 1,
            Problem::HostCannot { .. } | Problem::Unwritable { .. } | Problem::Output(_) => 3,
            Problem::Live(LiveError::Scenario(_) | LiveError::Declined { .. }) => 2,
            Problem::Live(LiveError::Machine(error)) if error.is_bug() => 70,
            Problem::Live(LiveError::Panicked { .. }) | Problem::Bug { .. } => 70,
            Problem::Live(_) => 3,
            Problem::Interrupted => 130,
            _ => 2,
        })
    }

    /// Whether the scenario is fine but this machine is not.
    pub(crate) fn is_about_the_host(&self) -> bool {
        matches!(
            self,
            Problem::HostCannot { .. }
                | Problem::Live(LiveError::NoRealTime { .. } | LiveError::NoLockedMemory { .. })
        )
    }

    /// Says it on standard error.
    pub(crate) fn tell(&self) {
        match self {
            Problem::ClaimsFailed(_) | Problem::Interrupted => {}
            Problem::Bug { kept, .. } => {
                eprintln!("bug: {self}");
                if let Some(kept) = kept {
                    eprintln!("     trace kept in {}; this is our fault", kept.display());
                }
            }
            _ => eprintln!("error: {self}"),
        }
        if let Some(hint) = self.hint() {
            eprintln!("hint:  {hint}");
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Problem::Scenario { error, .. } => error.hint(),
            Problem::BadOption { hint, .. }
            | Problem::BadClaim { hint, .. }
            | Problem::HostCannot { hint, .. } => hint.clone(),
            Problem::Live(error) => error.hint(),
            Problem::Declined { .. } => {
                Some("promise less, or to fewer; the policy's page says what fits".into())
            }
            _ => None,
        }
    }

    pub(crate) fn of_sim(file: &Path, scenario: &slackline_scenario::Scenario, error: RunError) -> Problem {
        let file = file.to_owned();
        match error {
            RunError::Scenario(error) => Problem::Scenario { file, error },
            RunError::Declined { domain, .. } => {
                let line = scenario.domains[domain].line;
                Problem::Declined { file, line, message: error.to_string() }
            }
            RunError::Broken(broken) => {
                let message = format!("{broken} (seed {})", scenario.seed);
                Problem::Bug { message, kept: None }
            }
        }
    }

    pub(crate) fn of_live(file: &Path, error: LiveError) -> Problem {
        let file = file.to_owned();
        match error {
            LiveError::Scenario(error) => Problem::Scenario { file, error },
            LiveError::Declined { line, .. } => {
                Problem::Declined { file, line, message: error.to_string() }
            }
            error => Problem::Live(error),
        }
    }
}
