//! Tests with a tiny paper that has a row for each verdict, and of errors in its files.

use std::fs;
use std::path::{Path, PathBuf};

use slackline_experiments::grid::to_the_end;
use slackline_papers::{
    Calibration, Experiment, Paper, PaperError, Provenance, Results, Verdict, VerdictGroup, judge,
    page, tally,
};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tiny")
}

fn run() -> (Paper, Experiment, Results, Vec<VerdictGroup>) {
    let paper = Paper::read(&tiny()).expect("a good paper");
    let experiment = Experiment::read(&tiny(), "fig-1").expect("a good experiment");
    let results = experiment.run(&to_the_end).expect("the experiment can be run");
    let published = paper.published().expect("good values");
    let judged = judge(&experiment, &results, &published, 0).expect("the results can be judged");
    (paper, experiment, results, judged)
}

fn verdict(judged: &[VerdictGroup], group: usize, id: &str) -> (Verdict, String) {
    let row = judged[group].rows.iter().find(|row| row.id == id).expect("a row of this id");
    (row.verdict, row.sentence.clone())
}

#[test]
fn each_kind_of_verdict_is_given_according_to_its_rule() {
    let (_, _, _, judged) = run();
    let of = |group: usize, id: &str| verdict(&judged, group, id);
    assert_eq!(of(0, "fig-1.half").0, Verdict::Reproduced);
    // Our value is twice the published value, but lower than `fig-1.half`, as published.
    assert_eq!(of(0, "fig-1.fifth").0, Verdict::SameShape, "{}", of(0, "fig-1.fifth").1);
    assert_eq!(judged[0].verdict, Verdict::SameShape);
    // The published value is lower than `fig-1.fifth`, but our value is higher.
    assert_eq!(of(1, "fig-1.wrong").0, Verdict::Differs, "{}", of(1, "fig-1.wrong").1);
    assert_eq!(of(2, "text.gain").0, Verdict::Reproduced, "{}", of(2, "text.gain").1);
    // A direction without a size is same shape at best.
    assert_eq!(of(2, "text.rises").0, Verdict::SameShape);
    assert_eq!(of(2, "text.flat").0, Verdict::Reproduced);
    assert_eq!(of(2, "fig-1.axis").0, Verdict::NothingToCompare);
    assert_eq!(of(2, "text.most").0, Verdict::Differs, "{}", of(2, "text.most").1);
    assert_eq!(judged[2].verdict, Verdict::Differs);
}

/// Lines of `published.toml`: the end of the description of the value `fig-1.fifth`, and the value
/// itself. Tests replace the value.
const PUBLISHED_FIFTH: &str = "a fifth of it: too low, and the lowest\"\nvalue = \"10\"";

/// Returns the verdicts after one text in `fig-1.toml` or `published.toml` is replaced by another.
fn judged_with(file: &str, good: &str, other: &str) -> Vec<VerdictGroup> {
    judged_after(&[(file, (good, other))])
}

/// Returns the verdicts after one text is replaced by another, for each entry of `changes`.
fn judged_after(changes: &[(&str, (&str, &str))]) -> Vec<VerdictGroup> {
    let (_keep, folder) = copy();
    for (file, (good, other)) in changes {
        let path = folder.join(file);
        let text = fs::read_to_string(&path).expect("a file of the paper");
        assert!(text.contains(good), "{good} is not in {file}");
        fs::write(&path, text.replacen(good, other, 1)).expect("a file that can be written");
    }
    let paper = Paper::read(&folder).expect("a good paper");
    let experiment = Experiment::read(&folder, "fig-1").expect("a good experiment");
    let results = experiment.run(&to_the_end).expect("the experiment can be run");
    judge(&experiment, &results, &paper.published().expect("good values"), 0).expect("judged")
}

#[test]
fn comparison_of_only_zero_values_counts_as_nothing_to_compare() {
    // A group without a comparison has no verdict.
    let at_zero = "metric = \"misses of a\"";
    let judged = judged_with("fig-1.toml", "metric = \"delivered of a\"", at_zero);
    let (found, why) = verdict(&judged, 2, "text.flat");
    assert_eq!((found, why.as_str()), (Verdict::NothingToCompare, "all measured values are zero"));
    // A published number that is not zero can contradict a zero.
    assert_eq!(verdict(&judged, 0, "fig-1.half").0, Verdict::Differs);
    // A value outside the axis contradicts the plot.
    let judged = judged_with("published.toml", "\"0..60\"", "\"0..30\"");
    assert_eq!(verdict(&judged, 2, "fig-1.axis").0, Verdict::Differs);
}

