//! Check of the text of each file: lengths, forbidden words and forbidden code.

use super::code::has_word;
use super::{Finding, Source};

/// Maximum number of characters in a line of Rust.
const WIDTH: usize = 100;

/// Maximum number of lines of a Rust file. Its test modules do not count.
const LENGTH: usize = 600;

/// Files of `pure/` that are allowed to use floating point. All random draws are there.
const WITH_FLOATS: [&str; 2] = ["pure/scenario/src/draw.rs", "pure/fit/src/generate.rs"];

/// Folder in which unsafe code is allowed.
const WITH_UNSAFE: &str = "edge/linux/src/sys";

/// Words that mark unfinished work. Each word is split in two, so that this file does not contain
/// the word.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];

/// Folders that exist only on one developer's computer.
const FOLDERS: [&str; 4] =
    [concat!("/wo", "rk"), concat!("/ro", "ot"), concat!("/ho", "me"), concat!("/fa", "rm")];

/// Words in the names of hosts that serve packages. The repository must not name such a host,
/// because each computer has its own configuration.
const HOSTS: [&str; 9] = [
    "artifactory",
    "cache",
    "crates",
    "index",
    "mirror",
    "nexus",
    "proxy",
    "pypi",
    concat!("python", "hosted"),
];

/// Names of settings that choose a host that serves packages.
const CHOOSING: [&str; 3] =
    [concat!("--index", "-url"), concat!("--extra-index", "-url"), concat!("replace", "-with")];

/// Checks the text of one file.
#[must_use]
pub fn check(source: &Source) -> Vec<Finding> {
    if source.is_made() {
        return sources_of_packages(source);
    }
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(source.text.lines()) {
        let mut fault = |says: String| faults.push(Finding::new(&source.path, number, says));
        if line.contains('\t') {
            fault("a tab".into());
        }
        if line.ends_with([' ', '\t', '\r']) {
            fault("trailing whitespace".into());
        }
        for word in UNFINISHED.into_iter().filter(|word| has_word(line, word)) {
            fault(format!("{word} marks unfinished work: finish it, or open an issue"));
        }
        for folder in FOLDERS.into_iter().filter(|folder| has_folder(line, folder)) {
            fault(format!("{folder} exists on one machine only"));
        }
        for host in hosts(line).filter(|host| HOSTS.iter().any(|word| host.contains(word))) {
            fault(format!("{host} is the package server of one machine"));
        }
        for setting in CHOOSING.into_iter().filter(|setting| line.contains(setting)) {
            fault(format!(
                "{setting} chooses a package server, which each machine must configure itself"
            ));
        }
    }
    if is_pure(source) && source.path.ends_with("Cargo.toml") {
        let lines = (1..).zip(source.text.lines()).filter(|(_, line)| line.starts_with("serde"));
        let says = "serde must not be used in pure/";
        let fault = |(number, _)| Finding::new(&source.path, number, says);
        faults.extend(lines.map(fault));
    }
    faults.extend(check_code(source));
    faults
}

fn is_pure(source: &Source) -> bool {
    source.path.starts_with("pure/")
}

fn check_code(source: &Source) -> Vec<Finding> {
    let Some(code) = &source.code else { return Vec::new() };
    let mut faults = Vec::new();
    let mut fault = |line, says: &str| faults.push(Finding::new(&source.path, line, says));
    for (number, line) in (1..).zip(source.text.lines()) {
        let width = line.chars().count();
        if width > WIDTH {
            fault(number, &format!("{width} columns, {WIDTH} at most"));
        }
    }
    for (number, line) in code.lines() {
        for name in ["todo!", "unimplemented!", "dbg!"] {
            if has_word(line, name) {
                fault(number, &format!("{name} must not be committed"));
            }
        }
        if line.replace(' ', "").contains("#[ignore") {
            fault(number, "an ignored test: let it assert the present behaviour instead");
        }
        if has_word(line, "unsafe") && !source.path.starts_with(WITH_UNSAFE) {
            fault(number, &format!("unsafe code is allowed only in {WITH_UNSAFE}"));
        }
        if is_pure(source) {
            for word in pure_bans(&source.path).filter(|word| has_word(line, word)) {
                fault(number, &format!("{word} must not be used in pure/"));
            }
        }
    }
    let tests: usize = code.test_lines().iter().map(ExactSizeIterator::len).sum();
    let length = source.text.lines().count() - tests;
    if length > LENGTH && !is_test(&source.path) {
        fault(1, &format!("{length} lines without the tests, {LENGTH} at most"));
    }
    faults
}

fn pure_bans(path: &str) -> impl Iterator<Item = &'static str> {
    let floats: &[&str] = if WITH_FLOATS.contains(&path) { &[] } else { &["f32", "f64"] };
    ["HashMap", "HashSet", "serde", "serde_json"].into_iter().chain(floats.iter().copied())
}

