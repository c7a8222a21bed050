//! Tests that a scenario with a given seed always has the same trace, byte for byte.

use crate::common::scenarios;
use slackline_scenario::io::{Client, ClientKind};
use slackline_scenario::{Draw, Scenario, Step};
use slackline_trace::{Record, Writer};
use slackline_units::{Span, Time};

/// Returns the trace of a run as a file, and the error of a run that failed.
fn trace(scenario: &Scenario) -> (Vec<u8>, Option<String>) {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, &slackline_sim::trace_header(scenario));
    let run = slackline_sim::run(scenario, &mut writer);
    writer.finish().expect("writing to memory succeeds");
    (bytes, run.err().map(|error| error.to_string()))
}

#[test]
fn every_scenario_gives_an_identical_trace_if_run_twice() {
    for (name, scenario) in scenarios() {
        assert_eq!(trace(&scenario), trace(&scenario), "{name}");
    }
}

fn draws(scenario: &Scenario) -> bool {
    let is_drawn = |draw: &Draw| !matches!(draw, Draw::Fixed(_));
    let systems = scenario.domains.iter().filter_map(|domain| domain.system.as_ref());
    let tasks = systems.flat_map(|system| &system.tasks).flat_map(|task| &task.program.steps);
    let works = scenario.domains.iter().flat_map(|domain| &domain.program.steps).chain(tasks);
    let mut works = works.filter_map(|step| match step {
        Step::Compute(draw) | Step::Sleep(draw) => Some(draw),
        _ => None,
    });
    let has_draws = |client: &Client| {
        let asks = match &client.kind {
            ClientKind::Open { every, .. } | ClientKind::Pings { every, .. } => is_drawn(every),
            _ => false,
        };
        asks || is_drawn(&client.delay)
    };
    let are_drawn = scenario.io.as_ref().is_some_and(|io| io.clients.iter().any(has_draws));
    let is_noisy = scenario.io.as_ref().is_some_and(|io| io.driver.costs.noise_ppm > 0);
    works.any(is_drawn) || is_drawn(&scenario.host.timer_lateness) || is_noisy || are_drawn
}

#[test]
fn different_seed_changes_the_trace_of_scenarios_with_random_values() {
    let mut some = false;
    for (name, scenario) in scenarios() {
        let mut other = scenario.clone();
        other.seed += 1;
        // The seed is in the header, so only the records are compared.
        let records = |scenario: &Scenario| {
            let mut records: Vec<Record> = Vec::new();
            let run = slackline_sim::run(scenario, &mut records);
            run.is_ok().then_some(records)
        };
        let Some(first) = records(&scenario) else { continue };
        assert_eq!(Some(first) != records(&other), draws(&scenario), "{name}");
        some |= draws(&scenario);
    }
    assert!(some, "at least one scenario has random values");
}

const ALONE: &str = r#"
title  = "draws"
length = "2s"
seed   = 7
policy = { name = "edf" }

[host]
cpus = 2

[[domain]]
name      = "watched"
work      = { kind = "interactive", compute = "exponential 1ms", sleep = "exponential 5ms" }
share.edf = { slice = "5ms", period = "10ms" }
"#;

const BESIDE: &str = r#"
[[domain]]
name      = "stranger"
vcpus     = 2
work      = { kind = "interactive", compute = "exponential 3ms", sleep = "uniform 1ms 2ms" }
share.edf = { slice = "2ms", period = "10ms" }
"#;

/// Returns the lengths of the computations of the first vCPU, from each wake to the next block.
fn computed(text: &str) -> Vec<Span> {
    let scenario = Scenario::read(text).expect("the scenario is valid");
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut records).expect("the run completes");
    let (mut spans, mut since) = (Vec::new(), Span::ZERO);
    for record in records {
        match record {
            Record::Ran { vcpu, used, .. } if vcpu.slot() == 0 => since += used,
            Record::Blocked { vcpu, at } if vcpu.slot() == 0 && at > Time::START => {
                spans.push(std::mem::take(&mut since));
            }
            _ => {}
        }
    }
    spans
}

#[test]
fn vcpu_random_values_do_not_depend_on_other_vcpus() {
    let (alone, beside) = (computed(ALONE), computed(&format!("{ALONE}{BESIDE}")));
    // Beside other vCPUs, the vCPU may complete fewer computations in the same time.
    let common = alone.len().min(beside.len());
    assert!(common > 100, "{common} draws");
    assert_eq!(alone[..common], beside[..common]);
}
