//! Devices behind a driver domain, with results computed by hand.

use slackline_host::policy::ALL;
use slackline_scenario::Scenario;
use slackline_trace::{Record, Service};
use slackline_units::{Span, Time};

fn scenario(length: &str, rest: &str) -> Scenario {
    let text =
        format!("title = 't'\nlength = '{length}'\npolicy = {{ name = 'round-robin' }}\n{rest}");
    Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", error.line))
}

fn run(scenario: &Scenario) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(scenario, &mut records).expect("the run completes");
    records
}

/// Returns release and end of each job of a domain, given by its number.
fn jobs(records: &[Record], domain: u32) -> Vec<(Time, Time)> {
    let job = |record: &Record| match *record {
        Record::Job { vcpu, released, done, .. } if vcpu.domain().number() == domain => {
            Some((released, done))
        }
        _ => None,
    };
    records.iter().filter_map(job).collect()
}

fn responses(records: &[Record], domain: u32) -> Vec<Span> {
    jobs(records, domain).into_iter().map(|(released, done)| done - released).collect()
}

fn moved(records: &[Record]) -> u64 {
    let bytes = |record: &Record| match *record {
        Record::Moved { bytes, .. } => bytes,
        _ => 0,
    };
    records.iter().map(bytes).sum()
}

fn used(records: &[Record], domain: u32) -> Span {
    let used = |record: &Record| match *record {
        Record::Ran { vcpu, used, .. } if vcpu.domain().number() == domain => used,
        _ => Span::ZERO,
    };
    records.iter().map(used).fold(Span::ZERO, |sum, used| sum + used)
}

/// Returns the total work that the driver domain has done for a domain.
fn service(records: &[Record], domain: u32) -> Service {
    let mut all = Service::default();
    for record in records {
        if let Record::Served { of, service, .. } = record
            && of.domain().number() == domain
        {
            all.used += service.used;
            all.received += service.received;
            all.sent += service.sent;
            all.requests += service.requests;
            all.events += service.events;
        }
    }
    all
}

const DRIVER: &str = "[driver]\ndomain = 'dom0'\nreceive = '10us'\nsend = '10us'\n\
                      [nic]\nrate = '1Gbit/s'\ninterrupt = '2us'\n\
                      [[domain]]\nname = 'dom0'\ndispatch = '35us'\n";

/// Scenario text of a driver domain without costs.
const FREE: &str = "[driver]\ndomain = 'dom0'\n[[domain]]\nname = 'dom0'\n";

/// Response time of a ping. All times in parentheses are in microseconds. A packet of 90 bytes
/// takes 0.72 us on the wire at 1 Gbit/s, and 100 us between host and client. The driver is
/// dispatched (35), takes the packet (10) and blocks. The guest is dispatched (30), receives the
/// packet (15), computes (100), sends (12) and blocks. The driver is dispatched (35) and passes the
/// answer on (10). The answer takes 0.72 us and 100 us again. The interrupt meets an idle CPU and
/// is free.
#[test]
fn ping_response_time_is_sum_of_transfer_and_processing_times() {
    let records = run(&scenario(
        "100ms",
        &format!(
            "{DRIVER}[[domain]]\nname = 'dom1'\ndispatch = '30us'\n\
             kernel = {{ receive = '15us', send = '12us' }}\n\
             work = {{ kind = 'echo', each = '100us' }}\n\
             [[client]]\nkind = 'ping'\nto = 'dom1'\nevery = '1ms'\ndelay = '100us'\n"
        ),
    ));
    let responses = responses(&records, 1);
    assert_eq!(responses.len(), 100);
    assert!(responses.iter().all(|&span| span == Span::from_ns(448_440)), "{responses:?}");
    let expected = Service {
        used: Span::from_us(100 * 20),
        received: 100,
        sent: 100,
        requests: 0,
        events: 200,
    };
    assert_eq!(service(&records, 1), expected);
    // For each request the driver was dispatched twice and the guest once. Each domain was also
    // dispatched when it joined.
    assert_eq!(used(&records, 0), Span::from_us(35 + 100 * (2 * 35 + 20)));
    assert_eq!(used(&records, 1), Span::from_us(30 + 100 * (30 + 15 + 100 + 12)));
}

