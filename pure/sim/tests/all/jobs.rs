//! Jobs under overload. A job that misses its deadline counts as late, whether it ends later or
//! never.

use slackline_metrics::{Measure, Meter, Summary};
use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{Span, Time};

fn summary(text: &str) -> Summary {
    summary_under("edf", text)
}

fn summary_under(policy: &str, text: &str) -> Summary {
    let text = format!("title = 't'\npolicy = {{ name = '{policy}' }}\n{text}");
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{error:?} in\n{text}"));
    let mut meter = Meter::new(&slackline_sim::trace_header(&scenario));
    slackline_sim::run(&scenario, &mut meter).expect("the run completes");
    meter.view().expect("every vCPU has a name")
}

fn overloaded(work: &str, share: &str, more: &str) -> String {
    format!(
        "[[domain]]\nname = 'x'\nwork = {{ kind = 'periodic', {work} }}\n\
         share.edf = {{ {share}, exact = true }}\n{more}"
    )
}

fn metric(summary: &Summary, name: &str) -> Measure {
    summary.lookup(name, Some("x")).expect("the metric exists")
}

/// Jobs of 30 ms are released every 30 ms and receive a third of a CPU, so 100 of 300 jobs end. The
/// last of these 100 jobs runs from 2,970 ms to 8,980 ms. The 300th job is due as the run ends.
#[test]
fn job_that_is_unfinished_at_its_deadline_counts_as_late() {
    let work = "period = '30ms', work = '30ms'";
    let run = summary(&format!(
        "length = '9s'\n{}",
        overloaded(work, "slice = '10ms', period = '30ms'", "")
    ));
    assert_eq!(metric(&run, "jobs"), Measure::Count(300));
    assert_eq!(metric(&run, "jobs late"), Measure::Count(300));
    assert_eq!(metric(&run, "jobs done"), Measure::Count(100));
    assert_eq!(metric(&run, "response worst"), Measure::Span(Span::from_ms(6_010)));
    assert_eq!(metric(&run, "job lateness worst"), Measure::Span(Span::from_ms(5_980)));
    // With a warm-up of a second, the 34 jobs released in it do not count.
    let run = summary(&format!(
        "length = '9s'\nwarmup = '1s'\n{}",
        overloaded(work, "slice = '10ms', period = '30ms'", "")
    ));
    assert_eq!(metric(&run, "jobs late"), Measure::Count(266));
}

/// Of 100 jobs none ever ends, and each counts as late.
#[test]
fn jobs_count_as_late_if_no_job_is_ever_done() {
    let work = "period = '100ms', work = '50ms'";
    let share = "slice = '100us', period = '100ms'";
    let run = summary(&format!("length = '10s'\n{}", overloaded(work, share, "")));
    assert_eq!(metric(&run, "jobs late"), Measure::Count(100));
    assert_eq!(metric(&run, "job lateness worst"), Measure::Span(Span::from_ms(9_900)));
    assert_eq!(metric(&run, "response worst"), Measure::Unknown);
}

/// A vCPU that leaves at 1 s has passed ten deadlines, even if it is paused before it leaves.
#[test]
fn unfinished_vcpu_jobs_count_as_late_until_the_vcpu_leaves() {
    let work = "period = '100ms', work = '50ms'";
    let share = "slice = '100us', period = '100ms'";
    let more = "leaves = '1s'\n[[change]]\nat = '500ms'\ndomain = 'x'\npaused = true\n";
    let run = summary(&format!("length = '10s'\n{}", overloaded(work, share, more)));
    assert_eq!(metric(&run, "jobs late"), Measure::Count(10));
}

/// Deadlines are set by the workload, here at half of the period. A job that is done in time never
/// counts as late.
#[test]
fn job_done_by_the_deadline_is_never_counted_as_late() {
    let work = "period = '10ms', work = '4ms', deadline = '5ms'";
    let share = "slice = '5ms', period = '10ms'";
    let run = summary(&format!("length = '1s'\n{}", overloaded(work, share, "")));
    assert_eq!(
        (metric(&run, "jobs"), metric(&run, "jobs late")),
        (Measure::Count(100), Measure::Count(0))
    );
}

