//! Tests of `slackline compare`: which policies are allowed, what the table shows, and which claims
//! are checked.

use crate::common::{GOOD, Place};
use serde_json::Value;

/// Returns the scenario [`GOOD`](common::GOOD) with parameters for the policy `credit` too.
fn both() -> String {
    let credit =
        |text: &str, weight: u32| format!("{text}share.credit = {{ weight = {weight} }}\n");
    let gold = "share.edf = { slice = \"6ms\", period = \"10ms\", exact = true }\n";
    let silver = "share.edf = { slice = \"3ms\", period = \"10ms\" }\n";
    let text = GOOD.replacen(gold, &credit(gold, 512), 1);
    let text = text.replacen(silver, &credit(silver, 256), 1);
    text.replacen(
        "{ kind = \"interactive\", compute = \"exponential 1ms\", sleep = \"exponential 5ms\" }",
        "{ kind = \"spin\" }",
        1,
    )
}

#[test]
fn compare_command_refuses_domain_without_share_for_compared_policy() {
    let place = Place::with(GOOD);
    for (policy, fields) in [
        ("gedf", "share.gedf = { budget = ..., period = ... }"),
        ("sedf", "share.sedf = { slice = ..., period = ... }"),
        ("atropos", "share.atropos = { slice = ..., period = ... }"),
        ("credit", "share.credit = { weight = ... }"),
        ("bvt", "share.bvt = { weight = ... }"),
    ] {
        let compare = ["compare", "it.toml", "--policies", policy];
        for arguments in [&compare[..], &["sim", "it.toml", "--policy", policy]] {
            let ran = place.run(arguments).refused(2);
            ran.says(&format!("domain `gold` has no share for policy `{policy}`")).says(fields);
        }
    }
    place.run(&["compare", "it.toml", "--policies", "edf,round-robin"]).good();
    // A scenario whose own policy is `gedf` is refused for the same reason.
    let gedf = GOOD.replace("share.edf = { slice", "# {").replacen("\"edf\"", "\"gedf\"", 1);
    place.write("gedf.toml", gedf.as_bytes());
    place.run(&["sim", "gedf.toml"]).refused(2).says("has no share for policy `gedf`");
}

#[test]
fn compare_command_accepts_one_policy_several_times_with_different_parameters() {
    let place = Place::with(&both());
    let policies = "credit,credit:rules=xen-3.0.3,edf:reserve=0.08cpu";
    let text = place.run(&["compare", "it.toml", "--policies", policies]).good();
    for heading in policies.split(',') {
        assert!(text.contains(heading), "`{heading}` is missing:\n{text}");
    }
    let json = place.run(&["compare", "it.toml", "--policies", policies, "--json"]).good();
    let whole: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(whole["runs"][1]["policy"], "credit rules=xen-3.0.3");
    assert_eq!(whole["runs"][2]["policy"], "edf reserve=0.08cpu");
    let ran = place.run(&["sim", "it.toml", "--policy", "credit:rules=xen-3.0.3"]);
    ran.ended_with(0).shows("credit rules=xen-3.0.3, sim");
    for (policy, says) in [
        ("credit:rules=xen-9", "is not one of"),
        ("credit:ruels=xen-3.0.3", "did you mean `rules`?"),
        ("credit:weight=3", "`weight` is a parameter of shares"),
        ("credit:rules", "`rules` sets no parameter of `credit`"),
        ("edf:reserve=2cpu", "reserve"),
        ("credti:rules=xen-3.0.3", "did you mean `credit`?"),
    ] {
        place.run(&["sim", "it.toml", "--policy", policy]).refused(2).says(says);
        place.run(&["compare", "it.toml", "--policies", policy]).refused(2).says(says);
    }
}

#[test]
fn compare_command_checks_claims_only_under_policy_of_scenario() {
    let place = Place::with(&both());
    let text = place.run(&["compare", "it.toml", "--policies", "edf,credit,round-robin"]).good();
    assert!(text.contains("not under credit, round-robin"), "{text}");
    let text = place.run(&["compare", "it.toml", "--policies", "edf:reserve=0.08cpu"]).good();
    assert!(text.contains("not under edf:reserve=0.08cpu"), "{text}");
    let text = place.run(&["compare", "it.toml", "--policies", "edf"]).good();
    assert!(!text.contains("claims were checked"), "{text}");
    place.write("bad.toml", both().replace("within 2%", "within 0.0001%").as_bytes());
    let ran = place.run(&["compare", "bad.toml", "--policies", "edf", "--seeds", "3"]);
    let ran = ran.ended_with(0);
    assert!(ran.err.is_empty());
    place.write("bad.toml", both().replace("within 2% of promised", "below 1%").as_bytes());
    let ran = place.run(&["compare", "bad.toml", "--policies", "edf", "--seeds", "3"]);
    let ran = ran.ended_with(1);
    assert_eq!(ran.err.matches("claim failed: ").count(), 3, "{}", ran.err);
}

