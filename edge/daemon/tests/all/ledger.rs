//! Tests of the ledger: a commit that the ledger has confirmed survives any fault of the process,
//! the disk or the file.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio, exit};
use std::time::{Duration, Instant, SystemTime};

use proptest::collection::vec;
use proptest::prelude::*;
use rusqlite::Connection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackline_daemon::ledger::{
    EventQuery, Keep, Ledger, LedgerError, LoggedEvent, OpenedLedger, Reply, check,
};
use slackline_service::gang::Gang;
use slackline_service::{Commit, EventKind, Identity, Name, Row, Verb};
use slackline_units::{Span, Time};
use tempfile::TempDir;

use crate::rows::{ASKER, commit, event, identity, kept, name, note_run_days, row};

const BOOT: &str = "6f1d4a3e-1111-4222-8333-944455556666";

/// Longest time that a test waits for a reply.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

pub(crate) fn open(folder: &Path) -> OpenedLedger {
    open_keeping(folder, Keep::USUAL)
}

pub(crate) fn open_keeping(folder: &Path, keep: Keep) -> OpenedLedger {
    Ledger::open(folder, BOOT, keep).expect("the ledger opens")
}

pub(crate) fn open_error(folder: &Path) -> LedgerError {
    Ledger::open(folder, BOOT, Keep::USUAL).expect_err("the ledger does not open")
}

