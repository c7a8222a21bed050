//! Report page about papers, made from their stored results: figures with measured and published
//! values, comparisons with verdicts, and the effects of assumptions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use slackline_experiments::OverSeeds;
use slackline_html::{Axis, Cell, Figure, FigureOrigin, Layer, Page, Table};
use slackline_units::Span;
use toml::Spanned;

use crate::Paper;
use crate::compare::Verdict;
use crate::error::PaperError;
use crate::experiment::{Experiment, Plot};
use crate::numbers::{digits, with_unit};
use crate::published::{PublishedValues, Value};
use crate::results::{KeptRow, Provenance, StoredResults, tally};

/// Length of a value up to which it stays on one line of a table, in characters.
const SHORT: usize = 28;

/// Returns the page as HTML.
///
/// # Errors
/// If a paper is faulty or has no results.
pub fn page(papers: &[Paper], made: &Provenance) -> Result<String, PaperError> {
    let Provenance { commit, command, date, .. } = made;
    let by = FigureOrigin::by(command).commit(Some(commit)).with(date);
    let title = match papers {
        [one] => one.title.clone(),
        _ => "Papers: measured values compared with published values".to_owned(),
    };
    let mut page = Page::new(&title, by);
    for paper in papers {
        page = PaperSection::new(paper)?.tell(page);
    }
    Ok(page.html())
}

/// Data for the part of the page about one paper.
struct PaperSection<'a> {
    paper: &'a Paper,
    published: PublishedValues,
    /// Experiments that have stored results.
    came: Vec<(Experiment, StoredResults)>,
}

