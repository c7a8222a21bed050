//! An experiment as a file says it: a scenario, what to vary, what to measure, what to draw, and
//! which published values it is held against. Everything is checked before anything runs.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use slackline_experiments::axes::{Axis, AxisPoint, Edit, points, title};
use slackline_units::Span;
use toml::Spanned;

use crate::comparison::{Group, Names, RowSpec};
use crate::error::{FileFault, PaperError};
use crate::source::Source;

/// How many seeds where the file does not say.
const SEEDS: u64 = 10;

/// An experiment.
#[derive(Debug)]
pub struct Experiment {
    /// The name of its file, without the ending.
    pub name: String,
    /// What it is about.
    pub title: String,
    /// The figures and tables that come of it: it can be asked for by these names too.
    pub figures: Vec<String>,
    /// Something was chosen for it with the published values in view: it explains them, and
    /// predicts nothing.
    pub explains: bool,
    /// Whether real processes play it on this machine.
    pub is_live: bool,
    /// How many seeds, from 1 on.
    pub seeds: u64,
    /// What is varied: the points are all combinations.
    pub axes: Vec<Axis>,
    /// The axis that holds one assumption changed at each point, the first being none of them.
    pub sensitivity: Option<usize>,
    /// What is measured.
    pub measures: Vec<Measure>,
    /// What is drawn.
    pub plots: Vec<Plot>,
    /// What is compared.
    pub groups: Vec<Group>,
    pub(crate) overrides: Vec<Override>,
    /// Points that cannot be admitted are left out instead of being a mistake.
    pub(crate) may_decline: bool,
    pub(crate) again: Option<Again>,
    pub(crate) quick: Option<Quick>,
    /// Whether only a part of the file is meant, so that comparisons may be of what is not there.
    pub(crate) is_quick: bool,
    pub(crate) source: Source,
    pub(crate) base: Source,
}

/// What is different where certain points meet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Override {
    /// The points, as in comparisons.
    pub(crate) at: Spanned<String>,
    /// Texts that stand for themselves in braces in what is set.
    #[serde(default, rename = "let")]
    lets: toml::Table,
    /// Values by their paths.
    #[serde(default)]
    set: toml::Table,
    /// Paths of numbers and lengths of time, and by how many percent of them to replace them.
    #[serde(default)]
    scale: toml::Table,
    /// Paths of what is taken out.
    #[serde(default)]
    unset: Vec<String>,
}

/// When a live run says nothing: it is made again.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Again {
    /// A metric of the machine, not of what is measured.
    pub(crate) metric: Spanned<String>,
    /// If it is above this.
    pub(crate) above: f64,
    /// So often at most; then the last one stands.
    pub(crate) times: u32,
}

/// What is less in the quick form.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quick {
    /// How many seeds.
    seeds: Option<u64>,
    /// By axis: the points that are left of it.
    #[serde(default)]
    only: BTreeMap<Spanned<String>, Vec<Spanned<String>>>,
    /// Values by their paths.
    #[serde(default)]
    set: toml::Table,
}

/// A number that is taken from each run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    name: Spanned<String>,
    /// What it is called in plots and tables; its name if empty.
    #[serde(default)]
    pub label: String,
    /// What it is, as a claim of a scenario would name it.
    pub(crate) metric: Spanned<String>,
    /// A metric or a number that is taken off it.
    pub(crate) minus: Option<Spanned<String>>,
    /// How much of it.
    #[serde(default = "one")]
    pub(crate) each: f64,
    /// A metric or a number that it is divided by, or `second`.
    pub(crate) per: Option<Spanned<String>>,
    /// What is added to that.
    #[serde(default)]
    pub(crate) plus: f64,
    /// What it is multiplied by then.
    #[serde(default = "one")]
    pub(crate) times: f64,
    /// Its unit, for people; `%`, `ms` and `us` also say how it is shown.
    #[serde(default)]
    pub unit: String,
    /// From when on; the warm-up if none.
    pub(crate) from: Option<Spanned<String>>,
    /// Until when; the end if none.
    pub(crate) to: Option<Spanned<String>>,
}

fn one() -> f64 {
    1.0
}

/// Something to draw.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// What stands above it.
    pub title: String,
    pub(crate) measure: Option<Spanned<String>>,
    /// The axis along which it is drawn.
    pub(crate) x: Option<Spanned<String>>,
    /// The axis across, if it is drawn as a map.
    pub(crate) y: Option<Spanned<String>>,
    /// The value above which a map has a line around.
    #[serde(default)]
    pub(crate) line: f64,
    /// The points that it is about, as in comparisons; all if none.
    pub(crate) at: Option<Spanned<Names>>,
    /// The published range of its axis.
    pub(crate) published: Option<Spanned<String>>,
    /// Instead of a measure: the CPU of each domain in windows of this length.
    pub(crate) over_time: Option<Spanned<String>>,
    /// Where such a plot ends; at the end of the run if none.
    pub(crate) until: Option<Spanned<String>>,
    /// Whether such a plot shows what each has had so far, in place of what it has just now.
    #[serde(default)]
    pub(crate) accumulated: bool,
    /// What part of the time is marked.
    #[serde(default)]
    pub(crate) mark: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
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
    again: Option<Again>,
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
    /// Reads `NAME.toml` of a paper's folder, and the scenario it is about.
    ///
    /// # Errors
    /// When a file cannot be read, or says something wrong.
    pub fn read(folder: &Path, name: &str) -> Result<Experiment, PaperError> {
        let source = Source::read(&folder.join(format!("{name}.toml")))?;
        let file: File = source.parse()?;
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

    /// The same in its quick form, as far as its file has one.
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

    /// Whether what comes of it was not known before: nothing was chosen in view of it, and it is
    /// no variation of what came before.
    #[must_use]
    pub fn predicts(&self) -> bool {
        !self.explains && self.sensitivity.is_none()
    }

    /// The points of the experiment: for each, a place on every axis, the last varying fastest.
    #[must_use]
    pub fn points(&self) -> Vec<Vec<usize>> {
        points(&self.axes)
    }

    /// What a point is called: the names of its places, `bvt-5ms/1`.
    #[must_use]
    pub fn title_of(&self, point: &[usize]) -> String {
        if self.axes.is_empty() { "the scenario".to_owned() } else { title(&self.axes, point) }
    }

    /// The points that a text like `bvt-5ms/*` means, by number.
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

    /// The points that several such texts mean, one after the other.
    pub(crate) fn points_of(&self, texts: &Spanned<Names>) -> Result<Vec<usize>, PaperError> {
        Ok(self.points_by_text(texts)?.concat())
    }

    /// The points that each of several such texts means.
    pub(crate) fn points_by_text(
        &self,
        texts: &Spanned<Names>,
    ) -> Result<Vec<Vec<usize>>, PaperError> {
        texts.get_ref().all().into_iter().map(|text| self.points_at(texts, text)).collect()
    }

    /// The place of a measure among the measures.
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

    /// What a comparison is about: points and measures, all with all, by number.
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

    /// The measures that a comparison is about.
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

fn sensitivity_name(file: &File) -> Option<&str> {
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
    /// What it is called in the file.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.get_ref()
    }

    /// What it is called in plots and tables.
    #[must_use]
    pub fn label(&self) -> &str {
        if self.label.is_empty() { self.name() } else { &self.label }
    }

    /// From when to when it counts, as far as the file says so.
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
    /// The length of the windows of a plot over time.
    pub(crate) fn over_time_window(&self, source: &Source) -> Result<Option<Span>, PaperError> {
        self.over_time.as_ref().map(|text| span(source, text)).transpose()
    }
}
