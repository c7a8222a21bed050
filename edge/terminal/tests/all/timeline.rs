//! Tests of timelines, and of lists of run intervals.

use slackline_terminal::{Glyphs, Listing, Paint, RunList, RunListError, Timeline, WindowError};
use slackline_trace::{Header, Knowledge, RanEnd, Record, Sink, VcpuName};
use slackline_units::{CpuId, DomId, Enforcement, Reservation, Span, Time, VcpuId};

const WEB: VcpuId = VcpuId::new(0, DomId::new(1), 0);
const DB: VcpuId = VcpuId::new(1, DomId::new(2), 0);
const BATCH: VcpuId = VcpuId::new(2, DomId::new(3), 0);

fn header(knows: Knowledge) -> Header {
    Header {
        title: "web and db next to batch".into(),
        machine: "sim".into(),
        policy: "edf".into(),
        parameters: String::new(),
        seed: 1,
        cpus: 1,
        groups: Vec::new(),
        dispatch: Span::ZERO,
        warmup: Span::ZERO,
        knows,
        scenario: String::new(),
    }
}

fn names() -> [VcpuName; 3] {
    let names = [(WEB, "web"), (DB, "db"), (BATCH, "batch")];
    names.map(|(vcpu, name)| VcpuName { at: us(0), vcpu, name: name.into(), domain: name.into() })
}

fn us(us: u64) -> Time {
    Time::START + Span::from_us(us)
}

fn promised(vcpu: VcpuId, slice: u64, period: u64) -> Record {
    let reservation = Reservation::new(Span::from_ms(slice), Span::from_ms(period)).ok();
    Record::Promised {
        at: us(0),
        vcpu,
        reservation,
        exact: false,
        phase: None,
        by: Enforcement::Dispatcher,
    }
}

/// Records of 40 ms. `web` reserves 4 ms in every 10 ms and blocks when its work is done. `db`
/// reserves 2 ms in every 20 ms and always has work, but receives only 1 ms in its first period.
/// `batch` uses the slack.
fn records() -> Vec<Record> {
    use RanEnd::{Blocked, Limit, Over, Preempted};
    let mut records = vec![promised(WEB, 4, 10), promised(DB, 2, 20)];
    records.push(Record::Woke { at: us(0), vcpu: BATCH });
    records.push(Record::Woke { at: us(0), vcpu: DB });
    let turns = [
        (WEB, 0..4000, Blocked),
        (BATCH, 4000..9000, Preempted),
        (DB, 9000..10_000, Preempted),
        (WEB, 10_000..14_000, Blocked),
        (BATCH, 14_000..20_000, Preempted),
        (WEB, 20_000..23_500, Blocked),
        (DB, 23_500..25_500, Limit),
        (BATCH, 25_500..30_800, Preempted),
        (WEB, 30_800..34_800, Blocked),
        (BATCH, 34_800..38_000, Over),
    ];
    for (vcpu, turn, end) in turns {
        let (from, to) = (us(turn.start), us(turn.end));
        if vcpu == WEB {
            // In its last period, `web` waits for some time.
            records.push(Record::Woke { at: us(turn.start / 10_000 * 10_000), vcpu });
        }
        let (used, due) = (to - from, vcpu != BATCH);
        let (cpu, late) = (CpuId::new(0), Span::ZERO);
        records.push(Record::Ran { vcpu, cpu, from, to, used, granted: None, late, end, due });
        if end == Blocked {
            records.push(Record::Blocked { at: to, vcpu });
        }
    }
    records.push(Record::Ended { at: us(38_000) });
    records
}

fn timeline(knows: Knowledge, span: Span) -> Timeline {
    let mut timeline =
        Timeline::new((&header(knows), &names()), us(0), span, 56).expect("the span is not zero");
    for record in records() {
        timeline.record(&record);
    }
    timeline
}

const BLOCKS: &str = "\
web and db next to batch, edf, sim, seed 1

                0ms       10ms      20ms      30ms
                ┬─────────┬─────────┬─────────┬─────────
  a web         ████      ████      ███▄      ▂███▆
    4ms/10ms    ╵         ╵         ╵         ╵
  b db          ─────────█─────────────▄█▄────────────
    2ms/20ms    ╵                   ✗
  c batch       ────▒▒▒▒▒─────▒▒▒▒▒▒─────░▒▒▒▒▒───░▒▒▒

    cpu0        AAAAcccccBAAAAccccccAAAABBcccccAAAAccc

  ▁█ ran as entitled, part to all of a column (CPU: A)
  ░▒ ran in slack (CPU: a)   ╌─ waiting (blank: blocked)
  · CPU mostly without vCPU   ╵ a period begins
  ✗ received less than its slice in the previous period
  The run ended at 38.000ms: later columns are blank.
";

const ASCII: &str = "\
web and db next to batch, edf, sim, seed 1

                0ms       10ms      20ms      30ms
                +---------+---------+---------+---------
  a web         ####      ####      ###+      +####
    4ms/10ms    |         |         |         |
  b db          .........#.............+#+............
    2ms/20ms    |                   !
  c batch       ....=====.....======.....-=====...-===

    cpu0        AAAAcccccBAAAAccccccAAAABBcccccAAAAccc

  +# ran as entitled, part to all of a column (CPU: A)
  -= ran in slack (CPU: a)   . waiting (blank: blocked)
  . CPU mostly without vCPU   | a period begins
  ! received less than its slice in the previous period
  The run ended at 38.000ms: later columns are blank.
";