impl<'a> PaperSection<'a> {
    fn new(paper: &'a Paper) -> Result<PaperSection<'a>, PaperError> {
        let experiments = paper.experiments()?.into_iter();
        let came = experiments.filter_map(|one| paper.kept(&one).map(|kept| (one, kept)));
        let came: Vec<(Experiment, StoredResults)> = came.collect();
        if came.is_empty() {
            return Err(PaperError::NoResults { paper: paper.name.clone() });
        }
        Ok(PaperSection { paper, published: paper.published()?, came })
    }

    fn tell(&self, page: Page) -> Page {
        let mut page = page.section(&self.paper.title).text(&self.paper.cite);
        page = page.text(&self.summary());
        page = page.folded("About the paper, and how its experiments are simulated", self.about());
        page = page.text(
            "Lines are medians over the seeds. Bands and whiskers are the range over the seeds. \
             Hollow marks are published values. Reproduced: the measured value is within the \
             declared tolerance. Same shape: the order or direction is the same, the size is not. \
             Differs: all other comparisons. Nothing to compare: agreement would prove nothing.",
        );
        for (experiment, kept) in &self.came {
            if experiment.sensitivity.is_none() {
                page = self.experiment(page, experiment, kept);
            }
        }
        page = self.assumptions(page);
        self.not_attempted(page)
    }

    fn summary(&self) -> String {
        let predict = || self.came.iter().filter(|(experiment, _)| experiment.predicts());
        let rows = || predict().flat_map(|(_, kept)| &kept.rows).filter(|row| is_plain(row));
        let judged = rows().filter(|row| !row.calibration);
        let calibration = rows().filter(|row| row.calibration).count();
        format!(
            "Of {} comparisons: {}. Not counted: {calibration} comparisons with values from which \
             costs were calibrated, and all experiments whose assumptions were chosen after the \
             published values were known.",
            judged.clone().filter(|row| row.verdict.is_comparison()).count(),
            tally(judged.map(|row| &row.verdict)),
        )
    }

    /// Returns the text of `paper.md` without its first heading.
    fn about(&self) -> Page {
        let text = fs::read_to_string(self.paper.folder.join("paper.md")).unwrap_or_default();
        let mut page = Page::new("", FigureOrigin::default());
        for part in text.split("\n\n").skip(1) {
            let part = part.trim();
            if let Some(heading) = part.strip_prefix("## ") {
                page = page.section(heading);
            } else if part.starts_with("- ") {
                let items = part.strip_prefix("- ").unwrap_or(part).split("\n- ");
                page = page.list(items.map(one_line));
            } else if !part.is_empty() {
                page = page.text(&one_line(part));
            }
        }
        page
    }

    fn experiment(&self, page: Page, experiment: &Experiment, kept: &StoredResults) -> Page {
        let mut page = page.section(&experiment.title).text(&kept.made);
        if experiment.explains {
            page = page.text(
                "An assumption of this experiment was chosen after the published values were \
                 known. So the results explain published values, but do not predict any.",
            );
        }
        // Panels of one figure share a time axis.
        let (mut wide, mut narrow, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        for plot in &experiment.plots {
            let panel = match plot.over_time.is_some() {
                true => over_time(plot, experiment, kept),
                false if plot.y.is_some() => map(plot, experiment, kept),
                false => self.panel(plot, experiment, kept),
            };
            let panels = match has_many_names(plot, experiment) {
                true => &mut wide,
                false if plot.accumulated => &mut sums,
                false => &mut narrow,
            };
            panels.extend(panel.map(|panel| panel.titled(&plot.title)));
        }
        for panels in [wide, narrow, sums].into_iter().filter(|panels| !panels.is_empty()) {
            let title = format!("Figures of {}", self.paper.name);
            let caption = self.caption(experiment);
            page = page.figure(Figure::of_panels(&title, panels).caption(&caption));
        }
        let mut groups: Vec<&str> = Vec::new();
        for row in kept.rows.iter().filter(|row| is_plain(row)) {
            if !groups.contains(&row.group.as_str()) {
                groups.push(&row.group);
            }
        }
        for group in groups {
            let rows = kept.rows.iter().filter(|row| is_plain(row) && row.group == group);
            page = page.table(self.comparisons(group, &rows.collect::<Vec<_>>()));
        }
        page
    }

    /// Returns the caption of an experiment's figures.
    fn caption(&self, experiment: &Experiment) -> String {
        let Paper { title, .. } = self.paper;
        let lines = format!(
            "Lines and bars are medians over the seeds, with the range over the seeds. Hollow \
             marks are values published in \u{201c}{title}\u{201d}. A grey area is the range of a \
             published plot's axis, if the values of that plot cannot be read."
        );
        let map = experiment.plots.iter().find(|plot| plot.y.is_some());
        match map {
            None => lines,
            Some(map) => {
                let measure = map.measure.as_ref().map(|measure| measure.get_ref().as_str());
                let spec = experiment.measures.iter().find(|one| Some(one.name()) == measure);
                let unit = spec.map_or("", |spec| spec.unit.as_str());
                let line = with_unit(&digits(map.line), unit);
                format!(
                    "{lines} In a map, darker tiles have larger values, and each map has its own \
                     scale. The black line separates tiles above {line} from the other tiles."
                )
            }
        }
    }

    fn comparisons(&self, group: &str, rows: &[&KeptRow]) -> Table {
        let judged = rows.iter().filter(|row| !row.calibration).map(|row| row.verdict);
        let worst = Verdict::worst(judged);
        let says = worst.map_or("calibration".to_owned(), |verdict| verdict.to_string());
        let headings = ["what", "published", "ours", "verdict", "why"];
        let mut table = Table::new(headings).caption(&format!("{group}: {says}"));
        for row in rows {
            let value = self.published.value(&row.id);
            let what = value.map(|value| format!("{} ({})", value.says, value.from));
            let short = |text: &String| match text.chars().count() {
                0..=SHORT => Cell::Number(text.clone()),
                _ => Cell::Text(text.clone()),
            };
            let verdict = match row.calibration {
                true => Cell::Text("calibration".to_owned()),
                false => verdict(row.verdict),
            };
            table = table.row([
                Cell::Text(what.unwrap_or_default()),
                short(&row.published),
                short(&row.ours),
                verdict,
                Cell::Text(row.sentence.clone()),
            ]);
        }
        match rows.first() {
            Some(row) => table.note(&format!("Tolerance: {}.", row.tolerance)),
            None => table,
        }
    }

    /// Returns the plot of a measure along an axis, with a line for each combination of points on
    /// the other axes.
    fn panel(
        &self,
        plot: &Plot,
        experiment: &Experiment,
        kept: &StoredResults,
    ) -> Option<slackline_html::Plot> {
        let measure = plot.measure.as_ref()?.get_ref();
        let spec = experiment.measures.iter().find(|one| one.name() == measure)?;
        let x = plot.x.as_ref().map_or(experiment.axes.first()?.name(), |x| x.get_ref());
        let along = experiment.axes.iter().position(|axis| axis.name() == x)?;
        let axis = &experiment.axes[along];
        let has_numbers = axis.points.iter().all(|point| point.x.is_some());
        let stats = PlotContext { plot, experiment, kept, along }.stats(measure)?;
        let ink = match has_numbers {
            true => Axis::linear(&axis.label, ""),
            false => Axis::names(&axis.label, axis.points.iter().map(|point| point.label())),
        };
        let mut panel = slackline_html::Plot::new(ink, Axis::linear(spec.label(), &spec.unit));
        if let Some(range) = self.axis_of(plot) {
            panel = panel.with(Layer::region_y("axis of the published plot", range));
        }
        for (name, line) in &stats {
            let name = if name.is_empty() { "ours" } else { name.as_str() };
            panel = panel.with(match has_numbers {
                true => {
                    let middle = line.iter().map(|&(x, stat)| (x, stat.median));
                    let band = line.iter().map(|&(x, stat)| (x, stat.lowest, stat.highest));
                    Layer::line(name, middle).band(band)
                }
                false => {
                    let bar =
                        |&(x, stat): &(f64, OverSeeds)| (x, stat.lowest, stat.median, stat.highest);
                    Layer::bars_with_range(name, line.iter().map(bar))
                }
            });
        }
        for (name, points) in self.theirs(plot, experiment, kept, measure) {
            let over = if name.is_empty() { "ours" } else { name.as_str() };
            panel = panel.with(Layer::points("published", points).published().over(over));
        }
        Some(panel)
    }

    /// Returns the published range of the plot's axis. `None` if none is published.
    fn axis_of(&self, plot: &Plot) -> Option<(f64, f64)> {
        self.published.value(plot.published.as_ref()?.get_ref())?.range()
    }

    /// Returns the published numbers at single points of a plot. The key is the name of the line
    /// that has the measured value of the point.
    fn theirs(
        &self,
        plot: &Plot,
        experiment: &Experiment,
        kept: &StoredResults,
        measure: &str,
    ) -> BTreeMap<String, Vec<(f64, f64)>> {
        let points = experiment.points();
        let along = plot.x.as_ref().map(|x| x.get_ref().as_str());
        let along = experiment.axes.iter().position(|axis| Some(axis.name()) == along);
        let shown = PlotContext { plot, experiment, kept, along: along.unwrap_or(0) };
        let meant = shown.points();
        let mut theirs: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for row in kept.rows.iter().filter(|row| is_plain(row)) {
            let value = self.published.value(&row.id);
            let Some(number) = value.and_then(Value::number) else { continue };
            let Some(title) = row.cells.strip_suffix(&format!(" {measure}")) else { continue };
            let found = points.iter().position(|point| experiment.title_of(point) == title);
            if let Some(index) = found.filter(|index| meant.contains(index)) {
                let name = shown.name(&points, index);
                theirs.entry(name).or_default().push((shown.x(&points[index]), number));
            }
        }
        theirs
    }

    /// Adds the assumptions, and their effects on the results, to the page.
    fn assumptions(&self, page: Page) -> Page {
        if self.published.assumed.is_empty() {
            return page;
        }
        let mut table =
            Table::new(["assumption", "value and reason", "other value", "effect on the results"]);
        for (experiment, kept) in &self.came {
            if experiment.sensitivity.is_some() {
                table = table.note(&format!("{}: {}.", experiment.title, kept.made));
            }
        }
        for assumed in &self.published.assumed {
            let mut is_first = true;
            for other in &assumed.vary {
                let name = format!("{}: {other}", assumed.id);
                let says = |text: &str| Cell::Text(if is_first { text } else { "" }.to_owned());
                let why_not = || assumed.not_varied.as_ref().map(|why| format!("not tried: {why}"));
                let then = self.effect(&name).or_else(why_not);
                let then = then.unwrap_or("not tried yet".to_owned());
                table = table.row([
                    says(&assumed.what),
                    says(&format!("{}: {}", assumed.value, assumed.why)),
                    Cell::Text(other.clone()),
                    Cell::Text(then),
                ]);
                is_first = false;
            }
        }
        page.section(&format!("What was assumed ({})", self.paper.name))
            .text(
                "One assumption is changed at a time. Costs are not calibrated again. The effect \
                 is the smallest and the largest change of each measure over all points, in \
                 percent of the measure's value without the change.",
            )
            .table(table)
    }

    /// Returns the effect of a changed assumption on numbers and verdicts. `None` if no run was
    /// made with the change.
    fn effect(&self, change: &str) -> Option<String> {
        let (experiment, kept) = self.came.iter().find(|(experiment, _)| {
            let axis = experiment.sensitivity.map(|axis| &experiment.axes[axis]);
            axis.is_some_and(|axis| axis.points.iter().any(|point| point.name() == change))
        })?;
        let axis = experiment.sensitivity?;
        let points = experiment.points();
        let mut moves = Vec::new();
        for measure in &experiment.measures {
            let mut range: Option<(f64, f64)> = None;
            for point in
                points.iter().filter(|p| experiment.axes[axis].points[p[axis]].name() == change)
            {
                let mut base = point.clone();
                base[axis] = 0;
                let stat = |point: &[usize]| {
                    let key = (experiment.title_of(point), measure.name().to_owned());
                    kept.stats.get(&key).map(|stat| stat.median)
                };
                let (Some(is), Some(was)) = (stat(point), stat(&base)) else { continue };
                if was == 0.0 {
                    continue;
                }
                let moved = (is / was - 1.0) * 100.0;
                let (low, high) = range.unwrap_or((moved, moved));
                range = Some((low.min(moved), high.max(moved)));
            }
            let (low, high) = range?;
            if low.abs().max(high.abs()) >= 1.0 {
                // `+ 0.0` turns a negative zero, from rounding, into zero.
                let (low, high) = (low.round() + 0.0, high.round() + 0.0);
                moves.push(format!("{} {low:+.0} to {high:+.0} %", measure.label()));
            }
        }
        if moves.is_empty() {
            moves.push("no measure changes by 1 % or more".to_owned());
        }
        Some(format!("{}; {}", moves.join(", "), changed_verdicts(kept, change)))
    }

    fn not_attempted(&self, page: Page) -> Page {
        let compared: Vec<&str> = self
            .came
            .iter()
            .flat_map(|(_, kept)| kept.rows.iter().map(|row| row.id.as_str()))
            .collect();
        let left = self.published.values.iter();
        let left: Vec<_> = left.filter(|value| !compared.contains(&value.id.as_str())).collect();
        if left.is_empty() {
            return page;
        }
        let mut table = Table::new(["what", "where", "published", "why"]);
        for value in left {
            let why = self.paper.why_not(&value.id);
            let why = why.unwrap_or("no experiment measures this value yet");
            table = table.row([
                Cell::Text(value.says.clone()),
                Cell::Text(value.from.clone()),
                Cell::Text(value.shown()),
                Cell::Text(why.to_owned()),
            ]);
        }
        page.section(&format!("Not attempted ({})", self.paper.name)).table(table)
    }
}

/// Part of an experiment that a plot shows.
struct PlotContext<'a> {
    plot: &'a Plot,
    experiment: &'a Experiment,
    kept: &'a StoredResults,
    /// Index of the experiment's axis along the x axis of the plot.
    along: usize,
}

impl PlotContext<'_> {
    fn points(&self) -> Vec<usize> {
        let at = self.plot.at.as_ref();
        let found = at.and_then(|at| self.experiment.points_of(at).ok());
        found.unwrap_or_else(|| (0..self.experiment.points().len()).collect())
    }

