//! The text of a scenario.

use std::fmt::Write as _;

use slackline_scenario::{Scenario, ScenarioError};
use slackline_units::Span;

use crate::bursts::Job;

/// A scenario as text, with the files that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenScenario {
    /// Text of the scenario, in TOML, without its `[[axis]]`.
    pub text: String,
    /// Text of the `[[axis]]` that varies the burst model, in TOML. Empty if there is only one
    /// burst model.
    pub axis: String,
    /// Names and texts of the files of jobs. The files must be in the folder of the scenario.
    pub files: Vec<(String, String)>,
    /// Assumptions and repairs, one sentence each. The text has them as comments.
    pub assumptions: Vec<String>,
}

impl WrittenScenario {
    /// Returns the text of the scenario with its axis.
    #[must_use]
    pub fn whole(&self) -> String {
        format!("{}{}", self.text, self.axis)
    }

    /// Returns the text of the scenario, without its axis, with lists of jobs in place of the names
    /// of job files.
    #[must_use]
    pub fn inlined(&self) -> String {
        let mut text = self.text.clone();
        for (name, jobs) in &self.files {
            let mut lines = jobs.lines();
            let key = match lines.next() {
                Some("think_ns,work_ns") => "think",
                _ => "ready",
            };
            let spans = |column: usize| -> String {
                let of = |line: &str| line.split(',').nth(column).map(|ns| format!("\"{ns}ns\""));
                jobs.lines().skip(1).filter_map(of).collect::<Vec<_>>().join(", ")
            };
            let lists = format!("{key} = [{}], work = [{}]", spans(0), spans(1));
            text = text.replace(&format!("file = {}", quoted(name)), &lists);
        }
        text
    }

    /// Parses the scenario at the first point of its axis. The parser checks the scenario.
    ///
    /// # Errors
    /// If the scenario is not valid, for example because it has too many vCPUs.
    pub fn scenario(&self) -> Result<Scenario, ScenarioError> {
        Scenario::with_files(&self.text, &|path| {
            let file = self.files.iter().find(|(name, _)| name == path);
            file.map(|(_, text)| text.clone()).ok_or_else(|| "there is no such file".into())
        })
    }
}

/// Returns the first lines of a scenario: comments, and the keys above all tables.
pub(crate) fn head(
    kind: &str,
    (title, length, policy): (&str, Span, &str),
    assumptions: &[String],
) -> String {
    let mut text = comments(kind, assumptions);
    let _ = writeln!(text, "title  = {}", quoted(title));
    let _ = writeln!(text, "length = \"{length}\"");
    let _ = writeln!(text, "policy = {policy}");
    text
}

/// Returns the comments at the start of a file: its kind and its assumptions.
pub(crate) fn comments(kind: &str, assumptions: &[String]) -> String {
    let mut text = format!("# Written by `slackline import {kind}`.\n");
    for assumption in assumptions {
        let _ = writeln!(text, "# assumed: {}", plain(assumption));
    }
    text
}

/// Returns the text of a file of jobs: a title, then a line for each job.
pub(crate) fn jobs_file(jobs: &[Job]) -> String {
    let mut text = String::from("ready_ns,work_ns\n");
    for (ready, work) in jobs {
        let _ = writeln!(text, "{},{}", ready.ns(), work.ns());
    }
    text
}

/// Returns a text as a string of TOML.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Replaces the characters that would end a comment.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns a number with the noun in the singular or plural.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