/// Tasks of a guest have separate jobs and deadlines.
#[test]
fn unfinished_guest_jobs_are_counted_as_late_per_task() {
    let run = summary(
        "length = '1s'\n[[domain]]\nname = 'x'\n\
         share.edf = { slice = '1ms', period = '10ms', exact = true }\n\
         [[domain.task]]\nname = 'first'\npriority = 100\n\
         work = { kind = 'periodic', period = '100ms', work = '10ms' }\n\
         [[domain.task]]\nname = 'second'\npriority = 50\n\
         work = { kind = 'periodic', period = '50ms', work = '10ms' }\n",
    );
    // The first task uses all CPU time of the VM, and its 10 jobs are in time. All 20 jobs of the
    // second task are late.
    assert_eq!(metric(&run, "jobs"), Measure::Count(30));
    assert_eq!(metric(&run, "jobs late"), Measure::Count(20));
}

/// Returns the release times of the jobs of task `x`, which is alone on its CPU.
fn released(length: &str, work: &str, seed: u64) -> Vec<Span> {
    let text = format!(
        "title = 't'\nlength = '{length}'\nseed = {seed}\npolicy = {{ name = 'round-robin' }}\n\
         [[domain]]\nname = 'x'\nwork = {{ kind = 'periodic', period = '10ms', {work} }}\n"
    );
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{error:?} in\n{text}"));
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut records).expect("the run completes");
    let of = |record: &Record| match *record {
        Record::Job { released, .. } => Some(released - Time::START),
        _ => None,
    };
    records.iter().filter_map(of).collect()
}

/// Jitter moves one release only: release `n` is within 4 ms after `10 ms * n`.
#[test]
fn jitter_delays_the_release_of_one_job_only() {
    let all = released("10s", "work = '1ms', jitter = 'uniform 1ms 4ms'", 1);
    assert!(all.len() >= 999, "{}", all.len());
    let late = |(n, &at): (usize, &Span)| at - Span::from_ms(10) * n as u64;
    let late: Vec<Span> = all.iter().enumerate().map(late).collect();
    let (least, most) = (late.iter().min().unwrap(), late.iter().max().unwrap());
    assert!(Span::from_ms(1) <= *least && *least < Span::from_us(1_100), "{least}");
    assert!(Span::from_us(3_900) < *most && *most <= Span::from_ms(4), "{most}");
    // Releases keep their order if jitter is longer than the period.
    let all = released("10s", "work = '1ns', jitter = 'exponential 30ms'", 1);
    assert!(all.len() > 900 && all.is_sorted());
}

/// A random gap before a release delays all later releases too: by at least 10 ms, and by 20 ms on
/// average.
#[test]
fn gap_before_a_job_delays_all_later_releases() {
    let all = released("100s", "work = '1us', gap = 'exponential 10ms'", 1);
    let least = all.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap();
    assert!(Span::from_ms(10) <= least && least < Span::from_us(10_100), "{least}");
    // Five standard deviations of a count of 5,000 are under 180.
    assert!((4_820..=5_180).contains(&all.len()), "{}", all.len());
    let fixed = released("1s", "work = '1us', gap = '10ms'", 1);
    assert_eq!((fixed[1], fixed.len()), (Span::from_ms(20), 50));
}

/// Release times are drawn separately from work. So random or excessive work moves no release, and
/// another seed moves all of them.
#[test]
fn random_job_release_times_do_not_depend_on_work() {
    let drawn = "jitter = 'uniform 0s 3ms', gap = 'exponential 5ms'";
    let one = released("1s", &format!("work = '1us', {drawn}"), 1);
    let other = released("1s", &format!("work = 'uniform 1us 90us', {drawn}"), 1);
    let behind = released("1s", &format!("work = '30ms', {drawn}"), 1);
    assert!(one.len() > 40 && one[..40] == other[..40]);
    assert!(behind.len() > 20 && behind[..] == one[..behind.len()]);
    assert_ne!(one[..40], released("1s", &format!("work = '1us', {drawn}"), 2)[..40]);
}