    fn x(&self, point: &[usize]) -> f64 {
        let place = point[self.along];
        self.experiment.axes[self.along].points[place].x.unwrap_or(place as f64)
    }

    /// Returns the statistics of a measure along the plot's x axis, by the names of the lines.
    fn stats(&self, measure: &str) -> Option<BTreeMap<String, Vec<(f64, OverSeeds)>>> {
        let points = self.experiment.points();
        let mut lines: BTreeMap<String, Vec<(f64, OverSeeds)>> = BTreeMap::new();
        for index in self.points() {
            let point = &points[index];
            let key = (self.experiment.title_of(point), measure.to_owned());
            let Some(stat) = self.kept.stats.get(&key) else { continue };
            let line = lines.entry(self.name(&points, index)).or_default();
            line.push((self.x(point), *stat));
        }
        (!lines.is_empty()).then_some(lines)
    }

    /// Returns the name of the line on which a point lies. It has the labels of the point on all
    /// other axes along which the points of the plot differ.
    fn name(&self, points: &[Vec<usize>], index: usize) -> String {
        let (point, meant) = (&points[index], self.points());
        let differ = |axis: usize| {
            meant.first().is_some_and(|&first| {
                meant.iter().any(|&other| points[other][axis] != points[first][axis])
            })
        };
        let others = self.experiment.axes.iter().zip(point).enumerate();
        let others = others.filter(|(axis, _)| *axis != self.along && differ(*axis));
        let labels = others.map(|(_, (axis, &place))| axis.points[place].label());
        labels.collect::<Vec<_>>().join(", ")
    }
}

