//! Predictions about changes that were applied, compared with the measured results. A file in the
//! folder of the ledger has a line for each prediction.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use slackline_control::{Prediction, PredictionOutcome, PredictionRecord};
use slackline_live::recorder::ring::FlightRing;
use slackline_metrics::Meter;
use slackline_trace::Header;
use slackline_units::{Span, Time};

/// Size of the file in bytes at which its older half is dropped.
const MOST_BYTES: usize = 64 << 20;

/// Longest time for which a prediction is checked: half of the time that the recorder's ring
/// covers.
const LONGEST: Span = Span::from_secs(30);

/// Delay from a change until the check of its predictions begins, because events of earlier periods
/// still arrive.
const SETTLING: Span = Span::from_ms(500);

/// Maximum number of predictions that are being checked at the same time.
const MOST_OPEN: usize = 1_000;

/// All predictions, from the oldest to the newest.
#[derive(Debug)]
pub(super) struct Predictions {
    file: PathBuf,
    bytes: usize,
    all: Vec<PredictionRecord>,
    open: Vec<OpenPrediction>,
}

/// A prediction whose time has not passed yet.
#[derive(Debug)]
struct OpenPrediction {
    from: Time,
    until: Time,
    predicted: PredictionRecord,
}

impl Predictions {
    /// Reads the file of predictions, if it exists. Damaged lines are skipped.
    pub(super) fn open(folder: &Path) -> Predictions {
        let file = folder.join("predictions");
        let bytes = fs::read(&file).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let all = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Predictions { file, bytes: bytes.len(), all, open: Vec::new() }
    }

    /// Starts checking predictions. Returns false if too many predictions are being checked
    /// already.
    pub(super) fn watch(&mut self, now: Time, wall_ns: u64, predictions: Vec<Prediction>) -> bool {
        if self.open.len() + predictions.len() > MOST_OPEN {
            return false;
        }
        for prediction in predictions {
            let from = now + SETTLING;
            let until = from + Span::from_ns(prediction.length_ns).min(LONGEST);
            let predicted = PredictionRecord { at_ns: wall_ns, prediction, outcome: None };
            self.open.push(OpenPrediction { from, until, predicted });
        }
        true
    }

    /// Returns true if the time of a prediction has passed. The caller can then
    /// [`settle`](Predictions::settle) it.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.open.iter().any(|open| open.until <= now)
    }

    /// Returns all predictions. Predictions that are still being checked come last.
    pub(super) fn all(&self) -> impl Iterator<Item = &PredictionRecord> {
        self.all.iter().chain(self.open.iter().map(|open| &open.predicted))
    }

    /// Compares the predictions whose time has passed with the events in the recorder's ring.
    ///
    /// # Errors
    ///
    /// If the file cannot be written. The result is then kept in memory only.
    pub(super) fn settle(
        &mut self,
        now: Time,
        header: &Header,
        ring: &FlightRing,
    ) -> io::Result<()> {
        let ended = |open: &mut OpenPrediction| open.until <= now;
        let ended: Vec<OpenPrediction> = self.open.extract_if(.., ended).collect();
        let mut written = Ok(());
        for OpenPrediction { from, mut predicted, .. } in ended {
            predicted.outcome = outcome(&predicted.prediction, from, (header, ring));
            written = written.and(self.write(&predicted));
            self.all.push(predicted);
        }
        written
    }

    fn write(&mut self, predicted: &PredictionRecord) -> io::Result<()> {
        let mut line = serde_json::to_string(predicted)?;
        line.push('\n');
        if self.bytes + line.len() > MOST_BYTES {
            self.drop_older_half()?;
        }
        private(&self.file, File::options().append(true))?.write_all(line.as_bytes())?;
        self.bytes += line.len();
        Ok(())
    }

    fn drop_older_half(&mut self) -> io::Result<()> {
        self.all.drain(..self.all.len() / 2);
        let lines: Vec<String> =
            self.all.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let part = self.file.with_extension("part");
        private(&part, File::options().write(true).truncate(true))?.write_all(text.as_bytes())?;
        fs::rename(&part, &self.file)?;
        self.bytes = text.len();
        Ok(())
    }
}

/// Opens a file that only root can read, since it contains names of VMs.
fn private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.create(true).mode(0o600).open(path)
}

/// Returns the measured outcome for a vCPU over the time of its prediction. `None` if the vCPU has
/// left.
fn outcome(
    prediction: &Prediction,
    from: Time,
    (header, ring): (&Header, &FlightRing),
) -> Option<PredictionOutcome> {
    let header = Header { warmup: from.since(Time::START), ..header.clone() };
    let mut meter = Meter::new(&header);
    ring.replay(from, &mut meter).ok()?;
    let summary = meter.view().ok()?;
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
        assert!(predictions.watch(now, 7, vec![prediction("web.0"), prediction("db.0")]));
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
        assert_eq!((mode(&file), predictions.all.len()), (0o600, 1));
        let mut text = fs::read_to_string(&file).expect("the file");
        text.push_str("{\"at_ns\": 5, \n");
        fs::write(&file, text).expect("the file");
        let again = Predictions::open(folder.path());
        assert_eq!(again.all, predictions.all);
        assert!(again.all[0].outcome.is_none(), "a vCPU that is not in the ring has no outcome");
    }
}
