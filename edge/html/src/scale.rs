//! Scales, which convert values to positions, and the ticks of axes.

use crate::text::number;

/// Kind of an axis's scale.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Linear: equal differences have equal distances.
    Linear,
    /// Logarithmic: equal ratios have equal distances.
    Log,
    /// Symlog: logarithmic on both sides of zero, and nearly linear between zero and this positive
    /// value.
    Symlog(f64),
    /// Names side by side. Values are the indexes of the names, counted from zero.
    Names(Vec<String>),
}

/// Range of an axis, from the first value to the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Range {
    pub(crate) from: f64,
    pub(crate) to: f64,
}

/// A tick mark on an axis. A tick without a label is drawn small.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) at: f64,
    pub(crate) label: Option<String>,
}

/// A kind of scale with its range.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scale {
    pub(crate) kind: Kind,
    pub(crate) range: Range,
    /// True if all values are integers, so that labels are only at integers.
    whole: bool,
}

/// Ends of ranges and steps between ticks are rounded to one of these numbers times a power of ten.
const NICE: [f64; 4] = [1.0, 2.0, 5.0, 10.0];

impl Scale {
    /// Creates a scale that includes all values and has round numbers at its ends. `said` is a
    /// range that was set explicitly. It is used unchanged.
    pub(crate) fn around(kind: Kind, values: &[f64], said: Option<Range>) -> Scale {
        let usable = |value: &&f64| value.is_finite() && (kind != Kind::Log || **value > 0.0);
        let values = || values.iter().filter(usable);
        let least = values().copied().fold(f64::INFINITY, f64::min);
        let most = values().copied().fold(f64::NEG_INFINITY, f64::max);
        let range = match (&kind, said) {
            (Kind::Names(names), _) => Range { from: -0.5, to: names.len() as f64 - 0.5 },
            (_, Some(said)) => said,
            (_, None) if least > most => Range { from: 1.0, to: 10.0 },
            (Kind::Log, None) => Range { from: nice_below(least), to: nice_above(most) },
            (Kind::Linear, None) => round_range(Range { from: least, to: most }),
            (Kind::Symlog(near), None) => {
                let end = |value: f64| {
                    // The range extends slightly beyond the values, so that no value is at its end.
                    let size = nice_above(value.abs().max(*near) * 1.001);
                    if value < 0.0 { -size } else { size }
                };
                Range { from: end(least.min(-near)), to: end(most.max(*near)) }
            }
        };
        let mut range = range;
        if range.from >= range.to {
            range.to = if kind == Kind::Log { range.from * 10.0 } else { range.from + 1.0 };
        }
        let whole = values().all(|value| value.fract() == 0.0);
        Scale { kind, range, whole }
    }

    /// Returns the position of a value: 0 at the start of the range, 1 at its end. `None` if the
    /// value has no position on this scale.
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        let Range { from, to } = self.range;
        let place = match self.kind {
            Kind::Log => (value / from).ln() / (to / from).ln(),
            Kind::Symlog(near) => {
                let at = |value: f64| value.signum() * (1.0 + value.abs() / near).ln();
                (at(value) - at(from)) / (at(to) - at(from))
            }
            _ => (value - from) / (to - from),
        };
        place.is_finite().then_some(place)
    }

    /// Returns true if a value is in the range. A tolerance allows for rounding errors.
    pub(crate) fn shows(&self, value: f64) -> bool {
        self.place(value).is_some_and(|place| (-1e-9..=1.0 + 1e-9).contains(&place))
    }

    /// Returns the ticks of the axis. About `labels` of them have labels.
    pub(crate) fn ticks(&self, labels: usize) -> Vec<Tick> {
        let mut ticks = match &self.kind {
            Kind::Linear => linear_ticks(self.range, labels, self.whole),
            Kind::Log => log_ticks(self.range, labels),
            Kind::Symlog(near) => symlog_ticks(self.range, *near, labels),
            Kind::Names(names) => {
                let tick = |(at, name): (usize, &String)| Tick {
                    at: at as f64,
                    label: Some(name.clone()),
                };
                names.iter().enumerate().map(tick).collect()
            }
        };
        ticks.retain(|tick| self.shows(tick.at));
        ticks
    }
}

