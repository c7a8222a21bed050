//! Figures of reports: CPU time over time, and distributions of waits.

use slackline_html::{Axis, Figure, Layer, Plot};
use slackline_metrics::Cumulative;
use slackline_units::Span;

/// Maximum number of vCPUs in one figure. More lines cannot be told apart.
const MOST_LINES: usize = 8;

/// Draws the share of a CPU that each vCPU received in each window of the run.
pub(crate) fn shares(vcpus: &[(String, Vec<Span>)], window: Span) -> Figure {
    let mut by_time: Vec<&(String, Vec<Span>)> = vcpus.iter().collect();
    by_time.sort_by_key(|(_, ran)| std::cmp::Reverse(ran.iter().copied().sum::<Span>()));
    let shown = &by_time[..by_time.len().min(MOST_LINES)];
    let axis = Axis::linear("time", "s");
    let plot = Plot::new(axis, Axis::linear("share", "% of a CPU").including(0.0));
    let line = |(name, ran): &&(String, Vec<Span>)| {
        let seconds = window.ns() as f64 / 1e9;
        let share = |used: &Span| used.ns() as f64 * 100.0 / window.ns() as f64;
        let starts = (0_u32..).map(|index| f64::from(index) * seconds);
        Layer::steps(name, starts.zip(ran.iter().map(share)))
    };
    let plot = shown.iter().map(line).fold(plot, Plot::with);
    let caption = format!("Share of a CPU in each interval of {window}.{}", left_out(vcpus.len()));
    Figure::new("CPU time received", plot).caption(&caption)
}

/// Draws one figure for each metric. For each time on the x axis, a curve shows the percentage of a
/// vCPU's values that are at most that long.
pub(crate) fn distributions(all: &[Cumulative]) -> Vec<Figure> {
    let mut metrics: Vec<&str> = all.iter().map(|it| it.metric).collect();
    metrics.sort_unstable_by(|one, other| other.cmp(one));
    metrics.dedup();
    metrics.into_iter().map(|metric| distribution(metric, all)).collect()
}

fn distribution(metric: &str, all: &[Cumulative]) -> Figure {
    let of_metric: Vec<&Cumulative> = all.iter().filter(|it| it.metric == metric).collect();
    let longest = of_metric.iter().filter_map(|it| Some(it.steps.last()?.0)).max();
    let longest = longest.unwrap_or_default().max(Span::from_us(20)).ns() as f64 / 1e6;
    let axis = Axis::symlog(metric, "ms", 0.01).range((0.0, longest));
    let plot = Plot::new(axis, Axis::linear("values", "%").including(0.0).including(100.0));
    let line = |of: &&Cumulative| {
        let count = of.count().max(1) as f64;
        let step = |&(at_most, number): &(Span, u64)| {
            (at_most.ns() as f64 / 1e6, number as f64 * 100.0 / count)
        };
        let first = of.steps.first().map(|&(at_most, _)| (at_most.ns() as f64 / 1e6, 0.0));
        Layer::steps(&of.vcpu, first.into_iter().chain(of.steps.iter().map(step)))
    };
    let plot = of_metric.iter().take(MOST_LINES).map(line).fold(plot, Plot::with);
    let caption = format!(
        "For each time on the x axis, a curve shows the percentage of values that are at most that \
         long.{}",
        left_out(of_metric.len())
    );
    Figure::new(&format!("Distribution of {metric}"), plot).caption(&caption)
}

/// Returns a sentence about vCPUs that a figure does not show. Empty if the figure shows all vCPUs.
fn left_out(vcpus: usize) -> String {
    match vcpus > MOST_LINES {
        true => format!(" {MOST_LINES} of {vcpus} vCPUs are drawn."),
        false => String::new(),
    }
}
