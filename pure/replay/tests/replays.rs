//! Tests of replays of runs, and of traces that were changed.

use std::path::PathBuf;

use slackline_policy::{ALL, SIMULATED_ONLY};
use slackline_replay::{Difference, Replay, ReplayError, ReplayResult};
use slackline_scenario::Scenario;
use slackline_sim::trace_header;
use slackline_trace::{
    Entry, Exchange, Fact, Header, HostThread, HostThreadId, HostThreadKind, Note, Order, Outcome,
    Reader, Writer,
};
use slackline_units::{Span, Time};

/// Returns the trace of a run as a file, even if the run fails.
fn traced(scenario: &Scenario) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, &trace_header(scenario));
    // The result does not matter: a run whose scenario is declined has a trace too.
    let _ = slackline_sim::run(scenario, &mut writer);
    writer.finish().expect("writing to memory cannot fail");
    file
}

fn entries(file: &[u8]) -> (Header, Vec<Entry>) {
    let mut reader = Reader::new(file).expect("the file is a trace");
    let mut entries: Vec<Entry> = Vec::new();
    reader.pass_to(&mut entries).expect("the trace is complete");
    (reader.header().clone(), entries)
}

fn replayed(header: &Header, entries: &[Entry]) -> Result<ReplayResult, ReplayError> {
    let mut replay = Replay::new(header)?;
    entries.iter().for_each(|entry| entry.pass_to(&mut replay));
    replay.finish()
}

fn difference(header: &Header, entries: &[Entry]) -> Difference {
    let replayed = replayed(header, entries).expect("the trace can be replayed");
    replayed.difference.expect("the replay differs from the trace")
}

#[test]
fn replay_repeats_recorded_decisions_in_every_scenario_and_policy() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut runs = 0;
    for entry in folder.read_dir().expect("the folder of scenarios can be read") {
        let path = entry.expect("the folder of scenarios can be read").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a scenario file can be read");
        let load = |other: &str| {
            std::fs::read_to_string(folder.join(other)).map_err(|error| error.to_string())
        };
        let scenario = Scenario::with_files(&text, &load).expect("the scenario is valid");
        for spec in ALL.iter().chain(SIMULATED_ONLY) {
            let Ok(scenario) = scenario.with_policy(spec.name) else { continue };
            let (header, entries) = entries(&traced(&scenario));
            let replayed = replayed(&header, &entries).expect("the trace can be replayed");
            let of = format!("{} under {}", path.display(), spec.name);
            assert_eq!(replayed.difference, None, "{of}");
            assert!(replayed.facts > 0, "{of}");
            runs += u64::from(replayed.orders > 100);
        }
    }
    assert!(runs > 20, "only {runs} runs have more than 100 orders");
}

/// Scenario in which orders are refused, changes are declined, and vCPUs pause, resume, migrate and
/// leave.
const EVENTFUL: &str = r#"
title  = "eventful"
length = "2s"
seed   = 3
policy = { name = "edf" }
[host]
cpus = 2
refuse = "10%"
timer_lateness = "exponential 20us"
[[domain]]
name = "web"
work = { kind = "interactive", compute = "exponential 1ms", sleep = "exponential 5ms" }
share.edf = { slice = "4ms", period = "10ms" }
[[domain]]
name = "batch"
cpus = [1]
leaves = "1500ms"
work = { kind = "spin" }
share.edf = { slice = "3ms", period = "10ms", exact = true }
[[domain]]
name = "late"
joins = "700ms"
work = { kind = "spin" }
share.edf = { slice = "3ms", period = "10ms" }
[[change]]
at = "500ms"
domain = "web"
share.edf = { slice = "99ms", period = "100ms" }
[[change]]
at = "600ms"
domain = "batch"
paused = true
[[change]]
at = "800ms"
domain = "batch"
paused = false
[[change]]
at = "900ms"
domain = "batch"
cpus = [0, 1]
"#;

#[test]
fn replay_repeats_recorded_refusals_pauses_and_rejected_changes() {
    let (header, entries) =
        entries(&traced(&Scenario::read(EVENTFUL).expect("the scenario is valid")));
    let exchanges = || {
        entries.iter().filter_map(|entry| match entry {
            Entry::Exchange(exchange) => Some(exchange),
            _ => None,
        })
    };
    let has = |wanted: fn(&Exchange) -> bool| exchanges().any(wanted);
    assert!(has(|it| matches!(it, Exchange::Declined)));
    assert!(has(|it| matches!(it, Exchange::Ordered { outcome: Outcome::Refused, .. })));
    assert!(has(|it| matches!(it, Exchange::Reported { fact: Fact::Paused(_), .. })));
    assert!(has(|it| matches!(it, Exchange::Reported { fact: Fact::Left(_), .. })));
    let facts = exchanges().filter(|it| matches!(it, Exchange::Reported { .. })).count() as u64;
    let orders = exchanges().filter(|it| matches!(it, Exchange::Ordered { .. })).count() as u64;
    let expected = ReplayResult { facts, orders, difference: None, broken: None };
    assert_eq!(replayed(&header, &entries), Ok(expected));
}

/// Returns the index of the middle one of the entries for which `is_so` is true.
fn middle(entries: &[Entry], is_so: fn(&Exchange) -> bool) -> usize {
    let is_so = |entry: &Entry| matches!(entry, Entry::Exchange(exchange) if is_so(exchange));
    let places: Vec<usize> = (0..entries.len()).filter(|&place| is_so(&entries[place])).collect();
    places[places.len() / 2]
}

