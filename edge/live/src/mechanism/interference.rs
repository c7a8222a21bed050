//! Interference of deadline threads with dispatcher reservations on the same CPU.
//!
//! The kernel runs a deadline thread before every `SCHED_FIFO` thread, so before all vCPUs of the
//! dispatcher. In a window of length `t`, a deadline thread with slice `C` runs for at most `C` at
//! the end of one period. It runs for at most `C` at the start of the next period, and for `C` in
//! each period after that. A deadline thread is not pinned, so each CPU must have time for all
//! deadline threads.
//!
//! Dispatcher reservations of a CPU have the total share `U`. They need at most `U * t` in a window
//! that begins and ends with their periods [Baruah 1990]. The shortest such window is the shortest
//! period. So the CPU serves all reservations if `U * t + interference(t) <= t` for each window `t`
//! from the shortest period on. The test is sufficient but not necessary: it may refuse
//! reservations that the CPU could serve.
//!
//! `interference(t)` is linear between the starts and ends of slices. So it is enough to test the
//! windows that end at a start or end of a slice. [`InterferenceCurve`] stores which of these
//! windows is the tightest, so that a check of many threads needs only two searches.

use slackline_units::{CpuShare, Reservation, Span};
use thiserror::Error;

/// Number of slices of each deadline thread that are counted exactly. Beyond these slices, the
/// interference of the thread grows no faster than its linear bound. The longest window that is
/// checked is `WINDOWS * max(a, b)`. `a` is the longest period of the deadline threads, and `b` the
/// shortest period of the reservations.
const WINDOWS: u64 = 64;

/// Maximum number of points of a curve. The limit holds for up to `MOST_POINTS / 2` different
/// threads, because each different thread needs at least two points. If 64 slices of each thread
/// need more points, fewer slices are counted exactly.
const MOST_POINTS: u64 = 65_536;

/// Number of binary digits after the point in [`InterferenceCurve::growth`].
const DIGITS: u32 = 48;

/// A window in which deadline threads could make dispatcher reservations miss deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "deadline threads can take {taken} of a window of {window}, and reservations of the dispatcher \
     leave {left}"
)]
pub struct Interference {
    /// Length of the window.
    pub window: Span,
    /// CPU time that deadline threads can take in the window.
    pub taken: Span,
    /// CPU time that the dispatcher's reservations leave in the window.
    pub left: Span,
}

/// Longest time that deadline threads can take from one CPU, for each length of a window.
///
/// Building a curve sorts its points. A check needs only two searches among these points.
#[derive(Clone, Debug, Default)]
pub struct InterferenceCurve {
    /// Points between which the time grows linearly, in the order of their windows. The window of
    /// the first point has length zero. If there are no threads, there are no points.
    points: Vec<Point>,
    /// Slope of the curve after the last point: additional CPU time taken per additional length of
    /// the window, in units of 2^-48.
    growth: u128,
    /// Longest period of the threads.
    longest: Span,
}

/// Point of a curve: a window at whose end a slice of a deadline thread begins or ends.
#[derive(Clone, Copy, Debug)]
struct Point {
    window: Span,
    /// Longest time that the threads can take in the window.
    taken: Span,
    /// Index of the tightest point among this point and all later points. The tightest point has
    /// the smallest `(window - taken) / window`.
    tightest: usize,
}

/// Checks that one CPU has time for all deadline threads and for the dispatcher's reservations on
/// that CPU. The reservations have the total share `reserved` and the shortest period `shortest`.
///
/// # Errors
/// If the CPU does not have enough time, as for [`InterferenceCurve::check`].
pub fn check_interference(
    threads: &[Reservation],
    reserved: CpuShare,
    shortest: Span,
) -> Result<(), Interference> {
    InterferenceCurve::new(threads).check(reserved, shortest)
}

