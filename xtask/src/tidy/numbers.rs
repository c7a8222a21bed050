//! Check of SPECIFICATION.md: each promise has an ID, a status, short cells, and evidence that
//! exists.
//!
//! A table has the columns `ID | promise | target | status | evidence`. Notes on a row are below
//! its table, under a heading `### ID`. Notes can name more evidence, in code spans.

use std::collections::BTreeSet;

use super::code::Code;
use super::graph::cells;
use super::{Finding, Source, find};

/// Path of the specification.
const FILE: &str = "SPECIFICATION.md";

/// Columns of every table.
const COLUMNS: [&str; 5] = ["ID", "promise", "target", "status", "evidence"];

/// Values of the column `status`.
const STATUSES: [&str; 4] = ["held", "not reached", "not measured", "known gap"];

/// Script of the browser test, called the story.
const STORY: &str = "edge/daemon/tests/browser/story.mjs";

/// Maximum length of a cell, in characters.
const MAX_CELL: usize = 160;

/// Evidence for a promise of SPECIFICATION.md.
#[derive(Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A test, by the name of its function. The path of a crate or file can precede the name.
    Test(String),
    /// A bench, by name.
    Bench(String),
    /// A part of the browser test, by the name of its function.
    Browser(String),
    /// A claim of a scenario, by the name of the scenario's file.
    Scenario(String),
    /// The promise has no check yet.
    Pending,
}

impl Evidence {
    /// Reads one item of an evidence cell. `None` if the item is not a test, bench, part of the
    /// browser test, scenario or `pending`.
    #[must_use]
    pub fn read(item: &str) -> Option<Evidence> {
        let item = item.trim().trim_matches('`');
        match item.split_once(": ") {
            Some(("test", name)) => Some(Evidence::Test(name.to_owned())),
            Some(("bench", name)) => Some(Evidence::Bench(name.to_owned())),
            Some(("browser", name)) => Some(Evidence::Browser(name.to_owned())),
            Some(("scenario", name)) => Some(Evidence::Scenario(name.to_owned())),
            _ if item == "pending" => Some(Evidence::Pending),
            _ => None,
        }
    }

    /// Returns a message if the evidence does not exist. `None` if it exists.
    fn missing(&self, sources: &[Source]) -> Option<String> {
        let (exists, what) = match self {
            Evidence::Test(path) => (has_test(path, sources), format!("no test {path}")),
            Evidence::Bench(name) => (has_bench(name, sources), format!("no bench {name}")),
            Evidence::Browser(name) => {
                let source = find(sources, STORY);
                let function = format!("function {name}(");
                let exists = source.is_some_and(|source| source.text.contains(&function));
                (exists, format!("no function {name} in {STORY}"))
            }
            Evidence::Scenario(name) => {
                let path = format!("scenarios/{name}.toml");
                (find(sources, &path).is_some(), format!("no scenario {path}"))
            }
            Evidence::Pending => (true, String::new()),
        };
        (!exists).then_some(what)
    }
}

/// Checks every table and every note of the specification.
#[must_use]
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(source) = find(sources, FILE) else {
        return vec![Finding::new(FILE, 1, "the file does not exist")];
    };
    let mut faults = Vec::new();
    let mut ids = BTreeSet::new();
    let (mut in_table, mut in_note) = (false, false);
    for (number, line) in (1..).zip(source.text.lines()) {
        let cells = cells(line);
        if line.starts_with('#') {
            in_note = line.starts_with("### ");
        }
        let says = match &cells {
            Some(cells) if in_table => check_row(cells, &mut ids, sources),
            Some(cells) => check_columns(cells),
            None if in_note => check_note(line, &ids, sources),
            None => Vec::new(),
        };
        in_table = cells.is_some();
        faults.extend(says.into_iter().map(|says| Finding::new(FILE, number, says)));
    }
    faults
}

/// Checks that the first row of a table has the names of the columns.
fn check_columns(cells: &[String]) -> Vec<String> {
    let columns = COLUMNS.join(" | ");
    if cells == COLUMNS { Vec::new() } else { vec![format!("the columns are not {columns}")] }
}

