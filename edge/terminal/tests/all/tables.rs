//! Tests of tables of single runs, and of several runs side by side.

use crate::script::{Script, us, vcpu, web_servers};
use slackline_terminal::{Paint, side_by_side, summary};
use slackline_trace::Record;
use slackline_units::Time;

/// Asserts that two texts are equal. On failure, the message shows both texts with their line
/// breaks.
fn assert_text(found: &str, expected: &str) {
    let expected = expected.strip_prefix('\n').unwrap_or(expected);
    assert!(found == expected, "found:\n{found}\nexpected:\n{expected}");
}

#[test]
fn data_transferred_by_a_vcpu_is_shown_as_a_rate() {
    // 12.5 MB in one second of presence (of two seconds in all) are 100 Mbit/s.
    let moved = Record::Moved { at: Time::START + us(500_000), vcpu: vcpu(0), bytes: 12_500_000 };
    let run = Script::new(&["sink", "other"]).with(moved).left(0, 1_000_000).ended(2_000_000);
    let lines = |text: &str| {
        let last = |line: &str| line.split_whitespace().last().map(str::to_owned);
        text.lines().filter_map(last).collect::<Vec<_>>()
    };
    let table = lines(&summary(&run, 100, Paint::Plain));
    assert!(table.contains(&"Mbit/s".to_owned()) && table.contains(&"100.0".to_owned()));
    let still = Script::new(&["other"]).ended(2_000_000);
    let text = side_by_side(&[("moves", &run), ("still", &still)], None);
    assert!(text.contains("Mbit/s") && text.contains(" 100.0"), "{text}");
    // Without moved data, the column is left out.
    assert!(!summary(&still, 100, Paint::Plain).contains("Mbit/s"));
    assert!(!side_by_side(&[("still", &still)], None).contains("Mbit/s"));
}

#[test]
fn table_shows_work_beside_cpu_time_if_cpus_were_slowed() {
    let slowed = Record::Slowed {
        vcpu: vcpu(0),
        from: Time::START,
        to: Time::START + us(400_000),
        work: us(260_000),
    };
    let ran = |script: Script| script.woke(0, 0).ran(0, 0, 1_000_000);
    let run = ran(Script::new(&["a", "b"])).with(slowed).ended(1_000_000);
    let row = |text: &str| {
        let line = text.lines().find(|line| line.starts_with(" a ")).expect("vCPU `a` has a row");
        line.split_whitespace().skip(1).take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row(&summary(&run, 100, Paint::Plain)), ["100.00", "86.00"]);
    let text = side_by_side(&[("beside", &run)], None);
    assert!(text.contains("work %") && text.contains("86.00"), "{text}");
    let full = ran(Script::new(&["a", "b"])).ended(1_000_000);
    assert!(!summary(&full, 100, Paint::Plain).contains("work %"));
    assert!(!side_by_side(&[("alone", &full)], None).contains("work %"));
}

#[test]
fn summary_of_a_run_is_shown_as_tables() {
    assert_text(
        &summary(&web_servers(), 100, Paint::Plain),
        "
a title: edf, sim, seed 1, 2s measured

                                                       ─ error in 1 s, % ─
 vCPU                  promised  delivered %  error %     p99   worst    n  switches  waiting s
────────────────────────────────────────────────────────────────────────────────────────────────
 web.0     2ms/10ms = 20.00 % +        10.00       -¹      -¹      -¹            100      0.000
 web.1     2ms/10ms = 20.00 % +         9.50       -¹      -¹      -¹            100      0.017
 batch   30ms/100ms = 30.00 % +        70.00    0.000   0.000   0.000    2       100      0.600
 player    4ms/20ms = 20.00 %          20.01   +0.025   0.025   0.025    2       100      1.600
 idle                        -²         0.00                                       0      0.000

                            ─────── late by, us ────────  ──── wake to run, ms ────
 vCPU    deadlines  missed  p50  p99   worst  % of slice    p50     p99   worst   n
────────────────────────────────────────────────────────────────────────────────────
 web.0         100       0                                0.000   0.000   0.000  99
 web.1           1       1   -³   -³  3900.0      195.00  0.051  12.000  12.000  99
 batch          20       0                                   -⁴      -⁴      -⁴
 player        100       0                                   -⁴      -⁴      -⁴
 idle                                                        -⁴      -⁴      -⁴

                     ─── late by, us ───  ────── response, us ───────
 vCPU    jobs  late    p50    p99  worst     p50     p99   worst    n
──────────────────────────────────────────────────────────────────────
 player   100   100  1.000  1.000  1.000  6001.0  6001.0  6001.0  100
 -¹ blocked, so less CPU time than reserved is no error: see its deadlines
 -² nothing was reserved
 -³ a single value has no quantiles
 -⁴ never woke after it joined
 +  work-conserving: only too little CPU time is an error

 CPU   busy %  owed %  unclaimed %  idle %  switches  overhead us
──────────────────────────────────────────────────────────────────
 cpu0  100.00   55.00        45.00    0.00       300       1234.0
 cpu1    9.50    9.50         0.00   90.50       100
 timers expired late by p50 3.0, p99 61.0, worst 61.0 us, n 2
 changes took effect after 12.0 us, n 1
",
    );
}

