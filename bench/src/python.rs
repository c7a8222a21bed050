//! Comparison of policies written in Python with built-in policies that make equal schedules. The
//! Python policies are round robin and EDF in `python/examples`.
//!
//! Each call of `pick` is one decision. Decisions are counted in a run that is not timed. The
//! Python form and the built-in form of a policy run in turn, so that disturbances affect both
//! forms. Seconds are seconds of CPU time.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::report::{spread, table};

/// Promised number of decisions per second of CPU time.
const PROMISED: f64 = 200_000.0;

/// One run of a policy: the number of decisions, and the CPU times in seconds of its Python form
/// and of its built-in form.
struct PythonRun {
    policy: String,
    decisions: f64,
    python: f64,
    built_in: f64,
}

/// Runs both forms of both policies `rounds` times. Returns Markdown.
pub(crate) fn run(rounds: u32) -> Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let python = root.join("target/python-venv/bin/python");
    ensure!(python.exists(), "no module `slackline`: run `./test` or `cargo xtask python` first");
    let script = root.join("bench/src/run_python.py");
    let output = Command::new(&python).arg(script).arg(rounds.to_string()).output();
    let output = output.context("cannot start Python")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the Python module failed: {said}");
    let text = String::from_utf8(output.stdout).context("Python printed no text")?;
    let runs = text.lines().map(read).collect::<Result<Vec<_>>>()?;
    let mut policies: Vec<&str> = runs.iter().map(|run| &*run.policy).collect();
    policies.dedup();
    let row = |policy: &&str| {
        let of = |rate: fn(&PythonRun) -> f64| -> Vec<f64> {
            runs.iter().filter(|run| run.policy == *policy).map(rate).collect()
        };
        let python = of(|run| run.decisions / run.python);
        let slowest = python.iter().copied().fold(f64::INFINITY, f64::min);
        let holds = if slowest >= PROMISED { "held" } else { "not reached" };
        vec![
            (*policy).to_owned(),
            spread(&python, 0),
            spread(&of(|run| run.decisions / run.built_in), 0),
            spread(&of(|run| run.python / run.built_in), 1),
            holds.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = policies.iter().map(row).collect();
    let heads = [
        "policy, with its decisions per second of CPU time, median (range)",
        "in Python",
        "built in",
        "ratio of CPU times",
        "target: at least 200,000 in Python",
    ];
    Ok(format!(
        "Round robin has three vCPUs that always compute. EDF has eight periodic vCPUs with hard \
         limits. One simulated CPU. In each of {rounds} rounds the policy in Python and the \
         built-in policy run in turn, and their metrics must be equal.\n\n{}",
        table(&heads, &rows)
    ))
}

fn read(line: &str) -> Result<PythonRun> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [policy, decisions, python, built_in] = words[..] else {
        bail!("Python printed {line:?}");
    };
    let number = |text: &str| text.parse::<f64>().with_context(|| format!("{line:?}"));
    Ok(PythonRun {
        policy: policy.into(),
        decisions: number(decisions)?,
        python: number(python)?,
        built_in: number(built_in)?,
    })
}
