//! Report page of a sweep: plots over the size of the host, and a table of statistics over the
//! seeds.

use slackline_experiments::OverSeeds;
use slackline_html::{Axis, Cell, Figure, FigureOrigin, Layer, Page, Plot, Table};
use slackline_metrics::Unit;

use crate::args::Sweep;
use crate::counted::counted;

use super::jobs::Jobs;
use super::rows::Rows;

/// A plot in a figure, which shows one column.
struct Panel {
    column: String,
    title: String,
    /// Label of the y axis.
    axis: String,
    /// Column value that corresponds to one unit on the axis. Values are divided by it before they
    /// are drawn.
    scale: f64,
}

/// Plots that every sweep has: column, title and label of the y axis.
const PANELS: [(&str, &str, &str); 5] = [
    ("share_error_percent", "Share error", "mean over vCPUs, %"),
    ("second_error_p95_percent", "Share error in single seconds", "95th percentile, %"),
    ("moves_per_cpu_second", "Migrations", "per second and CPU"),
    (MISSED, "Missed deadlines", "of all, %"),
    ("waiting_percent", "Waiting for a CPU", "of the time runnable, %"),
];

/// Returns the plots that every sweep has, followed by the plots of the metrics that the command
/// line names.
fn panels(jobs: &Jobs<'_>) -> Vec<Panel> {
    let usual = PANELS.iter().map(|&(column, title, axis)| Panel {
        column: column.to_owned(),
        title: title.to_owned(),
        axis: axis.to_owned(),
        scale: 1.0,
    });
    let named = jobs.metrics.iter().zip(jobs.metrics.columns());
    let named = named.map(|((title, unit), column)| {
        let (axis, scale) = match unit {
            Unit::Time => ("ms", 1e6),
            Unit::Part => ("%", 1e4),
            Unit::Things => ("number", 1.0),
        };
        Panel { column, title, axis: axis.to_owned(), scale }
    });
    usual.chain(named).collect()
}

/// Name of a column that is computed over all seeds together, and that single runs do not have.
const MISSED: &str = "missed";

pub(super) fn page(args: &Sweep, jobs: &Jobs<'_>, rows: &Rows) -> String {
    let (first, last) = (jobs.seeds[0], jobs.seeds[jobs.seeds.len() - 1]);
    let seeds = if first == last { first.to_string() } else { format!("{first} to {last}") };
    let file = args.file.file_name().unwrap_or_default().to_string_lossy();
    let made = FigureOrigin::by(&format!("slackline sweep {file}"))
        .seeds(&seeds)
        .with(concat!("slackline ", env!("CARGO_PKG_VERSION")));
    let mut page = Page::new(&jobs.title, made).text(&about(jobs, rows));
    let mut points: Vec<&str> = Vec::new();
    for host in &jobs.hosts {
        if !points.contains(&jobs.point(host)) {
            points.push(jobs.point(host));
        }
    }
    for point in &points {
        if points.len() > 1 {
            page = page.section(point);
        }
        let here = PointHosts { jobs, rows, point };
        let panels: Vec<Plot> = panels(jobs).iter().filter_map(|panel| here.plot(panel)).collect();
        if !panels.is_empty() {
            let title = if points.len() > 1 {
                format!("{}: {point}", jobs.title)
            } else {
                jobs.title.clone()
            };
            let figure = Figure::of_panels(&title, panels);
            page = page.figure(figure.caption(
                "Medians over the seeds with their range. Missed deadlines are counted over all \
                 seeds together.",
            ));
        }
        page = page.table(here.table());
    }
    page.html()
}

fn about(jobs: &Jobs<'_>, rows: &Rows) -> String {
    let error = match jobs.is_drawn {
        true => {
            "Hosts are drawn at random. The share error is the distance of the CPU time that a \
             guest received from its fair share, in percent of the fair share. The fair share is \
             weighted max-min fair over all CPUs at every instant, among the runnable guests."
        }
        false => {
            "The share error is the distance of the CPU time that a vCPU received from its \
             reservation, in percent of the reservation."
        }
    };
    let done = match (rows.count(), jobs.count()) {
        (done, all) if done == all => format!("{}.", counted(all, "run")),
        (done, all) => {
            format!("{done} of {}; the sweep was stopped early.", counted(all, "run"))
        }
    };
    format!("{error} {done}")
}

