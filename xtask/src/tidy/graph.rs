//! Check of the dependencies between crates. It compares the table in ARCHITECTURE.md with the
//! metadata from cargo.

use std::collections::BTreeSet;

use super::{Finding, Source, find};
use crate::metadata::{Crate, Metadata};

/// Path of the file with the table of dependencies.
const FILE: &str = "ARCHITECTURE.md";

/// Column headings of the table.
const HEAD: [&str; 3] = ["Crate", "May use", "Must never use, directly or below another"];

/// Maximum number of lines of ARCHITECTURE.md.
const LENGTH: usize = 140;

/// Crates that must not have external dependencies.
const ALONE: [&str; 2] = ["units", "policy"];

/// A row of the table: a crate, and the dependencies that are allowed and forbidden.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// Line of the row in ARCHITECTURE.md, counted from 1.
    pub line: usize,
    /// Crate, by the name of its folder.
    pub name: String,
    /// Allowed dependencies: crates, or words such as `anything in pure`.
    pub may: Vec<String>,
    /// Forbidden dependencies, direct or indirect.
    pub never: Vec<String>,
}

/// Returns the rows of the table with the headings `HEAD`. `None` if the text has no such table.
#[must_use]
pub fn table(text: &str) -> Option<Vec<Row>> {
    let mut lines = (1..).zip(text.lines());
    let is_head = |cells: &[String]| cells.iter().map(String::as_str).eq(HEAD);
    lines.find(|(_, line)| cells(line).is_some_and(|cells| is_head(&cells)))?;
    let rows = lines.skip(1).map_while(|(line, text)| Some((line, cells(text)?)));
    Some(rows.filter_map(|(line, cells)| row(line, &cells)).collect())
}

fn row(line: usize, cells: &[String]) -> Option<Row> {
    let cell = |number: usize| cells.get(number).map_or("", String::as_str);
    let name = items(cell(0)).into_iter().next()?;
    Some(Row { line, name, may: items(cell(1)), never: items(cell(2)) })
}

/// Returns the cells of a table row. `None` if the line is not a table row.
#[must_use]
pub fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(|cell| cell.trim().to_owned()).collect())
}

/// Returns the items of a cell, which are separated by commas. Backquotes, and notes in
/// parentheses, are removed.
fn items(cell: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut name = String::new();
    let mut depth = 0_usize;
    for character in cell.chars().chain([',']) {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' | ';' if depth == 0 => {
                let text = name.trim().trim_start_matches("slackline-").to_owned();
                if !matches!(text.as_str(), "" | "nothing" | "-" | "–" | "—") {
                    items.push(text);
                }
                name.clear();
            }
            '`' => {}
            _ if depth == 0 => name.push(character),
            _ => {}
        }
    }
    items
}

/// Graph of the workspace's crates.
struct Graph<'a> {
    crates: &'a [Crate],
}

impl<'a> Graph<'a> {
    fn by_package(&self, package: &str) -> Option<&'a Crate> {
        self.crates.iter().find(|one| one.package == package)
    }

    fn ours(&self, one: &'a Crate) -> impl Iterator<Item = &'a Crate> {
        one.normal.iter().filter_map(|package| self.by_package(package))
    }

    /// Returns the crates of the workspace that a crate uses directly or indirectly.
    fn below(&self, one: &'a Crate) -> BTreeSet<&'a str> {
        let mut found = BTreeSet::new();
        let mut open = vec![one];
        while let Some(next) = open.pop() {
            open.extend(self.ours(next).filter(|other| found.insert(other.name())));
        }
        found
    }

    /// Returns the crates that an item of a cell names. Empty for an external crate.
    fn meant(&self, item: &str) -> Vec<&'a str> {
        let last = item.rsplit([' ', '\u{a0}']).next().unwrap_or_default();
        let folder = last.trim_end_matches(['*', '/']);
        let all = item != last || last.ends_with(['*', '/']);
        let is_meant = |one: &&Crate| {
            one.name() == item || all && one.folder.starts_with(&format!("{folder}/"))
        };
        self.crates.iter().filter(is_meant).map(Crate::name).collect()
    }
}

/// Compares the table with the metadata from cargo, and checks the length of ARCHITECTURE.md.
#[must_use]
pub fn check(sources: &[Source], metadata: &Metadata) -> Vec<Finding> {
    let graph = Graph { crates: &metadata.crates };
    let mut faults = check_halves(&graph);
    let Some(source) = find(sources, FILE) else {
        faults.push(Finding::new(FILE, 1, "the file does not exist"));
        return faults;
    };
    let length = source.text.lines().count();
    if length > LENGTH {
        faults.push(Finding::new(FILE, LENGTH + 1, format!("{length} lines, {LENGTH} at most")));
    }
    let Some(rows) = table(&source.text) else {
        faults.push(Finding::new(FILE, 1, "no table `| Crate | May use | Must never use, ... |`"));
        return faults;
    };
    for one in &metadata.crates {
        if !super::code::has_word(&source.text, one.name()) {
            faults.push(Finding::new(FILE, 1, format!("{} is not mentioned", one.name())));
        }
        match rows.iter().find(|row| row.name == one.name()) {
            Some(row) => faults.extend(check_row(&graph, row, one)),
            None => faults.push(Finding::new(FILE, 1, format!("no row for {}", one.name()))),
        }
    }
    for row in rows.iter().filter(|row| graph.crates.iter().all(|one| one.name() != row.name)) {
        faults.push(Finding::new(FILE, row.line, format!("there is no crate {}", row.name)));
    }
    faults
}