/// Returns the plot of each domain's CPU time over time.
fn over_time(
    plot: &Plot,
    experiment: &Experiment,
    kept: &StoredResults,
) -> Option<slackline_html::Plot> {
    let points = experiment.points();
    let meant = PlotContext { plot, experiment, kept, along: 0 }.points();
    let title = experiment.title_of(&points[*meant.first()?]);
    let (window, lines) = kept.over_time.get(&(plot.title.clone(), title))?;
    let down = match plot.accumulated {
        true => Axis::linear("CPU time so far", "s"),
        false => Axis::linear("CPU", "%"),
    };
    let mut panel = slackline_html::Plot::new(Axis::linear("time", "s"), down.including(0.0));
    let marks = plot.mark.iter().filter_map(|mark| mark.parse::<Span>().ok());
    let marks: Vec<f64> = marks.map(|span| span.ns() as f64 / 1e9).collect();
    if let [from, to] = marks[..] {
        panel = panel.with(Layer::region_x("I/O", (from, to)));
    }
    let until = plot.until.as_ref().and_then(|until| until.get_ref().parse::<Span>().ok());
    let until = until.map_or(f64::INFINITY, |until| until.ns() as f64 / 1e9);
    let is_shown = |&(at, _): &(f64, f64)| at < until;
    for (name, parts) in lines {
        let now = parts.iter().enumerate().map(|(at, part)| (at as f64 * window, part * 100.0));
        panel = panel.with(match plot.accumulated {
            true => Layer::line(name, so_far(*window, parts).into_iter().take_while(is_shown)),
            false => Layer::steps(name, now.take_while(is_shown)),
        });
    }
    Some(panel)
}

