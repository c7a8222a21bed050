//! Comparison of results with published values. Only this module reads both results and published
//! values. "Our" values are the measured values.
//!
//! The verdicts:
//! - *reproduced*: our value is within the tolerance that the experiment declares. If the published
//!   value can be read only with a larger error, that error is the tolerance. A finding without a
//!   number is reproduced if our results have it too. Two kinds of values have at best the *same
//!   shape*: a finding that states a direction but no size, and a number that is off by more than
//!   25 %, unless its tolerance is in points.
//! - *same shape*: our value is not within the tolerance, but the order agrees. If two published
//!   values of the group differ by more than the tolerance, our values have the same order. If two
//!   points are compared, the point that is higher in the paper is higher in our results too. If
//!   the paper states their difference, our difference is between half and twice the published
//!   difference.
//! - *same shape* for a series of which only the order has a meaning: Spearman's rank correlation
//!   is at least 0.8.
//! - *differs*: our value is neither reproduced nor of the same shape.
//! - *nothing to compare*: agreement would prove nothing, for one of two reasons. Only the range of
//!   the published plot's axis is known, or the test is `alike` or `same` and all values are zero.
//!   Such a row does not count for its group, and a summary lists it separately.
//! - *not attempted*: no experiment compares the value, or its quick form leaves out a point of the
//!   row.
//!
//! Rows from which costs were calibrated are marked, and count only for the order. A group has the
//! verdict of its worst row.

mod finding;

use std::fmt;

use slackline_experiments::OverSeeds;
use toml::Spanned;

use crate::comparison::{End, Group, Names, Reach, RowSpec, Test};
use crate::error::{FileFault, PaperError};
use crate::experiment::Experiment;
use crate::numbers::{digits, with_unit};
use crate::published::{PrintedValue, PublishedValues, Value};
use crate::run::Results;
use crate::statistics::{largest, mean, reach};
use crate::tolerance::Tolerance;
use finding::{all_near, finding, inside, number, ranked, unknown};

/// Verdict of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The measured value is within the tolerance.
    Reproduced,
    /// Order and direction agree. The sizes do not agree, or no sizes are published.
    SameShape,
    /// Neither the size nor the order agrees.
    Differs,
    /// Agreement would prove nothing: only the range of a plot's axis is published, or all of our
    /// values are zero.
    NothingToCompare,
    /// No experiment compares the value.
    NotAttempted,
}

/// One comparison with its verdict.
#[derive(Clone, Debug)]
pub struct ComparisonRow {
    /// Id of the published value.
    pub id: String,
    /// Description of the value in words.
    pub says: String,
    /// Table, figure or section of the paper, and page.
    pub from: String,
    /// Published value as printed, with its unit.
    pub published: String,
    /// Measured value with its unit, and its range over the seeds.
    pub ours: String,
    /// Relative error of the measured median in percent. `None` if the published value is zero or
    /// not a number.
    pub error: Option<f64>,
    /// Indexes of the points and measures from which the value was taken. Empty if two points are
    /// compared.
    pub cells: Vec<(usize, usize)>,
    /// Verdict of the comparison.
    pub verdict: Verdict,
    /// Reason for the verdict, in a sentence.
    pub sentence: String,
    /// True if costs were calibrated with the published value.
    pub calibration: bool,
}

/// Group of comparisons that has a common verdict.
#[derive(Clone, Debug)]
pub struct VerdictGroup {
    /// Subject of the comparisons.
    pub title: String,
    /// Tolerance of the comparisons, with its reason.
    pub tolerance: String,
    /// Verdict of the group: the worst of its rows, except rows with which costs were calibrated.
    /// Rows that compare nothing count only if there are no other rows.
    pub verdict: Verdict,
    /// Comparisons of the group, in the order of the file.
    pub rows: Vec<ComparisonRow>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Verdict::Reproduced => "reproduced",
            Verdict::SameShape => "same shape",
            Verdict::Differs => "differs",
            Verdict::NothingToCompare => "nothing to compare",
            Verdict::NotAttempted => "not attempted",
        })
    }
}

