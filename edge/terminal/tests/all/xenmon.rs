//! Tests of the tables of XenMon's metrics.

use slackline_metrics::{Point, XenMonDomain, XenMonSummary};
use slackline_terminal::{Paint, xenmon};
use slackline_trace::Knowledge;
use slackline_units::Span;

/// Returns a domain with these gotten, allocated, blocked and waited times in milliseconds. It has
/// one execution of 100 ms.
fn domain(name: &str, times: [u64; 4], io: u64) -> XenMonDomain {
    let [gotten, allocated, blocked, waited] = times.map(Span::from_ms);
    let total = Point { gotten, allocated, blocked, waited, executions: 1, sliced: 1, io };
    XenMonDomain { name: name.into(), total, points: vec![total] }
}

fn two() -> XenMonSummary {
    let domains = vec![domain("web", [20, 30, 80, 0], 0), domain("batch", [80, 30, 0, 20], 4)];
    XenMonSummary { length: Span::from_ms(100), knows: Knowledge::ALL, knows_io: false, domains }
}

#[track_caller]
fn assert_table(run: &XenMonSummary, expected: &str) {
    let found = xenmon(run, 110, Paint::Plain);
    assert!(found == expected.trim_start(), "{found}");
}

#[test]
fn xenmon_metrics_of_a_run_are_shown_as_a_table() {
    assert_table(
        &two(),
        "
XenMon: 100ms sampled every 100ms

         ─── gotten ───  ─ allocated ─  ─ blocked ─  ─── waited ───          ───── I/O ─────
 domain      %  ms/exec        ms/exec            %      %  ms/exec  exec/s  per s  per exec
─────────────────────────────────────────────────────────────────────────────────────────────
 web     20.00   20.000         30.000        80.00   0.00    0.000    10.0      -         -
 batch   80.00   80.000         30.000         0.00  20.00   20.000    10.0      -         -
 -  the trace says nothing about I/O
",
    );
}

#[test]
fn xenmon_table_shows_dash_with_explanation_for_missing_value() {
    let mut run = two();
    run.knows_io = true;
    run.domains[0].total.sliced = 0;
    assert_table(
        &run,
        "
XenMon: 100ms sampled every 100ms

         ─── gotten ───  ─ allocated ─  ── blocked ──  ─── waited ───          ───── I/O ─────
 domain      %  ms/exec        ms/exec      %  us/I/O      %  ms/exec  exec/s  per s  per exec
───────────────────────────────────────────────────────────────────────────────────────────────
 web     20.00   20.000             -¹  80.00      -²   0.00    0.000    10.0    0.0       0.0
 batch   80.00   80.000         30.000   0.00   0.000  20.00   20.000    10.0   40.0       4.0
 -¹ was never granted a slice
 -² did no I/O
",
    );
}

#[test]
fn xenmon_table_omits_columns_that_the_host_cannot_measure() {
    let mut run = two();
    run.knows =
        Knowledge { sleep: false, stretches: false, resolution: Span::ZERO, overhead: false };
    assert_table(
        &run,
        "
XenMon: 100ms sampled every 100ms

         ─ gotten ─  ───── I/O ─────
 domain           %  per s  per exec
─────────────────────────────────────
 web          20.00      -         -
 batch        80.00      -         -
 -  the trace says nothing about I/O
",
    );
}
