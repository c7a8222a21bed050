//! Tests that help pages are complete: every key, workload, claim, metric, policy and command is on
//! one of them.

use crate::common::{GOOD, Place};
use serde_json::Value;

/// Returns the keys that are allowed in a table of a scenario. They are taken from the error for an
/// unknown key.
fn keys_of(scenario: &str) -> Vec<String> {
    let said = Place::with(scenario).run(&["check", "it.toml"]).refused(2);
    let keys = said.err.lines().find_map(|line| line.strip_prefix("hint:  its keys are "));
    let keys = keys.unwrap_or_else(|| panic!("{}\n{scenario}", said.err));
    keys.split(", ").map(str::to_owned).collect()
}

/// Returns a help page. Asserts that its lines are not too wide.
fn page(topic: &str) -> String {
    let page = Place::new().run(&["help", topic]).good();
    let widest = page.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    assert!(widest <= 100, "{topic} is {widest} wide");
    page
}

#[test]
fn every_key_of_a_scenario_has_help() {
    let page = page("scenario");
    let wrong = "nothing-like-it = 1";
    let in_domain =
        |text: &str| GOOD.replacen("name = \"gold\"", &format!("name = \"gold\"\n{text}"), 1);
    let after = |text: &str| format!("{GOOD}{text}\n{wrong}\n");
    let tables = [
        format!("{wrong}\n{GOOD}"),
        in_domain(wrong),
        in_domain("live = { nothing-like-it = 1 }"),
        in_domain("vcpu = [{ nothing-like-it = 1 }]"),
        in_domain("task = [{ nothing-like-it = 1 }]"),
        after("[[change]]"),
        after("[[claim]]"),
    ];
    for scenario in tables {
        for key in keys_of(&scenario) {
            assert!(page.contains(&format!("\n  {key} ")), "`{key}` is not taught:\n{page}");
        }
    }
}

#[test]
fn every_workload_and_its_keys_have_help() {
    let page = page("work");
    let work = |text: &str| GOOD.replacen("work = { kind = \"spin\" }", text, 1);
    let said = Place::with(&work("work = { kind = \"nothing\" }")).run(&["check", "it.toml"]);
    let kinds = said.ended_with(2).err;
    let kinds = kinds.split(" is not one of ").nth(1).expect("the kinds").lines().next();
    let kinds: Vec<&str> = kinds.expect("the kinds").split(", ").collect();
    assert!(kinds.contains(&"spin") && kinds.len() > 10, "{kinds:?}");
    for kind in kinds {
        let about = page.split(&format!("\n{kind}: ")).nth(1);
        let about = about.unwrap_or_else(|| panic!("`{kind}` is not taught:\n{page}"));
        let about = about.split("\n\n").next().expect("its keys");
        let text = format!("work = {{ kind = \"{kind}\", nothing-like-it = 1 }}");
        let driver = "[driver]\ndomain = \"silver\"\n[[domain]]\nname = \"gold\"";
        let scenario = work(&text).replacen("[[domain]]\nname = \"gold\"", driver, 1);
        for key in keys_of(&scenario) {
            assert!(about.contains(&format!("\n  {key} ")), "`{key}` of {kind} is not taught");
        }
    }
}

#[test]
fn every_metric_of_json_and_claims_has_help() {
    let (metrics, claims) = (page("metrics"), page("claims"));
    let json = Place::with(GOOD).run(&["sim", "it.toml", "--xenmon", "--json"]).good();
    let whole: Value = serde_json::from_str(&json).expect("JSON");
    let run = &whole["runs"][0];
    let own =
        ["run", "vcpus", "cpus", "tasks", "clients", "xenmon", "domains", "seconds", "point_ns"];
    let mut fields = Vec::new();
    for object in [run, &run["vcpus"][0], &run["cpus"][0], &run["xenmon"]["domains"][0]] {
        fields.extend(object.as_object().expect("an object").keys());
    }
    fields.retain(|field| !own.contains(&field.as_str()) || *field == "seconds");
    assert!(fields.len() > 60, "{fields:?}");
    for field in fields {
        let ends = ["_count", "_p50_ns", "_p90_ns", "_p99_ns", "_worst_ns"];
        let spread = ends.iter().find_map(|end| field.strip_suffix(end));
        let written = spread.map_or(field.clone(), |field| format!("{field}_*"));
        let is_taught = |word: &str| {
            metrics.lines().any(|line| {
                let rest = line.trim_start().strip_prefix(word);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(';'))
            })
        };
        // A metric with a worst value need not have percentiles.
        let taught = is_taught(&written) || is_taught(field);
        assert!(taught, "`{written}` is not taught:\n{metrics}");
    }
    let unknown = GOOD.replacen("delivered of gold", "beauty of gold", 1);
    let said = Place::with(&unknown).run(&["check", "it.toml"]).refused(2).err;
    let known = said.split("use one of: ").nth(1).expect("what is known");
    for metric in known.trim().split(", ") {
        let ends = [" p50", " p90", " p99", " worst", " count"];
        let name = ends.iter().find_map(|end| metric.strip_suffix(end)).unwrap_or(metric);
        assert!(claims.contains(&format!("\n  {name} ")), "`{metric}` is not taught:\n{claims}");
        assert!(metrics.contains(&format!("`{name}")), "`{metric}` is not taught");
    }
    for test in ["below", "above", "at most", "at least", "within P% of", "within N points of"] {
        assert!(claims.contains(test), "`{test}` is not taught");
    }
}

