//! Averages and projections by hand: [balancer §5.1].

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, DomId, Span, Time, VcpuId};

use super::super::{PLACES, Parts, Weight};
use super::{Books, average, projected};

const WHOLE: Parts = Parts { some: 1, of: 1 };
const CPU: CpuId = CpuId::new(0);

fn ms(ms: u64) -> Time {
    Time::START.after(Span::from_ms(ms))
}

fn vcpu(slot: u32) -> VcpuId {
    VcpuId::new(slot, DomId::new(slot), 0)
}

/// N6.
#[test]
fn an_average_goes_half_the_way() {
    let mut at = 0;
    let steps: Vec<u64> = (0..5)
        .map(|_| {
            at = average(Some(at), 32);
            at
        })
        .collect();
    assert_eq!(steps, [16, 24, 28, 30, 31]);
    assert_eq!(average(None, 32), 32, "the first counts in full");
}

/// N7: weight 8, asleep 25 ms of 100, the average was 8.
#[test]
fn a_weight_counts_while_it_is_awake() {
    let mut books = Books::new(1, |_| CpuSet::NONE, WHOLE);
    books.join(vcpu(0), Time::START);
    books.wake(vcpu(0), Time::START);
    let eight = |_| Weight(8 << PLACES);
    books.sample(ms(100), eight, &[vcpu(0)]);
    assert_eq!(books.weight(vcpu(0), eight(vcpu(0))), Weight(8 << PLACES));
    books.block(vcpu(0), ms(150));
    books.wake(vcpu(0), ms(175));
    books.sample(ms(200), eight, &[vcpu(0)]);
    assert_eq!(books.weight(vcpu(0), eight(vcpu(0))), Weight(7 << PLACES));
}

/// N8: guarantees took 30 ms of 120.
#[test]
fn what_is_available_is_projected_on_a_sample() {
    let mut books = Books::new(1, |_| CpuSet::NONE, WHOLE);
    books.join(vcpu(0), Time::START);
    books.charge(vcpu(0), CPU, (Span::from_ms(30), true), ms(60));
    books.sample(ms(120), |_| Weight(0), &[]);
    assert_eq!(books.available(CPU), Span::from_ms(75));
    assert_eq!(projected(Span::from_ms(30), Span::from_ms(120)), 25_000_000);
}

/// N9: 40 ms on a CPU whose sibling idled for 10 of them.
#[test]
fn time_beside_a_busy_sibling_counts_for_less() {
    let both: CpuSet = [CPU, CpuId::new(1)].into_iter().collect();
    let siblings = |cpu| both.without(&CpuSet::one(cpu));
    let mut books = Books::new(2, siblings, Parts { some: 65, of: 100 });
    books.join(vcpu(0), Time::START);
    books.wake(vcpu(0), Time::START);
    books.set_busy(CPU, true, Time::START);
    books.mark(CPU, Time::START);
    books.set_busy(CpuId::new(1), true, ms(10));
    books.charge(vcpu(0), CPU, (Span::from_ms(40), false), ms(40));
    books.sample(ms(40), |_| Weight(1 << PLACES), &[vcpu(0)]);
    let served = books.served(vcpu(0), false);
    assert_eq!(served.time, projected(Span::from_us(29_500), Span::from_ms(40)));
    // The sibling was busy for three quarters of it: 1 - 0.35 * 3/4.
    assert_eq!(books.available(CPU), Span::from_ns(73_750_000));
}

/// Of two readings of what is averaged: three take turns, each alone in every third run. By samples
/// the last one that was alone is ahead by 1.5 % of a CPU, by runs by 7 %.
#[test]
fn an_average_by_runs_remembers_longer() {
    let mut books = Books::new(1, |_| CpuSet::NONE, WHOLE);
    books.join(vcpu(0), Time::START);
    books.wake(vcpu(0), Time::START);
    let mut read = Vec::new();
    for run in 0..30_u64 {
        let share = if run % 3 == 0 { 100 } else { 50 };
        for sample in 0..5 {
            let now = ms(100 * (5 * run + sample + 1));
            books.charge(vcpu(0), CPU, (Span::from_ms(share), false), now);
            books.sample(now, |_| Weight(1 << PLACES), &[vcpu(0)]);
        }
        books.average_run(&[vcpu(0)]);
        books.end_run(&[vcpu(0)]);
        read.push([false, true].map(|by_runs| books.served(vcpu(0), by_runs).time / 100_000));
    }
    // Thousandths, a run after it was alone and two runs after; tau by runs is for a weight of one.
    assert_eq!(read[28], [515, 642]);
    assert_eq!(read[29], [500, 571]);
}

/// Who comes later is sampled from when it first woke.
#[test]
fn who_joins_late_is_not_starved() {
    let mut books = Books::new(1, |_| CpuSet::NONE, WHOLE);
    books.join(vcpu(0), ms(10));
    books.sample(ms(50), |_| Weight(1 << PLACES), &[vcpu(0)]);
    assert_eq!(books.weight(vcpu(0), Weight(1 << PLACES)), Weight(0));
    books.wake(vcpu(0), ms(75));
    books.charge(vcpu(0), CPU, (Span::from_ms(25), false), ms(100));
    books.sample(ms(100), |_| Weight(1 << PLACES), &[vcpu(0)]);
    assert_eq!(books.weight(vcpu(0), Weight(1 << PLACES)), Weight(1 << PLACES));
    assert_eq!(books.served(vcpu(0), false).time, 100_000_000);
}

/// Somebody was to run for all of a sample, and had 40 ms on a guarantee and 35 without: a quarter
/// was had by others than ours. Where nobody was to run all of it is there to be had.
#[test]
fn what_others_than_ours_had_is_not_available() {
    let mut books = Books::new(2, |_| CpuSet::NONE, WHOLE);
    books.join(vcpu(0), Time::START);
    books.begin(Time::START);
    books.set_busy(CPU, true, Time::START);
    books.charge(vcpu(0), CPU, (Span::from_ms(40), true), ms(50));
    books.charge(vcpu(0), CPU, (Span::from_ms(35), false), ms(100));
    books.sample(ms(100), |_| Weight(0), &[]);
    assert_eq!(books.available(CPU), Span::from_ms(35));
    assert_eq!(books.available(CpuId::new(1)), Span::from_ms(100));
    // The next one is by itself: idle after half of it, all of which was had.
    books.charge(vcpu(0), CPU, (Span::from_ms(50), false), ms(150));
    books.set_busy(CPU, false, ms(150));
    books.sample(ms(200), |_| Weight(0), &[]);
    assert_eq!(books.available(CPU), Span::from_us(67_500));
}
