//! Command `slackline paper`, which runs the experiments of papers and compares the results with
//! published values.

mod live;

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use slackline_papers::{
    Calibration, Experiment, Paper, PaperError, Provenance, Results, VerdictGroup, judge, paper,
    papers, tally,
};

use crate::args::{PaperArgs, PaperCommand, PaperReport, PaperRun};
use crate::date::date;
use crate::pending::Pending;
use crate::places::Places;
use crate::problem::Problem;
use crate::terminal::{self, Counter};

use live::PaperHost;

pub(crate) fn command(args: &PaperArgs) -> Result<(), Problem> {
    let folder = &args.papers;
    match &args.command {
        PaperCommand::List => list(folder),
        PaperCommand::Run(run) => run_all(folder, run),
        PaperCommand::Calibrate { paper } => calibrate(folder, paper),
        PaperCommand::Report(report) => write_report(folder, report),
    }
}

fn list(folder: &Path) -> Result<(), Problem> {
    let mut text = String::new();
    for paper in papers(folder)? {
        let published = paper.published()?;
        let _ = writeln!(text, "{}: {}\n  {}", paper.name, paper.title, paper.cite);
        let experiments = paper.experiments()?;
        let mut compared = Vec::new();
        for experiment in &experiments {
            let names = match experiment.figures.len() {
                0 => String::new(),
                _ => format!(" ({})", experiment.figures.join(", ")),
            };
            let came = match paper.kept(experiment) {
                Some(kept) => {
                    let rows = kept.rows.iter().filter(|row| row.change.is_empty());
                    compared.extend(rows.clone().map(|row| row.id.clone()));
                    tally(rows.filter(|row| !row.calibration).map(|row| &row.verdict))
                }
                None => "not run yet".to_owned(),
            };
            let _ = writeln!(text, "  {}{names}: {}", experiment.name, experiment.title);
            let explains = if experiment.explains {
                " (explains published values, predicts none)"
            } else {
                ""
            };
            let _ = writeln!(text, "    {came}{explains}");
        }
        let values = published.values.len();
        let left = published.values.iter().filter(|value| !compared.contains(&value.id)).count();
        let _ = writeln!(text, "  {values} published values, {left} of them not attempted");
    }
    terminal::say(&text)
}

fn run_all(folder: &Path, run: &PaperRun) -> Result<(), Problem> {
    let paper = paper(folder, &run.paper)?;
    let mut experiments = paper.chosen(&run.experiments)?;
    if run.quick {
        let without = experiments.iter().filter(|experiment| !experiment.has_quick_form());
        let without: Vec<&str> = without.map(|experiment| experiment.name.as_str()).collect();
        if !without.is_empty() {
            terminal::tell(&format!(
                "note: --quick has no effect on {}: the experiment has no quick form; use --seeds \
                 1\n",
                without.join(", ")
            ));
        }
        experiments = experiments.into_iter().map(Experiment::quick).collect();
    }
    if let Some(seeds) = run.seeds {
        experiments.iter_mut().for_each(|experiment| experiment.seeds = seeds);
    }
    if run.keep {
        writes_nothing_that_is_read(&paper, &experiments)?;
    }
    let made = provenance(&paper.folder, &words_of_command());
    let is_live = |one: &Experiment| one.is_live;
    let here = experiments.iter().any(is_live).then(PaperHost::new).transpose()?;
    for experiment in &experiments {
        let results = results_of(experiment, here.as_ref())?;
        let made = match experiment.is_live {
            true => Provenance { machine: Some(PaperHost::described()), ..made.clone() },
            false => made.clone(),
        };
        let published = paper.published()?;
        let changes = experiment.sensitivity.map(|axis| &experiment.axes[axis].points);
        let mut judged = Vec::new();
        for change in 0..changes.map_or(1, Vec::len) {
            let name = changes.filter(|_| change > 0).map_or("", |points| points[change].name());
            judged.push((name.to_owned(), judge(experiment, &results, &published, change)?));
        }
        let written = match run.keep {
            true => paper.write(experiment, &results, &judged, &made)?,
            false => Vec::new(),
        };
        let mut text = outcome(experiment, &judged);
        for file in written {
            let _ = writeln!(text, "  written: {}", file.display());
        }
        terminal::say(&text)?;
    }
    Ok(())
}

/// Runs an experiment, either simulated or on this host, and returns its results.
fn results_of(experiment: &Experiment, here: Option<&PaperHost>) -> Result<Results, Problem> {
    let counter = Counter::new(&experiment.name);
    let watch = |done| {
        counter.at(done);
        ControlFlow::Continue(())
    };
    let Some(here) = here.filter(|_| experiment.is_live) else {
        return Ok(experiment.run(&watch)?);
    };
    experiment.play(here, &watch).map_err(|error| match error {
        PaperError::Stopped { .. } => Problem::Interrupted,
        error => here.problem().unwrap_or(Problem::Paper(error)),
    })
}

