//! Daily backup of the ledger. A separate thread makes the backup over a separate connection, so
//! commits do not wait for the backup. In SQLite's write-ahead mode a reader does not block the
//! writer.

use std::thread::{Builder, JoinHandle};

use rusqlite::{InterruptHandle, OpenFlags};
use slackline_linux::sys::{Scheduling, SchedulingOf, own_tid, set_scheduling};

use super::STACK;
use super::error::LedgerError;
use super::place::LedgerFolder;
use super::store::{back_up_by, connect};

/// A backup that is being made. Dropping the value stops the backup before it is complete.
pub(super) struct RunningBackup {
    interrupt: InterruptHandle,
    thread: Option<JoinHandle<Result<(), LedgerError>>>,
}

impl RunningBackup {
    /// Starts a backup, which is a copy of the present contents of the ledger.
    ///
    /// # Errors
    /// If the ledger cannot be opened a second time, or the thread cannot be started.
    pub(super) fn start(place: &LedgerFolder) -> Result<RunningBackup, LedgerError> {
        let path = place.ledger();
        let failed = |error| LedgerError::of(&path, error);
        let connection = connect(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
        let (interrupt, place) = (connection.get_interrupt_handle(), place.clone());
        let body = move || {
            // The backup is less urgent than all other work of the daemon. If its priority cannot
            // be lowered, the backup only receives more CPU time.
            let class = Scheduling::Other { nice: 10 };
            let _ = set_scheduling(own_tid(), &SchedulingOf { class, reset_on_fork: false });
            back_up_by(&connection, &place, (&place.daily_part(), &place.daily()))
        };
        let thread = Builder::new().name("slackline-backup".to_owned()).stack_size(STACK);
        let thread = Some(thread.spawn(body).map_err(LedgerError::NoWriter)?);
        Ok(RunningBackup { interrupt, thread })
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end of the backup.
    ///
    /// # Errors
    /// If the backup could not be made.
    pub(super) fn finish(mut self) -> Result<(), LedgerError> {
        let ended = |_| Err(LedgerError::NoWriter(std::io::ErrorKind::BrokenPipe.into()));
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or_else(ended))
    }
}

impl Drop for RunningBackup {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() {
            // An interrupt has no effect between two statements, so it is repeated.
            self.interrupt.interrupt();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn ledger_backup_contains_committed_rows_and_delays_no_commit() {
        let folder = tempfile::tempdir().unwrap();
        let place = LedgerFolder::new(folder.path());
        let path = place.ledger();
        place.make().unwrap();
        let ledger = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
        ledger.pragma_update(None, "journal_mode", "wal").unwrap();
        let sql = "CREATE TABLE a (b TEXT); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL
            SELECT i + 1 FROM n WHERE i < 20000) INSERT INTO a SELECT hex(zeroblob(500)) FROM n";
        ledger.execute_batch(sql).unwrap();
        // A commit that has begun does not prevent the backup, which has all of it or nothing.
        ledger.execute_batch("BEGIN IMMEDIATE; INSERT INTO a VALUES ('x')").unwrap();
        let backup = RunningBackup::start(&place).unwrap();
        ledger.execute_batch("COMMIT").unwrap();
        backup.finish().unwrap();
        let count = |path: &std::path::Path| {
            let ledger = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
            ledger.query_row("SELECT count(*) FROM a", [], |row| row.get::<_, u32>(0)).unwrap()
        };
        assert!([20_000, 20_001].contains(&count(&place.daily())));
        std::fs::remove_file(place.daily()).unwrap();
        // Commits are made while a backup is being made.
        let (backup, mut commits) = (RunningBackup::start(&place).unwrap(), 0);
        while !backup.is_finished() {
            let begun = Instant::now();
            ledger.execute_batch("INSERT INTO a VALUES ('x')").unwrap();
            assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
            commits += 1;
        }
        assert!(commits > 0 && backup.finish().is_ok());
        // A backup that is dropped ends early, and leaves the last complete backup.
        drop(RunningBackup::start(&place).unwrap());
        assert!(count(&place.daily()) >= 20_001);
    }
}
