//! SPECIFICATION.md: each number we promise names what holds it, and that is there.

use super::code::Code;
use super::graph::cells;
use super::{Finding, Source, find};

/// The file with the numbers.
const FILE: &str = "SPECIFICATION.md";

/// What holds a number.
#[derive(Debug, PartialEq, Eq)]
pub enum Holder {
    /// A test: perhaps the path of a crate or file, and the function.
    Test(String),
    /// A bench, by name.
    Bench(String),
    /// A claim of a scenario, by the name of its file.
    Scenario(String),
    /// Nothing yet.
    Pending,
}

/// What the cells of a row say holds it; of several things in a cell, each.
#[must_use]
pub fn holders(cells: &[String]) -> Vec<Holder> {
    let parts = cells.iter().flat_map(|cell| cell.split([',', ';']));
    let holder = |part: &str| {
        let part = part.replace('`', "");
        let part = part.trim();
        let name = |text: &str| text.split_whitespace().next().unwrap_or_default().to_owned();
        match part.split_once(':') {
            Some(("test", rest)) => Some(Holder::Test(name(rest))),
            Some(("bench", rest)) => Some(Holder::Bench(name(rest))),
            Some(("scenario", rest)) => Some(Holder::Scenario(name(rest))),
            _ if part == "pending" || part.starts_with("pending ") => Some(Holder::Pending),
            _ => None,
        }
    };
    parts.filter_map(holder).collect()
}

/// Checks every row of every table that has a number in it.
#[must_use]
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(source) = find(sources, FILE) else {
        return vec![Finding::new(FILE, 1, "there is none")];
    };
    let mut faults = Vec::new();
    let mut in_table = false;
    for (number, line) in (1..).zip(source.text.lines()) {
        let cells = cells(line);
        // The first row of a table is its head.
        let is_row = cells.is_some() && in_table;
        in_table = cells.is_some();
        let Some(cells) = cells.filter(|_| is_row) else { continue };
        let has_number = cells.iter().any(|cell| cell.contains(|c: char| c.is_ascii_digit()));
        let held_by = holders(&cells);
        if held_by.is_empty() && has_number {
            let says = "a number without `test: …`, `bench: …`, `scenario: …` or `pending`";
            faults.push(Finding::new(FILE, number, says));
        }
        let missing = held_by.iter().filter_map(|holder| missing(holder, sources));
        faults.extend(missing.map(|what| Finding::new(FILE, number, format!("no {what}"))));
    }
    faults
}

/// What there should be and is not.
fn missing(holder: &Holder, sources: &[Source]) -> Option<String> {
    let (there, what) = match holder {
        Holder::Test(path) => (has_test(path, sources), format!("test {path}")),
        Holder::Bench(name) => (has_bench(name, sources), format!("bench {name}")),
        Holder::Scenario(name) => {
            let name = name.trim_start_matches("scenarios/").trim_end_matches(".toml");
            let path = format!("scenarios/{name}.toml");
            (find(sources, &path).is_some(), format!("scenario {path}"))
        }
        Holder::Pending => (true, String::new()),
    };
    (!there).then_some(what)
}

/// A function of that name, in a file whose path has in it what stands before the name.
fn has_test(path: &str, sources: &[Source]) -> bool {
    let (place, name) = path.rsplit_once("::").unwrap_or(("", path));
    // A crate or module as Rust writes it, a file as people do.
    let place = place.trim_end_matches(".rs").trim_start_matches("slackline_");
    let places: Vec<&str> = place.split(['/', ':']).filter(|part| !part.is_empty()).collect();
    let signature = format!("fn {name}(");
    sources.iter().any(|source| {
        let is_there = |part: &str| {
            // The module of the tests is in the file.
            let mut parts = source.path.trim_end_matches(".rs").split('/');
            part == "tests" || parts.any(|other| other == part)
        };
        places.iter().all(|part| is_there(part))
            && source.code.as_ref().is_some_and(|code| is_tested(code, &signature))
    })
}

/// Whether there is a function with that signature that is run as a test.
fn is_tested(code: &Code, signature: &str) -> bool {
    let mut is_marked = false;
    code.lines().any(|(_, line)| {
        let line = line.trim();
        let found = is_marked && line.contains(signature);
        // Other attributes may stand between.
        is_marked = line.starts_with("#[test]") || is_marked && is_between(line);
        found
    })
}

fn is_between(line: &str) -> bool {
    line.is_empty() || line.starts_with("#[")
}

/// A bench is a function, a file, or what a bench program calls it.
fn has_bench(name: &str, sources: &[Source]) -> bool {
    let (function, quoted) = (format!("fn {name}("), format!("\"{name}\""));
    let is_bench = |source: &&Source| source.path.split('/').any(|part| part.starts_with("bench"));
    !name.is_empty()
        && sources.iter().filter(is_bench).any(|source| {
            source.path.ends_with(&format!("/{name}.rs"))
                || source.text.contains(&function)
                || source.text.contains(&quoted)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &str = "#[test]\n#[cfg(unix)]\nfn a_switch_costs() {}\nfn not_run() {}\n";

    fn says(row: &str) -> Vec<String> {
        let text = format!("| What | Number | Held by |\n|---|---|---|\n{row}\n");
        let sources = [
            Source::new(FILE, &text),
            Source::new("pure/sim/tests/costs.rs", TESTS),
            Source::new("bench/src/main.rs", "run(\"pick\", x);\n"),
            Source::new("scenarios/mixed.toml", ""),
        ];
        check(&sources).into_iter().map(|fault| fault.says).collect()
    }

    #[test]
    fn what_holds_a_number_must_be_there() {
        assert!(says("| a | 1 | test: pure/sim/tests/costs.rs::a_switch_costs |").is_empty());
        assert!(says("| a | 1 | `test: sim::costs::a_switch_costs` |").is_empty());
        assert!(says("| a | 1 | bench: pick, scenario: mixed |").is_empty());
        assert_eq!(says("| a | 1 | test: host::a_switch_costs |").len(), 1);
        assert_eq!(says("| a | 1 | test: sim::costs::gone, bench: gone |").len(), 2);
        assert_eq!(says("| a | always | test: sim::costs::gone |"), ["no test sim::costs::gone"]);
        assert_eq!(says("| a | always | test: not_run |"), ["no test not_run"]);
    }

    #[test]
    fn a_number_that_nothing_holds_yet_says_so() {
        assert!(says("| a | 1 | pending |").is_empty());
        assert_eq!(says("| a | 1 | |").len(), 1);
        assert!(says("| a | b | |").is_empty());
    }
}
