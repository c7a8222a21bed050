//! Predictions about changes that were applied, and their comparison with measured results. A file
//! in the folder of the ledger contains one line for each prediction.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use slackline_control::{Kind, Prediction, PredictionOutcome, PredictionRecord, Problem};
use slackline_live::recorder::ring::FlightRing;
use slackline_metrics::{Meter, Summary};
use slackline_service::Principal;
use slackline_trace::Header;
use slackline_units::{Span, Time};

/// Maximum size of the file of predictions, in bytes. Before a line is written that would exceed
/// this size, the older half of the file is dropped.
const MOST_BYTES: u64 = 64 << 20;

/// Number of bytes at the end of the file of predictions that are read when the file is opened.
const READ_BYTES: u64 = 8 << 20;

/// Maximum number of predictions in memory, the newest ones. The file can contain older
/// predictions.
const MOST_KEPT: usize = 20_000;

/// Maximum number of predictions in an answer. An answer contains the newest predictions.
pub(super) const MOST_LISTED: usize = 500;

/// Maximum length of the name of a vCPU, in bytes: the longest name of a reservation, a dot and a
/// number.
const LONGEST_NAME: usize = 80;

/// Longest time for which a prediction is compared with measurements. It is half of the time that
/// the flight recorder's ring covers.
const LONGEST: Span = Span::from_secs(30);

/// Delay after a change until the measurements for its predictions begin. During the delay, events
/// of earlier periods still arrive.
const SETTLING: Span = Span::from_ms(500);

/// Maximum number of predictions that are being compared with measurements at the same time. Each
/// principal has a lower limit of its own.
const MOST_OPEN: usize = 2_000;
const MOST_OPEN_EACH: usize = 400;

/// Maximum number of open lists of predictions of one principal. A list is open until it has been
/// compared with measurements. The number is limited because each comparison reads all events since
/// the start of its list.
const MOST_LISTS_EACH: usize = 8;

/// Maximum number of lists that one call of [`settle`](Predictions::settle) compares with
/// measurements.
const MOST_SETTLED: usize = 4;

/// Newest predictions that were compared with measurements, in the order of the comparison, and
/// predictions that still wait for their comparison.
#[derive(Debug)]
pub(super) struct Predictions {
    file: PathBuf,
    /// True if the last line of the file may be incomplete, because a write has failed.
    has_partial_line: bool,
    all: Vec<PredictionRecord>,
    open: Vec<OpenPrediction>,
}

/// A prediction that was not compared with measurements yet. The comparison is made when the time
/// that the prediction covers has passed.
#[derive(Debug)]
struct OpenPrediction {
    by: Principal,
    from: Time,
    until: Time,
    predicted: PredictionRecord,
}

impl Predictions {
    /// Reads the newest predictions from the file, if the file exists. Damaged lines are skipped.
    pub(super) fn open(folder: &Path) -> Predictions {
        let file = folder.join("predictions");
        let bytes = tail(&file).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let newest = text.lines().rev().filter_map(|line| serde_json::from_str(line).ok());
        let is_short = |it: &PredictionRecord| it.prediction.vcpu.len() <= LONGEST_NAME;
        let mut all: Vec<PredictionRecord> = newest.filter(is_short).take(MOST_KEPT).collect();
        all.reverse();
        let has_partial_line = bytes.last().is_some_and(|byte| *byte != b'\n');
        Predictions { file, has_partial_line, all, open: Vec::new() }
    }

    /// Stores the predictions of a list for a later comparison with measurements.
    ///
    /// # Errors
    /// If the name of a vCPU is too long, or if too many predictions or lists already wait for
    /// their comparison.
    pub(super) fn watch(
        &mut self,
        (now, wall_ns): (Time, u64),
        by: Principal,
        predictions: Vec<Prediction>,
    ) -> Result<(), Problem> {
        if let Some(long) = predictions.iter().find(|it| it.vcpu.len() > LONGEST_NAME) {
            let length = long.vcpu.len();
            let detail = format!(
                "cannot watch these predictions: the name of a vCPU has {length} bytes; at most \
                 {LONGEST_NAME} are allowed"
            );
            return Err(Problem::new(Kind::Bad, detail));
        }
        let own = self.open.iter().filter(|open| open.by == by);
        let mut lists: Vec<Time> = own.map(|open| open.from).collect();
        let own = lists.len() + predictions.len();
        lists.dedup();
        let refused = |says: String| {
            let detail = format!("cannot watch these predictions: {says}");
            let problem = Problem::new(Kind::NotNow, detail);
            Err(problem.hinting("apply the plan again in a minute"))
        };
        if own > MOST_OPEN_EACH {
            return refused(format!(
                "this user would have {own} open predictions at a time; at most \
                 {MOST_OPEN_EACH} are allowed"
            ));
        }
        if lists.len() >= MOST_LISTS_EACH {
            return refused(format!(
                "this user already has {} lists of predictions; at most {MOST_LISTS_EACH} are \
                 allowed at a time",
                lists.len()
            ));
        }
        let all = self.open.len() + predictions.len();
        if all > MOST_OPEN {
            return refused(format!(
                "the daemon would watch {all} predictions at a time; at most {MOST_OPEN} are \
                 allowed"
            ));
        }
        for prediction in predictions {
            let from = now + SETTLING;
            let until = from + Span::from_ns(prediction.length_ns).min(LONGEST);
            let predicted = PredictionRecord { at_ns: wall_ns, prediction, outcome: None };
            self.open.push(OpenPrediction { by, from, until, predicted });
        }
        Ok(())
    }

