//! Reads scenario files.

use std::fs;
use std::path::Path;

use slackline_scenario::Scenario;
use slackline_units::Span;

use crate::problem::Problem;

/// Reads a scenario and the files it names.
pub(crate) fn scenario(file: &Path, length: Option<Span>) -> Result<Scenario, Problem> {
    let text = fs::read_to_string(file)
        .map_err(|source| Problem::Unreadable { file: file.into(), source })?;
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
        scenario.length = length;
    }
    Ok(scenario)
}

/// The same scenario under another policy.
pub(crate) fn under(file: &Path, scenario: &Scenario, policy: &str) -> Result<Scenario, Problem> {
    scenario
        .with_policy(policy)
        .map_err(|error| Problem::Scenario { file: file.into(), error })
}