impl InterferenceCurve {
    /// Builds the curve of these deadline threads. Threads with equal parameters, such as the vCPUs
    /// of one VM, have the same points.
    #[must_use]
    pub fn new(threads: &[Reservation]) -> InterferenceCurve {
        let mut threads = threads.to_vec();
        threads.sort_unstable_by_key(|each| (each.period(), each.slice()));
        let kinds: Vec<&[Reservation]> = threads.chunk_by(|one, next| one == next).collect();
        let number = u64::try_from(kinds.len()).unwrap_or(u64::MAX).max(1);
        let slices = (MOST_POINTS / 2 / number).clamp(1, WINDOWS);
        // Lengths of windows at whose end the number of running threads changes, each with the
        // change of this number.
        let mut changes: Vec<(Span, i64)> = Vec::new();
        // For each group of threads with equal parameters: the length of window from which their
        // linear bound is used, and the slope of the bound.
        let mut bounds: Vec<(Span, u128)> = Vec::new();
        for kind in kinds {
            let (each, threads) = (kind[0], u32::try_from(kind.len()).unwrap_or(u32::MAX));
            for slice in 0..slices {
                // The first slice is at the end of a period. The second slice follows at once.
                let end = each.slice() * 2 + each.period() * slice;
                let begin = if slice == 0 { Span::ZERO } else { end - each.slice() };
                changes.extend([(begin, i64::from(threads)), (end, -i64::from(threads))]);
            }
            let from = each.slice() * 2 + each.period() * (slices - 1);
            bounds.push((from, growth_of(each) * u128::from(threads)));
        }
        changes.sort_unstable_by_key(|(window, _)| *window);
        bounds.sort_unstable_by_key(|(from, _)| *from);
        let longest = threads.last().map_or(Span::ZERO, |each| each.period());
        InterferenceCurve { longest, ..InterferenceCurve::through(&changes, &bounds) }
    }

    /// Builds the curve from changes of the number of running threads (`changes`) and from the
    /// starts of linear bounds (`bounds`). Both lists are in the order of their windows.
    fn through(changes: &[(Span, i64)], bounds: &[(Span, u128)]) -> InterferenceCurve {
        let mut curve = InterferenceCurve::default();
        let (mut at, mut taken, mut running) = (Span::ZERO, 0_u128, 0_i64);
        let mut bounds = bounds.iter().peekable();
        for changes in changes.chunk_by(|one, next| one.0 == next.0) {
            let window = changes[0].0;
            let growth = curve.growth + (u128::from(running.unsigned_abs()) << DIGITS);
            taken += growth * u128::from((window - at).ns());
            at = window;
            running += changes.iter().map(|(_, change)| change).sum::<i64>();
            while let Some((_, growth)) = bounds.next_if(|(from, _)| *from <= window) {
                curve.growth += growth;
            }
            let tightest = curve.points.len();
            curve.points.push(Point { window, taken: whole(taken), tightest });
        }
        for index in (1..curve.points.len()).rev() {
            let later = curve.points[index].tightest;
            if curve.points[later].is_tighter_than(&curve.points[index - 1]) {
                curve.points[index - 1].tightest = later;
            }
        }
        curve
    }

    /// Checks that one CPU has time for all deadline threads of the curve and for the dispatcher's
    /// reservations on that CPU. The reservations have the total share `reserved` and the shortest
    /// period `shortest`.
    ///
    /// # Errors
    /// If there is a window in which the CPU does not have enough time. Three windows are checked:
    /// the shortest, the longest, and the window for which `(window - taken) / window` is smallest.
    pub fn check(&self, reserved: CpuShare, shortest: Span) -> Result<(), Interference> {
        let last = shortest.max(self.longest) * WINDOWS;
        let next = self.points.partition_point(|point| point.window <= shortest);
        let tightest = self.points.get(next).map(|next| self.points[next.tightest].window);
        for window in [Some(shortest), tightest, Some(last)].into_iter().flatten() {
            let taken = self.taken_in(window);
            let left = window.left_after(part(window, reserved));
            if taken > left {
                return Err(Interference { window, taken, left });
            }
        }
        Ok(())
    }

    /// Returns the longest time that the threads can take in a window, rounded up. If a thread has
    /// more slices in the window than are counted exactly, its time is replaced by a larger, linear
    /// bound: `2 * slice + (window - 2 * slice) * slice / period`. The bound is exact at the end of
    /// each slice and has no steps, so it needs no more points.
    fn taken_in(&self, window: Span) -> Span {
        let next = self.points.partition_point(|point| point.window < window);
        let Some(before) = next.checked_sub(1).map(|before| self.points[before]) else {
            return Span::ZERO;
        };
        let beyond = u128::from((window - before.window).ns());
        let Some(next) = self.points.get(next) else {
            return before.taken + whole(self.growth * beyond);
        };
        let grown = u128::from((next.taken - before.taken).ns());
        let grown = (grown * beyond).div_ceil(u128::from((next.window - before.window).ns()));
        before.taken + Span::from_ns(u64::try_from(grown).unwrap_or(u64::MAX / 2))
    }
}