/// Waits for at least `count` replies of the ledger, and returns them.
pub(crate) fn replies(ledger: &mut Ledger, count: usize) -> Vec<Reply> {
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

/// Writes a commit and returns its number.
pub(crate) fn put(ledger: &mut Ledger, commit: Commit) -> Result<u64, LedgerError> {
    ledger.append(commit, Time::START).expect("the queue has space");
    match replies(ledger, 1).pop() {
        Some(Reply::Committed { seq }) => Ok(seq),
        Some(Reply::Failed { error, .. }) => Err(error),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn close(ledger: Ledger) {
    let (_, closed) = ledger.close();
    closed.expect("the ledger closes");
}

#[test]
fn reservations_and_stored_answers_in_the_ledger_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let OpenedLedger { mut ledger, loaded, before, .. } = open(&state);
    assert_eq!((loaded.rows.len(), loaded.last_seq, before), (0, 0, None));
    let mut web = Row { identity: Some(identity(7)), ..row("web", 1) };
    web.terms = web.terms.with_phase(Some(Span::from_ms(3))).unwrap();
    web.terms = web.terms.with_end(Some("2026-12-01T18:00".parse().unwrap()));
    web.by_uuid = Some("uuid:0f9c27aa-0000-4000-8000-00000000beef".parse().unwrap());
    web.gang = Some(Gang { name: name("lockstep"), is_strict: true });
    let mut first = commit(3, [("web", Some(web.clone())), ("db", Some(row("db", 2)))]);
    first.kept.push(kept("k1", web.clone()));
    assert_eq!(put(&mut ledger, first).unwrap(), 3);
    assert_eq!(put(&mut ledger, commit(5, [("db", None)])).unwrap(), 5);
    close(ledger);

    let OpenedLedger { loaded, before, .. } = open(&state);
    assert_eq!((loaded.rows, loaded.last_seq), (vec![web.clone()], 5));
    let [(answer, age)] = &*loaded.kept else { panic!("{:?}", loaded.kept) };
    assert_eq!(*answer, kept("k1", web));
    assert!(*age < Span::from_secs(3600), "{age}");
    let before = before.expect("an earlier process is noted");
    assert_eq!((before.boot_id.as_str(), before.was_clean), (BOOT, true));

    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    assert_eq!(mode(&state.join("ledger.db")), 0o600);
}

/// In the last commit, the reservation `web` is made anew and gets a new time. The reservation `db`
/// is changed and keeps its time.
#[test]
fn creation_time_of_reservation_is_known_before_and_after_restart() {
    let folder = tempfile::tempdir().unwrap();
    let OpenedLedger { mut ledger, .. } = open(folder.path());
    let before = SystemTime::now();
    let (web, db) = (row("web", 1), row("db", 2));
    let both = [("web", Some(web.clone())), ("db", Some(db.clone()))];
    put(&mut ledger, commit(2, both)).unwrap();
    let between = SystemTime::now();
    put(&mut ledger, commit(3, [("web", None)])).unwrap();
    let changed = Row { revision: 4, ..db };
    put(&mut ledger, commit(4, [("db", Some(changed.clone()))])).unwrap();
    let again = row("web", 5);
    put(&mut ledger, commit(5, [("web", Some(again.clone()))])).unwrap();
    let check = |ledger: &Ledger| {
        let (db, web) = (ledger.begun(&changed).unwrap(), ledger.begun(&again).unwrap());
        assert!(before <= db && db <= between && between <= web, "{db:?} {web:?}");
    };
    check(&ledger);
    assert_eq!(ledger.begun(&web), None, "another reservation has the name now");
    close(ledger);
    check(&open(folder.path()).ledger);
}

/// A tenant sees everything about its VM from the time at which its reservation begins. If that
/// time were too early, the tenant could see data of an earlier owner.
#[test]
fn reservation_without_recorded_creation_begins_when_ledger_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let OpenedLedger { mut ledger, .. } = open(folder.path());
    let web = row("web", 1);
    put(&mut ledger, commit(1, [("web", Some(web.clone()))])).unwrap();
    close(ledger);
    let raw = Connection::open(folder.path().join("ledger.db")).unwrap();
    raw.execute("DELETE FROM event", []).unwrap();
    drop(raw);
    let before = SystemTime::now();
    let ledger = open(folder.path()).ledger;
    let begun = ledger.begun(&web).expect("the reservation is in the ledger");
    assert!(before <= begun && begun <= SystemTime::now(), "{begun:?}");
}

#[test]
fn vm_identities_in_the_ledger_are_ignored_after_a_reboot() {
    let folder = tempfile::tempdir().unwrap();
    let OpenedLedger { mut ledger, .. } = open(folder.path());
    let web = Row { identity: Some(identity(7)), ..row("web", 1) };
    put(&mut ledger, commit(1, [("web", Some(web))])).unwrap();
    close(ledger);
    let other = Ledger::open(folder.path(), "another", Keep::USUAL).unwrap();
    assert_eq!(other.loaded.rows, [row("web", 1)]);
    drop(other);
    // The daemon of the other boot has not changed the row.
    assert_eq!(open(folder.path()).loaded.rows[0].identity, Some(identity(7)));
}

#[test]
fn ledger_query_by_name_and_number_returns_newest_events_first() {
    let folder = tempfile::tempdir().unwrap();
    let OpenedLedger { mut ledger, .. } = open(folder.path());
    let begun = SystemTime::now();
    let whats = [
        EventKind::Asked(Verb::Reserve),
        EventKind::Renamed("libvirt:web is now libvirt:shop".into()),
        EventKind::NotAdopted("not enough capacity: 1 of 2".into()),
        EventKind::LedgerWhole { lost: 7 },
        EventKind::Contested("vCPU 0: thread 7 may run on CPU 0 only".into()),
        EventKind::Expired,
        EventKind::Overloaded("CPU 1: 0.9cpu reserved and 0.06cpu of overhead".into()),
        EventKind::OverloadEnded("CPU 1: 0.9cpu reserved and 0.04cpu of overhead".into()),
        EventKind::ClockStepped("by 1s back; periods of web are stretched or cut once".into()),
        EventKind::Asked(Verb::Change),
        EventKind::Explained("31 misses in 30 s, predicted 0".into()),
    ];
    for (seq, what) in (1..).zip(&whats) {
        let mut commit = commit(seq, []);
        let mut event = event(seq, what.clone());
        event.name = Some(name(if seq % 2 == 0 { "even" } else { "odd" }));
        event.before = Some(Row { identity: Some(identity(u64::MAX)), ..row("odd", seq) });
        event.at = Time::START + Span::from_secs(1);
        commit.events.push(event);
        // The event is a second old on the service's clock.
        ledger.append(commit, Time::START + Span::from_secs(2)).unwrap();
    }
    replies(&mut ledger, whats.len());
    let mut ask = |name: Option<&str>, before, limit| {
        let name = name.map(|name| name.parse::<Name>().unwrap());
        ledger.look_up((42, ASKER), EventQuery { name, before, limit }).unwrap();
        match replies(&mut ledger, 1).pop() {
            Some(Reply::Events { ticket: 42, events }) => events.unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let seqs =
        |events: &[LoggedEvent]| -> Vec<u64> { events.iter().map(|event| event.seq).collect() };
    let all = ask(None, None, 100);
    assert_eq!(seqs(&all), [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(seqs(&ask(None, None, 2)), [11, 10]);
    assert_eq!(seqs(&ask(None, Some(4), 2)), [3, 2]);
    assert_eq!(seqs(&ask(Some("even"), None, 100)), [10, 8, 6, 4, 2]);
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
fn state_option_that_names_a_file_is_refused_with_hint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "text").unwrap();
    let hint = open_error(&path).hint().unwrap();
    assert_eq!(hint, "name a folder with `--state`: this is a file");
    assert_eq!(fs::read(&path).unwrap(), b"text");
}

#[test]
fn ledger_that_is_open_cannot_be_opened_a_second_time() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path());
    let error = open_error(folder.path());
    assert!(matches!(error, LedgerError::Taken { .. }), "{error}");
    drop(first);
    drop(open(folder.path()));
}

// Faults of the process, the disk and the file.

/// Entry point of a child process. Writes commits without end and prints each commit that the
/// ledger has confirmed, until the test kills the process.
#[test]
fn entry_point_of_helper_ledger_writer() {
    let Ok(folder) = env::var(FOLDER) else { return };
    let OpenedLedger { mut ledger, loaded, .. } = open(Path::new(&folder));
    for seq in loaded.last_seq + 1.. {
        if put(&mut ledger, nth(seq)).is_err() {
            exit(1);
        }
        println!("@{seq}");
    }
}

/// Returns commit number `seq` of the writer process.
fn nth(seq: u64) -> Commit {
    let called = format!("r{}", seq % 50);
    let row = (!seq.is_multiple_of(7)).then(|| row(&called, seq));
    commit(seq, [(called.as_str(), row)])
}

/// Environment variable with the folder of the ledger for [`entry_point_of_helper_ledger_writer`].
const FOLDER: &str = "SLACKLINE_TEST_LEDGER";

/// Returns the reservations that exist after the writer process has made the commits with the
/// numbers 1 to `upto`.
fn promised(upto: u64) -> BTreeMap<String, u64> {
    let mut rows = BTreeMap::new();
    for seq in 1..=upto {
        let called = format!("r{}", seq % 50);
        if seq % 7 == 0 {
            rows.remove(&called)
        } else {
            rows.insert(called, seq)
        };
    }
    rows
}

fn is_as_promised(opened: &OpenedLedger, upto: u64) {
    let rows = opened.loaded.rows.iter().map(|row| (row.name.to_string(), row.revision));
    assert_eq!(rows.collect::<BTreeMap<_, _>>(), promised(upto), "after commit {upto}");
}

#[test]
fn acknowledged_commits_survive_if_the_ledger_writer_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = 0;
    for round in 1..=6_usize {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "ledger::entry_point_of_helper_ledger_writer", "--nocapture"])
            .env(FOLDER, folder.path());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = lines
            .map_while(Result::ok)
            .filter_map(|line| line.rsplit_once('@')?.1.parse::<u64>().ok());
        // Each round kills the child after more commits, in the middle of the next one.
        let heard = acknowledged.by_ref().take(3 * round * round).last();
        child.kill().unwrap();
        let heard = acknowledged.last().or(heard).expect("the child wrote a commit");
        assert!(child.wait().unwrap().signal().is_some(), "the child ended by itself");
        let opened = open(folder.path());
        // The ledger may have one more commit, whose acknowledgement the test has not read.
        assert!((heard..=heard + 1).contains(&opened.loaded.last_seq), "{heard}");
        assert!(heard > last);
        last = opened.loaded.last_seq;
        is_as_promised(&opened, last);
        assert_eq!(opened.before.as_ref().map(|before| before.was_clean), Some(false));
        drop(opened);
        assert_eq!(check(folder.path()).unwrap().problems, [""; 0]);
    }
}

