//! Migration costs by the topology level that two CPUs share, staggered ticks, interrupts and
//! signals by CPU, and guests with several vCPUs. Numbers are computed by hand.

use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{Span, Time};

fn records(length: &str, host: &str, rest: &str) -> Vec<Record> {
    let text = format!(
        "title = 't'\nlength = '{length}'\npolicy = {{ name = 'round-robin', quantum = '10s' }}\n\
         [host]\n{host}\n{rest}"
    );
    let scenario =
        Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", error.line));
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut records).expect("the run completes");
    records
}

/// Returns the number of microseconds in a time that has no fraction of a microsecond.
fn whole_us(span: Span) -> u64 {
    assert!((span % Span::from_us(1)).is_zero(), "{span}");
    span / Span::from_us(1)
}

/// Returns the end of each job, in microseconds.
fn done(records: &[Record]) -> Vec<u64> {
    let of = |record: &Record| match *record {
        Record::Job { done, .. } => Some(whole_us(done - Time::START)),
        _ => None,
    };
    records.iter().filter_map(of).collect()
}

/// Keys of a host with two caches. Each cache is shared by two cores of two threads. The CPUs that
/// share a cache are also a memory node.
const EIGHT: &str = "cpus = 8\nthreads_per_core = 2\ncaches = [[0, 1, 2, 3], [4, 5, 6, 7]]\n\
                     nodes = [[0, 1, 2, 3], [4, 5, 6, 7]]\nsockets = [[0, 1, 2, 3, 4, 5, 6, 7]]\n";

/// Returns a domain with a job of 1 ms at 10 ms on CPU 0, and another at 20 ms on `cpu`.
fn moves_to(cpu: usize, cache: &str) -> String {
    format!(
        "[[domain]]\nname = 'a'\ncpus = [0]\ncache = '{cache}'\n\
         work = {{ kind = 'periodic', period = '10ms', work = '1ms', offset = '10ms' }}\n\
         [[change]]\nat = '15ms'\ndomain = 'a'\ncpus = [{cpu}]\n"
    )
}

/// Returns the time that the second job takes beyond its 1 ms of work, in microseconds.
fn cost_of_moving(host: &str, cpu: usize, cache: &str) -> u64 {
    cost_on(&format!("{EIGHT}{host}"), cpu, cache)
}

/// Returns the result of `cost_of_moving` for a host with exactly these keys, without `EIGHT`.
fn cost_on(host: &str, cpu: usize, cache: &str) -> u64 {
    done(&records("29ms", host, &moves_to(cpu, cache)))[1] - 21_000
}

#[test]
fn migration_cost_is_set_by_the_narrowest_shared_topology_level() {
    let all = "migrate = { core = '1us', cache = '5us', node = '20us', host = '80us' }";
    let costs = [0, 1, 2, 3, 4, 7].map(|cpu| cost_of_moving(all, cpu, "0us"));
    assert_eq!(costs, [0, 1, 5, 5, 80, 80]);
    assert_eq!([0, 1, 2, 7].map(|cpu| cost_of_moving("migrate = '9us'", cpu, "0us")), [0, 9, 9, 9]);
    // Here each core has a cache of its own, so CPUs of different cores share at most a node.
    let own = EIGHT.replace(
        "caches = [[0, 1, 2, 3], [4, 5, 6, 7]]",
        "caches = [[0, 1], [2, 3], [4, 5], [6, 7]]",
    );
    let costs = [1, 2, 3, 4].map(|cpu| cost_on(&format!("{own}{all}"), cpu, "0us"));
    assert_eq!(costs, [1, 20, 20, 80]);
}

/// A topology level without a configured migration cost has the cost of the next wider level, or
/// else the cost of the next narrower level.
#[test]
fn migration_cost_of_level_defaults_to_wider_then_narrower_level() {
    let some = "migrate = { cache = '5us' }";
    assert_eq!([1, 2, 4].map(|cpu| cost_of_moving(some, cpu, "0us")), [5, 5, 5]);
    let some = "migrate = { core = '1us', host = '80us' }";
    assert_eq!([1, 2, 4].map(|cpu| cost_of_moving(some, cpu, "0us")), [1, 80, 80]);
}

