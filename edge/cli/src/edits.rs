//! Edits of reservations that the options of `slackline whatif` describe.

use std::path::PathBuf;

use clap::Args;
use slackline_units::Span;
use slackline_whatif::{Edit, EditError};

use crate::input::file;
use crate::parse::span;
use crate::problem::Problem;

/// Predict from a recorded trace what other parameters would change
///
/// `whatif` splits the trace into jobs. A job begins when a vCPU becomes runnable and ends when the
/// vCPU blocks. The simulated host runs these jobs, with the changes that the options describe.
/// Each prediction is simulated twice. In the open form a job is ready at its recorded time. In the
/// closed form a job is ready after the recorded pause since the previous job. The prediction is
/// the interval between the two results.
///
/// First `whatif` checks the simulator: it simulates the unchanged recording, with costs fitted to
/// the first half. In the second half, each simulated share may differ from the recorded share by
/// at most 0.1 percentage points of a CPU, or more on a live host (docs/whatif.md). The simulated
/// and the recorded p99 of each wait have 95 % confidence intervals. The gap between the two
/// intervals may be at most 20 % of the recorded wait, or 50 us if that is more. If both forms fail
/// this check, nothing is predicted. Without changes `whatif` prints only the result of this check.
///
/// With --since the recording is the last part of the daemon's recording. Only administrators may
/// save that recording. For other users the daemon predicts, without --save and --save-scenario.
///
/// Examples:
///   slackline whatif --since 30s --set web.slice=3ms
///   slackline whatif it.trace --set web.slice=3ms
///   slackline whatif it.trace --add db2 --like db --cpus 0-1
///   slackline whatif it.trace --policy credit --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Whatif {
    /// Trace saved with --save or by `record`; `-` is standard input.
    #[arg(value_parser = file, required_unless_present = "since", conflicts_with = "since")]
    pub(crate) file: Option<PathBuf>,
    /// Use the last part of the daemon's recording instead of a file, e.g. `30s`.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) since: Option<Span>,
    /// Unix socket of the daemon, for --since.
    #[arg(long, value_name = "PATH", default_value = slackline_control::SOCKET)]
    pub(crate) socket: PathBuf,
    /// Use another policy, or other parameters, e.g. `sedf:slack=weighted`.
    #[arg(long, value_name = "NAME[:FIELD=VALUE]")]
    pub(crate) policy: Option<String>,
    /// Set a parameter of a VM or vCPU, e.g. `web.slice=3ms`; repeatable.
    #[arg(long, value_name = "NAME.FIELD=VALUE")]
    pub(crate) set: Vec<String>,
    /// Add a VM of this name; needs --like; repeatable.
    #[arg(long, value_name = "NAME", requires = "like")]
    pub(crate) add: Vec<String>,
    /// VM whose jobs and parameters the VM of --add gets; repeatable.
    #[arg(long, value_name = "NAME", requires = "add")]
    pub(crate) like: Vec<String>,
    /// Remove a VM; repeatable.
    #[arg(long, value_name = "NAME")]
    pub(crate) remove: Vec<String>,
    /// Use these CPUs, e.g. `0-3`; numbers that the recorded host does not have are new CPUs.
    #[arg(long, value_name = "N-N,...")]
    pub(crate) cpus: Option<String>,
    /// Confine a VM or vCPU to one CPU; needs --to-cpu; repeatable.
    #[arg(long, value_name = "NAME", requires = "to_cpu")]
    pub(crate) r#move: Vec<String>,
    /// CPU for the VM or vCPU of --move; repeatable.
    #[arg(long, value_name = "N", requires = "move")]
    pub(crate) to_cpu: Vec<usize>,
    /// Print the prediction as JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the prediction as one HTML page.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Write the edited reservations for `slackline apply`, with predictions as comments.
    #[arg(long, value_name = "PLAN")]
    pub(crate) save: Option<PathBuf>,
    /// Write the open form as a scenario for `slackline sim`, and the closed form to
    /// FILE-closed.toml.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) save_scenario: Option<PathBuf>,
}

