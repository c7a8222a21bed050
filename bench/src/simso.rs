//! The simulator compared with SimSo, with one set of periodic tasks under earliest deadline first.
//!
//! SimSo calls the functions `schedule`, `on_activate` and `on_terminated` of its scheduler. A call
//! of `schedule` is a decision, like a call of `pick` in Slackline. The two simulators run in turn,
//! so that disturbances affect both simulators. Calls of `pick` are counted in a separate run,
//! because counting takes time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use slackline_scenario::Scenario;

use crate::counting::{self, Calls};
use crate::report::{spread, table};

/// Simulated seconds of one run of Slackline. The run takes a few tenths of a second.
const OURS: u64 = 2_000;
const THEIRS: u64 = 20;

/// Results of one run of a simulator, per second that the run took: decisions, calls of the
/// scheduler, and simulated seconds.
struct SimsoRun {
    decisions: f64,
    calls: f64,
    simulated: f64,
}

/// Runs both simulators in turn, `rounds` times. Returns Markdown.
pub(crate) fn run(rounds: u32) -> Result<String> {
    let python = install()?;
    let mut scenario = Scenario::read(&text(OURS))?;
    let plain = scenario.policy.spec;
    scenario.policy.spec = counting::counted(plain);
    slackline_sim::run(&scenario, &mut ())?;
    let calls = counting::take();
    scenario.policy.spec = plain;
    let mut runs = Vec::new();
    for _ in 0..rounds {
        runs.push((theirs(&python)?, ours(&scenario, calls)?));
    }
    let row = |name: &str, of: fn(&SimsoRun) -> f64| {
        let theirs: Vec<f64> = runs.iter().map(|(theirs, _)| of(theirs)).collect();
        let ours: Vec<f64> = runs.iter().map(|(_, ours)| of(ours)).collect();
        let ratios: Vec<f64> =
            ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
        vec![name.to_owned(), spread(&theirs, 0), spread(&ours, 0), spread(&ratios, 0)]
    };
    let rows = [
        row("decisions per second", |run| run.decisions),
        row("calls of all scheduler functions per second", |run| run.calls),
        row("simulated seconds per second", |run| run.simulated),
    ];
    let heads = ["median (range)", "SimSo", "Slackline", "ratio"];
    let what = "EDF, eight tasks on one CPU, periods of 10 to 31 ms, work of 1.0 to 1.7 ms";
    Ok(format!("{what}; {rounds} rounds of each simulator.\n\n{}", table(&heads, &rows)))
}

/// Returns the scenario with the set of tasks in the SimSo script.
fn text(seconds: u64) -> String {
    let mut text = format!(
        "title = \"SimSo's set\"\nlength = \"{seconds}s\"\n\
         policy = {{ name = \"edf\", reserve = \"0cpu\" }}\n[host]\ncpus = 1\n"
    );
    for task in 0..8 {
        let (period, work) = (10 + 3 * task, 1_000 + 100 * task);
        text += &format!(
            "[[domain]]\nname = \"t{task}\"\n\
             work = {{ kind = \"periodic\", period = \"{period}ms\", work = \"{work}us\" }}\n\
             share.edf = {{ slice = \"{work}us\", period = \"{period}ms\", exact = true }}\n"
        );
    }
    text
}

fn ours(scenario: &Scenario, calls: Calls) -> Result<SimsoRun> {
    let start = Instant::now();
    slackline_sim::run(scenario, &mut ())?;
    let took = start.elapsed().as_secs_f64();
    Ok(SimsoRun {
        decisions: calls.picks as f64 / took,
        calls: calls.all as f64 / took,
        simulated: OURS as f64 / took,
    })
}

fn theirs(python: &Path) -> Result<SimsoRun> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/run_simso.py");
    let output = Command::new(python).arg(script).arg(THEIRS.to_string()).output();
    let output = output.context("SimSo does not start")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "SimSo failed: {said}");
    let text = String::from_utf8(output.stdout).context("SimSo printed no text")?;
    let numbers: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
    let numbers = numbers.with_context(|| format!("SimSo printed {text:?}"))?;
    let &[schedule, activate, terminate, took] = &numbers[..] else {
        anyhow::bail!("SimSo printed {text:?}");
    };
    Ok(SimsoRun {
        decisions: schedule / took,
        calls: (schedule + activate + terminate) / took,
        simulated: THEIRS as f64 / took,
    })
}

/// Returns the Python interpreter of an environment that has SimSo. If SimSo is missing there, it
/// is installed.
fn install() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let home = root.join("target/bench-venv");
    let python = home.join("bin/python");
    let has_it = |python: &Path| {
        Command::new(python).args(["-c", "import simso"]).output().is_ok_and(|o| o.status.success())
    };
    if has_it(&python) {
        return Ok(python);
    }
    eprintln!("installing SimSo");
    let venv = Command::new("python3").args(["-m", "venv"]).arg(&home).output();
    let venv = venv.context("python3 does not start")?;
    ensure!(venv.status.success(), "no venv: {}", String::from_utf8_lossy(&venv.stderr));
    let pip = Command::new(&python).args(["-m", "pip", "install", "--quiet", "simso"]).output();
    let pip = pip.context("pip does not start")?;
    ensure!(has_it(&python), "no SimSo: {}", String::from_utf8_lossy(&pip.stderr));
    Ok(python)
}
