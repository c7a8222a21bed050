//! Time in which no vCPU can run: programs with precedence over all vCPUs, and the scheduler
//! itself. Also the division of slack by the kernel. Every expected number is worked out by hand.

use slackline_metrics::{Meter, Summary};
use slackline_scenario::Scenario;
use slackline_units::Span;

fn run(text: &str) -> Summary {
    let scenario = Scenario::read(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut meter = Meter::new(&slackline_sim::trace_header(&scenario));
    slackline_sim::run(&scenario, &mut meter).expect("the set is admitted");
    meter.view().expect("every vCPU has a name")
}

fn delivered(summary: &Summary) -> Vec<Span> {
    summary.vcpus.iter().map(|vcpu| vcpu.delivered).collect()
}

const HEAD: &str = "title = 't'\nlength = '10s'\npolicy = { name = 'edf' }\n";
const SHORT: &str = "title = 't'\nlength = '5ms'\npolicy = { name = 'edf' }\n";

#[test]
fn cpu_time_of_host_interference_is_charged_to_no_vcpu() {
    let interference =
        "[[interference]]\ncpu = 0\nready = ['1s', '2s']\nwork = ['100ms', '300ms']\n";
    let domain = |rest: &str| {
        format!(
            "[[domain]]\nname = 'a'\nwork = {{ kind = 'spin' }}\n\
             share.edf = {{ slice = '2ms', period = '10ms'{rest} }}\n"
        )
    };
    let summary = run(&format!("{HEAD}{interference}{}", domain("")));
    assert_eq!(delivered(&summary), [Span::from_ms(9_600)]);
    assert_eq!(summary.cpus[0].idle, Span::ZERO);
    let overheads = summary.cpus[0].overheads.expect("a simulation knows its overhead");
    assert_eq!(overheads.total(), Span::from_ms(400));
    // The interference takes 40 whole periods. Their budgets are delivered later.
    let summary = run(&format!("{HEAD}{interference}{}", domain(", exact = true")));
    assert_eq!(delivered(&summary), [Span::from_secs(2)]);
    assert_eq!(summary.vcpus[0].misses, Some(40));
}

#[test]
fn vcpu_that_wakes_waits_until_the_scheduling_pass_has_ended() {
    let host = "[host]\nwake_pass = '30us'\ntimer_pass = '10us'\n";
    let domain = "[[domain]]\nname = 'a'\nshare.edf = { slice = '2ms', period = '10ms' }\n\
                  work = { kind = 'periodic', period = '20ms', work = '1ms' }\n";
    let summary = run(&format!("{HEAD}{host}{domain}"));
    let waits = summary.vcpus[0].wake_to_run.expect("the vCPU wakes");
    // Before its first wake the vCPU has run on no CPU. So its first wake causes no pass.
    assert_eq!((waits.p50, waits.worst), (Some(Span::from_us(30)), Span::from_us(30)));
    assert_eq!(delivered(&summary), [Span::from_ms(500)]);
}

#[test]
fn wake_pass_setting_of_vm_overrides_the_host_setting() {
    let domain = |name: &str, joins: &str, pass: &str| {
        format!(
            "[[domain]]\nname = '{name}'\njoins = '{joins}'\n{pass}\
             share.edf = {{ slice = '2ms', period = '10ms' }}\n\
             work = {{ kind = 'periodic', period = '20ms', work = '1ms' }}\n"
        )
    };
    let own = domain("a", "0s", "wake_pass = '70us'\n");
    let other = domain("b", "5ms", "");
    let summary = run(&format!("{HEAD}[host]\nwake_pass = '30us'\n{own}{other}"));
    let p50s = summary.vcpus.iter().map(|vcpu| vcpu.wake_to_run.and_then(|waits| waits.p50));
    assert_eq!(p50s.collect::<Vec<_>>(), [70, 30].map(|us| Some(Span::from_us(us))));
}

#[test]
fn stop_lateness_setting_prolongs_timeslices_of_that_vm_only() {
    let late = "[[domain]]\nname = 'a'\nwork = { kind = 'spin' }\nstop_lateness = '100us'\n\
                share.edf = { slice = '2ms', period = '10ms', exact = true }\n";
    let other = "[[domain]]\nname = 'b'\nwork = { kind = 'spin' }\n\
                 share.edf = { slice = '1ms', period = '10ms', exact = true }\n";
    let summary = run(&format!("{SHORT}{late}{other}"));
    assert_eq!(delivered(&summary), [Span::from_us(2_100), Span::from_ms(1)]);
}

#[test]
fn host_kernel_divides_slack_equally_and_hard_limits_still_apply() {
    let domain = |name: &str, rest: &str| {
        format!(
            "[[domain]]\nname = '{name}'\nwork = {{ kind = 'spin' }}\n\
             share.edf = {{ slice = '1ms', period = '10ms'{rest} }}\n"
        )
    };
    let domains = domain("a", "") + &domain("b", "") + &domain("c", ", exact = true");
    let host = "[host]\nfair = { slice = '1400us', tick = '4ms', phase = '1ms' }\n";
    let summary = run(&format!("{HEAD}{host}{domains}"));
    let [a, b, c] = delivered(&summary)[..] else { panic!("three vCPUs") };
    assert_eq!(a + b + c, Span::from_secs(10));
    assert_eq!(c, Span::from_secs(1));
    assert!(a.ns().abs_diff(b.ns()) < 500_000_000, "{a} and {b}");
    // `a` and `b` each receive their reserved second and about half of the 7 s of slack.
    assert!(a.min(b) > Span::from_secs(4), "{a} and {b}");
    assert_eq!(summary.vcpus.iter().map(|vcpu| vcpu.misses).sum::<Option<u64>>(), Some(0));
}