#[test]
fn run_with_several_seeds_gives_means_with_confidence_intervals() {
    let place = Place::with(&both().replacen(
        "{ kind = \"spin\" }",
        "{ kind = \"interactive\", compute = \"exponential 1ms\", sleep = \"exponential 5ms\" }",
        2,
    ));
    place.write(
        "free.toml",
        place.read("it.toml").split(|&b| b == b'[').count().to_string().as_bytes(),
    );
    let text = String::from_utf8(place.read("it.toml")).expect("text");
    let free = text.split("[[claim]]").next().expect("a part before the first claim");
    place.write("free.toml", free.as_bytes());
    let text = place.run(&["sim", "free.toml", "--seeds", "5"]).good();
    assert!(text.contains('±') && text.contains("5 runs: mean"), "{text}");
    let json = place.run(&["sim", "free.toml", "--seeds", "5", "--json"]).good();
    let whole: Value = serde_json::from_str(&json).expect("JSON");
    let runs = whole["runs"].as_array().expect("runs");
    let seeds: Vec<u64> = runs.iter().filter_map(|run| run["seed"].as_u64()).collect();
    assert_eq!(seeds, [1, 2, 3, 4, 5]);
    let delivered = |run: &Value| run["vcpus"][0]["delivered_ppm"].as_f64().expect("a number");
    let mean = runs.iter().map(delivered).sum::<f64>() / 5.0;
    let over = &whole["over_seeds"][0]["vcpus"][0]["delivered_ppm"];
    assert!((over["mean"].as_f64().expect("a mean") - mean).abs() < 0.001, "{over}");
    assert!(over["half_width_95"].as_f64().expect("a width") > 0.0, "{over}");
    // The same runs are made one by one.
    let one = place.run(&["sim", "free.toml", "--seed", "3", "--json"]).good();
    let one: Value = serde_json::from_str(&one).expect("JSON");
    assert_eq!(one["runs"][0]["vcpus"], runs[2]["vcpus"]);
    let compare = ["compare", "free.toml", "--policies", "edf,credit", "--seeds", "3"];
    let text = place.run(&compare).good();
    assert!(text.contains("edf") && text.contains("credit") && text.contains("3 runs: mean"));
}

#[test]
fn claim_with_wrong_unit_is_refused_with_its_line_number() {
    for (that, is, says) in [
        ("misses of gold", "below 2ms", "`misses` is a number and cannot be tested by `below 2ms`"),
        ("misses of gold", "at most 2%", "write a test such as `at most 3`"),
        ("delivered of gold", "below 2", "`delivered` is a percentage"),
        ("waiting of gold", "at least 20%", "write a test such as `below 8ms`"),
        ("waiting of gold", "within 2% of promised", "cannot be tested by `within 2% of promised`"),
        ("misses", "within 2 points of 20%", "`misses` is a number"),
    ] {
        let claim = GOOD.replace("delivered of gold", that).replace("within 2% of promised", is);
        let place = Place::with(&claim);
        for command in ["check", "sim", "run", "compare"] {
            let ran = place.run(&[command, "it.toml"]).refused(2).says(says);
            assert!(ran.err.starts_with("error: it.toml:14: "), "{}", ran.err);
        }
    }
}

