//! Check of the wording of the source. It counts violations of the word rules, and these counts
//! must never rise.
//!
//! [`PATH`] contains a count for each rule and each crate folder. A count above the committed count
//! is a fault. A count below the committed count is a fault too, until `cargo xtask words --lower`
//! has lowered the committed count.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;

use super::{Finding, Source, find};

/// Path of the file with the counts, relative to the root of the repository.
pub const PATH: &str = "xtask/words.txt";

/// First words of a doc comment that do not name its subject, such as `Whether`.
const OPENINGS: &[&str] = &[
    "what",
    "whatever",
    "who",
    "whose",
    "whom",
    "whoever",
    "whether",
    "how",
    "where",
    "when",
    "why",
    "which",
    "it",
    "its",
    "somebody",
    "something",
    "some",
    "someone",
    "nobody",
    "nothing",
    "none",
    "everybody",
    "everything",
    "anybody",
    "anything",
];

/// Words that the name of a test must not contain.
const PRONOUNS: &[&str] = &[
    "who",
    "whom",
    "whose",
    "whoever",
    "what",
    "whatever",
    "nobody",
    "somebody",
    "everybody",
    "anybody",
];

/// Type names that do not describe a type.
const EMPTY_NAMES: &[&str] = &[
    "What", "Which", "Who", "Whom", "Whose", "Why", "How", "HowMuch", "By", "Of", "At", "To",
    "Then", "Beside", "Among", "Both", "On", "Out", "Over", "Here", "Nothing", "Where", "When",
    "Seen", "Sought", "Heard", "Found", "Kept", "Held", "Told", "Said", "Given", "Made", "Left",
    "Taken", "Known", "Written", "Read", "Begun", "Gone", "Lost", "Met", "Put", "Run", "Sent",
    "Set", "Shown", "Spent", "Built", "Drawn", "Come",
];

/// Names that look like participles but are nouns.
const NOUNS: &[&str] = &["Seed", "Speed", "Need", "Feed", "Bed", "Embed"];

/// Maximum number of words of a doc comment that counts as saying too little.
const FILLER: usize = 3;

/// A rule about words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A doc comment that begins with one of `OPENINGS`.
    Opening,
    /// A doc comment of three words or fewer.
    Filler,
    /// A test whose name has one of `PRONOUNS`.
    TestName,
    /// A type whose whole name is one of `EMPTY_NAMES`, or a participle.
    TypeName,
    /// A type that has the name of another type in its crate.
    SameName,
    /// An `allow(missing_docs)` on any item.
    Undocumented,
}

impl Rule {
    const ALL: [Rule; 6] = [
        Rule::Opening,
        Rule::Filler,
        Rule::TestName,
        Rule::TypeName,
        Rule::SameName,
        Rule::Undocumented,
    ];
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rule::Opening => "doc-opening",
            Rule::Filler => "doc-filler",
            Rule::TestName => "test-name",
            Rule::TypeName => "type-name",
            Rule::SameName => "same-name",
            Rule::Undocumented => "undocumented",
        })
    }
}

/// Violations by rule, in the order of the files.
pub type Places = BTreeMap<Rule, Vec<Finding>>;

/// Finds the violations of each rule in all Rust files.
#[must_use]
pub fn places(sources: &[Source]) -> Places {
    let mut places = Places::new();
    let mut types: BTreeMap<(String, &str), Vec<Finding>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.code.is_some()) {
        in_file(source, &mut |rule, finding| places.entry(rule).or_default().push(finding));
        for (line, name) in types_of(source) {
            let key = (folder(&source.path), name);
            let says = format!("several types of this crate are called `{name}`");
            types.entry(key).or_default().push(Finding::new(&source.path, line, says));
        }
    }
    let repeated = types.into_values().filter(|findings| findings.len() > 1);
    // One of the types with this name may keep it.
    places.insert(Rule::SameName, repeated.flat_map(|all| all.into_iter().skip(1)).collect());
    places
}

fn in_file(source: &Source, found: &mut dyn FnMut(Rule, Finding)) {
    let mut add = |rule, line, says: String| found(rule, Finding::new(&source.path, line, says));
    for (line, text) in doc_comments(&source.text) {
        let mut words = text.split_whitespace();
        let first = words.next().unwrap_or_default();
        let first = first.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
        if OPENINGS.contains(&first.as_str()) {
            add(Rule::Opening, line, format!("a doc comment begins with `{first}`"));
        }
        if text.split_whitespace().count() <= FILLER {
            add(Rule::Filler, line, format!("a doc comment of {FILLER} words or fewer: {text}"));
        }
    }
    for (line, name) in tests_of(&source.text) {
        if let Some(word) = name.split('_').find(|word| PRONOUNS.contains(word)) {
            add(Rule::TestName, line, format!("the test `{name}` has the word `{word}`"));
        }
    }
    for (line, name) in types_of(source) {
        if is_empty_name(name) {
            add(Rule::TypeName, line, format!("`{name}` does not say what the type is"));
        }
    }
    for (line, text) in source.code.iter().flat_map(|code| code.lines()) {
        if text.contains("allow(missing_docs)") {
            add(Rule::Undocumented, line, "`allow(missing_docs)`".into());
        }
    }
}