/// The hosts at one point of the axes, one for each size.
struct PointHosts<'a> {
    jobs: &'a Jobs<'a>,
    rows: &'a Rows,
    point: &'a str,
}

impl PointHosts<'_> {
    /// Returns the hosts at the point: the index of each host in the sweep, and its number of CPUs.
    fn hosts(&self) -> Vec<(usize, usize)> {
        let hosts = self.jobs.hosts.iter().enumerate();
        let here = hosts.filter(|(_, host)| self.jobs.point(host) == self.point);
        here.map(|(nth, host)| (nth, host.cpus)).collect()
    }

    /// Returns the number of a combination of host and policy.
    fn case(&self, host: usize, policy: usize) -> usize {
        host * self.jobs.policies.len() + policy
    }

    fn over(&self, case: usize, column: &str) -> Option<OverSeeds> {
        if column == MISSED {
            let missed = self.rows.missed(self.jobs, case)?;
            return OverSeeds::of([missed]);
        }
        self.rows.over(self.jobs, case, column)
    }

    /// Draws one line for each policy over the sizes of the hosts. If there is a single size, draws
    /// bars.
    fn plot(&self, panel: &Panel) -> Option<Plot> {
        let hosts = self.hosts();
        let is_alone = hosts.len() == 1;
        let x = match is_alone {
            true => Axis::names("policy", self.jobs.policies.iter()),
            false => Axis::names("CPUs", hosts.iter().map(|(_, cpus)| cpus.to_string())),
        };
        let y = Axis::linear(&panel.axis, "").including(0.0).including(1.0);
        let mut plot = Plot::new(x, y).titled(&panel.title);
        let mut is_known = false;
        for (nth, policy) in self.jobs.policies.iter().enumerate() {
            let place = |at: usize| if is_alone { nth } else { at } as f64;
            let overs = hosts.iter().enumerate().filter_map(|(at, &(host, _))| {
                let OverSeeds { lowest, median, highest } =
                    self.over(self.case(host, nth), &panel.column)?;
                let [lowest, median, highest] =
                    [lowest, median, highest].map(|it| it / panel.scale);
                Some((place(at), lowest, median, highest))
            });
            let overs: Vec<(f64, f64, f64, f64)> = overs.collect();
            is_known |= !overs.is_empty();
            plot = plot.with(match is_alone {
                true => Layer::bars_with_range("median", overs),
                false => Layer::line(policy, overs.iter().map(|&(x, _, y, _)| (x, y)))
                    .band(overs.iter().map(|&(x, least, _, most)| (x, least, most))),
            });
        }
        is_known.then_some(plot)
    }

    fn table(&self) -> Table {
        let heads = [
            "policy",
            "CPUs",
            "runs",
            "error %",
            "worst %",
            "1 s p95 %",
            "moves",
            "missed %",
            "waiting %",
        ];
        let mut table = Table::new(heads).caption(
            "Medians over the seeds. Columns: mean share error over vCPUs; share error of the \
             worst vCPU, in parentheses its value in the worst seed; 95th percentile of the share \
             error in single seconds; migrations per second and CPU; missed deadlines, in percent \
             of all deadlines; time waiting, in percent of the time runnable.",
        );
        for (host, cpus) in self.hosts() {
            for (nth, policy) in self.jobs.policies.iter().enumerate() {
                let case = self.case(host, nth);
                let (runs, refused) = self.rows.runs(self.jobs, case);
                let median = |column: &str, digits: usize| match self.over(case, column) {
                    Some(over) => Cell::Number(format!("{:.digits$}", over.median)),
                    None => Cell::Dash,
                };
                let worst = match self.over(case, "worst_error_percent") {
                    Some(over) => Cell::Number(format!("{:.1} ({:.0})", over.median, over.highest)),
                    None => Cell::Dash,
                };
                let count = match refused {
                    0 => runs.to_string(),
                    _ => format!("{} ({refused} refused)", runs - refused),
                };
                table = table.row([
                    Cell::Text(format!("`{policy}`")),
                    Cell::Number(cpus.to_string()),
                    Cell::Number(count),
                    median("share_error_percent", 1),
                    worst,
                    median("second_error_p95_percent", 1),
                    median("moves_per_cpu_second", 2),
                    median(MISSED, 2),
                    median("waiting_percent", 1),
                ]);
            }
        }
        table
    }
}
