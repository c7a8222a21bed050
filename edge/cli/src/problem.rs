//! Errors of commands, with their messages, hints and exit codes.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use slackline_control::client::ClientError;
use slackline_import::ImportError;
use slackline_linux::with_causes;
use slackline_live::session::{DeadlineConflict, SessionError};
use slackline_metrics::StrayRecord;
use slackline_papers::PaperError;
use slackline_play::play::LiveError;
use slackline_replay::ReplayError;
use slackline_scenario::ScenarioError;
use slackline_sim::RunError;
use slackline_trace::{Implausible, ReadError};
use thiserror::Error;

/// Reason why a command fails.
#[derive(Debug, Error)]
pub(crate) enum Problem {
    /// The scenario is not valid.
    #[error("{}{error}", place(file, error))]
    Scenario { file: PathBuf, error: ScenarioError },
    /// The scenario reserves more than the available capacity.
    #[error("{}:{line}: {message}", file.display())]
    Declined { file: PathBuf, line: usize, message: String, hint: Option<String> },
    /// A file cannot be opened or read.
    #[error("cannot read {}: {source}", file.display())]
    Unreadable { file: PathBuf, source: io::Error },
    /// A scenario is not UTF-8 text, or has a byte of value zero.
    #[error("{}:{line}:{column}: not a text file: byte {byte:#04x}", file.display())]
    NotText { file: PathBuf, line: usize, column: usize, byte: u8 },
    /// A file is longer than the limit.
    #[error("cannot read {}: it has more than {longest} bytes", file.display())]
    TooLong { file: PathBuf, longest: u64 },
    /// A file is not a valid trace.
    #[error("{}: {}", file.display(), with_causes(error))]
    BadTrace { file: PathBuf, error: ReadError },
    /// A recording that another program made (perf, ftrace) cannot be read.
    #[error("{}: {error}", file.display())]
    BadImport { file: PathBuf, error: ImportError },
    /// A trace would take more work to process than a file of its size can justify.
    #[error("{}: {error}", file.display())]
    Implausible { file: PathBuf, error: Implausible },
    /// A trace cannot be replayed.
    #[error("{}: {error}", file.display())]
    NoReplay { file: PathBuf, error: ReplayError },
    /// The replay differs from the trace. The difference has already been printed.
    #[error("the replayed decisions differ from the recorded ones")]
    ReplayDiffers,
    /// A record of a trace is about a vCPU that no earlier record has introduced.
    #[error("{}: {error}", file.display())]
    StrayRecord { file: PathBuf, error: StrayRecord },
    /// No prediction can be made from a recording.
    #[error("{message}")]
    NoForecast { message: String, hint: Option<String> },
    /// Admission would refuse the reservations of a prediction.
    #[error("{message}")]
    NotAdmitted { message: String, hint: Option<String> },
    /// A file cannot be created or written.
    #[error("cannot write {}: {source}", file.display())]
    Unwritable { file: PathBuf, source: io::Error },
    /// An option is not valid.
    #[error("{message}")]
    BadOption { message: String, hint: Option<String> },
    /// A claim names a value that is not measured.
    #[error("{}:{line}: {message}", file.display())]
    BadClaim { file: PathBuf, line: usize, message: String, hint: Option<String> },
    /// An axis of a scenario, or the scenario at one of its points, is not valid.
    #[error("{}:{line}:{column}: {message}", file.display())]
    BadAxis { file: PathBuf, line: usize, column: usize, message: String, hint: Option<String> },
    /// A live run failed or is not possible on this host.
    #[error("{}", with_causes(.0))]
    Live(LiveError),
    /// This host cannot run the scenario. Nothing has been changed on the host.
    #[error("{message}")]
    HostCannot { message: String, hint: Option<String> },
    /// A workload has failed.
    #[error("{}", with_causes(.0))]
    Load(#[from] slackline_load::LoadError),
    /// Standard output cannot be written to.
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    /// Policy and host violated the contract between them, which is a bug.
    #[error("{message}")]
    Bug { message: String, kept: Option<PathBuf> },
    /// A paper's folder is not valid, or cannot be read or written.
    #[error(transparent)]
    Paper(#[from] PaperError),
    /// The daemon refused a request, or cannot be reached.
    #[error(transparent)]
    Service(#[from] ClientError),
    /// A signal stopped the command.
    #[error("stopped by a signal")]
    Interrupted,
    /// The command of `hold` ended with this exit code, and has reported the reason itself.
    #[error("the command ended with exit code {code}")]
    CommandEnded { code: u8 },
    /// A plan ended early: its user undid it, or the service undid or stopped it.
    #[error("the plan was {message}")]
    PlanEnded { message: String },
    /// At least one claim does not hold. The claims that failed have already been printed.
    #[error("{0} of the claims failed")]
    ClaimsFailed(usize),
    /// The second run of `diff --check` is worse than the first run, in this number of lines of the
    /// table. These lines have already been printed.
    #[error("B is worse than A by more than noise (number of worse lines: {0})")]
    Worse(usize),
}

impl Problem {
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Problem::CommandEnded { code } => *code,
            Problem::ClaimsFailed(_)
            | Problem::ReplayDiffers
            | Problem::PlanEnded { .. }
            | Problem::Worse(_) => 1,
            Problem::Unwritable { source, .. }
            | Problem::Paper(PaperError::Unwritable { source, .. })
                if is_misnamed(source) =>
            {
                2
            }
            Problem::HostCannot { .. }
            | Problem::Unwritable { .. }
            | Problem::Paper(PaperError::Unwritable { .. })
            | Problem::Output(_) => 3,
            Problem::Live(LiveError::Scenario(_) | LiveError::Declined { .. }) => 2,
            Problem::Live(error) if error.is_bug() => 70,
            Problem::Bug { .. } => 70,
            Problem::Live(_) => 3,
            Problem::NotAdmitted { .. } => 4,
            Problem::Service(ClientError::Refused(problem)) => problem.kind.about().3,
            Problem::Service(ClientError::NotForUs { .. }) => 5,
            Problem::Service(
                ClientError::BadHost { .. }
                | ClientError::BadFile { .. }
                | ClientError::LongSocket { .. },
            ) => 2,
            Problem::Service(_) => 3,
            Problem::Interrupted => 130,
            _ => 2,
        })
    }

