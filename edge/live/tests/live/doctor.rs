//! Tests of the host examination by `doctor`. The examination runs as the user who runs the tests.
//! If that user is root, the examination also runs as a user without privileges.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use slackline_live::doctor::{Finding, Ink, Report, State, Topic, examine};

/// Environment variable that is set if this program is a copy that runs without privileges.
const UNPRIVILEGED: &str = "SLACKLINE_TEST_UNPRIVILEGED";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn check_shape(report: &Report) {
    let topics: Vec<Topic> = report.findings().iter().map(|finding| finding.topic).collect();
    assert_eq!(topics, Topic::ALL, "the report has each topic once, in order");
    for finding in report.findings() {
        assert!(!finding.found.is_empty(), "{} has a description", finding.id());
        assert!(!finding.matters().is_empty(), "{} has a reason", finding.id());
        let needs_hint = finding.state == State::Missing && finding.topic.is_required();
        assert!(!needs_hint || finding.hint.is_some(), "{} has a hint", finding.id());
    }
    let text = report.render(100, Ink::Plain);
    assert!(text.lines().count() > Topic::ALL.len(), "{text}");
}

#[test]
fn ids_of_doctor_topics_are_unique_and_fit_their_column() {
    let mut ids = Topic::ALL.map(Topic::id);
    assert!(ids.iter().all(|id| id.len() <= 14));
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "{ids:?}");
}

#[test]
fn doctor_topics_are_sorted_by_section() {
    let sections = Topic::ALL.map(Topic::section);
    assert!(sections.windows(2).all(|pair| pair[0] <= pair[1]), "{sections:?}");
}

#[test]
fn doctor_command_examines_every_topic() {
    let report = examine();
    check_shape(&report);
    println!("{}", report.render(100, Ink::Plain));
    if !is_root() {
        return;
    }
    // For root the state of real-time priorities, without which nothing runs, must be known.
    let fifo = report.finding(Topic::Fifo);
    assert_ne!(fifo.state, State::Unknown, "{}", fifo.found);
}

#[test]
fn repeated_doctor_runs_do_not_use_up_deadline_bandwidth() {
    if !is_root() {
        println!("skipped: needs root to ask for deadline bandwidth");
        return;
    }
    // Other programs on this host may reserve bandwidth for a while, so less may be free at times.
    // A leak is permanent, so the largest result of several examinations must not decrease.
    let free = |report: &Report| -> Option<u64> {
        let figures = &report.finding(Topic::DeadlineShare).figures;
        figures.iter().find(|figure| figure.name == "deadline_free_ppm").map(|figure| figure.value)
    };
    let best_of_three = || (0..3).filter_map(|_| free(&examine())).max();
    let (before, after) = (best_of_three(), best_of_three());
    assert!(before.is_none() || after >= before, "{before:?} became {after:?}");
}

#[test]
fn doctor_command_reports_missing_privileges_without_root() {
    if std::env::var_os(UNPRIVILEGED).is_some() {
        unprivileged();
        return;
    }
    if !is_root() {
        println!("skipped: needs root to become another user");
        return;
    }
    // The other user might lack access to the folder of this program, so a copy is run.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.path().join("doctor");
    // Another process writes the copy. If this process did, a child of a concurrent test could
    // inherit the open file, and the copy could not be executed.
    let copied =
        Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status().unwrap();
    assert!(copied.success());
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"])
        .arg(&copy)
        .args([
            "--exact",
            "doctor::doctor_command_reports_missing_privileges_without_root",
            "--nocapture",
        ])
        .current_dir("/")
        .env(UNPRIVILEGED, "1")
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: needs setpriv: {error}");
            return;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

fn unprivileged() {
    let report = examine();
    println!("{}", report.render(100, Ink::Plain));
    check_shape(&report);
    let missing = |topic| {
        let Finding { state, found, hint, .. } = report.finding(topic);
        assert_eq!(*state, State::Missing, "{topic:?}: {found}");
        assert!(hint.is_some(), "{topic:?}: {found}");
    };
    for topic in [Topic::Privilege, Topic::Fifo, Topic::DeadlineShare] {
        missing(topic);
    }
    assert!(!report.can_run_live());
    let obstacles: Vec<&str> = report.obstacles().map(Finding::id).collect();
    assert!(obstacles.contains(&"fifo"), "{obstacles:?}");
}
