//! Calibration: finds costs that a paper does not state. It uses only the published rows that are
//! declared as calibration rows.
//!
//! The method is a compass search over factors of the costs in the scenario. Each cost in turn is
//! scaled up and down by the step. A set of costs with a smaller misfit is kept. If no change
//! improves the misfit, the step is halved, until it is below one percent. The misfit is the sum of
//! the squared relative errors of the rows. The search uses no random numbers: the same files give
//! the same costs.

use serde::Deserialize;
use slackline_experiments::OverSeeds;
use slackline_experiments::grid::to_the_end;
use toml::{Spanned, Table, Value};

use crate::Paper;
use crate::error::{FileFault, PaperError};
use crate::experiment::Experiment;
use crate::published::PublishedValues;
use crate::run::Batch;
use crate::source::Source;

/// First step of the search: a cost is tried at 1.32 times and at 1/1.32 times its value.
const FIRST_STEP: f64 = 0.32;
/// Step below which the search ends.
const LAST_STEP: f64 = 0.01;
/// Maximum number of sets of costs that are tried.
const MOST_TRIALS: usize = 400;

/// A calibration, as `calibrate.toml` defines it.
#[derive(Debug)]
pub struct Calibration {
    experiment: Experiment,
    seeds: u64,
    costs: Vec<Cost>,
    targets: Vec<Target>,
}