fn host_thread() -> Entry {
    Entry::HostThread(Box::new(HostThread {
        at: Time::START,
        id: HostThreadId::new(0),
        kind: HostThreadKind::Kernel,
        vcpu: None,
        tid: 1,
        process: 1,
        user: 0,
        name: "kworker".into(),
        command: String::new(),
        vm: String::new(),
        group: String::new(),
    }))
}

#[test]
fn replay_reports_the_trace_entry_of_an_altered_decision() {
    let (header, mut entries) =
        entries(&traced(&Scenario::read(EVENTFUL).expect("the scenario is valid")));
    // Entries without decisions count too.
    entries.insert(0, Entry::Note(Note { name: "kernel".into(), text: "6.18".into() }));
    entries.insert(1, host_thread());
    let limited = |it: &Exchange| {
        matches!(it, Exchange::Ordered { order: Order::Run { until: Some(_), .. }, .. })
    };
    let place = middle(&entries, limited);
    let Entry::Exchange(Exchange::Ordered { order: Order::Run { until: Some(until), .. }, .. }) =
        &mut entries[place]
    else {
        unreachable!("`middle` found such an entry")
    };
    *until += Span::from_ns(1);
    let found = difference(&header, &entries);
    let Entry::Exchange(changed) = &entries[place] else {
        unreachable!("`middle` found such an entry")
    };
    assert_eq!((found.entry, found.expected.as_ref()), (place as u64, Some(changed)));
    let Some(Exchange::Ordered { order: Order::Run { until: Some(got), .. }, .. }) = found.got
    else {
        panic!("{found:?}")
    };
    let Exchange::Ordered { order: Order::Run { until: Some(was), .. }, .. } = changed else {
        unreachable!("`middle` found such an entry")
    };
    assert_eq!(*was - got, Span::from_ns(1));
    assert_eq!(found.facts.len(), 5);
    assert!(found.facts.last().is_some_and(|&(_, at, _)| at == found.at));
    assert!(found.facts.iter().all(|&(entry, ..)| entry < found.entry));
}

#[test]
fn replay_finds_first_difference_after_a_removed_event() {
    let (header, mut entries) =
        entries(&traced(&Scenario::read(EVENTFUL).expect("the scenario is valid")));
    let place = middle(&entries, |it| matches!(it, Exchange::Reported { fact: Fact::Woke(_), .. }));
    let Entry::Exchange(Exchange::Reported { fact, now }) = &mut entries[place] else {
        unreachable!("`middle` found such an entry")
    };
    let now = *now;
    *fact = Fact::Passed;
    let found = difference(&header, &entries);
    // In the replay, the vCPU stays blocked until the next event of that vCPU.
    assert!(found.entry > place as u64 && found.at >= now, "{found:?}");
    assert!(found.at < now + Span::from_ms(20), "{found:?}");
}

#[test]
fn superfluous_measurement_in_trace_is_reported_by_replay() {
    let (header, mut entries) =
        entries(&traced(&Scenario::read(EVENTFUL).expect("the scenario is valid")));
    let place = middle(&entries, |it| matches!(it, Exchange::Measured(_)));
    let measured = entries[place].clone();
    // The trace now has one measurement more than the host asks for.
    entries.insert(place, measured.clone());
    let found = difference(&header, &entries);
    let Entry::Exchange(measured) = measured else { unreachable!("`middle` found such an entry") };
    assert_eq!((found.expected, found.got), (Some(measured), None));
}

#[test]
fn replay_reports_the_first_decision_that_an_altered_parameter_changes() {
    let text = "title = \"two\"\nlength = \"1s\"\npolicy = { name = \"round-robin\" }\n\
        [[domain]]\nname = \"a\"\nwork = { kind = \"spin\" }\nshare.round-robin = {}\n\
        [[domain]]\nname = \"b\"\nwork = { kind = \"spin\" }\nshare.round-robin = {}\n";
    let (header, entries) = entries(&traced(&Scenario::read(text).expect("the scenario is valid")));
    let parameters = header.parameters.replace("quantum=10ms", "quantum=7ms");
    assert_ne!(parameters, header.parameters);
    let other = Header { parameters, ..header };
    let found = difference(&other, &entries);
    assert_eq!(found.at, Time::START);
    let is_order = |entry: &Entry| matches!(entry, Entry::Exchange(Exchange::Ordered { .. }));
    let first = entries.iter().position(is_order).expect("the trace has an order");
    assert_eq!(found.entry, first as u64);
    let Some(Exchange::Ordered { order: Order::Run { until, .. }, .. }) = found.got else {
        panic!("{found:?}")
    };
    assert_eq!(until, Some(Time::START + Span::from_ms(7)));
}

#[test]
fn trace_that_cannot_be_replayed_is_refused_with_the_reason() {
    let (header, entries) =
        entries(&traced(&Scenario::read(EVENTFUL).expect("the scenario is valid")));
    let unknown = Header { policy: "nobody's".into(), ..header.clone() };
    let name = "nobody's".to_string();
    assert_eq!(replayed(&unknown, &entries), Err(ReplayError::UnknownPolicy { name }));
    let wrong = Header { parameters: "slice=4ms".into(), ..header.clone() };
    assert!(matches!(replayed(&wrong, &entries), Err(ReplayError::Parameters(_))));
    let records: Vec<Entry> =
        entries.into_iter().filter(|entry| !matches!(entry, Entry::Exchange(_))).collect();
    assert_eq!(replayed(&header, &records), Err(ReplayError::NoFacts));
}
