//! Reads scenario files.

use std::fs;
use std::path::Path;

use slackline_scenario::{LONGEST, Scenario};
use slackline_units::Span;

use crate::problem::Problem;

/// Reads a scenario and the files it names.
pub(crate) fn scenario(file: &Path, length: Option<Span>) -> Result<Scenario, Problem> {
    let text = text(file)?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let load = |named: &str| fs::read_to_string(folder.join(named)).ok();
    let mut scenario = Scenario::with_files(&text, &load)
        .map_err(|error| Problem::Scenario { file: file.into(), error })?;
    if let Some(length) = length {
        if length <= scenario.warmup {
            return Err(Problem::BadOption {
                message: format!(
                    "--length {length} is not longer than the warm-up of {}",
                    scenario.warmup
                ),
                hint: Some(format!("write --length {} or more", scenario.warmup * 2)),
            });
        }
        if length > LONGEST {
            return Err(Problem::BadOption {
                message: format!("--length {length} is longer than a year"),
                hint: Some(format!("the longest is {LONGEST}")),
            });
        }
        scenario.length = length;
    }
    Ok(scenario)
}

fn text(file: &Path) -> Result<String, Problem> {
    let unreadable = |source| Problem::Unreadable { file: file.into(), source };
    String::from_utf8(fs::read(file).map_err(unreadable)?).map_err(|error| {
        let (good, rest) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
        let good = String::from_utf8_lossy(good);
        let last = good.rsplit('\n').next().unwrap_or_default();
        let (line, column) = (good.matches('\n').count() + 1, last.chars().count() + 1);
        Problem::NotText { file: file.into(), line, column, byte: rest[0] }
    })
}

/// The same scenario under another policy.
pub(crate) fn under(file: &Path, scenario: &Scenario, policy: &str) -> Result<Scenario, Problem> {
    scenario.with_policy(policy).map_err(|error| Problem::Scenario { file: file.into(), error })
}
