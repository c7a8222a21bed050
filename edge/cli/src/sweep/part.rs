//! Parts of a sweep, which run on several machines, and the command `slackline join`.
//!
//! Run number `n` of a sweep belongs to part `n % N + 1` of N, so parts take similar times. The
//! file of a part is a journal. Its first line identifies the sweep, the part and the build of the
//! program. Its first entry has the scenario and the options, so `join` needs only the parts and
//! the files that the scenario names.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use slackline_scenario::LONGEST;
use slackline_units::{CpuId, Span};

use crate::args::{Join, Sweep};
use crate::counted::counted;
use crate::input;
use crate::part::PartOfSweep;
use crate::places::Places;
use crate::problem::Problem;
use crate::terminal;

use super::TableFiles;
use super::jobs::{Jobs, MOST_RUNS};
use super::journal::{self, Journal, ReadJournal};
use super::rows::Rows;

/// Key of the entry with the scenario and the options.
const OPTIONS: &str = "options";

/// Returns the line that identifies a part of a sweep.
pub(super) fn identity(part: PartOfSweep, fingerprint: &str) -> Result<String, Problem> {
    Ok(format!("{fingerprint}, part {part}, build {}", build()?))
}

/// Scenario and options of a sweep, from which `join` reads the jobs again.
#[derive(Serialize, Deserialize)]
struct SweepOptions {
    file: String,
    text: String,
    policies: Vec<String>,
    seed: Option<u64>,
    cpus: Vec<u16>,
    seeds: u64,
    length_ns: Option<u64>,
    metric: Vec<String>,
}

impl SweepOptions {
    /// Returns a description of the first option that `slackline sweep` would have refused, with
    /// the allowed values. `None` if all options are in range.
    fn out_of_range(&self) -> Option<String> {
        let most = MOST_RUNS as u64;
        if !(1..=most).contains(&self.seeds) {
            return Some(format!("{} seeds; 1 to {most} are possible", self.seeds));
        }
        let is_size = |&cpus: &u16| (1..=CpuId::LIMIT).contains(&cpus.into());
        if let Some(cpus) = self.cpus.iter().copied().find(|cpus| !is_size(cpus)) {
            return Some(format!("{cpus} CPUs; 1 to {} are possible", CpuId::LIMIT));
        }
        let length = self.length_ns.map(Span::from_ns)?;
        let is_length = !length.is_zero() && length <= LONGEST;
        (!is_length).then(|| format!("the length {length}; up to {LONGEST} is possible"))
    }
}

/// Writes the scenario and the options of a sweep into the file of a part.
pub(super) fn add_options(journal: &Journal, args: &Sweep, text: &str) -> Result<(), Problem> {
    let options = SweepOptions {
        file: args.file.to_string_lossy().into_owned(),
        text: text.to_owned(),
        policies: args.policies.clone(),
        seed: args.seed,
        cpus: args.cpus.clone(),
        seeds: args.seeds,
        length_ns: args.length.map(Span::ns),
        metric: args.metric.clone(),
    };
    let json = serde_json::to_string(&options).expect("options are texts and numbers");
    journal.add_line(OPTIONS, &[json])
}