/// Returns the doc comments of a file: the first line and the text of each.
fn doc_comments(text: &str) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut mark_before = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let mark = ["///", "//!"].into_iter().find(|mark| line.starts_with(mark));
        let mark = mark.filter(|_| !line.starts_with("////"));
        if let Some(mark) = mark {
            let words = line[mark.len()..].trim();
            match comments.last_mut() {
                Some((_, all)) if mark_before == Some(mark) => {
                    all.push(' ');
                    all.push_str(words);
                }
                _ => comments.push((number, words.to_owned())),
            }
        }
        mark_before = mark;
    }
    comments
}

/// Returns the tests of a file: the line and the name of each.
fn tests_of(text: &str) -> Vec<(usize, &str)> {
    let mut tests = Vec::new();
    let mut is_test = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        if line.starts_with("#[test]") {
            is_test = true;
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            tests.push((number, &rest[..end]));
            is_test = false;
        }
    }
    tests
}

/// Returns the types that a file in the `src` folder of a crate defines: the line and the name of
/// each.
fn types_of(source: &Source) -> Vec<(usize, &str)> {
    let Some(code) = source.code.as_ref().filter(|_| source.path.contains("/src/")) else {
        return Vec::new();
    };
    let tests = code.test_lines();
    let mut types = Vec::new();
    for (number, line) in code.lines() {
        if tests.iter().any(|lines| lines.contains(&number)) {
            continue;
        }
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let is_item = |word: &&str| matches!(*word, "struct" | "enum" | "trait" | "union");
        let before = line.split_whitespace().take_while(|word| !is_item(word));
        let is_definition =
            before.into_iter().all(|word| word.starts_with("pub") || word.starts_with("crate"));
        if let Some(name) = words.find(is_item).and_then(|_| words.next())
            && is_definition
            && name.starts_with(char::is_uppercase)
        {
            types.push((number, name));
        }
    }
    types
}

fn is_empty_name(name: &str) -> bool {
    let is_one_word = !name[1..].contains(char::is_uppercase);
    let is_participle = is_one_word && name.ends_with("ed") && !NOUNS.contains(&name);
    is_participle || EMPTY_NAMES.contains(&name)
}

/// Returns the folder of the crate that contains a file, such as `pure/units` for
/// `pure/units/src/time.rs`.
fn folder(path: &str) -> String {
    let mut parts = path.split('/');
    match (parts.next(), parts.next()) {
        (Some(group @ ("pure" | "edge")), Some(name)) => format!("{group}/{name}"),
        (Some(name), _) => name.to_owned(),
        (None, _) => String::new(),
    }
}

/// Number of violations for each rule and folder.
type Counts = BTreeMap<(Rule, String), usize>;

fn counts(places: &Places) -> Counts {
    let mut counts = Counts::new();
    for (&rule, findings) in places {
        for finding in findings {
            *counts.entry((rule, folder(&finding.file))).or_default() += 1;
        }
    }
    counts
}

/// Returns the text of [`PATH`] for these counts.
fn text_of(counts: &Counts) -> String {
    let mut text = String::from(
        "# Counts of words that a reader must decode, by rule and folder. They may only fall:\n\
         # `cargo xtask words` lists the places, `cargo xtask words --lower` lowers this file.\n",
    );
    for ((rule, folder), count) in counts {
        let _ = writeln!(text, "{rule:<12} {folder:<14} {count}");
    }
    text
}

fn committed(text: &str) -> Counts {
    let read = |line: &str| {
        let mut words = line.split_whitespace();
        let (rule, folder, count) = (words.next()?, words.next()?, words.next()?);
        let rule = Rule::ALL.into_iter().find(|known| known.to_string() == rule)?;
        Some(((rule, folder.to_owned()), count.parse().ok()?))
    };
    text.lines().filter_map(read).collect()
}

