//! Tests of `slackline whatif --since` and `slackline predictions` with a real daemon. Needs root.

use std::time::Duration;

use serde_json::Value;

use crate::common::live::{self, Victim, let_pass, wait_until};
use crate::common::service::Daemon;

/// The recording of a live host contains what a simulation needs: parameters, periods and the other
/// programs. On a busy test machine the gate of `whatif` may reject the recording.
#[test]
fn whatif_command_simulates_the_last_seconds_recorded_by_the_daemon() {
    let Some(live) = live::begin() else { return };
    let (web, db) = (Victim::start(), Victim::start());
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &web, "2ms").0, 201);
    assert_eq!(daemon.reserve("db", &db, "3ms").0, 201);
    let_pass(Duration::from_millis(3_500));
    let ran = daemon.run("whatif --since 3s --json");
    assert!(matches!(ran.code, Some(0 | 2)), "{}", ran.err);
    let answer: Value = serde_json::from_str(&ran.out).expect("JSON");
    let open = &answer["gate"]["forms"][0];
    assert_eq!(open["form"], "open");
    let vcpus = open["vcpus"].as_array().expect("vCPUs");
    let names: Vec<&str> = vcpus.iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["web.0", "db.0"]);
    for vcpu in vcpus {
        let share = |key: &str| vcpu[key]["share_ppm"].as_u64().expect("a share");
        let (recorded, simulated) = (share("recorded"), share("simulated"));
        assert_eq!(vcpu["simulated"]["period_ns"], 10_000_000);
        assert!(recorded.abs_diff(simulated) < 20_000, "{vcpu:#}");
    }
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}

#[test]
fn daemon_compares_predictions_in_a_plan_with_their_outcomes() {
    let Some(live) = live::begin() else { return };
    let web = Victim::start();
    let daemon = Daemon::start(&live);
    assert_eq!(daemon.reserve("web", &web, "2ms").0, 201);
    let plan = "[web]\nslice = \"3ms\"\nperiod = \"10ms\"\nexact = true\nvcpus = 1\n\n\
                [[web.predicted]]\nvcpu = \"web.0\"\nlength_ns = 1000000000\n\
                share_ppm = [300000, 300000]\nmissed = [0, 0]\n";
    std::fs::write(live.place.path("plan"), plan).expect("a file for the test");
    daemon.run("apply plan --dry-run").ended_with(0);
    assert_eq!(daemon.ask("GET", "/v1/predictions", None).1, Value::Array(Vec::new()));
    daemon.run("apply plan").ended_with(0);
    let outcome = || daemon.ask("GET", "/v1/predictions", None).1[0]["outcome"].clone();
    wait_until("what came of the prediction", || !outcome().is_null());
    let came = outcome()["share_ppm"].as_u64().expect("a share");
    assert!((200_000..=310_000).contains(&came), "{came}");
    daemon.run("predictions").ended_with(0).shows("Predictions so far: 1.");
    // They are in the folder of the ledger, and found again.
    assert_eq!(daemon.end().code, Some(0));
    let daemon = Daemon::start(&live);
    daemon.run("predictions").ended_with(0).shows("Predictions so far: 1.");
    let bad = serde_json::json!([{ "vcpu": "web.0", "length_ns": 1 }]);
    assert_eq!(daemon.ask("POST", "/v1/predictions", Some(&bad)).0, 400);
    assert_eq!(daemon.end().code, Some(0));
    live.nothing_is_left();
}
