//! Tests that compare predictions with simulations of the edited scenario.

use slackline_units::Span;
use slackline_whatif::{Backlog, Edit, Forecast, Form, Model, Recording, Row, forecast, gate};

use crate::record::{THREE, recorded, recorded_live};

fn predict(recording: &Recording, edits: &[Edit]) -> Forecast {
    let mut model = Model::new(recording).expect("a simulated trace has a model");
    let gate = gate(recording, &model).expect("its own reservations are admitted");
    assert!(gate.passes());
    model.edit(edits).expect("the edits are valid");
    forecast(recording, &gate, &model).expect("the reservations are admitted")
}

fn row<'a>(forecast: &'a Forecast, name: &str) -> &'a Row {
    forecast.rows.iter().find(|row| row.name == name).expect("the vCPU has a row")
}

fn set(field: &str, value: &str) -> Edit {
    Edit::Set { name: "batch".into(), field: field.into(), value: value.into() }
}

/// Returns a scenario of three VMs with hard limits. CPU time that one VM does not receive goes to
/// no other VM.
fn limited(slice: &str) -> String {
    THREE
        .replace(
            "slice = \"2ms\", period = \"10ms\"",
            &format!("slice = \"{slice}\", period = \"10ms\""),
        )
        .replace(" }\nwork = { kind = \"spin\"", ", extra = false }\nwork = { kind = \"spin\"")
}

#[test]
fn whatif_prediction_for_busy_vm_equals_edited_scenario_run() {
    let (before, after) = (recorded(&limited("2ms")), recorded(&limited("4ms")));
    let forecast = predict(&before, &[set("slice", "4ms")]);
    let batch = row(&forecast, "batch");
    let share = |recording: &Recording| {
        recording.whole.iter().find(|it| it.name == "batch").map(|it| it.share_ppm)
    };
    assert_eq!(share(&before), Some(200_000));
    let then = batch.interval(|it| Some(it.share_ppm));
    assert_eq!(then, share(&after).map(|ppm| (ppm, ppm)), "both forms: it never blocks");
    for name in ["web", "db"] {
        let then = row(&forecast, name).interval(|it| it.wait_p99).expect("it wakes often");
        let after = after.whole.iter().find(|it| it.name == name).and_then(|it| it.wait_p99);
        let after = after.expect("it wakes often");
        assert!(then.0 <= after + Span::from_us(500), "{name}: {then:?}, in fact {after}");
        assert!(after <= then.1 + Span::from_us(500), "{name}: {then:?}, in fact {after}");
    }
}

#[test]
fn whatif_names_each_vm_losing_share_and_the_loss() {
    let recording = recorded(&limited("4ms"));
    let forecast = predict(&recording, &[set("slice", "1ms")]);
    let [loss] = &forecast.losses[..] else { panic!("{:?}", forecast.losses) };
    assert_eq!((loss.name.as_str(), loss.share_ppm), ("batch", 300_000));
}

#[test]
fn whatif_row_of_an_added_vm_has_no_recorded_value() {
    let recording = recorded(THREE);
    let add = Edit::Add { name: "db2".into(), like: "db".into() };
    let forecast = predict(&recording, &[add, Edit::Remove("batch".into())]);
    assert!(row(&forecast, "batch").then.is_empty());
    let (db, added) = (row(&forecast, "db"), row(&forecast, "db2"));
    assert!(added.now.is_none());
    let share = |row: &Row| row.interval(|it| Some(it.share_ppm)).expect("it is simulated");
    let ((least, most), added_share) = (share(db), share(added));
    assert_eq!(least, added_share.0, "the same jobs in another order");
    // In the closed form the jobs are repeated, and each VM repeats other jobs.
    assert!(most.abs_diff(added_share.1) <= 1_000, "{most} and {}", added_share.1);
    assert_ne!(db.then, added.then, "at other times");
}

#[test]
fn whatif_reports_recorded_changes_that_edited_host_would_refuse() {
    let text = THREE.to_owned()
        + "[[change]]\nat = \"5s\"\ndomain = \"web\"\n\
           share.sedf = { slice = \"5ms\", period = \"10ms\" }\n";
    let recording = recorded(&text);
    let forecast = predict(&recording, &[set("slice", "4ms")]);
    let [(_, name, why)] = &forecast.declined[..] else { panic!("{:?}", forecast.declined) };
    assert_eq!(name, "web", "{why}");
}

/// In the recording `web` wakes 8 ms after the start of a period of `batch`, which runs for 4 ms.
/// If the periods of `batch` began 6.7 ms later, `web` would wait for `batch`.
const APART: &str = "title = \"apart\"\nlength = \"4s\"\npolicy = { name = \"edf\" }\n\
    [[domain]]\nname = \"batch\"\nwork = { kind = \"spin\" }\n\
    share.edf = { slice = \"4ms\", period = \"20ms\", exact = true }\n\
    [[domain]]\nname = \"web\"\njoins = \"8ms\"\n\
    work = { kind = \"periodic\", period = \"20ms\", work = \"100us\" }\n\
    share.edf = { slice = \"1ms\", period = \"100ms\" }\n";

