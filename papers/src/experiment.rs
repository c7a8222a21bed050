//! Experiments as their files declare them: a scenario, axes to vary, measures, plots, and
//! comparisons with published values. Everything is checked before a run.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use slackline_experiments::axes::{Axis, AxisPoint, Edit, points, title};
use slackline_units::Span;
use toml::Spanned;

use crate::comparison::{Group, Names, RowSpec};
use crate::error::{FileFault, PaperError};
use crate::source::Source;

/// Number of seeds if the file sets none.
const SEEDS: u64 = 10;

/// An experiment, as read and checked.
#[derive(Debug)]
pub struct Experiment {
    /// Name of the experiment's file, without the suffix.
    pub name: String,
    /// Subject of the experiment.
    pub title: String,
    /// Names of the figures and tables that the experiment reproduces. Users can select the
    /// experiment by each of these names, as well as by its own name.
    pub figures: Vec<String>,
    /// True if a parameter was chosen so that published values are met. The experiment then
    /// explains these values, but does not predict them.
    pub explains: bool,
    /// True if the experiment runs with real processes on a live host.
    pub is_live: bool,
    /// Number of seeds. The seeds are 1, 2 and so on.
    pub seeds: u64,
    /// Axes along which the scenario is varied. Each combination of axis values is a point of the
    /// experiment.
    pub axes: Vec<Axis>,
    /// Index of the axis of assumptions: each point of the axis changes one assumption. The one
    /// exception is the first point, which changes no assumption. `None` if there is no such axis.
    pub sensitivity: Option<usize>,
    /// Measures that are taken from each run.
    pub measures: Vec<Measure>,
    /// Plots of the results.
    pub plots: Vec<Plot>,
    /// Groups of comparisons with published values.
    pub groups: Vec<Group>,
    pub(crate) overrides: Vec<Override>,
    /// True if points that admission refuses are left out. If false, they are errors.
    pub(crate) may_decline: bool,
    pub(crate) again: Option<RepeatRule>,
    pub(crate) quick: Option<Quick>,
    /// True if this is the quick form of the experiment. Comparisons can then refer to points that
    /// the quick form leaves out.
    pub(crate) is_quick: bool,
    pub(crate) source: Source,
    pub(crate) base: Source,
}

/// Changes of the scenario at some of the points.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Override {
    /// Points of the experiment to which the changes apply. The points are written as in a
    /// comparison with published values, such as `bvt-50ms/1`.
    pub(crate) at: Spanned<String>,
    /// Variables. Wherever `set` contains the name of a variable in braces, that name is replaced
    /// by the text of the variable.
    #[serde(default, rename = "let")]
    lets: toml::Table,
    /// New values in the scenario. The key is the path of the value.
    #[serde(default)]
    set: toml::Table,
    /// Percentages to which numbers and durations are scaled: 50% halves a value. The key is the
    /// path of the value.
    #[serde(default)]
    scale: toml::Table,
    /// Paths of the values that are removed from the scenario.
    #[serde(default)]
    unset: Vec<String>,
}

/// Condition under which a live run is invalid and is repeated.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RepeatRule {
    /// Metric that shows a disturbance of the host.
    pub(crate) metric: Spanned<String>,
    /// Value of the metric above which a run is invalid.
    pub(crate) above: f64,
    /// Maximum number of repetitions. The last run counts even if it is invalid.
    pub(crate) times: u32,
}

/// Changes that make the quick form of an experiment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quick {
    /// Number of seeds in the quick form. If `None`, the quick form has as many seeds as the full
    /// experiment.
    seeds: Option<u64>,
    /// Points that the quick form keeps, by axis. All points of other axes are kept.
    #[serde(default)]
    only: BTreeMap<Spanned<String>, Vec<Spanned<String>>>,
    /// New values in the scenario of the quick form. The key is the path of the value.
    #[serde(default)]
    set: toml::Table,
}

/// A measure: a number that is computed from each run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    name: Spanned<String>,
    /// Name of the measure in plots and tables. If empty, plots and tables show the name in the
    /// file.
    #[serde(default)]
    pub label: String,
    /// Metric on which the measure is based, written as in a claim, such as `delivered of dom2`.
    pub(crate) metric: Spanned<String>,
    /// Metric or number that is subtracted from the field `metric`.
    pub(crate) minus: Option<Spanned<String>>,
    /// Factor by which `minus` is multiplied before it is subtracted from `metric`.
    #[serde(default = "one")]
    pub(crate) each: f64,
    /// Metric or number by which the difference of `metric` and `minus` is divided. `second` stands
    /// for the length of the measured window in seconds.
    pub(crate) per: Option<Spanned<String>>,
    /// Number that is added after the division.
    #[serde(default)]
    pub(crate) plus: f64,
    /// Factor by which the result is multiplied after the addition.
    #[serde(default = "one")]
    pub(crate) times: f64,
    /// Unit of the measure for readers. If it is `%`, `ms` or `us`, the value is scaled to that
    /// unit.
    #[serde(default)]
    pub unit: String,
    /// Start of the measured window of the run. If `None`, the window starts after the warm-up.
    pub(crate) from: Option<Spanned<String>>,
    /// End of the measured window of the run. If `None`, the window lasts until the run ends.
    pub(crate) to: Option<Spanned<String>>,
}

