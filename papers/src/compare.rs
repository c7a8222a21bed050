//! Holds what came of an experiment against what was published. The only reader of both.
//!
//! The rules:
//! - *reproduced*: ours is within the tolerance that the experiment declares, or within what can be
//!   read off where that is more. Of a finding without a number, it is what is to be seen here too;
//!   of one that says only a direction, *same shape* is all there is to reach; and so it is of a
//!   number that is further off than 25 %, however wide a tolerance is declared.
//! - *same shape*: it is not, but in every pair of the group that the paper tells apart by more
//!   than the tolerance ours stand in the same order; of a comparison of two points, the same one
//!   is higher. Of a plot of which only the axis is known: ours lie inside.
//! - *differs*: neither.
//! - *not attempted*: no experiment compares it.
//!
//! What costs were taken from is marked as calibration and counts for the order only. A group is
//! judged as its worst row.

use std::fmt;

use slackline_runs::OverSeeds;

use crate::comparison::{By, Group, RowSpec, Test};
use crate::error::{FileFault, PaperError};
use crate::experiment::Experiment;
use crate::numbers::{digits, with_unit};
use crate::published::{Is, Published, Read, Value};
use crate::run::Results;
use crate::tolerance::Tolerance;

/// How ours stands to what was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Within the tolerance.
    Reproduced,
    /// Order and direction agree, sizes do not, or there are none.
    SameShape,
    /// Neither.
    Differs,
    /// Nothing was compared.
    NotAttempted,
}

/// One comparison, judged.
#[derive(Clone, Debug)]
pub struct Row {
    /// The id of the published value.
    pub id: String,
    /// What the value is, in words.
    pub says: String,
    /// Where it stands in the paper.
    pub from: String,
    /// The value as printed, with its unit.
    pub published: String,
    /// Ours, with the unit, the range over the seeds behind it.
    pub ours: String,
    /// The relative error of our median in percent, if there is one.
    pub error: Option<f64>,
    /// The points and measures of ours, by number; none of a comparison of two points.
    pub cells: Vec<(usize, usize)>,
    /// How it stands.
    pub verdict: Verdict,
    /// Why, in a sentence.
    pub sentence: String,
    /// Whether costs were taken from it.
    pub calibration: bool,
}

/// Comparisons judged together.
#[derive(Clone, Debug)]
pub struct Judged {
    /// What is compared.
    pub title: String,
    /// How far ours may be off, and why.
    pub tolerance: String,
    /// The worst of its rows.
    pub verdict: Verdict,
    /// Its rows.
    pub rows: Vec<Row>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Verdict::Reproduced => "reproduced",
            Verdict::SameShape => "same shape",
            Verdict::Differs => "differs",
            Verdict::NotAttempted => "not attempted",
        })
    }
}

impl Verdict {
    /// Reads what is shown.
    #[must_use]
    pub fn read(text: &str) -> Option<Verdict> {
        use Verdict::{Differs, NotAttempted, Reproduced, SameShape};
        let all = [Reproduced, SameShape, Differs, NotAttempted];
        all.into_iter().find(|verdict| verdict.to_string() == text)
    }
}

/// A row on its way to be judged.
struct Case<'a> {
    value: &'a Value,
    spec: &'a RowSpec,
    tolerance: Tolerance,
    cells: Vec<(usize, usize)>,
    stats: Vec<Option<OverSeeds>>,
    against: Vec<Option<OverSeeds>>,
}

/// A verdict and why.
type Finding = (Verdict, String);

/// Holds all comparisons of an experiment against what was published. With `instead`, wherever a
/// comparison is at the first point of the axis of assumptions, at this one of it instead.
///
/// # Errors
/// When a comparison names what was not published, or cannot be made of it.
pub fn judge(
    experiment: &Experiment,
    results: &Results,
    published: &Published,
    instead: usize,
) -> Result<Vec<Judged>, PaperError> {
    let look = Look { experiment, results, instead };
    let judged = experiment.groups.iter().map(|group| look.judge(group, published));
    judged.collect()
}

struct Look<'a> {
    experiment: &'a Experiment,
    results: &'a Results,
    instead: usize,
}