/// Rounds the ends of a range. If all values are on one side of zero and zero is near, the range
/// starts at zero.
fn round_range(range: Range) -> Range {
    let Range { mut from, mut to } = range;
    if from > 0.0 && from < to * 0.5 {
        from = 0.0;
    }
    if to < 0.0 && to > from * 0.5 {
        to = 0.0;
    }
    if from == to {
        // Zero is the natural start for counts and times.
        let about = from.abs() * 0.5;
        (from, to) = if from == 0.0 { (0.0, 1.0) } else { (from - about, to + about) };
    }
    let step = nice_step((to - from) / 8.0);
    Range { from: (from / step + 1e-9).floor() * step, to: (to / step - 1e-9).ceil() * step }
}

/// Returns the smallest of 1, 2, 5, 10, 20, … that is not below `step`.
fn nice_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let nice = NICE.iter().find(|nice| **nice * power >= step * (1.0 - 1e-9));
    nice.unwrap_or(&10.0) * power
}

fn nice_below(value: f64) -> f64 {
    let power = 10f64.powf((value.log10() + 1e-9).floor());
    let nice = NICE.iter().rev().find(|nice| **nice * power <= value * (1.0 + 1e-9));
    nice.unwrap_or(&1.0) * power
}

fn nice_above(value: f64) -> f64 {
    nice_step(value)
}

fn linear_ticks(range: Range, labels: usize, whole: bool) -> Vec<Tick> {
    let step = nice_step((range.to - range.from) / labels.max(1) as f64);
    let step = if whole { step.max(1.0) } else { step };
    let decimals = decimals_of(step);
    let first = (range.from / step - 1e-9).ceil();
    let count = ((range.to / step + 1e-9).floor() - first).max(0.0);
    (0..=count.min(100.0) as u32)
        .map(|nth| (first + f64::from(nth)) * step)
        .map(|at| Tick { at, label: Some(number(at, decimals)) })
        .collect()
}

fn decimals_of(step: f64) -> usize {
    (0..9).find(|&places| step * 10f64.powi(places) >= 1.0 - 1e-9).unwrap_or(9) as usize
}

/// Returns ticks at each digit of each power of ten. Multiples by 1, 2 and 5 have labels if there
/// is space.
fn log_ticks(range: Range, labels: usize) -> Vec<Tick> {
    let powers = range.from.log10().floor() as i32..=range.to.log10().ceil() as i32;
    let decades = (range.to / range.from).log10();
    // Every power of ten has a label. If there are too many, every second or third power has one.
    let every = (decades / labels.max(1) as f64).ceil().max(1.0) as i32;
    let all = decades * 3.0 <= labels as f64 + 1.0;
    let mut ticks = Vec::new();
    for power in powers {
        for digit in 1..10 {
            let at = f64::from(digit) * 10f64.powi(power);
            let has_label =
                (digit == 1 && power.rem_euclid(every) == 0) || (all && matches!(digit, 2 | 5));
            let decimals = usize::try_from(-power).unwrap_or(0);
            let label = has_label.then(|| power_label(at, decimals));
            ticks.push(Tick { at, label });
        }
    }
    ticks
}

/// Returns ticks at zero, and on both sides at powers of ten that are at least about `near`.
fn symlog_ticks(range: Range, near: f64, labels: usize) -> Vec<Tick> {
    let first = near.log10().round() as i32;
    let far = range.from.abs().max(range.to.abs()).max(near);
    let last = far.log10().floor() as i32;
    let sides = 1 + i32::from(range.from < 0.0 && range.to > 0.0);
    let every = ((last - first + 1) * sides + 1).div_euclid(labels.max(1) as i32).max(1);
    let mut ticks = vec![Tick { at: 0.0, label: Some("0".into()) }];
    for power in first..=last {
        let decimals = usize::try_from(-power).unwrap_or(0);
        for sign in [-1.0, 1.0] {
            let at = sign * 10f64.powi(power);
            let label = ((power - first) % every == 0).then(|| number(at, decimals));
            ticks.push(Tick { at, label });
        }
    }
    // Labels at the ends of the axis make it possible to read values beyond the last power of ten.
    for at in [range.from, range.to] {
        let power = at.abs().max(near).log10().floor() as i32;
        if at.abs() >= 2.0 * 10f64.powi(power) {
            let label = number(at, usize::try_from(-power).unwrap_or(0));
            ticks.push(Tick { at, label: Some(label) });
        }
    }
    ticks.sort_by(|a, b| a.at.total_cmp(&b.at));
    ticks
}

fn power_label(at: f64, decimals: usize) -> String {
    if at < 1e6 {
        return number(at, decimals);
    }
    brief_power(at)
}

