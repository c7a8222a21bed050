//! Tests of the conversion of other programs' files to scenarios.

mod rt_app;
mod series;
mod sets;
mod simso;

use slackline_workload::{Kind, Options, SourceFile, WorkloadError, WrittenScenario, convert};

/// Converts one file with the default options.
fn one(kind: Kind, name: &str, bytes: &[u8]) -> Result<WrittenScenario, WorkloadError> {
    convert(kind, &[SourceFile { name, bytes }], &Options::default(), "it")
}

/// Asserts that a file is refused with this message.
#[track_caller]
fn refused(kind: Kind, bytes: &[u8], message: &str) {
    let error = one(kind, "file", bytes).expect_err("the file must be refused");
    assert_eq!(error.to_string(), message);
}
