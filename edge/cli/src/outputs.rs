//! Output files and tables of a run.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use slackline_experiments::{Numbers, OutputRequest, OutputResults};
use slackline_terminal::{summary, xenmon};
use tempfile::TempPath;

use crate::args::Keeping;
use crate::by_second;
use crate::pending::{Out, Pending};
use crate::places::Places;
use crate::problem::Problem;
use crate::terminal;

/// Output files of a run that are not complete yet.
pub(crate) struct Files {
    trace: Option<Pending>,
    perfetto: Option<Pending>,
    csv: Option<(Pending, Out)>,
    /// Trace from which the report is made, and path of the report. `None` if no report is
    /// requested.
    report: Option<(TraceFile, PathBuf)>,
    /// True if the user requested XenMon's metrics.
    shows_xenmon: bool,
}

/// Trace of a run, from which its report is made.
enum TraceFile {
    Saved(PathBuf),
    /// File that is removed when this value is dropped.
    Temporary(TempPath),
}

impl TraceFile {
    fn path(&self) -> &Path {
        match self {
            TraceFile::Saved(path) => path,
            TraceFile::Temporary(path) => path,
        }
    }
}

impl Files {
    /// Creates the output files that the options request.
    pub(crate) fn begin(keeping: &Keeping) -> Result<(Files, OutputRequest<Out>), Problem> {
        let temporary = |source| Problem::Unwritable { file: std::env::temp_dir(), source };
        let report = match &keeping.report {
            None => None,
            Some(to) => {
                let file = tempfile::NamedTempFile::new().map_err(temporary)?;
                Some((file.into_temp_path(), to.clone()))
            }
        };
        let kept = keeping.save.as_deref();
        let kept = kept.or(report.as_ref().map(|(path, _)| &**path));
        let (trace, to_trace) = kept.map(Pending::new).transpose()?.unzip();
        let (perfetto, to_perfetto) =
            keeping.perfetto.as_deref().map(Pending::new).transpose()?.unzip();
        let csv = keeping.csv.as_deref().map(Pending::new).transpose()?;
        // The CSV is computed from XenMon's metrics.
        let xenmon = keeping.xenmon || csv.is_some();
        let wanted = OutputRequest { trace: to_trace, perfetto: to_perfetto, xenmon };
        let report = report.map(|(path, to)| match &keeping.save {
            Some(saved) => (TraceFile::Saved(saved.clone()), to),
            None => (TraceFile::Temporary(path), to),
        });
        let shows_xenmon = keeping.xenmon;
        Ok((Files { trace, perfetto, csv, report, shows_xenmon }, wanted))
    }

    /// Gives the complete files their final names. Returns the metrics of the run.
    /// `report` writes the report of a trace to a file.
    pub(crate) fn keep(
        self,
        kept: OutputResults,
        report: impl Fn(&Path, &Path) -> Result<(), Problem>,
    ) -> Result<Numbers, Problem> {
        if let Some((pending, written)) = self.trace.zip(kept.trace) {
            pending.keep(written)?;
        }
        if let Some((pending, written)) = self.perfetto.zip(kept.perfetto) {
            pending.keep(written)?;
        }
        if let Some((trace, to)) = &self.report {
            report(trace.path(), to)?;
        }
        let mut numbers = kept.numbers.map_err(Problem::of_stray)?;
        if let Some((pending, mut out)) = self.csv {
            let text = by_second::lines(&numbers);
            pending.keep(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
        }
        numbers.xenmon = numbers.xenmon.filter(|_| self.shows_xenmon);
        Ok(numbers)
    }
}

impl Keeping {
    /// Returns the paths of the requested files, and checks that they are distinct.
    pub(crate) fn places(&self) -> Result<Places, Problem> {
        Places::of(&[
            ("--save", self.save.as_deref()),
            ("--perfetto", self.perfetto.as_deref()),
            ("--csv", self.csv.as_deref()),
            ("--report", self.report.as_deref()),
        ])
    }
}

impl Keeping {
    /// Refuses the output options that work only for a single run. `many` is the option that
    /// requests several runs.
    pub(crate) fn is_of_one_run(&self, many: &str) -> Result<(), Problem> {
        let kept = [
            ("--save", self.save.is_some()),
            ("--perfetto", self.perfetto.is_some()),
            ("--csv", self.csv.is_some()),
            ("--report", self.report.is_some()),
            ("--xenmon", self.xenmon),
        ];
        match kept.into_iter().find(|(_, is_wanted)| *is_wanted) {
            None => Ok(()),
            Some((option, _)) => Err(Problem::BadOption {
                message: format!("cannot use {option} with {many}: {option} is for a single run"),
                hint: Some(format!("drop {option}")),
            }),
        }
    }
}

/// Returns the tables of a run.
pub(crate) fn tables(numbers: &Numbers) -> String {
    let (width, paint) = (terminal::width(), terminal::paint());
    let mut text = summary(&numbers.summary, width, paint);
    if let Some(metrics) = &numbers.xenmon {
        text.push('\n');
        text += &xenmon(metrics, width, paint);
    }
    text
}
