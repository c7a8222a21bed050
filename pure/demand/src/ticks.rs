//! Detection of the kernel's tick from the times at which ordinary threads preempted each other.

use slackline_units::{Span, Time};

/// Periods of the tick in usual kernels, most usual first. Preemptions at a 1 ms tick spread evenly
/// over 4 ms, so they do not look like a 4 ms tick. 10 ms is left out, since it is the usual period
/// of reservations, which preempt as well.
const TICKS: [Span; 3] = [Span::from_ms(4), Span::from_ms(1), Span::from_ns(3_333_333)];

/// Number of equal parts of a tick in which preemptions are counted. A tick is found if 70 % of all
/// preemptions lie in `WINDOW` consecutive parts.
const PARTS: usize = 40;
const WINDOW: usize = 3;

/// Minimum number of preemptions from which a tick can be found.
const FEWEST: usize = 10;

/// Returns the period of the tick and the time of the first tick. `None` if the times of the
/// preemptions show no tick.
pub(crate) fn find(preempted: &[Time]) -> Option<(Span, Span)> {
    if preempted.len() < FEWEST {
        return None;
    }
    TICKS.into_iter().find_map(|tick| {
        let mut parts = [0_usize; PARTS];
        for at in preempted {
            let passed = (at.since(Time::START) % tick).ns();
            let part = passed * PARTS as u64 / tick.ns();
            parts[usize::try_from(part).unwrap_or(0).min(PARTS - 1)] += 1;
        }
        let within = |first: usize| (0..WINDOW).map(|next| parts[(first + next) % PARTS]).sum();
        let first = (0..PARTS).max_by_key(|&first| -> usize { within(first) })?;
        let middle = tick * (2 * first + WINDOW) as u64 / (2 * PARTS as u64);
        (10 * within(first) >= 7 * preempted.len()).then_some((tick, middle % tick))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_tick_interval_is_inferred_if_preemptions_coincide_with_ticks() {
        let at = |us: u64| Time::START + Span::from_us(us);
        let times: Vec<Time> = (0..40_u64).map(|n| at(n * 12_000 + 1_230 + n % 7 * 10)).collect();
        let (tick, phase) = find(&times).expect("the preemptions show a tick");
        assert_eq!(tick, Span::from_ms(4));
        assert!(phase.ns().abs_diff(1_260_000) <= 150_000, "{phase}");
        let spread: Vec<Time> = (0..100_u64).map(|n| at(n * 7_919)).collect();
        assert_eq!(find(&spread), None);
        assert_eq!(find(&times[..5]), None);
    }
}