/// An answer of ten kilobytes takes eight packets, and every packet but the last is acknowledged.
/// With opening, request and closing, eleven packets go in and ten out.
#[test]
fn simulated_web_request_for_ten_kilobytes_takes_21_packets() {
    let records = run(&scenario(
        "1s",
        &format!(
            "{DRIVER}[[domain]]\nname = 'dom1'\n\
             kernel = {{ receive = '15us', send = '12us' }}\n\
             work = {{ kind = 'web-server', each = '300us', response = '10KiB' }}\n\
             [[client]]\nkind = 'ab'\nto = 'dom1'\nat_once = 1\ndelay = '100us'\n"
        ),
    ));
    let answered =
        u32::try_from(jobs(&records, 1).len()).expect("the number of requests fits in 32 bits");
    assert!(answered > 300, "{answered}");
    let service = service(&records, 1);
    // The run may end before all packets of the last answered request have arrived. Its opening,
    // its request and three acknowledgements, six packets in all, have arrived. Its last packet may
    // not have left yet. The next request may be almost answered.
    let received = 11 * (answered - 1) + 6..11 * (answered + 1);
    assert!(received.contains(&service.received), "{answered}: {service:?}");
    assert!((10 * answered - 1..10 * (answered + 1)).contains(&service.sent), "{service:?}");
}

#[test]
fn packet_arriving_at_a_full_ring_is_lost_and_resent() {
    let with_ring = |ring: usize| {
        responses(
            &run(&scenario(
                "4s",
                &format!(
                    "{DRIVER}[[domain]]\nname = 'dom1'\n\
                     kernel = {{ receive = '15us', send = '12us', ring = {ring} }}\n\
                     work = {{ kind = 'web-server', each = '300us', response = '10KiB' }}\n\
                     [[client]]\nkind = 'ab'\nto = 'dom1'\nat_once = 20\ndelay = '100us'\n"
                ),
            )),
            1,
        )
    };
    let (wide, narrow) = (with_ring(256), with_ring(2));
    let again = Span::from_ms(200);
    assert!(wide.iter().all(|&span| span < again));
    assert!(narrow.len() > 20, "{}", narrow.len());
    assert!(narrow.iter().any(|&span| span > again));
}

/// Without costs, a window of the stream takes a round trip of two milliseconds. At most ten
/// packets on the wire (12.304 us each) and an acknowledgement (0.72 us) are added.
#[test]
fn simulated_stream_transfers_one_window_per_round_trip() {
    let window = 10 * 1448;
    let stream = |way: &str, work: &str| {
        moved(&run(&scenario(
            "1s",
            &format!(
                "{FREE}[[domain]]\nname = 'dom1'\nwork = {work}\n\
                 [[client]]\nkind = 'ttcp'\nway = '{way}'\nto = 'dom1'\nwindow = '{window}B'\n\
                 delay = '1ms'\n"
            ),
        )))
    };
    let (most, least) = (1_000_000 / 2_000 + 1, 1_000_000 / (2_000 + 10 * 13 + 1) - 1);
    for moved in [
        stream("in", "{ kind = 'sink' }"),
        stream("out", "{ kind = 'send', each = '1ns', block = '8KiB' }"),
    ] {
        assert!((window * least..=window * most).contains(&moved), "{moved}");
    }
}

/// A round trip takes 2 ms. No data moves before the client begins, or later than a round trip
/// after the client has stopped.
#[test]
fn simulated_client_sends_requests_only_between_its_start_and_end() {
    for client in ["kind = 'ttcp'\nway = 'in'\nwindow = '14480B'", "kind = 'ab'\nat_once = 3"] {
        let records = run(&scenario(
            "1s",
            &format!(
                "{FREE}[[domain]]\nname = 'dom1'\n\
                 work = {{ kind = 'web-server', each = '1us', response = '1KiB' }}\n\
                 [[client]]\n{client}\nto = 'dom1'\ndelay = '1ms'\nfrom = '300ms'\n\
                 until = '800ms'\n"
            ),
        ));
        let told = |record: &&Record| matches!(record, Record::Moved { .. } | Record::Job { .. });
        let times: Vec<Time> = records.iter().filter(told).map(|record| record.when().1).collect();
        let at = |ms| Time::START + Span::from_ms(ms);
        let (first, last) = (times[0], times[times.len() - 1]);
        assert!(at(300) < first && first < at(310), "{client}: {first:?}");
        assert!(at(790) < last && last < at(810), "{client}: {last:?}");
    }
}

