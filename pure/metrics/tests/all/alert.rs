//! Tests of the allocation error (ALERT) in hand-written runs.

use crate::script::{header, us, vcpu};
use slackline_metrics::{AllocationErrors, WholeSeconds, allocation_error};
use slackline_trace::{Header, RanEnd, Record, Sink, VcpuName};
use slackline_units::{CpuId, CpuShare, Span, Time};

const SECOND: u64 = 1_000_000;

fn seconds(warmup: u64, ran: &[(u32, u64, u64, u64)], end: u64) -> Vec<Vec<Span>> {
    let mut seconds = WholeSeconds::new(&Header { warmup: us(warmup), ..header() });
    let at = |at| Time::START + us(at);
    for slot in 0..2 {
        let (vcpu, name) = (vcpu(slot), format!("d{slot}"));
        seconds.named(&VcpuName { at: at(0), vcpu, domain: name.clone(), name });
    }
    for &(slot, from, to, used) in ran {
        seconds.record(&Record::Ran {
            vcpu: vcpu(slot),
            cpu: CpuId::new(0),
            from: at(from),
            to: at(to),
            used: us(used),
            granted: None,
            late: Span::ZERO,
            end: RanEnd::Limit,
            due: true,
        });
    }
    seconds.record(&Record::Ended { at: at(end) });
    seconds.finish()
}

#[test]
fn allocation_error_test_divides_run_interval_cpu_time_among_seconds() {
    let half = SECOND / 2;
    // The vCPU receives four fifths of the CPU for three seconds, from the middle of the warm-up
    // on.
    let long = (1, half, half + 3 * SECOND, 3 * SECOND * 4 / 5);
    let found = seconds(SECOND, &[(0, 0, 10, 10), long], 4 * SECOND + half);
    assert_eq!(found[0], [Span::ZERO; 3], "CPU time in the warm-up is left out");
    assert_eq!(found[1], [us(800_000), us(800_000), us(400_000)]);
}

#[test]
fn allocation_error_test_omits_incomplete_second_at_run_end() {
    let found = seconds(0, &[(0, 0, SECOND + 10, SECOND + 10)], 2 * SECOND - 1);
    assert_eq!(found, [vec![us(SECOND)], vec![Span::ZERO]]);
    assert_eq!(seconds(0, &[], 10), [vec![], vec![]]);
}

#[test]
fn allocation_error_is_positive_if_vcpu_received_more_than_share() {
    let error =
        |used, share| allocation_error(us(used), Span::from_secs(1), CpuShare::from_ppm(share));
    assert_eq!(error(47_000, 10_000), 3_700_000, "4.7 % received with a share of 1 %");
    assert_eq!(error(0, 10_000), -1_000_000, "nothing");
    assert_eq!(error(60_000, 60_000), 0);
    assert_eq!(error(54_000, 60_000), -100_000);
    assert_eq!(error(54_000, 0), 0, "nothing of nothing");
    let half = allocation_error(us(5_000), Span::from_ms(500), CpuShare::from_ppm(10_000));
    assert_eq!(half, 0, "half a second has half the share");
}

#[test]
fn allocation_errors_of_a_run_are_sorted_and_have_quantiles() {
    let errors: AllocationErrors = [30, -10, 20, 0, -40].into_iter().collect();
    assert_eq!(errors.sorted(), [-40, -10, 0, 20, 30]);
    assert_eq!((errors.smallest(), errors.largest()), (Some(-40), Some(30)));
    assert_eq!((errors.below(-10), errors.above(20)), (Some(200_000), Some(200_000)));
    assert_eq!((errors.below(-40), errors.above(30)), (Some(0), Some(0)));
    assert_eq!((errors.median(), errors.mean_size()), (Some(0), Some(20)));
    let none = AllocationErrors::default();
    assert_eq!((none.below(0), none.median(), none.mean_size()), (None, None, None));
}