/// Jobs that never end are late, with deadlines relative to their randomly drawn releases.
#[test]
fn unfinished_jobs_with_random_release_times_count_as_late() {
    let work = "period = '10ms', gap = '10ms', jitter = '5ms', work = '1s'";
    let share = "slice = '1ms', period = '10ms'";
    let run = summary(&format!("length = '1s'\n{}", overloaded(work, share, "")));
    // Released at 5, 25, ... 985 ms, and due 10 ms later: 50 jobs, the last at 995 ms.
    assert_eq!(metric(&run, "jobs late"), Measure::Count(50));
}

/// `fast` runs first: 1 ms of each 10 ms. The jobs of `slow` are released at 0, 20 and 40 ms, wait
/// for `fast` and compute for 5 ms. So each of them ends 6 ms after its release, 2 ms late.
#[test]
fn each_guest_task_has_separate_job_and_response_metrics() {
    let run = summary(
        "length = '55ms'\n[[domain]]\nname = 'x'\n\
         share.edf = { slice = '9ms', period = '10ms' }\n\
         [[domain.task]]\nname = 'slow'\npriority = 10\n\
         work = { kind = 'periodic', period = '20ms', work = '5ms', deadline = '4ms' }\n\
         [[domain.task]]\nname = 'fast'\npriority = 20\n\
         work = { kind = 'periodic', period = '10ms', work = '1ms' }\n",
    );
    let ms = Span::from_ms;
    let times =
        |of: Option<slackline_metrics::Distribution>| of.map(|of| (of.count, of.worst, of.mean));
    let rows: Vec<_> = run
        .tasks
        .iter()
        .map(|it| (it.name(), it.jobs, it.jobs_late, times(it.response), times(it.job_lateness)))
        .collect();
    assert_eq!(
        rows,
        [
            ("x/0".into(), 3, 3, Some((3, ms(6), ms(6))), Some((3, ms(2), ms(2)))),
            ("x/1".into(), 6, 0, Some((6, ms(1), ms(1))), None),
        ]
    );
    assert_eq!(metric(&run, "jobs"), Measure::Count(9));
}

/// The server takes 1 ms for a request. Packets of `client0` travel for 1 ms and packets of
/// `client1` for 3 ms. A request of `client2` arrives as the run ends. `client3` would begin after
/// the end.
#[test]
fn each_simulated_client_has_its_own_answer_and_response_metrics() {
    let clients = ["'1ms'", "'3ms'", "'20ms'\nfrom = '85ms'", "'1ms'\nfrom = '200ms'"]
        .map(|delay| {
            format!("[[client]]\nkind = 'ping'\nevery = '20ms'\nto = 'dom1'\ndelay = {delay}\n")
        })
        .concat();
    let run = summary_under(
        "round-robin",
        &format!(
            "length = '100ms'\n[driver]\ndomain = 'dom0'\n[[domain]]\nname = 'dom0'\n\
             [[domain]]\nname = 'dom1'\nwork = {{ kind = 'echo', each = '1ms' }}\n{clients}"
        ),
    );
    let ms = |of: Span| of / Span::from_ms(1);
    let rows = run.clients.iter().map(|it| {
        let response = it.response.map(|of| (of.count, ms(of.mean), ms(of.worst)));
        (it.client.to_string(), it.domain.as_str(), it.answered, response)
    });
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [
            ("client0".into(), "dom1", 5, Some((5, 3, 3))),
            ("client1".into(), "dom1", 5, Some((5, 7, 7))),
            ("client2".into(), "dom1", 0, None),
        ]
    );
    assert_eq!(run.lookup("response count", Some("dom1")), Ok(Measure::Count(10)));
    assert_eq!(run.lookup("answered", Some("client1")), Ok(Measure::Count(5)));
    assert_eq!(run.lookup("answered", Some("client2")), Ok(Measure::Count(0)));
    assert_eq!(run.lookup("response p99", Some("client2")), Ok(Measure::Unknown));
    assert!(run.lookup("answered", Some("client3")).is_err());
}
