//! Tests of recordings of perf, tracefs and trace-cmd, as commands read them.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::{Place, Ran};

/// Returns a folder with recordings that perf and ftrace made.
fn place() -> Place {
    let place = Place::with(SPINNING);
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures");
    for name in ["perf.data", "tracefs.txt", "trace-cmd.txt"] {
        fs::copy(fixtures.join(name), place.path(name)).expect("a fixture");
    }
    place
}

const SPINNING: &str = r#"
title = "two of the same weight and one of twice as much"
length = "2s"
policy = { name = "fair" }
[[domain]]
name = "web"
work = { kind = "periodic", period = "10ms", work = "2ms" }
[[domain]]
name = "db"
work = { kind = "spin" }
share.fair = { weight = 2048 }
[[domain]]
name = "batch"
work = { kind = "spin" }
"#;

/// Asserts that standard error consists of notes only. Returns standard output.
#[track_caller]
fn noted(ran: Ran) -> String {
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.err.lines().all(|line| line.starts_with("note:  ")), "{}", ran.err);
    ran.out
}

#[test]
fn commands_read_perf_and_ftrace_recordings_in_place_of_traces() {
    let place = place();
    let ran = place.run(&["why", "web", "perf.data"]);
    assert!(ran.err.starts_with("note:  VMs of perf.data: web, db; a thread with the name of"));
    let told = noted(ran);
    assert!(told.contains("66.6 %  process backup"), "{told}");
    assert!(told.contains("32.6 %  db, beyond its reservation"), "{told}");
    for file in ["perf.data", "tracefs.txt", "trace-cmd.txt"] {
        for more in [&["--table"][..], &["--list", "--for", "20ms"], &["--json"]] {
            let told = noted(place.run(&[&["show", file], more].concat()));
            assert!(told.len() > 200, "{file} {more:?}: {told}");
        }
    }
}

#[test]
fn perfetto_file_of_a_recording_contains_causes_of_waits() {
    let place = place();
    noted(place.run(&["show", "perf.data", "--perfetto", "out.pftrace"]));
    let bytes = fs::read(place.path("out.pftrace")).expect("a file");
    for text in ["web.0 waits for", "db.0 waits for", "db, beyond its reservation"] {
        assert!(bytes.windows(text.len()).any(|it| it == text.as_bytes()), "no {text}");
    }
}

#[test]
fn whatif_model_reproduces_recordings_of_perf_and_ftrace() {
    let place = place();
    noted(place.run(&["sim", "it.toml", "--save", "sim.trace"]));
    noted(place.run(&["import", "perf", "perf.data", "ours.trace"]));
    for file in ["sim.trace", "ours.trace", "perf.data", "tracefs.txt", "trace-cmd.txt"] {
        let told = noted(place.run(&["whatif", file, "--json"]));
        let told: Value = serde_json::from_str(&told).expect("JSON");
        let open = &told["gate"]["forms"][0];
        assert_eq!(open["passes"], true, "{file}: {told:#}");
    }
}

#[test]
fn whatif_command_predicts_effect_of_weight_change_from_perf_recording() {
    let place = place();
    let told = noted(place.run(&["whatif", "perf.data", "--set", "db.weight=10", "--json"]));
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let vcpus = told["vcpus"].as_array().expect("vCPUs");
    let db = vcpus.iter().find(|it| it["name"] == "db.0").expect("db");
    let share = |it: &Value| it["share_ppm"].as_u64().expect("a share");
    let (now, then) = (share(&db["now"]), share(&db["then"]["open"]));
    assert!(now > 200_000 && then < now / 2, "{now} and then {then}");
}

#[test]
fn replay_command_refuses_a_perf_recording_without_policy_decisions() {
    let place = place();
    let ran = place.run(&["replay", "perf.data"]).ended_with(2);
    ran.says("the trace has no decisions to replay");
}

#[test]
fn import_command_prints_vm_names_and_assumptions() {
    let place = place();
    let told = noted(place.run(&["import", "trace-cmd", "tracefs.txt", "out.trace"]));
    assert!(told.starts_with("ftrace text recording, 1 CPU\nVMs:     cpu-0-kvm-6791"), "{told}");
    assert!(told.contains("assumed: weights follow from nice values"), "{told}");
    assert!(told.ends_with("lost:    0 events\n"), "{told}");
    let mode = fs::metadata(place.path("out.trace")).expect("a file").permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
    let args = ["import", "trace-cmd", "tracefs.txt", "out.trace", "--for", "web=pid:6791"];
    let told = noted(place.run(&args));
    assert!(told.contains("VMs:     web\n"), "{told}");
    let told = noted(place.run(&["why", "web", "out.trace"]));
    assert!(told.contains("process backup"), "{told}");
    let args = ["import", "perf", "perf.data", "out.trace", "--anonymise"];
    noted(place.run(&args));
    let bytes = fs::read(place.path("out.trace")).expect("a file");
    for name in [&b"backup"[..], b"qemu", b"web"] {
        assert!(!bytes.windows(name.len()).any(|it| it == name), "{name:?}");
    }
    let assumed = b"weights follow from nice values";
    assert!(bytes.windows(assumed.len()).any(|it| it == assumed), "the assumptions are kept");
}

