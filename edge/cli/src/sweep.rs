//! Command `slackline sweep`, which runs a family of scenarios under several policies on all cores,
//! and makes one table.

mod jobs;
mod journal;
mod page;
mod part;
mod rows;

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use slackline_experiments::grid::{self, GridError};

use crate::args::Sweep;
use crate::cost::{Cost, CostStart};
use crate::counted::counted;
use crate::pending::{Out, Pending};
use crate::places::Places;
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::terminal::Counter;
use crate::{bug, input, terminal};

use jobs::{Came, Jobs};
use journal::Journal;
pub(crate) use part::join;
use rows::Rows;

pub(crate) fn sweep(args: &Sweep) -> Result<(), Problem> {
    let file = match args.part {
        Some(part) => part.file(&args.csv),
        None => journal_of(&args.csv),
    };
    let mut places =
        Places::of(&[("--csv", Some(&args.csv)), ("--report", args.report.as_deref())])?;
    places.write("the file of finished runs", &file)?;
    places.read("the family", &args.file)?;
    let text = input::text(&args.file)?;
    let jobs = Jobs::read(args, &text, (&places, args.part.is_some()))?;
    let fingerprint = jobs.fingerprint(args, &text);
    let identity = args.part.map(|part| part::identity(part, &fingerprint)).transpose()?;
    let mut journal = Journal::open(file, &identity.unwrap_or(fingerprint), args.fresh)?;
    if args.part.is_some() && journal.is_new() {
        part::add_options(&journal, args, &text)?;
    }
    let done = journal.take_done(jobs.count(), jobs.columns().len());
    let already = done.len();
    let table = args.part.is_none().then(|| TableFiles::open(args)).transpose()?;
    let started = CostStart::now();
    let events = AtomicU64::new(0);
    let rows = run(args, &jobs, &journal, Rows::new(&jobs, done), &events)?;
    if let Some(table) = table {
        table.write(args, &jobs, &rows)?;
    }
    let ran = rows.count() - already;
    let before = match already {
        0 => String::new(),
        _ => format!(", {already} finished before"),
    };
    let cost = Cost::since(started, events.into_inner());
    let of_part = args.part.map_or(String::new(), |part| format!(" of part {part}"));
    terminal::tell(&format!("note: {}{of_part}{before}; {cost}\n", counted(ran, "run")));
    let (done, all) = (rows.count(), own_jobs(args, &jobs).count());
    if done == all {
        return match args.part {
            Some(_) => Ok(()),
            None => journal.end(),
        };
    }
    terminal::tell(&format!(
        "note: stopped after {done} of {}; run the same command to continue\n",
        counted(all, "run")
    ));
    Err(Problem::Interrupted)
}

/// Returns the indices of the runs that this command makes. With `--part K/N` that is every N-th
/// run, otherwise every run of the sweep.
fn own_jobs(args: &Sweep, jobs: &Jobs) -> impl Iterator<Item = usize> {
    let part = args.part;
    (0..jobs.count()).filter(move |&job| part.is_none_or(|part| part.has(job)))
}

/// Output files of a whole sweep. They are opened before the first run.
struct TableFiles {
    csv: (Pending, Out),
    page: Option<(Pending, Out)>,
}

impl TableFiles {
    fn open(args: &Sweep) -> Result<TableFiles, Problem> {
        let csv = Pending::new(&args.csv)?;
        let page = args.report.as_deref().map(Pending::new).transpose()?;
        Ok(TableFiles { csv, page })
    }

    /// Writes the table and the page, and prints the medians.
    fn write(self, args: &Sweep, jobs: &Jobs, rows: &Rows) -> Result<(), Problem> {
        let (csv, mut out) = self.csv;
        csv.keep(out.write_all(rows.csv().as_bytes()).and_then(|()| out.flush()))?;
        if let Some((page, mut out)) = self.page {
            let html = page::page(args, jobs, rows);
            page.keep(out.write_all(html.as_bytes()).and_then(|()| out.flush()))?;
        }
        terminal::say(&rows.table(jobs))
    }
}

/// Runs all jobs of the sweep that the journal does not have yet.
fn run(
    args: &Sweep,
    jobs: &Jobs,
    journal: &Journal,
    mut rows: Rows,
    events: &AtomicU64,
) -> Result<Rows, Problem> {
    let missing: Vec<usize> = own_jobs(args, jobs).filter(|&job| !rows.has(job)).collect();
    let (counter, stop) = (Counter::with_done("sweep", rows.count()), stop_flag()?);
    let goes_on = || match stop.load(Ordering::Relaxed) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let watch = |done: grid::GridProgress| {
        counter.at(done);
        goes_on()
    };
    let one = |&job: &usize, _| {
        let Some(Came { cells, events: some }) = jobs.run(job, goes_on)? else { return Ok(None) };
        events.fetch_add(some, Ordering::Relaxed);
        journal.add(job, &cells)?;
        Ok(Some((job, cells)))
    };
    let results = grid::run_some(&missing, &[0], &watch, one).map_err(|error| match error {
        GridError::Run { error: jobs::JobError::Problem(problem), .. } => *problem,
        GridError::Run { error: jobs::JobError::Run(failed), .. } => {
            let (scenario, error) = *failed;
            bug::explain(&args.file, &scenario, error)
        }
        GridError::Stopped(_) => Problem::Interrupted,
    })?;
    results.into_iter().flatten().flatten().for_each(|(job, cells)| rows.add(job, cells));
    Ok(rows)
}

/// Returns the path of the journal, which stores complete runs until the whole sweep is complete.
fn journal_of(csv: &std::path::Path) -> PathBuf {
    let mut name = csv.as_os_str().to_owned();
    name.push(".part");
    name.into()
}
