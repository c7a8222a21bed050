//! Tests of a shortcut: the simulator completes a work item without the event queue if the item
//! ends before any other event. The results must be the same as without the shortcut.

use std::fmt::Write as _;
use std::ops::ControlFlow;

use proptest::prelude::*;
use slackline_scenario::Scenario;
use slackline_trace::Record;

use crate::{Sim, SimResults};

/// Returns all records and the other results of a run. `one_by_one` disables the shortcut past the
/// event queue.
fn run(scenario: &Scenario, one_by_one: bool) -> (Vec<Record>, Result<SimResults, String>) {
    let mut sim = Sim::new(scenario);
    sim.one_by_one = one_by_one;
    let mut records: Vec<Record> = Vec::new();
    let finished = sim
        .run(&mut records, |_| ControlFlow::Continue(()), &mut |_, _| Vec::new())
        .map_err(|error| error.to_string());
    (records, finished)
}

/// Policies with their rules, in the form in which they follow `name = '` in TOML.
const POLICIES: [&str; 8] = [
    "round-robin'",
    "bvt', rules = 'xen-2.0'",
    "bvt'",
    "credit'",
    "credit', rules = 'xen-3.0.4'",
    "edf'",
    "sedf', rules = 'xen-3.0.2'",
    "gedf'",
];

const SHARES: &str = "share.edf = { slice = '1ms', period = '10ms' }\n\
                      share.sedf = { slice = '1ms', period = '10ms' }\n\
                      share.gedf = { budget = '1ms', period = '10ms' }\n";

/// Workloads in TOML that serve requests or compute.
const WORKS: [&str; 6] = [
    "{ kind = 'web-server', each = 'uniform 20us 400us', response = '10KiB', processes = 3 }",
    "{ kind = 'web-server', each = '100us', response = '3KiB', read = '8KiB' }",
    "{ kind = 'echo', each = 'exponential 90us' }",
    "{ kind = 'disk-read', each = '200us', block = '16KiB', readers = 2 }",
    "{ kind = 'send', each = '10us', block = '8KiB' }",
    "{ kind = 'compile', jobs = 2, each = 'exponential 1ms', read = '8KiB', wait = '300us' }",
];

const CLIENTS: [&str; 4] = [
    "kind = 'httperf'\nrate = 1200\ntimeout = '40ms'\nretry = '20ms'\n",
    "kind = 'ab'\nat_once = 5\n",
    "kind = 'ping'\nevery = '700us'\n",
    "kind = 'ttcp'\nway = 'out'\nwindow = '24KiB'\n",
];

/// Generates the text of a scenario with a driver domain, one to three guests with tasks and
/// clients, and hogs.
fn text() -> impl Strategy<Value = String> {
    let host = (1..4_usize, 0..POLICIES.len(), any::<u32>(), 0..9_u32);
    let costs = prop::collection::vec(0..20_u32, 9);
    let guest = (0..WORKS.len(), 0..CLIENTS.len(), 1..4_usize, 0..3_u32, any::<bool>());
    let guests = prop::collection::vec(guest, 1..4);
    (host, costs, guests, 0..3_usize).prop_map(|((cpus, policy, seed, late), c, guests, hogs)| {
        let policy = POLICIES[policy];
        let mut text = format!(
            "title = 'random'\nlength = '120ms'\nseed = {seed}\npolicy = {{ name = '{policy} }}\n\
             [host]\ncpus = {cpus}\nswitch = '{}us'\ntick_cost = '{}us'\n\
             timer_lateness = 'uniform 0us {late}us'\n\
             [driver]\ndomain = 'dom0'\nreceive = '{}us'\nsend = '{}us'\nevent = '{}us'\n\
             interrupt = '{}us'\nrequest = '{}us'\nidle = '{}us'\nnoise = '{}%'\nbatch = 4\n\
             [nic]\ninterrupt = '1us'\ncoalesce = '{}us'\n[disk]\nseek = 'uniform 0us 900us'\n\
             [[domain]]\nname = 'dom0'\n{SHARES}",
            c[0],
            c[1],
            c[2],
            c[3],
            c[4],
            c[5],
            c[6],
            c[7],
            c[8],
            c[0] * 3
        );
        for (index, (work, client, vcpus, hog, tells)) in guests.into_iter().enumerate() {
            let (work, vcpus, tells) = (WORKS[work], vcpus.min(cpus), tells && vcpus == 1);
            let _ = write!(
                text,
                "[[domain]]\nname = 'g{index}'\nvcpus = {vcpus}\ntells = {tells}\n{SHARES}\
                 kernel = {{ receive = '{}us', send = '{}us', idle = '{}us', noise = '30%', \
                 quantum = '2ms' }}\n\
                 [[domain.task]]\nname = 'io'\npriority = 100\nwork = {work}\n",
                c[1], c[2], c[3]
            );
            let more = ["", "[[domain.task]]\npriority = 99\nwork = { kind = 'spin' }\n"];
            text.push_str(more[usize::from(hog == 1)]);
            let _ = write!(text, "[[client]]\nto = 'g{index}'\n{}", CLIENTS[client]);
        }
        for index in 0..hogs {
            let _ = write!(
                text,
                "[[domain]]\nname = 'hog{index}'\nwork = {{ kind = 'spin' }}\n{SHARES}"
            );
        }
        text.push_str(
            "[[change]]\nat = '50ms'\ndomain = 'g0'\npaused = true\n\
             [[change]]\nat = '60ms'\ndomain = 'g0'\npaused = false\n",
        );
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn simulation_trace_is_equal_with_and_without_event_queue_shortcut(text in text()) {
        let scenario = Scenario::read(&text)
            .unwrap_or_else(|error| panic!("{}: {error} in\n{text}", error.line));
        let (quick, slow) = (run(&scenario, false), run(&scenario, true));
        prop_assert!(quick.0.len() > 4, "{}\n{text}", quick.0.len());
        prop_assert_eq!(&quick, &slow);
        // With `bus` at 100 %, CPU speeds can change and never do.
        let mut scenario = scenario;
        scenario.host.bus = Some(1_000_000);
        prop_assert_eq!(quick, run(&scenario, false));
    }
}