impl Verdict {
    /// Parses a verdict as it is shown to users. `None` if the text is no verdict.
    #[must_use]
    pub fn read(text: &str) -> Option<Verdict> {
        use Verdict::{Differs, NotAttempted, NothingToCompare, Reproduced, SameShape};
        let all = [Reproduced, SameShape, Differs, NothingToCompare, NotAttempted];
        all.into_iter().find(|verdict| verdict.to_string() == text)
    }

    /// Returns true for *reproduced*, *same shape* and *differs*: the verdicts of a comparison that
    /// the measured value could have failed.
    #[must_use]
    pub fn is_comparison(self) -> bool {
        self <= Verdict::Differs
    }

    /// Returns the worst verdict among the comparisons that the measured values could have failed.
    /// If there are none, returns *nothing to compare* if any verdict is *nothing to compare*, and
    /// otherwise *not attempted*. `None` if there are no verdicts.
    pub(crate) fn worst(verdicts: impl Iterator<Item = Verdict> + Clone) -> Option<Verdict> {
        let compared = verdicts.clone().filter(|verdict| verdict.is_comparison()).max();
        compared.or_else(|| verdicts.min())
    }
}

/// A row of a comparison, before it has a verdict.
struct Case<'a> {
    value: &'a Value,
    spec: &'a RowSpec,
    tolerance: Tolerance,
    /// True if the quick form of the experiment leaves out a point of the row. The three lists
    /// below are then empty.
    is_left_out: bool,
    cells: Vec<(usize, usize)>,
    stats: Vec<Option<OverSeeds>>,
    against: Vec<Option<OverSeeds>>,
}

/// A verdict with its reason.
type Finding = (Verdict, String);

/// Compares the results of an experiment with the published values. On the axis of assumptions, the
/// point `instead` is used in place of the first point.
///
/// # Errors
/// If a comparison names an unknown value, or its test does not fit the value.
pub fn judge(
    experiment: &Experiment,
    results: &Results,
    published: &PublishedValues,
    instead: usize,
) -> Result<Vec<VerdictGroup>, PaperError> {
    let look = ComparisonContext { experiment, results, instead };
    let judged = experiment.groups.iter().map(|group| look.judge(group, published));
    judged.collect()
}

struct ComparisonContext<'a> {
    experiment: &'a Experiment,
    results: &'a Results,
    instead: usize,
}