/// On another CPU the whole working set of a vCPU is cold, except for the part that lies in a
/// shared cache.
#[test]
fn migrating_vcpu_refills_only_the_unshared_cache_part() {
    let cold = [0, 1, 2, 4].map(|cpu| cost_of_moving("", cpu, "100us"));
    assert_eq!(cold, [0, 100, 100, 100]);
    let warm = "warm = { core = '90%', cache = '60%' }";
    let costs = [0, 1, 2, 4].map(|cpu| cost_of_moving(warm, cpu, "100us"));
    assert_eq!(costs, [0, 10, 40, 100]);
    // Threads of a core share its caches as well.
    let costs = [1, 2, 4].map(|cpu| cost_of_moving("warm = { cache = '60%' }", cpu, "100us"));
    assert_eq!(costs, [40, 40, 100]);
}

/// Another vCPU that runs for 30 us on a third CPU evicts 30 us from the shared cache. A run of 90
/// us evicts the whole content.
#[test]
fn shared_cache_is_evicted_by_each_cpu_that_shares_it() {
    let costs = [30, 60, 90].map(|us| {
        let other = format!(
            "[[domain]]\nname = 'b'\ncpus = [3]\n\
             work = {{ kind = 'periodic', period = '1h', work = '{us}us', offset = '12ms' }}\n"
        );
        let host = format!("{EIGHT}warm = {{ cache = '60%' }}");
        let records = records("29ms", &host, &(moves_to(2, "100us") + &other));
        done(&records)[2] - 21_000
    });
    assert_eq!(costs, [70, 100, 100]);
}

/// Each of two CPUs loses 1 ms of every 10 ms to ticks: both CPUs at the same time, or the second
/// CPU 5 ms later.
#[test]
fn ticks_of_two_cpus_occur_together_or_staggered_as_configured() {
    let two = "[[domain]]\nname = 'a'\ncpus = [0]\n\
               work = { kind = 'periodic', period = '1h', work = '12ms' }\n\
               [[domain]]\nname = 'b'\ncpus = [1]\n\
               work = { kind = 'periodic', period = '1h', work = '14500us' }\n";
    let host = |more: &str| format!("cpus = 2\ntick_cost = '1ms'\n{more}");
    assert_eq!(done(&records("1s", &host(""), two)), [13_000, 15_500]);
    let staggered = records("1s", &host("ticks = 'staggered'"), two);
    // `b` has 14.5 ms before its first tick at 15 ms.
    assert_eq!(done(&staggered), [13_000, 14_500]);
}

/// Each tick costs 1 ms. Without a phase, the first tick occurs at 10 ms. A phase of 3 ms or 4 ms
/// delays it to 13 ms or 14 ms.
#[test]
fn cpu_ticks_are_delayed_by_the_configured_cpu_phase() {
    let two = "[[domain]]\nname = 'a'\ncpus = [0]\n\
               work = { kind = 'periodic', period = '1h', work = '12500us' }\n\
               [[domain]]\nname = 'b'\ncpus = [1]\n\
               work = { kind = 'periodic', period = '1h', work = '13500us' }\n";
    let done = |phase: &str| {
        let host = format!("cpus = 2\ntick_cost = '1ms'\n{phase}");
        done(&records("1s", &host, two))
    };
    assert_eq!(done(""), [13_500, 14_500]);
    assert_eq!(done("tick_phase = '3ms'"), [12_500, 14_500]);
    assert_eq!(done("tick_phase = ['3ms', '4ms']"), [12_500, 13_500]);
    assert_eq!(done("tick_phase = '3ms'\nticks = 'staggered'"), [12_500, 13_500]);
}

