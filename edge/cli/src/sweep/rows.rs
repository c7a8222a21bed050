//! Rows of a sweep: a table of all runs, and statistics over the seeds.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use slackline_experiments::OverSeeds;
use slackline_experiments::axes::Axis;
use slackline_terminal::{MetricValues, by_metric};

use crate::alert::show::packed;
use crate::counted::counted;
use crate::quoted::{axis_headings, quoted};
use crate::terminal;

use super::jobs::Jobs;

/// Cells of each finished run, by the number of the run.
pub(super) struct Rows {
    head: Vec<String>,
    /// Cells of each run before the results: its point on each axis, CPUs, policy and seed.
    names: Vec<Vec<String>>,
    done: BTreeMap<usize, Vec<String>>,
}

impl Rows {
    /// Creates the rows of a sweep from the cells of its finished runs.
    pub(super) fn new(jobs: &Jobs<'_>, done: BTreeMap<usize, Vec<String>>) -> Rows {
        let axes: Vec<&str> = jobs.axes.iter().map(Axis::name).collect();
        let words = ["cpus", "policy", "seed"].map(str::to_owned).into_iter();
        let words: Vec<String> = words.chain(jobs.columns()).collect();
        let axes = axis_headings(&axes, &words.iter().map(String::as_str).collect::<Vec<_>>());
        let names = (0..jobs.count()).map(|job| {
            let (host, policy, seed) = jobs.of(job);
            let mut names = jobs.names(host);
            names.extend([host.cpus.to_string(), policy.to_owned(), seed.to_string()]);
            names
        });
        Rows { head: axes.into_iter().chain(words).collect(), names: names.collect(), done }
    }

    pub(super) fn has(&self, job: usize) -> bool {
        self.done.contains_key(&job)
    }

    pub(super) fn add(&mut self, job: usize, cells: Vec<String>) {
        self.done.insert(job, cells);
    }

    pub(super) fn count(&self) -> usize {
        self.done.len()
    }

    /// Returns all rows in order, as CSV.
    pub(super) fn csv(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = &String>| {
            cells.map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\n"
        };
        let mut text = line(&mut self.head.iter());
        for (&job, cells) in &self.done {
            text += &line(&mut self.names[job].iter().chain(cells));
        }
        text
    }

    /// Returns the values of a column for a host under a policy, one per seed. Missing values are
    /// left out.
    fn values(&self, jobs: &Jobs<'_>, case: usize, column: &str) -> Vec<f64> {
        let columns = jobs.columns();
        let Some(place) = columns.iter().position(|name| *name == column) else {
            return Vec::new();
        };
        let seeds = jobs.seeds.len();
        let runs = self.done.range(case * seeds..(case + 1) * seeds);
        runs.filter_map(|(_, cells)| cells.get(place)?.parse().ok()).collect()
    }

    /// Returns the number of finished runs of a host under a policy, and the number of these runs
    /// that admission refused.
    pub(super) fn runs(&self, jobs: &Jobs<'_>, case: usize) -> (usize, usize) {
        let seeds = jobs.seeds.len();
        let runs = self.done.range(case * seeds..(case + 1) * seeds);
        let refused = runs.clone().filter(|(_, cells)| cells[0] == "refused").count();
        (runs.count(), refused)
    }

    /// Returns statistics of a column over the seeds. `None` if no run has a value in this column.
    pub(super) fn over(&self, jobs: &Jobs<'_>, case: usize, column: &str) -> Option<OverSeeds> {
        OverSeeds::of(self.values(jobs, case, column))
    }

    /// Returns the percentage of missed deadlines over all seeds together. `None` if there were no
    /// deadlines.
    pub(super) fn missed(&self, jobs: &Jobs<'_>, case: usize) -> Option<f64> {
        let sum = |column| self.values(jobs, case, column).iter().sum::<f64>();
        let all = sum("deadlines");
        (all > 0.0).then(|| 100.0 * sum("misses") / all)
    }

    /// Returns a table with a line for each host and policy.
    pub(super) fn table(&self, jobs: &Jobs<'_>) -> String {
        let mut text = format!("{}\n\n", jobs.title);
        let mut rows = Vec::new();
        for (case, name) in cases(jobs).into_iter().enumerate() {
            let (runs, refused) = self.runs(jobs, case);
            if runs == 0 {
                continue;
            }
            let median = |column| {
                let over = self.over(jobs, case, column);
                over.map_or("-".to_owned(), |over| format!("{:.1}", over.median))
            };
            let missed = self.missed(jobs, case);
            rows.push((
                name,
                vec![
                    (runs - refused).to_string(),
                    median("share_error_percent"),
                    median("worst_error_percent"),
                    median("second_error_p95_percent"),
                    median("moves_per_cpu_second"),
                    missed.map_or("-".to_owned(), |percent| format!("{percent:.2}")),
                    median("waiting_percent"),
                ],
            ));
        }
        let heads = ["runs", "error %", "worst %", "1s p95 %", "moves/s", "missed %", "waiting %"];
        text += &packed("medians over seeds", &heads, &rows, terminal::width());
        let refused: usize = (0..rows.len()).map(|case| self.runs(jobs, case).1).sum();
        if refused > 0 {
            let were = if refused == 1 { "was" } else { "were" };
            let runs = counted(refused, "run");
            let _ = writeln!(text, "note: {runs} {were} refused by admission");
        }
        text + &self.metric_table(jobs)
    }

    /// Returns a table of the metrics that the command line names. Empty if the command line names
    /// no metric.
    fn metric_table(&self, jobs: &Jobs<'_>) -> String {
        if jobs.metrics.is_empty() {
            return String::new();
        }
        let (hosts, policies) = (jobs.hosts.len(), jobs.policies.len());
        // By policy, then by host.
        let order =
            (0..policies).flat_map(|policy| (0..hosts).map(move |host| host * policies + policy));
        let order: Vec<usize> = order.collect();
        let names = cases(jobs);
        let names: Vec<String> = order.iter().map(|&case| names[case].clone()).collect();
        let columns = jobs.columns();
        let metrics = jobs.metrics.iter().enumerate().map(|(nth, (name, unit))| {
            let place = columns.len() - jobs.metrics.len() + nth;
            let values = order.iter().map(|&case| self.by_seed(jobs, case, place)).collect();
            MetricValues { name, unit, values }
        });
        let metrics: Vec<MetricValues> = metrics.collect();
        let table = by_metric(&names, hosts, &metrics, terminal::width(), terminal::paint());
        format!("\n{table}")
    }

    /// Returns the whole numbers in a column of a host under a policy, by seed. An entry is `None`
    /// if its run is not complete, or has no number in the column.
    fn by_seed(&self, jobs: &Jobs<'_>, case: usize, place: usize) -> Vec<Option<i64>> {
        let seeds = jobs.seeds.len();
        let runs = (case * seeds..(case + 1) * seeds).map(|job| self.done.get(&job));
        runs.map(|cells| cells?.get(place)?.parse().ok()).collect()
    }
}

/// Returns the names of all combinations of host and policy, in order.
pub(super) fn cases(jobs: &Jobs<'_>) -> Vec<String> {
    let name = |case: usize| {
        let (host, policy, _) = jobs.of(case * jobs.seeds.len());
        let mut names = jobs.names(host);
        names.extend([counted(host.cpus, "CPU"), policy.to_owned()]);
        names.join(", ")
    };
    (0..jobs.hosts.len() * jobs.policies.len()).map(name).collect()
}