/// A published row that the costs are fitted to.
#[derive(Debug)]
struct Target {
    id: String,
    theirs: f64,
    /// Index of the point in the experiment.
    point: usize,
    measure: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cost {
    name: String,
    paths: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CalibrationFile {
    experiment: Spanned<String>,
    seeds: Option<u64>,
    #[serde(rename = "row")]
    rows: Vec<CalibrationRow>,
    #[serde(rename = "cost")]
    costs: Vec<Cost>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CalibrationRow {
    published: Spanned<String>,
    measure: Spanned<String>,
    at: Spanned<String>,
}

/// Result of a calibration.
#[derive(Clone, Debug)]
pub struct CalibrationResult {
    /// Costs that were found. Each entry has the path in the scenario, and the value as users write
    /// it.
    pub values: Vec<(String, String)>,
    /// Rows that were fitted: id, published number, and number that results from the found costs.
    pub rows: Vec<(String, f64, f64)>,
    /// Sum of the squared relative errors.
    pub misfit: f64,
    /// Number of sets of costs that were tried.
    pub trials: usize,
}

impl Calibration {
    /// Reads `calibrate.toml` of a paper.
    ///
    /// # Errors
    /// If the file cannot be read, or names a row that is not declared for calibration.
    pub fn read(paper: &Paper) -> Result<Calibration, PaperError> {
        let source = Source::read(&paper.folder.join("calibrate.toml"))?;
        let file: CalibrationFile = source.parse()?;
        let experiment = Experiment::read(&paper.folder, file.experiment.get_ref())?;
        let published = paper.published()?;
        let targets = file.rows.iter().map(|row| target(&source, &experiment, &published, row));
        let targets = targets.collect::<Result<_, _>>()?;
        let seeds = file.seeds.unwrap_or(3).max(1);
        Ok(Calibration { experiment, seeds, costs: file.costs, targets })
    }

    /// Searches for the best set of costs. `done` is called after each tried set, with its misfit
    /// and the least misfit so far.
    ///
    /// # Errors
    /// If a set of costs cannot be run.
    pub fn search(&self, done: &dyn Fn(f64, f64)) -> Result<CalibrationResult, PaperError> {
        let mut factors = vec![1.0; self.costs.len()];
        let mut best = self.misfit(&factors)?;
        let (mut step, mut trials) = (FIRST_STEP, 1);
        while step >= LAST_STEP && trials < MOST_TRIALS {
            let mut is_better = false;
            for cost in 0..factors.len() {
                for change in [1.0 + step, 1.0 / (1.0 + step)] {
                    let mut other = factors.clone();
                    other[cost] *= change;
                    let misfit = self.misfit(&other)?;
                    trials += 1;
                    done(misfit, best.min(misfit));
                    if misfit < best {
                        (factors, best, is_better) = (other, misfit, true);
                        break;
                    }
                }
            }
            if !is_better {
                step /= 2.0;
            }
        }
        let stats = self.stats(&factors)?;
        let rows = self.targets.iter().zip(stats);
        let rows = rows.map(|(target, ours)| (target.id.clone(), target.theirs, ours)).collect();
        Ok(CalibrationResult { values: self.values(&factors)?, rows, misfit: best, trials })
    }

    fn misfit(&self, factors: &[f64]) -> Result<f64, PaperError> {
        let pairs = self.stats(factors)?.into_iter().zip(&self.targets);
        Ok(pairs.map(|(ours, target)| ((ours - target.theirs) / target.theirs).powi(2)).sum())
    }

    /// Returns the number that a set of costs gives for each calibration row. An unknown number
    /// counts as zero.
    fn stats(&self, factors: &[f64]) -> Result<Vec<f64>, PaperError> {
        let mut which: Vec<usize> = self.targets.iter().map(|target| target.point).collect();
        which.sort_unstable();
        which.dedup();
        let scale = self.scale(factors);
        let batch = Batch { which: &which, seeds: self.seeds, scale: &scale };
        let measured = self.experiment.run_batch(&batch, &to_the_end)?;
        let of_target = |target: &Target| {
            let place = which.iter().position(|&point| point == target.point);
            let stat: Option<OverSeeds> = place.and_then(|place| measured[place][target.measure]);
            stat.map_or(0.0, |stat| stat.median)
        };
        Ok(self.targets.iter().map(of_target).collect())
    }

    fn scale(&self, factors: &[f64]) -> Table {
        let mut scale = Table::new();
        for (cost, factor) in self.costs.iter().zip(factors) {
            for path in &cost.paths {
                let percent = Value::String(format!("{}%", factor * 100.0));
                scale.insert(path.get_ref().clone(), percent);
            }
        }
        scale
    }

    fn values(&self, factors: &[f64]) -> Result<Vec<(String, String)>, PaperError> {
        let point = &self.experiment.points()[self.targets.first().map_or(0, |one| one.point)];
        let scale = self.scale(factors);
        let paths = self.costs.iter().flat_map(|cost| &cost.paths).map(Spanned::get_ref);
        paths
            .map(|path| Ok((path.clone(), self.experiment.value_at(point, &scale, path)?)))
            .collect()
    }

    /// Returns a description of the search, as a text for readers.
    #[must_use]
    pub fn describe(&self) -> String {
        let costs: Vec<&str> = self.costs.iter().map(|cost| cost.name.as_str()).collect();
        let rows: Vec<&str> = self.targets.iter().map(|target| target.id.as_str()).collect();
        format!("costs: {}\nrows:  {}\n", costs.join(", "), rows.join(", "))
    }
}

fn target(
    source: &Source,
    experiment: &Experiment,
    published: &PublishedValues,
    row: &CalibrationRow,
) -> Result<Target, PaperError> {
    let id = row.published.get_ref();
    let lent = published.values.iter().filter(|value| value.calibration);
    let Some(value) = lent.clone().find(|value| value.id == *id) else {
        let known = lent.map(|value| value.id.clone()).collect();
        return Err(source.unknown(&row.published, "calibration row", known));
    };
    let Some(theirs) = value.number() else {
        let (written, what) = (id.clone(), "published number");
        let fault = FileFault::NotA { written, what, example: "the id of a published number" };
        return Err(source.fault(&row.published.span(), fault));
    };
    let elsewhere = |error: PaperError| match error {
        PaperError::InFile { kind, .. } => source.fault(&row.at.span(), *kind),
        error => error,
    };
    let measure = experiment.measure_called(&row.measure, row.measure.get_ref());
    let points = experiment.points_at(&row.at, row.at.get_ref()).map_err(elsewhere)?;
    let [point] = points[..] else {
        let (written, what) = (row.at.get_ref().clone(), "single point");
        let fault = FileFault::NotA { written, what, example: "a name for each axis: `a/b`" };
        return Err(source.fault(&row.at.span(), fault));
    };
    Ok(Target { id: id.clone(), theirs, point, measure: measure.map_err(elsewhere)? })
}