impl Look<'_> {
    fn judge(&self, group: &Group, published: &Published) -> Result<Judged, PaperError> {
        let source = &self.experiment.source;
        let shared = group.tolerance_in(source)?;
        let mut cases = Vec::new();
        for spec in &group.rows {
            let Some(value) = published.value(spec.published.get_ref()) else {
                let known = published.values.iter().map(|value| value.id.clone()).collect();
                return Err(source.unknown(&spec.published, "published value", known));
            };
            let tolerance = spec.tolerance_in(source)?.unwrap_or(shared);
            let cells = self.moved(self.experiment.cells(group, spec)?);
            let against = match &spec.against {
                None => Vec::new(),
                Some(at) => {
                    let points = self.experiment.points_of(at)?;
                    let measures: Vec<usize> = match &spec.against_measure {
                        Some(name) => vec![self.experiment.measure_called(name, name.get_ref())?],
                        None => cells.iter().map(|cell| cell.1).collect(),
                    };
                    let measure = |index: usize| measures[index.min(measures.len() - 1)];
                    let cells = points.iter().enumerate();
                    let cells = cells.map(|(index, &point)| (point, measure(index))).collect();
                    self.stats(&self.moved(cells))
                }
            };
            let stats = self.stats(&cells);
            cases.push(Case { value, spec, tolerance, cells, stats, against });
        }
        let rows = cases.iter().map(|case| self.row(case, &cases));
        let rows: Vec<Row> = rows.collect::<Result<_, _>>()?;
        let judged = rows.iter().filter(|row| !row.calibration).map(|row| row.verdict);
        let tolerance = match &group.because {
            Some(because) => format!("{shared}: {because}"),
            None => shared.to_string(),
        };
        let verdict = judged.max().unwrap_or(Verdict::NotAttempted);
        Ok(Judged { title: group.title.clone(), tolerance, verdict, rows })
    }

    fn stats(&self, cells: &[(usize, usize)]) -> Vec<Option<OverSeeds>> {
        cells.iter().map(|&(point, measure)| self.results.measured[point][measure]).collect()
    }

    /// The same cells with another assumption.
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

    fn row(&self, case: &Case<'_>, cases: &[Case<'_>]) -> Result<Row, PaperError> {
        let test = self.test(case)?;
        let (verdict, sentence) = match (&case.value.is, test) {
            (Is::Number(_), Test::Value) => number(case, cases),
            (Is::Number(theirs), Test::Alike) => all_near(case, *theirs),
            (Is::Range(low, high), Test::Inside) => inside(case, (*low, *high)),
            (Is::Word(word), Test::Lowest) => self.lowest(case, word),
            _ => finding(case, test),
        };
        let ours = case.ours();
        let theirs = case.value.number();
        let median = ours.map(|stat| stat.median);
        let error = median.zip(theirs).filter(|&(_, theirs)| theirs != 0.0);
        Ok(Row {
            id: case.value.id.clone(),
            says: case.value.says.clone(),
            from: case.value.from.clone(),
            published: case.value.shown(),
            ours: case.shown(),
            error: error.map(|(ours, theirs)| (ours - theirs) / theirs.abs() * 100.0),
            cells: if case.against.is_empty() { case.cells.clone() } else { Vec::new() },
            verdict,
            sentence,
            calibration: case.value.calibration,
        })
    }

    /// What is to be seen: what the row says, or else what the value is.
    fn test(&self, case: &Case<'_>) -> Result<Test, PaperError> {
        let natural = match case.value.is {
            Is::Number(_) => Some(Test::Value),
            Is::Range(..) => Some(Test::Inside),
            Is::Word(_) => None,
        };
        let source = &self.experiment.source;
        let place = case.spec.published.span();
        let Some(asked) = case.spec.test.as_ref().map(|test| *test.get_ref()).or(natural) else {
            let (place_name, key) = ("the comparison with a word", "test");
            let example = "test = \"alike\" (or unlike, zero, negative, kept, same, higher, \
                           lower, rising, falling, lowest)";
            let fault = FileFault::Missing { place: place_name, key, example };
            return Err(source.fault(&place, fault));
        };
        let needs_against =
            matches!(asked, Test::Same | Test::Higher | Test::Lower) || case.spec.by.is_some();
        if needs_against && case.against.is_empty() {
            let (place_name, key) = ("the comparison of two points", "against");
            let fault = FileFault::Missing { place: place_name, key, example: "against = \"a/b\"" };
            return Err(source.fault(&place, fault));
        }
        match (natural, asked) {
            (Some(Test::Value), Test::Value | Test::Alike) => Ok(asked),
            (Some(Test::Inside), Test::Inside) => Ok(asked),
            (None, Test::Value | Test::Inside) | (Some(_), _) => {
                let (is, published) =
                    (case.value.is.kind().to_owned(), case.spec.published.get_ref().clone());
                let test = asked.name();
                Err(source.fault(&place, FileFault::WrongTest { published, is, test }))
            }
            (None, _) => Ok(asked),
        }
    }

    /// Of several measures at one point, which is lowest.
    fn lowest(&self, case: &Case<'_>, name: &str) -> Finding {
        let measures = &self.experiment.measures;
        let known = case.cells.iter().zip(&case.stats);
        let known = known.filter_map(|(cell, stat)| stat.map(|stat| (cell.1, stat.median)));
        let Some((lowest, _)) = known.min_by(|a, b| a.1.total_cmp(&b.1)) else {
            return unknown();
        };
        let ours = measures[lowest].name();
        match ours == name {
            true => (Verdict::Reproduced, format!("it is {name} here too")),
            false => (Verdict::Differs, format!("it is {name} there, {ours} here")),
        }
    }
}

