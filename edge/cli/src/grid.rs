//! Scenario files: a single scenario, or a grid. A grid has `[[axis]]` tables. Each combination of
//! one value per axis is a point, and each point is a scenario.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use slackline_experiments::axes::{Axis, as_it_became, edits, last_place, points, title, vary};
use slackline_scenario::{NotAdmitted, Scenario, ScenarioError};
use slackline_units::Span;
use toml::{Spanned, Table, Value};

use crate::input::{self, Source};
use crate::places::Places;
use crate::problem::Problem;

/// Maximum number of points of a grid.
const MOST_POINTS: usize = 10_000;

/// Contents of a scenario file.
pub(crate) enum Input {
    /// A scenario without axes.
    One(Box<Scenario>),
    /// A scenario with axes, which has one scenario for each of its points.
    Grid(Grid),
}

/// Reads a scenario without axes and the files that it names. Fails if one of these files is also
/// an output.
pub(crate) fn scenario(
    file: &Path,
    length: Option<Span>,
    places: &Places,
) -> Result<Scenario, Problem> {
    match read(file, length, places)? {
        Input::One(scenario) => Ok(*scenario),
        Input::Grid(grid) => Err(Problem::BadOption {
            message: format!(
                "cannot run {}: its axes have {} points, and this command runs one scenario \
                 without axes",
                file.display(),
                grid.points.len()
            ),
            hint: Some("use `slackline sim`, `compare`, `check` or `sweep`".into()),
        }),
    }
}

/// Reads a scenario file, with or without axes.
pub(crate) fn read(file: &Path, length: Option<Span>, places: &Places) -> Result<Input, Problem> {
    places.read("the scenario", file)?;
    let text = input::text(file)?;
    if let Some((line, column)) = family_at(&text) {
        return Err(Problem::BadAxis {
            file: file.into(),
            line,
            column,
            message: "the file describes a family of random hosts, not one scenario".into(),
            hint: Some("use `slackline sweep`".into()),
        });
    }
    let source = Source { file, places, length, sums: None };
    match Grid::read(&source, &text)? {
        Some(grid) => Ok(Input::Grid(grid)),
        None => {
            let scenario = source.scenario(&text);
            let error = |error| Problem::Scenario { file: file.into(), error };
            let scenario = source.checked(scenario.map_err(error)??)?;
            Ok(Input::One(Box::new(scenario)))
        }
    }
}

/// A scenario with axes, and the points of its grid.
pub(crate) struct Grid {
    pub(crate) axes: Vec<Axis>,
    /// Points of the grid, in which the value on the last axis varies fastest.
    pub(crate) points: Vec<Point>,
}

/// The scenario at one point of the grid.
pub(crate) struct Point {
    /// Names of the point's values on the axes, joined by slashes.
    pub(crate) name: String,
    /// Index of the point's value on each axis.
    pub(crate) place: Vec<usize>,
    /// Line and column in the file of the point's value on the last axis.
    pub(crate) at: (usize, usize),
    pub(crate) scenario: Scenario,
}

impl Point {
    /// Returns an error about the scenario of this point. The error's position in the file is the
    /// position of the point's value on the last axis.
    pub(crate) fn wrong(&self, file: &Path, what: &str, hint: &str) -> Problem {
        let ((line, column), hint) = (self.at, Some(hint.into()));
        let message = format!("at point `{}`: {what}", self.name);
        Problem::BadAxis { file: file.into(), line, column, message, hint }
    }

    /// Checks that the scenario of this point passes admission.
    pub(crate) fn admitted(&self, file: &Path, scenario: &Scenario) -> Result<(), Problem> {
        match scenario.admit() {
            Err(error @ NotAdmitted::Declined(_)) => {
                Err(self.wrong(file, &error.to_string(), "reserve less at this point"))
            }
            Err(error) => Err(Problem::of_sim(file, scenario, error.into())),
            Ok(()) => Ok(()),
        }
    }
}

/// Axes of a scenario, parsed from its file.
#[derive(Deserialize)]
struct Axes {
    axis: Vec<Axis>,
}

/// Claims of a scenario, with their positions in its file.
#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    claim: Vec<Spanned<Value>>,
}

/// A scenario with axes: the axes, and the TOML of the scenario at each point.
pub(crate) struct VariedScenario {
    pub(crate) axes: Vec<Axis>,
    /// Points of the grid, in which the value on the last axis varies fastest.
    pub(crate) points: Vec<VariedPoint>,
}

/// The TOML of a scenario at one point.
pub(crate) struct VariedPoint {
    pub(crate) name: String,
    pub(crate) place: Vec<usize>,
    /// Line and column in the file of the point's value on the last axis.
    pub(crate) at: (usize, usize),
    pub(crate) table: Table,
}

impl VariedPoint {
    /// Returns an error about this point. The error's position in the file is the position of the
    /// point's value on the last axis.
    pub(crate) fn wrong(&self, file: &Path, message: &str, hint: Option<String>) -> Problem {
        let (line, column) = self.at;
        let message = format!("at point `{}`: {message}", self.name);
        Problem::BadAxis { file: file.into(), line, column, message, hint }
    }
}

