//! Errors of a conversion.

use thiserror::Error;

/// Reason why files cannot be converted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WorkloadError {
    /// Several files were given for a kind that takes one file.
    #[error("cannot convert {count} files of kind {kind}: this kind takes exactly one file")]
    Count {
        /// Name of the kind.
        kind: &'static str,
        /// Number of files given.
        count: usize,
    },
    /// A file is damaged, or says something that no scenario can express.
    #[error("{file}{place}: {why}")]
    File {
        /// Name of the file.
        file: String,
        /// Place in the file, such as `:3` or `: task `web``.
        place: String,
        /// Reason, in words. If a limit was exceeded, the reason contains the number found and the
        /// limit.
        why: String,
        /// Advice, if there is any.
        hint: Option<&'static str>,
    },
    /// The options do not suit the files.
    #[error("{why}")]
    Options {
        /// Reason, in words. If a limit was exceeded, the reason contains the number found and the
        /// limit.
        why: String,
        /// Advice on how to correct the options.
        hint: &'static str,
    },
}

impl WorkloadError {
    /// Returns the error of a line, counted from 1.
    pub(crate) fn line(file: &str, line: u64, why: impl Into<String>) -> WorkloadError {
        let (file, place) = (file.to_owned(), format!(":{line}"));
        WorkloadError::File { file, place, why: why.into(), hint: None }
    }

    /// Returns the error of a whole file.
    pub(crate) fn file(file: &str, why: impl Into<String>) -> WorkloadError {
        let (file, place) = (file.to_owned(), String::new());
        WorkloadError::File { file, place, why: why.into(), hint: None }
    }

    /// Returns the error of a task.
    pub(crate) fn task(file: &str, task: &str, why: impl Into<String>) -> WorkloadError {
        let (file, place) = (file.to_owned(), format!(": task `{task}`"));
        WorkloadError::File { file, place, why: why.into(), hint: None }
    }

    /// Adds advice to the error of a file.
    #[must_use]
    pub(crate) fn advise(mut self, advice: &'static str) -> WorkloadError {
        if let WorkloadError::File { hint, .. } = &mut self {
            *hint = Some(advice);
        }
        self
    }

    /// Returns advice for this error, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            WorkloadError::Count { .. } => Some("convert each file to a scenario of its own"),
            WorkloadError::File { hint, .. } => *hint,
            WorkloadError::Options { hint, .. } => Some(hint),
        }
    }
}
