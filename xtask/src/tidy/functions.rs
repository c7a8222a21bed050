//! Check of the lengths of functions. A function with more than `MOST` lines must be listed in a
//! file, and must not grow.

use std::collections::BTreeMap;

use super::code::{Code, has_word};
use super::{Finding, Source, find};

/// Maximum number of lines of a function, from its signature to its closing brace.
const MOST: usize = 70;

/// Path of the list of functions that were longer when the rule was introduced. Each line has path,
/// name and number of lines.
const LIST: &str = "xtask/ratchet.txt";

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// Line of the function's signature, counted from 1.
    pub line: usize,
    /// Number of lines of the function.
    pub lines: usize,
}

/// Returns every function that has a body, including functions inside other functions.
#[must_use]
pub fn functions(code: &Code) -> Vec<Function> {
    let mut found = Vec::new();
    // Functions whose end is not reached yet, each with the depth of braces outside of it.
    let mut open: Vec<(Function, usize)> = Vec::new();
    // Signature of a function, until its body begins or a semicolon shows that it has no body.
    let mut signature: Option<Function> = None;
    let (mut braces, mut brackets) = (0_usize, 0_usize);
    for (number, line) in code.lines() {
        for (at, character) in line.char_indices() {
            match character {
                'f' if begins_function(line, at) => {
                    let name = name_of(&line[at + 2..]);
                    signature = Some(Function { name, line: number, lines: 0 });
                    brackets = 0;
                }
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets = brackets.saturating_sub(1),
                // A semicolon in an array type such as `[u8; 4]` does not count.
                ';' if brackets == 0 => signature = None,
                '{' => {
                    open.extend(signature.take().map(|function| (function, braces)));
                    braces += 1;
                }
                '}' => {
                    braces = braces.saturating_sub(1);
                    if let Some((mut function, _)) = open.pop_if(|(_, depth)| *depth == braces) {
                        function.lines = number - function.line + 1;
                        found.push(function);
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// Returns true if the word at `at` is the keyword `fn` of a function definition. False for a
/// longer word and for the type of a function pointer.
fn begins_function(line: &str, at: usize) -> bool {
    let before = line[..at].chars().next_back();
    line[at..].starts_with("fn ")
        && has_word(&line[at..], "fn")
        && !before.is_some_and(|before| before.is_alphanumeric() || before == '_')
}

fn name_of(rest: &str) -> String {
    let name = rest.trim_start().chars();
    name.take_while(|character| character.is_alphanumeric() || *character == '_').collect()
}

/// Checks every function against `MOST` and against the list of longer functions.
#[must_use]
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut faults = Vec::new();
    let mut listed = match find(sources, LIST).map(|list| read_list(&list.text)) {
        Some(Ok(listed)) => listed,
        Some(Err(line)) => return vec![Finding::new(LIST, line, "not `path name lines`")],
        None => BTreeMap::new(),
    };
    for source in sources {
        for function in source.code.iter().flat_map(functions) {
            let Function { name, line, lines } = function;
            let key = (source.path.clone(), name);
            let entry = if lines > MOST { listed.remove(&key) } else { None };
            let fault = match entry {
                None if lines > MOST => format!("{} has {lines} lines, {MOST} at most", key.1),
                Some((_, most)) if lines > most => {
                    format!("{} has {lines} lines; it had {most} and may not grow", key.1)
                }
                Some((at, most)) if lines < most => {
                    let says = format!(
                        "{} has only {lines} lines now: lower the number in this list",
                        key.1
                    );
                    faults.push(Finding::new(LIST, at, says));
                    continue;
                }
                _ => continue,
            };
            faults.push(Finding::new(&source.path, line, fault));
        }
    }
    for ((path, name), (line, _)) in listed {
        let says = format!("{name} in {path} is gone or short enough: remove this line");
        faults.push(Finding::new(LIST, line, says));
    }
    faults
}

/// Listed functions. The key is path and name, and the value is the line of the list and the
/// permitted length of the function.
type List = BTreeMap<(String, String), (usize, usize)>;

fn read_list(text: &str) -> Result<List, usize> {
    let lines = (1..).zip(text.lines());
    let entries = lines.filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty());
    let entry = |(number, line): (usize, &str)| {
        let mut words = line.split_whitespace();
        let (path, name) = (words.next()?.to_owned(), words.next()?.to_owned());
        let lines = words.next()?.parse().ok()?;
        words.next().is_none().then_some(((path, name), (number, lines)))
    };
    entries.map(|(number, line)| entry((number, line)).ok_or(number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(source: &str) -> Vec<(String, usize)> {
        let found = functions(&Code::of(source));
        found.into_iter().map(|function| (function.name, function.lines)).collect()
    }

    #[test]
    fn function_length_is_counted_from_signature_to_last_brace() {
        assert_eq!(lengths("fn a() {}"), [("a".into(), 1)]);
        assert_eq!(lengths("fn a(\n    x: [u8; 4],\n) {\n    // }\n}\n"), [("a".into(), 5)]);
    }

    #[test]
    fn function_length_check_ignores_functions_without_a_body() {
        assert_eq!(
            lengths("trait T {\n    fn a(&self) -> u8;\n    fn b() {\n    }\n}"),
            [("b".into(), 2)]
        );
        assert!(lengths("struct S {\n    f: fn(u8) -> u8,\n}\n").is_empty());
    }

    #[test]
    fn nested_function_counts_separately_and_within_the_outer_function() {
        let inner = ("b".to_owned(), 2);
        assert_eq!(lengths("fn a() {\n    fn b() {\n    }\n}\n"), [inner, ("a".into(), 4)]);
    }

    fn long(lines: usize) -> Source {
        Source::new("a.rs", &format!("fn a() {{\n{}}}\n", "x;\n".repeat(lines - 2)))
    }

    fn list(lines: usize) -> Source {
        Source::new(LIST, &format!("# long ones\na.rs a {lines}\n"))
    }

    #[test]
    fn function_above_70_lines_must_be_listed_and_never_grow() {
        assert!(check(&[long(70)]).is_empty());
        assert_eq!(check(&[long(71)])[0].line, 1);
        assert!(check(&[long(80), list(80)]).is_empty());
        assert_eq!(check(&[long(81), list(80)])[0].file, "a.rs");
    }

    #[test]
    fn function_shorter_than_its_listed_length_is_a_fault() {
        assert_eq!(check(&[long(79), list(80)])[0].file, LIST);
        assert_eq!(check(&[long(60), list(80)])[0].file, LIST);
    }
}