impl Case<'_> {
    /// Ours as one number over the seeds, where it is one.
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

    /// Ours as numbers, in their order: medians, or what is made of each and of the one that it is
    /// held against.
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

    /// Ours for people.
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

/// A number against a number.
fn number(case: &Case<'_>, cases: &[Case<'_>]) -> Finding {
    let (Is::Number(theirs), Some(ours)) = (&case.value.is, case.ours()) else { return unknown() };
    let off = match (case.value.unit.as_str(), *theirs) {
        ("%", _) | (_, 0.0) => format!("{} points off", digits((ours.median - theirs).abs())),
        (_, theirs) => {
            let error = (ours.median - theirs) / theirs * 100.0;
            let which = if error < 0.0 { "less" } else { "more" };
            format!("{} % {which}", digits(error.abs()))
        }
    };
    let tolerance = case.tolerance;
    let is_allowed = tolerance.holds(ours.median, *theirs, 0.0);
    let is_far = tolerance.is_too_far(ours.median, *theirs, 0.0);
    if is_allowed && !is_far {
        return (Verdict::Reproduced, format!("{off}, within {tolerance}"));
    }
    if Tolerance::Exact.holds(ours.median, *theirs, case.value.give) {
        return (Verdict::Reproduced, format!("{off}, within {}", Tolerance::Exact));
    }
    let more = match is_allowed {
        true => format!("within {tolerance}, but more than {} %", Tolerance::FURTHEST_PERCENT),
        false => format!("more than {tolerance}"),
    };
    if case.spec.by.is_some() || !case.against.is_empty() {
        let neutral = if case.spec.by == Some(By::Ratio) { 1.0 } else { 0.0 };
        let same = (ours.median - neutral) * (theirs - neutral) > 0.0;
        return match same {
            true => (Verdict::SameShape, format!("{off}, {more}; same direction")),
            false => (Verdict::Differs, format!("{off}, and the other way round")),
        };
    }
    let others = cases.iter().filter(|other| !std::ptr::eq(*other, case));
    let mut pairs = 0;
    for other in others {
        let (Is::Number(their_other), Some(our_other)) = (&other.value.is, other.ours()) else {
            continue;
        };
        let gives = case.value.give + other.value.give;
        if tolerance.holds(*their_other, *theirs, gives) {
            continue; // The paper does not tell the two apart.
        }
        pairs += 1;
        if (our_other.median - ours.median) * (their_other - theirs) <= 0.0 {
            let which = if their_other > theirs { "lower" } else { "higher" };
            let id = &other.value.id;
            return (Verdict::Differs, format!("{off}, and not {which} than {id} as published"));
        }
    }
    match pairs {
        0 if is_allowed => (Verdict::SameShape, format!("{off}, {more}")),
        0 => (Verdict::Differs, format!("{off}, {more}, and no order to agree in")),
        _ => (Verdict::SameShape, format!("{off}, {more}; the order agrees")),
    }
}

/// Several numbers against one.
fn all_near(case: &Case<'_>, theirs: f64) -> Finding {
    let medians = case.stats.iter().map(|stat| stat.map(|stat| stat.median));
    let Some(medians) = medians.collect::<Option<Vec<f64>>>() else { return unknown() };
    let off = medians.iter().map(|ours| (ours - theirs).abs()).fold(0.0, f64::max);
    let near = |&ours: &f64| case.tolerance.holds(ours, theirs, case.value.give);
    let far = |&ours: &f64| case.tolerance.is_too_far(ours, theirs, case.value.give);
    let best = if medians.iter().any(far) { Verdict::SameShape } else { Verdict::Reproduced };
    let says = format!("at most {} off, to within {}", digits(off), case.tolerance);
    seen(medians.iter().all(near), best, says)
}