#[test]
fn number_within_wide_tolerance_but_inaccurate_counts_as_same_shape() {
    // Our value is 20, so 10 is half of it. The other values are equal in both files.
    for (printed, wanted) in [("10", Verdict::SameShape), ("17", Verdict::Reproduced)] {
        let published = (PUBLISHED_FIFTH, &*PUBLISHED_FIFTH.replace("10", printed));
        let wide = ("tolerance = \"2 points\"", "tolerance = \"factor 3\"");
        let judged = judged_after(&[("published.toml", published), ("fig-1.toml", wide)]);
        let (found, why) = verdict(&judged, 0, "fig-1.fifth");
        assert_eq!(found, wanted, "{printed}: {why}");
        assert!(why.contains("within a factor of 3"), "{why}");
    }
}

#[test]
fn gain_beyond_factor_two_of_published_gain_counts_as_differing() {
    // Half is 150 % more than a fifth.
    for (printed, wanted) in [("80", Verdict::SameShape), ("70", Verdict::Differs)] {
        let judged = judged_with("published.toml", "\"150\"", &format!("\"{printed}\""));
        let (found, why) = verdict(&judged, 2, "text.gain");
        assert_eq!(found, wanted, "{printed}: {why}");
    }
    let (found, why) =
        verdict(&judged_with("published.toml", "\"150\"", "\"310\""), 2, "text.gain");
    assert_eq!(found, Verdict::Differs, "{why}");
}

#[test]
fn tally_of_verdicts_counts_rows_without_a_comparison_separately() {
    let verdicts = [
        Verdict::NothingToCompare,
        Verdict::Reproduced,
        Verdict::NotAttempted,
        Verdict::Differs,
        Verdict::NothingToCompare,
    ];
    let says = "1 reproduced, 1 differs; 2 nothing to compare, 1 not attempted";
    assert_eq!(tally(verdicts.iter()), says);
}

#[test]
fn published_value_without_an_experiment_states_the_reason() {
    let paper = Paper::read(&tiny()).expect("a good paper");
    assert_eq!(paper.why_not("weather.rain"), Some("there is no weather in the simulator"));
    assert_eq!(paper.why_not("fig-1.half"), None);
}

#[test]
fn experiment_can_be_selected_by_the_figures_it_covers() {
    let paper = Paper::read(&tiny()).expect("a good paper");
    let chosen = paper.chosen(&["table-1".to_owned()]).expect("a figure of the experiment");
    assert_eq!(chosen.len(), 1);
    let error = paper.chosen(&["fig-7".to_owned()]).expect_err("there is no such figure");
    assert_eq!(error.to_string(), "tiny has no experiment `fig-7`");
    assert_eq!(error.hint().as_deref(), Some("did you mean `fig-1`?"));
}

#[test]
fn experiment_run_twice_from_equal_files_gives_equal_results() {
    let (_, _, first, _) = run();
    let (_, _, second, _) = run();
    assert_eq!(first.measured, second.measured);
    assert_eq!(first.over_time, second.over_time);
}

#[test]
fn results_of_several_seeds_are_shown_as_median_and_range() {
    let (_, experiment, results, _) = run();
    assert_eq!(experiment.points().len() as u64 * experiment.seeds, 12);
    let stat = results.measured[0][0].expect("a share is always known");
    assert!(stat.lowest <= stat.median && stat.median <= stat.highest);
}

#[test]
fn cpu_share_error_in_half_second_window_is_nearly_zero() {
    let (_, _, results, _) = run();
    let error = results.measured[0][1].expect("a share is always known");
    // Half a second contains fifty periods, each with exactly its slice.
    assert!(error.median.abs() < 0.5, "{error:?}");
}

#[test]
fn cpu_share_in_each_window_is_close_to_reserved_share() {
    let (_, _, results, _) = run();
    let course = &results.over_time[0];
    assert_eq!(course.lines[0].0, "a");
    assert_eq!(course.lines[0].1.len(), 20);
    for part in &course.lines[0].1 {
        assert!((part - 0.5).abs() < 0.06, "{part}");
    }
}

/// Copies the tiny paper, so that a test can change it.
fn copy() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let paper = folder.path().join("tiny");
    fs::create_dir(&paper).expect("a folder can be made in it");
    for entry in fs::read_dir(tiny()).expect("the tiny paper") {
        let path = entry.expect("a file of it").path();
        fs::copy(&path, paper.join(path.file_name().expect("a name"))).expect("a copy");
    }
    (folder, paper)
}

