//! Tests with damaged recordings. Reading a damaged recording gives a recording or a clear error,
//! and never a panic or a hang.

use proptest::prelude::*;
use slackline_import::{BEGINS, ImportError, Kind, read};

use crate::common::{PERF, TRACE_CMD, TRACEFS, import};

/// Reads a damaged recording of this kind, and returns the number of its records.
fn survives(kind: Kind, bytes: &[u8]) -> Result<u64, ImportError> {
    let import = read(kind, bytes, &[]).inspect_err(|error| {
        assert!(!error.to_string().is_empty() && !error.hint().is_empty());
    })?;
    let mut counter = Counter(0);
    import.pass_to(&mut counter);
    Ok(counter.0)
}

struct Counter(u64);

impl slackline_trace::Sink for Counter {
    fn record(&mut self, _: &slackline_trace::Record) {
        self.0 += 1;
    }
}

fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

#[test]
fn error_about_truncated_perf_recording_names_the_missing_part() {
    let cut = &PERF[..100_000];
    let error = import(cut).expect_err("it is cut");
    let text = error.to_string();
    assert!(text.starts_with("the file is cut: the data ends at byte "), "{text}");
    assert!(text.ends_with("and the file has 100000 bytes"), "{text}");
    for length in (0..PERF.len()).step_by(997) {
        if Kind::of(&PERF[..length.min(BEGINS)]).is_some() {
            assert!(survives(Kind::Perf, &PERF[..length]).is_err(), "{length} bytes");
        }
    }
}

#[test]
fn perf_recording_with_a_damaged_header_is_refused() {
    let with = |at: usize, number: u64| {
        let mut bytes = PERF.to_vec();
        put(&mut bytes, at, number);
        import(&bytes).expect_err("it is damaged").to_string()
    };
    let piped = "this perf.data was written to a pipe: its header has 16 bytes, not 104";
    assert_eq!(with(8, 16), piped);
    assert_eq!(with(48, 0), "the recording was not finished: its header names no data");
    let says = with(16, 10);
    assert!(says.contains("an event has 10 bytes, and needs at least 64"), "{says}");
    let says = with(32, u64::MAX);
    assert!(says.starts_with("the file is cut: the list of events ends at byte"), "{says}");
    let mut swapped = PERF.to_vec();
    swapped[..8].copy_from_slice(b"2ELIFREP");
    assert_eq!(import(&swapped).expect_err("big-endian"), ImportError::BigEndian);
}

/// Each of many events names the whole file as the list of its ids.
#[test]
fn perf_recording_with_overlapping_ids_of_events_is_refused() {
    let number = |at: usize| u64::from_le_bytes(PERF[at..at + 8].try_into().expect("8 bytes"));
    let place = |at: usize| usize::try_from(number(at)).expect("a position");
    let (size, first, length) = (place(16), place(24), PERF.len());
    let mut entry = PERF[first..first + size].to_vec();
    put(&mut entry, size - 16, 0);
    put(&mut entry, size - 8, length as u64);
    let mut bytes = PERF.to_vec();
    bytes.extend(entry.repeat(1_000));
    put(&mut bytes, 24, length as u64);
    put(&mut bytes, 32, 1_000 * size as u64);
    let error = import(&bytes).expect_err("the lists overlap");
    assert!(matches!(error, ImportError::Overlap { .. }), "{error}");
}

#[test]
fn compressed_perf_recording_is_refused_with_a_hint() {
    let mut bytes = PERF.to_vec();
    let data = u64::from_le_bytes(PERF[40..48].try_into().expect("8 bytes"));
    let data = usize::try_from(data).expect("a position");
    bytes[data] = 81;
    let error = import(&bytes).expect_err("it is compressed");
    assert_eq!(error.to_string(), format!("byte {data}: the recording is compressed"));
    assert_eq!(error.hint(), "record without -z");
}

#[test]
fn truncated_ftrace_text_is_refused_only_if_line_is_incomplete() {
    for text in [TRACEFS, TRACE_CMD] {
        let ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
        for end in ends.skip(200).step_by(101) {
            assert!(survives(Kind::Ftrace, &text[..=end]).is_ok());
        }
    }
    let cut = &TRACEFS[..TRACEFS.len() - 40];
    let error = survives(Kind::Ftrace, cut).expect_err("it is cut");
    assert!(matches!(error, ImportError::CutLine { .. }), "{error}");
}

#[test]
fn ftrace_text_with_swapped_lines_is_refused() {
    let text = String::from_utf8(TRACE_CMD.to_vec()).expect("text");
    let mut lines: Vec<&str> = text.lines().collect();
    let count = lines.len();
    lines.swap(count / 4, count / 2);
    let error = survives(Kind::Ftrace, lines.join("\n").as_bytes()).expect_err("reordered");
    assert!(matches!(error, ImportError::Reordered { .. }), "{error}");
}

/// Strategy for changes of single bytes: the position and the new value of each changed byte.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn perf_recording_with_changed_bytes_causes_no_panic(
        changes in changes(),
        is_head in any::<bool>(),
    ) {
        let mut bytes = PERF.to_vec();
        let most = if is_head { 2_000 } else { bytes.len() };
        for (at, byte) in changes {
            // The first bytes stay, because without them the file would not count as a recording.
            bytes[8 + at.index(most - 8)] = byte;
        }
        let _ = survives(Kind::Perf, &bytes);
    }

    #[test]
    fn perf_recording_with_changed_numbers_causes_no_panic(
        at in any::<prop::sample::Index>(),
        number in prop_oneof![any::<u64>(), Just(u64::MAX), Just(0), 0_u64..300_000],
    ) {
        let mut bytes = PERF.to_vec();
        let at = 8 + at.index(bytes.len() - 16) / 8 * 8;
        put(&mut bytes, at, number);
        let _ = survives(Kind::Perf, &bytes);
    }

    #[test]
    fn ftrace_text_with_changed_bytes_causes_no_panic(changes in changes()) {
        let mut bytes = TRACEFS[..40_000].to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = survives(Kind::Ftrace, &bytes);
    }

    #[test]
    fn perf_header_followed_by_any_bytes_causes_no_panic(
        tail in prop::collection::vec(any::<u8>(), 0..4_000),
    ) {
        let mut bytes = PERF[..104].to_vec();
        bytes.extend_from_slice(&tail);
        let _ = survives(Kind::Perf, &bytes);
        let mut bytes = b"# tracer: nop\n".to_vec();
        bytes.extend_from_slice(&tail);
        let _ = survives(Kind::Ftrace, &bytes);
    }
}