#[test]
fn prediction_for_live_host_covers_waits_at_other_period_phases() {
    let waits = |recording: &Recording| {
        let forecast = predict(recording, &[set("slice", "3900us")]);
        row(&forecast, "web").interval(|it| it.wait_p99).expect("it wakes often")
    };
    let (least, most) = waits(&recorded_live(APART));
    assert!(least < Span::from_us(100) && most > Span::from_ms(2), "{least} to {most}");
    let (_, most) = waits(&recorded(APART));
    assert!(most < Span::from_us(100), "a simulated host keeps the phase: {most}");
}

#[test]
fn whatif_assumes_recorded_phases_for_long_periods_or_several_cpus() {
    let simulations = |recording: &Recording, period: &str| {
        let edits = [set("slice", "3900us"), set("period", period)];
        let mut model = Model::new(recording).expect("a simulated trace has a model");
        model.edit(&edits).expect("the edits are valid");
        let forecast = predict(recording, &edits);
        (row(&forecast, "web").simulated().count(), model.assumes_phases(&recording.demand))
    };
    let one_cpu = recorded_live(APART);
    assert_eq!(simulations(&one_cpu, "600ms"), (6, false), "two forms in three phases");
    assert_eq!(simulations(&one_cpu, "601ms"), (2, true), "two thirds of it are over 400 ms");
    assert_eq!(simulations(&one_cpu, "10000000000s"), (2, true), "317 years");
    let two_cpus = recorded_live(&APART.replacen("[[domain]]", "[host]\ncpus = 2\n[[domain]]", 1));
    assert_eq!(simulations(&two_cpus, "30ms"), (2, true), "the join decides the CPU");
}

#[test]
fn vm_that_joined_during_the_recording_counts_as_changed() {
    let is_changed = |joins: &str| -> Vec<bool> {
        let recording = recorded(&APART.replace("8ms", joins));
        let model = Model::new(&recording).expect("a simulated trace has a model");
        model.reservations().flatten().map(|it| it.has_changed).collect()
    };
    assert_eq!(is_changed("8ms"), [false, false]);
    assert_eq!(is_changed("1s"), [false, true]);
}

/// Returns a scenario in which `batch` has a hard limit, and this work and slice.
fn starved(work: &str, slice: &str) -> String {
    format!(
        "title = \"starved\"\nlength = \"10s\"\npolicy = {{ name = \"edf\" }}\n\
         [[domain]]\nname = \"batch\"\nwork = {{ {work} }}\n\
         share.edf = {{ slice = \"{slice}\", period = \"10ms\", exact = true }}\n"
    )
}

const CLOSED: &str = "kind = \"interactive\", compute = \"2ms\", sleep = \"5ms\"";
const OVERLOADED: &str = "kind = \"periodic\", period = \"20ms\", work = \"3ms\"";

#[test]
fn closed_loop_model_repeats_jobs_of_vm_that_gets_faster() {
    let (before, after) = (recorded(&starved(CLOSED, "1ms")), recorded(&starved(CLOSED, "3ms")));
    let forecast = predict(&before, &[set("slice", "3ms")]);
    let (_, closed) = row(&forecast, "batch").interval(|it| Some(it.share_ppm)).expect("a share");
    assert!(closed.abs_diff(after.whole[0].share_ppm) < 1_000, "{closed}");
    let mut model = Model::new(&before).expect("a simulated trace has a model");
    let text = |model: &Model| {
        let written = model.written(&before.demand, Form::Closed, "it");
        written.expect("it can be written").text
    };
    assert!(!text(&model).contains("repeat = true"), "the gate does each job once");
    model.edit(&[set("slice", "3ms")]).expect("the edit is valid");
    assert!(text(&model).contains("repeat = true"), "{}", text(&model));
}

#[test]
fn whatif_reports_backlog_if_limit_of_never_blocking_vm_rises() {
    let backlogs = |work: &str, slice: &str| {
        let recording = recorded(&starved(work, "1ms"));
        let edits = [set("slice", slice)];
        let mut model = Model::new(&recording).expect("a simulated trace has a model");
        model.edit(&edits).expect("the edits are valid");
        model.backlogs(&recording, &predict(&recording, &edits))
    };
    let unknown = Backlog { vm: "batch".into(), late_jobs: None };
    assert_eq!(backlogs(OVERLOADED, "2ms"), [unknown]);
    assert_eq!(backlogs(OVERLOADED, "900us"), [], "its limit is not raised");
    let [behind] = &backlogs(CLOSED, "3ms")[..] else { panic!("each job takes two periods") };
    assert!(behind.late_jobs.is_some_and(|(late, all)| late > all / 2), "{behind:?}");
}