fn one() -> f64 {
    1.0
}

/// A plot of the results.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// Title of the plot.
    pub title: String,
    pub(crate) measure: Option<Spanned<String>>,
    /// Name of the experiment's axis along the x axis of the plot.
    pub(crate) x: Option<Spanned<String>>,
    /// Name of the experiment's axis along the y axis of a map. `None` if the plot is not a map.
    pub(crate) y: Option<Spanned<String>>,
    /// Value of the line in a map: the line separates tiles above this value from other tiles.
    #[serde(default)]
    pub(crate) line: f64,
    /// Points that the plot shows, written as in the key `at` of a comparison. `None` if the plot
    /// shows all points.
    pub(crate) at: Option<Spanned<Names>>,
    /// Id of the published range of the plot's axis.
    pub(crate) published: Option<Spanned<String>>,
    /// Length of a time window in a plot over time, which shows each domain's CPU time per window.
    /// If `None`, the plot shows a measure.
    pub(crate) over_time: Option<Spanned<String>>,
    /// End of a plot over time. If `None`, the plot lasts until the run ends.
    pub(crate) until: Option<Spanned<String>>,
    /// True if a plot over time shows the accumulated CPU time, and not the CPU time in each
    /// window.
    #[serde(default)]
    pub(crate) accumulated: bool,
    /// Start and end of an interval that is marked in a plot over time.
    #[serde(default)]
    pub(crate) mark: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExperimentFile {
    title: String,
    #[serde(default)]
    figures: Vec<String>,
    #[serde(default)]
    explains: bool,
    #[serde(default)]
    live: bool,
    scenario: Spanned<String>,
    seeds: Option<u64>,
    #[serde(default)]
    may_decline: bool,
    again: Option<RepeatRule>,
    quick: Option<Quick>,
    #[serde(default)]
    axis: Vec<Axis>,
    sensitivity: Option<Spanned<String>>,
    #[serde(default, rename = "override")]
    overrides: Vec<Override>,
    #[serde(default)]
    measure: Vec<Measure>,
    #[serde(default)]
    plot: Vec<Plot>,
    #[serde(default)]
    compare: Vec<Group>,
}

impl Experiment {
    /// Reads `NAME.toml` of a paper's folder, and the scenario of the experiment.
    ///
    /// # Errors
    /// If a file cannot be read or is faulty.
    pub fn read(folder: &Path, name: &str) -> Result<Experiment, PaperError> {
        let source = Source::read(&folder.join(format!("{name}.toml")))?;
        let file: ExperimentFile = source.parse()?;
        let base = Source::read(&folder.join(file.scenario.get_ref())).map_err(|_| {
            let known = scenarios(folder);
            source.unknown(&file.scenario, "scenario", known)
        })?;
        let is_axis = |axis: &Axis| Some(axis.name()) == sensitivity_name(&file);
        let sensitivity = file.axis.iter().position(is_axis);
        if let (Some(name), None) = (&file.sensitivity, sensitivity) {
            return Err(source.unknown(name, "axis", names(&file.axis, Axis::name)));
        }
        let experiment = Experiment {
            name: name.to_owned(),
            title: file.title,
            figures: file.figures,
            explains: file.explains,
            is_live: file.live,
            seeds: file.seeds.unwrap_or(SEEDS).max(1),
            axes: file.axis,
            sensitivity,
            measures: file.measure,
            plots: file.plot,
            groups: file.compare,
            overrides: file.overrides,
            may_decline: file.may_decline,
            again: file.again,
            quick: file.quick,
            is_quick: false,
            source,
            base,
        };
        experiment.check()?;
        Ok(experiment)
    }

    /// Returns true if the experiment's file has a quick form.
    #[must_use]
    pub fn has_quick_form(&self) -> bool {
        self.quick.is_some()
    }

