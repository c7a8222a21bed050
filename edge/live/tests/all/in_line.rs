//! Tests of the vCPUs that follow the chosen vCPU in line. The tests supply the events.

use slackline_live::fed::OrderedClass;
use slackline_live::watch::ThreadEventKind;
use slackline_units::Span;

use crate::fed::{ASLEEP, CPUS, host, last_told, share, us, vcpu};

/// Returns true if the second of two vCPUs with these slices and periods is stopped when the first
/// vCPU wakes. By then, the second vCPU has received `used`, which is its slice
/// without the last 200 us.
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

/// The dispatcher notices up to 1 ms late that the chosen vCPU has blocked. Meanwhile the second
/// vCPU would exceed its hard limit.
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