impl ComparisonContext<'_> {
    fn judge(
        &self,
        group: &Group,
        published: &PublishedValues,
    ) -> Result<VerdictGroup, PaperError> {
        let shared = group.tolerance_in(&self.experiment.source)?;
        let cases = group.rows.iter().map(|spec| self.case((group, spec), shared, published));
        let cases: Vec<Case<'_>> = cases.collect::<Result<_, _>>()?;
        let rows = cases.iter().map(|case| self.row(case, &cases));
        let rows: Vec<ComparisonRow> = rows.collect::<Result<_, _>>()?;
        let judged = rows.iter().filter(|row| !row.calibration).map(|row| row.verdict);
        let tolerance = match &group.because {
            Some(because) => format!("{shared}: {because}"),
            None => shared.to_string(),
        };
        let verdict = Verdict::worst(judged).unwrap_or(Verdict::NotAttempted);
        Ok(VerdictGroup { title: group.title.clone(), tolerance, verdict, rows })
    }

    /// Collects the values that a row compares. A row that the quick form leaves out has no
    /// measured values, so no other row is compared with its values.
    fn case<'b>(
        &self,
        (group, spec): (&Group, &'b RowSpec),
        shared: Tolerance,
        published: &'b PublishedValues,
    ) -> Result<Case<'b>, PaperError> {
        let source = &self.experiment.source;
        let Some(value) = published.value(spec.published.get_ref()) else {
            let known = published.values.iter().map(|value| value.id.clone()).collect();
            return Err(source.unknown(&spec.published, "published value", known));
        };
        let tolerance = spec.tolerance_in(source)?.unwrap_or(shared);
        let (cells, stats, against) = Default::default();
        let case = Case { value, spec, tolerance, is_left_out: true, cells, stats, against };
        if self.is_left_out(spec)? {
            return Ok(case);
        }
        let is_plain = spec.reach.is_none() && !spec.averaged && !spec.largest;
        let cells = match is_plain {
            true => self.moved(self.experiment.cells(group, spec)?),
            false => Vec::new(),
        };
        let own = self.experiment.measures_of(group, spec)?;
        let against = match &spec.against {
            None => Vec::new(),
            Some(at) => {
                let other = spec.against_measure.as_ref();
                let other = other
                    .map(|name| self.experiment.measure_called(name, name.get_ref()))
                    .transpose()?;
                if is_plain {
                    self.beside(at, &cells, other)?
                } else {
                    self.made(spec, at, &other.map_or(own.clone(), |other| vec![other]))?
                }
            }
        };
        let stats = if is_plain { self.stats(&cells) } else { self.made(spec, &spec.at, &own)? };
        Ok(Case { is_left_out: false, cells, stats, against, ..case })
    }

    /// Returns true if the quick form has no point for one of the texts in `at` and `against` of a
    /// row. The points that remain could agree with the published value by accident.
    fn is_left_out(&self, spec: &RowSpec) -> Result<bool, PaperError> {
        for at in std::iter::once(&spec.at).chain(&spec.against) {
            let points = self.experiment.points_by_text(at)?;
            if self.experiment.is_quick && points.iter().any(Vec::is_empty) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the statistics at the points `at`, which are compared with `cells` in order. All of
    /// the points have the measure `other`. If `other` is `None`, a point has the measure of the
    /// cell with which the point is compared.
    fn beside(
        &self,
        at: &Spanned<Names>,
        cells: &[(usize, usize)],
        other: Option<usize>,
    ) -> Result<Vec<Option<OverSeeds>>, PaperError> {
        let Some(last) = cells.len().checked_sub(1) else { return Ok(Vec::new()) };
        let measure = |index: usize| other.unwrap_or(cells[index.min(last)].1);
        let points = self.experiment.points_of(at)?.into_iter().enumerate();
        let cells = points.map(|(index, point)| (point, measure(index))).collect();
        Ok(self.stats(&self.moved(cells)))
    }

    /// Returns one statistic for the points that each text in `at` selects. If `spec` has a
    /// `reach`, the statistic is the limit up to which the measure stays small. Otherwise the
    /// statistic is the largest value or the mean, as `spec` states.
    fn made(
        &self,
        spec: &RowSpec,
        at: &Spanned<Names>,
        measures: &[usize],
    ) -> Result<Vec<Option<OverSeeds>>, PaperError> {
        let mut made = Vec::new();
        for points in self.experiment.points_by_text(at)? {
            for &measure in measures.iter().filter(|_| !points.is_empty()) {
                let cells = self.moved(points.iter().map(|&point| (point, measure)).collect());
                let stats = self.stats(&cells);
                made.push(match &spec.reach {
                    Some(reach) => self.reached(reach, &points, &stats)?,
                    None if spec.largest => largest(&stats),
                    None => mean(&stats),
                });
            }
        }
        Ok(made)
    }

    fn reached(
        &self,
        spec: &Reach,
        points: &[usize],
        stats: &[Option<OverSeeds>],
    ) -> Result<Option<OverSeeds>, PaperError> {
        let (axes, source) = (&self.experiment.axes, &self.experiment.source);
        let Some(along) = axes.iter().position(|axis| axis.name() == spec.axis.get_ref()) else {
            let known = axes.iter().map(|axis| axis.name().to_owned()).collect();
            return Err(source.unknown(&spec.axis, "axis", known));
        };
        let all = self.experiment.points();
        let mut places = Vec::new();
        for (&point, stat) in points.iter().zip(stats) {
            let Some(x) = axes[along].points[all[point][along]].x else {
                let (place, key) = ("a point of this axis", "x");
                let fault = FileFault::Missing { place, key, example: "x = 10" };
                return Err(source.fault(&spec.axis.span(), fault));
            };
            places.push((x, stat.map(|stat| stat.median)));
        }
        places.sort_by(|a, b| match spec.towards {
            End::Highest => a.0.total_cmp(&b.0),
            End::Lowest => b.0.total_cmp(&a.0),
        });
        let one = |at| OverSeeds { median: at, lowest: at, highest: at };
        Ok(reach(&places, spec.at_most).map(one))
    }

    fn stats(&self, cells: &[(usize, usize)]) -> Vec<Option<OverSeeds>> {
        cells.iter().map(|&(point, measure)| self.results.measured[point][measure]).collect()
    }

    /// Returns the same points and measures, but with a changed assumption.
    fn moved(&self, cells: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
        let Some(axis) = self.experiment.sensitivity.filter(|_| self.instead > 0) else {
            return cells;
        };
        let points = self.experiment.points();
        let move_one = |(point, measure): (usize, usize)| {
            let mut places = points[point].clone();
            if places[axis] == 0 {
                places[axis] = self.instead;
            }
            let moved = points.iter().position(|other| *other == places);
            (moved.unwrap_or(point), measure)
        };
        cells.into_iter().map(move_one).collect()
    }

    fn row(&self, case: &Case<'_>, cases: &[Case<'_>]) -> Result<ComparisonRow, PaperError> {
        let test = self.test(case)?;
        let (verdict, sentence) = match (&case.value.is, test) {
            _ if case.is_left_out => {
                (Verdict::NotAttempted, "left out of the quick form".to_owned())
            }
            (PrintedValue::Series(theirs), Test::Ranked) => ranked(case, theirs),
            (PrintedValue::Number(_), Test::Value) => number(case, cases),
            (PrintedValue::Number(theirs), Test::Alike) => all_near(case, *theirs),
            (PrintedValue::Range(low, high), Test::Inside) => inside(case, (*low, *high)),
            (PrintedValue::Word(word), Test::Lowest) => self.lowest(case, word),
            _ => finding(case, test),
        };
        let ours = case.ours();
        let theirs = case.value.number();
        let median = ours.map(|stat| stat.median);
        let error = median.zip(theirs).filter(|&(_, theirs)| theirs != 0.0);
        Ok(ComparisonRow {
            id: case.value.id.clone(),
            says: case.value.says.clone(),
            from: case.value.from.clone(),
            published: case.value.shown(),
            ours: if case.is_left_out { String::new() } else { case.shown() },
            error: error.map(|(ours, theirs)| (ours - theirs) / theirs.abs() * 100.0),
            cells: if case.against.is_empty() { case.cells.clone() } else { Vec::new() },
            verdict,
            sentence,
            calibration: case.value.calibration,
        })
    }

    /// Returns the test of a row: the declared test, or the default for the kind of published
    /// value.
    fn test(&self, case: &Case<'_>) -> Result<Test, PaperError> {
        let natural = match case.value.is {
            PrintedValue::Number(_) => Some(Test::Value),
            PrintedValue::Range(..) => Some(Test::Inside),
            PrintedValue::Series(_) => Some(Test::Ranked),
            PrintedValue::Word(_) => None,
        };
        let source = &self.experiment.source;
        let place = case.spec.published.span();
        let Some(asked) = case.spec.test.as_ref().map(|test| *test.get_ref()).or(natural) else {
            let (place_name, key) = ("the comparison with a word", "test");
            let example = "test = \"alike\" (or unlike, zero, negative, kept, same, higher, \
                           lower, rising, falling, first, second, lowest)";
            let fault = FileFault::Missing { place: place_name, key, example };
            return Err(source.fault(&place, fault));
        };
        let needs_against =
            matches!(asked, Test::Same | Test::Higher | Test::Lower | Test::First | Test::Second)
                || case.spec.by.is_some();
        if needs_against && case.spec.against.is_none() {
            let (place_name, key) = ("the comparison of two points", "against");
            let fault = FileFault::Missing { place: place_name, key, example: "against = \"a/b\"" };
            return Err(source.fault(&place, fault));
        }
        match (natural, asked) {
            (Some(Test::Value), Test::Value | Test::Alike) => Ok(asked),
            (Some(Test::Inside), Test::Inside) | (Some(Test::Ranked), Test::Ranked) => Ok(asked),
            (None, Test::Value | Test::Inside | Test::Ranked) | (Some(_), _) => {
                let (is, published) =
                    (case.value.is.kind().to_owned(), case.spec.published.get_ref().clone());
                let test = asked.name();
                Err(source.fault(&place, FileFault::WrongTest { published, is, test }))
            }
            (None, _) => Ok(asked),
        }
    }

    /// Tests if, of several measures at a point, the measure that the paper names is the lowest.
    fn lowest(&self, case: &Case<'_>, name: &str) -> Finding {
        let measures = &self.experiment.measures;
        let known = case.cells.iter().zip(&case.stats);
        let known = known.filter_map(|(cell, stat)| stat.map(|stat| (cell.1, stat.median)));
        let Some((lowest, _)) = known.min_by(|a, b| a.1.total_cmp(&b.1)) else {
            return unknown();
        };
        let ours = measures[lowest].name();
        match ours == name {
            true => (Verdict::Reproduced, format!("the lowest is {name}, as published")),
            false => (
                Verdict::Differs,
                format!("the lowest published is {name}, the lowest measured is {ours}"),
            ),
        }
    }
}

