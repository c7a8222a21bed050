//! Task sets of EVA, and random task sets.

use proptest::prelude::*;
use slackline_units::{CpuShare, Span};
use slackline_workload::{
    Kind, Options, SetOptions, SourceFile, TimeUnit, WorkloadError, convert, convert_tasks,
};

const EVA: &str = include_str!("../fixtures/eva.txt");

fn eva(text: &str, options: &Options) -> Result<String, WorkloadError> {
    let file = SourceFile { name: "set.txt", bytes: text.as_bytes() };
    Ok(convert(Kind::Eva, &[file], options, "jobs")?.text)
}

#[test]
fn eva_tasks_become_vms_with_wcet_and_deadline_as_reservation() {
    let text = eva(EVA, &Options::default()).unwrap();
    for part in [
        "title  = \"taskset_U0.6_N03_000\"",
        "# assumed: times are in ms; the file does not state the unit",
        "work = { kind = \"periodic\", period = \"40ms\", work = \"2.5ms\", deadline = \"24ms\" }",
        "share.edf = { slice = \"2.5ms\", period = \"24ms\", exact = true }",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let file = SourceFile { name: "set.txt", bytes: EVA.as_bytes() };
    let written = convert(Kind::Eva, &[file], &Options::default(), "jobs").unwrap();
    let scenario = written.scenario().unwrap();
    assert_eq!(scenario.vcpus().count(), 3);
    scenario.admit().unwrap();
    let micros = Options { unit: TimeUnit::Micros, ..Options::default() };
    assert!(eva(EVA, &micros).unwrap().contains("work = \"2.5us\""));
}

#[test]
fn invalid_eva_line_is_refused_with_the_line_number() {
    for (text, says) in [
        ("10 20", "set.txt:1: the line has 2 fields; a task has 3"),
        ("1 2 3\nx 2 3", "set.txt:2: WCET `x` is not a time in ms"),
        ("1 2 3\n1 NaN 3", "set.txt:2: deadline `NaN` is not a time"),
        ("1 2 -3", "set.txt:1: period `-3` is not a time"),
        ("1 1e30 1e30", "set.txt:1: deadline `1e30` is not a time in ms of at most a day"),
        ("21 20 20", "set.txt:1: WCET 21ms does not fit into 20ms"),
        ("0 20 20", "set.txt:1: WCET 0s is not greater than zero"),
        ("\n\n", "set.txt: the file has no task"),
        ("1 2 3\nTaskset late", "set.txt:2: the line has 2 fields"),
    ] {
        let error = eva(text, &Options::default()).unwrap_err().to_string();
        assert!(error.starts_with(says), "{text:?}: {error}");
    }
}

#[test]
fn eva_tasks_become_task_set_if_deadlines_are_within_periods() {
    let file = |text: &'static str| SourceFile { name: "set.txt", bytes: text.as_bytes() };
    let options = Options::default();
    let written = convert_tasks(Kind::Eva, &[file(EVA)], &options).unwrap();
    assert!(written.text.contains("work = \"2.5ms\"\nperiod = \"40ms\"\ndeadline = \"24ms\""));
    let late = convert_tasks(Kind::Eva, &[file("1 30 20")], &options).unwrap_err().to_string();
    assert_eq!(late, "set.txt:1: deadline 30ms is more than the period 20ms");
    assert!(convert_tasks(Kind::SimSo, &[file(EVA)], &options).is_err());
}

#[test]
fn random_tasks_have_given_total_utilisation_and_period_range() {
    let set = SetOptions {
        tasks: 12,
        utilisation: CpuShare::from_ppm(1_500_000),
        periods: (Span::from_ms(5), Span::from_ms(50)),
        has_constrained_deadlines: true,
    };
    let of = |seed| {
        let options = Options { seed, set, ..Options::default() };
        convert(Kind::Uunifast, &[], &options, "jobs").unwrap()
    };
    assert_eq!(of(3), of(3));
    assert_ne!(of(3), of(4));
    for seed in 1..20 {
        let tasks = Options { seed, set, ..Options::default() };
        let text = convert_tasks(Kind::Uunifast, &[], &tasks).unwrap().text;
        let table: toml::Table = text.parse().unwrap();
        let ns = |task: &toml::Value, key: &str| -> Option<u64> {
            Some(task.get(key)?.as_str()?.parse::<Span>().unwrap().ns())
        };
        let tasks = table["task"].as_array().unwrap();
        assert_eq!(tasks.len(), 12);
        let mut sum = 0.0;
        for task in tasks {
            let (work, period) = (ns(task, "work").unwrap(), ns(task, "period").unwrap());
            let deadline = ns(task, "deadline").unwrap_or(period);
            assert!((5_000_000..=50_000_000).contains(&period), "{period}");
            assert!(work <= deadline && deadline <= period);
            sum += work as f64 / period as f64;
        }
        // Rounding changes each utilisation by less than 1 us in at least 5 ms.
        assert!(sum <= 1.5 + 12.0 / 5_000.0 && sum > 1.5 - 12.0 / 5_000.0, "{sum}");
    }
}

#[test]
fn refusal_of_random_task_set_contains_value_and_allowed_range() {
    let usual = SetOptions::default();
    let ms = Span::from_ms;
    for (set, says) in [
        (SetOptions { tasks: 0, ..usual }, "0 tasks; 1 to 200 are possible"),
        (SetOptions { tasks: 201, ..usual }, "201 tasks; 1 to 200 are possible"),
        (
            SetOptions { utilisation: CpuShare::from_ppm(5_000_001), ..usual },
            "utilisation 5.000001cpu of 5 tasks; above 0 and up to 5cpu",
        ),
        (SetOptions { utilisation: CpuShare::NONE, ..usual }, "utilisation 0cpu of 5 tasks"),
        (SetOptions { periods: (ms(9), ms(8)), ..usual }, "periods 9ms to 8ms; 100us to"),
        (SetOptions { periods: (Span::from_ns(1), ms(8)), ..usual }, "periods 1ns to 8ms"),
    ] {
        let options = Options { set, ..Options::default() };
        let error = convert(Kind::Uunifast, &[], &options, "jobs").unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
    }
    let file = SourceFile { name: "a.txt", bytes: b"1 2 2" };
    let error = convert(Kind::Uunifast, &[file], &Options::default(), "jobs").unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read 1 file for `uunifast`: its tasks are drawn at random"
    );
}

proptest! {
    #[test]
    fn altered_eva_file_gives_valid_scenario_or_error(at in 0..EVA.len(), byte: u8) {
        let mut bytes = EVA.as_bytes().to_vec();
        bytes[at] = byte;
        let file = SourceFile { name: "set.txt", bytes: &bytes };
        if let Ok(written) = convert(Kind::Eva, &[file], &Options::default(), "jobs") {
            prop_assert!(written.scenario().is_ok(), "{}", written.text);
        }
    }
}
