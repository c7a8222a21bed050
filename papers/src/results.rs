//! Results of an experiment as files: `results/NAME.csv` has the numbers, `NAME.verdicts.csv` the
//! comparisons, and `NAME.time.csv` the CPU time over time. The first line of each file states how
//! the file was made.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use slackline_experiments::OverSeeds;

use crate::Paper;
use crate::compare::{Verdict, VerdictGroup};
use crate::csv::Table;
use crate::error::PaperError;
use crate::experiment::Experiment;
use crate::run::Results;

/// Provenance of stored results.
#[derive(Clone, Debug)]
pub struct Provenance {
    /// Commit of the source tree, with a mark if the tree had uncommitted changes.
    pub commit: String,
    /// Command that made the results.
    pub command: String,
    /// Date, such as `2007-09-30`.
    pub date: String,
    /// Properties of the live host. If `None`, the results are from simulations.
    pub machine: Option<String>,
}

/// Paths of the files that were written.
pub type Written = Vec<PathBuf>;

/// CPU time over time, by the titles of plot and point. Each entry has the length of a window in
/// seconds, and each vCPU's share of one CPU in each window.
pub type Courses = BTreeMap<(String, String), (f64, BTreeMap<String, Vec<f64>>)>;

/// Results as they are stored in files.
#[derive(Clone, Debug)]
pub struct StoredResults {
    /// Provenance of the results, as in the first line of the files.
    pub made: String,
    /// Statistics by the title of the point and the name of the measure.
    pub stats: BTreeMap<(String, String), OverSeeds>,
    /// Comparisons in the order of the file.
    pub rows: Vec<KeptRow>,
    /// CPU time over time, for plots.
    pub over_time: Courses,
}

/// A comparison as it is stored in a file.
#[derive(Clone, Debug)]
pub struct KeptRow {
    /// Id of the assumption that was changed for this comparison. Empty if none was changed.
    pub change: String,
    /// Title of the group of comparisons.
    pub group: String,
    /// Tolerance of the comparison, with its reason.
    pub tolerance: String,
    /// Id of the published value.
    pub id: String,
    /// Published value as a text for readers.
    pub published: String,
    /// Measured value as a text for readers.
    pub ours: String,
    /// Points and measures that were compared, as a text.
    pub cells: String,
    /// Relative error of the measured value in percent. `None` if the error cannot be computed.
    pub error: Option<f64>,
    /// Verdict of the comparison.
    pub verdict: Verdict,
    /// Reason for the verdict.
    pub sentence: String,
    /// True if costs were calibrated with the published value.
    pub calibration: bool,
}

/// Name of the folder of results, inside the paper's folder.
const FOLDER: &str = "results";
/// Suffix of the names of files with results. The next two constants are the suffixes of the names
/// of files with comparisons and with CPU time over time.
const VALUES: &str = "csv";
const VERDICTS: &str = "verdicts.csv";
const OVER_TIME: &str = "time.csv";

const VERDICT_HEADINGS: &[&str] = &[
    "change",
    "group",
    "tolerance",
    "id",
    "published",
    "ours",
    "cells",
    "error_percent",
    "verdict",
    "sentence",
    "calibration",
];