    /// Returns true if the scenario is valid, but cannot run on this host.
    pub(crate) fn is_about_the_host(&self) -> bool {
        matches!(
            self,
            Problem::HostCannot { .. }
                | Problem::Live(LiveError::Session(
                    SessionError::NoRealTime { .. } | SessionError::NoLockedMemory { .. }
                ))
        )
    }

    /// Returns advice in one line on how to fix the problem, if there is any.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Problem::Scenario { error, .. } => error.hint(),
            Problem::BadOption { hint, .. }
            | Problem::BadClaim { hint, .. }
            | Problem::BadAxis { hint, .. }
            | Problem::NotAdmitted { hint, .. }
            | Problem::HostCannot { hint, .. } => hint.clone(),
            Problem::Paper(PaperError::Unwritable { source, .. }) => {
                Some(about_file(source).into())
            }
            Problem::Paper(error) => error.hint(),
            Problem::Service(error) => about_service(error),
            Problem::Live(error) => error.hint(),
            Problem::Load(error) => error.hint().map(str::to_owned),
            Problem::Unwritable { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("create the folder of the file first".into())
            }
            Problem::Unreadable { source, .. } | Problem::Unwritable { source, .. } => {
                Some(about_file(source).into())
            }
            Problem::BadImport { error, .. } => Some(error.hint()),
            Problem::TooLong { .. } => Some("check the file name".into()),
            Problem::NotText { .. } => Some("name a text file in TOML".into()),
            Problem::BadTrace { .. } | Problem::Implausible { .. } | Problem::NoReplay { .. } => {
                Some("save a trace with `slackline sim SCENARIO --save TRACE`".into())
            }
            Problem::NoForecast { hint, .. } => Some(hint.clone().unwrap_or_else(|| {
                "record with `slackline run SCENARIO --save TRACE`, or `sim`".into()
            })),
            Problem::Declined { hint, .. } => Some(hint.clone().unwrap_or_else(|| {
                "reserve less; the help page of the policy says what fits".into()
            })),
            _ => None,
        }
    }

    pub(crate) fn of_sim(
        file: &Path,
        scenario: &slackline_scenario::Scenario,
        error: RunError,
    ) -> Problem {
        let file = file.to_owned();
        match error {
            RunError::Scenario(error) => Problem::Scenario { file, error },
            RunError::Declined(declined) => {
                let line = scenario.simulated().domains[declined.domain].line;
                let hint = declined.error.hint();
                Problem::Declined { file, line, message: declined.to_string(), hint }
            }
            RunError::Recording(error) => {
                Problem::BadOption { message: error.to_string(), hint: None }
            }
            RunError::Broken(broken) => {
                let message = format!("{broken} (seed {})", scenario.seed);
                Problem::Bug { message, kept: None }
            }
        }
    }

    /// Returns the error for a record about an unknown vCPU in a run of this program, which is a
    /// bug.
    pub(crate) fn of_stray(error: StrayRecord) -> Problem {
        Problem::Bug { message: error.to_string(), kept: None }
    }

    /// Returns the error for a recording that the daemon has saved and this process cannot open.
    /// The daemon saves recordings for root only, because they contain the names of all VMs.
    pub(crate) fn of_recording(file: &Path, source: io::Error) -> Problem {
        if source.kind() == io::ErrorKind::PermissionDenied {
            return Problem::HostCannot {
                message: format!("cannot read the daemon's recording {}: {source}", file.display()),
                hint: Some("run the command as root on the daemon's host".into()),
            };
        }
        Problem::Unreadable { file: file.into(), source }
    }

    pub(crate) fn of_live(file: &Path, error: LiveError) -> Problem {
        let file = file.to_owned();
        match error {
            LiveError::Scenario(error) => Problem::Scenario { file, error },
            LiveError::Declined { line, error: ref why, .. } => {
                let hint = why.hint();
                Problem::Declined { file, line, message: error.to_string(), hint }
            }
            LiveError::OnlySimulated { line, .. } => {
                let message = format!("{}:{line}: {error}", file.display());
                Problem::HostCannot { message, hint: error.hint() }
            }
            LiveError::DeadlineThreads(found) => Problem::of_conflict(&found),
            error => Problem::Live(error),
        }
    }

    /// Returns the error for reservations that deadline threads of other programs could delay.
    pub(crate) fn of_conflict(found: &DeadlineConflict) -> Problem {
        let hint = Some(DeadlineConflict::HINT.into());
        Problem::NotAdmitted { message: found.to_string(), hint }
    }
}