fn check_row(cells: &[String], ids: &mut BTreeSet<String>, sources: &[Source]) -> Vec<String> {
    if cells.iter().all(|cell| !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':'))) {
        return Vec::new(); // The line below the columns.
    }
    let [id, _, _, status, evidence] = cells else {
        return vec![format!("{} cells, not {}", cells.len(), COLUMNS.len())];
    };
    let mut says = Vec::new();
    if !is_id(id) {
        says.push(format!(
            "`{id}` is not an ID: use an area and at least two digits, such as RES-01"
        ));
    } else if !ids.insert(id.clone()) {
        says.push(format!("the ID {id} is used twice"));
    }
    if !STATUSES.contains(&status.as_str()) {
        says.push(format!("`{status}` is not a status: use one of {}", STATUSES.join(", ")));
    }
    for (cell, column) in cells.iter().zip(COLUMNS) {
        let length = cell.chars().count();
        if cell.is_empty() && column != "evidence" {
            says.push(format!("the cell {column} is empty"));
        } else if length > MAX_CELL {
            says.push(format!("the cell {column} has {length} characters, {MAX_CELL} at most"));
        }
    }
    says.extend(check_evidence(evidence, status, sources));
    says
}

fn check_evidence(cell: &str, status: &str, sources: &[Source]) -> Vec<String> {
    let mut says = Vec::new();
    let mut has_holder = false;
    for item in cell.split(',') {
        let Some(evidence) = Evidence::read(item) else {
            let forms =
                "`test: NAME`, `bench: NAME`, `browser: NAME`, `scenario: NAME` or `pending`";
            says.push(format!("`{}` is not evidence: use {forms}", item.trim().trim_matches('`')));
            continue;
        };
        has_holder |= evidence != Evidence::Pending;
        says.extend(evidence.missing(sources));
    }
    if says.is_empty() && status == "held" && !has_holder {
        says.push("a promise that is held needs evidence other than `pending`".to_owned());
    }
    says
}

/// Checks a note. Its heading must be the ID of a row above, and the evidence in its code spans
/// must exist.
fn check_note(line: &str, ids: &BTreeSet<String>, sources: &[Source]) -> Vec<String> {
    if let Some(id) = line.strip_prefix("### ") {
        let has_row = ids.contains(id);
        return if has_row { Vec::new() } else { vec![format!("no row above has the ID {id}")] };
    }
    let spans = line.split('`').skip(1).step_by(2);
    spans.filter_map(Evidence::read).filter_map(|evidence| evidence.missing(sources)).collect()
}

/// Returns true if `id` has an area in capital letters, a hyphen and at least two digits, such as
/// `EDF-01`.
fn is_id(id: &str) -> bool {
    let Some((area, number)) = id.split_once('-') else { return false };
    area.len() >= 2
        && area.chars().all(|c| c.is_ascii_uppercase())
        && number.len() >= 2
        && number.chars().all(|c| c.is_ascii_digit())
}

/// Returns true if a test has the name at the end of `path`. The file of the test must have a path
/// that contains the other parts of `path`.
fn has_test(path: &str, sources: &[Source]) -> bool {
    let (place, name) = path.rsplit_once("::").unwrap_or(("", path));
    // `slackline_sim::costs` means a module, and `costs.rs` means a file.
    let place = place.trim_end_matches(".rs").trim_end_matches(".py");
    let place = place.trim_start_matches("slackline_");
    let places: Vec<&str> = place.split(['/', ':']).filter(|part| !part.is_empty()).collect();
    let signature = format!("fn {name}(");
    let in_python = format!("\ndef {name}(");
    sources.iter().any(|source| {
        let is_there = |part: &str| {
            // The module `tests` belongs to the file that contains it.
            let mut parts = source.path.trim_end_matches(".rs").trim_end_matches(".py").split('/');
            part == "tests" || parts.any(|other| other == part)
        };
        let is_python = source.path.ends_with(".py") && name.starts_with("test_");
        places.iter().all(|part| is_there(part))
            && (source.code.as_ref().is_some_and(|code| is_tested(code, &signature))
                || (is_python && source.text.contains(&in_python)))
    })
}

/// Returns true if the code has a test function with this signature.
fn is_tested(code: &Code, signature: &str) -> bool {
    let mut is_marked = false;
    code.lines().any(|(_, line)| {
        let line = line.trim();
        let found = is_marked && line.contains(signature);
        // Other attributes may come after `#[test]`.
        is_marked = line.starts_with("#[test]") || is_marked && is_between(line);
        found
    })
}

fn is_between(line: &str) -> bool {
    line.is_empty() || line.starts_with("#[")
}

