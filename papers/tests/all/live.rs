//! Tests of live experiments, for which the simulated host acts as the live host. The tests cover
//! the quick form of experiments, and comparisons over many points.

use std::cell::Cell;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use slackline_experiments::grid::to_the_end;
use slackline_experiments::header;
use slackline_papers::{
    Experiment, LiveRunner, Paper, PaperError, PlayError, Provenance, Results, Verdict,
    VerdictGroup, judge, page,
};
use slackline_scenario::Scenario;
use slackline_trace::{Header, Record, Sink, VcpuName};

const PAPER: &str = "title = \"Live\"\ncite = \"nobody\"\nexperiments = [\"sweep\"]\n";

const SCENARIO: &str = r#"
title  = "one"
length = "1100ms"
warmup = "100ms"
policy = { name = "edf" }
[host]
cpus = 1
[[domain]]
name      = "vm"
work      = { kind = "spin" }
share.edf = { slice = "1ms", period = "10ms", exact = true }
"#;

const SWEEP: &str = r#"
title       = "a sweep"
live        = true
scenario    = "one.toml"
seeds       = 2
may_decline = true

[again]
metric = "delivered of vm"
above  = 0.45
times  = 2

[quick]
seeds = 1
only  = { share = ["20%", "99%"], period = ["10ms"] }
set   = { length = "600ms" }

[[axis]]
name  = "share"
label = "share"
point = [
  { name = "20%", x = 20, let = { u = "20" } },
  { name = "50%", x = 50, let = { u = "50" } },
  { name = "99%", x = 99, let = { u = "99" } },
]

[[axis]]
name  = "period"
label = "period"
  [[axis.point]]
  name = "10ms"
  set  = { "domain.vm.share.edf.slice" = "{u}% of 10ms" }
  [[axis.point]]
  name = "5ms"
  [axis.point.set]
  "domain.vm.share.edf" = { slice = "{u}% of 5ms", period = "5ms", exact = true }

[[measure]]
name   = "cpu"
label  = "CPU"
metric = "delivered of vm"
unit   = "%"

[[measure]]
name   = "deadlines"
metric = "deadlines of vm"

[[plot]]
title   = "a map"
measure = "cpu"
x       = "period"
y       = "share"
line    = 30

[[compare]]
title   = "many points"
measure = "cpu"
  [[compare.row]]
  published = "most"
  at        = "*/*"
  reach     = { axis = "share", towards = "highest", at_most = 60 }
  [[compare.row]]
  published = "mean"
  at        = ["*/10ms", "*/5ms"]
  averaged  = true
  test      = "alike"
  [[compare.row]]
  published = "order"
  at        = ["20%/10ms", "50%/10ms", "50%/5ms"]
  [[compare.row]]
  published = "like"
  at        = "50%/5ms"
  against   = ["20%/10ms", "50%/10ms"]
  test      = "second"
  [[compare.row]]
  published = "like"
  at        = "50%/5ms"
  against   = ["20%/10ms", "50%/10ms"]
  test      = "first"
  [[compare.row]]
  published = "order-of-four"
  at        = ["20%/10ms", "50%/10ms", "50%/10ms", "50%/10ms"]
"#;

const PUBLISHED: &str = r#"
value = [
  { id = "most", says = "so far", value = "50", from = "page 1", read = "text", give = "0" },
  { id = "mean", says = "the same", value = "same", from = "page 1", read = "text" },
  { id = "order", says = "the order", value = "1, 2, 3", from = "page 1", read = "table" },
  { id = "like", says = "like", value = "like", from = "page 1", read = "text" },
  { id = "order-of-four", says = "order", value = "1, 2, 3, 4", from = "page 1", read = "table" },
]
"#;

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let files = [
        ("paper.toml", PAPER),
        ("one.toml", SCENARIO),
        ("sweep.toml", SWEEP),
        ("published.toml", PUBLISHED),
    ];
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("a file");
    }
    folder
}

fn sweep(folder: &Path) -> Experiment {
    Experiment::read(folder, "sweep").expect("a good experiment")
}

/// The simulated host, acting as a live host.
#[derive(Default)]
struct Simulated {
    runs: Cell<u32>,
    stops_after: Option<u32>,
}

struct Passed<'a>(&'a mut dyn Sink);

impl Sink for Passed<'_> {
    fn named(&mut self, named: &VcpuName) {
        self.0.named(named);
    }

    fn record(&mut self, record: &Record) {
        self.0.record(record);
    }
}

impl LiveRunner for Simulated {
    fn header(&self, scenario: &Scenario) -> Header {
        header::of_simulation(scenario)
    }

    fn play(&self, scenario: &Scenario, sink: &mut dyn Sink) -> Result<(), PlayError> {
        scenario.admit().map_err(|error| PlayError::Declined(error.to_string()))?;
        if self.stops_after == Some(self.runs.get()) {
            return Err(PlayError::Stopped);
        }
        self.runs.set(self.runs.get() + 1);
        slackline_sim::run(scenario, &mut Passed(sink)).expect("an admitted scenario");
        Ok(())
    }
}

fn judged(experiment: &Experiment, results: &Results, folder: &Path) -> VerdictGroup {
    let published = Paper::read(folder).and_then(|paper| paper.published()).expect("good values");
    judge(experiment, results, &published, 0).expect("the results can be judged").remove(0)
}