/// The log looks as after a power failure: its first part, followed by garbage. All complete
/// commits are read.
#[test]
fn torn_ledger_log_is_read_to_last_complete_commit() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    for seq in 1..=60 {
        put(&mut ledger, nth(seq)).unwrap();
    }
    let read = |file: &str| fs::read(folder.path().join(file)).unwrap();
    let (base, log) = (read("ledger.db"), read("ledger.db-wal"));
    drop(ledger);
    let mut reached = BTreeSet::new();
    // The stride shares no factor with the page size, so that it hits all parts of a frame.
    for cut in (0..log.len()).step_by(log.len() / 150 + 1) {
        let torn = tempfile::tempdir().unwrap();
        fs::write(torn.path().join("ledger.db"), &base).unwrap();
        let mut left = log[..cut].to_vec();
        left.resize((cut + 3000).min(log.len()), 0xa5);
        fs::write(torn.path().join("ledger.db-wal"), left).unwrap();
        let opened = open(torn.path());
        is_as_promised(&opened, opened.loaded.last_seq);
        let least = reached.last().copied().unwrap_or(0);
        assert!(opened.loaded.last_seq >= least, "a longer log has fewer commits");
        reached.insert(opened.loaded.last_seq);
    }
    assert!(reached.len() > 40, "{reached:?}");
}