#[test]
fn import_command_refuses_damaged_recordings_and_files_of_other_kinds() {
    let place = place();
    let bytes = fs::read(place.path("perf.data")).expect("a file");
    fs::write(place.path("cut.data"), &bytes[..90_000]).expect("a file");
    for command in [&["why", "web", "cut.data"][..], &["whatif", "cut.data"], &["show", "cut.data"]]
    {
        place.run(command).refused(2).says("cut.data: the file is cut: the data ends at byte");
    }
    let ran = place.run(&["import", "perf", "tracefs.txt", "out.trace"]).refused(2);
    let ran = ran.says("tracefs.txt is ftrace text, not perf.data");
    ran.says("write `slackline import trace-cmd`");
    let ran = place.run(&["import", "perf", "it.toml", "out.trace"]).refused(2);
    ran.says("it.toml is not perf.data");
    let args = ["import", "perf", "perf.data", "out.trace", "--for", "web=pid:1"];
    place.run(&args).refused(2).says("write --for backup=pid:6507");
    assert!(!place.path("out.trace").exists(), "nothing is written");
    let args = ["import", "perf", "perf.data", "out.trace", "--for", "web=17"];
    place.run(&args).ended_with(2).says("`web=17` does not name a process");
}

const QUOTAS: &str = r#"
title = "quotas and changes on two CPUs"
length = "4s"
policy = { name = "fair" }
[host]
cpus = 2
[[domain]]
name = "capped"
work = { kind = "spin" }
share.fair = { quota = "0.3cpu" }
[[domain]]
name = "moved"
work = { kind = "spin" }
[[domain]]
name = "late"
work = { kind = "spin" }
joins = "1s"
[[change]]
at = "2s"
domain = "moved"
cpus = [1]
[[change]]
at = "3s"
domain = "late"
paused = true
[[change]]
at = "3500ms"
domain = "late"
paused = false
"#;

#[test]
fn policy_fair_enforces_quota_while_vms_join_pause_and_migrate() {
    let place = Place::with(QUOTAS);
    let told = noted(place.run(&["sim", "it.toml", "--json", "--save", "it.trace"]));
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let run = &told["runs"][0];
    let share = |name: &str| {
        let vcpu = run["vcpus"].as_array().expect("vCPUs").iter().find(|it| it["name"] == name);
        vcpu.expect("a vCPU")["delivered_ppm"].as_u64().expect("a share")
    };
    // `moved` has a whole CPU. On the other CPU, `late` has the time that `capped` leaves, except
    // during the pause of `late`: 70 % of 2.5 s in 3 s.
    let expected = [("capped", 300_000_u64), ("moved", 1_000_000), ("late", 583_333)];
    for (name, ppm) in expected {
        assert!(share(name).abs_diff(ppm) < 5_000, "{name}: {}", share(name));
    }
    let ran = place.run(&["replay", "it.trace"]).ended_with(0);
    assert!(ran.out.contains("all as recorded"), "{}", ran.out);
}

#[test]
fn live_run_refuses_policy_fair_which_can_only_be_simulated() {
    let place = place();
    let ran = place.run(&["run", "it.toml"]).ended_with(3);
    ran.says("cannot run live: a policy that models another scheduler can only be simulated");
}

#[test]
fn policy_fair_divides_cpu_time_by_weight() {
    let place = place();
    let told = noted(place.run(&["sim", "it.toml", "--json"]));
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let vcpus = told["runs"][0]["vcpus"].as_array().expect("vCPUs");
    let share = |name: &str| {
        let vcpu = vcpus.iter().find(|it| it["name"] == name).expect("a vCPU");
        vcpu["delivered_ppm"].as_u64().expect("a share")
    };
    let [web, db, batch] = ["web", "db", "batch"].map(share);
    assert!(web.abs_diff(200_000) < 5_000, "{web}");
    assert!(db.abs_diff(batch * 2) < 10_000, "{db} and {batch}");
}
