//! Tests of `slackline paper`, with the small example paper from the tests of the crate `papers`.

use std::fs;
use std::path::Path;

use crate::common::{GOOD, Place};

/// Returns a folder with a copy of the small paper.
fn place() -> Place {
    let place = Place::with(GOOD);
    let folder = place.path("papers/tiny");
    fs::create_dir_all(&folder).expect("a folder");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../papers/tests/tiny");
    for entry in fs::read_dir(tiny).expect("the tiny paper") {
        let path = entry.expect("a file of it").path();
        fs::copy(&path, folder.join(path.file_name().expect("a name"))).expect("a copy");
    }
    place
}

#[test]
fn paper_command_can_list_run_and_report_an_experiment() {
    let place = place();
    let list = place.run(&["paper", "list"]).good();
    assert!(list.contains("tiny: A paper that nobody wrote"), "{list}");
    assert!(list.contains("not run yet"), "{list}");

    let out = place.run(&["paper", "run", "tiny", "table-1"]).good();
    for word in ["fig-1: the share of a", "reproduced", "same shape", "differs", "fig-1.csv"] {
        assert!(out.contains(word), "`{word}` is missing:\n{out}");
    }
    let results = fs::read_to_string(place.path("papers/tiny/results/fig-1.csv"));
    let results = results.expect("the results file");
    let first = results.lines().next().expect("a first line");
    assert!(first.starts_with("# commit "), "{first}");
    assert!(first.contains("; slackline paper run tiny table-1; seeds 1 to 3; 20"), "{first}");

    let list = place.run(&["paper", "list"]).good();
    assert!(list.contains("3 reproduced, 2 same shape, 3 differs; 1 nothing to compare"), "{list}");

    place.run(&["paper", "report", "tiny", "--out", "tiny.html"]).good();
    let page = fs::read_to_string(place.path("tiny.html")).expect("a page");
    assert!(page.contains("the wrong way round: differs"));
}

#[test]
fn paper_run_command_with_option_no_results_writes_no_file() {
    let place = place();
    place.run(&["paper", "run", "tiny", "--no-results", "--seeds", "1"]).good();
    assert!(!place.path("papers/tiny/results").exists());
    let ran = place.run(&["paper", "report", "tiny", "--out", "tiny.html"]).refused(2);
    ran.says("error: tiny has no results yet").says("make results with `slackline paper run");
}

#[test]
fn quick_option_causes_note_if_experiment_has_no_quick_settings() {
    let place = place();
    let quick = ["paper", "run", "tiny", "--no-results", "--seeds", "1", "--quick"];
    let says =
        "note: --quick has no effect on fig-1: the experiment has no quick form; use --seeds 1";
    place.run(&quick).ended_with(0).says(says);
    let file = place.path("papers/tiny/fig-1.toml");
    let text = fs::read_to_string(&file).expect("the experiment");
    fs::write(&file, format!("{text}\n[quick]\nseeds = 1\n"))
        .expect("the experiment can be changed");
    let ran = place.run(&quick).ended_with(0);
    assert!(!ran.err.contains("--quick"), "{}", ran.err);
}

#[test]
fn fault_in_paper_file_is_refused_with_position_and_hint() {
    for (file, good, fault, says, hint) in [
        (
            "paper.toml",
            "\"fig-1\"",
            "\"fig-2\"",
            "paper.toml:3:16: there is no experiment `fig-2`",
            "did you mean `fig-1`?",
        ),
        (
            "fig-1.toml",
            "delivered of a",
            "deliverd of a",
            "fig-1.toml:36:10: there is no metric `deliverd of a`",
            "did you mean `delivered of a`?",
        ),
        (
            "published.toml",
            "give  = \"0.5\"\n",
            "",
            "published.toml:5:9: a number has no `give`",
            "write give = \"0.5\"",
        ),
    ] {
        let place = place();
        let path = place.path(&format!("papers/tiny/{file}"));
        let text = fs::read_to_string(&path).expect("a file of the paper");
        assert!(text.contains(good), "{good} is not in {file}");
        fs::write(&path, text.replacen(good, fault, 1)).expect("a file that can be changed");
        let ran = place.run(&["paper", "run", "tiny", "--no-results", "--seeds", "1"]).refused(2);
        ran.says(says).says(&format!("hint:  {hint}"));
    }
}

#[test]
fn error_about_a_missing_paper_or_experiment_suggests_known_names() {
    let place = place();
    let ran = place.run(&["paper", "run", "tyni"]).refused(2);
    ran.says("error: there is no paper `tyni`").says("did you mean `tiny`?");
    let ran = place.run(&["paper", "run", "tiny", "fig-2"]).refused(2);
    ran.says("error: tiny has no experiment `fig-2`").says("did you mean `fig-1`?");
    let ran = place.run(&["paper", "list", "--papers", "elsewhere"]).refused(2);
    ran.says("error: no papers are in elsewhere").says("--papers FOLDER");
    let ran = place.run(&["paper", "calibrate", "tiny"]).ended_with(2);
    ran.says("calibrate.toml");
}
