//! What people and programs are shown of a run.

mod script;

use script::{Script, us, vcpu};
use slackline_metrics::{FieldValue, Measure, Summary, side_by_side};
use slackline_trace::Record;
use slackline_units::{CpuId, Time};

/// Two seconds of five vCPUs: two web servers that sleep (the second is starved once), a batch job
/// that may have all the rest, a player that gets its slice exactly and does jobs, and one that
/// nothing was promised to.
fn run() -> Summary {
    let mut script = Script::new(&["web.0", "web.1", "batch", "player", "idle"]);
    script = script.promised(0, 0, 2_000, 10_000).promised(1, 0, 2_000, 10_000);
    script = script.promised(2, 0, 30_000, 100_000).exactly(3, 0, 4_000, 20_000);
    script = script.promise(4, 0, None, false).woke(2, 0).woke(3, 0);
    for start in (0..2_000_000_u64).step_by(20_000) {
        // Web comes first on both CPUs, once not until it has waited for 12 ms.
        script = script.woke(0, start).ran(0, start, start + 2_000).blocked(0, start + 2_000);
        let delay = if start == 1_000_000 { 12_000 } else { start / 20_000 };
        let from = start + delay;
        script = script.woke(1, start).used(1, 1, (from, from + 1_900, 1_900), (0, true));
        script = script.blocked(1, from + 1_900);
        script =
            script.ran(3, start + 2_000, start + 6_001).job(3, start, start + 6_000, start + 6_001);
        script = script.ran(2, start + 6_001, start + 11_000).ran_spare(
            2,
            start + 11_000,
            start + 20_000,
        );
    }
    let late = |at, late| Record::RangLate {
        at: Time::START + us(at),
        cpu: CpuId::new(0),
        late: us(late),
    };
    let changed =
        Record::Changed { due: Time::START + us(70), at: Time::START + us(82), vcpu: vcpu(2) };
    let overhead = Record::Overhead { cpu: CpuId::new(0), used: us(1_234) };
    script = script.with(late(1, 3)).with(late(2, 61)).with(changed).with(overhead);
    script.ended(2_000_000)
}

/// Compares texts line by line, so that a difference can be read.
fn assert_text(found: &str, expected: &str) {
    let expected = expected.strip_prefix('\n').unwrap_or(expected);
    assert!(found == expected, "found:\n{found}\nexpected:\n{expected}");
}

#[test]
fn data_that_moved_is_shown_as_a_rate() {
    // 12.5 MB in two seconds of which it was there for one: 100 Mbit/s.
    let moved = Record::Moved { at: Time::START + us(500_000), vcpu: vcpu(0), bytes: 12_500_000 };
    let run = Script::new(&["sink", "other"]).with(moved).left(0, 1_000_000).ended(2_000_000);
    let lines = |text: &str| {
        let last = |line: &str| line.split_whitespace().last().map(str::to_owned);
        text.lines().filter_map(last).collect::<Vec<_>>()
    };
    let table = lines(&run.render(100, false));
    assert!(table.contains(&"Mbit/s".to_owned()) && table.contains(&"100.0".to_owned()));
    let still = Script::new(&["other"]).ended(2_000_000);
    let text = side_by_side(&[("moves", &run), ("still", &still)]);
    assert!(text.contains("Mbit/s") && text.contains(" 100.0"), "{text}");
    // Where nobody moved anything there is no such column.
    assert!(!still.render(100, false).contains("Mbit/s"));
    assert!(!side_by_side(&[("still", &still)]).contains("Mbit/s"));
}

#[test]
fn a_run_as_tables() {
    assert_text(
        &run().render(100, false),
        "
a title: edf, sim, seed 1, 2s measured

                                                       ─ error in 1 s, % ─
 vCPU                  promised  delivered %  error %        p99     worst  switches  waiting s
────────────────────────────────────────────────────────────────────────────────────────────────
 web.0     2ms/10ms = 20.00 % +        10.00       -¹         -¹        -¹       100      0.000
 web.1     2ms/10ms = 20.00 % +         9.50       -¹         -¹        -¹       100      0.017
 batch   30ms/100ms = 30.00 % +        70.00    0.000      0.000     0.000       100      0.600
 player    4ms/20ms = 20.00 %          20.01   +0.025      0.025     0.025       100      1.600
 idle                        -²         0.00                                       0      0.000

                            ────────── late by, us ───────────  ─ wake to run, ms ──
 vCPU    deadlines  missed     p50     p99   worst  % of slice    p50    p99   worst
─────────────────────────────────────────────────────────────────────────────────────
 web.0         100       0                                      0.000  0.000   0.000
 web.1           1       1  3900.0  3900.0  3900.0      195.00  0.049  0.099  12.000
 batch          20       0                                      6.001  6.001   6.001
 player        100       0                                      2.000  2.000   2.000
 idle                                                              -³     -³      -³

                     ─── late by, us ───  ──── response, us ────
 vCPU    jobs  late    p50    p99  worst     p50     p99   worst
─────────────────────────────────────────────────────────────────
 player   100   100  1.000  1.000  1.000  6001.0  6001.0  6001.0
 -¹ slept, so that less than its promise is no error: see its deadlines
 -² nothing was promised
 -³ did not wake
 +  may have more than its promise: only less is an error

 CPU   busy %  owed %  unclaimed %  idle %  switches  overhead us
──────────────────────────────────────────────────────────────────
 cpu0  100.00   55.00        45.00    0.00       300       1234.0
 cpu1    9.50    9.50         0.00   90.50       100
 timers rang late by p50 3.0, p99 61.0, worst 61.0 us
 changes took effect after p50 12.0, p99 12.0, worst 12.0 us
",
    );
}

