//! Report page of the allocation error test: the figures of the paper with measured results, and
//! the verdicts.

use slackline_experiments::OverSeeds;
use slackline_experiments::alert::{CaseResult, Form, Limiter, percent};
use slackline_html::{Axis, Cell, Figure, FigureOrigin, Layer, Page, Plot, Table};
use slackline_papers::Verdict;
use slackline_units::CpuShare;

use super::numbers::{fixed, ranged, share};
use super::published::{PublishedComparison, mean_size, published};

/// Contents of a report page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contents<'a> {
    pub(super) form: Form,
    /// Sentence that states the length and number of the trials, and on which host they were made.
    pub(super) how: &'a str,
    pub(super) results: &'a [CaseResult],
    pub(super) compared: &'a [PublishedComparison],
    /// Results of `--ablate`: those of each case with unchanged rules, and then with one rule
    /// changed at a time. Empty without `--ablate`.
    pub(super) ablations: &'a [(CaseResult, Vec<CaseResult>)],
}

/// Range of errors shown in distributions, in percent. Values outside are only in the tables.
const TAILS: (f64, f64) = (-100.0, 150.0);
const SMP_TAILS: (f64, f64) = (-60.0, 40.0);

/// Two errors in percent. The paper's text states how many seconds have an error below the first,
/// and how many have an error above the second.
const PRINTED_TAILS: (f64, f64) = (-9.9, 36.3);

/// Axis label for the error of a second.
const ERROR: &str = "error of a second, (used \u{2212} target) / target";

/// Paper whose figures are drawn again.
const PAPER: &str = "Cherkasova, Gupta, Vahdat (2007)";

/// Axis label for the target share.
const TARGET: &str = "target, % of a CPU";

/// Caption of figures that show the distribution of errors, cumulated from each end of the axis
/// toward an error of zero.
const OUTWARDS: &str = "Left of zero, a curve shows the percentage of all seconds with this error \
                        or a smaller one. Right of zero, it shows the percentage with a larger \
                        error.";

/// Maximum number of cases that get a separate table.
const MOST_TABLES: usize = 8;

pub(super) fn page(contents: &Contents<'_>, made: &FigureOrigin) -> String {
    let title = match contents.form {
        Form::One => "ALERT: how exactly a share of a CPU is enforced",
        Form::Smp => "ALERT on two CPUs: three VMs at 66 %",
    };
    let mut page = Page::new(title, made.clone()).text(&intro(contents));
    page = match contents.form {
        Form::One => {
            page.figure(points(contents)).figure(tails(contents)).figure(averages(contents))
        }
        // With a single target, a plot by target shows nothing.
        Form::Smp => page.figure(tails(contents)),
    };
    for (base, ablated) in contents.ablations {
        page = page.section(&format!("Effect of each rule: {}", base.name));
        page = ablation(page, base, ablated);
    }
    if !contents.compared.is_empty() {
        page = page
            .section("Comparison with the paper")
            .text(
                "Cherkasova, Gupta, Vahdat: Comparison of the Three CPU Schedulers in Xen, 2007. \
                 The simulation does not use these numbers, and nothing was fitted to them.",
            )
            .table(verdicts(contents.compared));
    }
    page = page.section("Every target");
    for result in contents.results.iter().take(MOST_TABLES) {
        page = page.table(targets(result));
    }
    page.section("Method").list(assumptions(contents)).html()
}

fn intro(contents: &Contents<'_>) -> String {
    let what = match contents.form {
        Form::One => {
            "A VM that never blocks is limited to a share of a CPU. The CPU time it uses is read \
             every second."
        }
        Form::Smp => {
            "Three VMs that never block are limited to 66 % of a CPU each, on two CPUs. The CPU \
             time they use is read every second."
        }
    };
    format!(
        "{what} {} The error is (U \u{2212} A)/A for CPU time used U and target A, positive if the \
         VM received too much. The paper defines (A \u{2212} U)/A, but its errors of up to 370 % \
         are only possible as (U \u{2212} A)/A.",
        contents.how
    )
}

