//! Edits of a model, and the scenarios written from edited models.

use slackline_sim::trace_header;
use slackline_trace::{Entry, Note};
use slackline_units::CpuId;
use slackline_whatif::{Edit, EditError, Form, Model, Recording};

use crate::record::{THREE, entries, recorded, recording, scenario};

fn edited(edits: &[Edit]) -> Result<String, EditError> {
    edited_of(&recorded(THREE), edits)
}

fn edited_of(recording: &Recording, edits: &[Edit]) -> Result<String, EditError> {
    let mut model = Model::new(recording).expect("a simulated trace has a model");
    model.edit(edits)?;
    let written = model.written(&recording.demand, Form::Open, "it").expect("it can be written");
    written.scenario().expect("it can be read");
    Ok(written.text)
}

fn set(name: &str, field: &str, value: &str) -> Edit {
    Edit::Set { name: name.into(), field: field.into(), value: value.into() }
}

#[test]
fn whatif_adds_and_removes_vms_before_changing_parameters() {
    let add = Edit::Add { name: "db2".into(), like: "db".into() };
    let text = edited(&[set("db2", "slice", "1ms"), Edit::Remove("web".into()), add]).unwrap();
    let vms: Vec<&str> = text.split("[[domain]]").skip(1).collect();
    assert_eq!(vms.len(), 3);
    assert!(vms[0].contains("name = \"db\"") && vms[0].contains("slice = \"4ms\""));
    assert!(vms[2].contains("name = \"db2\"") && vms[2].contains("slice = \"1ms\""), "{}", vms[2]);
}

#[test]
fn whatif_under_another_policy_keeps_parameters_that_both_policies_have() {
    let text = edited(&[Edit::Policy("edf".into())]).unwrap();
    assert!(text.contains("policy = { name = \"edf\""));
    assert!(text.contains("share.edf = { slice = \"3ms\", period = \"10ms\""), "{text}");
    let text = edited(&[Edit::Policy("credit".into()), set("web", "weight", "512")]).unwrap();
    assert!(text.contains("share.credit = { weight = 512"), "{text}");
}

#[test]
fn whatif_keeps_a_hard_limit_if_the_policy_is_changed() {
    let limited = THREE.replace("period = \"10ms\" }", "period = \"10ms\", extra = false }");
    let recording = recorded(&limited);
    for (policy, limit) in [("credit", "cap = \"0.3cpu\""), ("edf", "exact = true")] {
        let mut model = Model::new(&recording).expect("a simulated trace has a model");
        model.edit(&[Edit::Policy(policy.into())]).expect("a known policy");
        let written = model.written(&recording.demand, Form::Open, "it").expect("valid shares");
        assert!(written.text.contains(limit), "{}", written.text);
    }
}

#[test]
fn whatif_adds_cpus_to_the_host_before_moving_vms() {
    let to = Edit::Move { name: "web".into(), cpu: 2 };
    let text = edited(&[to, Edit::Cpus(vec![0, 1, 2])]).unwrap();
    assert!(text.contains("cpus = 3") && text.contains("cpus = [2]"), "{text}");
}

/// The daemon schedules CPUs 2 and 5 of the host, which are CPUs 0 and 1 of the trace.
#[test]
fn cpu_numbers_in_whatif_edits_are_those_of_recorded_host() {
    let scenario = scenario(&format!("{THREE}[host]\ncpus = 2\n"));
    let note = Note { name: "cpus".into(), text: "2,5".into() };
    let mut all = entries(&scenario);
    all.insert(0, Entry::Note(note));
    let recording = recording(&trace_header(&scenario), &all, scenario.length);
    let to = |cpu| Edit::Move { name: "web".into(), cpu };
    let cpus_of_web = |edits: &[Edit]| -> Result<String, EditError> {
        let text = edited_of(&recording, edits)?;
        let web = text.split("[[domain]]").nth(1).expect("a VM").to_owned();
        Ok(web.lines().find(|line| line.starts_with("cpus = ")).unwrap_or_default().to_owned())
    };
    assert_eq!(cpus_of_web(&[to(5)]), Ok("cpus = [1]".into()));
    let error = cpus_of_web(&[to(1)]).unwrap_err();
    let cpus = vec![CpuId::new(2), CpuId::new(5)];
    assert_eq!(error, EditError::BadCpu { cpu: 1, cpus });
    assert!(error.to_string().contains("cpu2, cpu5"), "{error}");
    let cpus = Edit::Cpus(vec![5, 7]);
    assert_eq!(cpus_of_web(&[cpus.clone(), to(5)]), Ok("cpus = [0]".into()));
    assert_eq!(cpus_of_web(&[cpus.clone(), to(7)]), Ok("cpus = [1]".into()));
    assert_eq!(cpus_of_web(&[cpus, to(2)]).unwrap_err().hint().split(' ').next_back(), Some("5"));
}

#[test]
fn impossible_edits_in_whatif_are_refused_with_the_reason() {
    let unknown = EditError::UnknownName { name: "wed".into(), meant: Some("web".into()) };
    assert_eq!(edited(&[set("wed", "slice", "1ms")]), Err(unknown));
    let error = edited(&[set("web", "slice", "1")]).unwrap_err();
    assert!(error.to_string().contains("cannot set `web.slice=1`"), "{error}");
    let all = ["web", "db", "batch"].map(|name| Edit::Remove(name.into()));
    assert_eq!(edited(&all), Err(EditError::Last { name: "batch".into() }));
    let add = Edit::Add { name: "web".into(), like: "db".into() };
    assert_eq!(edited(&[add]), Err(EditError::Exists { name: "web".into() }));
    let to = Edit::Move { name: "web".into(), cpu: 1 };
    assert_eq!(edited(&[to]), Err(EditError::BadCpu { cpu: 1, cpus: vec![CpuId::new(0)] }));
    let error = edited(&[Edit::Policy("edff".into())]).unwrap_err();
    assert_eq!(error.hint(), "did you mean `edf`?");
}

#[test]
fn whatif_checks_vm_parameters_only_after_applying_all_edits() {
    let fair = "title = \"t\"\nlength = \"1s\"\npolicy = { name = \"credit\" }\n[[domain]]\n\
                name = \"web\"\nwork = { kind = \"spin\" }\n";
    let edf = |sets: &[Edit]| {
        let edits = [&[Edit::Policy("edf".into())], sets].concat();
        edited_of(&recorded(fair), &edits)
    };
    let (slice, period) = (set("web", "slice", "4ms"), set("web", "period", "10ms"));
    assert!(edf(&[slice.clone(), period.clone()]).is_ok());
    assert!(edf(&[period, slice.clone()]).is_ok());
    assert_eq!(edf(&[slice]).unwrap_err().hint(), "add --set web.period=VALUE");
}

#[test]
fn refusal_of_contradictory_whatif_edits_names_the_vm() {
    let twice = edited(&[set("web", "slice", "2ms"), set("web", "slice", "1ms")]).unwrap_err();
    assert_eq!(twice.to_string(), "cannot set `web.slice` twice");
    let removed = edited(&[Edit::Remove("db".into()), set("db", "slice", "1ms")]).unwrap_err();
    assert_eq!(removed.to_string(), "cannot change `db`: `db` is removed");
    let long = edited(&[set("web", "slice", "30ms")]).unwrap_err();
    assert_eq!(long.hint(), "set another slice or period of `web` with --set");
}