#[test]
fn table_shows_cpu_time_of_other_programs_if_known() {
    let books = |to, idle, stolen| Record::Accounted {
        cpu: slackline_units::CpuId::new(0),
        from: Time::START,
        to: Time::START + us(to),
        idle: us(idle),
        stolen: us(stolen),
        dispatching: us(0),
    };
    let run = |stolen| {
        let mut script = Script::new(&["a"]).with(books(0, 0, 0)).ran(0, 0, 300_000);
        script.header.machine = "live".into();
        summary(&script.with(books(1_000_000, 500_000, stolen)).ended(1_000_000), 100, Paint::Plain)
    };
    let cpus = |text: &str| {
        text.split(" CPU ").nth(1).expect("the summary has a table of CPUs").to_owned()
    };
    let heading = " busy %  owed %  unclaimed %  not ours %  others %  unused %";
    let text = run(0);
    assert!(cpus(&text).contains(heading.trim()), "{text}");
    let table = cpus(&text);
    let row: Vec<&str> = table.lines().nth(2).unwrap_or_default().split_whitespace().collect();
    assert_eq!(row, ["cpu0", "30.00", "30.00", "0.00", "70.00", "20.00", "50.00", "1"]);
    assert!(cpus(&run(1_000)).contains("others %  stolen %  unused %"), "{}", run(1_000));
}

#[test]
fn wide_terminal_shows_all_columns_in_a_single_table() {
    let tables = |width| summary(&web_servers(), width, Paint::Plain).matches(" vCPU ").count();
    assert_eq!((tables(250), tables(100)), (1, 3));
}

#[test]
fn table_of_compare_command_shows_runs_side_by_side() {
    let (a, b) = (web_servers(), web_servers());
    assert_text(
        &side_by_side(&[("sim", &a), ("live", &b)], Some(100)),
        "
                                 ─ delivered % ─  ─ misses ─
 vCPU                  promised      sim    live   sim  live
─────────────────────────────────────────────────────────────
 web.0     2ms/10ms = 20.00 % +    10.00   10.00     0     0
 web.1     2ms/10ms = 20.00 % +     9.50    9.50     1     1
 batch   30ms/100ms = 30.00 % +    70.00   70.00     0     0
 player    4ms/20ms = 20.00 %      20.01   20.01     0     0
 idle                               0.00    0.00

        ─ wake to run p99, ms ─  ─ n of wakes ─
 vCPU           sim        live     sim    live
────────────────────────────────────────────────
 web.0        0.000       0.000      99      99
 web.1       12.000      12.000      99      99
 +  work-conserving: only too little CPU time is an error
",
    );
}

#[test]
fn compare_table_shows_completed_jobs_and_response_times_of_servers() {
    let answered = |after: &[u64]| {
        let job = |&(start, after): &(u64, u64)| Record::Job {
            vcpu: vcpu(0),
            task: None,
            client: None,
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
        &side_by_side(&[("bvt", &a), ("sedf", &b)], None),
        "
       ─ delivered % ─  ─ jobs done ─  ─ response p50, us ─
 vCPU      bvt    sedf    bvt    sedf         bvt      sedf
────────────────────────────────────────────────────────────
 web     50.00   50.00      3       1       700.0        -¹
 -¹ a single value has no quantiles
",
    );
}

#[test]
fn missing_table_values_are_explained_below_the_table() {
    let script = Script::new(&["a"]).knows(false, false).promised(0, 0, 2_000, 10_000);
    let run = script.used(0, 0, (0, 500_000, 90_000), (0, true)).ended(500_000);
    assert_text(
        &summary(&run, 100, Paint::Plain),
        "
a title: edf, sim, seed 1, 500ms measured

 vCPU              promised  delivered %  error %
──────────────────────────────────────────────────
 a     2ms/10ms = 20.00 % +        18.00  -10.000
 +  work-conserving: only too little CPU time is an error
 Not shown, since this host does not see when vCPUs block: deadlines, misses, wake to run, waiting.

 CPU   busy %  owed %  unclaimed %  idle %
───────────────────────────────────────────
 cpu0   18.00   18.00         0.00   82.00
 cpu1    0.00    0.00         0.00  100.00
",
    );
}

#[test]
fn text_of_a_table_is_equal_with_and_without_colours() {
    let run = web_servers();
    let colored = summary(&run, 100, Paint::Colour);
    assert!(colored.contains("\x1b[32m0\x1b[0m") && colored.contains("\x1b[31m1\x1b[0m"));
    let bare = ["\x1b[31m", "\x1b[32m", "\x1b[0m"]
        .iter()
        .fold(colored, |text, code| text.replace(code, ""));
    assert_text(&bare, &summary(&run, 100, Paint::Plain));
}

#[test]
fn table_fits_into_terminals_of_80_columns_or_more() {
    for width in [80, 100, 120, 300] {
        let text = summary(&web_servers(), width, Paint::Plain);
        let widest =
            text.lines().filter(|line| !line.starts_with(" -")).map(|line| line.chars().count());
        assert!(widest.max().unwrap() <= width, "{width}:\n{text}");
    }
}