fn target_names(contents: &Contents<'_>) -> Vec<CpuShare> {
    let mut targets: Vec<CpuShare> =
        contents.results.iter().flat_map(CaseResult::targets).collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// Draws figure 7 of the paper: the error of every second, by target share.
fn points(contents: &Contents<'_>) -> Figure {
    let targets = target_names(contents);
    let panel = |result: &CaseResult| {
        let place = |of: CpuShare| targets.iter().position(|&target| target == of).unwrap_or(0);
        let seconds = result.runs.iter().flat_map(|run| {
            let x = place(run.target) as f64;
            run.seconds.iter().map(move |&error| (x, percent(error)))
        });
        let names = targets.iter().map(|&target| share(target));
        let y = Axis::symlog(ERROR, "%", 1.0);
        Plot::new(Axis::names(TARGET, names).broken_after(breaks(&targets)), y)
            .titled(&result.name)
            .with(Layer::points(&result.name, seconds))
    };
    let panels: Vec<Plot> = contents.results.iter().map(panel).collect();
    let columns = if panels.len() == 1 { 1 } else { 2 };
    Figure::of_panels("Every second, by target", panels).columns(columns).caption(&format!(
        "A dot is a second. Where several seconds coincide, the dot is larger. All panels have the \
         same scale, which is almost linear up to 1 % and logarithmic beyond. Two strokes break \
         the axis where the step between targets changes. In {PAPER}: figure 7."
    ))
}

/// Draws the distribution of errors: figure 8 of the paper, or figure 11 for two CPUs. For each
/// error, a curve shows the percentage of all seconds that have a larger error of the same sign.
fn tails(contents: &Contents<'_>) -> Figure {
    if contents.results.iter().all(|result| result.limiter == Limiter::Host) {
        return live_tails(contents);
    }
    let (low, high) = tail_range(contents);
    let x = Axis::linear(ERROR, "%").range((low, high));
    // The axis ends a little above 100 %, so that no line is drawn on its edge.
    let y = Axis::log("seconds with larger errors", "% of all").range((0.01, 130.0));
    let mut plot = Plot::new(x, y).with(Layer::rule_at_x("exact", 0.0));
    for result in contents.results {
        let errors = result.errors(None, |_| true);
        plot = plot.with(Layer::steps(&result.name, tail(errors.sorted())));
    }
    let caption = match contents.form {
        Form::One => {
            for point in printed_tails() {
                plot = plot.with(point);
            }
            format!(
                "{OUTWARDS} A narrow curve is better. In {PAPER}: figure 8. The points are values \
                 in the text of the paper."
            )
        }
        Form::Smp => {
            if let Some(axis) = published("figure-11.axis").and_then(|axis| axis.range()) {
                plot = plot.with(Layer::region_x("range of the published axis", axis));
            }
            format!(
                "{OUTWARDS} In {PAPER}: figure 11. Of that figure only the range of the axis can \
                 be read. The range is grey here."
            )
        }
    };
    let is_beyond = |error: &i64| !(low..=high).contains(&percent(*error));
    let beyond = contents.results.iter().any(|result| {
        let errors = result.errors(None, |_| true);
        errors.sorted().iter().any(is_beyond)
    });
    let caption = match beyond {
        true => {
            format!("{caption} Values below {low:.0} % and above {high:.0} % are not drawn.")
        }
        false => caption,
    };
    Figure::new("Distribution of errors", plot).caption(&caption).height(340)
}

/// Returns the range of errors to show. It contains all measured and all published errors that lie
/// within [`TAILS`].
fn tail_range(contents: &Contents<'_>) -> (f64, f64) {
    let (bounds, published) = match contents.form {
        Form::One => (TAILS, Some(PRINTED_TAILS)),
        Form::Smp => (SMP_TAILS, published("figure-11.axis").and_then(|axis| axis.range())),
    };
    let ends = contents.results.iter().flat_map(|result| {
        let errors = result.errors(None, |_| true);
        [errors.smallest(), errors.largest()].into_iter().flatten().map(percent)
    });
    let (least, most) = published.unwrap_or((0.0, 0.0));
    let (low, high) =
        ends.fold((least, most), |(low, high), error| (low.min(error), high.max(error)));
    // The margin keeps steps off the edge.
    let margin = ((high - low) * 0.04).max(1.0);
    ((low - margin).max(bounds.0).floor(), (high + margin).min(bounds.1).ceil())
}

/// Draws a figure like figures 8 and 11 of the paper, for mechanisms on this host and over the
/// whole range of errors. The paper has no values for these mechanisms.
fn live_tails(contents: &Contents<'_>) -> Figure {
    let x = Axis::symlog(ERROR, "%", 0.1);
    let seconds = |result: &CaseResult| result.errors(None, |_| true).sorted().len();
    let most = contents.results.iter().map(seconds).max().unwrap_or(1).max(1);
    // The axis starts below the percentage of one second, and ends above 100 %.
    let y = Axis::log("seconds with larger errors", "% of all").range((50.0 / most as f64, 130.0));
    let mut plot = Plot::new(x, y).with(Layer::rule_at_x("exact", 0.0));
    for result in contents.results {
        let errors = result.errors(None, |_| true);
        plot = plot.with(Layer::steps(&result.name, tail(errors.sorted())));
    }
    let caption = format!(
        "{OUTWARDS} A narrow curve is better. The scale is almost linear up to 0.1 % and \
         logarithmic beyond."
    );
    Figure::new("Distribution of errors", plot).caption(&caption).height(340)
}

/// Returns the indices `n` at which the step between target shares changes: `targets[n + 1] -
/// targets[n]` differs from `targets[n] - targets[n - 1]`.
fn breaks(targets: &[CpuShare]) -> Vec<usize> {
    let steps: Vec<u32> = targets.windows(2).map(|pair| pair[1].ppm() - pair[0].ppm()).collect();
    (1..steps.len()).filter(|&nth| steps[nth] != steps[nth - 1]).collect()
}

/// Returns the curve of the distribution of errors as points `(x, y)`. For x below zero, y is the
/// percentage of seconds whose error is at most x. From zero on, y is the percentage of seconds
/// whose error is larger than x.
fn tail(sorted: &[i64]) -> Vec<(f64, f64)> {
    let all = sorted.len().max(1) as f64;
    let part = |count: usize| count as f64 * 100.0 / all;
    let (negative, positive) =
        (sorted.partition_point(|&error| error < 0), sorted.partition_point(|&error| error <= 0));
    let mut spots: Vec<(f64, f64)> = Vec::new();
    for (nth, &error) in sorted[..negative].iter().enumerate() {
        spots.push((percent(error), part(nth + 1)));
    }
    // A step lasts until the next error. Its height is the percentage of larger errors.
    spots.push((0.0, part(sorted.len() - positive)));
    for (nth, &error) in sorted[positive..].iter().enumerate() {
        spots.push((percent(error), part(sorted.len() - positive - nth - 1)));
    }
    spots.dedup_by(|next, last| {
        let same = next.0 == last.0;
        last.1 = if same { next.1 } else { last.1 };
        same
    });
    spots
}

/// Returns the points that the paper's text states for the error distributions of Credit and SEDF.
fn printed_tails() -> Vec<Layer> {
    let printed = |policy: &str| {
        let value =
            |name: &str| -> Option<f64> { published(&format!("alert.{policy}.{name}"))?.number() };
        let points =
            [(PRINTED_TAILS.0, value("below-minus-9.9")), (PRINTED_TAILS.1, value("above-36.3"))];
        let points = points.into_iter().filter_map(|(x, y)| Some((x, y.filter(|&y| y > 0.0)?)));
        Layer::points(format!("{policy}, published"), points).published()
    };
    ["credit", "sedf"].map(printed).into()
}

/// Draws figure 9 of the paper: the error over the whole time, by target share.
fn averages(contents: &Contents<'_>) -> Figure {
    let targets = target_names(contents);
    let names = targets.iter().map(|&target| share(target));
    let y = Axis::linear("error over the whole test", "%").including(-1.0).including(1.0);
    let x = Axis::names(TARGET, names).broken_after(breaks(&targets));
    let mut plot = Plot::new(x, y);
    for result in contents.results {
        let places = targets.iter().enumerate();
        let ranges = places.filter_map(|(nth, &target)| {
            let OverSeeds { lowest, median, highest } = result.averages(target)?;
            Some((nth as f64, lowest, median, highest))
        });
        plot = plot.with(Layer::ranges(&result.name, ranges));
    }
    Figure::new("Error over the whole test", plot).height(280).caption(&format!(
        "Error of the CPU time used in all seconds of a test together: median and range over the \
         seeds. In {PAPER}: figure 9, with averages over 3 minutes and an axis from \u{2212}10 to \
         140 %."
    ))
}

/// Adds the effect of each rule to a page: a table and a figure of the mean absolute errors.
fn ablation(page: Page, base: &CaseResult, ablated: &[CaseResult]) -> Page {
    let size =
        |result: &CaseResult, wanted: fn(CpuShare) -> bool| result.over_seeds(wanted, mean_size);
    let small = |target: CpuShare| target <= CpuShare::from_ppm(100_000);
    let large = |target: CpuShare| target > CpuShare::from_ppm(100_000);
    let numbers = |result: &CaseResult| {
        let errors = result.errors(None, |_| true);
        let (under, over) = result.signs();
        let number =
            |error: Option<i64>| error.map_or(Cell::Dash, |ppm| Cell::Number(fixed(percent(ppm))));
        let mean = |wanted| {
            size(result, wanted).map_or(Cell::Dash, |of| Cell::Number(format!("{:.2}", of.median)))
        };
        let all: usize = result.runs.iter().map(|run| run.seconds.len()).sum();
        let part =
            |count: usize| Cell::Number(format!("{:.1}", count as f64 * 100.0 / all.max(1) as f64));
        vec![
            mean(small),
            mean(large),
            number(errors.smallest()),
            number(errors.largest()),
            part(under),
            part(over),
        ]
    };
    let seconds = |result: &CaseResult| {
        result.runs.iter().flat_map(|run| run.seconds.clone()).collect::<Vec<_>>()
    };
    let (idle, moving): (Vec<&CaseResult>, Vec<&CaseResult>) =
        ablated.iter().partition(|result| seconds(result) == seconds(base));
    let rule = |result: &CaseResult| changed(base, result);
    let headings = ["", "rule", "to 10 %", "above", "smallest", "largest", "under", "over"];
    let caption = "One rule is changed at a time. The first row has all rules unchanged. Columns: \
        mean absolute error of a second at targets up to 10 % and at larger targets, smallest and \
        largest error of a second, and parts of the seconds with too little and with too much CPU \
        time. All are in percent.";
    let row = |number: Cell, name: String, result: &CaseResult| {
        [number, Cell::Text(name)].into_iter().chain(numbers(result))
    };
    let mut table = Table::new(headings).caption(caption);
    table = table.row(row(Cell::Dash, "unchanged".into(), base));
    for (nth, result) in moving.iter().enumerate() {
        let (number, name) = ((nth + 1).to_string(), format!("`{}`", rule(result)));
        table = table.row(row(Cell::Number(number), name, result));
    }
    if !idle.is_empty() {
        let names: Vec<String> = idle.iter().map(|of| format!("`{}`", rule(of))).collect();
        table = table.note(&format!("Rules without effect on this test: {}.", names.join(", ")));
    }
    let page = page.table(table);
    if moving.is_empty() { page } else { page.figure(ablation_figure(base, &moving)) }
}

fn ablation_figure(base: &CaseResult, moving: &[&CaseResult]) -> Figure {
    let all: Vec<(String, &CaseResult)> = std::iter::once(("unchanged".to_string(), base))
        .chain(moving.iter().map(|result| (changed(base, result), *result)))
        .collect();
    // Names are too long for the axis: it has the row numbers of the table.
    let places = |wanted: fn(CpuShare) -> bool| {
        let at = |(nth, (_, result)): (usize, &(String, &CaseResult))| {
            let OverSeeds { lowest, median, highest } = result.over_seeds(wanted, mean_size)?;
            Some((nth as f64, lowest, median, highest))
        };
        all.iter().enumerate().filter_map(at).collect::<Vec<_>>()
    };
    let names =
        (0..all.len()).map(|nth| if nth == 0 { "unchanged".into() } else { nth.to_string() });
    let plot = Plot::new(
        Axis::names("row of the table", names),
        Axis::linear("mean absolute error of a second", "%"),
    );
    let plot = plot
        .with(Layer::bars_with_range("targets up to 10 %", places(|it| it.ppm() <= 100_000)))
        .with(Layer::bars_with_range("larger targets", places(|it| it.ppm() > 100_000)));
    Figure::new("Error by rule", plot)
        .height(280)
        .caption("Bars are medians over the seeds with their range.")
}

/// Returns the settings in the name of the case `result` that are not in the name of the case
/// `base`.
fn changed(base: &CaseResult, result: &CaseResult) -> String {
    let known: Vec<&str> = base.name.split(':').collect();
    result.name.split(':').filter(|part| !known.contains(part)).collect::<Vec<_>>().join(" ")
}

fn verdicts(compared: &[PublishedComparison]) -> Table {
    let headings = ["what", "where", "published", "ours", "verdict", "why"];
    let mut table = Table::new(headings)
        .caption("Ours: median over the seeds, with the range if seeds differ. In percent.");
    for PublishedComparison { published, ours, verdict, sentence } in compared {
        let verdict = match verdict {
            Verdict::Reproduced => Cell::Good(verdict.to_string()),
            Verdict::SameShape => Cell::Fair(verdict.to_string()),
            Verdict::Differs | Verdict::NotAttempted => Cell::Bad(verdict.to_string()),
            Verdict::NothingToCompare => Cell::Text(verdict.to_string()),
        };
        table = table.row([
            Cell::Text(published.says.clone()),
            Cell::Text(published.from.clone()),
            Cell::Number(published.shown()),
            Cell::Number(ours.clone()),
            verdict,
            Cell::Text(sentence.clone()),
        ]);
    }
    table
}

fn targets(result: &CaseResult) -> Table {
    let headings = ["target, %", "seconds", "least", "median", "most", "whole test"];
    let mut table = Table::new(headings).caption(&format!(
        "`{}`: errors of single seconds and of the whole test, in percent",
        result.name
    ));
    for target in result.targets() {
        let errors = result.errors(None, |other| other == target);
        let number =
            |error: Option<i64>| error.map_or(Cell::Dash, |ppm| Cell::Number(fixed(percent(ppm))));
        let average = result.averages(target).map_or(Cell::Dash, |of| Cell::Number(ranged(of)));
        table = table.row([
            Cell::Number(share(target)),
            Cell::Number(errors.sorted().len().to_string()),
            number(errors.smallest()),
            number(errors.median()),
            number(errors.largest()),
            average,
        ]);
    }
    table
}

fn assumptions(contents: &Contents<'_>) -> Vec<String> {
    let is_live = |result: &CaseResult| result.limiter == Limiter::Host;
    let mut items = Vec::new();
    if contents.results.iter().any(|result| !is_live(result)) {
        items.extend(slackline_experiments::alert::assumptions(contents.form));
    }
    if contents.results.iter().any(is_live) {
        items.push(
            "Live: a process with one thread that never blocks is pinned to one CPU of this host. \
             Each limiter limits it in turn. Its CPU time is read from the kernel every second."
                .into(),
        );
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_error_distribution_peaks_at_zero_and_falls_outwards() {
        let sorted = [-200_000, -100_000, -100_000, 0, 50_000, 50_000, 100_000, 300_000];
        let expected =
            [(-20.0, 12.5), (-10.0, 37.5), (0.0, 50.0), (5.0, 25.0), (10.0, 12.5), (30.0, 0.0)];
        assert_eq!(tail(&sorted), expected);
        assert_eq!(tail(&[]), [(0.0, 0.0)]);
    }

    #[test]
    fn alert_chart_axis_has_a_break_where_target_spacing_changes() {
        let shares = |percent: &[u32]| -> Vec<CpuShare> {
            percent.iter().map(|percent| CpuShare::from_ppm(percent * 10_000)).collect()
        };
        assert_eq!(breaks(&shares(&[1, 2, 3, 10, 20, 30])), [2, 3]);
        assert_eq!(breaks(&shares(&[8, 9, 10, 20, 30])), [2]);
        assert!(breaks(&shares(&[1, 2])).is_empty());
    }
}