#[test]
fn experiment_results_and_provenance_are_unchanged_if_written_and_read() {
    let (_keep, folder) = copy();
    let (_, experiment, results, judged) = run();
    let paper = Paper::read(&folder).expect("a good paper");
    let made = Provenance {
        commit: "0123abc".into(),
        command: "slackline paper run tiny".into(),
        date: "2007-09-30".into(),
        machine: None,
    };
    let judged = vec![(String::new(), judged)];
    paper.write(&experiment, &results, &judged, &made).expect("a folder that can be written");
    let text = fs::read_to_string(folder.join("results/fig-1.csv")).expect("results");
    let first = text.lines().next().expect("a first line");
    assert_eq!(first, "# commit 0123abc; slackline paper run tiny; seeds 1 to 3; 2007-09-30");
    let kept = paper.kept(&experiment).expect("results");
    let key = ("half/10ms".to_owned(), "cpu".to_owned());
    let ours = results.measured[0][0].expect("a share is always known");
    assert!((kept.stats[&key].median - ours.median).abs() < 1e-4);
    assert_eq!(kept.rows.len(), judged[0].1.iter().map(|group| group.rows.len()).sum::<usize>());
    assert!(kept.rows[0].tolerance.contains("a switch of 4us in every slice"));
    let course = &kept.over_time[&("Figure 1, over time".to_owned(), "half/10ms".to_owned())];
    assert_eq!(course.1["a"].len(), 20);
}

#[test]
fn report_of_a_paper_shows_values_verdicts_and_missing_experiments() {
    let (_keep, folder) = copy();
    let paper = Paper::read(&folder).expect("a good paper");
    let made = Provenance {
        commit: "0123abc".into(),
        command: "slackline paper report tiny".into(),
        date: "2007-09-30".into(),
        machine: None,
    };
    let papers = [paper];
    let nothing = page(&papers, &made).expect_err("nothing was run");
    assert_eq!(nothing.hint().as_deref(), Some("make results with `slackline paper run tiny`"));
    let (_, experiment, results, judged) = run();
    let judged = vec![(String::new(), judged)];
    papers[0].write(&experiment, &results, &judged, &made).expect("a folder that can be written");
    let html = page(&papers, &made).expect("results");
    for says in [
        "the share of a: same shape",
        "published",
        "Figure 1, over time",
        "axis of the published plot",
        "there is no weather in the simulator",
        "cost of a switch",
        "commit 0123abc",
    ] {
        assert!(html.contains(says), "{says} is not in the page");
    }
    assert!(!html.contains("http"), "a page needs nothing from outside");
}

/// Replaces a text in a file of the tiny paper. Returns the message and the hint of the error.
fn spoilt(file: &str, good: &str, bad: &str) -> String {
    let (_keep, folder) = copy();
    let path = folder.join(file);
    let text = fs::read_to_string(&path).expect("a file of the paper");
    assert!(text.contains(good), "{good} is not in {file}");
    fs::write(&path, text.replacen(good, bad, 1)).expect("a file that can be written");
    let error = whole(&folder).expect_err("the replaced text is a fault");
    let hint = error.hint().map_or(String::new(), |hint| format!("\n{hint}"));
    let folder = format!("{}/", folder.display());
    format!("{error}{hint}").replace(&folder, "")
}

fn whole(folder: &Path) -> Result<(), PaperError> {
    let paper = Paper::read(folder)?;
    let published = paper.published()?;
    for experiment in paper.experiments()? {
        let results = experiment.run(&to_the_end)?;
        judge(&experiment, &results, &published, 0)?;
    }
    Calibration::read(&paper).map(|_| ()).or_else(|error| match error {
        PaperError::Unreadable { .. } => Ok(()),
        error => Err(error),
    })
}

