//! Tests of finding scheduling passes among the entries of a trace.

use slackline_terminal::{Listing, Passes, SchedulingPass};
use slackline_trace::{Entry, Exchange, Fact, Order, Outcome, RanEnd, Record, VcpuName};
use slackline_units::{CpuId, DomId, Entitlement, Span, Time, VcpuId};

const CPU: CpuId = CpuId::new(0);

fn at(ms: u64) -> Time {
    Time::START + Span::from_ms(ms)
}

fn vcpu(slot: u32) -> VcpuId {
    VcpuId::new(slot, DomId::new(slot), 0)
}

fn settled(ms: u64) -> Entry {
    Entry::Exchange(Exchange::Reported { now: at(ms), fact: Fact::Settled })
}

fn run(slot: u32, until: u64, outcome: Outcome) -> Entry {
    let (until, entitlement) = (Some(at(until)), Entitlement::Due);
    let order = Order::Run { cpu: CPU, vcpu: vcpu(slot), until, entitlement };
    Entry::Exchange(Exchange::Ordered { order, outcome })
}

/// At 0 ms vCPU 0 is picked. At 10 ms vCPU 1 is picked, and a second pass at the same time picks
/// vCPU 0 instead. At 20 ms vCPU 0 is picked again. A second pass at the same time picks vCPU 1,
/// and ends a timeslice of 10 ms, not a timeslice of zero length.
fn entries() -> Vec<Entry> {
    let name = |slot, name: &str| {
        let (name, domain) = (name.into(), name.into());
        Entry::Named(VcpuName { at: at(0), vcpu: vcpu(slot), name, domain })
    };
    let (from, to, used) = (at(10), at(20), Span::from_ms(10));
    let (granted, late, end) = (Some(used), Span::ZERO, RanEnd::Limit);
    let ran =
        Record::Ran { vcpu: vcpu(0), cpu: CPU, from, to, used, granted, late, end, due: true };
    let idle = Exchange::Ordered { order: Order::Idle { cpu: CPU }, outcome: Outcome::Done };
    vec![
        name(0, "a"),
        name(1, "b"),
        settled(0),
        run(0, 10, Outcome::Done),
        settled(10),
        run(1, 20, Outcome::Done),
        run(0, 20, Outcome::Done),
        Entry::Record(ran),
        settled(20),
        run(0, 30, Outcome::Done),
        run(1, 30, Outcome::Refused),
        Entry::Exchange(idle),
    ]
}

#[test]
fn vcpu_replaced_before_running_is_listed_as_empty_timeslice() {
    let mut passes = Passes::default();
    let mut found: Vec<SchedulingPass> = Vec::new();
    for entry in entries() {
        match entry {
            Entry::Record(record) => passes.record(&record),
            Entry::Exchange(exchange) => found.extend(passes.exchange(&exchange)),
            _ => {}
        }
    }
    let shown: Vec<_> = found
        .iter()
        .map(|it| (it.at, it.picked.map(|(vcpu, _)| vcpu.slot()), it.empty.map(|it| it.slot())))
        .collect();
    let expected = [
        (at(0), Some(0), None),
        (at(10), Some(1), None),
        (at(10), Some(0), Some(1)),
        (at(20), Some(0), None),
        (at(20), Some(1), None),
        (at(20), None, None),
    ];
    assert_eq!(shown, expected);
    assert_eq!(found.iter().filter(|it| it.is_refused).count(), 1);
    assert_eq!(found[1].granted, Some(Span::from_ms(10)));
}

#[test]
fn list_of_scheduling_passes_shows_granted_and_empty_timeslices() {
    let mut text = Vec::new();
    let mut list = Listing::new(&mut text, &[], at(10), Span::from_ms(5)).with_passes();
    entries().iter().for_each(|entry| entry.pass_to(&mut list));
    list.finish().expect("writing to memory cannot fail");
    let text = String::from_utf8(text).expect("a list is text");
    let rows: Vec<Vec<&str>> = text.lines().map(|it| it.split_whitespace().collect()).collect();
    let expected = [
        &["10.000000", "10.000000", "cpu0", "b", "0.000000", "10.000000", "pass", "due"][..],
        &["10.000000", "10.000000", "cpu0", "b", "0.000000", "-", "empty", "-"],
        &["10.000000", "10.000000", "cpu0", "a", "0.000000", "10.000000", "pass", "due"],
        &["10.000000", "20.000000", "cpu0", "a", "10.000000", "10.000000", "limit", "due"],
    ];
    assert_eq!(rows[1..], expected, "{text}");
}
