//! Tests of shell completions and manual pages. They are checked by the programs that read them:
//! bash, man and mandoc.

use std::process::{Command, Stdio};

use crate::common::{Place, Ran};

/// Runs a program and returns its result. Prints a note and returns `None` if the program is not
/// installed.
fn by(mut command: Command) -> Option<Ran> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).output() {
        Ok(output) => Some(Ran::new(&output)),
        Err(_) => {
            println!("skipped: needs {program}");
            None
        }
    }
}

/// Returns the completions that bash offers for the last word of a command line.
fn offered(place: &Place, words: &[&str]) -> Option<Vec<String>> {
    let script = "source ./completions; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                  _slackline slackline \"${COMP_WORDS[COMP_CWORD]}\" \
                  \"${COMP_WORDS[COMP_CWORD-1]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", script, "bash"]).args(words).current_dir(place.path(""));
    Some(by(bash)?.good().lines().map(str::to_owned).collect())
}

#[test]
fn bash_completes_only_commands_and_options_that_are_not_hidden() {
    let place = Place::new();
    place.write("completions", place.run(&["completions", "bash"]).good().as_bytes());
    let mut check = Command::new("bash");
    check.args(["-n", "completions"]).current_dir(place.path(""));
    let Some(checked) = by(check) else { return };
    checked.ended_with(0);
    let offers = |words: &[&str]| offered(&place, words).expect("bash is installed");
    assert_eq!(offers(&["slackline", "reser"]), ["reserve"]);
    assert_eq!(offers(&["slackline", "reserve", "web", "--sl"]), ["--slice"]);
    assert_eq!(offers(&["slackline", "access", "rev"]), ["revoke"]);
    let all = offers(&["slackline", ""]);
    assert!(all.iter().any(|word| word == "sim"), "{all:?}");
    for command in visible_commands(&place) {
        assert!(all.contains(&command), "{command} is not in {all:?}");
    }
    assert!(!all.iter().any(|word| word == "keep" || word == "serve-front"), "{all:?}");
    let loads = offers(&["slackline", "load", ""]);
    assert!(loads.iter().any(|word| word == "spin"), "{loads:?}");
    let hidden = ["steps", "tasks", "caller", "files"];
    assert!(!loads.iter().any(|word| hidden.contains(&word.as_str())), "{loads:?}");
    let options = offers(&["slackline", "load", "spin", "--"]);
    assert!(options.iter().any(|word| word == "--length"), "{options:?}");
    let hidden = ["--who", "--start", "--report-jobs"];
    assert!(!options.iter().any(|word| hidden.contains(&word.as_str())), "{options:?}");
}

/// Returns the commands that `slackline help` lists.
fn visible_commands(place: &Place) -> Vec<String> {
    let help = place.run(&["help"]).good();
    let (_, list) = help.split_once("Commands").expect("a list of commands");
    let (list, _) = list.split_once("\n\n").expect("the end of the list");
    let lines = list.lines().filter_map(|line| line.strip_prefix("  "));
    let names = lines.filter_map(|line| line.split(' ').next());
    let names: Vec<String> = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    assert!(names.len() > 30, "{names:?}");
    names
}

#[test]
fn completions_command_supports_only_bash_zsh_fish_elvish_and_powershell() {
    let place = Place::new();
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let text = place.run(&["completions", shell]).good();
        assert!(text.contains("reserve") && !text.contains("serve-front"), "{shell}");
    }
    assert!(place.run(&["completions", "zsh"]).good().starts_with("#compdef slackline"));
    place.run(&["completions", "cmd"]).ended_with(2);
}

#[test]
fn each_command_has_a_valid_manual_page() {
    let place = Place::new();
    place.run(&["man", "--to", "."]).ended_with(0);
    let pages = place.files().into_iter().filter(|name| name.ends_with(".1"));
    let pages: Vec<String> = pages.collect();
    for page in ["slackline.1", "slackline-reserve.1", "slackline-access-add.1"] {
        assert!(pages.iter().any(|name| name == page), "{pages:?}");
    }
    for command in visible_commands(&place) {
        let page = format!("slackline-{command}.1");
        assert!(pages.contains(&page), "{page} is not in {pages:?}");
    }
    assert!(!pages.iter().any(|name| name.contains("keep") || name.contains("front")));
    assert!(pages.iter().any(|name| name == "slackline-load-spin.1"), "{pages:?}");
    for hidden in ["steps", "tasks", "caller", "files"] {
        let page = format!("slackline-load-{hidden}.1");
        assert!(!pages.contains(&page), "{pages:?}");
        place.run(&["man", &format!("load-{hidden}")]).refused(2).says("there is no command");
    }
    assert!(!pages.contains(&"slackline-access-help.1".to_owned()), "{pages:?}");
    let load = place.run(&["man", "load-spin"]).good();
    assert!(load.contains("length") && !load.contains("jobs"), "{load}");
    let text = place.run(&["man", "reserve"]).good();
    assert_eq!(text.as_bytes(), place.read("slackline-reserve.1"));
    assert!(text.contains(".TH slackline-reserve 1") && text.contains("slice"), "{text}");
    place.run(&["man", "nothing"]).refused(2).says("there is no command `nothing`");
    let mut man = Command::new("man");
    man.args(["-l", "./slackline-reserve.1"]).current_dir(place.path("")).env("MANPAGER", "cat");
    if let Some(shown) = by(man) {
        let shown = shown.good();
        assert!(shown.contains("NAME") && shown.contains("OPTIONS"), "{shown}");
    }
    let mut lint = Command::new("mandoc");
    lint.args(["-T", "lint", "-W", "error"]).args(&pages).current_dir(place.path(""));
    if let Some(lint) = by(lint) {
        lint.ended_with(0);
    }
}