#[test]
fn where_there_is_room_there_is_one_table() {
    let tables = |width| run().render(width, false).matches(" vCPU ").count();
    assert_eq!((tables(250), tables(100)), (1, 3));
}

#[test]
fn runs_side_by_side() {
    let (a, b) = (run(), run());
    assert_text(
        &side_by_side(&[("sim", &a), ("live", &b)]),
        "
                                 ─ delivered % ─  ─ misses ─  ─ wake to run p99, us ─
 vCPU                  promised      sim    live   sim  live          sim        live
──────────────────────────────────────────────────────────────────────────────────────
 web.0     2ms/10ms = 20.00 % +    10.00   10.00     0     0          0.0         0.0
 web.1     2ms/10ms = 20.00 % +     9.50    9.50     1     1         99.0        99.0
 batch   30ms/100ms = 30.00 % +    70.00   70.00     0     0       6001.0      6001.0
 player    4ms/20ms = 20.00 %      20.01   20.01     0     0       2000.0      2000.0
 idle                               0.00    0.00
 +  may have more than its promise: only less is an error
",
    );
}

#[test]
fn who_answers_requests_is_compared_by_how_many_and_how_fast() {
    let answered = |after: &[u64]| {
        let job = |&(start, after): &(u64, u64)| Record::Job {
            vcpu: vcpu(0),
            task: None,
            released: Time::START + us(start),
            deadline: Time::NEVER,
            done: Time::START + us(start + after),
        };
        let starts = (0..).step_by(10_000).zip(after.iter().copied());
        let script = Script::new(&["web"]).ran(0, 0, 50_000);
        starts.collect::<Vec<_>>().iter().map(job).fold(script, Script::with).ended(100_000)
    };
    let (a, b) = (answered(&[500, 700, 900]), answered(&[2_000]));
    assert_text(
        &side_by_side(&[("bvt", &a), ("sedf", &b)]),
        "
       ─ delivered % ─  ─ jobs done ─  ─ response p50, us ─
 vCPU      bvt    sedf    bvt    sedf        bvt       sedf
────────────────────────────────────────────────────────────
 web     50.00   50.00      3       1      700.0     2000.0
",
    );
}

#[test]
fn what_is_missing_is_explained() {
    let script = Script::new(&["a"]).knows(false, false).promised(0, 0, 2_000, 10_000);
    let run = script.used(0, 0, (0, 500_000, 90_000), (0, true)).ended(500_000);
    assert_text(
        &run.render(100, false),
        "
a title: edf, sim, seed 1, 500ms measured

 vCPU              promised  delivered %  error %
──────────────────────────────────────────────────
 a     2ms/10ms = 20.00 % +        18.00  -10.000
 +  may have more than its promise: only less is an error
 Not shown, since this machine does not see who sleeps: deadlines, misses, wake to run, waiting.

 CPU   busy %  owed %  unclaimed %  idle %
───────────────────────────────────────────
 cpu0   18.00   18.00         0.00   82.00
 cpu1    0.00    0.00         0.00  100.00
",
    );
}

#[test]
fn colour_changes_nothing_but_colour() {
    let run = run();
    let colored = run.render(100, true);
    assert!(colored.contains("\x1b[32m0\x1b[0m") && colored.contains("\x1b[31m1\x1b[0m"));
    let bare = ["\x1b[31m", "\x1b[32m", "\x1b[0m"]
        .iter()
        .fold(colored, |text, code| text.replace(code, ""));
    assert_text(&bare, &run.render(100, false));
}

#[test]
fn a_table_is_no_wider_than_asked_where_its_groups_allow() {
    for width in [80, 100, 120, 300] {
        let text = run().render(width, false);
        let widest =
            text.lines().filter(|line| !line.starts_with(" -")).map(|line| line.chars().count());
        assert!(widest.max().unwrap() <= width, "{width}:\n{text}");
    }
}

