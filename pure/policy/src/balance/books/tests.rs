//! Averages and scaling of samples, compared with results computed by hand: [balancer §5.1]. The
//! head of `balance` says what [balancer] is.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, DomId, Span, Time, VcpuId};

use super::super::{PLACES, Ratio, Weight};
use super::{LoadSamples, average, projected};

const WHOLE: Ratio = Ratio { some: 1, of: 1 };
const CPU: CpuId = CpuId::new(0);

fn ms(ms: u64) -> Time {
    Time::START.after(Span::from_ms(ms))
}

fn vcpu(slot: u32) -> VcpuId {
    VcpuId::new(slot, DomId::new(slot), 0)
}

/// Case N6 of [balancer]: the average of a constant sample.
#[test]
fn balancer_load_average_moves_halfway_to_each_new_sample() {
    let mut at = 0;
    let steps: Vec<u64> = (0..5)
        .map(|_| {
            at = average(Some(at), 32);
            at
        })
        .collect();
    assert_eq!(steps, [16, 24, 28, 30, 31]);
    assert_eq!(average(None, 32), 32, "the first sample is the average");
}

/// Case N7 of [balancer]: a vCPU of weight 8 is blocked for 25 of 100 ms. Its average weight before
/// was 8.
#[test]
fn balancer_counts_vcpu_weight_only_while_vcpu_is_runnable() {
    let mut books = LoadSamples::new(1, |_| CpuSet::NONE, WHOLE);
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

/// Case N8 of [balancer]: 30 of 120 ms are reserved.
#[test]
fn balancer_scales_available_time_of_long_sample_to_nominal_length() {
    let mut books = LoadSamples::new(1, |_| CpuSet::NONE, WHOLE);
    books.join(vcpu(0), Time::START);
    books.charge(vcpu(0), CPU, (Span::from_ms(30), true), ms(60));
    books.sample(ms(120), |_| Weight(0), &[]);
    assert_eq!(books.available(CPU), Span::from_ms(75));
    assert_eq!(projected(Span::from_ms(30), Span::from_ms(120)), 25_000_000);
}

/// Case N9 of [balancer]: a vCPU runs for 40 ms, and the other thread of the core is idle for 10 of
/// these 40 ms.
#[test]
fn cpu_time_beside_busy_sibling_thread_counts_less_for_balancer() {
    let both: CpuSet = [CPU, CpuId::new(1)].into_iter().collect();
    let siblings = |cpu| both.without(&CpuSet::one(cpu));
    let mut books = LoadSamples::new(2, siblings, Ratio { some: 65, of: 100 });
    books.join(vcpu(0), Time::START);
    books.wake(vcpu(0), Time::START);
    books.set_busy(CPU, true, Time::START);
    books.mark(CPU, Time::START);
    books.set_busy(CpuId::new(1), true, ms(10));
    books.charge(vcpu(0), CPU, (Span::from_ms(40), false), ms(40));
    books.sample(ms(40), |_| Weight(1 << PLACES), &[vcpu(0)]);
    let served = books.served(vcpu(0), false);
    assert_eq!(served.time, projected(Span::from_us(29_500), Span::from_ms(40)));
    // The sibling was busy for three quarters of the interval: 1 - 0.35 * 3/4.
    assert_eq!(books.available(CPU), Span::from_ns(73_750_000));
}

/// Compares averages by samples with averages by runs. The vCPU has the CPU alone in every third
/// run, and half of it in the other runs. Two runs after the vCPU had the CPU alone, the average by
/// samples is back to half of the CPU. The average by runs is still 7 % of the CPU higher.
#[test]
fn balancer_average_over_runs_adapts_more_slowly_than_over_samples() {
    let mut books = LoadSamples::new(1, |_| CpuSet::NONE, WHOLE);
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
    // Values in thousandths, one and two runs after the vCPU was alone. The second value of each
    // run is an average over runs and refers to a weight of one.
    assert_eq!(read[28], [515, 642]);
    assert_eq!(read[29], [500, 571]);
}

/// A newcomer that runs from its first wake to the end of the sample is not counted as starved.
#[test]
fn balancer_sample_of_a_newcomer_begins_at_its_first_wake() {
    let mut books = LoadSamples::new(1, |_| CpuSet::NONE, WHOLE);
    books.join(vcpu(0), ms(10));
    books.sample(ms(50), |_| Weight(1 << PLACES), &[vcpu(0)]);
    assert_eq!(books.weight(vcpu(0), Weight(1 << PLACES)), Weight(0));
    books.wake(vcpu(0), ms(75));
    books.charge(vcpu(0), CPU, (Span::from_ms(25), false), ms(100));
    books.sample(ms(100), |_| Weight(1 << PLACES), &[vcpu(0)]);
    assert_eq!(books.weight(vcpu(0), Weight(1 << PLACES)), Weight(1 << PLACES));
    assert_eq!(books.served(vcpu(0), false).time, 100_000_000);
}

/// The CPU is busy for a whole sample, 40 ms of it reserved and 35 ms best-effort. The missing
/// quarter went to other programs. On an idle CPU all time is available.
#[test]
fn balancer_does_not_count_time_of_other_programs_as_available() {
    let mut books = LoadSamples::new(2, |_| CpuSet::NONE, WHOLE);
    books.join(vcpu(0), Time::START);
    books.begin(Time::START);
    books.set_busy(CPU, true, Time::START);
    books.charge(vcpu(0), CPU, (Span::from_ms(40), true), ms(50));
    books.charge(vcpu(0), CPU, (Span::from_ms(35), false), ms(100));
    books.sample(ms(100), |_| Weight(0), &[]);
    assert_eq!(books.available(CPU), Span::from_ms(35));
    assert_eq!(books.available(CpuId::new(1)), Span::from_ms(100));
    // The next sample: 50 ms busy, all of it received.
    books.charge(vcpu(0), CPU, (Span::from_ms(50), false), ms(150));
    books.set_busy(CPU, false, ms(150));
    books.sample(ms(200), |_| Weight(0), &[]);
    assert_eq!(books.available(CPU), Span::from_us(67_500));
}
