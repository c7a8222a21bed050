//! Time scale of a timeline.

use slackline_units::{Span, Time};

use super::columns::Window;

/// Units of times on the scale, the longest first.
const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
/// Minimum number of empty columns between two labels.
const GAP: usize = 2;

/// Returns the round times in a window, each as a column and a label.
pub(crate) fn ticks(window: &Window) -> Vec<(usize, String)> {
    let Some(step) = step(window) else { return Vec::new() };
    let step = step.ns();
    let Some(first) = window.from().ns().checked_next_multiple_of(step) else { return Vec::new() };
    let times = (0..).map_while(|count| first.checked_add(step.checked_mul(count)?));
    let columns = times.map_while(|at| Some((window.column_of(Time::from_ns(at))?, at)));
    columns
        .map(|(column, at)| (column, label(Time::from_ns(at), Span::from_ns(step), window.end())))
        .collect()
}

/// Returns the widest window of at most `columns` columns in which round times are equally spaced.
/// If that window would have less than three quarters of `columns`, returns a window of exactly
/// `columns` columns.
pub(crate) fn even_window(from: Time, span: Span, columns: usize) -> Window {
    let is_even = |window: &Window| {
        let (length, parts) = (span.ns(), window.columns() as u64);
        length.is_multiple_of(parts)
            && step(window).is_some_and(|step| step.ns().is_multiple_of(length / parts))
    };
    let mut windows = (columns * 3 / 4..=columns).rev().map(|count| Window::new(from, span, count));
    windows.find(is_even).unwrap_or_else(|| Window::new(from, span, columns))
}

/// Returns the smallest distance between round times at which their labels fit. `None` if the
/// labels fit at no distance.
fn step(window: &Window) -> Option<Span> {
    let mut steps = (0..20).flat_map(|power| [1, 2, 5].map(|digit| (digit, power)));
    steps.find_map(|(digit, power)| {
        let step = Span::from_ns(10_u64.checked_pow(power)?.checked_mul(digit)?);
        fits(window, step).then_some(step)
    })
}

/// Returns true if the labels fit at a distance of `step` between the times.
fn fits(window: &Window, step: Span) -> bool {
    let width = label(window.end(), step, window.end()).len() + GAP;
    u128::from(step.ns()) * window.columns() as u128
        >= u128::from(window.span().ns()) * width as u128
}

/// Formats a time with as many decimals as `step` has. The unit is the longest one that is not
/// longer than `end`.
fn label(at: Time, step: Span, end: Time) -> String {
    let (at, step) = (at.ns(), step.ns());
    let fits = |&&(_, unit): &&(&str, u64)| end.ns() >= unit;
    let &(name, unit) = UNITS.iter().find(fits).unwrap_or(&UNITS[3]);
    if step >= unit && step.is_multiple_of(unit) {
        return format!("{}{name}", at / unit);
    }
    let places = (unit.ilog10() - step.ilog10()) as usize;
    let part = at % unit / 10_u64.pow(step.ilog10());
    format!("{}.{part:0places$}{name}", at / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(from: Span, span: Span, columns: usize) -> Vec<String> {
        let window = Window::new(Time::START + from, span, columns);
        ticks(&window).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn timeline_ruler_times_are_equally_far_apart() {
        for (columns, even) in [(84, 80), (100, 100), (124, 100), (70, 70)] {
            let window = even_window(Time::START, Span::from_ms(100), columns);
            assert_eq!(window.columns(), even, "of {columns}");
        }
    }

    #[test]
    fn timeline_ruler_labels_are_round_times_with_few_digits() {
        let ms = Span::from_ms;
        assert_eq!(texts(ms(0), ms(100), 40), ["0ms", "20ms", "40ms", "60ms", "80ms"]);
        assert_eq!(texts(ms(2000), ms(100), 40), ["2.00s", "2.02s", "2.04s", "2.06s", "2.08s"]);
        assert_eq!(texts(ms(1999), ms(4), 40), ["1.999s", "2.000s", "2.001s", "2.002s"]);
        assert_eq!(texts(ms(0), Span::from_secs(50), 30), ["0s", "10s", "20s", "30s", "40s"]);
        assert_eq!(texts(ms(0), Span::from_us(3), 30), ["0us", "1us", "2us"]);
        assert_eq!(texts(ms(0), Span::from_us(1), 30), ["0.0us", "0.5us"]);
        let last = Span::MAX.left_after(Span::from_ns(50));
        assert!(texts(last, Span::from_ns(40), 30).len() <= 4, "at the end of time");
    }
}