    /// Returns true if the time that some prediction covers has passed. The caller can then compare
    /// the prediction with the measurements by [`settle`](Predictions::settle).
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.open.iter().any(|open| open.until <= now)
    }

    /// Returns the newest predictions. Predictions that were not compared with measurements yet
    /// come last.
    pub(super) fn all(&self) -> impl Iterator<Item = &PredictionRecord> {
        self.all.iter().chain(self.open.iter().map(|open| &open.predicted))
    }

    /// Compares predictions with the events in the flight recorder's ring, if the time that the
    /// predictions cover has passed. Predictions that begin at the same time form a list, which is
    /// compared as a whole. A call compares at most [`MOST_SETTLED`] lists. Further lists wait for
    /// the next call.
    ///
    /// # Errors
    ///
    /// If the file cannot be written. The results are then kept in memory only.
    pub(super) fn settle(
        &mut self,
        now: Time,
        header: &Header,
        ring: &FlightRing,
    ) -> io::Result<()> {
        // A summary is `None` if the events cannot be read.
        let mut measured: BTreeMap<Time, Option<Summary>> = BTreeMap::new();
        let ended = self.open.extract_if(.., |open| {
            let is_taken = measured.contains_key(&open.from) || measured.len() < MOST_SETTLED;
            let has_ended = open.until <= now && is_taken;
            if has_ended {
                measured.entry(open.from).or_insert_with(|| summary(open.from, (header, ring)));
            }
            has_ended
        });
        let ended: Vec<OpenPrediction> = ended.collect();
        let mut written = Ok(());
        for OpenPrediction { from, mut predicted, .. } in ended {
            let summary = measured.get(&from).and_then(Option::as_ref);
            predicted.outcome = summary.and_then(|it| outcome(&predicted.prediction, it));
            written = written.and(self.write(&predicted));
            self.all.push(predicted);
        }
        let surplus = self.all.len().saturating_sub(MOST_KEPT);
        self.all.drain(..surplus);
        written
    }

    fn write(&mut self, predicted: &PredictionRecord) -> io::Result<()> {
        let mut line = serde_json::to_string(predicted)?;
        line.push('\n');
        if self.has_partial_line {
            line.insert(0, '\n');
        }
        let open = || private(&self.file, File::options().append(true));
        let mut file = open()?;
        if file.metadata()?.len() + line.len() as u64 > MOST_BYTES {
            self.drop_older_half()?;
            file = open()?;
        }
        self.has_partial_line = true;
        file.write_all(line.as_bytes())?;
        self.has_partial_line = false;
        Ok(())
    }

    /// Drops the older half of the file, which is full. If the new file cannot be written, the old
    /// file stays.
    fn drop_older_half(&self) -> io::Result<()> {
        let mut old = BufReader::new(File::open(&self.file)?);
        let length = old.get_ref().metadata()?.len();
        old.seek(SeekFrom::Start(length.saturating_sub(MOST_BYTES / 2)))?;
        // The position is probably within a line.
        old.skip_until(b'\n')?;
        let part = self.file.with_extension("part");
        let mut new = private(&part, File::options().write(true).truncate(true))?;
        io::copy(&mut old, &mut new)?;
        fs::rename(&part, &self.file)
    }
}

