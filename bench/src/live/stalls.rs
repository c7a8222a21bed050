//! Stalls of the test machine that explain why slices of a run are incomplete. The stalls are found
//! in the trace of the run. All vCPUs of the run are always runnable. There are two kinds of
//! stalls: a late timer in a period with an incomplete slice, and time that was taken from a vCPU
//! while it ran.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::Result;
use slackline_trace::{Entry, Reader, Record};
use slackline_units::{Reservation, Span, Time, VcpuId};

/// Largest shortfall with which a slice still counts as complete. The clocks for CPU time and for
/// switches can differ by this amount.
const WHOLE: Span = Span::from_us(5);

/// Minimum lateness of a timer, or minimum CPU time missing from a run interval, that counts as a
/// stall.
const STALL: Span = Span::from_us(200);

/// Maximum number of stalls that are listed. A run can have thousands of stalls.
const NAMED: usize = 5;

/// A stall of the test machine, with the amount of missing CPU time that the stall explains.
struct Stall {
    /// Start of the interval in which the stall happened.
    from: Time,
    to: Time,
    /// Duration of the stall. A stall can be shorter than the interval in which it happened.
    lasted: Span,
    explains: Span,
}

/// Describes the missing parts of slices in a run, and the stalls that explain them. `promises` has
/// the reservation of each vCPU, in the order in which the vCPUs joined.
pub(super) fn explain(trace: &Path, promises: &[Reservation]) -> Result<String> {
    let mut reader = Reader::new(File::open(trace)?)?;
    let (mut joined, mut ran, mut stalls) = (Vec::new(), BTreeMap::new(), Vec::new());
    let mut end = Time::START;
    while let Some(entry) = reader.next_entry()? {
        let Entry::Record(record) = entry else { continue };
        match record {
            Record::Joined { at, vcpu } => joined.push((vcpu, at)),
            Record::Ran { vcpu, from, to, used, .. } => {
                ran.entry(vcpu).or_insert_with(Vec::new).push((from, to, used));
                let lasted = to.since(from).left_after(used);
                if lasted > STALL {
                    stalls.push(Stall { from, to, lasted, explains: Span::ZERO });
                }
            }
            Record::RangLate { at, late, .. } if late > STALL => {
                let from = Time::from_ns(at.ns() - late.ns().min(at.ns()));
                stalls.push(Stall { from, to: at, lasted: late, explains: Span::ZERO });
            }
            Record::Ended { at } => end = at,
            _ => {}
        }
    }
    let (mut missing, mut periods) = (Span::ZERO, 0_u64);
    for (&(vcpu, at), promise) in joined.iter().zip(promises) {
        for (from, to, lacks) in short(&ran, vcpu, (at, end), *promise) {
            (missing, periods) = (missing + lacks, periods + 1);
            let mut left = lacks;
            for stall in stalls.iter_mut().filter(|it| it.from < to && it.to > from) {
                let within = stall.to.min(to).since(stall.from.max(from));
                let explains = left.min(within).min(stall.lasted);
                stall.explains += explains;
                left -= explains;
            }
        }
    }
    Ok(sentence(missing, periods, stalls))
}

/// Returns the periods in which a vCPU received less than its slice, each with the shortfall.
fn short(
    ran: &BTreeMap<VcpuId, Vec<(Time, Time, Span)>>,
    vcpu: VcpuId,
    (joined, end): (Time, Time),
    promise: Reservation,
) -> Vec<(Time, Time, Span)> {
    let count = usize::try_from(end.since(joined) / promise.period()).unwrap_or(0);
    let start = |nth: usize| joined + promise.period() * nth as u64;
    let mut received = vec![Span::ZERO; count];
    for &(from, to, used) in ran.get(&vcpu).into_iter().flatten() {
        let nth = |at: Time| usize::try_from(at.since(joined) / promise.period()).unwrap_or(0);
        for (index, received) in received.iter_mut().enumerate().take(nth(to) + 1).skip(nth(from)) {
            let within = to.min(start(index + 1)).since(from.max(start(index)));
            let part = u128::from(used.ns()) * u128::from(within.ns())
                / u128::from(to.since(from).ns().max(1));
            *received += Span::from_ns(u64::try_from(part).unwrap_or(u64::MAX));
        }
    }
    // The first period is left out, because the run began within it.
    let lacks = received.iter().enumerate().skip(1).map(|(index, received)| {
        (start(index), start(index + 1), promise.slice().left_after(*received))
    });
    lacks.filter(|(.., lacks)| *lacks > WHOLE).collect()
}

fn sentence(missing: Span, periods: u64, mut stalls: Vec<Stall>) -> String {
    if periods == 0 {
        return "no slice was incomplete".into();
    }
    let explained: Span = stalls.iter().map(|stall| stall.explains).sum();
    stalls.retain(|stall| !stall.explains.is_zero());
    stalls.sort_by_key(|stall| std::cmp::Reverse(stall.explains));
    let percent = explained.ns() as f64 * 100.0 / missing.ns() as f64;
    let mut text = format!(
        "{missing} of CPU time was missing in {periods} slices, and {} stalls explain \
         {percent:.0} % of the missing time",
        stalls.len()
    );
    for (place, stall) in stalls.iter().take(NAMED).enumerate() {
        let at = stall.to.ns() as f64 / 1e9;
        let (before, length) = (if place == 0 { ": " } else { ", " }, stall.lasted);
        text +=
            &format!("{before}stall of {length} at {at:.3} s explains {} of it", stall.explains);
    }
    text
}

#[cfg(test)]
mod tests {
    use slackline_units::DomId;

    use super::*;

    fn ms(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    #[test]
    fn shortfall_of_period_ignores_cpu_time_received_after_the_period() {
        let vcpu = VcpuId::new(0, DomId::new(0), 0);
        let promise = Reservation::new(Span::from_ms(3), Span::from_ms(10)).unwrap();
        let whole = |nth: u64| (ms(10 * nth), ms(10 * nth + 3), Span::from_ms(3));
        // The third interval begins 9 ms late, so only 1 ms of it lies in its own period.
        let ran = [whole(0), whole(1), (ms(29), ms(33), Span::from_ms(4)), whole(4)];
        let ran = BTreeMap::from([(vcpu, ran.to_vec())]);
        let short = short(&ran, vcpu, (Time::START, ms(50)), promise);
        assert_eq!(short, [(ms(20), ms(30), Span::from_ms(2))]);
    }
}