/// Returns the end, in microseconds, of a job of 9 ms on CPU 2. Meanwhile a client pings a guest on
/// CPU 1 every 2 ms, through a driver domain on CPU 0.
fn pinged(host: &str, nic: &str) -> Vec<u64> {
    let rest = format!(
        "[driver]\ndomain = 'dom0'\nreceive = '1us'\nsend = '1us'\n[nic]\n{nic}\n\
         interrupt = '10us'\n\
         [[domain]]\nname = 'dom0'\ncpus = [0]\n\
         [[domain]]\nname = 'guest'\ncpus = [1]\n\
         kernel = {{ receive = '1us', send = '1us' }}\nwork = {{ kind = 'echo', each = '1us' }}\n\
         [[domain]]\nname = 'busy'\ncpus = [2]\n\
         work = {{ kind = 'periodic', period = '1h', work = '9ms' }}\n\
         [[client]]\nkind = 'ping'\nto = 'guest'\ndelay = '100us'\nevery = '2ms'\n"
    );
    let records = records("12ms", &format!("cpus = 3\n{host}"), &rest);
    let of = |record: &Record| match *record {
        Record::Job { vcpu, done, .. } if vcpu.domain().number() == 2 => {
            Some(whole_us(done - Time::START))
        }
        _ => None,
    };
    records.iter().filter_map(of).collect()
}

/// A vCPU on the CPU that serves the network card's interrupts loses 10 us for each of five pings.
/// Other vCPUs lose nothing.
#[test]
fn network_interrupt_takes_time_only_from_the_serving_cpu() {
    assert_eq!(pinged("", ""), [9_000]);
    assert_eq!(pinged("", "cpu = 0"), [9_000]);
    assert_eq!(pinged("", "cpu = 2"), [9_050]);
}

/// Returns the response times of a guest, with the driver on this CPU.
fn answers(host: &str, driver: usize) -> Vec<Span> {
    let rest = format!(
        "[driver]\ndomain = 'dom0'\nreceive = '10us'\nsend = '10us'\n[nic]\n\
         [[domain]]\nname = 'dom0'\ncpus = [{driver}]\n\
         [[domain]]\nname = 'guest'\ncpus = [1]\n\
         kernel = {{ receive = '10us', send = '10us' }}\n\
         [[domain.task]]\npriority = 200\nwork = {{ kind = 'echo', each = '10us' }}\n\
         [[domain.task]]\npriority = 1\nwork = {{ kind = 'spin' }}\n\
         [[client]]\nkind = 'ping'\nto = 'guest'\ndelay = '100us'\nevery = '2ms'\n"
    );
    let records = records("10ms", &format!("cpus = 2\n{host}"), &rest);
    let of = |record: &Record| match *record {
        Record::Job { released, done, .. } => Some(done - released),
        _ => None,
    };
    records.iter().filter_map(of).collect()
}

/// The guest always computes. A signal from another CPU costs it 50 us. A signal from its own CPU
/// costs nothing.
#[test]
fn inter_processor_interrupt_costs_time_on_the_target_cpu() {
    let (plain, costly) = (answers("", 0), answers("ipi = '50us'", 0));
    let more: Vec<Span> = costly.iter().zip(&plain).map(|(&a, &b)| a - b).collect();
    assert_eq!(more, [Span::from_us(50); 5], "{plain:?} {costly:?}");
    assert_eq!(answers("ipi = '50us'", 1), answers("", 1));
}

/// The guest's first vCPU wakes the server's task, which runs on the second vCPU if the second vCPU
/// is blocked. The first vCPU handles each packet in 200 us and sends each answer in 1 us. The
/// second vCPU does all the computing, 300 us per packet.
#[test]
fn task_woken_by_guest_vcpu_runs_on_idle_sibling_vcpu() {
    let used = |vcpus: usize| {
        let rest = format!(
            "[driver]\ndomain = 'dom0'\nreceive = '1us'\nsend = '1us'\n[nic]\n\
             [[domain]]\nname = 'dom0'\ncpus = [0]\n\
             [[domain]]\nname = 'guest'\nvcpus = {vcpus}\ncpus = [1, 2]\n\
             kernel = {{ receive = '200us', send = '1us' }}\n\
             work = {{ kind = 'echo', each = '300us' }}\n\
             [[client]]\nkind = 'ping'\nto = 'guest'\ndelay = '100us'\nrate = 1000\n"
        );
        let records = records("100ms", "cpus = 3", &rest);
        let mut used = [Span::ZERO; 2];
        for record in &records {
            if let Record::Ran { vcpu, used: more, .. } = *record
                && vcpu.domain().number() == 1
            {
                used[usize::from(vcpu.number())] += more;
            }
        }
        used.map(|used| used / Span::from_ms(1))
    };
    let [only, none] = used(1);
    assert_eq!(none, 0);
    let [first, second] = used(2);
    assert!((only - 1..=only + 1).contains(&(first + second)), "{first} {second} {only}");
    let expected = [201, 300].map(|part| only * part / 501);
    let is_near = first.abs_diff(expected[0]) <= 2 && second.abs_diff(expected[1]) <= 2;
    assert!(is_near, "{first} {second}, expected {expected:?}");
}