/// Checks the counts of violations against the committed counts.
#[must_use]
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(file) = find(sources, PATH) else {
        return vec![Finding::new(PATH, 1, "the file with the counts is missing")];
    };
    let (now, before) = (counts(&places(sources)), committed(&file.text));
    let mut keys: Vec<_> = now.keys().chain(before.keys()).collect();
    keys.sort();
    keys.dedup();
    let differs = |key: &&(Rule, String)| now.get(*key) != before.get(*key);
    let says = |key: &(Rule, String)| {
        let count = |counts: &Counts| counts.get(key).copied().unwrap_or_default();
        let (is, was, (rule, folder)) = (count(&now), count(&before), key);
        let hint = if is > was {
            format!("reword what `cargo xtask words {folder}` lists for {rule}")
        } else {
            "run `cargo xtask words --lower`".to_owned()
        };
        Finding::new(
            PATH,
            1,
            format!("{rule} in {folder}: {is}, the committed count is {was}; {hint}"),
        )
    };
    keys.into_iter().filter(differs).map(says).collect()
}

/// Returns the text of [`PATH`] in which each count that has fallen is lowered.
///
/// # Errors
///
/// If a count has risen. The error contains all such counts.
pub fn lowered(sources: &[Source]) -> Result<String, Vec<Finding>> {
    let now = counts(&places(sources));
    let before = find(sources, PATH).map(|file| committed(&file.text));
    let risen = |before: &Counts, (key, &is): (&(Rule, String), &usize)| {
        let was = before.get(key).copied().unwrap_or_default();
        let says = format!("{} in {}: {is}, the committed count is {was}", key.0, key.1);
        (is > was).then(|| Finding::new(PATH, 1, says))
    };
    let before = before.unwrap_or_else(|| now.clone());
    let risen: Vec<_> = now.iter().filter_map(|count| risen(&before, count)).collect();
    if risen.is_empty() { Ok(text_of(&now)) } else { Err(risen) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules_of(path: &str, text: &str) -> Vec<(Rule, usize)> {
        let places = places(&[Source::new(path, text)]);
        let lines = |(rule, all): (Rule, Vec<Finding>)| {
            all.into_iter().map(move |finding| (rule, finding.line)).collect::<Vec<_>>()
        };
        places.into_iter().flat_map(lines).collect()
    }

    #[test]
    fn doc_comment_beginning_with_a_pronoun_is_a_wording_violation() {
        let text = "//! Whether a thread\n//! sleeps today.\n\n/// `Which` CPU it is on.\n\
                    fn f() {}\n/// Time since the last wake.\nfn g() {}\n// What it is\n";
        assert_eq!(rules_of("pure/a/src/lib.rs", text), [(Rule::Opening, 1), (Rule::Opening, 4)]);
    }

    #[test]
    fn doc_comment_of_three_words_is_a_wording_violation() {
        let text = "/// The host name.\nfn f() {}\n/// The name of the host.\nfn g() {}\n";
        assert_eq!(rules_of("pure/a/src/lib.rs", text), [(Rule::Filler, 1)]);
    }

    #[test]
    fn test_name_that_contains_a_pronoun_is_a_wording_violation() {
        let text = "#[test]\nfn who_is_first_runs() {}\n#[test]\nfn whole_slice_is_used() {}\n\
                    fn what_helps() {}\n";
        assert_eq!(rules_of("pure/a/tests/all/x.rs", text), [(Rule::TestName, 2)]);
    }

    #[test]
    fn type_named_by_participle_or_pronoun_is_a_wording_violation() {
        let text = "pub(crate) struct Wanted;\nenum Seed {}\nstruct SharedState;\ntrait Who {}\n";
        let found = rules_of("pure/a/src/lib.rs", text);
        assert_eq!(found, [(Rule::TypeName, 1), (Rule::TypeName, 4)]);
        assert_eq!(rules_of("pure/a/tests/all/x.rs", text), []);
    }

    #[test]
    fn second_type_of_equal_name_in_crate_is_wording_violation() {
        let one = Source::new("pure/a/src/x.rs", "struct Row;\n");
        let two = Source::new("pure/a/src/y.rs", "struct Row;\n");
        let three = Source::new("pure/b/src/y.rs", "struct Row;\n");
        let places = places(&[one, two, three]);
        assert_eq!(places[&Rule::SameName].len(), 1);
    }

    #[test]
    fn number_of_wording_violations_must_equal_the_committed_number() {
        let file = |count: usize| {
            Source::new(PATH, &format!("# words\ntype-name    pure/a         {count}\n"))
        };
        let source = || Source::new("pure/a/src/x.rs", "struct Wanted;\n");
        assert!(check(&[source(), file(1)]).is_empty());
        let risen = check(&[source(), file(0)]).remove(0).to_string();
        assert!(
            risen.contains("type-name in pure/a: 1, the committed count is 0; reword"),
            "{risen}"
        );
        let fallen = check(&[source(), file(2)]).remove(0).to_string();
        assert!(fallen.contains("1, the committed count is 2; run"), "{fallen}");
        assert!(lowered(&[source(), file(0)]).is_err());
        assert!(lowered(&[source(), file(2)]).expect("it fell").ends_with("pure/a         1\n"));
    }
}
