//! Tests that no input is overwritten, even if it has several names, and that no two outputs go to
//! the same file.

use std::fs::hard_link;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use crate::common::{GOOD, Place, Ran};

/// Returns a folder with a scenario and a recording, each of which has several names.
fn place() -> Place {
    let replay =
        GOOD.replacen("{ kind = \"spin\" }", "{ kind = \"replay\", file = \"it.csv\" }", 1);
    let place = Place::with(&replay);
    place.write("it.csv", b"1000000,1000000\n");
    std::fs::create_dir(place.path("folder")).expect("a folder");
    for file in ["it.toml", "it.csv"] {
        symlink(place.path(file), place.path(&format!("link-{file}"))).expect("a link");
        hard_link(place.path(file), place.path(&format!("hard-{file}"))).expect("a name");
    }
    symlink(".", place.path("here")).expect("a link");
    place
}

/// Asserts that a command is refused with the text `says`, and that no file has changed.
#[track_caller]
fn loses_nothing(place: &Place, arguments: &[&str], says: &str) {
    let all = |place: &Place| {
        let files = place.files().into_iter().filter(|name| place.path(name).is_file());
        files.map(|name| (name.clone(), place.read(&name))).collect::<Vec<_>>()
    };
    let before = all(place);
    place.run(arguments).refused(2).says(says);
    assert!(all(place) == before, "{arguments:?} changed a file");
}

#[test]
fn input_file_of_command_is_never_overwritten_by_output() {
    let place = place();
    let names = |file: &str| {
        let ways = ["", "./", "folder/../", "here/", "link-", "hard-"];
        ways.map(|way| format!("{way}{file}")).to_vec()
    };
    for output in [names("it.toml"), names("it.csv")].concat() {
        for command in ["sim", "run"] {
            for option in ["--save", "--perfetto"] {
                let arguments = [command, "it.toml", option, &output];
                loses_nothing(&place, &arguments, &format!("{option} and "));
            }
        }
    }
    for output in [names("it.toml"), names("it.csv")].concat() {
        for command in ["compare", "sweep"] {
            for option in ["--csv", "--report"] {
                let other = if option == "--csv" { "--report" } else { "--csv" };
                let arguments = [command, "it.toml", option, &output, other, "made"];
                loses_nothing(&place, &arguments, &format!("{option} and "));
            }
        }
    }
    place.run(&["sim", "it.toml", "--save", "it.trace"]).ended_with(1);
    loses_nothing(&place, &["show", "./it.trace", "--perfetto", "it.trace"], "the trace");
}

#[test]
fn two_output_options_that_name_one_file_are_refused() {
    let place = place();
    symlink("made", place.path("link-made")).expect("a link");
    place.write("old", b"old");
    for (one, other) in [("made", "./made"), ("folder/made", "here/folder/made"), ("old", "./old")]
    {
        let two = ["sim", "it.toml", "--save", one, "--perfetto", other];
        loses_nothing(&place, &two, "--save and --perfetto are the same file");
        let two = ["alert", "--quick", "--report", one, "--csv", other];
        loses_nothing(&place, &two, "--report and --csv are the same file");
    }
    let out = std::fs::File::create(place.path("out")).expect("a file");
    let mut command = place.command(&["sim", "it.toml", "--save", "out"]);
    let ran = Ran::new(&command.stdout(out).output().expect("the program can be started"));
    ran.refused(2).says("standard output and --save are the same file");
    place.run(&["sim", "it.toml", "--save", "/dev/null", "--perfetto", "/dev/null"]).ended_with(1);
}

/// Other programs write to standard output if the file name is `-`. This program writes its tables
/// to standard output, so it refuses `-`.
#[test]
fn hyphen_as_the_name_of_an_output_file_is_refused() {
    let place = Place::with(GOOD);
    for option in ["--save", "--perfetto", "--csv"] {
        let says = format!("cannot write {option} to `-`");
        loses_nothing(&place, &["sim", "it.toml", option, "-"], &says);
    }
    place.run(&["sim", "it.toml", "--save", "./-"]).good();
    assert!(place.path("-").is_file());
}

#[test]
fn paper_report_never_overwrites_a_file_of_the_paper() {
    let place = Place::new();
    let papers = concat!(env!("CARGO_MANIFEST_DIR"), "/../../papers");
    symlink(papers, place.path("papers")).expect("a link");
    let out = "papers/cherkasova-2007/published.toml";
    let before = place.read(out);
    let ran = place.run(&["paper", "report", "cherkasova-2007", "--out", out]).refused(2);
    ran.says("--out and a file of the paper are the same file");
    assert!(place.read(out) == before);
}

#[test]
fn output_file_in_a_missing_folder_is_refused() {
    let place = place();
    for arguments in [
        &["sim", "it.toml", "--save", "nowhere/made"][..],
        &["run", "it.toml", "--perfetto", "nowhere/made"],
        &["sim", "it.toml", "--save", "it.csv/made"],
        &["alert", "--quick", "--csv", "nowhere/made"],
    ] {
        let ran = place.run(arguments).refused(2);
        ran.says("cannot write ");
    }
    place.run(&["sim", "it.toml", "--save", "folder"]).refused(2).says("name a file, not a folder");
}

#[test]
fn scenario_and_trace_may_be_read_from_standard_input() {
    let place = Place::with(GOOD);
    let from = |file: &str, arguments: &[&str]| {
        let file = std::fs::File::open(place.path(file)).expect("a file");
        let mut command = place.command(arguments);
        Ran::new(&command.stdin(Stdio::from(file)).output().expect("the program can be started"))
    };
    let table = place.run(&["sim", "it.toml", "--save", "it.trace"]).good();
    assert_eq!(from("it.toml", &["sim", "-"]).good(), table);
    let shown = place.run(&["show", "it.trace"]).good();
    assert_eq!(from("it.trace", &["show", "-"]).good(), shown);
    let ran = from("it.toml", &["sim", "-", "--save", "it.toml"]).refused(2);
    ran.says("--save and the scenario are the same file");
    place.write("bad.toml", GOOD.replacen("length", "lenght", 1).as_bytes());
    from("bad.toml", &["check", "-"]).refused(2).says("error: /dev/stdin:2:1: ");
}

#[test]
fn input_file_above_the_size_limit_is_refused() {
    let place = Place::new();
    place
        .run(&["check", "/dev/zero"])
        .refused(2)
        .says("cannot read /dev/zero: it has more than 268435456 bytes");
    place.run(&["show", "/dev/zero"]).refused(2).says("this is not a Slackline trace");
}