impl Whatif {
    /// Returns the edits that all `whatif` options together describe.
    pub(crate) fn edits(&self) -> Result<Vec<Edit>, Problem> {
        let mut edits: Vec<Edit> = self.policy.iter().cloned().map(Edit::Policy).collect();
        let adds = pairs(("--add", &self.add), ("--like", &self.like))?;
        edits.extend(adds.map(|(name, like)| Edit::Add { name: name.clone(), like: like.clone() }));
        edits.extend(self.remove.iter().cloned().map(Edit::Remove));
        if let Some(cpus) = &self.cpus {
            edits.push(Edit::Cpus(cpu_list(cpus)?));
        }
        for written in &self.set {
            edits.push(set(written)?);
        }
        let moves = pairs(("--move", &self.r#move), ("--to-cpu", &self.to_cpu))?;
        edits.extend(moves.map(|(name, cpu)| Edit::Move { name: name.clone(), cpu: *cpu }));
        Ok(edits)
    }
}

/// Explains an edit that cannot be made. `has_file` is true if the recording is a file of the user,
/// and not the recording of a daemon.
pub(crate) fn bad_edit(error: &EditError, has_file: bool) -> Problem {
    let hint = match error {
        EditError::UnknownName { meant: None, .. } if !has_file => {
            "list the reservations with `slackline list`".into()
        }
        error => error.hint(),
    };
    let (message, hint) = (error.to_string(), Some(hint));
    match error {
        EditError::LeftOut(_) => Problem::NoForecast { message, hint },
        _ => Problem::BadOption { message, hint },
    }
}

/// Pairs the first value of one option with the first value of another option, and so on. Fails if
/// the user has not given both options equally often.
fn pairs<'a, A, B>(
    (one, ones): (&str, &'a [A]),
    (other, others): (&str, &'a [B]),
) -> Result<impl Iterator<Item = (&'a A, &'a B)>, Problem> {
    if ones.len() == others.len() {
        return Ok(ones.iter().zip(others));
    }
    let (ones, others) = (ones.len(), others.len());
    Err(Problem::BadOption {
        message: format!(
            "cannot pair {one} (given {ones} times) with {other} (given {others} times)"
        ),
        hint: Some(format!("give {other} once for each {one}")),
    })
}

/// Parses an edit written as `NAME.FIELD=VALUE`. The name may contain dots.
fn set(written: &str) -> Result<Edit, Problem> {
    let parts = written.split_once('=').and_then(|(place, value)| {
        let (name, field) = place.rsplit_once('.')?;
        let is_whole = ![name, field, value].iter().any(|part| part.is_empty());
        let is_word = !value.contains(char::is_whitespace);
        (is_whole && is_word).then(|| [name, field, value].map(str::to_owned))
    });
    let Some([name, field, value]) = parts else {
        return Err(Problem::BadOption {
            message: format!("cannot read --set `{written}`: it is not NAME.FIELD=VALUE"),
            hint: Some("write --set web.slice=3ms".into()),
        });
    };
    Ok(Edit::Set { name, field, value })
}

/// Parses a list of CPUs such as `0-3,6`.
pub(crate) fn cpu_list(written: &str) -> Result<Vec<usize>, Problem> {
    const MOST: usize = slackline_units::CpuId::LIMIT;
    let part = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
        (from <= to && to < MOST).then_some(from..=to)
    };
    let parts: Option<Vec<_>> = written.split(',').map(part).collect();
    let parts = parts.ok_or_else(|| Problem::BadOption {
        message: format!("cannot read --cpus `{written}`: it is not a list of CPUs below {MOST}"),
        hint: Some("write --cpus 0-3".into()),
    })?;
    Ok(parts.into_iter().flatten().collect())
}