/// Returns the accumulated CPU time at the end of each window, in seconds.
fn so_far(window: f64, parts: &[f64]) -> Vec<(f64, f64)> {
    let mut had = 0.0;
    let sum = |(index, part): (usize, &f64)| {
        had += part * window;
        ((index + 1) as f64 * window, had)
    };
    parts.iter().enumerate().map(sum).collect()
}

/// Returns the map of a measure over two axes, with the points for which there are results.
fn map(plot: &Plot, experiment: &Experiment, kept: &StoredResults) -> Option<slackline_html::Plot> {
    let measure = plot.measure.as_ref()?.get_ref();
    let spec = experiment.measures.iter().find(|one| one.name() == measure)?;
    let axis = |name: &Option<Spanned<String>>| {
        let name = name.as_ref()?.get_ref();
        experiment.axes.iter().position(|axis| axis.name() == name)
    };
    let (along, across) = (axis(&plot.x)?, axis(&plot.y)?);
    let points = experiment.points();
    let value = |index: usize| {
        let point = &points[index];
        let key = (experiment.title_of(point), measure.to_owned());
        kept.stats.get(&key).map(|stat| (point[along], point[across], stat.median))
    };
    let shown = PlotContext { plot, experiment, kept, along }.points();
    let values: Vec<(usize, usize, f64)> = shown.into_iter().filter_map(value).collect();
    let used = |pick: fn(&(usize, usize, f64)) -> usize| {
        values.iter().map(pick).collect::<BTreeSet<usize>>().into_iter().collect::<Vec<_>>()
    };
    let (columns, rows) = (used(|value| value.0), used(|value| value.1));
    let names = |axis: usize, label: &str, places: &[usize]| {
        let points = &experiment.axes[axis].points;
        Axis::names(label, places.iter().map(|&place| points[place].label()))
    };
    let label = |axis: usize| experiment.axes[axis].label.as_str();
    let most = values.iter().map(|value| value.2).fold(0.0, f64::max);
    let below =
        format!("{}; the darkest tile is {}", label(along), with_unit(&digits(most), &spec.unit));
    let nth = |places: &[usize], place| places.binary_search(&place).unwrap_or(0) as f64;
    let tiles = values.iter().map(|&(x, y, value)| (nth(&columns, x), nth(&rows, y), value));
    let unit = if spec.unit.is_empty() { "" } else { ", " };
    let name = format!("{}{unit}{}", spec.label(), spec.unit);
    let layer = Layer::tiles(name, tiles, plot.line);
    let (x, y) = (names(along, &below, &columns), names(across, label(across), &rows));
    Some(slackline_html::Plot::new(x, y).with(layer))
}