#[test]
fn metrics_have_names_in_words() {
    let run = run();
    let cases = [
        ("misses", Some("web.1"), Measure::Count(1)),
        ("misses", Some("web"), Measure::Count(1)),
        ("misses", None, Measure::Count(1)),
        ("delivered", Some("web"), Measure::Ppm(195_000)),
        ("promised", Some("web"), Measure::Ppm(400_000)),
        ("delivered time", Some("batch"), Measure::Span(us(1_399_900))),
        ("error", Some("player"), Measure::Ppm(250)),
        ("error", Some("web"), Measure::Unknown),
        ("second error p99", Some("player"), Measure::Ppm(250)),
        ("wake to run worst", Some("web"), Measure::Span(us(12_000))),
        ("wake to run p99", Some("idle"), Measure::Unknown),
        ("miss time worst", Some("web.1"), Measure::Span(us(3_900))),
        ("miss time worst of slice", Some("web"), Measure::Ppm(1_950_000)),
        ("jobs late", Some("player"), Measure::Count(100)),
        ("response p50", Some("player"), Measure::Span(us(6_001))),
        ("busy", Some("cpu1"), Measure::Span(us(190_000))),
        ("busy", None, Measure::Span(us(2_190_000))),
        ("timer lateness p99", None, Measure::Span(us(61))),
        ("change delay p50", None, Measure::Span(us(12))),
    ];
    for (metric, of, measure) in cases {
        assert_eq!(run.lookup(metric, of), Ok(measure), "{metric} of {of:?}");
    }
}

#[test]
fn who_was_never_late_was_late_by_nothing() {
    let run = run();
    for (metric, of) in [("miss time p99", "web.0"), ("miss time worst", "batch")] {
        assert_eq!(run.lookup(metric, Some(of)), Ok(Measure::Span(us(0))), "{metric} of {of}");
    }
    let worst = run.lookup("miss time worst of slice", Some("batch"));
    assert_eq!(worst, Ok(Measure::Ppm(0)));
    assert_eq!(run.lookup("job lateness p99", Some("batch")), Ok(Measure::Unknown), "no jobs");
}

#[test]
fn an_unknown_metric_names_the_nearest() {
    let run = run();
    let error = run.lookup("mises", Some("web")).unwrap_err();
    assert_eq!(error.to_string(), "there is no metric `mises of web`");
    assert_eq!(error.nearest.as_deref(), Some("misses of web"));
    assert!(error.known.contains(&"wake to run p99".to_string()));
    let error = run.lookup("misses", Some("wbe")).unwrap_err();
    assert_eq!(error.nearest.as_deref(), Some("misses of web"));
    let names = ["web", "web.0", "web.1", "batch", "player", "idle", "cpu0", "cpu1"];
    assert_eq!(error.known, names);
    let error = run.lookup("timer latenes p99", None).unwrap_err();
    assert_eq!(error.nearest.as_deref(), Some("timer lateness p99"));
    assert_eq!(run.lookup("weight of the moon", None).unwrap_err().nearest, None);
}

#[test]
fn fields_have_stable_names_and_carry_their_unit() {
    let run = run();
    let names = |fields: Vec<(&'static str, FieldValue)>| {
        fields.iter().map(|field| field.0).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        names(run.vcpus[0].fields()),
        "name vcpu exact promised_slice_ns promised_period_ns promised_ppm delivered_ns \
         delivered_ppm present_ns error_ppm second_error_p99_ppm second_error_worst_ppm seconds \
         deadlines misses miss_time_p50_ns miss_time_p90_ns miss_time_p99_ns miss_time_worst_ns \
         miss_time_p50_of_slice_ppm miss_time_p99_of_slice_ppm miss_time_worst_of_slice_ppm \
         wake_to_run_p50_ns wake_to_run_p90_ns wake_to_run_p99_ns wake_to_run_worst_ns switches \
         migrations waiting_ns asleep_ns overrun_ns jobs jobs_late jobs_done moved_bytes \
         job_lateness_p50_ns job_lateness_p90_ns job_lateness_p99_ns job_lateness_worst_ns \
         response_p50_ns \
         response_p90_ns response_p99_ns response_worst_ns"
    );
    assert_eq!(
        names(run.cpus[0].fields()),
        "cpu busy_ns due_ns spare_ns idle_ns overhead_ns switches"
    );
    assert_eq!(
        names(run.fields()),
        "title machine policy seed length_ns knows_sleep knows_stretches declined refused \
         timer_lateness_p50_ns timer_lateness_p90_ns timer_lateness_p99_ns \
         timer_lateness_worst_ns change_delay_p50_ns change_delay_p90_ns change_delay_p99_ns \
         change_delay_worst_ns"
    );
    let player = run.vcpus[3].fields();
    let value = |name| player.iter().find(|field| field.0 == name).map(|field| &field.1);
    assert_eq!(value("name"), Some(&FieldValue::Text("player".into())));
    assert_eq!(value("exact"), Some(&FieldValue::Flag(true)));
    assert_eq!(value("error_ppm"), Some(&FieldValue::Signed(250)));
    assert_eq!(value("promised_slice_ns"), Some(&FieldValue::Count(4_000_000)));
    assert_eq!(value("miss_time_p50_ns"), Some(&FieldValue::Missing));
}

#[test]
fn what_a_machine_cannot_count_is_missing() {
    let script = Script::new(&["a"]).knows(true, false).ran(0, 0, 10);
    let run = script.ended(100);
    for fields in [&run.vcpu_fields()[0], &run.cpu_fields()[0]] {
        assert!(fields.contains(&("switches", FieldValue::Missing)));
    }
}