fn check_row(graph: &Graph<'_>, row: &Row, one: &Crate) -> Vec<Finding> {
    let mut faults = Vec::new();
    let mut fault = |says: String| faults.push(Finding::new(FILE, row.line, says));
    let mut may = BTreeSet::new();
    for item in &row.may {
        let meant = graph.meant(item);
        if meant.is_empty() && !one.normal.contains(item) {
            fault(format!("the row of {} allows {}, which is not a crate", row.name, item));
        }
        may.extend(meant);
    }
    let direct: BTreeSet<&str> = graph.ours(one).map(Crate::name).collect();
    for name in direct.difference(&may) {
        fault(format!("{} uses {name}, which its row does not allow", row.name));
    }
    let below = graph.below(one);
    for item in &row.never {
        for name in graph.meant(item).into_iter().filter(|name| below.contains(name)) {
            fault(format!("{} uses {name}, which its row forbids", row.name));
        }
        // An item such as `rand` also names all crates that begin with `rand_`.
        let family = format!("{item}_");
        let foreign = |name: &&String| **name == *item || name.starts_with(&family);
        for name in one.normal.iter().filter(foreign) {
            fault(format!("{} uses {name}, which its row forbids", row.name));
        }
    }
    faults
}

/// Checks the rules between `pure` and `edge`. The table cannot override them.
fn check_halves(graph: &Graph<'_>) -> Vec<Finding> {
    let mut faults = Vec::new();
    for one in graph.crates.iter().filter(|one| one.folder.starts_with("pure/")) {
        let manifest = format!("{}/Cargo.toml", one.folder);
        for other in graph.ours(one).filter(|other| !other.folder.starts_with("pure/")) {
            let says = format!("pure/ depends on {}", other.folder);
            faults.push(Finding::new(&manifest, 1, says));
        }
        if ALONE.contains(&one.name()) {
            let foreign = one.normal.iter().filter(|name| graph.by_package(name).is_none());
            let says =
                |name| format!("{} must not have the external dependency {name}", one.name());
            faults.extend(foreign.map(|name| Finding::new(&manifest, 1, says(name))));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parenthesised_notes_in_crate_table_cells_are_ignored() {
        assert!(items("nothing").is_empty());
        assert_eq!(items("`units`, policy (specs, only)"), ["units", "policy"]);
        assert_eq!(items("anything in edge"), ["anything in edge"]);
    }

    #[test]
    fn crate_table_ends_at_first_line_that_is_no_row() {
        let text = format!("| {} |\n|---|---|---|\n| `a` | b | |\n\n| c |", HEAD.join(" | "));
        let row = Row { line: 3, name: "a".into(), may: vec!["b".into()], never: vec![] };
        assert_eq!(table(&text), Some(vec![row]));
        assert_eq!(table("| Crate |\n|---|\n| a |\n"), None);
    }

    fn world(edges: &[(&str, &str)]) -> Metadata {
        let crates = edges.iter().map(|(folder, uses)| Crate {
            package: format!("slackline-{}", folder.rsplit('/').next().unwrap()),
            folder: (*folder).into(),
            normal: uses.split_whitespace().map(str::to_owned).collect(),
            other: vec![],
        });
        Metadata { target: "target".into(), crates: crates.collect(), foreign: vec![] }
    }

    fn says(rows: &str, metadata: &Metadata) -> Vec<String> {
        let text = format!("| {} |\n|---|---|---|\n{rows}", HEAD.join(" | "));
        let faults = check(&[Source::new(FILE, &text)], metadata);
        faults.into_iter().map(|fault| fault.says).collect()
    }

    #[test]
    fn crate_table_that_differs_from_cargo_metadata_is_a_fault() {
        let metadata = world(&[("pure/a", ""), ("pure/b", "slackline-a rand_core")]);
        assert!(says("| a | nothing | |\n| b | a | |\n", &metadata).is_empty());
        assert_eq!(
            says("| a | nothing | |\n| b | nothing | |\n", &metadata),
            ["b uses a, which its row does not allow"]
        );
        assert_eq!(
            says("| a | | |\n| b | a | rand |\n", &metadata),
            ["b uses rand_core, which its row forbids"]
        );
        assert_eq!(says("| a | | |\n", &metadata), ["b is not mentioned", "no row for b"]);
        assert_eq!(says("| a | | |\n| b | a | |\n| c | | |\n", &metadata), ["there is no crate c"]);
    }

    #[test]
    fn forbidden_crate_dependency_is_a_fault_even_if_indirect() {
        let metadata =
            world(&[("edge/c", "slackline-b"), ("edge/b", "slackline-a"), ("edge/a", "")]);
        let rest = "| b | a | |\n| a | | |\n";
        assert!(says(&format!("| c | b | |\n{rest}"), &metadata).is_empty());
        assert_eq!(says(&format!("| c | b | b |\n{rest}"), &metadata).len(), 1);
        assert_eq!(
            says(&format!("| c | b | a |\n{rest}"), &metadata),
            ["c uses a, which its row forbids"]
        );
        assert_eq!(says(&format!("| c | b | anything in edge |\n{rest}"), &metadata).len(), 2);
    }

    #[test]
    fn dependency_of_pure_crate_on_edge_crate_is_a_fault() {
        let metadata = world(&[("pure/a", "slackline-b"), ("edge/b", "")]);
        assert_eq!(says("| a | b | |\n| b | | |\n", &metadata), ["pure/ depends on edge/b"]);
    }
}
