//! Check of the dependencies between modules. The modules of one folder must not form a cycle.
//!
//! A module and its submodules are allowed to depend on each other, because they are one unit in
//! several files. The modules of a folder should be readable one after another, which a cycle
//! prevents. Everything inside a module counts as that module: if `a::x` uses `b` and `b::y` uses
//! `a`, that is a cycle. A re-export belongs to the module that re-exports it. Tests are allowed to
//! use any module.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Source};
use crate::metadata::Metadata;

/// Path of a module: the names from the root of its crate.
type Module = Vec<String>;

/// Dependencies between the modules of one folder. For each module: the modules that it uses, with
/// the file and line of the first use.
type Knows<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (&'a Source, usize)>>;

/// Checks the modules of every crate.
#[must_use]
pub fn check(sources: &[Source], metadata: &Metadata) -> Vec<Finding> {
    let mut faults = Vec::new();
    for one in &metadata.crates {
        let root = format!("{}/src/", one.folder);
        let of_crate: Vec<&Source> =
            sources.iter().filter(|source| source.path.starts_with(&root)).collect();
        let old_style = of_crate.iter().filter(|source| source.path.ends_with("/mod.rs"));
        faults.extend(old_style.map(|source| {
            Finding::new(
                &source.path,
                1,
                "use `name.rs` for a module, and `name/` for its submodules",
            )
        }));
        faults.extend(circles(&of_crate, &root));
    }
    faults
}

/// Returns one cycle for each set of modules that depend on each other.
fn circles(sources: &[&Source], root: &str) -> Vec<Finding> {
    let mut modules: BTreeMap<Module, &Source> =
        sources.iter().filter_map(|source| Some((module(&source.path, root)?, *source))).collect();
    let tests: Vec<Module> =
        modules.iter().flat_map(|(at, source)| test_modules(at, source)).collect();
    modules.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    let mut known: Vec<(&Module, Module, &Source, usize)> = Vec::new();
    for (from, &source) in &modules {
        for (line, path) in paths(source) {
            known.extend(resolved(from, path, &modules).map(|to| (from, to, source, line)));
        }
    }
    let mut folders: BTreeMap<&[String], Knows<'_>> = BTreeMap::new();
    for (from, to, source, line) in &known {
        let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        // A dependency between a module and its own submodule does not count.
        let (Some(one), Some(other)) = (from.get(shared), to.get(shared)) else { continue };
        let knows = folders.entry(&from[..shared]).or_default();
        knows.entry(one).or_default().entry(other).or_insert((source, *line));
    }
    folders.values().flat_map(circles_of_folder).collect()
}

fn circles_of_folder(knows: &Knows<'_>) -> Vec<Finding> {
    let mut told: BTreeSet<&str> = BTreeSet::new();
    let mut faults = Vec::new();
    for (&from, others) in knows {
        for (&to, (source, line)) in others {
            let Some(way) = way(knows, to, from) else { continue };
            if told.contains(from) && told.contains(to) {
                continue;
            }
            told.extend(&way);
            let says = format!("a cycle of modules: {from}, {}", way.join(", "));
            faults.push(Finding::new(&source.path, *line, says));
        }
    }
    faults
}

/// Returns the shortest path of dependencies from one module to another, with both ends.
fn way<'a>(knows: &Knows<'a>, from: &'a str, to: &str) -> Option<Vec<&'a str>> {
    let mut ways = vec![vec![from]];
    let mut seen = BTreeSet::from([from]);
    let mut next = 0;
    while let Some(way) = ways.get(next).cloned() {
        let last = way[way.len() - 1];
        if last == to {
            return Some(way);
        }
        for (&other, _) in knows.get(last).into_iter().flatten() {
            if seen.insert(other) {
                ways.push(way.iter().copied().chain([other]).collect());
            }
        }
        next += 1;
    }
    None
}

/// Returns the module of a file. `None` if the file belongs to another program of the crate.
fn module(path: &str, root: &str) -> Option<Module> {
    let path = path.strip_prefix(root)?.strip_suffix(".rs")?;
    if path.starts_with("bin/") {
        return None;
    }
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let is_root = matches!(path, "lib" | "main");
    Some(if is_root { Vec::new() } else { path.split('/').map(str::to_owned).collect() })
}

/// Returns the modules that a file declares for tests only and that have their own files.
fn test_modules(at: &Module, source: &Source) -> Vec<Module> {
    let Some(code) = &source.code else { return Vec::new() };
    let ranges = code.test_lines();
    let lines =
        code.lines().filter(|(number, _)| ranges.iter().any(|range| range.contains(number)));
    let named = lines.filter_map(|(_, line)| line.strip_prefix("mod ")?.strip_suffix(';'));
    named.map(|name| at.iter().cloned().chain([name.to_owned()]).collect()).collect()
}

/// Returns the module to which a path leads, if the path is used in the module `from`.
fn resolved(
    from: &Module,
    path: Vec<String>,
    modules: &BTreeMap<Module, &Source>,
) -> Option<Module> {
    let mut at = from.clone();
    let mut names = path.into_iter().peekable();
    while let Some(word) = names.next_if(|name| matches!(name.as_str(), "crate" | "self" | "super"))
    {
        match word.as_str() {
            "crate" => at.clear(),
            "super" => drop(at.pop()?),
            _ => {}
        }
    }
    for name in names {
        at.push(name);
        if !modules.contains_key(&at) {
            at.pop();
            break;
        }
    }
    Some(at)
}

/// Returns all paths in a file that begin with `crate`, `self` or `super`, each with its line.
fn paths(source: &Source) -> Vec<(usize, Vec<String>)> {
    let Some(code) = &source.code else { return Vec::new() };
    let tests = code.test_lines();
    let mut text = String::new();
    let mut first = Vec::new();
    for (number, line) in code.lines() {
        if !tests.iter().any(|range| range.contains(&number)) {
            first.push((text.len(), number));
            text.push_str(line);
            text.push('\n');
        }
    }
    let mut found = Vec::new();
    for word in ["crate", "self", "super"] {
        for (at, _) in text.match_indices(&format!("{word}::")) {
            let goes_on = |c: char| is_letter(c) || c == ':';
            if text[..at].chars().next_back().is_some_and(goes_on) {
                continue;
            }
            let line = first[first.partition_point(|&(start, _)| start <= at) - 1].1;
            found.extend(tree(&text[at..]).0.into_iter().map(|path| (line, path)));
        }
    }
    found
}

fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the paths of a use tree such as `a::{b, c::d}`, and the text after the tree.
fn tree(text: &str) -> (Vec<Vec<String>>, &str) {
    let text = text.trim_start();
    let end = text.find(|c| !is_letter(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let begins = || vec![name.to_owned()];
    let Some(rest) = rest.strip_prefix("::") else { return (vec![begins()], rest) };
    let joined = |path: Vec<String>| begins().into_iter().chain(path).collect();
    let Some(mut rest) = rest.trim_start().strip_prefix('{') else {
        let (paths, rest) = tree(rest);
        return (paths.into_iter().map(joined).collect(), rest);
    };
    let mut all = Vec::new();
    loop {
        let (paths, behind) = tree(rest);
        all.extend(paths.into_iter().map(joined));
        // A new local name, as in `as x`, does not belong to the path.
        let Some(end) = behind.find([',', '}']) else { return (all, "") };
        rest = &behind[end + 1..];
        if behind[end..].starts_with('}') || rest.trim_start().starts_with('}') {
            return (all, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Crate;

    fn says(files: &[(&str, &str)]) -> Vec<String> {
        let folder = |name: &str| Crate {
            package: format!("slackline-{name}"),
            folder: name.into(),
            normal: vec![],
            other: vec![],
        };
        let metadata =
            Metadata { target: "target".into(), crates: vec![folder("a")], foreign: vec![] };
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let faults = check(&sources, &metadata);
        faults.into_iter().map(|fault| fault.to_string()).collect()
    }

    #[test]
    fn cycle_between_two_modules_is_a_fault() {
        let one = ("a/src/one.rs", "use std::fmt;\n\nuse crate::{other::Thing as Other, third};\n");
        let circle = says(&[one, ("a/src/other.rs", "fn f(x: super::one::Thing) {}\n")]);
        assert_eq!(circle, ["a/src/one.rs:3: a cycle of modules: one, other, one"]);
        assert!(says(&[one, ("a/src/other.rs", "// super::one is a word here.\n")]).is_empty());
        assert!(says(&[one, ("a/src/other.rs", "use crate::third;\n")]).is_empty());
    }

    #[test]
    fn cycle_of_three_modules_is_reported_once() {
        let files = [
            ("a/src/a.rs", "use crate::b;\n"),
            ("a/src/b.rs", "use crate::{\n    c::{self, D},\n};\n"),
            ("a/src/c.rs", "use super::a::x;\n"),
        ];
        assert_eq!(says(&files), ["a/src/a.rs:1: a cycle of modules: a, b, c, a"]);
    }

    #[test]
    fn nested_module_counts_as_its_parent_module_in_cycles() {
        let inner = ("a/src/one/inner.rs", "use crate::other;\n");
        let files = [inner, ("a/src/one.rs", ""), ("a/src/other.rs", "use crate::one::f;\n")];
        assert_eq!(says(&files), ["a/src/one/inner.rs:1: a cycle of modules: one, other, one"]);
    }

    #[test]
    fn module_and_its_child_modules_may_use_each_other() {
        let files = [
            ("a/src/lib.rs", "use one::f;\n"),
            ("a/src/one.rs", "use self::inner::g;\nuse crate::F;\n"),
            ("a/src/one/inner.rs", "use super::f;\nuse crate::one;\n"),
        ];
        assert!(says(&files).is_empty());
    }

    #[test]
    fn test_module_may_use_any_module() {
        let files = [
            ("a/src/one.rs", "use crate::other;\n"),
            ("a/src/other.rs", "#[cfg(test)]\nmod tests {\n    use crate::one;\n}\n"),
            ("a/src/lib.rs", "mod one;\nmod other;\n#[cfg(test)]\nmod check;\n"),
            ("a/src/check.rs", "use crate::one;\n"),
        ];
        let more = [("a/src/third.rs", "use crate::check;\n")];
        assert!(says(&[&files[..], &more].concat()).is_empty());
    }

    #[test]
    fn module_in_a_file_named_mod_rs_is_a_fault() {
        let files = [("a/src/one/mod.rs", ""), ("a/tests/common/mod.rs", "")];
        let says = says(&files);
        assert_eq!(
            says,
            ["a/src/one/mod.rs:1: use `name.rs` for a module, and `name/` for its submodules"]
        );
    }
}
