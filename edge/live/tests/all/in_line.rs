//! Tests of the vCPUs behind the chosen vCPU in line, which the kernel runs as soon as the chosen
//! vCPU blocks. The tests supply the events.

use slackline_live::fed::OrderedClass;
use slackline_live::watch::ThreadEventKind;
use slackline_units::Span;

use crate::fed::{ASLEEP, CPUS, host, last_told, share, us, vcpu};

/// Runs two vCPUs with hard limits and with these slices and periods. The first vCPU blocks, and
/// the second runs for `used`, which is its slice less 200 us. Then the first vCPU wakes. Returns
/// true if the second vCPU is stopped at that moment.
fn is_stopped_with_small_rest(shares: [(&str, &str); 2], used: Span) -> bool {
    let mut host = host(1);
    for (slot, (slice, period)) in (0..).zip(shares) {
        host.join(vcpu(slot), &share(slice, period), true).unwrap();
        host.note(CPUS[0], us(1), vcpu(slot), ThreadEventKind::Woke);
    }
    host.at(us(2));
    host.reschedule(CPUS[0]).unwrap();
    assert_eq!(last_told(&host, vcpu(1)), Some(OrderedClass::InLine), "the whole slice is left");
    host.note(CPUS[0], us(2), vcpu(0), ThreadEventKind::SwitchedIn);
    host.note(CPUS[0], us(10), vcpu(0), ASLEEP);
    host.count(vcpu(0), Span::from_us(8));
    host.note(CPUS[0], us(10), vcpu(1), ThreadEventKind::SwitchedIn);
    let until = us(10).after(used);
    host.at(until);
    host.count(vcpu(1), used);
    host.note(CPUS[0], until, vcpu(0), ThreadEventKind::Woke);
    host.reschedule(CPUS[0]).unwrap();
    host.told().contains(&(vcpu(1), OrderedClass::Held))
}

/// The chosen vCPU blocks, and the dispatcher notices that up to 1 ms later. In this time the
/// second vCPU could exceed its hard limit, so it is stopped shortly before it reaches the limit.
#[test]
fn waiting_vcpu_is_stopped_shortly_before_its_hard_limit() {
    let shares = [("6ms", "10ms"), ("2ms", "20ms")];
    assert!(is_stopped_with_small_rest(shares, Span::from_us(1800)));
}

#[test]
fn waiting_vcpu_with_short_period_stays_runnable_near_hard_limit() {
    let shares = [("2ms", "4ms"), ("1ms", "5ms")];
    assert!(!is_stopped_with_small_rest(shares, Span::from_us(800)));
}
