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
        in_domain("live = { pid = 1, relay = { nothing-like-it = 1 } }"),
        in_domain("tells = { nothing-like-it = 1 }"),
        in_domain("vcpu = [{ nothing-like-it = 1 }]"),
        in_domain("task = [{ nothing-like-it = 1 }]"),
        after("[[interference]]\ncpu = 0"),
        after("[[change]]"),
        after("[[claim]]"),
    ];
    for scenario in tables {
        for key in keys_of(&scenario) {
            assert!(page.contains(&format!("\n  {key} ")), "`{key}` is not explained:\n{page}");
        }
    }
    let (_, axes) = page.split_once("\n[[axis]] makes").expect("a part about axes");
    let (axes, _) = axes.split_once("\nSee also").expect("the end of the page");
    for table in ["[[axis]]\nname = \"a\"\nnothing = 1", "[[axis]]\npoint = [{ nothing = 1 }]"] {
        let said =
            Place::with(&format!("{GOOD}{table}\n")).run(&["check", "it.toml"]).ended_with(2);
        let keys = said.err.lines().find_map(|line| line.split("expected one of ").nth(1));
        for key in keys.expect("the keys of the table").split('`').skip(1).step_by(2) {
            let ways = [format!("`{key}`"), format!("`{key} = "), format!("\n  {key} = ")];
            let is_table = key == "point" && axes.contains("[[axis.point]]");
            let is_explained = is_table || ways.iter().any(|way| axes.contains(way));
            assert!(is_explained, "`{key}` is not explained:\n{axes}");
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
    let overview = Place::new().run(&["help"]).good();
    let names = [names_after(&overview, "Topics"), names_after(&overview, "Policies")].concat();
    assert!(names.len() > 20, "{names:?}");
    for topic in names.iter().filter(|name| !["work", "driver"].contains(&name.as_str())) {
        let lines = page(topic).lines().count();
        assert!(lines <= 100, "{topic} has {lines} lines, more than two screens of 50");
    }
}

/// Returns the names in a list of the overview. The list is the paragraph that begins with `title`.
fn names_after(overview: &str, title: &str) -> Vec<String> {
    let (_, list) = overview.split_once(&format!("\n{title}")).expect("a list");
    let lines = list.lines().skip(1).take_while(|line| !line.is_empty());
    let first = lines.filter(|line| !line.starts_with("   ")).filter_map(|line| {
        let name = line.split_whitespace().next();
        name.map(str::to_owned)
    });
    first.collect()
}

/// Topics and policies that have help pages. The commands are those that have manual pages.
const PAGES: [&str; 22] = [
    "scenario",
    "domain",
    "work",
    "live",
    "claims",
    "metrics",
    "host",
    "family",
    "tasks",
    "driver",
    "agent",
    "service",
    "refusals",
    "edf",
    "round-robin",
    "atropos",
    "bvt",
    "sedf",
    "gedf",
    "credit",
    "gaps",
    "fair",
];

#[test]
fn help_command_lists_every_page_and_every_visible_command() {
    let place = Place::new();
    let all = place.run(&["help"]).good();
    let lists = ["Commands", "Topics", "Policies"];
    let [commands, topics, policies] = lists.map(|list| names_after(&all, list));
    assert_eq!([topics, policies].concat(), PAGES, "{all}");
    for name in PAGES.iter().copied().chain(commands.iter().map(String::as_str)) {
        assert!(place.run(&["help", name]).ended_with(0).out.len() > 50, "{name}");
    }
    place.run(&["man", "--to", "."]).ended_with(0);
    let is_command = |name: &String| {
        let mut above = name.match_indices('-').map(|(end, _)| &name[..end]);
        !above.any(|above| place.path(&format!("slackline-{above}.1")).exists())
    };
    let files = place.files().into_iter();
    let names = files
        .filter_map(|file| Some(file.strip_prefix("slackline-")?.strip_suffix(".1")?.to_owned()));
    let mut names: Vec<String> = names.filter(is_command).collect();
    let mut commands = commands;
    names.sort();
    commands.sort();
    assert_eq!(commands, names, "{all}");
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
    let driver = "[driver]\ndomain = \"silver\"\n";
    let client = |kind: &str| format!("{driver}[[client]]\nkind = \"{kind}\"\nto = \"silver\"\n");
    let mut tables = vec![
        ("`[driver]`", driver.to_owned()),
        ("`[nic]`", format!("{driver}[nic]\n")),
        ("`[disk]`", format!("{driver}[disk]\n")),
    ];
    for kind in ["httperf", "ab", "ping", "ttcp", "iperf"] {
        tables.push(("`[[client]]`", client(kind)));
    }
    for (heading, table) in tables {
        let about = page.split(&format!("\n{heading}: ")).nth(1);
        let about = about.and_then(|text| text.split("\n\n").next());
        let about = about.unwrap_or_else(|| panic!("{heading} is not explained"));
        let scenario = GOOD.replace("[host]", &format!("{table}nothing-like-it = 1\n[host]"));
        for key in keys_of(&scenario) {
            let ways = [format!("`{key}`"), format!("`{key} = ")];
            let is_explained = ways.iter().any(|way| about.contains(way));
            assert!(is_explained, "`{key}` of {table} is not explained:\n{about}");
        }
    }
    let kernel = "name = \"gold\"\nkernel = { nothing-like-it = 1 }";
    let scenario = GOOD.replacen("name = \"gold\"", kernel, 1);
    let scenario = scenario.replace("[host]", &format!("{driver}[host]"));
    let about = page.split("\n- `kernel`: ").nth(1).and_then(|text| text.split("\n- ").next());
    let about = about.expect("the keys of `kernel`");
    for key in keys_of(&scenario) {
        assert!(about.contains(&format!("`{key}`")), "`{key}` of `kernel` is not explained");
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
    // The page of a policy that is only simulated is searched too.
    let found = place.run(&["help", "eevdf"]).good();
    assert!(found.contains("`fair`"), "{found}");
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