/// Counts the comparisons by verdict, as a text. Comparisons that compared nothing follow after a
/// semicolon.
#[must_use]
pub fn tally<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> String {
    let mut count = BTreeMap::new();
    for verdict in verdicts {
        *count.entry(*verdict).or_insert(0) += 1;
    }
    let shown = |is_comparison: bool| {
        let of = count.iter().filter(|(verdict, _)| verdict.is_comparison() == is_comparison);
        of.map(|(verdict, count)| format!("{count} {verdict}")).collect::<Vec<_>>().join(", ")
    };
    let parts = [shown(true), shown(false)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

impl StoredResults {
    /// Returns the stored numbers as results of an experiment, so that new verdicts can be
    /// computed. Points and measures that are not stored are `None`.
    #[must_use]
    pub fn results(&self, experiment: &Experiment) -> Results {
        let stat = |point: &[usize], name: &str| {
            self.stats.get(&(experiment.title_of(point), name.to_owned())).copied()
        };
        let of_point = |point: &Vec<usize>| {
            experiment.measures.iter().map(|measure| stat(point, measure.name())).collect()
        };
        Results {
            measured: experiment.points().iter().map(of_point).collect(),
            over_time: Vec::new(),
        }
    }
}

impl Paper {
    /// Writes the results of an experiment. `judged` has the comparisons without a changed
    /// assumption first, and then those with each changed assumption.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(
        &self,
        experiment: &Experiment,
        results: &Results,
        judged: &[(String, Vec<VerdictGroup>)],
        made: &Provenance,
    ) -> Result<Written, PaperError> {
        let Provenance { commit, command, date, machine } = made;
        let seeds = experiment.seeds;
        let machine =
            machine.as_ref().map_or(String::new(), |machine| format!("; live, {machine}"));
        let made = format!("commit {commit}; {command}; seeds 1 to {seeds}; {date}{machine}");
        let mut tables = vec![
            (VALUES, values(experiment, results, &made)),
            (VERDICTS, verdicts(experiment, judged, &made)),
        ];
        if !results.over_time.is_empty() {
            tables.push((OVER_TIME, over_time(experiment, results, &made)));
        }
        let folder = self.folder.join(FOLDER);
        fs::create_dir_all(&folder).map_err(unwritable(&folder))?;
        let files =
            tables.iter().map(|(ending, table)| (self.result(experiment, ending), table.text()));
        let files: Vec<(PathBuf, String)> = files.collect();
        write_all(&files)?;
        Ok(files.into_iter().map(|(file, _)| file).collect())
    }

    /// Returns the paths of an experiment's result files, which need not exist.
    #[must_use]
    pub fn results_of(&self, experiment: &Experiment) -> [PathBuf; 3] {
        [VALUES, VERDICTS, OVER_TIME].map(|ending| self.result(experiment, ending))
    }

    fn result(&self, experiment: &Experiment, ending: &str) -> PathBuf {
        self.folder.join(FOLDER).join(format!("{}.{ending}", experiment.name))
    }

    /// Reads the stored results of an experiment. `None` if there are no results.
    #[must_use]
    pub fn kept(&self, experiment: &Experiment) -> Option<StoredResults> {
        let read =
            |ending: &str| Table::read(&fs::read_to_string(self.result(experiment, ending)).ok()?);
        let (values, verdicts) = (read(VALUES)?, read(VERDICTS)?);
        let mut stats = BTreeMap::new();
        for row in &values.rows {
            let number = |heading: &str| values.cell(row, heading).parse::<f64>().ok();
            let key = (values.cell(row, "point").into(), values.cell(row, "measure").into());
            let (Some(median), Some(lowest), Some(highest)) =
                (number("median"), number("lowest"), number("highest"))
            else {
                continue;
            };
            stats.insert(key, OverSeeds { median, lowest, highest });
        }
        let rows = verdicts.rows.iter().filter_map(|row| kept_row(&verdicts, row)).collect();
        let over_time = read(OVER_TIME).map(|table| courses(&table)).unwrap_or_default();
        Some(StoredResults { made: values.comment, stats, rows, over_time })
    }
}

fn unwritable(file: &Path) -> impl FnOnce(io::Error) -> PaperError {
    let file = file.to_owned();
    move |source| PaperError::Unwritable { file, source }
}

/// Writes files with their contents. Until all files are complete, each has a hidden name in the
/// same folder. If a file cannot be written, all files keep their former contents.
fn write_all(files: &[(PathBuf, String)]) -> Result<(), PaperError> {
    // A link is kept. The file that it leads to is replaced.
    let files = files.iter().map(|(file, text)| {
        (fs::canonicalize(file).unwrap_or_else(|_| file.clone()), text.as_str())
    });
    let files: Vec<(PathBuf, &str)> = files.collect();
    let hidden = |file: &Path| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        file.with_file_name(format!(".slackline-{}-{name}", std::process::id()))
    };
    let write = |(file, text): &(PathBuf, &str)| {
        let mut out = fs::File::create(hidden(file))?;
        out.write_all(text.as_bytes()).and_then(|()| out.sync_all())
    };
    let mut written = files.iter().try_for_each(|it| write(it).map_err(unwritable(&it.0)));
    for (file, _) in &files {
        written = written.and_then(|()| fs::rename(hidden(file), file).map_err(unwritable(file)));
    }
    if written.is_err() {
        for (file, _) in &files {
            let _ = fs::remove_file(hidden(file));
        }
    }
    written
}

