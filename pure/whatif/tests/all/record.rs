//! Recordings of simulated runs, for tests.

use slackline_scenario::Scenario;
use slackline_sim::trace_header;
use slackline_trace::{Entry, Header};
use slackline_units::{Span, Time};
use slackline_whatif::{Measures, Model, Recorder, Recording, forecast, gate};

/// Reads the text of a scenario.
pub(crate) fn scenario(text: &str) -> Scenario {
    Scenario::read(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Simulates a scenario and returns the entries of its trace.
pub(crate) fn entries(scenario: &Scenario) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    slackline_sim::run(scenario, &mut entries).unwrap_or_else(|error| panic!("{error}"));
    entries
}

/// Makes a recording of a trace.
pub(crate) fn recording(header: &Header, entries: &[Entry], length: Span) -> Recording {
    let mut recorder = Recorder::new(header, (Time::START, Time::START + length));
    entries.iter().for_each(|entry| entry.pass_to(&mut recorder));
    recorder.finish().expect("all vCPUs are named")
}

/// Simulates a scenario and makes a recording of its trace.
pub(crate) fn recorded(text: &str) -> Recording {
    let scenario = scenario(text);
    recording(&trace_header(&scenario), &entries(&scenario), scenario.length)
}

/// Simulates a scenario and makes a recording of its trace, as if a live host had recorded it.
pub(crate) fn recorded_live(text: &str) -> Recording {
    let scenario = scenario(text);
    let header = Header { machine: "live".into(), ..trace_header(&scenario) };
    recording(&header, &entries(&scenario), scenario.length)
}

/// Simulates the unchanged model of a recording. Returns the results of the open and of the closed
/// form, from the end of the warm-up on. A form that does not pass the gate has no results.
pub(crate) fn repeated(recording: &Recording) -> [Vec<Measures>; 2] {
    let model = Model::new(recording).expect("a simulated trace has a model");
    let gate = gate(recording, &model).expect("its own reservations are admitted");
    let forecast = forecast(recording, &gate, &model).expect("its own reservations are admitted");
    let of = |form: usize| forecast.rows.iter().filter_map(move |row| row.then.get(form).cloned());
    [0, 1].map(|form| of(form).collect())
}

/// A web server, a periodic task and a CPU-bound VM, on one CPU.
pub(crate) const THREE: &str = r#"
title = "three"
length = "10s"
policy = { name = "sedf" }
[[domain]]
name = "web"
share.sedf = { slice = "3ms", period = "10ms" }
work = { kind = "interactive", compute = "exponential 2ms", sleep = "exponential 6ms" }
[[domain]]
name = "db"
share.sedf = { slice = "4ms", period = "20ms" }
work = { kind = "periodic", period = "20ms", work = "uniform 1ms 3ms" }
[[domain]]
name = "batch"
share.sedf = { slice = "2ms", period = "10ms" }
work = { kind = "spin" }
"#;