/// Returns true if the plot's x axis has more names than fit in half of the page.
fn has_many_names(plot: &Plot, experiment: &Experiment) -> bool {
    let along = plot.x.as_ref().map(|x| x.get_ref().as_str());
    let axis = experiment.axes.iter().find(|axis| Some(axis.name()) == along);
    axis.is_some_and(|axis| axis.points.len() > 6 && axis.points.iter().any(|p| p.x.is_none()))
}

/// Returns the effect of a changed assumption on the verdicts: the ids of the verdicts that
/// improve, and the number of the verdicts that get worse.
fn changed_verdicts(kept: &StoredResults, change: &str) -> String {
    let verdicts = |change: &str| {
        let rows = kept.rows.iter().filter(|row| row.change == change && !row.calibration);
        let rows = rows.filter(|row| row.verdict.is_comparison());
        rows.map(|row| (row.id.clone(), row.verdict)).collect::<BTreeMap<_, _>>()
    };
    let (was, is) = (verdicts(""), verdicts(change));
    let both = is.iter().filter_map(|(id, is)| Some((id, was.get(id)?, is)));
    let better: Vec<&str> =
        both.clone().filter(|(_, was, is)| is < was).map(|(id, ..)| id.as_str()).collect();
    let worse = both.filter(|(_, was, is)| is > was).count();
    let better = match better.is_empty() {
        true => "none improves".to_owned(),
        false => format!("these improve: {}", better.join(", ")),
    };
    match (better.as_str(), worse) {
        ("none improves", 0) => "no verdict changes".to_owned(),
        _ => format!("of {} verdicts {worse} get worse, {better}", is.len()),
    }
}

fn is_plain(row: &KeptRow) -> bool {
    row.change.is_empty()
}

fn verdict(verdict: Verdict) -> Cell {
    let says = verdict.to_string();
    match verdict {
        Verdict::Reproduced => Cell::Good(says),
        Verdict::SameShape => Cell::Fair(says),
        Verdict::Differs => Cell::Bad(says),
        Verdict::NothingToCompare | Verdict::NotAttempted => Cell::Text(says),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('*', "")
}

#[cfg(test)]
mod tests {
    use super::so_far;

    #[test]
    fn accumulated_cpu_time_is_plotted_at_each_window_end() {
        assert_eq!(so_far(0.5, &[1.0, 0.5, 0.0]), [(0.5, 0.5), (1.0, 0.75), (1.5, 0.75)]);
    }
}