/// A guest with two vCPUs that answers packets. Two clients send the guest their first packets
/// after 100 and 200 us.
const TWO_PINGS: &str = "\
    [driver]\ndomain = 'dom0'\nreceive = '1us'\nsend = '1us'\n[nic]\n\
    [[domain]]\nname = 'dom0'\ncpus = [0]\n\
    [[domain]]\nname = 'guest'\nvcpus = 2\ncpus = [1, 2]\n\
    kernel = { receive = '200us', send = '1us' }\n\
    work = { kind = 'echo', each = '300us' }\n\
    [[client]]\nkind = 'ping'\nto = 'guest'\ndelay = '100us'\nevery = '1s'\n\
    [[client]]\nkind = 'ping'\nto = 'guest'\ndelay = '200us'\nevery = '1s'\n";

/// Two packets reach the driver after 100.72 and 200.72 us, and the driver handles each in 1 us.
/// The guest's first vCPU handles the packets one after the other, in 200 us each. After the first
/// packet, the first vCPU wakes the server's task. At that instant the second vCPU wakes, and the
/// second vCPU computes until the end of the run.
#[test]
fn woken_sibling_vcpu_runs_the_task_without_delay() {
    let records = records("601us", "cpus = 3", TWO_PINGS);
    let of = |record: &Record| match *record {
        Record::Ran { vcpu, from, to, .. } if vcpu.domain().number() == 1 => {
            Some((vcpu.number(), from.ns(), to.ns()))
        }
        _ => None,
    };
    let ran: Vec<_> = records.iter().filter_map(of).collect();
    assert_eq!(ran, [(0, 101_720, 501_720), (1, 301_720, 601_000)]);
}

/// The packets and the costs are those of `woken_sibling_vcpu_runs_the_task_without_delay`. The
/// task on the second vCPU computes from 301.72 to 601.72 us, and for the second packet until
/// 901.72 us. The first vCPU is blocked by then. It wakes immediately and sends each answer in 1
/// us. The driver passes each answer on in 1 us. An answer takes 0.72 us on the wire, and then 100
/// or 200 us.
#[test]
fn task_on_second_vcpu_wakes_first_vcpu_to_send_answer() {
    let records = records("2ms", "cpus = 3", TWO_PINGS);
    let done = |record: &Record| match *record {
        Record::Job { done, .. } => Some((done - Time::START).ns()),
        _ => None,
    };
    let done: Vec<u64> = records.iter().filter_map(done).collect();
    assert_eq!(done, [704_440, 1_104_440]);
}

/// A task that always computes has the first vCPU. A task on the second vCPU computes for 1 ms, and
/// then reads from the disk for 2 ms. The request does not wait for the end of the quantum of the
/// other task, which is 100 ms. So the disk serves 333 reads in a second. The task that always
/// computes continues on the second vCPU and loses no time.
#[test]
fn disk_request_of_second_vcpu_never_waits_for_first_vcpu() {
    let records = records(
        "1s",
        "cpus = 3",
        "[disk]\nrate = '10MB/s'\nseek = '1ms'\n[driver]\ndomain = 'dom0'\n\
         [[domain]]\nname = 'dom0'\ncpus = [0]\n\
         [[domain]]\nname = 'guest'\nvcpus = 2\ncpus = [1, 2]\n\
         [[domain.task]]\nwork = { kind = 'spin' }\n\
         [[domain.task]]\nwork = { kind = 'disk-read', each = '1ms', block = '10kB' }\n",
    );
    let (mut moved, mut used) = (0, Span::ZERO);
    for record in &records {
        match *record {
            Record::Moved { bytes, .. } => moved += bytes,
            Record::Ran { vcpu, used: more, .. } if vcpu.domain().number() == 1 => used += more,
            _ => {}
        }
    }
    assert_eq!(moved, 333 * 10_000);
    assert_eq!(used, Span::from_ms(1_000 + 334));
}
