//! Tests of VMs without a prediction, and of VMs with names that a scenario does not allow.

use slackline_sim::trace_header;
use slackline_trace::{Entry, Record};
use slackline_units::Enforcement;
use slackline_whatif::{
    Edit, EditError, LeftOutReason, LeftOutVm, Model, ModelError, Recording, Row, forecast, gate,
};

use crate::record::{THREE, entries, recording, repeated, scenario};

/// The VM `db` leaves in the middle of the run. The VM `db-again` joins half a second later.
const AGAIN: &str = r#"
title = "again"
length = "10s"
policy = { name = "edf" }
[[domain]]
name = "web"
share.edf = { slice = "3ms", period = "10ms", exact = true }
work = { kind = "interactive", compute = "exponential 2ms", sleep = "exponential 6ms" }
[[domain]]
name = "batch"
share.edf = { slice = "2ms", period = "10ms", exact = true }
work = { kind = "spin" }
[[domain]]
name = "db"
leaves = "5010ms"
share.edf = { slice = "4ms", period = "20ms", exact = true }
work = { kind = "periodic", period = "20ms", work = "uniform 1ms 3ms" }
[[domain]]
name = "db-again"
joins = "5500ms"
share.edf = { slice = "4ms", period = "20ms", exact = true }
work = { kind = "periodic", period = "20ms", work = "uniform 1ms 3ms" }
"#;

/// Returns a recording of a scenario in which some VMs have other names. `names` contains pairs of
/// the name in the scenario and the name in the recording.
fn renamed(text: &str, names: &[(&str, &str)]) -> Recording {
    let scenario = scenario(text);
    let mut all = entries(&scenario);
    for entry in &mut all {
        if let Entry::Named(named) = entry
            && let Some((_, name)) = names.iter().find(|(before, _)| *before == named.domain)
        {
            named.name = (*name).to_owned();
            named.domain = (*name).to_owned();
        }
    }
    recording(&trace_header(&scenario), &all, scenario.length)
}

fn set(name: &str, value: &str) -> Edit {
    Edit::Set { name: name.into(), field: "slice".into(), value: value.into() }
}

#[test]
fn whatif_omits_vm_that_rejoined_and_predicts_the_others() {
    let recording = renamed(AGAIN, &[("db-again", "db")]);
    let mut model = Model::new(&recording).expect("two VMs joined once");
    let db = LeftOutVm { name: "db".into(), why: LeftOutReason::Rejoined };
    assert_eq!(model.left_out(), std::slice::from_ref(&db));
    let gate = gate(&recording, &model).expect("its own reservations are admitted");
    assert!(gate.passes(), "{:#?}", gate.forms);
    let judged: Vec<&str> = gate.forms[0].rows.iter().map(|row| &*row.recorded.name).collect();
    assert_eq!(judged, ["web", "batch"]);
    let copy = Edit::Add { name: "db2".into(), like: "db".into() };
    for edit in [set("db", "1ms"), copy, Edit::Remove("db".into())] {
        assert_eq!(model.clone().edit(&[edit]), Err(EditError::LeftOut(db.clone())));
    }
    model.edit(&[set("batch", "1ms")]).expect("the edit is valid");
    let forecast = forecast(&recording, &gate, &model).expect("a shorter slice is admitted");
    assert!(forecast.declined.is_empty(), "{:?}", forecast.declined);
    let [web, batch] = &forecast.rows[..] else { panic!("{:#?}", forecast.rows) };
    let share = |row: &Row| row.interval(|it| Some(it.share_ppm));
    let (least, most) = share(batch).expect("a share");
    assert!(least >= 99_000 && most <= 101_000, "{least} {most}");
    assert!(share(web).is_some() && batch.name == "batch", "{:#?}", forecast.rows);
    let planned: Vec<_> = model.reservations().flatten().collect();
    assert_eq!(planned.iter().map(|it| it.has_changed).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn whatif_refuses_recording_in_which_the_kernel_enforced_every_vm() {
    let scenario = scenario(THREE);
    let mut all = entries(&scenario);
    for entry in &mut all {
        if let Entry::Record(Record::Promised { by, .. }) = entry {
            *by = Enforcement::Deadline;
        }
    }
    let recording = recording(&trace_header(&scenario), &all, scenario.length);
    let refused = Model::new(&recording).expect_err("only the dispatcher is simulated");
    let why = LeftOutReason::OfKernel(Enforcement::Deadline);
    let vms = ["batch", "db", "web"].map(|name| LeftOutVm { name: name.into(), why });
    assert_eq!(refused, ModelError::AllLeftOut(vms.into()));
    assert!(refused.to_string().contains("`batch`: `deadline` enforced"), "{refused}");
}

/// The service allows these names. A scenario allows no domain `total`, no domain whose name ends
/// with a dot, and no domain `batch.0` beside a domain `batch`.
#[test]
fn whatif_accepts_vm_names_that_scenarios_do_not_allow() {
    for names in [[("web", "total"), ("db", "batch.0")], [("web", "web."), ("db", "OTHERS-0")]] {
        let recording = renamed(THREE, &names);
        let repeated = repeated(&recording);
        let shown: Vec<&str> = repeated[0].iter().map(|it| &*it.name).collect();
        assert_eq!(shown, [names[0].1, names[1].1, "batch"]);
        assert_eq!(repeated, [recording.whole.clone(), recording.whole]);
    }
}
