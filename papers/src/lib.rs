//! Reproduction of papers: reads the folder of a paper, runs its experiments, compares the results
//! with the published values, and writes results and verdicts. This crate contains nothing about
//! particular papers.
//!
//! A folder contains `paper.toml` (the paper and its experiments), `paper.md` (for readers),
//! `published.toml` (numbers as printed), a file for each experiment, and the scenarios. An
//! experiment varies a scenario along axes and runs every point with several seeds. An experiment
//! computes measures by name, and declares published values for comparison, with tolerances. Runs
//! do not read published values. Only [`judge`] reads them, and [`Calibration::search`] reads the
//! calibration rows.

#![forbid(unsafe_code)]

mod calibrate;
mod compare;
mod comparison;
mod csv;
mod error;
mod experiment;
mod live;
mod numbers;
mod published;
mod report;
mod results;
mod run;
mod source;
mod statistics;
mod tolerance;
mod vary;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

pub use calibrate::{Calibration, CalibrationResult};
pub use compare::{ComparisonRow, Verdict, VerdictGroup, judge};
pub use comparison::Group;
pub use error::{FileFault, PaperError};
pub use experiment::{Experiment, Measure, Plot};
pub use live::{LiveRunner, PlayError};
pub use numbers::digits;
pub use published::{Assumption, PrintedValue, PublishedValues, Value, ValueSource};
pub use report::page;
pub use results::{Courses, KeptRow, Provenance, StoredResults, Written, tally};
pub use run::{Course, Results};
pub use slackline_experiments::OverSeeds;
pub use slackline_experiments::axes::{Axis, AxisPoint};
use source::Source;
pub use tolerance::Tolerance;

/// A paper, as read from its folder.
#[derive(Clone, Debug)]
pub struct Paper {
    /// Name of the folder.
    pub name: String,
    /// Path of the folder.
    pub folder: PathBuf,
    /// Title of the paper.
    pub title: String,
    /// Authors and place of publication.
    pub cite: String,
    /// Published values that no experiment attempts to reproduce, with reasons.
    pub not_attempted: Vec<NotAttempted>,
    experiments: Vec<Spanned<String>>,
    source: Source,
}

/// Published values that no experiment attempts to reproduce.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotAttempted {
    /// Ids of the values. An id that ends in `*` stands for all ids with that beginning.
    pub published: Vec<String>,
    /// Reason why the values are not attempted.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    title: String,
    cite: String,
    experiments: Vec<Spanned<String>>,
    #[serde(default)]
    not_attempted: Vec<NotAttempted>,
}

/// Reads all papers of a folder, in the order of their names.
///
/// # Errors
/// If the folder has no papers, or a paper is faulty.
pub fn papers(folder: &Path) -> Result<Vec<Paper>, PaperError> {
    let none = || PaperError::NoPapers { folder: folder.into() };
    let entries = fs::read_dir(folder).map_err(|_| none())?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| path.join("paper.toml").is_file());
    found.sort();
    if found.is_empty() {
        return Err(none());
    }
    found.iter().map(|path| Paper::read(path)).collect()
}

/// Reads the paper of this name.
///
/// # Errors
/// If there is no such paper, or a paper is faulty.
pub fn paper(folder: &Path, name: &str) -> Result<Paper, PaperError> {
    let papers = papers(folder)?;
    let known = papers.iter().map(|paper| paper.name.clone()).collect();
    let found = papers.into_iter().find(|paper| paper.name == name);
    found.ok_or_else(|| PaperError::UnknownPaper { name: name.to_owned(), known })
}

impl Paper {
    /// Reads `paper.toml` of a folder.
    ///
    /// # Errors
    /// If the file cannot be read or is faulty.
    pub fn read(folder: &Path) -> Result<Paper, PaperError> {
        let source = Source::read(&folder.join("paper.toml"))?;
        let about: About = source.parse()?;
        source.once("experiment", about.experiments.iter())?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Paper {
            name,
            folder: folder.into(),
            title: about.title,
            cite: about.cite,
            not_attempted: about.not_attempted,
            experiments: about.experiments,
            source,
        })
    }

    /// Reads the published values.
    ///
    /// # Errors
    /// If `published.toml` cannot be read or is faulty.
    pub fn published(&self) -> Result<PublishedValues, PaperError> {
        PublishedValues::read(&self.folder)
    }

    /// Reads the experiments of the paper, in order.
    ///
    /// # Errors
    /// If an experiment cannot be read or is faulty.
    pub fn experiments(&self) -> Result<Vec<Experiment>, PaperError> {
        let read = |name: &Spanned<String>| {
            Experiment::read(&self.folder, name.get_ref()).map_err(|error| match error {
                // A file that is missing is a fault of the list.
                PaperError::Unreadable { .. } => {
                    self.source.unknown(name, "experiment", self.files())
                }
                error => error,
            })
        };
        self.experiments.iter().map(read).collect()
    }

    /// Reads the experiments that `asked` selects, by their own name or by the name of a figure. If
    /// `asked` is empty, reads all experiments except experiments about assumptions, which need
    /// many runs and are rarely needed.
    ///
    /// # Errors
    /// If no experiment matches one of the names, or a file is faulty.
    pub fn chosen(&self, asked: &[String]) -> Result<Vec<Experiment>, PaperError> {
        let mut all = self.experiments()?;
        let is_called =
            |one: &Experiment, name: &String| one.name == *name || one.figures.contains(name);
        for name in asked {
            if !all.iter().any(|one| is_called(one, name)) {
                let names = all
                    .iter()
                    .flat_map(|one| std::iter::once(one.name.clone()).chain(one.figures.clone()));
                let mut known: Vec<String> = names.collect();
                known.dedup();
                let (paper, name) = (self.name.clone(), name.clone());
                return Err(PaperError::UnknownExperiment { paper, name, known });
            }
        }
        let is_asked = |one: &Experiment| asked.iter().any(|name| is_called(one, name));
        all.retain(|one| is_asked(one) || asked.is_empty() && one.sensitivity.is_none());
        Ok(all)
    }

    /// Returns the reason why a published value is not attempted. `None` if `paper.toml` does not
    /// list the value as not attempted.
    #[must_use]
    pub fn why_not(&self, id: &str) -> Option<&str> {
        let is_meant = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => id.starts_with(start),
            None => id == pattern,
        };
        let found = self.not_attempted.iter().find(|not| not.published.iter().any(is_meant));
        found.map(|not| not.why.as_str())
    }

    fn files(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names
            .filter_map(|name| name.strip_suffix(".toml").map(str::to_owned))
            .filter(|name| name != "paper" && name != "published")
            .collect();
        names.sort();
        names
    }
}