/// Errors in files: the file, a text, its replacement, and the expected message.
const WRONG: &[(&str, &str, &str, &str)] = &[
    (
        "paper.toml",
        "\"fig-1\"",
        "\"fig-2\"",
        "paper.toml:3:16: there is no experiment `fig-2`\ndid you mean `fig-1`?",
    ),
    (
        "fig-1.toml",
        "scenario = \"hogs.toml\"",
        "scenario = \"hog.toml\"",
        "fig-1.toml:3:12: there is no scenario `hog.toml`\ndid you mean `hogs.toml`?",
    ),
    (
        "fig-1.toml",
        "seeds    = 3",
        "seed = 3",
        "fig-1.toml:4:1: unknown field `seed`, expected one of `title`, `figures`, `explains`, \
      `live`, `scenario`, `seeds`, `may_decline`, `again`, `quick`, `axis`, `sensitivity`, \
      `override`, `measure`, `plot`, `compare`",
    ),
    (
        "fig-1.toml",
        "delivered of a",
        "deliverd of a",
        "fig-1.toml:36:10: there is no metric `deliverd of a`\ndid you mean `delivered of a`?",
    ),
    (
        "fig-1.toml",
        "at    = \"half/20ms\"",
        "at = \"half/30ms\"",
        "fig-1.toml:30:6: there is no point `30ms`\ndid you mean `10ms`?",
    ),
    (
        "fig-1.toml",
        "published = \"fig-1.half\"",
        "published = \"fig-1.halve\"",
        "fig-1.toml:65:15: there is no published value `fig-1.halve`\ndid you mean `fig-1.half`?",
    ),
    (
        "fig-1.toml",
        "\"domain.a.share.edf.slice\" =",
        "\"domain.c.share.edf.slice\" =",
        "fig-1.toml:21:10: at half/10ms: `domain.c.share.edf.slice`: there is no domain `c`\n\
      write `domain.NAME.KEY`, `host.KEY`, or `policy` for the whole table",
    ),
    (
        "fig-1.toml",
        "tolerance = \"2 points\"",
        "tolerance = \"2\"",
        "fig-1.toml:62:13: `2` is not a tolerance\nwrite `10%`, `3 points` or `factor 1.75`",
    ),
    (
        "fig-1.toml",
        "  test      = \"rising\"\n",
        "",
        "fig-1.toml:92:15: the comparison with a word has no `test`\n\
      write test = \"alike\" (or unlike, zero, negative, kept, same, higher, lower, \
      rising, falling, first, second, lowest)",
    ),
    (
        "fig-1.toml",
        "because   = \"the text rounds\"\n",
        "",
        "fig-1.toml:84:13: a tolerance has no `because`\n\
      write because = \"...\": where the tolerance comes from",
    ),
    (
        "published.toml",
        "give  = \"0.5\"\n",
        "",
        "published.toml:5:9: a number has no `give`\n\
      write give = \"0.5\": how exactly the number can be read",
    ),
    (
        "published.toml",
        "id    = \"fig-1.fifth\"",
        "id = \"fig-1.half\"",
        "published.toml:12:6: there is a published value `fig-1.half` already\n\
      give one of them another name",
    ),
];

#[test]
fn faulty_paper_file_is_refused_with_message_position_and_hint() {
    let mut wrong = String::new();
    for &(file, good, bad, says) in WRONG {
        let found = spoilt(file, good, bad);
        if found != says {
            wrong += &format!("{found}\n  instead of\n{says}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn calibration_with_row_not_declared_for_calibration_is_refused() {
    let (_keep, folder) = copy();
    let text = "experiment = \"fig-1\"\n\n[[row]]\npublished = \"fig-1.half\"\nmeasure = \"cpu\"\n\
                at = \"half/10ms\"\n\n[[cost]]\nname = \"switch\"\npaths = [\"host.switch\"]\n";
    fs::write(folder.join("calibrate.toml"), text).expect("a file that can be written");
    let error = whole(&folder).expect_err("this row is not declared for calibration");
    let says = error.to_string();
    assert!(
        says.ends_with("calibrate.toml:4:13: there is no calibration row `fig-1.half`"),
        "{says}"
    );
}

#[test]
fn calibration_finds_the_cost_that_explains_a_measured_effect() {
    let (_keep, folder) = copy();
    // With a switch of 1 ms, a VM with half of the CPU in slices of 5 ms receives less than half.
    let published = fs::read_to_string(folder.join("published.toml")).expect("values");
    let lent = "give  = \"0.5\"\ncalibration = true";
    fs::write(folder.join("published.toml"), published.replacen("give  = \"0.5\"", lent, 1))
        .expect("a file that can be written");
    let text = "experiment = \"fig-1\"\nseeds = 1\n\n[[row]]\npublished = \"fig-1.half\"\n\
                measure = \"cpu\"\nat = \"half/10ms\"\n\n[[cost]]\nname = \"slice\"\n\
                paths = [\"domain.a.share.edf.slice\"]\n";
    fs::write(folder.join("calibrate.toml"), text).expect("a file that can be written");
    let spoil = fs::read_to_string(folder.join("fig-1.toml")).expect("an experiment");
    fs::write(folder.join("fig-1.toml"), spoil.replacen("part = \"50\"", "part = \"35\"", 1))
        .expect("a file that can be written");
    let paper = Paper::read(&folder).expect("a good paper");
    let found = Calibration::read(&paper).and_then(|it| it.search(&|_, _| ())).expect("a search");
    let (_, theirs, ours) = &found.rows[0];
    assert!((ours - theirs).abs() < 1.0, "{found:?}");
    assert_eq!(found.values[0].0, "domain.a.share.edf.slice");
}
