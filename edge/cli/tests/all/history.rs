//! Tests of `slackline history`. The daemon's front process is real, and the tests answer in place
//! of its core process.

use slackline_control::link::{Answer, Request};
use slackline_control::{Account, MOST_ACCOUNTS};

use crate::service::{Daemon, Outcome, fine};

const HOUR: u64 = 3_600_000_000_000;

/// Answers requests in place of the daemon's core process, which has a history of 1,500 hours.
fn remembers(request: &Request) -> Outcome {
    let Request::History { name, since_ns, by_day } = request else { return fine(request) };
    if name != "web" {
        return Ok(Answer::History(Vec::new()));
    }
    let length = if *by_day { 24 * HOUR } else { HOUR };
    let first = since_ns / length;
    let account = |start| Account {
        from_ns: start * length,
        length_ns: length,
        existed_ns: length,
        reserved_ns: length / 4,
        delivered_ns: length / 8,
        ..Account::default()
    };
    let hours = (first..1_500 * HOUR / length).take(MOST_ACCOUNTS);
    Ok(Answer::History(hours.map(account).collect()))
}

#[test]
fn history_command_prints_all_pages_as_table_csv_or_json() {
    let Some(daemon) = Daemon::new(remembers) else { return };
    let csv = daemon.run(&["history", "web", "--since", "1970-01-01", "--csv"]).good();
    assert_eq!(csv.lines().count(), 1 + 1_500);
    assert!(csv.starts_with("from,existed,unknown,contested,reserved,due,"), "{csv}");
    assert!(csv.ends_with(
        "1970-03-04 11:00:00,3600.000,0.000,0.000,900.000,0.000,450.000,50.00,,0.000\n"
    ));
    let asked = [daemon.heard(), daemon.heard()].map(|request| match request {
        Request::History { since_ns, by_day: false, .. } => since_ns,
        other => panic!("{other:?}"),
    });
    assert_eq!(asked, [0, 1_000 * HOUR]);
    let since = ["history", "web", "--since", "1970-02-28", "--by", "day"];
    let table = daemon.run(&[&since[..], &["--columns", "from,used"]].concat()).good();
    assert!(table.contains("1970-03-01 00:00:00"), "{table}");
    assert!(!table.contains("reserved"), "{table}");
    let json = daemon.run(&[&since[..], &["--json"]].concat()).good();
    let days: Vec<Account> = serde_json::from_str(&json).expect("JSON");
    assert_eq!(days.last().map(|day| day.length_ns), Some(24 * HOUR));
    let none = daemon.run(&["history", "db"]).good();
    assert_eq!(none, "no CPU use of db is recorded for that time\n");
    let wrong = daemon.run(&["history", "web", "--since", "monday"]);
    assert!(wrong.err.contains("2026-11-26"), "{}", wrong.err);
}
