//! Every policy on this machine: the same values that the simulator asks. Needs root.

mod common;

use std::path::Path;

use common::live::{self, delivered};
use serde_json::Value;
use slackline_policy::ALL;

/// `heavy` and `light` never stop, and have weights, or guarantees, of two to one: however busy the
/// machine is, it cannot be the light one that gets more. Round robin knows no shares.
#[test]
fn every_policy_runs_live() {
    let Some(live) = live::begin() else { return };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/schedulers.toml");
    let file = file.to_str().expect("a path in UTF-8");
    for spec in ALL {
        let words =
            ["run", file, "--policy", spec.name, "--length", "2s", "--json", "--save", "it.trace"];
        let ran = live.run(&words);
        // A claim about being in time may fail on a busy machine.
        assert!(matches!(ran.code, Some(0 | 1)), "{}: {:?} {}", spec.name, ran.code, ran.err);
        let json: Value = serde_json::from_str(&ran.out).expect("JSON");
        let run = &json["runs"][0];
        assert_eq!((&run["policy"], &run["machine"]), (&spec.name.into(), &"live".into()));
        let (heavy, light) = (delivered(run, "heavy"), delivered(run, "light"));
        assert!(heavy > 0 && light > 0, "{}: {heavy} {light}", spec.name);
        assert!(heavy > light || spec.name == "round-robin", "{}: {heavy} {light}", spec.name);
        // The facts of a real machine, through host and policy once more: the same orders.
        let told = live.run(&["replay", "it.trace"]).good();
        assert!(told.ends_with(" orders, the same\n"), "{}: {told}", spec.name);
        live.nothing_is_left();
    }
}
