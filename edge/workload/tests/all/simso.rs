//! Tests of task sets of SimSo, against schedules that SimSo itself computed.

use std::fmt::Write as _;

use proptest::prelude::*;
use slackline_trace::{Record, Sink};
use slackline_units::{Span, Time};
use slackline_workload::Kind;

use crate::{one, refused};

const SAMPLE: &[u8] = include_bytes!("../fixtures/simso.xml");
const SETS: &str = include_str!("../fixtures/simso-sets.txt");
/// Length of each run in the file of sets, in milliseconds.
const LENGTH_MS: u64 = 200;

/// A task set of the file, as XML, and the schedule of its run. The schedule is a list of run
/// intervals: the task that runs (`-` if none) and the length of the interval.
struct TaskSet {
    name: &'static str,
    xml: String,
    runs: Vec<(String, Span)>,
}

fn millis(text: &str) -> Span {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let ns = format!("{whole}{fraction:0<6}");
    Span::from_ns(ns.parse().expect("the text is a number of milliseconds"))
}

fn sets() -> Vec<TaskSet> {
    SETS.split("\nset ").skip(1).map(task_set).collect()
}

fn task_set(block: &'static str) -> TaskSet {
    let mut lines = block.lines();
    let name = lines.next().expect("a block begins with a number");
    let (mut tasks, mut runs) = (String::new(), Vec::new());
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["task", name, period, work, start] = words[..] {
            let _ = write!(
                tasks,
                "<task name=\"{name}\" task_type=\"Periodic\" period=\"{period}\" \
                 deadline=\"{period}\" WCET=\"{work}\" activationDate=\"{start}\"/>"
            );
            continue;
        }
        for (name, length) in words.iter().filter_map(|word| word.split_once(':')) {
            runs.push((name.to_owned(), millis(length)));
        }
    }
    let xml = format!(
        "<simulation duration=\"{}\" cycles_per_ms=\"1000000\">\
         <sched class=\"simso.schedulers.EDF\"/><processors><processor/></processors>\
         <tasks>{tasks}</tasks></simulation>",
        LENGTH_MS * 1_000_000
    );
    TaskSet { name, xml, runs }
}

/// Collects the run intervals of a simulation.
#[derive(Default)]
struct Runs {
    runs: Vec<(String, Span)>,
    end: Time,
}

impl Runs {
    fn add(&mut self, name: String, length: Span) {
        match self.runs.last_mut() {
            _ if length.is_zero() => {}
            Some((last, sum)) if *last == name => *sum += length,
            _ => self.runs.push((name, length)),
        }
    }
}

impl Sink for Runs {
    fn record(&mut self, record: &Record) {
        if let Record::Ran { vcpu, from, to, .. } = *record {
            self.add("-".to_owned(), from - self.end);
            self.add(format!("T{}", vcpu.domain().number()), to - from);
            self.end = to;
        }
    }
}

#[test]
fn simso_task_sets_are_scheduled_exactly_as_in_simso() {
    let sets = sets();
    assert_eq!(sets.len(), 100);
    for TaskSet { name, xml, runs: expected } in sets {
        let written = one(Kind::SimSo, "set.xml", xml.as_bytes()).expect("the task set is valid");
        let scenario = written.scenario().expect("the scenario is valid");
        let mut found = Runs::default();
        slackline_sim::run(&scenario, &mut found).expect("the run completes");
        let end = Time::START.after(Span::from_ms(LENGTH_MS));
        let rest = end - found.end;
        found.add("-".to_owned(), rest);
        assert_eq!(found.runs, expected, "set {name}: {}", written.text);
    }
}

#[test]
fn simso_file_becomes_a_scenario_that_reserves_each_wcet() {
    let written = one(Kind::SimSo, "a.xml", SAMPLE).expect("the task set is valid");
    let scenario = written.scenario().expect("the scenario is valid");
    assert_eq!((scenario.length, scenario.domains.len()), (Span::from_ms(420), 3));
    let text = "share.edf = { slice = \"5ms\", period = \"20ms\", exact = true }";
    assert!(written.text.contains(text), "{}", written.text);
    let other = String::from_utf8_lossy(SAMPLE).replace("schedulers.EDF", "schedulers.RM");
    let written = one(Kind::SimSo, "a.xml", other.as_bytes()).expect("the task set is valid");
    assert!(written.text.contains("# assumed: scheduler `RM` of the file is replaced by `edf`"));
}

#[test]
fn simso_attributes_without_effect_in_scenario_are_listed_as_assumptions() {
    let assumed = |text: &str| {
        let written = one(Kind::SimSo, "a.xml", text.as_bytes()).expect("the task set is valid");
        let is_assumed = |it: &&String| written.text.contains(&format!("# assumed: {it}\n"));
        assert_eq!(
            written.assumptions.iter().filter(is_assumed).count(),
            written.assumptions.len()
        );
        written.assumptions
    };
    let sample = String::from_utf8_lossy(SAMPLE);
    let before = assumed(&sample);
    assert!(before.iter().any(|it| it.starts_with("`abort_on_miss` of the tasks is left out")));
    for (from, to, text) in [
        ("cl_overhead=\"0\"", "cl_overhead=\"9\"", "`cl_overhead` of the processors is left out"),
        ("preemption_cost=\"0\"", "preemption_cost=\"9\"", "`preemption_cost` of the tasks is"),
        ("etm=\"wcet\"", "etm=\"acet\"", "execution time model `acet` is replaced by the WCET"),
        ("overhead_activate=\"0\"", "overhead_activate=\"9\"", "`overhead_activate` of the"),
    ] {
        let new = assumed(&sample.replacen(from, to, 1));
        let new: Vec<&String> = new.iter().filter(|it| !before.contains(it)).collect();
        assert!(new.len() == 1 && new[0].starts_with(text), "{new:?}");
    }
    let without = assumed(&sample.replace("abort_on_miss=\"yes\"", "abort_on_miss=\"no\""));
    assert!(without.len() + 1 == before.len(), "{without:?}");
}

#[test]
fn simso_files_that_no_scenario_can_express_are_refused() {
    let changed = |from: &str, to: &str| String::from_utf8_lossy(SAMPLE).replace(from, to);
    let text = changed("WCET=\"5\"", "WCET=\"21\"");
    let message =
        "file: task `T3`: WCET 21ms does not fit into 20ms, the shorter of deadline and period";
    refused(Kind::SimSo, text.as_bytes(), message);
    let text = changed("speed=\"1.0\"", "speed=\"0.5\"");
    let message = "file: a processor has speed 0.5; all CPUs of a host have speed 1";
    refused(Kind::SimSo, text.as_bytes(), message);
    let text = changed("period=\"7\"", "period=\"seven\"");
    refused(Kind::SimSo, text.as_bytes(), "file: task `T1`: period `seven` is not a time in ms");
    refused(Kind::SimSo, b"<a/>", "file: the root element is `a`, not `simulation`");
    let entity = b"<!DOCTYPE a [<!ENTITY b 'c'>]><simulation>&b;</simulation>";
    assert!(one(Kind::SimSo, "file", entity).is_err(), "entities are refused");
}

proptest! {
    #[test]
    fn altered_simso_file_gives_valid_scenario_or_error(
        at in 0..SAMPLE.len(), byte: u8,
    ) {
        let mut bytes = SAMPLE.to_vec();
        bytes[at] = byte;
        if let Ok(written) = one(Kind::SimSo, "file", &bytes) {
            prop_assert!(written.scenario().is_ok(), "{}", written.text);
        }
    }
}
