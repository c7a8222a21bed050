//! Tests that help pages are complete: every key, workload, claim, metric, policy and command is on
//! one of them.

use crate::common::{GOOD, Place};
use serde_json::Value;

/// Returns the keys that are allowed in a table of a scenario. They are taken from the error for an
/// unknown key.
fn keys_of(scenario: &str) -> Vec<String> {
    let said = Place::with(scenario).run(&["check", "it.toml"]).refused(2);
    let keys =
        said.err.lines().find_map(|line| line.strip_prefix("hint:  the keys of this table are "));
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
fn every_key_of_a_scenario_is_explained_in_help() {
    let page = page("scenario") + &page("domain") + &page("live");
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
            assert!(page.contains(&format!("\n  {key} ")), "`{key}` is not explained:\n{page}");
        }
    }
}

#[test]
fn every_workload_and_workload_key_is_explained_in_help() {
    let page = page("work");
    let work = |text: &str| GOOD.replacen("work = { kind = \"spin\" }", text, 1);
    let said = Place::with(&work("work = { kind = \"nothing\" }")).run(&["check", "it.toml"]);
    let kinds = said.ended_with(2).err;
    let kinds = kinds.split(" is not one of ").nth(1).expect("the kinds").lines().next();
    let kinds: Vec<&str> = kinds.expect("the kinds").split(", ").collect();
    assert!(kinds.contains(&"spin") && kinds.len() > 10, "{kinds:?}");
    for kind in kinds {
        let about = page.split(&format!("\n{kind}: ")).nth(1);
        let about = about.unwrap_or_else(|| panic!("`{kind}` is not explained:\n{page}"));
        let about = about.split("\n\n").next().expect("the keys of the workload");
        let text = format!("work = {{ kind = \"{kind}\", nothing-like-it = 1 }}");
        let driver = "[driver]\ndomain = \"silver\"\n[[domain]]\nname = \"gold\"";
        let scenario = work(&text).replacen("[[domain]]\nname = \"gold\"", driver, 1);
        for key in keys_of(&scenario) {
            assert!(about.contains(&format!("\n  {key} ")), "`{key}` of {kind} is not explained");
        }
    }
}

/// Returns the JSON fields of the run, the vCPUs, the CPUs and the domains of a simulation.
fn json_fields() -> Vec<String> {
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
    // `slackline help domain` is the page about domains of a scenario.
    fields.into_iter().filter(|field| *field != "domain").cloned().collect()
}

#[test]
fn every_metric_in_json_and_claims_is_explained_in_help() {
    let metrics = page("metrics");
    let book = include_str!("../../../../docs/metrics.md");
    for field in json_fields() {
        let ends = ["_count", "_p50_ns", "_p90_ns", "_p99_ns", "_worst_ns"];
        let spread = ends.iter().find_map(|end| field.strip_suffix(end));
        let written = spread.map_or(field.clone(), |field| format!("{field}_*"));
        // A metric with a worst value need not have percentiles.
        let is_taught = |text: &str, begin: &str, end: &str| {
            [&written, &field].iter().any(|name| text.contains(&format!("{begin}{name}{end}")))
        };
        let about = page(&field);
        assert!(is_taught(&about, "JSON field: ", "\n"), "`{written}` is not explained:\n{about}");
        assert!(is_taught(book, "`", "`"), "`{written}` is not in the book");
    }
    let metrics = metrics.split_whitespace().collect::<Vec<_>>().join(" ");
    let unknown = GOOD.replacen("delivered of gold", "beauty of gold", 1);
    let said = Place::with(&unknown).run(&["check", "it.toml"]).refused(2).err;
    let known = said.split("use one of: ").nth(1).expect("the known metrics");
    for metric in known.trim().split(", ") {
        let ends = [" p50", " p90", " p99", " worst", " count"];
        let name = ends.iter().find_map(|end| metric.strip_suffix(end)).unwrap_or(metric);
        assert!(metrics.contains(&format!(" {name}")), "`{metric}` is not explained:\n{metrics}");
        assert!(book.contains(&format!("`{name}")), "`{metric}` is not in the book");
    }
    let claims = page("claims");
    for test in ["below", "above", "at most", "at least", "within P% of", "within N points of"] {
        assert!(claims.contains(test), "`{test}` is not explained");
    }
}