/// All within a range.
fn inside(case: &Case<'_>, (low, high): (f64, f64)) -> Finding {
    let Some(series) = case.series() else { return unknown() };
    let lowest = series.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = series.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let ours = format!("{} to {} here", digits(lowest), digits(highest));
    let is_in = |tolerance: Tolerance| {
        let below = lowest >= low || tolerance.holds(lowest, low, case.value.give);
        below && (highest <= high || tolerance.holds(highest, high, case.value.give))
    };
    match (is_in(case.tolerance), case.value.read) {
        (true, Read::Plot) => {
            (Verdict::SameShape, format!("{ours}: on the plot, of which only the axis is known"))
        }
        (true, _) => {
            let give = case.value.give;
            let is_far = lowest < low && case.tolerance.is_too_far(lowest, low, give)
                || highest > high && case.tolerance.is_too_far(highest, high, give);
            let best = if is_far { Verdict::SameShape } else { Verdict::Reproduced };
            (best, format!("{ours}, within {}", case.tolerance))
        }
        (false, _) => (Verdict::Differs, format!("{ours}: not within")),
    }
}

/// A finding without a number.
fn finding(case: &Case<'_>, test: Test) -> Finding {
    let medians = |stats: &[Option<OverSeeds>]| -> Option<Vec<f64>> {
        stats.iter().map(|stat| stat.map(|stat| stat.median)).collect()
    };
    let (Some(ours), Some(against)) = (medians(&case.stats), medians(&case.against)) else {
        return unknown();
    };
    let tolerance = case.tolerance;
    match test {
        Test::Alike | Test::Unlike => alike(&ours, &against, tolerance, test),
        Test::Zero => {
            let worst = ours.iter().map(|number| number.abs()).fold(0.0, f64::max);
            let good = worst <= tolerance.width(0.0);
            seen(good, Verdict::Reproduced, format!("at most {} off", digits(worst)))
        }
        Test::Kept => {
            let worst = ours.iter().copied().fold(f64::INFINITY, f64::min);
            let good = worst >= -tolerance.width(0.0);
            seen(good, Verdict::Reproduced, format!("the worst is {}", digits(worst)))
        }
        Test::Negative => {
            let best = ours.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let good = best < -tolerance.width(0.0);
            seen(good, Verdict::SameShape, format!("the best is {}", digits(best)))
        }
        Test::Same => {
            let pairs = ours.iter().enumerate();
            let pairs = pairs.map(|(index, &ours)| (ours, against[index.min(against.len() - 1)]));
            let right = pairs.clone().filter(|&(a, b)| tolerance.holds(a, b, 0.0)).count();
            let of = ours.len();
            seen(right == of, Verdict::Reproduced, format!("so at {right} of {of} points"))
        }
        Test::Higher | Test::Lower => {
            let other = |index: usize| against[index.min(against.len() - 1)];
            let is_right = |(index, &ours): (usize, &f64)| match test {
                Test::Higher => ours > other(index),
                _ => ours < other(index),
            };
            let right = ours.iter().enumerate().filter(|&pair| is_right(pair)).count();
            let of = ours.len();
            seen(right == of, Verdict::SameShape, format!("so at {right} of {of} points"))
        }
        Test::Rising | Test::Falling => {
            let Some(ours) = case.series() else { return unknown() };
            let is_right = |pair: &&[f64]| match test {
                Test::Rising => pair[0] < pair[1],
                _ => pair[0] > pair[1],
            };
            let steps = ours.len().saturating_sub(1);
            let right = ours.windows(2).filter(is_right).count();
            seen(right == steps, Verdict::SameShape, format!("so in {right} of {steps} steps"))
        }
        Test::Value | Test::Inside | Test::Lowest => unknown(),
    }
}

/// Whether numbers are alike: the highest is no further from the lowest than the tolerance of their
/// mean.
fn alike(ours: &[f64], against: &[f64], tolerance: Tolerance, test: Test) -> Finding {
    let all = || ours.iter().chain(against).copied();
    let lowest = all().fold(f64::INFINITY, f64::min);
    let highest = all().fold(f64::NEG_INFINITY, f64::max);
    let mean = all().sum::<f64>() / all().count().max(1) as f64;
    let is_alike = highest - lowest <= tolerance.width(mean);
    let says = format!("{} to {}", digits(lowest), digits(highest));
    match test {
        Test::Unlike => seen(!is_alike, Verdict::SameShape, says),
        _ => seen(is_alike, Verdict::Reproduced, says),
    }
}

fn seen(good: bool, verdict: Verdict, says: String) -> Finding {
    if good { (verdict, says) } else { (Verdict::Differs, says) }
}

fn unknown() -> Finding {
    (Verdict::Differs, "not known here".to_owned())
}

impl Is {
    fn kind(&self) -> &'static str {
        match self {
            Is::Number(_) => "a number",
            Is::Range(..) => "a range",
            Is::Word(_) => "a finding without a number",
        }
    }
}

impl Test {
    fn name(self) -> &'static str {
        match self {
            Test::Value => "value",
            Test::Inside => "inside",
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