#[test]
fn timeline_shows_running_waiting_and_blocked_vcpus() {
    let picture = timeline(Knowledge::ALL, Span::from_ms(40));
    assert_eq!(picture.render(Glyphs::Blocks, Paint::Plain), BLOCKS);
    assert_eq!(picture.render(Glyphs::Ascii, Paint::Plain), ASCII);
}

#[test]
fn text_of_a_timeline_is_equal_with_and_without_colours() {
    let picture = timeline(Knowledge::ALL, Span::from_ms(20));
    let mut coloured = picture.render(Glyphs::Blocks, Paint::Colour);
    assert!(coloured.contains("\x1b[38;5;32m████████ "), "{coloured}");
    for code in ["0", "38;5;244", "38;5;32", "38;5;214", "1;38;5;202"] {
        coloured = coloured.replace(&format!("\x1b[{code}m"), "");
    }
    assert_eq!(coloured, picture.render(Glyphs::Blocks, Paint::Plain));
}

#[test]
fn timeline_warns_if_the_host_cannot_tell_blocked_from_waiting() {
    let knows =
        Knowledge { sleep: false, stretches: false, resolution: Span::ZERO, overhead: false };
    let picture = timeline(knows, Span::from_ms(20)).render(Glyphs::Ascii, Paint::Plain);
    // The remarks are in lines that are no wider than the timeline.
    let said = picture.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains(
        "In blank intervals the vCPU was blocked or waited: this host does not see which."
    ));
    assert!(
        said.contains("CPU time was read only from time to time, and is drawn evenly in between.")
    );
    assert!(!picture.contains('!'), "an unknown shortfall is not marked:\n{picture}");
}

#[test]
fn timeline_of_zero_length_is_refused() {
    let refused = Timeline::new((&header(Knowledge::ALL), &names()), us(7), Span::ZERO, 80);
    assert_eq!(refused.err(), Some(WindowError::Empty { from: us(7) }));
}

const LIST: &str = "\
#    from_ms         to_ms cpu    vcpu       used_ms   granted_ms why       of
    9.000000     10.000000 cpu0   db        1.000000            - preempted due
   10.000000     14.000000 cpu0   web       4.000000            - blocked   due
   14.000000     20.000000 cpu0   batch     6.000000            - preempted spare
   20.000000     23.500000 cpu0   web       3.500000            - blocked   due
# 6 run intervals outside 9.500000 to 20.500000 are not listed
";

#[test]
fn list_of_run_intervals_has_one_interval_per_line() {
    let mut text = Vec::new();
    let (from, span) = (us(9500), Span::from_ms(11));
    let mut listing = Listing::new(&mut text, &names(), from, span);
    names().iter().for_each(|named| listing.named(named));
    for record in records() {
        listing.record(&record);
    }
    listing.finish().expect("writing to a vector succeeds");
    assert_eq!(String::from_utf8_lossy(&text), LIST);
}

fn run_list(name: &str) -> Result<String, RunListError> {
    let mut text = Vec::new();
    let mut list = RunList::new(&mut text, &header(Knowledge::ALL), &names(), name)?;
    for record in records() {
        list.record(&record);
    }
    list.finish().expect("writing to a vector succeeds");
    Ok(String::from_utf8(text).expect("the list is UTF-8 text"))
}

/// The vCPU is still blocked at the end of the run, so the length of its last block is unknown.
#[test]
fn csv_list_of_vcpu_has_run_and_block_times() {
    let expected = "run_ns,block_ns\n4000000,6000000\n4000000,6000000\n3500000,6500000\n";
    assert_eq!(run_list("web").as_deref(), Ok(expected));
    assert_eq!(run_list("batch").as_deref(), Ok("run_ns,block_ns\n"));
    let error = run_list("wbe").expect_err("no vCPU has this name");
    assert_eq!(error.to_string(), "the trace has no vCPU `wbe`; it has web, db, batch");
}

#[test]
fn vcpu_csv_list_merges_blocks_separated_by_wake_without_run() {
    let mut text = Vec::new();
    let mut list =
        RunList::new(&mut text, &header(Knowledge::ALL), &names(), "web").expect("web exists");
    let ran = |from, to| Record::Ran {
        vcpu: WEB,
        cpu: CpuId::new(0),
        from: us(from),
        to: us(to),
        used: Span::from_us(to - from),
        granted: None,
        late: Span::ZERO,
        end: RanEnd::Preempted,
        due: true,
    };
    let woke = |at| Record::Woke { at: us(at), vcpu: WEB };
    let blocked = |at| Record::Blocked { at: us(at), vcpu: WEB };
    let story = [
        woke(0),
        ran(0, 1),
        ran(3, 5),
        blocked(5),
        woke(6),
        blocked(7),
        woke(9),
        ran(9, 10),
        blocked(10),
        woke(14),
    ];
    for record in story {
        list.record(&record);
    }
    list.finish().expect("writing to a vector succeeds");
    let expected = "run_ns,block_ns\n3000,4000\n1000,4000\n";
    assert_eq!(String::from_utf8_lossy(&text), expected);
}

/// The host that made the trace could not observe blocking, so no CSV is made.
#[test]
fn csv_list_of_a_trace_without_block_records_is_refused() {
    let header = header(Knowledge {
        sleep: false,
        stretches: true,
        resolution: Span::ZERO,
        overhead: false,
    });
    let refused = RunList::new(Vec::new(), &header, &names(), "web").err();
    let expected = RunListError::SleepUnknown { machine: "sim".into(), vcpu: "web".into() };
    assert_eq!(refused, Some(expected));
}
