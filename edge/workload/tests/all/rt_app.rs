//! Tests of workloads of rt-app.

use proptest::prelude::*;
use slackline_units::Span;
use slackline_workload::Kind;

use crate::{one, refused};

const SAMPLE: &[u8] = include_bytes!("../fixtures/rt-app.json");

#[test]
fn rt_app_threads_become_vms_with_their_work_and_reservation() {
    let written = one(Kind::RtApp, "a.json", SAMPLE).expect("the threads are valid");
    let scenario = written.scenario().expect("the scenario is valid");
    assert_eq!(scenario.length, Span::from_secs(2));
    let names: Vec<&str> = scenario.domains.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["control", "worker-0", "worker-1"]);
    for text in [
        "work = { kind = \"periodic\", period = \"10ms\", work = \"2ms\" }",
        "share.edf = { slice = \"3ms\", period = \"10ms\", exact = true }",
        "share.edf = { slice = \"1us\", period = \"100ms\" }",
        "copies = 2\ncpus = [0]\nwork = { kind = \"jobs\", file = \"it-worker.jobs\" }",
    ] {
        assert!(written.text.contains(text), "no {text} in {}", written.text);
    }
    let jobs: Vec<&str> = written.files[0].1.lines().collect();
    assert_eq!(jobs.len(), 21, "the file has a title line and 20 jobs");
    assert_eq!((jobs[10], jobs[11]), ("270000000,3000000", "300000000,12000000"));
}

#[test]
fn rt_app_conversion_states_that_multi_cpu_threads_never_migrate() {
    let assumes = |cpus: &str| {
        let text = format!(
            "{{ \"tasks\": {{ \"a\": {{ \"policy\": \"SCHED_DEADLINE\", \"dl-runtime\": 1000, \
             \"dl-period\": 10000, \"run\": 500, \"sleep\": 500, \"cpus\": [{cpus}] }}, \
             \"b\": {{ \"run\": 500, \"sleep\": 500 }} }} }}"
        );
        let written = one(Kind::RtApp, "a.json", text.as_bytes()).expect("the threads are valid");
        assert!(written.text.contains("divide the slack of their CPU equally"));
        written.text.contains("# assumed: `edf` keeps each thread on one CPU")
    };
    assert!(assumes("0, 1"));
    assert!(!assumes("0"));
}

#[test]
fn rt_app_conversion_states_assumption_that_runtime_equals_cpu_time() {
    let assumes = |task: &str| {
        let text = format!("{{ \"tasks\": {{ \"a\": {task} }} }}");
        let written = one(Kind::RtApp, "a.json", text.as_bytes()).expect("the thread is valid");
        written.text.contains("# assumed: `runtime` of 1 us is 1 us of CPU time")
    };
    assert!(assumes("{ \"runtime\": 500, \"sleep\": 500 }"));
    assert!(assumes("{ \"phases\": { \"p\": { \"runtime1\": 500, \"sleep\": 500 } } }"));
    assert!(!assumes("{ \"run\": 500, \"sleep\": 500 }"));
}

#[test]
fn unsupported_rt_app_content_is_refused_with_the_reason() {
    let refused_with = |task: &str, why: &str| {
        let text = format!("{{ \"tasks\": {{ \"a\": {task} }} }}");
        refused(Kind::RtApp, text.as_bytes(), &format!("file: task `a`: {why}"));
    };
    refused_with(
        "{ \"run\": 1, \"lock\": \"m\" }",
        "event `lock` cannot be expressed in a scenario",
    );
    refused_with("{ \"run\": 1, \"rum\": 1 }", "key `rum` is unknown");
    refused_with("{ \"run\": -1 }", "`run` is not 0 to 3600000000 us");
    refused_with(
        "{ \"policy\": \"SCHED_FIFO\", \"run\": 1 }",
        "policy SCHED_FIFO cannot be expressed; SCHED_OTHER and SCHED_DEADLINE can",
    );
    refused_with(
        "{ \"policy\": \"SCHED_DEADLINE\", \"dl-runtime\": 9, \"dl-period\": 5, \"run\": 1 }",
        "dl-runtime 9us, dl-deadline 5us, dl-period 5us; 0 < runtime <= deadline <= period is \
         required",
    );
    let deep = "{ \"tasks\": ".repeat(20_000);
    let message = "file: objects and lists are nested deeper than 64 levels";
    refused(Kind::RtApp, deep.as_bytes(), message);
    refused(Kind::RtApp, b"{}", "file: the file has no object `tasks`");
}

proptest! {
    #[test]
    fn altered_rt_app_file_gives_valid_scenario_or_error(
        at in 0..SAMPLE.len(), byte: u8,
    ) {
        let mut bytes = SAMPLE.to_vec();
        bytes[at] = byte;
        if let Ok(written) = one(Kind::RtApp, "file", &bytes) {
            prop_assert!(written.scenario().is_ok(), "{}", written.text);
        }
    }
}