impl VariedScenario {
    /// Parses a scenario with axes. `None` if the scenario has no axes. Also `None` if the text is
    /// not TOML, because the parser of scenarios reports that error.
    pub(crate) fn read(file: &Path, text: &str) -> Result<Option<VariedScenario>, Problem> {
        if !text.contains("axis") {
            return Ok(None);
        }
        let Ok(mut table) = text.parse::<Table>() else { return Ok(None) };
        if table.remove("axis").is_none() {
            return Ok(None);
        }
        let bad = |span: Range<usize>, message: String, hint: &str| {
            let (line, column) = position(text, span.start);
            let (file, hint) = (file.into(), Some(hint.into()));
            Problem::BadAxis { file, line, column, message, hint }
        };
        let Axes { axis: axes } = toml::from_str(text).map_err(|error| {
            let message =
                error.message().lines().next().unwrap_or("the axis is not a table").to_owned();
            bad(
                error.span().unwrap_or(0..0),
                message,
                "see the example in `slackline help scenario`",
            )
        })?;
        check_names(&axes, &bad)?;
        let count = axes.iter().map(|axis| axis.points.len()).product::<usize>();
        if !(1..=MOST_POINTS).contains(&count) {
            let message =
                format!("the axes have {count} points together; 1 to {MOST_POINTS} are allowed");
            let hint = "write at least one point per axis, and fewer points in total";
            return Err(bad(axes[0].name.span(), message, hint));
        }
        let point = |place: Vec<usize>| {
            let at = position(text, last_place(&axes, &place).start);
            let name = title(&axes, &place);
            let mut point = VariedPoint { name, place, at, table: table.clone() };
            let edits: Vec<_> = edits(&axes, &point.place).collect();
            let varied = vary(&mut point.table, &edits);
            varied.map_err(|unfit| point.wrong(file, &unfit.to_string(), Some(unfit.hint())))?;
            Ok(point)
        };
        let points = points(&axes).into_iter().map(point).collect::<Result<_, Problem>>()?;
        Ok(Some(VariedScenario { axes, points }))
    }
}

impl Grid {
    /// Parses a scenario with axes. `None` if the scenario has no axes. Also `None` if the text is
    /// not TOML, because the parser of scenarios reports that error.
    pub(crate) fn read(source: &Source<'_>, text: &str) -> Result<Option<Grid>, Problem> {
        let Some(VariedScenario { axes, points }) = VariedScenario::read(source.file, text)? else {
            return Ok(None);
        };
        let lines = claim_lines(text);
        let point = |point: VariedPoint| {
            let varied = point.table.to_string();
            let wrong = |error: ScenarioError| {
                point.wrong(source.file, &as_it_became(&varied, &error), error.hint())
            };
            let mut scenario = source.scenario(&varied).map_err(wrong)??;
            // Claims keep the line numbers of the file.
            for (claim, &line) in scenario.claims.iter_mut().zip(&lines) {
                claim.line = line;
            }
            let scenario = source.checked(scenario)?;
            let VariedPoint { name, place, at, .. } = point;
            Ok(Point { at, name, place, scenario })
        };
        let points = points.into_iter().map(point).collect::<Result<_, Problem>>()?;
        Ok(Some(Grid { points, axes }))
    }

    /// Returns the name of each axis, with the name of the value that the point has on this axis.
    pub(crate) fn point(&self, place: &[usize]) -> Vec<(String, String)> {
        let name = |(axis, &place): (&Axis, &usize)| {
            (axis.name().to_owned(), axis.points[place].name().to_owned())
        };
        self.axes.iter().zip(place).map(name).collect()
    }
}

/// Refuses two axes with the same name, and two points of an axis with the same name.
fn check_names(
    axes: &[Axis],
    bad: &impl Fn(Range<usize>, String, &str) -> Problem,
) -> Result<(), Problem> {
    let twice = |names: &[&Spanned<String>], what: &str| {
        let second = (1..names.len())
            .find(|&at| names[..at].iter().any(|name| name.get_ref() == names[at].get_ref()));
        second.map_or(Ok(()), |at| {
            let message = format!("there is another {what} called `{}`", names[at].get_ref());
            Err(bad(names[at].span(), message, "give one of them another name"))
        })
    };
    twice(&axes.iter().map(|axis| &axis.name).collect::<Vec<_>>(), "axis")?;
    axes.iter().try_for_each(|axis| {
        twice(&axis.points.iter().map(|point| &point.name).collect::<Vec<_>>(), "point")
    })
}

/// Returns the line and column of an offset in a text. Both are counted from 1.
pub(crate) fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or("");
    let last = before.rsplit('\n').next().unwrap_or("");
    (before.matches('\n').count() + 1, last.chars().count() + 1)
}

/// Returns the line and column of the table `[family]` in a text. `None` if the text has no such
/// table.
fn family_at(text: &str) -> Option<(usize, usize)> {
    #[derive(Deserialize)]
    struct Whole {
        family: Spanned<Value>,
    }
    let is_there = text.contains("family");
    let whole = is_there.then(|| toml::from_str(text).ok()).flatten();
    whole.map(|Whole { family }| position(text, family.span().start))
}

/// Returns the line of each claim of a scenario.
fn claim_lines(text: &str) -> Vec<usize> {
    let claims = toml::from_str(text).map_or(Vec::new(), |Claims { claim }| claim);
    claims.iter().map(|claim| position(text, claim.span().start).0).collect()
}
