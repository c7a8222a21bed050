//! Recordings of simulated runs, for tests.

use slackline_scenario::Scenario;
use slackline_sim::trace_header;
use slackline_trace::{Entry, Header};
use slackline_units::{Span, Time};
use slackline_whatif::{Recorder, Recording};

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
