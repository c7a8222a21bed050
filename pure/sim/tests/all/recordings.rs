//! Tests of recordings that are too long to be kept in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slackline_scenario::{FileBytes, Scenario};
use slackline_sim::RunError;
use slackline_trace::Checksum;

/// Largest number of bytes that one read of the file is allowed to ask for.
const LARGEST_READ: usize = 1 << 14;

/// File of equal lines. Its bytes are computed when they are read, and not kept in memory.
struct EqualLines {
    length: u64,
    /// Number of bytes after which reading the file fails.
    fails_after: u64,
    read: AtomicU64,
}

const LINE: &[u8; 16] = b"1000000,2000000\n";

impl EqualLines {
    fn new(lines: u64) -> EqualLines {
        EqualLines { length: lines * 16, fails_after: u64::MAX, read: AtomicU64::new(0) }
    }
}

impl FileBytes for EqualLines {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, String> {
        assert!(into.len() <= LARGEST_READ, "{} bytes are asked for at once", into.len());
        let count = self.length.saturating_sub(offset).min(into.len() as u64);
        if self.read.fetch_add(count, Ordering::Relaxed) >= self.fails_after {
            return Err("it is gone".into());
        }
        let line = LINE.iter().cycle().skip((offset % 16) as usize);
        let count = usize::try_from(count).expect("at most `into.len()` bytes are read");
        into[..count].iter_mut().zip(line).for_each(|(byte, next)| *byte = *next);
        Ok(count)
    }
}

fn scenario(length: &str, work: &str, file: &Arc<EqualLines>) -> Scenario {
    let text = format!(
        "title = 't'\nlength = '{length}'\npolicy = {{ name = 'round-robin' }}\n\
         [[domain]]\nname = 'hog'\nwork = {{ kind = 'spin' }}\n\
         [[domain]]\nname = 'x'\nwork = {{ kind = 'replay', {work} }}\n"
    );
    let load = |_: &str| Ok(Arc::clone(file) as Arc<dyn FileBytes>);
    Scenario::with_bytes(&text, &load).unwrap_or_else(|error| panic!("{error}"))
}

fn checksum(scenario: &Scenario) -> u64 {
    let mut sum = Checksum::new(&[]);
    slackline_sim::run(scenario, &mut sum).expect("the run completes");
    sum.sum()
}

/// A file of 64 MB is read to its end once, to check it. The run reads it again up to the last line
/// that it needs.
#[test]
fn recording_of_64_megabytes_is_read_in_small_pieces() {
    let file = Arc::new(EqualLines::new(4_000_000));
    let streamed = scenario("10s", "file = 'a.csv'", &file);
    assert_eq!(file.read.load(Ordering::Relaxed), file.length);
    assert!(streamed.domains[1].program.steps.is_empty());
    assert_eq!(
        checksum(&streamed),
        checksum(&scenario("10s", "list = ['1ms', '2ms']", &file)),
        "the run is the same as with a short list"
    );
    assert!(file.read.load(Ordering::Relaxed) < file.length + 100_000);
}

/// Each of the 5,000 lines of the recording is 1 ms of computing and 2 ms of sleep. So the
/// recording takes at least 15 s, and begins again within the run of 60 s.
#[test]
fn recording_of_many_lines_is_repeated_after_its_end() {
    let file = Arc::new(EqualLines::new(5_000));
    let streamed = scenario("60s", "file = 'a.csv'", &file);
    let listed = scenario("60s", "list = ['1ms', '2ms']", &file);
    assert_eq!(checksum(&streamed), checksum(&listed));
    assert!(file.read.load(Ordering::Relaxed) > 2 * file.length);
}

#[test]
fn run_fails_with_a_reason_if_its_recording_file_disappears() {
    let lines = EqualLines::new(5_000);
    let file = Arc::new(EqualLines { fails_after: lines.length + 20_000, ..lines });
    let scenario = scenario("60s", "file = 'a.csv'", &file);
    let error = slackline_sim::run(&scenario, &mut ()).expect_err("the file cannot be read");
    assert!(matches!(error, RunError::Recording(_)), "{error}");
    assert_eq!(error.to_string(), "cannot read `a.csv`: it is gone");
}
