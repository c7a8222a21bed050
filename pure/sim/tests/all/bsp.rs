//! Bulk-synchronous parallel programs, whose nodes compute, exchange messages and wait for each
//! other. All numbers are computed by hand.

use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::Time;

/// Returns the end of each round of each vCPU, by slot, in the first second.
fn rounds(rest: &str) -> Vec<Vec<Time>> {
    let policy = "policy = { name = 'edf', reserve = '0cpu' }";
    let text = format!("title = 't'\nlength = '1s'\n{policy}\n{rest}");
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}", error.line));
    let vcpus = scenario.domains.iter().map(|domain| domain.vcpus.len()).sum();
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut records).expect("the run completes");
    let mut rounds = vec![Vec::new(); vcpus];
    for record in &records {
        if let Record::Job { vcpu, released, done, .. } = *record {
            let last = rounds[vcpu.slot()].last().copied();
            let began = last.unwrap_or(Time::START);
            assert_eq!(released, began, "a round begins when the previous round ends");
            rounds[vcpu.slot()].push(done);
        }
    }
    rounds
}

const fn us(us: u64) -> Time {
    Time::from_ns(us * 1_000)
}

/// Returns a domain with one node of a parallel program, alone on its CPU.
fn node(name: &str, cpu: usize, work: &str) -> String {
    format!(
        "[[domain]]\nname = '{name}'\ncpus = [{cpu}]\n\
         share.edf = {{ slice = '1ms', period = '10ms' }}\n\
         work = {{ kind = 'bsp', program = 'p', {work} }}\n"
    )
}

/// Returns the changes that pause a domain and resume it.
fn pause(who: &str, from: &str, to: &str) -> String {
    let change = |at: &str, paused: bool| {
        format!("[[change]]\nat = '{at}'\ndomain = '{who}'\npaused = {paused}\n")
    };
    change(from, true) + &change(to, false)
}

#[test]
fn bsp_nodes_continue_when_the_last_node_reaches_the_barrier() {
    let slow = node("slow", 0, "compute = '10ms', exchange = '2ms', latency = '100us'");
    let quick = node("quick", 1, "compute = '3ms', latency = '300us'");
    let rounds = rounds(&format!("[host]\ncpus = 2\n{slow}{quick}"));
    // Each node continues when the last message arrives: the quick one 200 us later.
    assert_eq!(rounds[0][..3], [us(12_100), us(24_200), us(36_300)]);
    assert_eq!(rounds[1][..3], [us(12_300), us(24_400), us(36_500)]);
}

#[test]
fn bsp_nodes_do_not_wait_for_nodes_of_another_program() {
    let program = |name: &str, compute: &str| {
        format!(
            "[[domain]]\nname = '{name}'\nvcpus = 2\n\
             share.edf = {{ slice = '1ms', period = '10ms' }}\n\
             work = {{ kind = 'bsp', program = '{name}', compute = '{compute}' }}\n"
        )
    };
    let (a, b) = (program("a", "9950us"), program("b", "4950us"));
    let rounds = rounds(&format!("[host]\ncpus = 4\n{a}{b}"));
    assert_eq!([rounds[0].len(), rounds[1].len()], [99, 99]);
    assert_eq!([rounds[2].len(), rounds[3].len()], [199, 199]);
}

/// A node with a fifth of a CPU takes five times as long for a round, and the other nodes wait for
/// this node.
#[test]
fn slowest_bsp_node_limits_the_rate_of_all_nodes() {
    let spread: String =
        (0..3).map(|cpu| node(&format!("n{cpu}"), cpu, "compute = '2ms'")).collect();
    let held = "[[domain]]\nname = 'held'\ncpus = [3]\n\
                share.edf = { slice = '2ms', period = '10ms', exact = true }\n\
                work = { kind = 'bsp', program = 'p', compute = '2ms' }\n";
    let rounds = rounds(&format!("[host]\ncpus = 4\n{spread}{held}"));
    // The node `held` receives 2 ms at the start of each period, and reaches the barrier when it
    // has used them up.
    let ends: Vec<Time> = (0..5).map(|n| us(10_000 * n + 2_050)).collect();
    for node in &rounds {
        assert_eq!(node[..5], ends);
    }
}

#[test]
fn bsp_nodes_wait_for_paused_but_not_for_departed_nodes() {
    let stays = node("stays", 0, "compute = '9950us'");
    let goes = node("goes", 1, "compute = '9950us'");
    // The node `goes` is paused while it computes, and does the rest of its work afterwards.
    let changes = pause("goes", "205ms", "300ms");
    let all = rounds(&format!("[host]\ncpus = 2\n{stays}{goes}leaves = '504ms'\n{changes}"));
    let stayed = &all[0];
    assert_eq!(stayed[19], us(200_000));
    assert_eq!(stayed[20], us(305_000), "95 ms late");
    // `goes` leaves at 504 ms, within a round. `stays` computes until 504,950 us.
    assert_eq!(stayed[40], us(505_000));
    assert_eq!(stayed[41], us(515_000));
    assert_eq!(all[1].len(), 40);
}

/// One node waits at the barrier, and the last node that has not reached it leaves. So the waiting
/// node continues.
#[test]
fn bsp_node_at_barrier_continues_when_missing_node_leaves() {
    let quick = node("quick", 0, "compute = '1ms', latency = '10us'");
    let slow = node("slow", 1, "compute = '500ms'");
    let rounds = rounds(&format!("[host]\ncpus = 2\n{quick}{slow}leaves = '100ms'\n"));
    assert_eq!(rounds[0][..2], [us(100_010), us(101_020)]);
    assert!(rounds[1].is_empty());
}

/// A pause that ends while a node waits at a barrier does not end the wait.
#[test]
fn bsp_node_resumed_at_barrier_still_waits_for_last_node() {
    let quick = node("quick", 0, "compute = '1ms'");
    let slow = node("slow", 1, "compute = '499950us'");
    let changes = pause("quick", "100ms", "200ms");
    let rounds = rounds(&format!("[host]\ncpus = 2\n{quick}{slow}{changes}"));
    assert_eq!(rounds[0], [us(500_000)]);
}

/// A node that waits at a barrier keeps its budget. So nodes on separate CPUs synchronise in any
/// phase: half of each CPU gives half of the rate, apart from the latency of the network.
#[test]
fn bsp_nodes_with_half_a_cpu_run_at_half_speed() {
    let node = |name: &str, cpu: usize, phase: &str| {
        format!(
            "[[domain]]\nname = '{name}'\ncpus = [{cpu}]\n\
             share.edf = {{ slice = '10ms', period = '20ms', exact = true, phase = '{phase}' }}\n\
             work = {{ kind = 'bsp', program = 'p', compute = '950us' }}\n"
        )
    };
    for phase in ["0ms", "10ms"] {
        let nodes = node("a", 0, "0ms") + &node("b", 1, phase);
        let rounds = rounds(&format!("[host]\ncpus = 2\n{nodes}"));
        // 950 us of each ms are computed, so a slice of 10 ms lasts for 10.5 rounds.
        assert_eq!((rounds[0].len(), rounds[1].len()), (526, 526), "{phase}");
    }
}