/// Checks that no results file is a link to one of the paper's input files, which would be
/// overwritten.
fn writes_nothing_that_is_read(paper: &Paper, experiments: &[Experiment]) -> Result<(), Problem> {
    let mut places = Places::of(&[])?;
    let files = experiments.iter().flat_map(|experiment| paper.results_of(experiment));
    for file in files.filter(|file| file.exists()) {
        places.write("the results", &file)?;
    }
    let Ok(entries) = std::fs::read_dir(&paper.folder) else { return Ok(()) };
    for file in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()) {
        places.read("a file of the paper", &file)?;
    }
    Ok(())
}

/// Returns the outcome of an experiment as text.
fn outcome(experiment: &Experiment, judged: &[(String, Vec<VerdictGroup>)]) -> String {
    let mut text = format!("{}: {}\n", experiment.name, experiment.title);
    let Some(((_, first), changed)) = judged.split_first() else { return text };
    for group in first {
        let _ = writeln!(text, "\n  {}: {}  (tolerance {})", group.title, group.verdict, {
            &group.tolerance
        });
        for row in &group.rows {
            let verdict = match row.calibration {
                true => "calibration".to_owned(),
                false => row.verdict.to_string(),
            };
            let (theirs, ours) = (&row.published, &row.ours);
            let _ = writeln!(text, "    {verdict:<18} {}: {theirs}; here {ours}", row.id);
            let _ = writeln!(text, "    {:<12}   {}", "", row.sentence);
        }
    }
    for (name, groups) in changed {
        let differ = first.iter().zip(groups).filter(|(was, is)| was.verdict != is.verdict);
        let differ: Vec<String> = differ
            .map(|(was, is)| format!("{}: {} -> {}", was.title, was.verdict, is.verdict))
            .collect();
        let says = if differ.is_empty() { "no verdict changes".into() } else { differ.join("; ") };
        let _ = writeln!(text, "  {name}: {says}");
    }
    text
}

fn calibrate(folder: &Path, name: &str) -> Result<(), Problem> {
    let paper = paper(folder, name)?;
    let calibration = Calibration::read(&paper)?;
    terminal::say(&calibration.describe())?;
    let found = calibration.search(&|misfit, best| {
        terminal::tell(&format!(
            "misfit of the tried costs {misfit:.5}, smallest misfit so far {best:.5}\n"
        ));
    })?;
    let mut text =
        format!("smallest misfit {:.5} after {} sets of costs\n", found.misfit, found.trials);
    for (id, theirs, ours) in &found.rows {
        let error = (ours - theirs) / theirs * 100.0;
        let _ = writeln!(text, "  {id}: {theirs} published, {ours:.1} here, {error:+.1} %");
    }
    text += "costs for the scenario:\n";
    for (path, value) in &found.values {
        let _ = writeln!(text, "  {path} = {value}");
    }
    terminal::say(&text)
}

fn write_report(folder: &Path, args: &PaperReport) -> Result<(), Problem> {
    let chosen = match &args.paper {
        Some(name) => vec![paper(folder, name)?],
        None => papers(folder)?,
    };
    let places = Places::of(&[("--out", Some(&args.out))])?;
    chosen.iter().try_for_each(|paper| places.read_all("a file of the paper", &paper.folder))?;
    let made = provenance(folder, &words_of_command());
    let html = slackline_papers::page(&chosen, &made)?;
    let (pending, mut out) = Pending::new(&args.out)?;
    let written = std::io::Write::write_all(&mut out, html.as_bytes());
    pending.keep(written.and_then(|()| std::io::Write::flush(&mut out)))?;
    terminal::say(&format!("written: {}\n", args.out.display()))
}

/// Returns the provenance that is stored with results: commit, command and date.
fn provenance(folder: &Path, command: &str) -> Provenance {
    Provenance { commit: commit(folder), command: command.to_owned(), date: today(), machine: None }
}

/// Returns the commit of the source tree. A mark is added if files other than results have changed
/// since that commit.
fn commit(folder: &Path) -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("-C").arg(folder).args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let changed = git(&[
        "status",
        "--porcelain",
        "--untracked-files=all",
        "--",
        ":/",
        ":(top,exclude,glob)**/results/**",
    ]);
    match changed.is_some_and(|text| text.is_empty()) {
        true => commit,
        false => format!("{commit} with changes"),
    }
}

/// Returns the command line as the user typed it, without the folder of the program.
fn words_of_command() -> String {
    let words = std::env::args().skip(1);
    std::iter::once("slackline".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Returns today's date in UTC, such as `2007-09-30`.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds / (24 * 60 * 60))
}