/// The number of requests is within five standard deviations of its average. The rates are the
/// lowest rate, one request in 20 s, and the highest rate.
#[test]
fn simulated_client_sends_requests_at_lowest_and_highest_rate() {
    for (kind, rate, length, average) in [
        ("httperf", "0.001", "500000s", 500_u64),
        ("ping", "0.001", "500000s", 500),
        ("httperf", "0.05", "10000s", 500),
        ("ping", "0.05", "10000s", 500),
        ("ping", "1000000", "20ms", 20_000),
    ] {
        let records = run(&scenario(
            length,
            &format!(
                "{FREE}[nic]\nrate = '1000Gbit/s'\n[[domain]]\nname = 'dom1'\n\
                 work = {{ kind = 'web-server', each = '1ns', response = '1KiB' }}\n\
                 [[client]]\nkind = '{kind}'\nrate = {rate}\nto = 'dom1'\ndelay = '1us'\n"
            ),
        ));
        let count = jobs(&records, 1).len() as u64;
        let deviation = count.abs_diff(average);
        assert!(deviation * deviation <= 25 * average, "{kind}, {rate} a second: {count}");
    }
}

/// Without costs, each of three connections is answered after two round trips of 2 ms each. The
/// next request on the same connection begins 6 ms later. So there are three requests every 10 ms.
/// The last answers arrive after 996 ms. The next answers would arrive at 1,006 ms.
#[test]
fn simulated_client_waits_its_think_time_after_each_answer() {
    let count = |think: &str| {
        let records = run(&scenario(
            "1001ms",
            &format!(
                "{FREE}[[domain]]\nname = 'dom1'\n\
                 work = {{ kind = 'web-server', each = '1ns', response = '1KiB' }}\n\
                 [[client]]\nkind = 'ab'\nat_once = 3\nto = 'dom1'\ndelay = '1ms'\n{think}"
            ),
        ));
        jobs(&records, 1).len()
    };
    let (busy, thinking) = (count(""), count("think = '6ms'"));
    assert!((298..=301).contains(&thinking), "{thinking}");
    assert!((745..=751).contains(&busy), "{busy}");
    assert_eq!(count("think = '0s'"), busy);
    let drawn = count("think = 'exponential 6ms'");
    assert!((240..=360).contains(&drawn), "{drawn}");
}

/// A job computes for a millisecond, the disk seeks for a millisecond, and reading ten kilobytes
/// takes a millisecond.
#[test]
fn simulated_disk_read_takes_its_seek_time_and_transfer_time() {
    let records = run(&scenario(
        "1s",
        &format!(
            "[disk]\nrate = '10MB/s'\nseek = '1ms'\n{FREE}[[domain]]\nname = 'dom1'\n\
             work = {{ kind = 'disk-read', each = '1ms', block = '10kB' }}\n"
        ),
    ));
    assert_eq!(moved(&records), 333 * 10_000);
    assert_eq!(used(&records, 1), Span::from_ms(334));
    assert_eq!(service(&records, 1).requests, 333);
}

/// Two jobs of 50 ms each share a CPU that no other vCPU wants. They end after 100 ms, plus the
/// time in which one job waits for the disk while the other job does not compute. This time is at
/// most one round trip for each of five bursts.
#[test]
fn simulated_compile_jobs_end_after_computing_their_total_work() {
    let records = run(&scenario(
        "1s",
        &format!(
            "{FREE}[[domain]]\nname = 'dom1'\n\
             work = {{ kind = 'compile', jobs = 2, each = '10ms', read = '8KiB', wait = '1ms', \
             total = '100ms' }}\n"
        ),
    ));
    let jobs = jobs(&records, 1);
    assert_eq!(jobs.len(), 2);
    assert_eq!(used(&records, 1), Span::from_ms(100));
    let done = jobs.iter().map(|&(_, done)| done - Time::START).max().expect("there are two jobs");
    assert!(done >= Span::from_ms(100) && done < Span::from_ms(106), "{done}");
}