/// Abbreviates a number for an axis, such as 2,000,000 as 2M.
fn brief_power(at: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M")];
    let (unit, name) = units.into_iter().find(|(unit, _)| at >= *unit * 0.999).unwrap_or((1.0, ""));
    format!("{}{name}", number(at / unit, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale, about: usize) -> Vec<String> {
        scale.ticks(about).into_iter().filter_map(|tick| tick.label).collect()
    }

    #[test]
    fn linear_chart_axis_has_round_range_and_round_labels() {
        let scale = Scale::around(Kind::Linear, &[-97.0, 412.0], None);
        assert_eq!(scale.range, Range { from: -100.0, to: 500.0 });
        assert_eq!(labels(&scale, 6), ["\u{2212}100", "0", "100", "200", "300", "400", "500"]);
        let scale = Scale::around(Kind::Linear, &[0.2, 0.9], None);
        assert_eq!(scale.range, Range { from: 0.0, to: 1.0 });
        assert_eq!(labels(&scale, 5), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
    }

    #[test]
    fn chart_axis_of_integers_has_no_labels_between_integers() {
        let said = Some(Range { from: 4.0, to: 8.0 });
        let scale = Scale::around(Kind::Linear, &[4.0, 5.0, 8.0], said);
        assert_eq!(labels(&scale, 9), ["4", "5", "6", "7", "8"]);
        let scale = Scale::around(Kind::Linear, &[4.0, 5.5, 8.0], said);
        assert_eq!(labels(&scale, 9)[..3], ["4.0", "4.5", "5.0"]);
    }

    #[test]
    fn chart_axis_with_at_most_one_value_has_a_range() {
        let scale = Scale::around(Kind::Linear, &[7.0], None);
        assert!(scale.range.from < 7.0 && scale.range.to > 7.0);
        let scale = Scale::around(Kind::Linear, &[0.0, 0.0], None);
        assert_eq!(scale.range, Range { from: 0.0, to: 1.0 });
        assert!(Scale::around(Kind::Linear, &[f64::NAN], None).range.from < 10.0);
        assert_eq!(Scale::around(Kind::Log, &[0.0, -1.0], None).range.from, 1.0);
    }

    #[test]
    fn logarithmic_chart_axis_has_round_range_and_round_labels() {
        let scale = Scale::around(Kind::Log, &[1.3, 90.0], None);
        assert_eq!(scale.range, Range { from: 1.0, to: 100.0 });
        assert_eq!(labels(&scale, 6), ["1", "2", "5", "10", "20", "50", "100"]);
        assert_eq!(scale.ticks(6).len(), 19, "with the small marks");
        let scale = Scale::around(Kind::Log, &[0.003, 40_000.0], None);
        assert_eq!(labels(&scale, 8), ["0.01", "0.1", "1", "10", "100", "1000", "10,000"]);
        assert_eq!(
            Scale::around(Kind::Log, &[1e6, 3e6], None).ticks(4)[0].label,
            Some("1M".into())
        );
    }

    #[test]
    fn symlog_chart_axis_shows_magnitudes_on_both_sides_of_zero() {
        let scale = Scale::around(Kind::Symlog(1.0), &[-40.0, 370.0], None);
        assert_eq!(scale.range, Range { from: -50.0, to: 500.0 });
        // The labels come in the order of the axis, including its ends.
        let minus = ["\u{2212}50", "\u{2212}10", "\u{2212}1"];
        assert_eq!(labels(&scale, 8), [&minus[..], &["0", "1", "10", "100", "500"]].concat());
        let place = |value| scale.place(value).unwrap();
        assert!(place(-40.0) < place(-1.0) && place(-1.0) < place(0.0) && place(0.0) < place(1.0));
        assert!(place(10.0) - place(1.0) > 0.1 && place(100.0) - place(10.0) > 0.1);
        assert_eq!((place(-50.0), place(500.0)), (0.0, 1.0));
    }

    #[test]
    fn logarithmic_chart_axis_places_values_by_logarithm_and_omits_zero() {
        let scale = Scale::around(Kind::Log, &[1.0, 100.0], None);
        assert!((scale.place(10.0).unwrap() - 0.5).abs() < 1e-12, "half of two decades");
        assert_eq!(scale.place(0.0), None);
        assert!(scale.shows(100.0) && !scale.shows(101.0));
        let names = Scale::around(Kind::Names(vec!["a".into(), "b".into()]), &[], None);
        assert_eq!(names.place(0.0), Some(0.25));
    }
}