/// Returns a hash of the program, which is the same only for the same build.
fn build() -> Result<String, Problem> {
    let program = Path::new("/proc/self/exe");
    let unreadable = |source| Problem::Unreadable { file: program.into(), source };
    let mut file = input::open(program).map_err(unreadable)?;
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).map_err(unreadable)?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
    }
    let digest = hash.finish();
    Ok(digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A part that was read.
struct ReadPart {
    file: PathBuf,
    /// Line that identifies the sweep, without part and build.
    sweep: String,
    part: PartOfSweep,
    build: String,
    lines: Vec<Vec<String>>,
}

fn refused(message: String, hint: &str) -> Problem {
    Problem::BadOption { message, hint: Some(hint.into()) }
}

impl ReadPart {
    fn read(file: &Path) -> Result<ReadPart, Problem> {
        let ReadJournal { of, lines } = journal::read(file)?;
        let parsed = of.rsplit_once(", build ").and_then(|(rest, build)| {
            let (sweep, part) = rest.rsplit_once(", part ")?;
            Some((sweep.to_owned(), part.parse().ok()?, build.to_owned()))
        });
        let Some((sweep, part, build)) = parsed else {
            return Err(refused(
                format!("cannot join {}: it is not a part of a sweep", file.display()),
                "name files that `slackline sweep --part` wrote",
            ));
        };
        Ok(ReadPart { file: file.to_owned(), sweep, part, build, lines })
    }

    fn options(&self) -> Result<SweepOptions, Problem> {
        let options = self.lines.first().filter(|line| line[0] == OPTIONS);
        let json = options.and_then(|line| line.get(1));
        let again = "run its `slackline sweep --part` again with --fresh";
        let name = self.file.display();
        let options = json.and_then(|json| serde_json::from_str::<SweepOptions>(json).ok());
        let options = options
            .ok_or_else(|| refused(format!("cannot join {name}: it has no options"), again))?;
        match options.out_of_range() {
            None => Ok(options),
            Some(what) => {
                Err(refused(format!("cannot join {name}: its options have {what}"), again))
            }
        }
    }
}

pub(crate) fn join(args: &Join) -> Result<(), Problem> {
    let places = Places::of(&[("--csv", Some(&args.csv)), ("--report", args.report.as_deref())])?;
    for part in &args.parts {
        places.read("a part", part)?;
    }
    let parts = args.parts.iter().map(|file| ReadPart::read(file));
    let parts = parts.collect::<Result<Vec<ReadPart>, Problem>>()?;
    check_same(&parts)?;
    let SweepOptions { file, text, policies, seed, cpus, seeds, length_ns, metric } =
        parts[0].options()?;
    let sweep = Sweep {
        file: file.into(),
        policies,
        seed,
        cpus,
        seeds,
        length: length_ns.map(Span::from_ns),
        metric,
        csv: args.csv.clone(),
        report: args.report.clone(),
        fresh: false,
        part: None,
    };
    places.read("the scenario", &sweep.file)?;
    let jobs = Jobs::read(&sweep, &text, (&places, true))?;
    if jobs.fingerprint(&sweep, &text) != parts[0].sweep {
        let named: Vec<String> = jobs.file_sums().into_keys().collect();
        let named = named.join(", ");
        return Err(refused(
            format!(
                "cannot join {}: a file that its scenario names has changed since the part was \
                 made; the scenario names {named}",
                parts[0].file.display()
            ),
            "run `slackline join` in the folder of the sweep, with the files as they were",
        ));
    }
    let mut done = BTreeMap::new();
    for part in &parts {
        done.extend(runs_of(part, &jobs)?);
    }
    let rows = Rows::new(&jobs, done);
    TableFiles::open(&sweep)?.write(&sweep, &jobs, &rows)?;
    let (runs, count) = (rows.count(), parts.len());
    let (parts, runs) = (counted(count, "part"), counted(runs, "run"));
    terminal::tell(&format!("note: joined {parts} with {runs}\n"));
    Ok(())
}

/// Checks that the parts are from one sweep, that no part is missing or given twice, and that this
/// build of the program made all of them.
fn check_same(parts: &[ReadPart]) -> Result<(), Problem> {
    let first = &parts[0];
    let own = build()?;
    let mut found: BTreeMap<u32, &ReadPart> = BTreeMap::new();
    for part in parts {
        let (name, other) = (part.file.display(), first.file.display());
        if part.build != own {
            return Err(refused(
                format!(
                    "cannot join {name}: its build of slackline is {}, but this one is {own}",
                    part.build
                ),
                "make and join all parts with the same file `slackline`",
            ));
        }
        if part.sweep != first.sweep {
            return Err(refused(
                format!("cannot join {name}: it and {other} are parts of different sweeps"),
                "use the same file, policies, seeds, length and metrics for all parts",
            ));
        }
        if part.part.of() != first.part.of() {
            return Err(refused(
                format!(
                    "cannot join {name}: it is part {}, but {other} is part {}",
                    part.part, first.part
                ),
                "name only parts K/N with the same N",
            ));
        }
        if let Some(same) = found.insert(part.part.number(), part) {
            return Err(refused(
                format!("cannot join {name}: {} is part {} too", same.file.display(), part.part),
                "name each part once",
            ));
        }
    }
    let of = first.part.of();
    let is_missing = |number: &u32| !found.contains_key(number);
    let missing = (1..=of).filter(is_missing).map(|number| format!("{number}/{of}"));
    let missing: Vec<String> = missing.collect();
    match missing.as_slice() {
        [] => Ok(()),
        [one] => Err(refused(
            format!("cannot join {} of {of} parts: part {one} is missing", found.len()),
            &format!("run `slackline sweep` with --part {one}, or name its file"),
        )),
        [one, ..] => Err(refused(
            format!("cannot join {} of {of} parts: {} are missing", found.len(), listed(&missing)),
            &format!(
                "run `slackline sweep` for each missing part, first with --part {one}, or name the \
                 files of the missing parts"
            ),
        )),
    }
}

/// Lists some names, and the number of those that are left out.
fn listed(names: &[String]) -> String {
    const MOST: usize = 5;
    match names.len() {
        0..=MOST => names.join(", "),
        count => format!("{} and {} more", names[..MOST].join(", "), count - MOST),
    }
}

/// Returns the cells of the runs of a part, by the number of the run.
fn runs_of(part: &ReadPart, jobs: &Jobs<'_>) -> Result<BTreeMap<usize, Vec<String>>, Problem> {
    let (name, width) = (part.file.display(), jobs.columns().len());
    let mut runs = BTreeMap::new();
    // The first line has the options. A sweep that was killed at once has not written them.
    part.options()?;
    for line in part.lines.iter().skip(1) {
        let job = line[0].parse().ok().filter(|&job| job < jobs.count() && part.part.has(job));
        let Some(job) = job.filter(|_| line.len() == width + 1) else {
            return Err(refused(
                format!("cannot join {name}: it has a run that part {} does not have", part.part),
                "run its `slackline sweep --part` again with --fresh",
            ));
        };
        runs.insert(job, line[1..].to_vec());
    }
    let all = (0..jobs.count()).filter(|&job| part.part.has(job)).count();
    if runs.len() < all {
        return Err(refused(
            format!(
                "cannot join {name}: it has only {} of its {}",
                runs.len(),
                counted(all, "run")
            ),
            "run its `slackline sweep --part` again, which continues it",
        ));
    }
    Ok(runs)
}