    /// Returns the quick form of the experiment. Returns the experiment unchanged if it has no
    /// quick form.
    #[must_use]
    pub fn quick(mut self) -> Experiment {
        let Some(quick) = &self.quick else { return self };
        self.seeds = quick.seeds.map_or(self.seeds, |seeds| seeds.max(1));
        for axis in &mut self.axes {
            let Some(only) = quick.only.iter().find(|(name, _)| *name.get_ref() == axis.name())
            else {
                continue;
            };
            let is_left =
                |point: &AxisPoint| only.1.iter().any(|left| left.get_ref() == point.name());
            axis.points.retain(is_left);
        }
        self.is_quick = true;
        self
    }

    fn check_quick(&self, quick: &Quick) -> Result<(), PaperError> {
        for (name, only) in &quick.only {
            let axis = self.axes.iter().find(|axis| axis.name() == name.get_ref());
            let Some(axis) = axis else {
                return Err(self.source.unknown(name, "axis", names(&self.axes, Axis::name)));
            };
            for point in only {
                if !axis.points.iter().any(|other| other.name() == point.get_ref()) {
                    let known = names(&axis.points, AxisPoint::name);
                    return Err(self.source.unknown(point, "point", known));
                }
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), PaperError> {
        let source = &self.source;
        source.once("axis", self.axes.iter().map(|axis| &axis.name))?;
        source.once("measure", self.measures.iter().map(|measure| &measure.name))?;
        for axis in &self.axes {
            source.once("point", axis.points.iter().map(|point| &point.name))?;
        }
        for other in &self.overrides {
            self.points_at(&other.at, other.at.get_ref())?;
        }
        if let Some(quick) = &self.quick {
            self.check_quick(quick)?;
        }
        for measure in &self.measures {
            measure.window(source)?;
        }
        for plot in &self.plots {
            self.check_plot(plot)?;
        }
        for group in &self.groups {
            group.tolerance_in(source)?;
            for row in &group.rows {
                self.cells(group, row)?;
                row.tolerance_in(source)?;
                if let Some(against) = &row.against {
                    self.points_of(against)?;
                }
                if let Some(measure) = &row.against_measure {
                    self.measure_called(measure, measure.get_ref())?;
                }
            }
        }
        Ok(())
    }

    fn check_plot(&self, plot: &Plot) -> Result<(), PaperError> {
        if let Some(at) = &plot.at {
            self.points_of(at)?;
        }
        for length in [&plot.over_time, &plot.until].into_iter().flatten() {
            span(&self.source, length)?;
        }
        if let Some(measure) = &plot.measure {
            self.measure_called(measure, measure.get_ref())?;
        }
        for axis in [&plot.x, &plot.y].into_iter().flatten() {
            if !self.axes.iter().any(|other| other.name() == axis.get_ref()) {
                return Err(self.source.unknown(axis, "axis", names(&self.axes, Axis::name)));
            }
        }
        Ok(())
    }

    /// Returns true if the experiment predicts published values. An experiment does not predict
    /// them if a parameter was chosen to meet them, or if the experiment varies assumptions about
    /// facts that the paper does not state.
    #[must_use]
    pub fn predicts(&self) -> bool {
        !self.explains && self.sensitivity.is_none()
    }

    /// Returns the points of the experiment. Each point has an index on every axis. The index on
    /// the last axis varies fastest.
    #[must_use]
    pub fn points(&self) -> Vec<Vec<usize>> {
        points(&self.axes)
    }

    /// Returns the title of a point: the names of its axis values, such as `bvt-5ms/1`.
    #[must_use]
    pub fn title_of(&self, point: &[usize]) -> String {
        if self.axes.is_empty() { "the scenario".to_owned() } else { title(&self.axes, point) }
    }

    /// Returns the indexes of the points that a text such as `bvt-5ms/*` selects.
    pub(crate) fn points_at<T>(
        &self,
        place: &Spanned<T>,
        text: &str,
    ) -> Result<Vec<usize>, PaperError> {
        let parts: Vec<&str> = text.split('/').map(str::trim).collect();
        let fault = |kind| Err(self.source.fault(&place.span(), kind));
        if parts.len() != self.axes.len() && text != "*" {
            let (written, what) = (text.to_owned(), "point of this experiment");
            return fault(FileFault::NotA {
                written,
                what,
                example: "a name for each axis: `a/b`",
            });
        }
        for (axis, part) in self.axes.iter().zip(&parts).filter(|_| text != "*") {
            let known = names(&axis.points, AxisPoint::name);
            if *part != "*" && !known.iter().any(|name| name == part) {
                if self.is_quick {
                    return Ok(Vec::new());
                }
                let name = (*part).to_owned();
                return fault(FileFault::Unknown { what: "point", name, known });
            }
        }
        let points = self.points();
        let is_meant = |point: &Vec<usize>| {
            text == "*"
                || self.axes.iter().zip(point).zip(&parts).all(|((axis, &place), part)| {
                    *part == "*" || axis.points[place].name() == *part
                })
        };
        Ok((0..points.len()).filter(|&index| is_meant(&points[index])).collect())
    }

    /// Returns the points that several texts such as `bvt-5ms/*` select, in the order of the texts.
    pub(crate) fn points_of(&self, texts: &Spanned<Names>) -> Result<Vec<usize>, PaperError> {
        Ok(self.points_by_text(texts)?.concat())
    }

    /// Returns for each of several texts such as `bvt-5ms/*` the points that it selects.
    pub(crate) fn points_by_text(
        &self,
        texts: &Spanned<Names>,
    ) -> Result<Vec<Vec<usize>>, PaperError> {
        texts.get_ref().all().into_iter().map(|text| self.points_at(texts, text)).collect()
    }

    /// Returns the index of the measure with this name.
    pub(crate) fn measure_called<T>(
        &self,
        place: &Spanned<T>,
        name: &str,
    ) -> Result<usize, PaperError> {
        let found = self.measures.iter().position(|measure| measure.name() == name);
        found.ok_or_else(|| {
            let known = names(&self.measures, Measure::name);
            let (name, what) = (name.to_owned(), "measure");
            self.source.fault(&place.span(), FileFault::Unknown { what, name, known })
        })
    }

    /// Returns the cells of a comparison: every combination of its points and measures, by index.
    pub(crate) fn cells(
        &self,
        group: &Group,
        row: &RowSpec,
    ) -> Result<Vec<(usize, usize)>, PaperError> {
        let measures = self.measures_of(group, row)?;
        let mut cells = Vec::new();
        for point in self.points_of(&row.at)? {
            cells.extend(measures.iter().map(|&measure| (point, measure)));
        }
        Ok(cells)
    }

    /// Returns the indexes of the measures of a comparison.
    pub(crate) fn measures_of(
        &self,
        group: &Group,
        row: &RowSpec,
    ) -> Result<Vec<usize>, PaperError> {
        match (&row.measure, &group.measure) {
            (Some(own), _) => {
                let all = own.get_ref().all();
                all.into_iter().map(|name| self.measure_called(own, name)).collect()
            }
            (None, Some(shared)) => {
                self.measure_called(shared, shared.get_ref()).map(|measure| vec![measure])
            }
            (None, None) => {
                let (place, key) = ("a comparison", "measure");
                let fault = FileFault::Missing { place, key, example: "measure = \"throughput\"" };
                Err(self.source.fault(&row.published.span(), fault))
            }
        }
    }
}

fn sensitivity_name(file: &ExperimentFile) -> Option<&str> {
    file.sensitivity.as_ref().map(|name| name.get_ref().as_str())
}

fn scenarios(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".toml")).collect();
    names.sort();
    names
}

