//! Types and functions that all probes use: verdicts, errors, and the reading of files.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::{fs, thread};

use thiserror::Error;

use super::parse::Config;
use super::{Figure, State};
use slackline_linux::sys::cpu_list;
use slackline_linux::version::KernelVersion;

/// A probe of one topic.
pub(super) type Probe = fn(&Host) -> Result<Verdict, ProbeError>;

/// Result of a probe: a [`Finding`](super::Finding) without its topic.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) state: State,
    pub(super) found: String,
    pub(super) hint: Option<String>,
    pub(super) figures: Vec<Figure>,
}

impl Verdict {
    pub(super) fn good(found: impl Into<String>) -> Verdict {
        Verdict { state: State::Good, found: found.into(), hint: None, figures: Vec::new() }
    }

    pub(super) fn limited(found: impl Into<String>) -> Verdict {
        Verdict { state: State::Limited, ..Verdict::good(found) }
    }

    pub(super) fn missing(found: impl Into<String>) -> Verdict {
        Verdict { state: State::Missing, ..Verdict::good(found) }
    }

    pub(super) fn unknown(found: impl Into<String>) -> Verdict {
        Verdict { state: State::Unknown, ..Verdict::good(found) }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Verdict {
        Verdict { hint: Some(hint.into()), ..self }
    }

    pub(super) fn figure(mut self, name: &'static str, value: u64) -> Verdict {
        self.figures.push(Figure { name, value });
        self
    }
}

/// Reason why a probe could not determine its result.
#[derive(Clone, Debug, Error)]
pub(super) enum ProbeError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the kernel.
        source: Arc<io::Error>,
    },
    /// The text of a file could not be parsed.
    #[error("cannot parse `{text}` in {path}")]
    NotUnderstood {
        /// Path of the file.
        path: PathBuf,
        /// Text that could not be parsed.
        text: String,
    },
    /// An action of the probe failed, and the error does not show the state of the topic.
    #[error("cannot {what}: {source}")]
    Tried {
        /// Attempted action as a phrase such as "start a thread".
        what: &'static str,
        /// Error of the kernel.
        source: Arc<io::Error>,
    },
    /// A thread that the probe started ended without a result.
    #[error("the probe thread ended without an answer")]
    NoAnswer,
    /// A program that the probe started has failed.
    #[error("`{program}` ended with {status}")]
    Program {
        /// Name of the program.
        program: &'static str,
        /// Exit status of the program.
        status: ExitStatus,
    },
}

impl ProbeError {
    /// Returns a function for `map_err` that converts an error to [`ProbeError::Tried`]. `what` is
    /// the attempted action as a phrase such as "start a thread".
    pub(super) fn tried<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ProbeError {
        move |source| ProbeError::Tried { what, source: Arc::new(source.into()) }
    }
}

/// Properties of the host that several probes need. They are read once.
#[derive(Debug)]
pub(super) struct Host {
    /// Release of the kernel, such as `6.18.44-cloud-amd64`.
    pub(super) release: Result<String, ProbeError>,
    pub(super) version: Result<KernelVersion, ProbeError>,
    pub(super) config: Result<Config, ProbeError>,
    pub(super) root: bool,
}

impl Host {
    pub(super) fn look() -> Host {
        const RELEASE: &str = "/proc/sys/kernel/osrelease";
        let release = read(RELEASE);
        let version = release.clone().and_then(|release| {
            KernelVersion::parse(&release).ok_or_else(|| not_understood(RELEASE, &release))
        });
        let config = release.clone().and_then(|release| read_config(&release));
        Host { release, version, config, root: rustix::process::geteuid().is_root() }
    }

    /// Returns true if the kernel has this build option, built in or as a module.
    pub(super) fn is_built_with(&self, option: &str) -> Result<bool, ProbeError> {
        self.config.as_ref().map(|config| config.value(option).is_some()).map_err(Clone::clone)
    }

    /// Returns true if this kernel has version `major.minor` or a later version.
    pub(super) fn is_at_least(&self, major: u32, minor: u32) -> Result<bool, ProbeError> {
        let at_least = |version: &KernelVersion| *version >= KernelVersion { major, minor };
        self.version.as_ref().map(at_least).map_err(Clone::clone)
    }
}

/// Reads the build options of the kernel, from an installed file or from the kernel itself.
fn read_config(release: &str) -> Result<Config, ProbeError> {
    let beside = [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")];
    let installed = beside.into_iter().find_map(|path| fs::read_to_string(path).ok());
    let text = installed.map_or_else(|| unpacked("/proc/config.gz"), Ok)?;
    Ok(Config::new(text))
}

fn unpacked(path: &'static str) -> Result<String, ProbeError> {
    // If the file does not exist, this error is clearer than the exit status of `gzip`.
    fs::metadata(path).map_err(|source| unreadable(path, source))?;
    // Hosts without `gzip` are too rare to justify an unpacker in this program.
    let output = Command::new("gzip")
        .args(["--decompress", "--stdout", path])
        .output()
        .map_err(ProbeError::tried("run `gzip`"))?;
    if !output.status.success() {
        return Err(ProbeError::Program { program: "gzip", status: output.status });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn unreadable(path: impl AsRef<Path>, source: io::Error) -> ProbeError {
    ProbeError::Read { path: path.as_ref().into(), source: Arc::new(source) }
}

/// Creates the error for a file that cannot be parsed.
pub(super) fn not_understood(path: impl AsRef<Path>, text: &str) -> ProbeError {
    ProbeError::NotUnderstood { path: path.as_ref().into(), text: text.trim().into() }
}

/// Reads the text of a file, without the white space around it.
pub(super) fn read(path: impl AsRef<Path>) -> Result<String, ProbeError> {
    let bytes = fs::read(&path).map_err(|source| unreadable(&path, source))?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Reads the text of a file. `None` if there is no such file.
pub(super) fn read_if_there(path: impl AsRef<Path>) -> Result<Option<String>, ProbeError> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(ProbeError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Reads a file that consists of one whole number.
pub(super) fn read_number<N: std::str::FromStr>(path: impl AsRef<Path>) -> Result<N, ProbeError> {
    let text = read(&path)?;
    text.parse().map_err(|_| not_understood(path, &text))
}

/// Reads a file that consists of a list of ranges, such as `0-3,8`.
pub(super) fn read_list(path: impl AsRef<Path>) -> Result<Vec<usize>, ProbeError> {
    let text = read(&path)?;
    cpu_list(&text).ok_or_else(|| not_understood(path, &text))
}

/// Runs `work` on a new thread. The thread ends after that, so a change that `work` makes to its
/// own scheduling does not remain.
pub(super) fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ProbeError> {
    let thread = thread::Builder::new()
        .name("doctor".into())
        .spawn(work)
        .map_err(ProbeError::tried("start a thread"))?;
    thread.join().map_err(|_| ProbeError::NoAnswer)
}