impl Point {
    /// Returns true if `(window + 1 ns - taken) / window` is smaller at this point than at `other`.
    fn is_tighter_than(&self, other: &Point) -> bool {
        // The reservations take `floor(window * reserved)`. The CPU lacks time if `taken` plus this
        // is more than `window`, that is, if `window + 1 ns - taken` is at most `window *
        // reserved`.
        let lacks_at = |point: &Point| (point.window + Span::from_ns(1)).left_after(point.taken);
        let product = |time: Span, window: Span| u128::from(time.ns()) * u128::from(window.ns());
        product(lacks_at(self), other.window) < product(lacks_at(other), self.window)
    }
}

/// Returns slice/period in 2^-48ths, rounded up.
fn growth_of(each: Reservation) -> u128 {
    (u128::from(each.slice().ns()) << DIGITS).div_ceil(u128::from(each.period().ns()))
}

/// Returns a time in 2^-48ths of a nanosecond as whole nanoseconds, rounded up.
fn whole(time: u128) -> Span {
    Span::from_ns(u64::try_from(time.div_ceil(1 << DIGITS)).unwrap_or(u64::MAX / 2))
}

fn part(window: Span, share: CpuShare) -> Span {
    let ns = u128::from(window.ns()) * u128::from(share.ppm()) / 1_000_000;
    Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn each(slice: u64, period: u64) -> Reservation {
        Reservation::new(Span::from_ms(slice), Span::from_ms(period)).unwrap()
    }

    const PERIOD: Span = Span::from_ms(10);

    fn percent(percent: u32) -> CpuShare {
        CpuShare::from_ppm(percent * 10_000)
    }

    #[test]
    fn worst_case_interference_of_deadline_thread_begins_with_two_slices() {
        let curve = InterferenceCurve::new(&[each(3, 10)]);
        let of = |window| curve.taken_in(Span::from_ms(window)).ns() / 1_000_000;
        let windows = [0, 2, 3, 6, 10, 13, 14, 16, 20, 26].map(of);
        assert_eq!(windows, [0, 2, 3, 6, 6, 6, 7, 9, 9, 12]);
    }

    #[test]
    fn reservation_is_refused_if_deadline_thread_could_take_whole_period() {
        // A deadline thread of 30 % fits with reservations of 30 % in equal periods, even if it
        // runs for two slices in a row.
        assert_eq!(check_interference(&[each(3, 10)], percent(30), PERIOD), Ok(()));
        // The same 30 % in a period of 100 ms can take the CPU for 60 ms in a row.
        let refused = check_interference(&[each(30, 100)], percent(30), PERIOD).unwrap_err();
        assert_eq!(refused.window, PERIOD);
        assert_eq!((refused.taken, refused.left), (Span::from_ms(10), Span::from_ms(7)));
        assert_eq!(check_interference(&[each(30, 100)], percent(30), Span::from_ms(200)), Ok(()));
    }

    #[test]
    fn interference_of_several_deadline_threads_on_one_cpu_adds_up() {
        let two = [each(1, 10), each(2, 10)];
        assert_eq!(check_interference(&two, percent(20), PERIOD), Ok(()));
        assert!(check_interference(&two, percent(50), PERIOD).is_err());
        assert_eq!(check_interference(&two[..1], percent(50), PERIOD), Ok(()));
        assert_eq!(check_interference(&[], percent(100), PERIOD), Ok(()));
    }

    /// The two threads have periods of 1 ms and 1 s. Each tested window is longer than 64 of the
    /// short periods and shorter than the long period. Only the window of 200.8 ms ends with a
    /// slice of the thread with the short period.
    #[test]
    fn deadline_thread_still_counts_as_interference_after_64_short_periods() {
        let short = Reservation::new(Span::from_us(400), Span::from_ms(1)).unwrap();
        let (both, share) = ([short, each(30, 1_000)], CpuShare::from_ppm(299_401));
        for window in [200_800, 200_400] {
            assert!(check_interference(&both, share, Span::from_us(window)).is_err(), "{window}");
        }
        assert_eq!(check_interference(&both, percent(29), Span::from_us(200_400)), Ok(()));
    }

    /// The share of the deadline thread plus the total share of the reservations is 110 %.
    #[test]
    fn reservations_and_deadline_thread_exceeding_one_cpu_are_refused() {
        for period in [10, 100, 1_000] {
            let refused = check_interference(&[each(6, 10)], percent(50), Span::from_ms(period));
            assert!(refused.is_err(), "{period} ms");
        }
    }

    /// Returns the longest time that one deadline thread can take in a window, without a curve.
    fn taken_by(each: Reservation, window: Span) -> Span {
        let (slice, period) = (each.slice(), each.period());
        if window <= slice {
            return window;
        }
        let after_two = window.left_after(slice * 2);
        if after_two > period * (WINDOWS - 1) {
            let product = u128::from(after_two.ns()) * u128::from(slice.ns());
            let part = product.div_ceil(u128::from(period.ns()));
            return slice * 2 + Span::from_ns(u64::try_from(part).unwrap());
        }
        let after = window.left_after(slice);
        let rest = (after % period).min(slice);
        slice + slice * (after / period) + rest
    }

    fn taken_by_all(threads: &[Reservation], window: Span) -> Span {
        threads.iter().map(|each| taken_by(*each, window)).sum()
    }

    fn different_threads(number: u64) -> Vec<Reservation> {
        let each = |index| {
            let (slice, period) = (Span::from_ns(50_000 + index), Span::from_us(100_000 + index));
            Reservation::new(slice, period).unwrap()
        };
        (0..number).map(each).collect()
    }

    /// The curve rounds the linear bound of each thread up. So the time that it gives for many
    /// threads may exceed the sum of their times by one nanosecond per thread.
    #[test]
    fn interference_curve_of_many_threads_has_limited_number_of_points() {
        for number in [1, 512, 4_000] {
            let threads = different_threads(number);
            let curve = InterferenceCurve::new(&threads);
            let points = u64::try_from(curve.points.len()).unwrap();
            assert!(points <= MOST_POINTS, "{points} points of {number} threads");
            for us in (1..10_000_000).step_by(123_457) {
                let window = Span::from_us(us);
                let taken = curve.taken_in(window) + Span::from_ns(number);
                assert!(taken >= taken_by_all(&threads, window), "{number} threads, {window}");
            }
        }
        let equal = InterferenceCurve::new(&[each(1, 100); 512]);
        assert_eq!(equal.points.len(), InterferenceCurve::new(&[each(1, 100)]).points.len());
    }

    proptest! {
        #[test]
        fn interference_curve_equals_sum_of_all_deadline_threads(
            parameters in prop::collection::vec((1_u64..2_000, 0_u64..3_000), 1..6),
            windows in prop::collection::vec(1_u64..400_000, 8),
            reserved in 0_u32..1_000_000,
        ) {
            let us = Span::from_us;
            let threads = parameters.into_iter().map(|(slice, idle)| (us(slice), us(slice + idle)));
            let threads = threads.map(|(slice, period)| Reservation::new(slice, period).unwrap());
            let threads: Vec<Reservation> = threads.collect();
            let (curve, tolerance) = (InterferenceCurve::new(&threads), 8);
            for &window in &windows {
                let sum = taken_by_all(&threads, us(window));
                let difference = curve.taken_in(us(window)).ns().abs_diff(sum.ns());
                prop_assert!(difference <= tolerance, "{difference} ns in {window} us");
            }
            let (shortest, reserved) = (us(windows[0]), CpuShare::from_ppm(reserved));
            let missing = |window: Span| {
                let left = window.left_after(part(window, reserved));
                taken_by_all(&threads, window).left_after(left).ns()
            };
            match curve.check(reserved, shortest) {
                Ok(()) => {
                    let ends = threads.iter().flat_map(|each| {
                        (0..WINDOWS).map(move |slice| each.slice() * 2 + each.period() * slice)
                    });
                    for window in ends.chain(windows.iter().map(|&window| us(window))) {
                        let lacks = window >= shortest && missing(window) > tolerance;
                        prop_assert!(!lacks, "{window} lacks {} ns", missing(window));
                    }
                }
                Err(Interference { window, taken, left }) => {
                    prop_assert!(window >= shortest && taken > left);
                    prop_assert!(missing(window) + tolerance >= (taken - left).ns());
                }
            }
        }
    }
}