/// Returns true if a bench has this name: a function, a file, or a string in the bench program.
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
    const HEAD: &str = "| ID | promise | target | status | evidence |\n|---|---|---|---|---|\n";

    /// Returns the findings of the check for a specification with this text.
    fn reported(text: &str) -> Vec<String> {
        let sources = [
            Source::new(FILE, text),
            Source::new("pure/sim/tests/costs.rs", TESTS),
            Source::new("python/tests/test_sweep.py", "\ndef test_table_is_kept() -> None:\n"),
            Source::new("bench/src/main.rs", "run(\"pick\", x);\n"),
            Source::new("scenarios/mixed.toml", ""),
        ];
        check(&sources).into_iter().map(|fault| fault.says).collect()
    }

    /// Returns the findings of the check for a row with this status and evidence.
    fn row(status: &str, evidence: &str) -> Vec<String> {
        reported(&format!("{HEAD}| RES-01 | a promise | 1 ms | {status} | {evidence} |\n"))
    }

    #[test]
    fn nonexistent_evidence_in_the_specification_is_a_fault() {
        assert!(row("held", "test: pure/sim/tests/costs.rs::a_switch_costs").is_empty());
        assert!(row("held", "`test: sim::costs::a_switch_costs`").is_empty());
        assert!(row("held", "`bench: pick`, `scenario: mixed`").is_empty());
        assert_eq!(row("held", "test: host::a_switch_costs").len(), 1);
        assert_eq!(row("held", "test: sim::costs::gone, bench: gone").len(), 2);
        assert_eq!(row("held", "test: sim::costs::gone"), ["no test sim::costs::gone"]);
        assert_eq!(row("held", "test: not_run"), ["no test not_run"]);
        assert!(row("held", "test: test_sweep.py::test_table_is_kept").is_empty());
        assert_eq!(row("held", "test: test_sweep.py::test_gone").len(), 1);
    }

    #[test]
    fn specification_row_without_evidence_is_a_fault() {
        assert!(row("not measured", "pending").is_empty());
        assert_eq!(row("not reached", "").len(), 1);
        assert_eq!(row("not reached", "[mutants](bench/results/mutants.md)").len(), 1);
        assert_eq!(
            row("held", "pending"),
            ["a promise that is held needs evidence other than `pending`"]
        );
    }

    #[test]
    fn specification_status_must_be_one_of_four_words() {
        for status in STATUSES {
            assert!(row(status, "bench: pick").is_empty(), "{status}");
        }
        for status in ["", "pending", "Held", "held, not measured"] {
            assert_eq!(row(status, "bench: pick").len(), 1 + usize::from(status.is_empty()));
        }
    }

    #[test]
    fn specification_ids_must_be_unique_and_well_formed() {
        let table = |ids: [&str; 2]| {
            let row = |id| format!("| {id} | a promise | 1 ms | held | bench: pick |\n");
            reported(&format!("{HEAD}{}\n## More\n\n{HEAD}{}", row(ids[0]), row(ids[1])))
        };
        assert!(table(["RES-01", "BAL-100"]).is_empty());
        assert_eq!(table(["RES-01", "RES-01"]), ["the ID RES-01 is used twice"]);
        for id in ["RES-1", "R-01", "res-01", "RES01", "RES-0a", "RES-01-02"] {
            assert_eq!(table(["RES-01", id]).len(), 1, "{id}");
        }
    }

    #[test]
    fn specification_cell_of_more_than_160_characters_is_a_fault() {
        let table = |promise: &str, target: &str| {
            reported(&format!("{HEAD}| RES-01 | {promise} | {target} | held | bench: pick |\n"))
        };
        // The length is counted in characters and not in bytes.
        assert!(table(&"\u{3bc}".repeat(160), "1").is_empty());
        let says = ["the cell promise has 161 characters, 160 at most"];
        assert_eq!(table(&"a".repeat(161), "1"), says);
        assert_eq!(table("a promise", ""), ["the cell target is empty"]);
    }

    #[test]
    fn specification_table_must_have_the_five_columns() {
        assert_eq!(reported("| What | Number |\n|---|---|\n").len(), 1);
        assert_eq!(reported(&format!("{HEAD}| RES-01 | a promise |\n")), ["2 cells, not 5"]);
    }

    #[test]
    fn specification_note_may_name_only_existing_rows_and_evidence() {
        let note = |note: &str| {
            let row = "| RES-01 | a promise | 1 ms | held | bench: pick |\n";
            reported(&format!("A `test: NAME` runs.\n\n{HEAD}{row}\n{note}\n"))
        };
        assert!(note("### RES-01\n\nMore: `test: a_switch_costs`, `edf`.").is_empty());
        assert_eq!(note("### RES-02"), ["no row above has the ID RES-02"]);
        assert_eq!(note("### RES-01\n\nMore: `test: gone`."), ["no test gone"]);
    }
}