/// Returns the last [`READ_BYTES`] of a file, beginning with a complete line. The last line may be
/// incomplete.
fn tail(file: &Path) -> io::Result<Vec<u8>> {
    let mut file = BufReader::new(File::open(file)?);
    let length = file.get_ref().metadata()?.len();
    if length > READ_BYTES {
        file.seek(SeekFrom::Start(length - READ_BYTES))?;
        file.skip_until(b'\n')?;
    }
    let mut bytes = Vec::new();
    file.take(READ_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file, or creates it, with read permission for root only, because the file contains names
/// of VMs.
fn private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.create(true).mode(0o600).open(path)
}

/// Returns the metrics of all vCPUs from the time `from` on. `None` if the events cannot be read.
fn summary(from: Time, (header, ring): (&Header, &FlightRing)) -> Option<Summary> {
    let header = Header { warmup: from.since(Time::START), ..header.clone() };
    let mut meter = Meter::new(&header);
    ring.replay(from, &mut meter).ok()?;
    meter.view().ok()
}

/// Returns the measured results of the vCPU of a prediction. `None` if the vCPU has left.
fn outcome(prediction: &Prediction, summary: &Summary) -> Option<PredictionOutcome> {
    let vcpu = summary.vcpus.iter().find(|vcpu| vcpu.name == prediction.vcpu)?;
    let length = summary.length.ns().max(1);
    let ppm = u128::from(vcpu.delivered.ns()) * 1_000_000 / u128::from(length);
    Some(PredictionOutcome {
        length_ns: length,
        share_ppm: u64::try_from(ppm).unwrap_or(u64::MAX),
        missed: vcpu.misses,
        wait_p99_ns: vcpu.wake_to_run.and_then(|wait| wait.p99).map(Span::ns),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn prediction_outcomes_are_found_at_restart_and_damaged_lines_skipped() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut predictions = Predictions::open(folder.path());
        let prediction = |name: &str| Prediction {
            vcpu: name.into(),
            length_ns: 2_000_000_000,
            share_ppm: (150_000, 160_000),
            missed: Some((0, 3)),
            wait_p99_ns: None,
        };
        let now = Time::START + Span::from_secs(5);
        let both = vec![prediction("web.0"), prediction("db.0")];
        predictions.watch((now, 7), Principal::User(0), both).expect("two predictions");
        let header = crate::core::tally::header("edf", 1, slackline_trace::Knowledge::ALL);
        let ring = FlightRing::new(&header, 1 << 20, Span::from_secs(60));
        assert!(!predictions.is_due(now + Span::from_secs(2)));
        let later = now + Span::from_secs(3);
        assert!(predictions.is_due(later));
        predictions.settle(later, &header, &ring).expect("a file for the test");
        assert_eq!(predictions.all().count(), 2);
        let file = folder.path().join("predictions");
        let mode = |path: &Path| fs::metadata(path).expect("the file").permissions().mode() & 0o777;
        assert_eq!(mode(&file), 0o600);
        predictions.drop_older_half().expect("a file for the test");
        assert_eq!(mode(&file), 0o600);
        let mut text = fs::read_to_string(&file).expect("the file");
        text.push_str("{\"at_ns\": 5, \n");
        fs::write(&file, text).expect("the file");
        let again = Predictions::open(folder.path());
        // A short file loses only its first line.
        assert_eq!(again.all, predictions.all[1..]);
        assert!(again.all[0].outcome.is_none(), "a vCPU that is not in the ring has no outcome");
    }

    fn prediction(vcpu: String) -> Prediction {
        let (length_ns, share_ppm) = (1, (1, 2));
        Prediction { vcpu, length_ns, share_ppm, missed: None, wait_p99_ns: None }
    }

    fn record(vcpu: &str) -> PredictionRecord {
        PredictionRecord { at_ns: 5, prediction: prediction(vcpu.into()), outcome: None }
    }

    fn line(vcpu: &str) -> String {
        serde_json::to_string(&record(vcpu)).expect("a record") + "\n"
    }

    #[test]
    fn stored_predictions_survive_failed_writes_of_their_file() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let file = folder.path().join("predictions");
        let line = line("web.0");
        let full = line.repeat(usize::try_from(MOST_BYTES).expect("64 MiB") / line.len());
        fs::write(&file, &full).expect("a file for the test");
        let mut predictions = Predictions::open(folder.path());
        // A folder in place of the temporary file makes each attempt to shorten the file fail.
        let part = folder.path().join("predictions.part");
        fs::create_dir(&part).expect("a folder for the test");
        for _ in 0..3 {
            assert!(predictions.write(&record("web.1")).is_err());
        }
        let length = || fs::metadata(&file).expect("the file").len();
        assert_eq!(length(), full.len() as u64);
        fs::remove_dir(&part).expect("a folder for the test");
        predictions.write(&record("web.1")).expect("a file for the test");
        assert!(length().abs_diff(MOST_BYTES / 2) < 2 * line.len() as u64, "{}", length());
        // A line that was written only in part does not swallow the next line.
        let mut part = File::options().append(true).open(&file).expect("the file");
        part.write_all(b"{\"at_ns\": 5").expect("the file");
        Predictions::open(folder.path()).write(&record("late.0")).expect("a file for the test");
        let again = Predictions::open(folder.path());
        let newest = again.all.iter().rev().map(|it| it.prediction.vcpu.as_str());
        assert_eq!(newest.take(3).collect::<Vec<&str>>(), ["late.0", "web.1", "web.0"]);
    }

    #[test]
    fn number_and_name_length_of_watched_predictions_are_limited() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut predictions = Predictions::open(folder.path());
        let mut watch = |user, second, count: usize| {
            let at = Time::START + Span::from_secs(second);
            let list = vec![prediction("web.0".into()); count];
            predictions.watch((at, 7), Principal::User(user), list)
        };
        assert_eq!(watch(1, 1, 400), Ok(()));
        let problem = watch(1, 2, 1).expect_err("401 predictions");
        let says = "401 open predictions at a time; at most 400 are allowed";
        assert!(problem.detail.ends_with(says), "{problem:?}");
        for second in 0..8 {
            assert_eq!(watch(2, second, 1), Ok(()), "{second}");
        }
        assert_eq!(watch(2, 8, 1).expect_err("nine lists").kind, Kind::NotNow);
        for user in 3..6 {
            assert_eq!(watch(user, 1, 400), Ok(()));
        }
        assert_eq!(watch(6, 1, 392), Ok(()));
        assert!(watch(7, 1, 1).is_err(), "2,000 are being checked");
        let long = vec![prediction(format!("web.{}", "0".repeat(100)))];
        let refused = predictions.watch((Time::START, 7), Principal::User(0), long);
        assert_eq!(refused.expect_err("a long name").kind, Kind::Bad);
    }

    /// A plan from a long trace file covers more than the 30 s that are compared.
    #[test]
    fn prediction_of_any_length_occupies_its_slot_only_30_seconds() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut predictions = Predictions::open(folder.path());
        let header = crate::core::tally::header("edf", 1, slackline_trace::Knowledge::ALL);
        let ring = FlightRing::new(&header, 1 << 20, Span::from_secs(60));
        for second in [1, 40] {
            let at = Time::START + Span::from_secs(second);
            let longest = Prediction { length_ns: u64::MAX, ..prediction("web.0".into()) };
            let list = vec![longest; MOST_OPEN_EACH];
            predictions.watch((at, 7), Principal::User(1), list).expect("all slots are free");
            let ended = at + SETTLING + LONGEST;
            assert!(!predictions.is_due(at + LONGEST) && predictions.is_due(ended));
            predictions.settle(ended, &header, &ring).expect("a file for the test");
            assert!(predictions.open.is_empty());
        }
    }

    #[test]
    fn one_pass_compares_at_most_four_prediction_lists_with_outcomes() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut predictions = Predictions::open(folder.path());
        for (user, second) in [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)] {
            let at = Time::START + Span::from_secs(second);
            let list = vec![prediction("web.0".into()); 100];
            predictions.watch((at, 7), Principal::User(user), list).expect("100 predictions");
        }
        let header = crate::core::tally::header("edf", 1, slackline_trace::Knowledge::ALL);
        let ring = FlightRing::new(&header, 1 << 20, Span::from_secs(60));
        let later = Time::START + Span::from_secs(10);
        predictions.settle(later, &header, &ring).expect("a file for the test");
        assert_eq!((predictions.all.len(), predictions.open.len()), (400, 100));
        predictions.settle(later, &header, &ring).expect("a file for the test");
        assert_eq!((predictions.all.len(), predictions.open.len()), (500, 0));
    }

    #[test]
    fn overlong_predictions_file_is_read_in_part_and_shortened() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let file = folder.path().join("predictions");
        let text = line(&("a.".to_owned() + &"0".repeat(15_000))).repeat(4_500);
        let text = text + &line("web.0").repeat(50_000);
        assert!(text.len() as u64 > MOST_BYTES);
        fs::write(&file, &text).expect("a file for the test");
        let mut predictions = Predictions::open(folder.path());
        assert!(tail(&file).expect("the file").len() as u64 <= READ_BYTES);
        assert_eq!(predictions.all, vec![record("web.0"); MOST_KEPT]);
        predictions.write(&record("db.0")).expect("a file for the test");
        let length = fs::metadata(&file).expect("the file").len();
        assert!(length < MOST_BYTES / 2 + 1_000, "{length}");
        let again = Predictions::open(folder.path());
        assert_eq!((again.all.len(), again.all.last()), (MOST_KEPT, Some(&record("db.0"))));
    }
}
