//! Duration of whole commands. Three are measured: a simulation with a driver domain (compared with
//! real time), the allocation error test on one core, and the experiments of the papers on all
//! cores.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::report::{spread, table};

/// Simulated seconds of a web server in one run of `slackline sim`.
const SIMULATED: f64 = 60.0;
/// Target: minimum ratio of simulated time to real time.
const FASTER: f64 = 200.0;
/// Target: maximum duration in seconds of the full allocation error test of one policy. The test
/// simulates 18 target shares for 3 minutes each.
const ALERT: f64 = 2.0;
/// Target: maximum duration in seconds of all experiments of the papers with ten seeds.
const PAPERS: f64 = 120.0;

/// Measures every command `rounds` times. The one exception is `slackline paper run`, which is slow
/// and runs once. Returns Markdown.
pub(crate) fn run(rounds: u32) -> Result<String> {
    let mut rows = Vec::new();
    // The first policy is the policy of the scenario.
    for policy in ["bvt", "edf", "sedf"] {
        let length = format!("{SIMULATED}s");
        let words = ["sim", "scenarios/web-server.toml", "--length", &length, "--policy", policy];
        let speeds = (0..rounds).map(|_| Ok(SIMULATED / seconds(&words, None)?));
        let speeds = speeds.collect::<Result<Vec<f64>>>()?;
        rows.push(row(
            &format!("a web server behind a driver domain, simulated under {policy}"),
            &format!("{} times as fast as real time", spread(&speeds, 0)),
            &format!("{FASTER} times"),
            crate::report::median(&speeds) >= FASTER,
        ));
    }
    for policy in ["edf", "sedf", "credit"] {
        let words = ["alert", "--policy", policy, "--seeds", "1"];
        let times = (0..rounds).map(|_| seconds(&words, Some(1))).collect::<Result<Vec<f64>>>()?;
        rows.push(row(
            &format!("`slackline alert` with one seed under {policy}, on one thread"),
            &format!("{} s", spread(&times, 2)),
            &format!("{ALERT} s"),
            crate::report::median(&times) <= ALERT,
        ));
    }
    let mut papers = 0.0;
    for paper in ["cherkasova-2007", "diestelhorst-2007"] {
        papers += seconds(&["paper", "run", paper, "--no-results"], None)?;
    }
    let text = format!("{papers:.0} s");
    let what = "`slackline paper run` of cherkasova-2007 and diestelhorst-2007, ten seeds";
    rows.push(row(what, &text, &format!("{PAPERS} s"), papers <= PAPERS));
    let heads = ["what", "median (range)", "promised", "holds"];
    Ok(format!(
        "Speed or time of whole commands. `sim` and `alert` were measured {rounds} times, `paper \
         run` once.\n\n{}",
        table(&heads, &rows)
    ))
}

fn row(what: &str, took: &str, promised: &str, holds: bool) -> Vec<String> {
    let holds = if holds { "yes" } else { "NO" };
    [what, took, promised, holds].map(str::to_owned).into()
}

/// Returns the seconds that `slackline` takes with the arguments `words`. `threads` is the maximum
/// number of threads of `slackline`. If `None`, the number of threads is not limited.
fn seconds(words: &[&str], threads: Option<usize>) -> Result<f64> {
    let itself = std::env::current_exe().context("cannot read the path of this program")?;
    let slackline = itself.with_file_name("slackline");
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new(&slackline);
    command.args(words).current_dir(tree).stdin(Stdio::null());
    if let Some(threads) = threads {
        command.env("RAYON_NUM_THREADS", threads.to_string());
    }
    let start = Instant::now();
    let done = command.output().with_context(|| {
        format!(
            "cannot start {}: build it with `cargo build --release -p slackline`",
            slackline.display()
        )
    })?;
    let took = start.elapsed().as_secs_f64();
    // With exit code 1 a verdict or claim failed. Such a run takes as long as a successful run.
    let is_done = matches!(done.status.code(), Some(0 | 1));
    ensure!(is_done, "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(took)
}