#[test]
fn ledger_keeps_commits_on_full_disk_and_later_writes_again() {
    let Some(disk) = Mounted::small() else { return };
    let folder = disk.0.path().join("state");
    let mut ledger = open(&folder).ledger;
    let mut seq = 1;
    let error = loop {
        match put(&mut ledger, nth(seq)) {
            Ok(_) => seq += 1,
            Err(error) => break error,
        }
        assert!(seq < 100_000, "the disk never gets full");
        if seq == 10 {
            fs::write(disk.0.path().join("filler"), vec![1; 128 << 10]).unwrap();
        }
    };
    assert!(matches!(error, LedgerError::Full { .. }), "{error:?}");
    let again = put(&mut ledger, commit(seq, [("x", Some(row("x", seq)))])).unwrap_err();
    assert!(matches!(again, LedgerError::Full { .. }), "{again:?}");
    fs::remove_file(disk.0.path().join("filler")).unwrap();
    assert_eq!(put(&mut ledger, nth(seq)).unwrap(), seq);
    drop(ledger);
    let opened = open(&folder);
    assert_eq!(opened.loaded.last_seq, seq);
    is_as_promised(&opened, seq);
}

#[test]
fn ledger_on_read_only_disk_is_refused_with_error() {
    let Some(disk) = Mounted::small() else { return };
    let mut ledger = open(disk.0.path()).ledger;
    put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
    drop(ledger);
    disk.remount("ro");
    let error = open_error(disk.0.path());
    assert!(matches!(error, LedgerError::ReadOnly { .. }), "{error:?}");
    disk.remount("rw");
    assert_eq!(open(disk.0.path()).loaded.rows.len(), 1);
}