#[test]
fn every_table_column_is_explained_in_the_metrics_help_page() {
    let meanings: String = json_fields().iter().map(|field| page(field)).collect();
    let page = page("metrics") + &meanings;
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
                assert!(of_policy || page.contains(name), "`{heading}` is not explained");
            }
            for over in lines[number.saturating_sub(2)].split('─').map(str::trim) {
                let name = over.split(',').next().unwrap_or_default();
                let name = name.trim_end_matches([' ', '%']).trim_end_matches(" p99");
                assert!(page.contains(name), "`{over}` is not explained");
            }
        }
    }
}

#[test]
fn help_pages_with_a_single_topic_fit_on_two_screens() {
    let short = ["scenario", "domain", "live", "claims", "metrics", "service", "refusals", "agent"];
    let policies = ["edf", "sedf", "credit", "gaps", "gedf", "bvt", "atropos", "round-robin"];
    for topic in short.into_iter().chain(policies) {
        let lines = page(topic).lines().count();
        assert!(lines <= 100, "{topic} has {lines} lines, more than two screens of 50");
    }
}

#[test]
fn help_command_lists_every_page_and_every_visible_command() {
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
    assert!(place.run(&["help", "keep"]).good().starts_with("No help page is about `keep`."));
    for hidden in ["kep", "keepp"] {
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
fn driver_help_page_explains_every_key_of_drivers_and_clients() {
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
        let hint = said
            .err
            .lines()
            .find_map(|line| line.strip_prefix("hint:  the keys of this table are "));
        hint.unwrap_or_else(|| panic!("{}", said.err)).to_owned()
    };
    let ab = "[driver]\ndomain = \"gold\"\n[[client]]\nkind = \"ab\"\nto = \"gold\"";
    for table in ["[driver]\ndomain = \"gold\"", ab] {
        for key in keys(table).split(", ") {
            assert!(page.contains(&format!("`{key}`")), "`{key}` is not explained");
        }
    }
}

#[test]
fn host_help_page_explains_every_key_of_the_host() {
    let place = Place::with(GOOD);
    let page = place.run(&["help", "host"]).good();
    assert!(!page.contains("```"), "{page}");
    let scenario = GOOD.replace("[host]", "[host]\nnothing-like-it = 1");
    let said = Place::with(&scenario).run(&["check", "it.toml"]).refused(2);
    let keys =
        said.err.lines().find_map(|line| line.strip_prefix("hint:  the keys of this table are "));
    for key in keys.unwrap_or_else(|| panic!("{}", said.err)).split(", ") {
        assert!(page.contains(&format!("\n{key} = ")), "`{key}` is not explained");
    }
}

#[test]
fn help_command_finds_a_word_in_glossary_and_help_pages() {
    let place = Place::new();
    for word in ["slack", "deadline", "debt", "trace", "json"] {
        let found = place.run(&["help", word]).good();
        assert!(found.contains("Pages with this word"), "{found}");
    }
    let found = place.run(&["help", "Budget"]).good();
    assert!(
        found.contains("Glossary:\n  budget  ") && found.contains("part of the slice"),
        "{found}"
    );
}

#[test]
fn help_command_lists_commands_and_policies_and_hides_internal_commands() {
    let place = Place::new();
    let all = place.run(&["help"]).good();
    for command in ["sim", "run", "compare", "check", "show", "load", "doctor", "help"] {
        assert!(all.contains(&format!("\n  {command} ")), "`{command}` is missing:\n{all}");
    }
    assert!(all.contains("\n  edf ") && all.contains("\n  round-robin "), "{all}");
    assert!(!all.contains("keep "), "commands that only the program starts are hidden:\n{all}");
    let page = place.run(&["help", "edf"]).good();
    assert!(page.starts_with("edf: ") && page.contains("slice") && page.contains("reserve"));
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    place.run(&["help", "edff"]).refused(2).says("no help page about `edff`").says("mean `edf`?");
    place.run(&["help", "nothing-like-it"]).refused(2).says("list all pages with `slackline help`");
    for arguments in [&["--help"][..], &["--version"], &["sim", "--help"]] {
        place.run(arguments).good();
    }
}