impl Case<'_> {
    /// Returns the measured value with its range over the seeds. `None` if it is not a single
    /// number.
    fn ours(&self) -> Option<OverSeeds> {
        let ([Some(one)], None | Some(Test::Value)) =
            (&self.stats[..], self.spec.test.as_ref().map(|test| *test.get_ref()))
        else {
            return None;
        };
        if self.against.is_empty() {
            return Some(*one);
        }
        let other = (*self.against.first()?)?;
        let by = self.spec.by.unwrap_or_default();
        let made = |a: f64, b: f64| by.made(a, b);
        let ends = [made(one.lowest, other.highest), made(one.highest, other.lowest)];
        let (lowest, highest) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        Some(OverSeeds { median: made(one.median, other.median), lowest, highest })
    }

    /// Returns the measured values as numbers, in order. Each value is a median. If the row has a
    /// formula, the value is the formula applied to this median and to the median with which it is
    /// compared.
    fn series(&self) -> Option<Vec<f64>> {
        let medians = |stats: &[Option<OverSeeds>]| -> Option<Vec<f64>> {
            stats.iter().map(|stat| stat.map(|stat| stat.median)).collect()
        };
        let ours = medians(&self.stats)?;
        let Some(by) = self.spec.by else { return Some(ours) };
        let against = medians(&self.against)?;
        let last = against.len().checked_sub(1)?;
        let pairs = ours.iter().enumerate();
        Some(pairs.map(|(index, &ours)| by.made(ours, against[index.min(last)])).collect())
    }

    /// Returns the measured value as text for readers.
    fn shown(&self) -> String {
        let unit = &self.value.unit;
        if let Some(OverSeeds { median, lowest, highest }) = self.ours() {
            let range = format!("({} to {})", digits(lowest), digits(highest));
            return format!("{} {range}", with_unit(&digits(median), unit));
        }
        if let (Some(_), Some(series)) = (self.spec.by, self.series()) {
            let shown: Vec<String> = series.into_iter().map(digits).collect();
            return with_unit(&shown.join(", "), unit);
        }
        let medians = |stats: &[Option<OverSeeds>]| {
            let shown =
                stats.iter().map(|stat| stat.map_or("-".into(), |stat| digits(stat.median)));
            shown.collect::<Vec<_>>()
        };
        let some = medians(&self.stats);
        let shown = match some.len() {
            0..=9 => some.join(", "),
            _ => {
                let numbers = || self.stats.iter().flatten().map(|stat| stat.median);
                let lowest = numbers().fold(f64::INFINITY, f64::min);
                format!("{} to {}", digits(lowest), digits(numbers().fold(lowest, f64::max)))
            }
        };
        match self.against.len() {
            0 => with_unit(&shown, unit),
            1..=9 => format!("{shown} against {}", medians(&self.against).join(", ")),
            _ => shown,
        }
    }
}

impl PrintedValue {
    fn kind(&self) -> &'static str {
        match self {
            PrintedValue::Number(_) => "a number",
            PrintedValue::Range(..) => "a range",
            PrintedValue::Series(_) => "a series",
            PrintedValue::Word(_) => "a finding without a number",
        }
    }
}

impl Test {
    fn name(self) -> &'static str {
        match self {
            Test::Value => "value",
            Test::Inside => "inside",
            Test::Ranked => "ranked",
            Test::First => "first",
            Test::Second => "second",
            Test::Alike => "alike",
            Test::Unlike => "unlike",
            Test::Zero => "zero",
            Test::Negative => "negative",
            Test::Kept => "kept",
            Test::Same => "same",
            Test::Higher => "higher",
            Test::Lower => "lower",
            Test::Rising => "rising",
            Test::Falling => "falling",
            Test::Lowest => "lowest",
        }
    }
}
