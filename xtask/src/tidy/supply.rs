//! Check of the external packages against deny.toml: their licences, the bans, and the stated
//! purposes.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use toml::Table;

use super::licence::is_met;
use super::{Finding, Source, find};
use crate::metadata::Metadata;

/// Path of the file with the rules for external packages.
const FILE: &str = "deny.toml";

/// Line above the list of direct dependencies.
const LIST: &str = "# What each direct dependency is for:";

/// Compares all external packages with deny.toml.
///
/// # Errors
///
/// If deny.toml does not exist, or if it cannot be parsed.
pub fn check(sources: &[Source], metadata: &Metadata) -> Result<Vec<Finding>> {
    let source = find(sources, FILE).with_context(|| format!("there is no {FILE}"))?;
    let table: Table = source.text.parse().with_context(|| format!("{FILE} is no TOML"))?;
    let allowed = strings(&table, "licenses", "allow", None);
    let banned = strings(&table, "bans", "deny", Some("crate"));
    let mut faults = Vec::new();
    for package in &metadata.foreign {
        let (name, version) = (&package.name, &package.version);
        let mut fault = |says: String| faults.push(Finding::new("Cargo.lock", 1, says));
        if banned.contains(name) {
            fault(format!("{name} {version} is banned, see {FILE}"));
        }
        let license = package.license.as_deref().unwrap_or_default();
        match is_met(license, &allowed) {
            Some(true) => {}
            Some(false) => fault(format!(
                "{name} {version} has the licence {license}, which {FILE} does not allow"
            )),
            None => fault(format!("{name} {version}: not a licence: `{license}`")),
        }
    }
    faults.extend(check_reasons(source, metadata));
    Ok(faults)
}

/// Returns the strings of a list in deny.toml. If `key` is given, the list contains tables, and the
/// value of that key in each table is returned.
fn strings(table: &Table, section: &str, list: &str, key: Option<&str>) -> Vec<String> {
    let list = table.get(section).and_then(|section| section.get(list)?.as_array());
    let text = |value: &toml::Value| {
        let value = key.map_or(Some(value), |key| value.get(key))?;
        value.as_str().map(str::to_owned)
    };
    list.into_iter().flatten().filter_map(text).collect()
}

/// Checks that each direct dependency has a line with its purpose, and that each line with a
/// purpose belongs to a direct dependency.
fn check_reasons(source: &Source, metadata: &Metadata) -> Vec<Finding> {
    let ours = |name: &&String| metadata.crates.iter().any(|one| one.package == **name);
    let all = metadata.crates.iter().flat_map(|one| one.normal.iter().chain(&one.other));
    let mut direct: BTreeSet<&str> = all.filter(|name| !ours(name)).map(String::as_str).collect();
    let lines = (1..).zip(source.text.lines()).skip_while(|(_, line)| *line != LIST).skip(1);
    let mut faults = Vec::new();
    for (number, line) in lines.take_while(|(_, line)| line.starts_with('#')) {
        let entry = line.trim_start_matches(['#', ' ']).split_once(": ");
        let fault = match entry {
            Some((name, reason)) if !reason.trim().is_empty() => {
                (!direct.remove(name)).then(|| format!("no crate depends on {name}"))
            }
            _ => Some("not `#   name: what for`".to_owned()),
        };
        faults.extend(fault.map(|says| Finding::new(FILE, number, says)));
    }
    let missing = |name| Finding::new(FILE, 1, format!("the purpose of {name} is missing"));
    faults.extend(direct.into_iter().map(missing));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Crate, Foreign};

    const TEXT: &str = "\
# What each direct dependency is for:
#   a: x
#   b: x

[licenses]
allow = [\"MIT\"]
[bans]
deny = [{ crate = \"bad\", reason = \"x\" }]
";

    fn says(direct: &str, license: &str) -> Vec<String> {
        let names = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let ours =
            Crate { package: "x".into(), folder: "x".into(), normal: names(direct), other: vec![] };
        let foreign = names(direct).into_iter().map(|name| Foreign {
            name,
            version: "1".into(),
            license: Some(license.into()),
        });
        let foreign: Vec<Foreign> = foreign.collect();
        let metadata = Metadata { target: "x".into(), crates: vec![ours], foreign };
        let faults = check(&[Source::new(FILE, TEXT)], &metadata).expect("the file is valid");
        faults.into_iter().map(|fault| fault.to_string()).collect()
    }

    #[test]
    fn purpose_must_be_stated_for_exactly_the_direct_dependencies() {
        assert!(says("a b", "MIT").is_empty());
        assert_eq!(says("a", "MIT"), ["deny.toml:3: no crate depends on b"]);
        assert_eq!(says("a b c", "MIT"), ["deny.toml:1: the purpose of c is missing"]);
    }

    #[test]
    fn dependency_with_forbidden_licence_or_banned_name_is_a_fault() {
        assert_eq!(says("a b", "GPL-3.0").len(), 2);
        assert!(
            says("a b bad", "MIT").contains(&"Cargo.lock:1: bad 1 is banned, see deny.toml".into())
        );
    }
}