/// Returns true if the error is about a file name that no host accepts.
fn is_misnamed(source: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, IsADirectory, NotADirectory, NotFound};
    matches!(source.kind(), NotFound | NotADirectory | IsADirectory | InvalidFilename)
}

/// Returns advice for an error of the daemon.
fn about_service(error: &ClientError) -> Option<String> {
    let hint = match error {
        ClientError::Refused(problem) => return problem.hint.clone(),
        ClientError::NoDaemon { .. } => {
            "start the daemon with `slackline serve`, or use --socket PATH"
        }
        ClientError::LongSocket { .. } => "name a shorter path with --socket",
        ClientError::NotForUs { .. } => {
            "run as root, or as a member of the groups slackline or slackline-admin"
        }
        ClientError::BadHost { .. } => "write --host https://web:7443 --ca FILE --token FILE",
        ClientError::BadFile { .. } => {
            "use PEM files, and a token as `slackline access add` printed it"
        }
        ClientError::NoHost { .. } => "check the port, and that the daemon has --listen",
        ClientError::Untrusted { .. } => {
            "give --ca the CA of the daemon's certificate, and --host the name in that certificate"
        }
        ClientError::Lost(_) | ClientError::Silent => {
            "check with `slackline log` if the request was executed; repeating the request is safe"
        }
        ClientError::Garbled(_) => "use the same version of slackline as the daemon",
        ClientError::NoRuntime(_) => return None,
    };
    Some(hint.into())
}

/// Returns advice for a file that cannot be opened, read or written.
fn about_file(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => "check the file name",
        io::ErrorKind::IsADirectory => "name a file, not a folder",
        io::ErrorKind::PermissionDenied => "check the permissions of the file with `ls -ld`",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free disk space, or name a file on another disk"
        }
        _ => "name another file",
    }
}

/// Returns the position of an error in the scenario file. Empty if the error has no position.
fn place(file: &Path, error: &ScenarioError) -> String {
    match error.line {
        0 => String::new(),
        line => format!("{}:{line}:{}: ", file.display(), error.column),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_without_read_permission_causes_hint_to_run_as_root() {
        let (file, denied) = (Path::new("saved-7.trace"), io::ErrorKind::PermissionDenied);
        let hint = |kind: io::ErrorKind| Problem::of_recording(file, kind.into()).hint();
        assert!(hint(denied).is_some_and(|hint| hint.contains("as root")));
        assert!(hint(io::ErrorKind::NotFound).is_some_and(|hint| !hint.contains("as root")));
    }

    #[test]
    fn unreadable_answer_of_daemon_ends_the_command_with_code_3() {
        let garbled = Problem::Service(ClientError::Garbled("HTTP status 502".into()));
        // Exit codes cannot be compared, so their texts are.
        assert_eq!(format!("{:?}", garbled.exit_code()), format!("{:?}", ExitCode::from(3)));
    }
}