#[test]
fn compare_command_with_metric_option_shows_paired_differences_of_policies() {
    let place = Place::with(&both());
    let compare = ["compare", "it.toml", "--policies", "edf,credit", "--seeds", "3"];
    let metrics = ["--metric", "delivered of gold", "--metric", "waiting of silver"];
    let text = place.run(&[&compare[..], &metrics].concat()).good();
    for shown in ["delivered of gold, %", "waiting of silver", "difference", "3 runs"] {
        assert!(text.contains(shown), "`{shown}` is missing:\n{text}");
    }
    // The table has a row for each policy, and the first has no difference.
    let rows = |name: &str| text.lines().filter(|line| line.trim().starts_with(name)).count();
    assert_eq!((rows("edf"), rows("credit")), (1, 1), "{text}");
    let unknown = [&compare[..], &["--metric", "response p99 of gold"]].concat();
    assert!(place.run(&unknown).good().contains("no run has the metric `response p99 of gold`"));
    let ran = place.run(&[&compare[..], &["--metric", "delivered of bronze"]].concat()).refused(2);
    ran.says("cannot show --metric `delivered of bronze`");
}

/// Returns the text of a scenario before its first claim.
fn without_claims(text: &str) -> String {
    text.split("[[claim]]").next().expect("a part before the first claim").to_owned()
}

#[test]
fn distributions_in_cdf_file_of_compare_rise_strictly_to_one() {
    let place = Place::with(&without_claims(&both()).replacen(SPIN, PERIODIC, 1));
    let compare = ["compare", "it.toml", "--policies", "edf,credit", "--seeds", "2"];
    place.run(&[&compare[..], &["--cdf", "it.csv", "--csv", "rows.csv"]].concat()).good();
    let text = String::from_utf8(place.read("it.csv")).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0].join(","), "policy,seed,vcpu,metric,at_most_ns,count,part");
    let mut runs = 0;
    for distribution in rows[1..].chunk_by(|a, b| a[..4] == b[..4]) {
        let number = |row: &Vec<&str>, column: usize| row[column].parse::<f64>().unwrap();
        let rises = |pair: &[Vec<&str>]| {
            number(&pair[0], 4) < number(&pair[1], 4) && number(&pair[0], 6) < number(&pair[1], 6)
        };
        assert!(distribution.windows(2).all(rises), "{distribution:?}");
        assert_eq!(distribution.last().unwrap()[6], "1.000000");
        runs += u32::from(distribution[0][3] == "response");
    }
    assert_eq!(runs, 4, "two policies with two seeds:\n{text}");
    place.run(&[&compare[..], &["--cdf", "nowhere/it.csv"]].concat()).refused(2);
}

const SPIN: &str = "{ kind = \"spin\" }";
const PERIODIC: &str = "{ kind = \"periodic\", period = \"10ms\", work = \"1ms\" }";

#[test]
fn policy_that_is_listed_twice_is_refused() {
    let place = Place::with(GOOD);
    let compare = ["compare", "it.toml", "--policies", "edf,edf"];
    let sweep = ["sweep", "it.toml", "--policies", "edf,edf", "--csv", "it.csv"];
    for arguments in [&compare[..], &sweep] {
        place.run(arguments).refused(2).says("--policies has `edf` twice");
    }
    assert_eq!(place.files(), ["it.toml"]);
}

#[test]
fn compare_report_has_a_row_for_each_policy_and_vcpu() {
    let place = Place::with(&both());
    let policies = ["compare", "it.toml", "--policies", "edf,credit", "--seeds", "2"];
    place.run(&[&policies[..], &["--report", "it.html"]].concat()).ended_with(0);
    let html = String::from_utf8(place.read("it.html")).expect("text");
    assert!(html.starts_with("<!doctype html>"), "{html}");
    assert!(html.contains("CPU time received") && html.contains("Deadlines missed"));
    for policy in ["edf", "credit"] {
        for vcpu in ["gold", "silver"] {
            let row = html.split("<tr").find(|row| row.contains(policy) && row.contains(vcpu));
            assert!(row.is_some(), "no row of {vcpu} under {policy}");
        }
    }
    assert!(html.contains("6ms/10ms"), "the reservation of gold under edf");
    assert!(html.contains("Timeline: edf") && html.contains("Timeline: credit"));
    assert_eq!(html.matches("<canvas").count(), 4, "two pictures for each policy");
    assert_eq!(html.matches("</script>").count(), 1, "one script draws all timelines");
    assert!(html.contains("Waits: credit, seed"), "distributions of waits");
    assert!(html.contains("<h2>Scenario</h2>"), "the scenario");
    // The same runs give the same bytes, and no output may replace the input.
    place.run(&[&policies[..], &["--report", "again.html"]].concat()).ended_with(0);
    assert!(html.as_bytes() == place.read("again.html"));
    place.run(&["compare", "it.toml", "--report", "it.toml"]).ended_with(2);
}
