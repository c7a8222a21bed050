//! Tests of the terms of reservations.

use super::*;

fn each(slice_us: u64, period_us: u64) -> Reservation {
    Reservation::new(Span::from_us(slice_us), Span::from_us(period_us)).unwrap()
}

const NO_CHANGE: TermsChange =
    TermsChange { amount: None, exact: None, phase: None, vcpus: None, until: None, enforce: None };

/// A deadline thread always has a hard limit, and the kernel starts its periods. A reservation
/// keeps its mechanism until a change names another mechanism.
#[test]
fn deadline_mechanism_is_refused_for_parameters_kernel_cannot_enforce() {
    let exact = Terms::new(each(2_000, 10_000), true, 2).unwrap();
    let by = exact.enforced_by(Enforcement::Deadline).unwrap();
    assert_eq!(by.to_string(), "2ms/10ms exact for 2 vCPUs by deadline");
    let (slack, phase) = (Some(false), Some(Some(Span::from_ms(3))));
    let refused = |change: TermsChange| change.of(by).unwrap_err().to_string();
    assert!(refused(TermsChange { exact: slack, ..NO_CHANGE }).contains("add --exact"));
    assert!(refused(TermsChange { phase, ..NO_CHANGE }).contains("drop the phase"));
    let amount = Some(Amount::Together { share: CpuShare::from_ppm(300_000), period: None });
    assert!(refused(TermsChange { amount, ..NO_CHANGE }).contains("for each vCPU"));
    let amount = Some(Amount::Each(each(100_000, 5_000_000)));
    let long = refused(TermsChange { amount, ..NO_CHANGE });
    assert!(long.ends_with("a period of 5s is longer than the maximum of 4.194304s"), "{long}");
    let enforce = Some(Enforcement::Dispatcher);
    let back = TermsChange { exact: slack, enforce, ..NO_CHANGE }.of(by).unwrap();
    assert_eq!(back.to_string(), "2ms/10ms for 2 vCPUs");
    for wrong in [Enforcement::Quota, Enforcement::Weight] {
        let why = MechanismLimit::Guarantee;
        assert_eq!(exact.enforced_by(wrong), Err(TermsError::Mechanism { by: wrong, why }));
    }
}

/// A reservation with an end time needs as much capacity as a reservation without an end time.
#[test]
fn reservation_keeps_its_end_time_when_other_parameters_change() {
    let forever = Terms::new(each(2_000, 10_000), false, 1).unwrap();
    let until: WallTime = "2026-12-01T18:00".parse().unwrap();
    let ends = forever.with_end(Some(until));
    assert_eq!(ends.to_string(), "2ms/10ms for 1 vCPU until 2026-12-01T18:00:00Z");
    assert!(ends != forever && ends.is_enforced_as(forever));
    assert!(ends.is_within(forever) && forever.is_within(ends));
    let exact = TermsChange { exact: Some(true), ..NO_CHANGE }.of(ends).unwrap();
    assert_eq!((exact.until(), exact.exact()), (Some(until), true));
    assert!(!exact.is_enforced_as(ends));
    assert_eq!(TermsChange { until: Some(None), ..NO_CHANGE }.of(ends), Ok(forever));
}

#[test]
fn cpu_share_is_divided_equally_among_vcpus_and_rounded_up() {
    let share = CpuShare::from_ppm(1_500_000);
    let terms = Amount::Together { share, period: None }.terms(false, 2).unwrap();
    assert_eq!(terms.to_string(), "7.5ms/10ms for 2 vCPUs by use");
    let third = CpuShare::ONE;
    let terms = Amount::Together { share: third, period: None }.terms(true, 3).unwrap();
    assert_eq!(terms.each().slice(), Span::from_ns(3_333_334));
    let wrong = Amount::Together { share, period: None }.terms(false, 1).unwrap_err();
    assert_eq!(wrong.to_string(), "1.5cpu is more than 1 vCPU can use");
}

/// A total share for all vCPUs together lets the vCPUs borrow unused budget, and a slice for each
/// vCPU does not. Parameters that a change does not name stay as they are.
#[test]
fn vcpus_borrow_budget_only_if_vm_reserves_a_total_share() {
    let together = Amount::Together { share: CpuShare::from_ppm(600_000), period: None };
    let three = together.terms(true, 3).unwrap();
    assert_eq!(three.to_string(), "2ms/10ms exact for 3 vCPUs by use");
    let each_of = |vcpus| Amount::Each(each(2_000, 10_000)).terms(true, vcpus).unwrap();
    assert!(three.by_use() && !each_of(3).by_use() && three != each_of(3));
    let nothing = NO_CHANGE;
    let change = |change: TermsChange| change.of(three).unwrap();
    assert!(change(TermsChange { exact: Some(false), ..nothing }).by_use());
    let one = change(TermsChange { vcpus: Some(1), ..nothing });
    assert!(!one.by_use(), "{one}: a single vCPU cannot borrow");
    let amount = Some(Amount::Each(each(2_000, 10_000)));
    assert_eq!(change(TermsChange { amount, ..nothing }), each_of(3));
}

#[test]
fn refusal_of_invalid_reservation_parameters_contains_the_allowed_bound() {
    let says = |each, vcpus| Terms::new(each, false, vcpus).unwrap_err().to_string();
    assert_eq!(
        says(each(19, 20), 1),
        "cannot use a period of 20us: it must be from 1ms to 604800s"
    );
    assert_eq!(says(each(49, 1000), 1), "a slice of 49us is too short: the shortest is 50us");
    assert!(says(each(951, 1000), 1).contains("must leave at least 50us of a period of 1ms"));
    assert_eq!(says(each(50, 1000), 0), "cannot use 0 vCPUs: the number must be from 1 to 512");
    assert!(Terms::new(each(950, 1000), true, 512).is_ok());
}