/// A tmpfs of 1 MiB, mounted for a test. It is unmounted when this value is dropped.
struct Mounted(TempDir);

impl Mounted {
    fn small() -> Option<Mounted> {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(folder.path());
        if !command.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            println!("skipped: needs root");
            return None;
        }
        Some(Mounted(folder))
    }

    fn remount(&self, how: &str) {
        let mut command = Command::new("mount");
        command.args(["-o", &format!("remount,{how}")]).arg(self.0.path());
        assert!(command.status().unwrap().success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Opens the ledger's database directly, as another program would.
pub(crate) fn other(folder: &Path) -> Connection {
    Connection::open(folder.join("ledger.db")).unwrap()
}

#[test]
fn write_to_locked_ledger_fails_after_5_seconds_of_retries() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
    // Another process holds the lock, as a process of an administrator may. Within one process,
    // locks are shared.
    let script = format!(
        "import sqlite3, sys\nc = sqlite3.connect('{}', isolation_level=None)\n\
         c.execute('BEGIN IMMEDIATE')\nprint('@', flush=True)\nsys.stdin.read()",
        folder.path().join("ledger.db").display()
    );
    let mut python = Command::new("python3");
    python.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut python) = python.spawn() else { return println!("skipped: needs python3") };
    let mut line = String::new();
    BufReader::new(python.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let begun = Instant::now();
    let error = put(&mut ledger, commit(2, [("web", None)])).unwrap_err();
    assert!(matches!(error, LedgerError::Locked { .. }), "{error:?}");
    assert!(begun.elapsed() >= Duration::from_secs(5));
    python.kill().unwrap();
    python.wait().unwrap();
    put(&mut ledger, commit(2, [("web", None)])).unwrap();
    drop(ledger);
    assert_eq!(open(folder.path()).loaded.rows, []);
}

#[test]
fn ledger_file_deleted_while_in_use_is_written_again() {
    for files in [["ledger.db"].as_slice(), &["ledger.db", "ledger.db-wal"], &["ledger.db-wal"]] {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = open(folder.path()).ledger;
        put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
        for file in files {
            fs::remove_file(folder.path().join(file)).unwrap();
        }
        put(&mut ledger, commit(2, [("db", Some(row("db", 2)))])).unwrap();
        put(&mut ledger, commit(3, [("x", Some(row("x", 3)))])).unwrap();
        // The files are copied as they would be after a kill: nothing has been closed.
        let copy = tempfile::tempdir().unwrap();
        for file in ["ledger.db", "ledger.db-wal"] {
            fs::copy(folder.path().join(file), copy.path().join(file)).unwrap();
        }
        assert_eq!(open(copy.path()).loaded.rows.len(), 3, "{files:?}");
    }
    // A file that another program has put in its place is not overwritten.
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
    fs::write(folder.path().join("other"), "mine").unwrap();
    fs::rename(folder.path().join("other"), folder.path().join("ledger.db")).unwrap();
    let error = put(&mut ledger, commit(2, [("web", None)])).unwrap_err();
    assert!(matches!(error, LedgerError::TakenAway { .. }), "{error:?}");
    drop(ledger);
    assert_eq!(fs::read(folder.path().join("ledger.db")).unwrap(), b"mine");
}

/// The ledger has written a commit, but could not confirm it because the ledger file was moved. If
/// the commit is repeated, it is still written only once.
#[test]
fn ledger_commit_repeated_after_error_is_written_only_once() {
    let place = tempfile::tempdir().unwrap();
    let (here, there) = (place.path().join("here"), place.path().join("there"));
    let mut ledger = open(&here).ledger;
    put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
    fs::rename(&here, &there).unwrap();
    put(&mut ledger, commit(2, [("db", Some(row("db", 2)))])).unwrap_err();
    fs::rename(&there, &here).unwrap();
    put(&mut ledger, commit(2, [("db", Some(row("db", 2)))])).unwrap();
    // The commit is in a deleted file, and a copy of the ledger cannot be made.
    fs::remove_file(here.join("ledger.db-wal")).unwrap();
    fs::create_dir(here.join("ledger.part.db")).unwrap();
    put(&mut ledger, commit(3, [("x", Some(row("x", 3)))])).unwrap_err();
    fs::remove_dir(here.join("ledger.part.db")).unwrap();
    put(&mut ledger, commit(4, [("x", Some(row("x", 3))), ("y", Some(row("y", 4)))])).unwrap();
    ledger.look_up((1, ASKER), EventQuery { limit: 100, ..EventQuery::default() }).unwrap();
    let Some(Reply::Events { events, .. }) = replies(&mut ledger, 1).pop() else { panic!() };
    let seqs: Vec<u64> = events.unwrap().iter().map(|event| event.seq).collect();
    assert_eq!(seqs, [4, 3, 2, 1]);
    close(ledger);
    assert_eq!(open(&here).loaded.rows.len(), 4);
}

#[test]
fn ledger_commit_deletes_the_oldest_events_beyond_the_limits() {
    let folder = tempfile::tempdir().unwrap();
    let keep = Keep { rows: 20, ..Keep::USUAL };
    let mut ledger = Ledger::open(folder.path(), BOOT, keep).unwrap().ledger;
    for seq in 1..=100 {
        put(&mut ledger, commit(seq, [("web", Some(row("web", seq)))])).unwrap();
    }
    let all = |ledger: &mut Ledger| {
        ledger.look_up((1, ASKER), EventQuery { limit: 1000, ..EventQuery::default() }).unwrap();
        match replies(ledger, 1).pop() {
            Some(Reply::Events { events, .. }) => {
                events.unwrap().iter().map(|event| event.seq).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(all(&mut ledger), (81..=100).rev().collect::<Vec<_>>());
    drop(ledger);
    // Events beyond the age limit are deleted as well, whatever their number.
    note_run_days(folder.path());
    let file = Connection::open(folder.path().join("ledger.db")).unwrap();
    file.execute("UPDATE event SET at = at - 91 * 86400000000000", []).unwrap();
    drop(file);
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, commit(101, [("web", None)])).unwrap();
    put(&mut ledger, commit(102, [("web", None)])).unwrap();
    assert!(all(&mut ledger).len() <= 2);
    drop(ledger);
    assert_eq!(open(folder.path()).loaded.last_seq, 102);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Random commits are written to the ledger, with restarts in between, and the same changes are
    /// applied to a map. The ledger then contains the same rows as the map.
    #[test]
    fn ledger_rows_equal_model_rows_after_random_commits_and_restarts(
        steps in vec((0_u64..6, any::<bool>(), 0_u64..40, any::<bool>(), any::<bool>()), 1..24),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut model: BTreeMap<Name, Row> = BTreeMap::new();
        let mut ledger = open(folder.path()).ledger;
        for (seq, (which, gone, number, paused, restart)) in (1..).zip(steps) {
            let called = format!("r{which}");
            let identity = (number % 3 != 0).then(|| match number % 2 {
                0 => Identity::Group { inode: u64::MAX - number },
                _ => identity(u64::MAX - number),
            });
            let row = Row { identity, paused, since: number, ..row(&called, seq) };
            let row = (!gone).then_some(row);
            match &row {
                Some(row) => model.insert(row.name.clone(), row.clone()),
                None => model.remove(&name(&called)),
            };
            put(&mut ledger, commit(seq, [(called.as_str(), row)])).unwrap();
            if restart {
                drop(ledger);
                let opened = open(folder.path());
                let rows = opened.loaded.rows.iter().map(|row| (row.name.clone(), row.clone()));
                prop_assert_eq!(rows.collect::<BTreeMap<_, _>>(), model.clone());
                prop_assert_eq!(opened.loaded.last_seq, seq);
                ledger = opened.ledger;
            }
        }
    }
}
