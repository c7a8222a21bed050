//! Compares the workload manager with fixed shares, an oracle and three rules of other programs.
//! All rules run on the series of demand in `scenarios/demand`, on random series, and on a *steady
//! series*. The demand of the steady series is equal in all rounds, so a good rule changes nothing.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};
use slackline_experiments::manage::{
    BATCH, GoalList, ManagePlan, RuleKind, Score, Series, SeriesRun, drawn_series, score,
};
use slackline_units::Span;

use crate::report::table;

const ROUND: Span = Span::from_secs(5);

/// Seeds of the random series. The manager was tuned with the seeds 1 to 20, so other seeds are
/// used here.
const DRAWN: std::ops::Range<u64> = 101..121;

/// Number of rounds of the steady series, whose demand is equal in all rounds.
const STEADY_ROUNDS: usize = 100;

/// Number of runs of the steady series. Each run has another seed for the noise of 10 % in the
/// lengths of its jobs.
const STEADY_SEEDS: u64 = 10;

/// Scores of each rule on one series.
type Scores = Vec<(RuleKind, Score)>;

/// Runs all rules on all series. Returns Markdown.
pub(crate) fn run() -> Result<String> {
    let committed = committed()?;
    ensure!(committed.len() == 20, "there are {} committed series, not 20", committed.len());
    let drawn: Vec<(String, Series)> =
        DRAWN.map(|seed| (format!("seed {seed}"), drawn_series(seed))).collect();
    let mut text = String::from(
        "Each VM has jobs whose work varies by 10 %. A batch VM uses all slack. One CPU under edf, \
         60\nrounds of 5 s. Goal of each VM: at most 0.1 % of its periods missed.\n\n\
         `cargo run --release -p slackline-bench -- manager --save` makes this file.\n\n",
    );
    for (title, all) in [("Committed series", &committed), ("Series drawn by seeds", &drawn)] {
        let scores: Result<Vec<(String, Scores)>> =
            all.par_iter().map(|(name, series)| Ok((name.clone(), scores(series, 1)?))).collect();
        section(&mut text, title, &scores?);
    }
    steady(&mut text)?;
    Ok(text)
}

/// Returns the committed series with their names, sorted by name.
fn committed() -> Result<Vec<(String, Series)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/demand");
    let files = fs::read_dir(&folder).context("no folder of series")?;
    let mut files: Vec<PathBuf> =
        files.map(|file| Ok(file?.path())).collect::<Result<_, std::io::Error>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "csv"));
    files.sort();
    let read = |file: &PathBuf| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, Series::read(&fs::read_to_string(file)?)?))
    };
    files.iter().map(read).collect()
}

fn scores(series: &Series, seed: u64) -> Result<Scores> {
    let made =
        SeriesRun { round: ROUND, seed, noise_ppm: 100_000, is_limited: false, policy: "edf" };
    let goals = GoalList::default().leaving(BATCH);
    let plan = ManagePlan { goals, round: ROUND, window: 2, pace: Default::default() };
    let scenario = series.scenario(&made)?;
    let mut runs = plan.compare(&scenario)?;
    runs.push((RuleKind::LimitedOracle, plan.run(&scenario, RuleKind::LimitedOracle)?));
    Ok(runs.iter().map(|(rule, run)| (*rule, score(run, ROUND))).collect())
}

fn of(scores: &Scores, kind: RuleKind) -> &Score {
    let found = scores.iter().find(|(rule, _)| *rule == kind);
    &found.expect("every rule was run").1
}