#[test]
fn reservation_phase_must_be_below_period_and_needs_no_capacity() {
    let terms = Terms::new(each(2_000, 10_000), true, 2).unwrap();
    let late = terms.with_phase(Some(Span::from_us(9_999))).unwrap();
    assert_eq!(late.to_string(), "2ms/10ms exact for 2 vCPUs in phase 9.999ms");
    assert!(late.is_within(terms) && terms.is_within(late) && late != terms);
    assert_eq!(late.with_phase(None), Ok(terms));
    let says = terms.with_phase(Some(Span::from_ms(10))).unwrap_err().to_string();
    assert_eq!(says, "a phase of 10ms must be shorter than the period of 10ms");
}

/// New terms exceed the old terms if the share is larger, the period is shorter, or there are more
/// vCPUs. A longer period alone never makes the terms exceed the old ones.
#[test]
fn reservation_with_larger_share_or_shorter_period_exceeds_old_reservation() {
    let terms = |slice, period, vcpus| Terms::new(each(slice, period), false, vcpus).unwrap();
    let old = terms(5_000, 10_000, 2);
    for within in [old, terms(4_000, 10_000, 2), terms(50_000, 100_000, 1)] {
        assert!(within.is_within(old), "{within}");
    }
    for beyond in [terms(5_001, 10_000, 1), terms(1_000, 9_000, 1), terms(1_000, 10_000, 3)] {
        assert!(!beyond.is_within(old), "{beyond}");
    }
}

#[test]
fn reservation_with_long_period_is_enforced_in_short_parts() {
    let terms = |slice: Span, period: Span| {
        let each = Reservation::new(slice, period).unwrap();
        Terms::new(each, true, 2).unwrap()
    };
    let ms = Span::from_ms;
    let enforced = |slice, period| {
        let each = terms(slice, period).in_each_second().each();
        (each.slice(), each.period())
    };
    assert_eq!(enforced(ms(2), ms(10)), (ms(2), ms(10)));
    assert_eq!(enforced(ms(90), ms(100)), (ms(90), ms(100)));
    assert_eq!(enforced(ms(900), ms(1_000)), (ms(90), ms(100)));
    assert_eq!(enforced(ms(1_000), ms(10_000)), (ms(10), ms(100)));
    assert_eq!(enforced(ms(900), ms(1_500)), (ms(60), ms(100)));
    // A small slice is not divided into parts below 1 ms to reach periods of 100 ms.
    assert_eq!(enforced(ms(2), ms(1_000)), (ms(1), ms(500)));
    let us = Span::from_us;
    assert_eq!(enforced(us(500), ms(1_000)), (us(500), ms(1_000)));
    assert_eq!(enforced(us(500), ms(2_000)), (us(250), ms(1_000)));
    // Only an administrator can reserve a slice that is this long. It is enforced without a
    // division.
    assert_eq!(enforced(ms(1_001), ms(10_000)), (ms(1_001), ms(10_000)));
    let week = Span::from_secs(7 * 24 * 3600);
    assert_eq!(enforced(Span::from_us(50), week), (Span::from_us(50), week));
    assert_eq!(enforced(Span::from_us(100), week), (Span::from_us(50), week / 2));
    // A slice is divided even if its share is very small.
    let hours = Span::from_secs(20_001);
    let (slice, period) = enforced(ms(1_000), hours);
    assert_eq!((slice, period), (Span::from_us(50), hours / 20_000));
    assert_eq!(enforced(ms(1_000), week), (Span::from_us(50), week / 20_000));
    // A prime number of nanoseconds cannot be divided evenly.
    let (slice, period) = enforced(ms(500), Span::from_ns(5_000_000_029));
    assert!(period <= ms(100) && slice <= ms(10), "{slice} {period}");
    assert!(slice.ns() * 10 + 20 > period.ns());
    let phased = terms(ms(1_000), ms(10_000)).with_phase(Some(ms(3_250))).unwrap();
    assert_eq!(phased.in_each_second().phase(), Some(ms(50)));
}

/// The test has five reservations of 17.9 % of a CPU each. If their periods begin together and all
/// of them use their slices, the CPU runs without a break until all these slices are used.
#[test]
fn five_reservations_starting_together_keep_cpu_busy_under_one_second() {
    let terms = [(107_400, 600), (125_300, 700), (143_200, 800), (161_100, 900), (179_000, 1_000)];
    let terms = terms.map(|(slice_us, period_ms)| {
        Terms::new(each(slice_us, period_ms * 1_000), true, 1).unwrap()
    });
    let busy = |terms: &[Terms]| {
        let (mut end, mut work) = (0_u64, 1_u64);
        while end < work {
            end = work;
            let used = |terms: &Terms| {
                let each = terms.each();
                end.div_ceil(each.period().ns()) * each.slice().ns()
            };
            work = terms.iter().map(used).sum();
        }
        Span::from_ns(end)
    };
    assert!(busy(&terms) > Span::from_secs(2), "{}", busy(&terms));
    let enforced = terms.map(Terms::in_each_second);
    assert!(busy(&enforced) <= Span::from_ms(900), "{}", busy(&enforced));
}