#[test]
fn live_experiment_runs_every_point_that_admission_accepts() {
    let folder = folder();
    let experiment = sweep(folder.path());
    let machine = Simulated::default();
    let results = experiment.play(&machine, &to_the_end).expect("the experiment can be played");
    let cpu: Vec<Option<f64>> =
        results.measured.iter().map(|point| point[0].map(|stat| stat.median.round())).collect();
    assert_eq!(cpu, [Some(20.0), Some(20.0), Some(50.0), Some(50.0), None, None]);
    // There are two seeds. Runs above 45 % are repeated twice.
    assert_eq!(machine.runs.get(), 2 * 2 + 2 * 2 * 3);
}

#[test]
fn simulation_of_a_live_experiment_is_refused() {
    let folder = folder();
    let error = sweep(folder.path()).run(&to_the_end).expect_err("it cannot be simulated");
    assert_eq!(error.to_string(), "cannot simulate sweep: it can only run live");
}

#[test]
fn experiment_that_is_stopped_reports_number_of_finished_runs() {
    let folder = folder();
    let experiment = sweep(folder.path());
    let machine = Simulated { stops_after: Some(3), ..Simulated::default() };
    let error = experiment.play(&machine, &to_the_end).expect_err("it was stopped");
    assert!(matches!(error, PaperError::Stopped { runs: 3, of: 12 }), "{error}");
    let watch = |_| ControlFlow::Break(());
    let error =
        experiment.play(&Simulated::default(), &watch).expect_err("the watch stops the run");
    assert!(matches!(error, PaperError::Stopped { runs: 1, of: 12 }), "{error}");
}

#[test]
fn each_comparison_of_several_points_gets_the_expected_verdict() {
    use Verdict::{Differs, Reproduced, SameShape};
    let folder = folder();
    let experiment = sweep(folder.path());
    let results =
        experiment.play(&Simulated::default(), &to_the_end).expect("the experiment can be played");
    let judged = judged(&experiment, &results, folder.path());
    let verdicts: Vec<Verdict> = judged.rows.iter().map(|row| row.verdict).collect();
    assert_eq!(verdicts[0], Reproduced, "{}", judged.rows[0].sentence);
    assert_eq!(verdicts[1], Reproduced, "{}", judged.rows[1].sentence);
    assert_eq!(verdicts[2], SameShape, "{}", judged.rows[2].sentence);
    assert_eq!(verdicts[3], SameShape, "{}", judged.rows[3].sentence);
    assert_eq!(verdicts[4], Differs, "{}", judged.rows[4].sentence);
    // The ranks are 1, 3, 3, 3 and 1, 2, 3, 4.
    let says = "rank correlation 0.775, at least 0.8 is required";
    assert_eq!((verdicts[5], judged.rows[5].sentence.as_str()), (Differs, says));
    assert!(judged.rows[0].ours.starts_with("50 "), "{}", judged.rows[0].ours);
}

#[test]
fn comparison_with_point_omitted_by_quick_run_is_not_attempted() {
    let folder = folder();
    let experiment = sweep(folder.path()).quick();
    let machine = Simulated::default();
    let results = experiment.play(&machine, &to_the_end).expect("the experiment can be played");
    assert_eq!((results.measured.len(), machine.runs.get()), (2, 1));
    let deadlines = results.measured[0][1].expect("the number is known");
    assert!(deadlines.median <= 50.0, "half a second: {deadlines:?}");
    let judged = judged(&experiment, &results, folder.path());
    assert_eq!(judged.rows[0].ours, "20 (20 to 20)");
    // All other rows name a point with 50 % or 5 ms, which the quick form leaves out.
    assert_eq!(judged.rows.len(), 6);
    for row in &judged.rows[1..] {
        let found = (row.verdict, row.sentence.as_str(), row.ours.as_str());
        assert_eq!(found, (Verdict::NotAttempted, "left out of the quick form", ""), "{}", row.id);
    }
}

#[test]
fn experiment_map_in_report_shows_only_completed_points() {
    let folder = folder();
    let experiment = sweep(folder.path());
    let results =
        experiment.play(&Simulated::default(), &to_the_end).expect("the experiment can be played");
    let paper = Paper::read(folder.path()).expect("a good paper");
    let judged = vec![(String::new(), vec![judged(&experiment, &results, folder.path())])];
    let made = Provenance {
        commit: "0123abc".into(),
        command: "slackline paper run live".into(),
        date: "2005-11-12".into(),
        machine: Some("two CPUs".into()),
    };
    paper.write(&experiment, &results, &judged, &made).expect("results");
    let page = page(&[paper], &made).expect("a page");
    assert!(page.contains("live, two CPUs"), "what it was made on");
    for told in ["CPU, %: 10ms, 20%: 20", "CPU, %: 5ms, 50%: 50"] {
        assert!(page.contains(told), "{told}");
    }
    assert!(!page.contains("99%: "), "what was declined is not there");
}

#[test]
fn quick_settings_that_name_an_unknown_point_are_refused() {
    let folder = folder();
    let text = SWEEP.replace("[\"20%\", \"99%\"]", "[\"20%\", \"98%\"]");
    fs::write(folder.path().join("sweep.toml"), text).expect("a file");
    let error = Experiment::read(folder.path(), "sweep").expect_err("there is no such point");
    assert!(error.to_string().contains("there is no point `98%`"), "{error}");
}
