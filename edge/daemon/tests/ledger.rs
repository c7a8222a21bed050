//! The ledger: what was acknowledged is there, whatever happens to the process, the disk or the
//! file.

mod rows;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackline_daemon::ledger::{Asked, Keep, Ledger, LedgerError, Logged, Opened, Reply};
use slackline_service::{Commit, Happened, Name, Row, Verb};
use slackline_units::{Span, Time};

use rows::{commit, event, identity, kept, name, row};

const BOOT: &str = "6f1d4a3e-1111-4222-8333-944455556666";

/// How long a test waits for what must come.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

fn open(folder: &Path) -> Opened {
    Ledger::open(folder, BOOT, Keep::USUAL).expect("a ledger")
}

fn open_error(folder: &Path) -> LedgerError {
    Ledger::open(folder, BOOT, Keep::USUAL).expect_err("no ledger")
}

/// All replies until as many have come as were asked for.
fn replies(ledger: &mut Ledger, count: usize) -> Vec<Reply> {
    let mut replies = Vec::new();
    while replies.len() < count {
        let descriptor = ledger.as_fd();
        let mut fds = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&PATIENCE)));
        assert_eq!(ready, Ok(1), "no reply within a minute");
        replies.extend(ledger.replies());
        assert!(ledger.has_writer());
    }
    replies
}

/// Writes something down, and waits for what comes of it.
fn put(ledger: &mut Ledger, commit: Commit) -> Result<u64, LedgerError> {
    ledger.append(commit, Time::START).expect("room");
    match replies(ledger, 1).pop() {
        Some(Reply::Committed { seq }) => Ok(seq),
        Some(Reply::Failed { error, .. }) => Err(error),
        other => panic!("{other:?}"),
    }
}

fn close(ledger: Ledger) {
    let (_, closed) = ledger.close();
    closed.expect("it closes");
}

#[test]
fn what_is_written_is_there_again() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let Opened { mut ledger, loaded, before } = open(&state);
    assert_eq!((loaded.rows.len(), loaded.last_seq, before), (0, 0, None));
    let web = Row { identity: Some(identity(7)), ..row("web", 1) };
    let mut first = commit(3, [("web", Some(web.clone())), ("db", Some(row("db", 2)))]);
    first.kept.push(kept("k1", web.clone()));
    assert_eq!(put(&mut ledger, first).unwrap(), 3);
    assert_eq!(put(&mut ledger, commit(5, [("db", None)])).unwrap(), 5);
    close(ledger);

    let Opened { loaded, before, .. } = open(&state);
    assert_eq!((loaded.rows, loaded.last_seq), (vec![web.clone()], 5));
    let [(answer, age)] = &*loaded.kept else { panic!("{:?}", loaded.kept) };
    assert_eq!(*answer, kept("k1", web));
    assert!(*age < Span::from_secs(3600), "{age}");
    let before = before.expect("there was one");
    assert_eq!((before.boot_id.as_str(), before.was_clean), (BOOT, true));

    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    assert_eq!(mode(&state.join("ledger.db")), 0o600);
}

#[test]
fn after_another_boot_no_machine_is_known_again() {
    let folder = tempfile::tempdir().unwrap();
    let Opened { mut ledger, .. } = open(folder.path());
    let web = Row { identity: Some(identity(7)), ..row("web", 1) };
    put(&mut ledger, commit(1, [("web", Some(web))])).unwrap();
    close(ledger);
    let other = Ledger::open(folder.path(), "another", Keep::USUAL).unwrap();
    assert_eq!(other.loaded.rows, [row("web", 1)]);
    drop(other);
    // And that one had written nothing about it.
    assert_eq!(open(folder.path()).loaded.rows[0].identity, Some(identity(7)));
}

#[test]
fn events_are_found_by_name_and_number_newest_first() {
    let folder = tempfile::tempdir().unwrap();
    let Opened { mut ledger, .. } = open(folder.path());
    let begun = SystemTime::now();
    let whats = [
        Happened::Asked(Verb::Reserve),
        Happened::Vcpus { there: 4 },
        Happened::NotAdopted("no room: 1 of 2".into()),
        Happened::LedgerWhole { lost: 7 },
        Happened::Contested,
    ];
    for (seq, what) in (1..).zip(&whats) {
        let mut commit = commit(seq, []);
        let mut event = event(seq, what.clone());
        event.name = Some(name(if seq % 2 == 0 { "even" } else { "odd" }));
        event.before = Some(Row { identity: Some(identity(u64::MAX)), ..row("odd", seq) });
        event.at = Time::START + Span::from_secs(1);
        commit.events.push(event);
        // By the clock of the service this is a second later.
        ledger.append(commit, Time::START + Span::from_secs(2)).unwrap();
    }
    replies(&mut ledger, whats.len());
    let mut ask = |name: Option<&str>, before, limit| {
        let name = name.map(|name| name.parse::<Name>().unwrap());
        ledger.look_up(42, Asked { name, before, limit }).unwrap();
        match replies(&mut ledger, 1).pop() {
            Some(Reply::Events { ticket: 42, events }) => events.unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let seqs = |events: &[Logged]| -> Vec<u64> { events.iter().map(|event| event.seq).collect() };
    let all = ask(None, None, 100);
    assert_eq!(seqs(&all), [5, 4, 3, 2, 1]);
    assert_eq!(seqs(&ask(None, None, 2)), [5, 4]);
    assert_eq!(seqs(&ask(None, Some(4), 2)), [3, 2]);
    assert_eq!(seqs(&ask(Some("even"), None, 100)), [4, 2]);
    assert_eq!(seqs(&ask(Some("odd"), Some(5), 100)), [3, 1]);
    assert_eq!(seqs(&ask(Some("nobody"), None, 100)), [0_u64; 0]);
    for (event, what) in all.iter().rev().zip(&whats) {
        assert_eq!(event.what, *what);
        assert_eq!(event.before.as_ref().unwrap().identity, Some(identity(u64::MAX)));
        let second = Duration::from_secs(1);
        assert!(event.at >= begun - second && event.at <= SystemTime::now() - second);
    }
}

#[test]
fn whoever_comes_second_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path());
    let error = open_error(folder.path());
    assert!(matches!(error, LedgerError::Taken { .. }), "{error}");
    drop(first);
    drop(open(folder.path()));
}