#[test]
fn guest_with_devices_runs_its_most_urgent_task_first() {
    let tasks = |vcpus: usize| {
        run(&scenario(
            "1s",
            &format!(
                "[host]\ncpus = {vcpus}\n{FREE}[[domain]]\nname = 'dom1'\nvcpus = {vcpus}\n\
                 [[domain.task]]\npriority = 10\nwork = {{ kind = 'spin' }}\n\
                 [[domain.task]]\npriority = 10\nwork = {{ kind = 'spin' }}\n\
                 [[domain.task]]\npriority = 200\n\
                 work = {{ kind = 'periodic', period = '10ms', work = '1ms' }}\n"
            ),
        ))
    };
    for vcpus in [1, 2] {
        let records = tasks(vcpus);
        let responses = responses(&records, 1);
        assert!(responses.len() >= 99, "{}", responses.len());
        assert!(responses.iter().all(|&span| span == Span::from_ms(1)), "{vcpus}: {responses:?}");
        assert_eq!(used(&records, 1), Span::from_secs(1) * vcpus as u64);
    }
}

/// Under every policy and with every change of domains, a host with devices goes on serving.
/// Requests are answered, and the driver's recorded work is at most its CPU time.
#[test]
fn device_requests_are_answered_under_every_policy_while_domains_change() {
    let text = |cpus: usize| {
        // A tenth of a CPU under policies with periods, and equal weights under the others.
        let of = |policy: &str, slice: &str| {
            format!("share.{policy} = {{ {slice} = '1ms', period = '10ms' }}\n")
        };
        let slices = ["edf", "sedf", "atropos"].map(|policy| of(policy, "slice")).concat();
        let weights = "share.credit = { weight = 256 }\nshare.gaps = { weight = 256 }\n\
                       share.bvt = { weight = 1 }\n";
        let shares = slices + &of("gedf", "budget") + weights;
        format!(
            "[host]\ncpus = {cpus}\nrefuse = '2%'\ntimer_lateness = 'exponential 20us'\n\
             timer_slop = '50us'\nswitch = '3us'\nmigrate = '20us'\ntick_cost = '5us'\n\
             [driver]\ndomain = 'dom0'\nreceive = '10us'\nsend = '10us'\nrequest = '20us'\n\
             interrupt = '3us'\nevent = '1us'\nidle = '2us'\nnoise = '30%'\n\
             [nic]\ncoalesce = '100us'\ninterrupt = '2us'\nring = 16\n\
             [disk]\nseek = 'uniform 1ms 3ms'\n\
             [[domain]]\nname = 'dom0'\nvcpus = {cpus}\ntells = true\n\
             work = {{ kind = 'periodic', period = '7ms', work = '250us' }}\n\
             {shares}\
             [[domain]]\nname = 'web'\nvcpus = {cpus}\ncopies = 2\ndispatch = '10us'\n\
             tells = true\n\
             kernel = {{ receive = '15us', send = '12us', event = '1us', idle = '1us', \
             ring = 16 }}\n\
             work = {{ kind = 'web-server', each = '200us', response = '10KiB', read = '4KiB', \
             processes = 5 }}\n\
             {shares}\
             [[domain]]\nname = 'hog'\nwork = {{ kind = 'spin' }}\njoins = '100ms'\n\
             leaves = '700ms'\n{shares}\
             [[client]]\nkind = 'httperf'\nto = 'web-0'\nrate = 200\ntimeout = '300ms'\n\
             [[client]]\nkind = 'ab'\nto = 'web-1'\nat_once = 10\n\
             [[change]]\nat = '300ms'\ndomain = 'web-1'\npaused = true\n\
             [[change]]\nat = '400ms'\ndomain = 'web-1'\npaused = false\n\
             [[change]]\nat = '500ms'\ndomain = 'dom0'\npaused = true\n\
             [[change]]\nat = '510ms'\ndomain = 'dom0'\npaused = false\n"
        )
    };
    for cpus in [1, 2] {
        let scenario = scenario("1s", &text(cpus));
        for spec in ALL {
            let scenario = scenario.with_policy(spec.name).expect("every vCPU has a share");
            scenario.admit().expect("a tenth of a CPU each is admitted");
            let records = run(&scenario);
            assert_eq!(records, run(&scenario), "{}", spec.name);
            let answered = [1, 2].map(|domain| jobs(&records, domain).len());
            assert!(answered.iter().all(|&count| count > 10), "{}: {answered:?}", spec.name);
            let served = service(&records, 1).used + service(&records, 2).used;
            assert!(served <= used(&records, 0), "{}", spec.name);
        }
    }
}
