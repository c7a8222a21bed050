//! Days on which a daemon has run. The age of stored data is counted in these days. A step of the
//! wall clock adds at most one day, so a step does not make data old.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// Maximum number of stored days. It is larger than each limit on the age of data.
const MOST: usize = 1_000;

const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

/// Days of the wall clock on which a daemon has run, and the file that stores one line for each
/// day.
#[derive(Debug)]
pub(crate) struct RunDays {
    file: PathBuf,
    /// Days on which a daemon has run, as numbers of days since 1970.
    days: BTreeSet<u64>,
    is_written: bool,
}

impl RunDays {
    /// Reads the days from a file, if the file exists. Damaged lines are skipped.
    pub(crate) fn open(file: PathBuf) -> RunDays {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let days = text.lines().filter_map(|line| line.parse().ok()).collect();
        RunDays { file, days, is_written: true }
    }

    /// Adds the day of the wall-clock time `now_ns`, in nanoseconds since 1970. Returns the time
    /// before which data is more than `age` days old. Only days on which a daemon has run count.
    /// Returns zero if a daemon has run on at most `age` days.
    ///
    /// If the file cannot be written, the next call tries again.
    pub(crate) fn oldest(&mut self, now_ns: u64, age: usize) -> u64 {
        let today = now_ns / DAY_NS;
        let is_new = self.days.insert(today);
        while self.days.len() > MOST {
            // If a later day than today is stored, the clock was ahead when that day was stored.
            let is_wrong = self.days.last().is_some_and(|last| *last > today);
            if is_wrong {
                self.days.pop_last()
            } else {
                self.days.pop_first()
            };
        }
        if is_new || !self.is_written {
            self.is_written = self.write().is_ok();
        }
        let day = self.days.range(..=today).rev().nth(age);
        day.map_or(0, |day| day.saturating_mul(DAY_NS))
    }

    fn write(&self) -> io::Result<()> {
        let text: String = self.days.iter().map(|day| format!("{day}\n")).collect();
        let part = self.file.with_extension("part");
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&part)?.write_all(text.as_bytes())?;
        fs::rename(&part, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds the day `today`, and returns the day before which data is more than `age` days old.
    fn oldest(days: &mut RunDays, today: u64, age: usize) -> u64 {
        days.oldest(today * DAY_NS + 5, age) / DAY_NS
    }

    #[test]
    fn age_of_data_counts_only_days_with_running_daemon() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let file = folder.path().join("days");
        let mut days = RunDays::open(file.clone());
        for today in 20_000..20_030 {
            assert_eq!(oldest(&mut days, today, 30), 0, "30 days have not passed");
        }
        assert_eq!(oldest(&mut days, 20_030, 30), 20_000);
        // The host was off for half a year.
        let mut again = RunDays::open(file.clone());
        assert_eq!(oldest(&mut again, 20_212, 30), 20_001);
        assert_eq!(oldest(&mut again, 20_212, 30), 20_001);
        fs::write(&file, "no number\n20000\n").expect("the file");
        assert_eq!(oldest(&mut RunDays::open(file), 20_001, 1), 20_000);
    }

    /// The wall clock is ahead on one day, and behind on another day.
    #[test]
    fn wrong_wall_clock_ages_data_by_at_most_one_day() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut days = RunDays::open(folder.path().join("days"));
        for today in 20_000..20_031 {
            oldest(&mut days, today, 30);
        }
        assert_eq!(oldest(&mut days, 30_000, 30), 20_001);
        assert_eq!(oldest(&mut days, 20_031, 30), 20_001);
        assert_eq!(oldest(&mut days, 0, 30), 0);
        assert_eq!(oldest(&mut days, 20_032, 30), 20_002);
        for today in 30_001..31_000 {
            oldest(&mut days, today, 30);
        }
        assert_eq!(oldest(&mut days, 20_033, 30), 0, "only the newest days are kept");
        assert_eq!(days.days.len(), MOST);
    }

    #[test]
    fn run_days_are_written_later_if_the_first_write_fails() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let file = folder.path().join("absent/days");
        let mut days = RunDays::open(file.clone());
        assert_eq!(oldest(&mut days, 20_000, 0), 20_000);
        assert!(!file.exists());
        fs::create_dir(folder.path().join("absent")).expect("a folder for the test");
        assert_eq!(oldest(&mut days, 20_000, 0), 20_000);
        assert_eq!(fs::read_to_string(&file).expect("the file"), "20000\n");
    }
}
