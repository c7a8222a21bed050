//! Check of the links between documents. Each link must lead to a file of the repository, and to a
//! heading in that file if the link names one.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Finding, Source};

/// Checks the links of every Markdown file.
#[must_use]
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let paths: BTreeSet<&str> = sources.iter().map(|source| source.path.as_str()).collect();
    let mut faults = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".md")) {
        for (number, target) in links(&source.text) {
            if let Some(says) = broken(&source.path, &target, &paths, sources) {
                faults.push(Finding::new(&source.path, number, says));
            }
        }
    }
    faults
}

/// Returns the targets of the links in a text, each with its line number. Links in code blocks are
/// ignored.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        in_code ^= line.trim_start().starts_with("```");
        // The line is split at backticks, so every second part is code.
        let prose = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for part in prose.split("](").skip(1).filter(|_| !in_code) {
            let target = part.split([')', ' ']).next().unwrap_or_default();
            found.push((number, target.to_owned()));
        }
    }
    found
}

fn broken(from: &str, target: &str, paths: &BTreeSet<&str>, sources: &[Source]) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { from.to_owned() } else { resolved(from, path) };
    let is_folder = || paths.iter().any(|it| it.starts_with(&format!("{path}/")));
    // Pictures are not text, so they are not among the source files.
    let is_picture = || path.ends_with(".png") && Path::new(&path).is_file();
    if !paths.contains(path.as_str()) && !is_folder() && !is_picture() {
        return Some(format!("links to {target}, but {path} does not exist"));
    }
    let text = sources.iter().find(|source| source.path == path).map(|source| &source.text);
    let has_heading = |text: &String| headings(text).contains(heading);
    (!heading.is_empty() && !text.is_some_and(has_heading))
        .then(|| format!("links to {target}, but {path} has no such heading"))
}

/// Converts a path that is relative to the folder of a file to a path from the root.
fn resolved(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the anchors by which a text's headings can be linked, as code hosts generate them.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = text.lines().filter(|line| line.starts_with('#'));
    let names = titles.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(text: &str) -> Vec<String> {
        let other = Source::new("docs/other.md", "# The `edf` policy: why?\n");
        let sources = [Source::new("docs/a/one.md", text), other];
        check(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn link_to_an_existing_file_folder_or_heading_is_accepted() {
        assert!(says("[x](../other.md) and [y](../../docs) and [z](https://a.b/c)").is_empty());
        assert!(says("[x](../other.md#the-edf-policy-why)\n# Here\n[y](#here)").is_empty());
    }

    #[test]
    fn link_to_a_missing_file_or_heading_is_a_fault() {
        let expected = "docs/a/one.md:2: links to gone.md, but docs/a/gone.md does not exist";
        assert_eq!(says("\n[x](gone.md)"), [expected]);
        assert_eq!(says("[x](../other.md#no)").len(), 1);
    }

    #[test]
    fn link_inside_code_is_not_checked() {
        assert!(says("`[x](gone.md)` and\n```\n[y](gone.md)\n```\n").is_empty());
    }
}