/// Returns true if the file at a path contains only tests.
fn is_test(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "benches")
}

/// Returns true if a path on this line begins with `folder`. False if `folder` is only a later part
/// of a path.
fn has_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + folder.len()..].chars().next();
        let goes_on = |c: char| c.is_alphanumeric() || "_-.".contains(c);
        // The folder is a later part of a path in `src/…`, `~/…`, `$X/…`, `{}/…` and `*/…`.
        let inside = |c: char| goes_on(c) || "/~})*>".contains(c);
        !before.is_some_and(inside) && !after.is_some_and(goes_on)
    })
}

/// Returns the hosts of all URLs on a line.
fn hosts(line: &str) -> impl Iterator<Item = &str> {
    line.split("://").skip(1).map(|rest| {
        let end = rest.find(|c: char| !(c.is_alphanumeric() || ".-".contains(c)));
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// Checks the source of each package in Cargo.lock. The source must be the public registry, even if
/// a computer uses a mirror.
fn sources_of_packages(lock: &Source) -> Vec<Finding> {
    const USUAL: &str = "\"registry+https://github.com/rust-lang/crates.io-index\"";
    let lines = (1..).zip(lock.text.lines());
    let from = lines.filter_map(|(number, line)| Some((number, line.strip_prefix("source = ")?)));
    let unusual = from.filter(|(_, from)| *from != USUAL);
    unusual
        .map(|(number, _)| Finding::new(&lock.path, number, "a source other than crates.io"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text)).into_iter().map(|fault| fault.to_string()).collect()
    }

    #[test]
    fn tab_or_trailing_whitespace_or_todo_marker_is_a_fault() {
        assert_eq!(says("a.md", "a\tb\n"), ["a.md:1: a tab"]);
        assert_eq!(says("a.toml", "a\nb \n"), ["a.toml:2: trailing whitespace"]);
        assert_eq!(says("a.rs", concat!("// TO", "DO x\n")).len(), 1);
        assert!(says("a.md", "mktemp /tmp/x.XXXXXX\n").is_empty());
    }

    #[test]
    fn absolute_path_existing_only_on_one_computer_is_a_fault() {
        assert_eq!(says("a.md", concat!("see /ho", "me/me/x\n")).len(), 1);
        assert_eq!(says("a.md", concat!("`/ro", "ot`\n")).len(), 1);
        assert!(says("a.md", "src/work.rs, /workload, ~/work and $X/root\n").is_empty());
    }

    #[test]
    fn host_name_of_a_package_registry_is_a_fault() {
        assert_eq!(says("a.txt", concat!("x http://mir", "ror.example/y\n")).len(), 1);
        assert!(says("a.txt", "https://docs.rs/index and https://sh.rustup.rs\n").is_empty());
        let lock = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n";
        assert!(says("Cargo.lock", lock).is_empty());
        assert_eq!(says("Cargo.lock", "source = \"git+x\"\n").len(), 1);
    }

    #[test]
    fn banned_word_in_comment_or_string_is_not_a_fault() {
        assert!(says("a.rs", "let a = \"dbg!(unsafe)\"; // unsafe todo!()\n").is_empty());
        assert_eq!(says("a.rs", "fn a() {\n    todo!()\n}\n").len(), 1);
        assert_eq!(says("a.rs", "#[ignore = \"slow\"]\nfn a() {}\n").len(), 1);
        assert_eq!(says("a.rs", "unsafe { b() }\n").len(), 1);
        assert!(says("edge/linux/src/sys/perf.rs", "unsafe { b() }\n").is_empty());
    }

    #[test]
    fn hash_maps_floats_or_serde_in_pure_crate_are_faults() {
        assert_eq!(says("pure/a/src/b.rs", "use x::HashMap;\nlet a: f64 = b;\n").len(), 2);
        assert!(says("edge/a/src/b.rs", "use x::HashMap;\nlet a: f64 = b;\n").is_empty());
        assert!(says(WITH_FLOATS[0], "let a: f64 = b;\n").is_empty());
        assert_eq!(says("pure/a/Cargo.toml", "serde.workspace = true\n").len(), 1);
    }

    #[test]
    fn length_of_a_file_is_counted_without_its_test_modules() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// x\n".repeat(500));
        assert!(says("a.rs", &("// x\n".repeat(600) + &tests)).is_empty());
        assert_eq!(says("a.rs", &("// x\n".repeat(601) + &tests)).len(), 1);
        assert!(says("edge/a/tests/b.rs", &"// x\n".repeat(900)).is_empty());
    }

    #[test]
    fn line_width_is_counted_in_characters_not_bytes() {
        assert!(says("a.rs", &"é".repeat(100)).is_empty());
        assert_eq!(says("a.rs", &"é".repeat(101)).len(), 1);
    }
}