pub(crate) fn names<T>(of: &[T], name: fn(&T) -> &str) -> Vec<String> {
    of.iter().map(|thing| name(thing).to_owned()).collect()
}

fn span(source: &Source, text: &Spanned<String>) -> Result<Span, PaperError> {
    text.get_ref().parse().map_err(|_| {
        let (written, what) = (text.get_ref().clone(), "length of time");
        source.fault(&text.span(), FileFault::NotA { written, what, example: "`4ms` or `2s`" })
    })
}

impl Quick {
    pub(crate) fn set(&self) -> &toml::Table {
        &self.set
    }
}

impl Override {
    pub(crate) fn edit(&self) -> Edit<'_> {
        let Override { lets, set, scale, unset, .. } = self;
        Edit { lets, set, scale, unset }
    }
}

impl Measure {
    /// Returns the name of the measure in the file.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.get_ref()
    }

    /// Returns the name of the measure for plots and tables.
    #[must_use]
    pub fn label(&self) -> &str {
        if self.label.is_empty() { self.name() } else { &self.label }
    }

    /// Returns the start and the end of the measured window. Each is `None` if the file does not
    /// set it.
    pub(crate) fn window(
        &self,
        source: &Source,
    ) -> Result<(Option<Span>, Option<Span>), PaperError> {
        let read = |text: &Option<Spanned<String>>| {
            text.as_ref().map(|text| span(source, text)).transpose()
        };
        Ok((read(&self.from)?, read(&self.to)?))
    }
}

impl Plot {
    /// Returns the length of the windows of a plot over time. `None` if the plot is not over time.
    pub(crate) fn over_time_window(&self, source: &Source) -> Result<Option<Span>, PaperError> {
        self.over_time.as_ref().map(|text| span(source, text)).transpose()
    }
}
