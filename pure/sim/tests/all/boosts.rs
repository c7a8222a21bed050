//! Boosts of Credit as metrics, with results worked out by hand.

use slackline_metrics::{Meter, Summary};
use slackline_scenario::Scenario;
use slackline_units::Span;

/// Runs a hog beside a vCPU with a job every 100 ms. Returns the results of one second, after a
/// warm-up of one second.
fn beside_hog(policy: &str, joins: &str, work: &str) -> Summary {
    let text = format!(
        "title = 't'\nlength = '2s'\nwarmup = '1s'\npolicy = {{ {policy} }}\n\
         [[domain]]\nname = 'hog'\nwork = {{ kind = 'spin' }}\n\
         [[domain]]\nname = 'x'\njoins = '{joins}'\n\
         work = {{ kind = 'periodic', period = '100ms', work = '{work}' }}\n"
    );
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{error:?} in\n{text}"));
    let mut meter = Meter::new(&slackline_sim::trace_header(&scenario));
    slackline_sim::run(&scenario, &mut meter).expect("the run completes");
    meter.view().expect("every vCPU has a name")
}

/// A boost of `credit` lasts for 10 ms of CPU time. By Xen's rules, a boost ends at the next tick.
/// In this test the next tick is 5 ms after each wake-up. A job of 12 ms uses the boost up, and a
/// job of 2 ms does not.
#[test]
fn boost_used_up_by_long_job_counts_as_false_boost() {
    let exact = "name = 'credit'";
    let by_ticks = "name = 'credit', rules = 'xen-3.0.4', tick = '10ms'";
    for (policy, work, expected) in [
        (exact, "2ms", (10, 0, 20)),
        (exact, "12ms", (10, 10, 100)),
        (by_ticks, "2ms", (10, 0, 20)),
        (by_ticks, "12ms", (10, 10, 50)),
        ("name = 'credit', boost = 'off'", "12ms", (0, 0, 0)),
        ("name = 'round-robin'", "12ms", (0, 0, 0)),
    ] {
        let run = beside_hog(policy, "5ms", work);
        let [hog, x] = [0, 1].map(|slot| {
            let vcpu = &run.vcpus[slot];
            (vcpu.boosts, vcpu.false_boosts, vcpu.boosted)
        });
        let (boosts, false_boosts, boosted) = expected;
        let expected = (boosts, false_boosts, Span::from_ms(boosted));
        assert_eq!((hog, x), ((0, 0, Span::ZERO), expected), "{policy}, {work}");
    }
}
