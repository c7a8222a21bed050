//! Spin locks that the vCPUs of a guest share. All numbers are computed by hand.

use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{Span, Time};

/// Times at which the rounds of a vCPU ended. Also the end and the CPU time of each of its spins.
#[derive(Default)]
struct VcpuSpins {
    rounds: Vec<Time>,
    spun: Vec<(Time, Span)>,
}

/// Runs a scenario and returns the results of each vCPU, by slot.
fn run(length: &str, rest: &str) -> Vec<VcpuSpins> {
    let policy = "policy = { name = 'round-robin', quantum = '1ms' }";
    let text = format!("title = 't'\nlength = '{length}'\n{policy}\n{rest}");
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}", error.line));
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut records).expect("the run completes");
    let mut vcpus: Vec<VcpuSpins> = scenario.vcpus().map(|_| VcpuSpins::default()).collect();
    for record in &records {
        match *record {
            Record::Job { vcpu, done, .. } => vcpus[vcpu.slot()].rounds.push(done),
            Record::Spun { at, vcpu, used } => vcpus[vcpu.slot()].spun.push((at, used)),
            _ => {}
        }
    }
    vcpus
}

/// Returns the text of a scenario with one guest of `vcpus` vCPUs on a host with `cpus` CPUs.
fn guest(cpus: usize, vcpus: usize, work: &str, more: &str) -> String {
    format!(
        "[host]\ncpus = {cpus}\n[[domain]]\nname = 'guest'\nvcpus = {vcpus}\n\
         work = {{ kind = 'spinlock', {work} }}\n{more}"
    )
}

const fn us(us: u64) -> Time {
    Time::from_ns(us * 1_000)
}

/// Both vCPUs start together. The second vCPU waits for the lock once. After that, the two vCPUs
/// are out of step and neither waits.
#[test]
fn vcpu_spins_until_the_holder_releases_the_spinlock() {
    let vcpus = run("10ms", &guest(2, 2, "compute = '80us', hold = '20us'", ""));
    assert_eq!(vcpus[0].rounds[..3], [us(100), us(200), us(300)]);
    assert_eq!(vcpus[1].rounds[..3], [us(120), us(220), us(320)]);
    assert!(vcpus[0].spun.is_empty());
    assert_eq!(vcpus[1].spun, [(us(100), Span::from_us(20))]);
}

/// Four vCPUs each hold the lock for half of their time, so the lock is always held. Each vCPU
/// waits until the three other vCPUs have held the lock, the first of which has just acquired it.
#[test]
fn fully_contended_spinlock_is_acquired_once_per_hold_time() {
    let vcpus = run("10ms", &guest(4, 4, "compute = '20us', hold = '20us'", ""));
    assert_eq!(vcpus[0].rounds[..4], [us(40), us(120), us(200), us(280)]);
    assert_eq!(vcpus[3].rounds[..2], [us(100), us(180)]);
    assert_eq!(vcpus[3].spun[..2], [(us(80), Span::from_us(60)), (us(160), Span::from_us(40))]);
    let rounds: usize = vcpus.iter().map(|vcpu| vcpu.rounds.len()).sum();
    // The first round ends at 40 us, and then one every 20 us until the run ends.
    assert_eq!(rounds, (10_000 - 40) / 20);
}

/// The timeslice of the lock holder ends 50 us into its hold. The other vCPU requests the lock 50
/// us later and spins for the rest of its timeslice. Then the same happens with the vCPUs swapped.
#[test]
fn vcpu_spins_until_timeslice_end_if_spinlock_holder_is_preempted() {
    let vcpus = run("5ms", &guest(1, 2, "compute = '50us', hold = '100us'", ""));
    assert_eq!(vcpus[0].rounds[5..7], [us(900), us(2050)]);
    assert_eq!(vcpus[1].spun[0], (us(2050), Span::from_us(950)));
    assert_eq!(vcpus[1].rounds[0], us(3100));
    assert_eq!(vcpus[0].spun[0], (us(3100), Span::from_us(900)));
    // Then the running vCPU holds the lock for 100 us, computes, and spins until its timeslice
    // ends.
    assert_eq!(vcpus[0].rounds[7], us(4100));
    assert_eq!(vcpus[1].spun[1], (us(4100), Span::from_us(850)));
    // One spin is still in progress at the end of the run.
    assert_eq!(vcpus[0].spun[1], (us(5000), Span::from_us(850)));
}

/// If the holder of a spin lock leaves the host, the vCPU that waits gets the lock.
#[test]
fn spinlock_is_released_if_the_holding_vcpu_leaves() {
    let more = "[[domain.vcpu]]\nnumber = 0\ncpus = [0]\n[[domain.vcpu]]\nnumber = 1\ncpus = [1]\n";
    let guest = |leaves: &str| {
        guest(2, 2, "compute = '50us', hold = '500us'", &format!("leaves = '{leaves}'\n{more}"))
    };
    let vcpus = run("10ms", &guest("300us"));
    assert!(vcpus[0].rounds.is_empty() && vcpus[1].rounds.is_empty());
    let spun = [(us(300), Span::from_us(250))];
    assert_eq!(vcpus[1].spun, spun, "the waiting vCPU stops spinning when the holder leaves");
}

/// A paused vCPU that waits for a spin lock stops spinning and keeps its place in the queue. It
/// holds the lock when it is resumed.
#[test]
fn paused_vcpu_keeps_place_in_the_spinlock_queue() {
    let change = |at: &str, paused: bool| {
        format!("[[change]]\nat = '{at}'\ndomain = 'guest.1'\npaused = {paused}\n")
    };
    let changes = change("100us", true) + &change("400us", false);
    let vcpus = run("10ms", &guest(2, 2, "compute = '50us', hold = '150us'", &changes));
    // vCPU 1 has spun for 50 us when it is paused. It gets the lock at 200 us, when vCPU 0 releases
    // the lock. vCPU 0 requests the lock again at 250 us and waits until 550 us.
    assert_eq!(vcpus[1].spun[0], (us(200), Span::from_us(50)));
    assert_eq!(vcpus[1].rounds[0], us(550));
    assert_eq!(vcpus[0].rounds[..2], [us(200), us(700)]);
    assert_eq!(vcpus[0].spun[0], (us(550), Span::from_us(300)));
}
