//! Tests of scenarios with axes: each point is run, and all points are in one table, JSON or CSV.

use crate::common::{GOOD, Place};
use serde_json::Value;

/// Returns the scenario [`GOOD`](common::GOOD) with two axes: two periods and two workloads.
fn grid() -> String {
    let axes = r#"
[[axis]]
name = "period"
point = [
  { name = "10ms" },
  { name = "100ms", let = { long = "100ms" }, set = { "domain.gold.share.edf" =
    { slice = "60ms", period = "{long}", exact = true } } },
]
[[axis]]
name = "silver"
[[axis.point]]
name = "sleeps"
[[axis.point]]
name = "spins"
set = { "domain.silver.work" = { kind = "spin" } }
"#;
    GOOD.to_owned() + axes
}

#[test]
fn sim_command_prints_row_for_each_point_of_scenario_axes() {
    let place = Place::with(&grid());
    let out = place.run(&["sim", "it.toml"]).good();
    let row = |point: &str, vcpu: &str| {
        let is_it = |line: &&str| {
            let mut words = line.split_whitespace();
            words.next() == Some(point) && words.next() == Some(vcpu)
        };
        let line = out.lines().find(is_it).unwrap_or_else(|| panic!("{point} {vcpu}: {out}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(out.starts_with("two hogs, over period / silver\n"), "{out}");
    for point in ["10ms/sleeps", "10ms/spins", "100ms/sleeps", "100ms/spins"] {
        assert_eq!(row(point, "gold")[2], "60.00", "{out}");
    }
    // The values of a point are in effect: a VM that spins takes all slack.
    for period in ["10ms", "100ms"] {
        assert_eq!(row(&format!("{period}/spins"), "silver")[2], "40.00", "{out}");
        assert_ne!(row(&format!("{period}/sleeps"), "silver")[2], "40.00", "{out}");
    }
}

/// The metrics of a point equal the metrics of a scenario without axes that has the same values.
#[test]
fn scenario_axis_point_gives_same_metrics_as_scenario_without_axes() {
    let spins = GOOD.replacen(
        "{ kind = \"interactive\", compute = \"exponential 1ms\", sleep = \"exponential 5ms\" }",
        "{ kind = \"spin\" }",
        1,
    );
    let place = Place::with(&spins);
    let json = |out: &str| serde_json::from_str::<Value>(out).expect("JSON");
    let alone = json(&place.run(&["sim", "it.toml", "--json"]).good());
    place.write("grid.toml", grid().as_bytes());
    let all = json(&place.run(&["sim", "grid.toml", "--json"]).good());
    let runs = all["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 4);
    let point = &runs[1];
    assert_eq!(point["point"], serde_json::json!({ "period": "10ms", "silver": "spins" }));
    let alone = alone["runs"][0].as_object().expect("a run");
    assert!(alone.contains_key("vcpus") && alone.contains_key("cpus"), "{alone:?}");
    // The run is named by its policy or by its host.
    for (name, numbers) in alone.iter().filter(|(name, _)| *name != "run") {
        assert_eq!(&point[name], numbers, "{name}");
    }
}

#[test]
fn compare_command_runs_policies_and_seeds_at_every_axis_point() {
    let place = Place::with(&grid());
    let compare =
        ["compare", "it.toml", "--policies", "edf,round-robin", "--seeds", "2", "--csv", "it.csv"];
    let out = place.run(&compare).good();
    assert!(out.contains("round-robin") && out.contains(" 2 runs: mean"), "{out}");
    let csv = String::from_utf8(place.read("it.csv")).expect("text");
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let headings = lines.next().expect("headings");
    assert_eq!(headings[..5], ["period", "silver", "policy", "seed", "name"]);
    let delivered = headings.iter().position(|name| *name == "delivered_ppm").expect("a column");
    let rows: Vec<_> = lines.collect();
    // There are two policies, four points, two seeds and two vCPUs.
    assert_eq!(rows.len(), 32);
    let gold = |row: &&Vec<&str>| row[2] == "edf" && row[4] == "gold";
    assert!(rows.iter().filter(gold).all(|row| row[delivered] == "600000"), "{csv}");
}

/// The CSV files of `sim`, `compare` and `sweep` have own columns of these names.
#[test]
fn csv_columns_of_scenario_axes_are_distinct_from_other_columns() {
    let named = grid().replacen("name = \"period\"", "name = \"seed\"", 1);
    let place =
        Place::with(&named.replacen("name = \"silver\"\n[[axis", "name = \"cpus\"\n[[axis", 1));
    for (words, expected) in [
        (&["sim", "it.toml", "--csv", "it.csv"][..], ["axis_seed", "cpus", "policy", "seed"]),
        (&["compare", "it.toml", "--cdf", "it.csv"], ["axis_seed", "cpus", "policy", "seed"]),
        (&["sweep", "it.toml", "--csv", "it.csv"], ["axis_seed", "axis_cpus", "cpus", "policy"]),
    ] {
        place.run(words).ended_with(0);
        let text = std::fs::read_to_string(place.path("it.csv")).expect("a table");
        let mut headings: Vec<&str> = text.lines().next().expect("a line").split(',').collect();
        assert_eq!(headings[..4], expected, "{words:?}");
        let count = headings.len();
        headings.sort_unstable();
        headings.dedup();
        assert_eq!(headings.len(), count, "{words:?}: {text}");
    }
}

#[test]
fn failed_claim_at_scenario_axis_point_states_line_and_point() {
    let wrong = grid().replacen("within 2% of promised", "above 70%", 1);
    let place = Place::with(&wrong);
    let ran = place.run(&["sim", "it.toml"]).ended_with(1);
    let line = 1 + wrong.lines().position(|line| line == "[[claim]]").expect("a claim");
    for point in ["10ms/sleeps", "10ms/spins", "100ms/sleeps", "100ms/spins"] {
        assert!(ran.err.contains(&format!("(it.toml:{line}, at {point}, sim, ")), "{}", ran.err);
    }
}

#[test]
fn error_at_scenario_axis_point_states_line_and_point() {
    let place = Place::new();
    let grid = grid();
    let place_of = |name: &str| {
        let at = grid.find(name).expect("the scenario has this text");
        1 + grid[..at].matches('\n').count()
    };
    let spins = place_of("name = \"spins\"");
    for (from, to, says) in [
        (
            "{ kind = \"spin\" } }\n",
            "{ kind = \"spn\" } }\n",
            format!(
                "it.toml:{spins}:8: at point \
            `10ms/spins`: domain `silver`: `kind = \"spn\"`"
            ),
        ),
        ("domain.silver.work", "domain.bronze.work", "there is no domain `bronze`".into()),
        ("\"60ms\", period", "\"99ms\", period", "at point `100ms/sleeps`: ".into()),
        ("name = \"spins\"", "name = \"sleeps\"", "another point called `sleeps`".into()),
        (
            "name = \"silver\"\n[[axis.point]]",
            "name = \"period\"\n[[axis.point]]",
            "another axis \
            called `period`"
                .into(),
        ),
        ("name = \"spins\"", "nam = \"spins\"", "nam".into()),
        (
            "\"domain.silver.work\" = { kind = \"spin\" }",
            "seed = 7",
            "at point `10ms/spins`: `seed`: cannot change the seed".into(),
        ),
    ] {
        let wrong = grid.replacen(from, to, 1);
        let wrong = if from.starts_with("{ kind") {
            let (head, tail) = grid.rsplit_once(from).expect("the scenario has this text");
            format!("{head}{to}{tail}")
        } else {
            wrong
        };
        assert_ne!(wrong, grid, "{from}");
        place.write("it.toml", wrong.as_bytes());
        let ran = place.run(&["sim", "it.toml"]).refused(2);
        ran.says(&says);
    }
    place.write("it.toml", grid.as_bytes());
    place.run(&["run", "it.toml"]).refused(2).says("cannot run it.toml: its axes have 4 points");
    let saved = ["sim", "it.toml", "--save", "it.trace"];
    place.run(&saved).refused(2).says("cannot use --save with axes");
    place.run(&["compare", "it.toml", "--live"]).refused(2).says("a scenario with axes live");
}

/// `check` tests the admission of all points. It prints the result of each point, and a refusal has
/// the position of the refused point in the file.
#[test]
fn check_command_tests_admission_at_every_scenario_axis_point() {
    let place = Place::with(&grid());
    let out = place.run(&["check", "it.toml"]).good();
    assert!(out.starts_with("two hogs, over period / silver: 4 points\n"), "{out}");
    assert_eq!(out.matches(": admitted\n").count(), 4, "{out}");
    place.write("it.toml", grid().replacen("\"60ms\"", "\"70ms\"", 1).as_bytes());
    let ran = place.run(&["check", "it.toml"]).ended_with(2);
    assert!(ran.out.contains("  10ms/spins: admitted\n"), "{}", ran.out);
    assert!(ran.out.contains("  100ms/spins: refused\n"), "{}", ran.out);
    let line = 1 + grid().lines().position(|line| line == "name = \"sleeps\"").expect("a point");
    let ran = ran.says(&format!("error: it.toml:{line}:"));
    ran.says("at point `100ms/sleeps`: ").says("hint:  reserve less at this point");
    let json = place.run(&["check", "it.toml", "--json"]).ended_with(2).out;
    let whole: Value = serde_json::from_str(&json).expect("JSON");
    let points = whole["points"].as_array().expect("points");
    let admitted: Vec<bool> = points.iter().filter_map(|it| it["admitted"].as_bool()).collect();
    assert_eq!(admitted, [true, true, false, false]);
    assert_eq!(points[3]["point"], serde_json::json!({ "period": "100ms", "silver": "spins" }));
}
