//! Tests of the use of each CPU in each second: by vCPUs, by other programs, stolen or unused.

use crate::script::{Script, us};
use slackline_metrics::{CpuSecond, CpuSeconds, SharedCpu};
use slackline_trace::Record;
use slackline_units::{CpuId, Time};

const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;

/// Returns kernel accounting of the first CPU for one interval. All times are in microseconds.
fn books(from: u64, to: u64, [idle, stolen, dispatching]: [u64; 3]) -> Record {
    let (from, to) = (Time::START + us(from), Time::START + us(to));
    let [idle, stolen, dispatching] = [idle, stolen, dispatching].map(us);
    Record::Accounted { cpu: CpuId::new(0), from, to, idle, stolen, dispatching }
}

fn seconds(script: Script, end: u64) -> Vec<Vec<CpuSecond>> {
    let script = script.with(Record::Ended { at: Time::START + us(end) });
    let mut seconds = CpuSeconds::new(&script.header);
    script.entries.iter().for_each(|entry| entry.pass_to(&mut seconds));
    seconds.finish().unwrap()
}

#[test]
fn cpu_busy_time_of_each_second_is_vcpu_run_time() {
    let script =
        Script::new(&["a"]).ran(0, 500 * MS, 1_250 * MS).ran_spare(0, 2_000 * MS, 2_100 * MS);
    let [first, other] = &seconds(script, 2_900 * MS)[..] else { panic!("two CPUs") };
    let busy = |cpu: &[CpuSecond]| cpu.iter().map(|second| second.busy).collect::<Vec<_>>();
    // The third second is incomplete, so it is not reported.
    assert_eq!(busy(first), [us(500 * MS), us(250 * MS)]);
    assert_eq!(busy(other), [us(0), us(0)]);
    assert!(first.iter().all(|second| second.shared.is_none()), "there are no books");
}

#[test]
fn cpu_time_outside_vcpus_is_classified_for_each_second() {
    // The warm-up lasts a second. Accounting records that extend over the end of a second count in
    // proportion.
    let script = Script::new(&["a"]).warmup(SECOND).with(books(10 * MS, 10 * MS, [0; 3]));
    let script = script.ran(0, SECOND, 1_300 * MS).ran(0, 2_000 * MS, 2_500 * MS);
    let script = script.with(books(10 * MS, 1_500 * MS, [298 * MS, 0, 0]));
    let script = script.with(books(1_500 * MS, 3_500 * MS, [200 * MS, 80 * MS, 40 * MS]));
    let cpus = seconds(script, 3_500 * MS);
    let shared =
        |others_ppm, stolen_ppm, unused_ppm| Some(SharedCpu { others_ppm, stolen_ppm, unused_ppm });
    // The first second has 300 ms of vCPUs, 100 + 50 ms idle, 20 ms stolen and 10 ms of
    // dispatching. The next second has 500, 100, 40 and 20 ms.
    assert_eq!(cpus[0][0].shared, shared(520_000, 20_000, 150_000));
    assert_eq!(cpus[0][1].shared, shared(340_000, 40_000, 100_000));
    assert_eq!((cpus[0].len(), cpus[1][0].shared), (2, None));
}

/// Missing kernel accounting of a second yields `None` and not zero.
#[test]
fn cpu_use_outside_vcpus_is_missing_without_kernel_accounting() {
    let script = Script::new(&["a"]).ran(0, 0, 500 * MS).with(books(50 * MS, 50 * MS, [0; 3]));
    let script = script.with(books(50 * MS, 1_100 * MS, [420 * MS, 0, 0]));
    let cpus = seconds(script, 2_000 * MS);
    // In the accounted 950 ms there are 475 ms of vCPUs and 380 ms of idle time.
    let shared = cpus[0][0].shared.unwrap();
    assert_eq!((shared.others_ppm, shared.unused_ppm), (100_000, 400_000));
    assert_eq!(cpus[0][1].shared, None, "100 ms of it");
}