fn values(experiment: &Experiment, results: &Results, made: &str) -> Table {
    let headings = ["point", "measure", "unit", "median", "lowest", "highest"];
    let mut table = Table::new(made, &headings);
    for (point, measured) in experiment.points().iter().zip(&results.measured) {
        for (measure, stat) in experiment.measures.iter().zip(measured) {
            let number = |number: fn(&OverSeeds) -> f64| {
                stat.as_ref().map_or("-".to_owned(), |stat| exact(number(stat)))
            };
            table.rows.push(vec![
                experiment.title_of(point),
                measure.name().to_owned(),
                measure.unit.clone(),
                number(|stat| stat.median),
                number(|stat| stat.lowest),
                number(|stat| stat.highest),
            ]);
        }
    }
    table
}

fn verdicts(experiment: &Experiment, judged: &[(String, Vec<VerdictGroup>)], made: &str) -> Table {
    let mut table = Table::new(made, VERDICT_HEADINGS);
    let points = experiment.points();
    for (change, groups) in judged {
        for group in groups {
            for row in &group.rows {
                let cell = |&(point, measure): &(usize, usize)| {
                    let measure = experiment.measures[measure].name();
                    format!("{} {measure}", experiment.title_of(&points[point]))
                };
                let cells: Vec<String> = row.cells.iter().map(cell).collect();
                table.rows.push(vec![
                    change.clone(),
                    group.title.clone(),
                    group.tolerance.clone(),
                    row.id.clone(),
                    row.published.clone(),
                    row.ours.clone(),
                    cells.join("; "),
                    row.error.map_or("-".to_owned(), |error| format!("{error:.1}")),
                    row.verdict.to_string(),
                    row.sentence.clone(),
                    if row.calibration { "yes" } else { "no" }.to_owned(),
                ]);
            }
        }
    }
    table
}

fn kept_row(table: &Table, row: &[String]) -> Option<KeptRow> {
    let text = |heading: &str| table.cell(row, heading).to_owned();
    Some(KeptRow {
        change: text("change"),
        group: text("group"),
        tolerance: text("tolerance"),
        id: text("id"),
        published: text("published"),
        ours: text("ours"),
        cells: text("cells"),
        error: text("error_percent").parse().ok(),
        verdict: Verdict::read(&text("verdict"))?,
        sentence: text("sentence"),
        calibration: text("calibration") == "yes",
    })
}

fn over_time(experiment: &Experiment, results: &Results, made: &str) -> Table {
    let mut table = Table::new(made, &["plot", "point", "window_s", "vcpu", "parts_of_a_cpu"]);
    let points = experiment.points();
    for course in &results.over_time {
        for (name, parts) in &course.lines {
            let parts: Vec<String> = parts.iter().map(|part| format!("{part:.4}")).collect();
            table.rows.push(vec![
                experiment.plots[course.plot].title.clone(),
                experiment.title_of(&points[course.point]),
                exact(course.window),
                name.clone(),
                parts.join(" "),
            ]);
        }
    }
    table
}

fn courses(table: &Table) -> Courses {
    let mut courses = Courses::new();
    for row in &table.rows {
        let key = (table.cell(row, "plot").to_owned(), table.cell(row, "point").to_owned());
        let window = table.cell(row, "window_s").parse().unwrap_or(1.0);
        let parts = table.cell(row, "parts_of_a_cpu").split(' ');
        let parts = parts.filter_map(|part| part.parse().ok()).collect();
        let lines = &mut courses.entry(key).or_insert((window, BTreeMap::new())).1;
        lines.insert(table.cell(row, "vcpu").to_owned(), parts);
    }
    courses
}

/// Formats a number for a file with six digits, which is more than the precision of the results.
fn exact(number: f64) -> String {
    if number == 0.0 || (1e-3..1e7).contains(&number.abs()) {
        let places = match number.abs() {
            size if size >= 1e5 => 0,
            size if size >= 1e3 => 2,
            size if size >= 1.0 => 4,
            _ => 6,
        };
        return digits_of(&format!("{number:.places$}"));
    }
    format!("{number:e}")
}

fn digits_of(text: &str) -> String {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_in_a_results_file_has_no_superfluous_digits() {
        let texts = [0.0, 0.25, 934.0, 1126.5, 6_409.123_4].map(exact);
        assert_eq!(texts, ["0", "0.25", "934", "1126.5", "6409.12"]);
    }
}
