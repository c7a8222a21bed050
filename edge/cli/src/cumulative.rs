//! Cumulative distributions as a CSV file, with a row for each step.

use std::fmt::Write as _;
use std::io::Write as _;

use slackline_metrics::Cumulative;

use crate::pending::{Out, Pending};
use crate::problem::Problem;
use crate::quoted::{axis_headings, quoted};
use crate::seeds::Runs;

/// Column headings of the CSV file, after a heading for each axis of the scenario.
const HEAD: &str = "policy,seed,vcpu,metric,at_most_ns,count,part";

/// A run in the CSV file of distributions.
pub(crate) struct CumulativeRun<'a> {
    /// Name of the run's policy.
    pub(crate) policy: &'a str,
    /// Name of each axis, with the name of the run's value on that axis. Empty without axes.
    pub(crate) point: &'a [(String, String)],
    pub(crate) seed: u64,
    pub(crate) distributions: &'a [Cumulative],
}

impl<'a> CumulativeRun<'a> {
    /// Returns all complete runs. `cases` has the policy and the point on the axes of each
    /// scenario, in the order of the scenarios in `runs`.
    pub(crate) fn all(
        runs: &'a Runs,
        cases: impl Iterator<Item = (&'a str, &'a [(String, String)])>,
    ) -> Vec<CumulativeRun<'a>> {
        let mut all = Vec::new();
        for ((policy, point), runs) in cases.zip(runs.cumulative()) {
            for (seed, distributions) in runs {
                all.push(CumulativeRun { policy, point, seed, distributions });
            }
        }
        all
    }
}

/// Output file for cumulative distributions. It appears under its name only when it is complete.
pub(crate) struct CumulativeFile(Pending, Out);

impl CumulativeFile {
    pub(crate) fn begin(file: &std::path::Path) -> Result<CumulativeFile, Problem> {
        let (pending, out) = Pending::new(file)?;
        Ok(CumulativeFile(pending, out))
    }

    pub(crate) fn keep(self, runs: &[CumulativeRun<'_>]) -> Result<(), Problem> {
        let CumulativeFile(pending, mut out) = self;
        pending.keep(out.write_all(lines(runs).as_bytes()).and_then(|()| out.flush()))
    }
}

fn lines(runs: &[CumulativeRun<'_>]) -> String {
    let axes = runs.first().map_or(&[][..], |run| run.point);
    let axes: Vec<&str> = axes.iter().map(|(axis, _)| axis.as_str()).collect();
    let axes = axis_headings(&axes, &HEAD.split(',').collect::<Vec<_>>());
    let mut text: String = axes.iter().map(|axis| quoted(axis) + ",").collect();
    text += HEAD;
    text.push('\n');
    for CumulativeRun { policy, point, seed, distributions } in runs {
        let place: String = point.iter().map(|(_, name)| quoted(name) + ",").collect();
        for distribution in *distributions {
            let Cumulative { vcpu, metric, steps } = distribution;
            let run = format!("{place}{},{seed},{},{metric}", quoted(policy), quoted(vcpu));
            for (at_most, count) in steps {
                let part = *count as f64 / distribution.count() as f64;
                let _ = writeln!(text, "{run},{},{count},{part:.6}", at_most.ns());
            }
        }
    }
    text
}