fn section(text: &mut String, title: &str, all: &[(String, Scores)]) {
    let sum = |kind: RuleKind| {
        all.iter().fold(Score::default(), |sum, (_, scores)| sum.and(of(scores, kind)))
    };
    let fixed = sum(RuleKind::Fixed);
    let removable = fixed.misses - sum(RuleKind::Oracle).misses.min(fixed.misses);
    let row = |kind: RuleKind| {
        let score = sum(kind);
        let removed = fixed.misses.saturating_sub(score.misses);
        let late = score.settled.iter().filter(|it| it.is_none_or(|it| it > 4)).count();
        vec![
            kind.name().to_owned(),
            hundredths(score.misses * 1_000_000, score.jobs * 100),
            hundredths(removed * 10_000, removable),
            hundredths(score.over_ppm, 100),
            score.changes.to_string(),
            hundredths(score.reversals * 10_000, score.vm_rounds),
            format!("{late} of {}", score.settled.len()),
        ]
    };
    let heads = [
        "rule",
        "periods missed, %",
        "misses of `fixed` that the rule avoids, % of those that `oracle` avoids",
        "reserved time not used, %",
        "changes",
        "changes opposite to the previous change, per 100 rounds of a VM",
        "steps of the demand that took more than 4 rounds to settle",
    ];
    let rows: Vec<_> = RuleKind::ALL.into_iter().map(row).collect();
    let _ = writeln!(text, "## {title}\n\n{}", table(&heads, &rows));
    verdicts(text, &sum(RuleKind::Manager), fixed.misses, removable);
    let bound = sum(RuleKind::LimitedOracle);
    let _ = writeln!(
        text,
        "Bound: an oracle whose shares never exceed the largest demand so far by more than 3 % \
         misses {} %\nof the periods.\n",
        hundredths(bound.misses * 1_000_000, bound.jobs * 100)
    );
    let row = |(name, scores): &(String, Scores)| {
        let (fixed, managed) = (of(scores, RuleKind::Fixed), of(scores, RuleKind::Manager));
        let slowest = match (managed.settled.is_empty(), managed.slowest()) {
            (true, _) => "no step".into(),
            (false, Some(slowest)) => slowest.to_string(),
            (false, None) => "never".into(),
        };
        vec![
            name.clone(),
            fixed.misses.to_string(),
            managed.misses.to_string(),
            hundredths(managed.misses * 1_000_000, managed.jobs * 100),
            hundredths(managed.over_ppm, 100),
            slowest,
        ]
    };
    let heads = [
        "series",
        "periods missed by `fixed`",
        "periods missed by `manager`",
        "periods missed by `manager`, %",
        "reserved time not used, %",
        "rounds until the slowest step settled",
    ];
    let rows: Vec<_> = all.iter().map(row).collect();
    let _ = writeln!(text, "{}", table(&heads, &rows));
}

/// Writes the targets of the manager and the measured values.
fn verdicts(text: &mut String, managed: &Score, fixed: u64, removable: u64) {
    let removed = fixed.saturating_sub(managed.misses) * 10_000;
    let late = managed.settled.iter().filter(|it| it.is_none_or(|it| it > 4)).count();
    let missed = managed.misses * 1_000_000 / (managed.jobs * 100).max(1);
    let _ = writeln!(text, "| manager | target | measured | verdict |\n|---|---|---|---|");
    let mut row = |what: &str, target: &str, got: String, holds: bool| {
        let verdict = if holds { "held" } else { "not reached" };
        let _ = writeln!(text, "| {what} | {target} | {got} | {verdict} |");
    };
    let got = hundredths(managed.misses * 1_000_000, managed.jobs * 100);
    row("periods missed", "at most 0.1 %", format!("{got} %"), missed <= 10);
    let got = hundredths(managed.over_ppm, 100);
    row("reserved time not used", "at most 23 %", format!("{got} %"), managed.over_ppm <= 230_000);
    let got = hundredths(removed, removable);
    let holds = removed >= removable * 9_000;
    row(
        "misses of `fixed` that the manager avoids, of those that `oracle` avoids",
        "at least 90 %",
        format!("{got} %"),
        holds,
    );
    let got = format!("{} of {}", managed.settled.len() - late, managed.settled.len());
    row("steps of the demand that settled within 4 rounds", "all", got, late == 0);
    text.push('\n');
}

/// Runs all rules on the steady series, and counts the reversals: changes in the opposite direction
/// of the previous change.
fn steady(text: &mut String) -> Result<()> {
    let mut series = String::from("# steady\nweb,db@20ms,app,cache@50ms\n");
    for _ in 0..STEADY_ROUNDS {
        series += "25.0,15.0,12.0,6.0\n";
    }
    let series = Series::read(&series)?;
    let all: Result<Vec<Scores>> =
        (1..=STEADY_SEEDS).into_par_iter().map(|seed| scores(&series, seed)).collect();
    let all = all?;
    let row = |kind: RuleKind| {
        let score = all.iter().fold(Score::default(), |sum, scores| sum.and(of(scores, kind)));
        vec![
            kind.name().to_owned(),
            hundredths(score.reversals * 10_000, score.vm_rounds),
            score.changes.to_string(),
            hundredths(score.over_ppm, 100),
            score.misses.to_string(),
        ]
    };
    let rows: Vec<_> = RuleKind::ALL.into_iter().map(row).collect();
    let heads = [
        "rule",
        "reversals (changes opposite to the previous change) per 100 rounds of a VM",
        "changes",
        "reserved time not used, %",
        "periods missed",
    ];
    let _ = writeln!(
        text,
        "## Steady demand with 10 % noise\n\nFour VMs, {STEADY_ROUNDS} rounds, {STEADY_SEEDS} \
         seeds. Target of the manager: at most 1 reversal per 100 rounds of a VM.\n\n{}",
        table(&heads, &rows)
    );
    Ok(())
}

/// Formats `part / whole` with two decimals. `part` is in hundredths.
fn hundredths(part: u64, whole: u64) -> String {
    let value = part.checked_div(whole).unwrap_or(0);
    format!("{}.{:02}", value / 100, value % 100)
}
