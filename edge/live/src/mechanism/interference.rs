//! Interference of deadline threads with dispatcher reservations on the same CPU.
//!
//! The kernel runs a deadline thread before every `SCHED_FIFO` thread, so before all vCPUs of the
//! dispatcher. In a window of length `t`, a deadline thread with slice `C` runs for at most `C` at
//! the end of one period. It runs for at most `C` at the start of the next, and `C` in each period
//! after that. A deadline thread is not pinned, so each CPU must have time for all deadline
//! threads.
//!
//! Dispatcher reservations of a CPU have the total share `U`. They need at most `U * t` in a window
//! that begins and ends with their periods [Baruah 1990]. The shortest such window is the shortest
//! period. So the CPU serves all reservations if `U * t + interference(t) <= t` for each window `t`
//! from the shortest period on. The test is sufficient, not necessary.

use slackline_units::{CpuShare, Reservation, Span};
use thiserror::Error;

/// Limit of the examined windows. The longest window is `WINDOWS` times the longest period. Windows
/// that end with a slice are examined for the first `WINDOWS` slices of each thread. Beyond these
/// limits, interference grows no faster than its linear bound.
const WINDOWS: u64 = 64;

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

/// Checks that one CPU has time for all deadline threads and for the dispatcher's reservations on
/// that CPU. The reservations have the total share `reserved` and the shortest period `shortest`.
///
/// # Errors
/// The shortest examined window in which the CPU does not have enough time.
pub fn check_interference(
    threads: &[Reservation],
    reserved: CpuShare,
    shortest: Span,
) -> Result<(), Interference> {
    let Some(longest) = threads.iter().map(|each| each.period()).max() else { return Ok(()) };
    let last = shortest.max(longest) * WINDOWS;
    let mut windows: Vec<Span> = threads.iter().flat_map(|each| burst_ends(*each, last)).collect();
    windows.push(shortest);
    windows.push(last);
    windows.sort_unstable();
    // Threads with equal parameters end their slices at the same times.
    windows.dedup();
    for window in windows.into_iter().filter(|window| *window >= shortest) {
        let taken = threads.iter().fold(Span::ZERO, |sum, each| sum + taken_in(*each, window));
        let left = window.left_after(part(window, reserved));
        if taken > left {
            return Err(Interference { window, taken, left });
        }
    }
    Ok(())
}

/// Returns the first windows, up to `last`, that end with a slice of the thread. Interference grows
/// until the end of such a slice, and then stays the same until the next slice.
fn burst_ends(each: Reservation, last: Span) -> impl Iterator<Item = Span> {
    let first = each.slice() * 2;
    (0..WINDOWS).map(move |number| first + each.period() * number).filter(move |end| *end <= last)
}

/// Returns the longest time that a deadline thread can run in a window. If the window is longer
/// than those of [`burst_ends`], the result is the larger, linear bound
/// `2 * slice + (window - 2 * slice) * slice / period`. The bound is exact at the end of each slice
/// and has no steps, so it needs no more windows.
fn taken_in(each: Reservation, window: Span) -> Span {
    let (slice, period) = (each.slice(), each.period());
    if window <= slice {
        return window;
    }
    let after_two = window.left_after(slice * 2);
    if after_two > period * (WINDOWS - 1) {
        let part = u128::from(after_two.ns()) * u128::from(slice.ns());
        let part = part.div_ceil(u128::from(period.ns()));
        return slice * 2 + Span::from_ns(u64::try_from(part).unwrap_or(u64::MAX / 2));
    }
    // The first slice is at the end of a period, and each other slice at the start of a period.
    let after = window.left_after(slice);
    let whole = after / period;
    let rest = after.left_after(period * whole).min(slice);
    slice + slice * whole + rest
}

fn part(window: Span, share: CpuShare) -> Span {
    let ns = u128::from(window.ns()) * u128::from(share.ppm()) / 1_000_000;
    Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
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
        let of = |window| taken_in(each(3, 10), Span::from_ms(window)).ns() / 1_000_000;
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

    /// The periods of the two threads are 1 ms and 1 s. Both windows are longer than 64 short
    /// periods and shorter than one long period. Only the window of 200.8 ms ends with a slice of
    /// the thread with the short period.
    #[test]
    fn slices_after_64_short_periods_still_count_as_interference() {
        let short = Reservation::new(Span::from_us(400), Span::from_ms(1)).unwrap();
        let (both, share) = ([short, each(30, 1_000)], CpuShare::from_ppm(299_401));
        for window in [200_800, 200_400] {
            assert!(check_interference(&both, share, Span::from_us(window)).is_err(), "{window}");
        }
        assert_eq!(check_interference(&both, percent(29), Span::from_us(200_400)), Ok(()));
    }

    /// The shares of the deadline thread and of the reservations add up to 110 %.
    #[test]
    fn reservations_and_deadline_thread_exceeding_one_cpu_are_refused() {
        for period in [10, 100, 1_000] {
            let refused = check_interference(&[each(6, 10)], percent(50), Span::from_ms(period));
            assert!(refused.is_err(), "{period} ms");
        }
    }
}