#[test]
fn every_table_column_is_explained_in_help_metrics() {
    let page = page("metrics");
    let place = Place::with(GOOD);
    for arguments in [&["sim", "it.toml"][..], &["sim", "it.toml", "--seeds", "2"]] {
        let table = place.run(arguments).good();
        let lines: Vec<&str> = table.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let is_rule = !line.is_empty() && line.chars().all(|letter| letter == '─');
            if !is_rule {
                continue;
            }
            for heading in lines[number - 1].split("  ").map(str::trim) {
                let name = heading.trim_end_matches([' ', '%']);
                let of_policy = ["edf", "p50", "p99", "worst", "n", ""].contains(&name);
                assert!(of_policy || page.contains(name), "`{heading}` is not taught");
            }
            for over in lines[number.saturating_sub(2)].split('─').map(str::trim) {
                let name = over.split(',').next().unwrap_or_default();
                let name = name.trim_end_matches([' ', '%']).trim_end_matches(" p99");
                assert!(page.contains(name), "`{over}` is not taught");
            }
        }
    }
}

#[test]
fn help_lists_every_page_and_visible_command() {
    let place = Place::new();
    let all = place.run(&["help"]).good();
    let names = all.lines().filter_map(|line| line.strip_prefix("  "));
    let names: Vec<&str> = names.filter(|line| !line.starts_with(' ')).collect();
    let names = names.iter().filter_map(|line| line.split_whitespace().next());
    for name in names.clone() {
        assert!(place.run(&["help", name]).ended_with(0).out.len() > 50, "{name}");
    }
    let names: Vec<&str> = names.collect();
    for name in ["scenario", "work", "live", "claims", "metrics", "host", "driver", "sim", "edf"] {
        assert!(names.contains(&name), "`{name}` is missing:\n{all}");
    }
    assert!(place.run(&["help", "sim"]).good().contains("--seeds <N>"));
    for hidden in ["keep", "kep", "keepp"] {
        let said = place.run(&["help", hidden]).refused(2).err;
        assert!(!said.contains("mean `keep`"), "{said}");
    }
    for (arguments, hidden) in [
        (&["kee"][..], "keep"),
        (&["load", "stepps"], "steps"),
        (&["load", "spin", "--starts", "1"], "--start"),
    ] {
        let said = place.run(arguments).ended_with(2).err;
        assert!(!said.contains(&format!("'{hidden}'")), "{said}");
    }
    assert!(place.run(&["sin", "it.toml"]).ended_with(2).err.contains("'sim'"));
}

#[test]
fn help_names_every_key_of_a_driver_domain_and_its_clients() {
    let place = Place::with(GOOD);
    let page = place.run(&["help", "driver"]).good();
    assert!(!page.contains("```"), "{page}");
    for topic in ["client", "nic", "disk", "kernel", "task"] {
        assert_eq!(place.run(&["help", topic]).good(), page, "{topic}");
    }
    // The error for an unknown key lists the valid keys.
    let keys = |table: &str| {
        let scenario = GOOD.replace("[host]", &format!("{table}\nnothing-like-it = 1\n[host]"));
        let said = Place::with(&scenario).run(&["check", "it.toml"]).refused(2);
        let hint = said.err.lines().find_map(|line| line.strip_prefix("hint:  its keys are "));
        hint.unwrap_or_else(|| panic!("{}", said.err)).to_owned()
    };
    let ab = "[driver]\ndomain = \"gold\"\n[[client]]\nkind = \"ab\"\nto = \"gold\"";
    for table in ["[driver]\ndomain = \"gold\"", ab] {
        for key in keys(table).split(", ") {
            assert!(page.contains(&format!("`{key}`")), "`{key}` is not taught");
        }
    }
}

#[test]
fn help_names_every_key_of_the_host() {
    let place = Place::with(GOOD);
    let page = place.run(&["help", "host"]).good();
    assert!(!page.contains("```"), "{page}");
    let scenario = GOOD.replace("[host]", "[host]\nnothing-like-it = 1");
    let said = Place::with(&scenario).run(&["check", "it.toml"]).refused(2);
    let keys = said.err.lines().find_map(|line| line.strip_prefix("hint:  its keys are "));
    for key in keys.unwrap_or_else(|| panic!("{}", said.err)).split(", ") {
        assert!(page.contains(&format!("\n{key} = ")), "`{key}` is not taught");
    }
}

#[test]
fn help_has_a_page_for_each_policy() {
    let place = Place::new();
    let all = place.run(&["help"]).good();
    for command in ["sim", "run", "compare", "check", "show", "load", "doctor", "help"] {
        assert!(all.contains(&format!("\n  {command} ")), "`{command}` is missing:\n{all}");
    }
    assert!(all.contains("\n  edf ") && all.contains("\n  round-robin "), "{all}");
    assert!(!all.contains("keep "), "what only the program uses is shown:\n{all}");
    let page = place.run(&["help", "edf"]).good();
    assert!(page.starts_with("edf: ") && page.contains("slice") && page.contains("reserve"));
    assert!(page.lines().count() <= 100, "more than two screens of 50 lines:\n{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    place.run(&["help", "edff"]).refused(2).says("no help page about `edff`").says("mean `edf`?");
    place.run(&["help", "nothing-like-it"]).refused(2).says("list all pages with `slackline help`");
    for arguments in [&["--help"][..], &["--version"], &["sim", "--help"]] {
        place.run(arguments).good();
    }
}
