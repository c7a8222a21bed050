//! Tests of the names of metrics, for programs and for claims.

use crate::script::{Script, us, web_servers};
use slackline_metrics::{FieldValue, Measure};

#[test]
fn each_metric_is_found_by_its_name_in_scenario_claims() {
    let run = web_servers();
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
fn lateness_metrics_are_zero_if_no_event_was_late() {
    let run = web_servers();
    for (metric, of) in [("miss time p99", "web.0"), ("miss time worst", "batch")] {
        assert_eq!(run.lookup(metric, Some(of)), Ok(Measure::Span(us(0))), "{metric} of {of}");
    }
    let worst = run.lookup("miss time worst of slice", Some("batch"));
    assert_eq!(worst, Ok(Measure::Ppm(0)));
    assert_eq!(run.lookup("job lateness p99", Some("batch")), Ok(Measure::Unknown), "no jobs");
}

#[test]
fn scenario_claim_about_quantile_of_single_value_uses_the_value() {
    let script = Script::new(&["a", "b"]).woke(0, 100).ran(0, 130, 200).blocked(0, 200);
    let script = script.woke(1, 300).ran(1, 310, 320).blocked(1, 320).woke(1, 400).ran(1, 450, 500);
    let run = script.ended(1_000);
    let field = |row: usize, name| {
        let row = run.vcpus[row].fields();
        row.into_iter().find(|field| field.0 == name).map(|field| field.1)
    };
    for (row, count, p99) in [(0, 1, FieldValue::Missing), (1, 2, FieldValue::Count(50_000))] {
        assert_eq!(field(row, "wake_to_run_count"), Some(FieldValue::Count(count)));
        assert_eq!(field(row, "wake_to_run_p99_ns"), Some(p99));
    }
    for quantile in ["p50", "p90", "p99", "worst"] {
        let found = run.lookup(&format!("wake to run {quantile}"), Some("a"));
        assert_eq!(found, Ok(Measure::Span(us(30))), "{quantile}");
    }
    assert_eq!(run.lookup("wake to run count", None), Ok(Measure::Count(3)));
    assert_eq!(run.lookup("response p99", Some("a")), Ok(Measure::Unknown));
}

#[test]
fn unknown_metric_name_is_refused_with_the_nearest_known_name() {
    let run = web_servers();
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
fn summary_field_names_are_stable_and_end_in_their_unit() {
    let run = web_servers();
    let names = |fields: Vec<(&'static str, FieldValue)>| {
        fields.iter().map(|field| field.0).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        names(run.vcpus[0].fields()),
        "name vcpu exact promised_slice_ns promised_period_ns promised_ppm delivered_ns \
         delivered_ppm present_ns work_ppm work_ns slowed_ns spun_ns overhead_ns \
         switch_overhead_ns migration_overhead_ns refill_overhead_ns tick_overhead_ns \
         interrupt_overhead_ns balancing_overhead_ns second_least_ppm second_most_ppm \
         ten_seconds_least_ppm ten_seconds_most_ppm error_ppm second_error_p99_ppm \
         second_error_worst_ppm seconds \
         deadlines misses miss_time_count miss_time_p50_ns miss_time_p90_ns miss_time_p99_ns \
         miss_time_worst_ns miss_time_p50_of_slice_ppm miss_time_p99_of_slice_ppm \
         miss_time_worst_of_slice_ppm wake_to_run_count wake_to_run_p50_ns wake_to_run_p90_ns \
         wake_to_run_p99_ns wake_to_run_worst_ns switches \
         migrations boosts false_boosts boosted_ns waiting_ns wait_worst_ns stopped_ns \
         asleep_ns overrun_ns jobs jobs_late jobs_done moved_bytes job_lateness_count \
         job_lateness_p50_ns job_lateness_p90_ns job_lateness_p99_ns job_lateness_worst_ns \
         response_count \
         response_p50_ns response_p90_ns response_p99_ns \
         response_worst_ns response_mean_ns response_worst_tenth_ns"
    );
    assert_eq!(
        names(run.cpus[0].fields()),
        "cpu busy_ns due_ns spare_ns idle_ns program_ns others_ppm stolen_ppm unused_ppm \
         overhead_ns switch_overhead_ns migration_overhead_ns refill_overhead_ns \
         tick_overhead_ns interrupt_overhead_ns balancing_overhead_ns switches"
    );
    assert_eq!(
        names(run.fields()),
        "title machine policy seed length_ns knows_sleep knows_stretches declined refused \
         timer_lateness_count timer_lateness_p50_ns timer_lateness_p90_ns timer_lateness_p99_ns \
         timer_lateness_worst_ns change_delay_count change_delay_p50_ns change_delay_p90_ns \
         change_delay_p99_ns change_delay_worst_ns"
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
fn metrics_that_the_host_cannot_measure_are_reported_as_missing() {
    let script = Script::new(&["a"]).knows(true, false).ran(0, 0, 10);
    let run = script.ended(100);
    for fields in [&run.vcpu_fields()[0], &run.cpu_fields()[0]] {
        assert!(fields.contains(&("switches", FieldValue::Missing)));
    }
}

#[test]
fn totals_of_a_domain_equal_sums_over_its_vcpus() {
    let run = web_servers();
    let domains = run.domain_fields();
    let field = |row: &[(&str, FieldValue)], name: &str| {
        row.iter().find(|field| field.0 == name).map(|field| field.1.clone())
    };
    let web = domains.iter().find(|row| row[0].1 == FieldValue::Text("web".into())).unwrap();
    assert_eq!(field(web, "vcpus"), Some(FieldValue::Count(2)));
    assert_eq!(field(web, "delivered_ppm"), Some(FieldValue::Count(195_000)));
    assert_eq!(field(web, "misses"), Some(FieldValue::Count(1)));
    let vcpus = run.vcpu_fields();
    let (mut sums, mut unknown) = (0, 0);
    for (name, total) in &web[2..] {
        match [&vcpus[0], &vcpus[1]].map(|row| field(row, name)) {
            [Some(FieldValue::Count(one)), Some(FieldValue::Count(other))] => {
                assert_eq!(*total, FieldValue::Count(one + other), "{name}");
                sums += 1;
            }
            values => {
                assert!(values.contains(&Some(FieldValue::Missing)), "{name}: {values:?}");
                assert_eq!(*total, FieldValue::Missing, "{name}");
                unknown += 1;
            }
        }
    }
    assert!(sums > 20 && unknown > 0, "{sums} sums, {unknown} unknown");
    let vcpus = |row: &Vec<_>| match field(row, "vcpus") {
        Some(FieldValue::Count(vcpus)) => usize::try_from(vcpus).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(domains.iter().map(vcpus).sum::<usize>(), run.vcpus.len());
}

/// Two domains of one vCPU each have names that look like the names of two vCPUs of one domain.
#[test]
fn domains_named_like_vcpus_have_totals_of_their_own() {
    let script = Script::new(&[]).named_in(0, "web.1", "web.1").named_in(1, "web.2", "web.2");
    let script = script.joined(0, 0).joined(1, 0).woke(0, 0).woke(1, 0);
    let run = script.ran(0, 0, 10).used(1, 1, (0, 30, 30), (0, true)).ended(100);
    let totals: Vec<_> = run.domain_fields().into_iter().map(|row| row[..2].to_vec()).collect();
    let total =
        |name: &str| vec![("name", FieldValue::Text(name.into())), ("vcpus", FieldValue::Count(1))];
    assert_eq!(totals, [total("web.1"), total("web.2")]);
    assert_eq!(run.lookup("delivered time", Some("web.2")), Ok(Measure::Span(us(30))));
    let unknown = run.lookup("delivered time", Some("web")).unwrap_err();
    assert_eq!(unknown.known[..2], ["web.1", "web.2"]);
}

#[test]
fn quantile_over_vcpus_reports_sample_count_of_the_worst_vcpu() {
    let script = Script::new(&["web.0", "web.1"]).woke(0, 100).ran(0, 130, 200).blocked(0, 200);
    let script = script.woke(1, 300).ran(1, 310, 320).blocked(1, 320).woke(1, 400).ran(1, 450, 500);
    let run = script.ended(1_000);
    for (metric, of, expected) in [
        ("wake to run p99", Some("web.0"), Some(1)),
        ("wake to run p99", Some("web.1"), Some(2)),
        ("wake to run p50", Some("web"), Some(1)),
        ("wake to run p99", Some("web"), Some(2)),
        ("wake to run p99", None, Some(2)),
        ("wake to run worst", Some("web"), None),
        ("response p99", Some("web"), None),
        ("delivered", None, None),
    ] {
        assert_eq!(run.values_of_quantile(metric, of), expected, "{metric} of {of:?}");
    }
    let run = web_servers();
    assert_eq!(run.values_of_quantile("second error p99", Some("player")), Some(2));
}
