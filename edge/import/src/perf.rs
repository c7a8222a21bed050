//! `perf.data`, as `perf sched record` writes it.
//!
//! Source: `tools/perf/Documentation/perf.data-file-format.txt` and `perf_event_open(2)`.

mod attributes;

use std::collections::BTreeSet;

use slackline_trace::WakeMark;

use crate::Kind;
use crate::bytes::Part;
use crate::error::ImportError;
use crate::foreign::{Foreign, ForeignEvent, ForeignEventKind, cpu, tid};
use crate::tracepoint::{Format, Tracepoint};
use attributes::{Attribute, Layout, Sample};

const MAGIC: &[u8] = b"PERFILE2";
const OTHER_ORDER: &[u8] = b"2ELIFREP";
/// Length of the header of a file. The header of a recording that was written to a pipe is shorter.
const HEAD: u64 = 104;

/// Number of a feature (optional section of the file): the formats of the tracepoints.
const TRACING_DATA: usize = 1;
const OS_RELEASE: usize = 4;
const VERSION: usize = 5;
const CPUS: usize = 7;
/// Maximum number of features that a header can name.
const FEATURES: usize = 256;

/// Type of a record that reports lost events (`PERF_RECORD_LOST`).
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;
const AUXTRACE: u32 = 71;
const COMPRESSED: [u32; 2] = [81, 83];

/// Id of the process that is the parent of all kernel threads.
const KTHREADD: i32 = 2;

/// Bits in the saved state of a thread. If any of them is set, the thread is blocked. If none is
/// set, the thread is runnable.
const STATES: i64 = 0xff;

pub(crate) fn is_perf(begin: &[u8]) -> bool {
    begin.starts_with(MAGIC) || begin.starts_with(OTHER_ORDER)
}

pub(crate) fn read(file: &[u8]) -> Result<Foreign, ImportError> {
    if file.starts_with(OTHER_ORDER) {
        return Err(ImportError::BigEndian);
    }
    let head = Part::all(file, "the head");
    let size = head.u64(8)?;
    if size < HEAD {
        return Err(ImportError::Piped { found: size, expected: HEAD });
    }
    let section = |at: usize| Ok::<_, ImportError>((head.u64(at)?, head.u64(at + 8)?));
    let (attributes, data) = (section(24)?, section(40)?);
    if data.1 == 0 {
        return Err(ImportError::Unfinished);
    }
    let attributes = Part::of_file(file, attributes, "the list of events")?;
    let attributes = Attribute::all(file, &attributes, head.u64(16)?)?;
    let layout = Layout::of(&attributes)?;
    let records = Part::of_file(file, data, "the data")?;
    let features = Features::read(file, &head, data.0.saturating_add(data.1))?;
    let mut foreign = Foreign::new(Kind::Perf);
    foreign.has_processes = true;
    features.note(&mut foreign)?;
    let formats = Format::all(features.get(TRACING_DATA).map_or(&[][..], |part| part.bytes()));
    let formats: Vec<Option<Format>> = attributes
        .iter()
        .map(|it| formats.iter().find(|format| it.tracepoint == Some(format.id)).cloned())
        .collect();
    let mut reader = Reader { foreign, layout, formats, kernel: BTreeSet::new() };
    reader.records(&records)?;
    Ok(reader.finish())
}

/// Sections of a file that describe the host and the recorder.
struct Features<'a> {
    sections: Vec<(usize, Part<'a>)>,
}

impl<'a> Features<'a> {
    /// Reads the table of features, which follows the data.
    fn read(file: &'a [u8], head: &Part<'_>, table: u64) -> Result<Features<'a>, ImportError> {
        let mut sections = Vec::new();
        let mut at = table;
        for number in 0..FEATURES {
            let word = head.u64(72 + number / 64 * 8)?;
            if word >> (number % 64) & 1 == 0 {
                continue;
            }
            let entry = Part::of_file(file, (at, 16), "the table of features")?;
            let place = (entry.u64(0)?, entry.u64(8)?);
            sections.push((number, Part::of_file(file, place, "a feature")?));
            at = at.saturating_add(16);
        }
        Ok(Features { sections })
    }

    fn get(&self, number: usize) -> Option<&Part<'a>> {
        self.sections.iter().find(|(known, _)| *known == number).map(|(_, part)| part)
    }

    /// Returns the text of a feature. In the file, 4 bytes with the length precede the text. Empty
    /// if the file does not have the feature.
    fn text(&self, number: usize) -> String {
        self.get(number).map(|part| part.text(4)).unwrap_or_default()
    }

    fn note(&self, foreign: &mut Foreign) -> Result<(), ImportError> {
        foreign.kernel = self.text(OS_RELEASE);
        foreign.recorder = format!("perf {}", self.text(VERSION)).trim_end().to_owned();
        if let Some(part) = self.get(CPUS) {
            foreign.cpus = usize::try_from(part.u32(4)?).ok();
        }
        Ok(())
    }
}

struct Reader {
    foreign: Foreign,
    layout: Layout,
    /// Format of each event. If `None`, the event is ignored.
    formats: Vec<Option<Format>>,
    /// Ids of the kernel's processes.
    kernel: BTreeSet<i32>,
}

impl Reader {
    fn finish(mut self) -> Foreign {
        let kernel = std::mem::take(&mut self.kernel);
        for (tid, thread) in &mut self.foreign.threads {
            thread.is_kernel |= kernel.contains(&thread.process.unwrap_or(*tid));
        }
        self.foreign
    }

    fn records(&mut self, data: &Part<'_>) -> Result<(), ImportError> {
        let mut at = 0;
        while at < data.len() {
            let head = data.part(at, 8, "the head of a record")?;
            let (kind, size) = (head.u32(0)?, usize::from(head.u16(6)?));
            if size < 8 {
                let (what, found) = ("a record", size as u64);
                return Err(ImportError::Short { place: head.place(), what, found, least: 8 });
            }
            let record = data.part(at, size, "a record")?;
            let body = record.part(8, size - 8, "a record")?;
            at += size;
            if COMPRESSED.contains(&kind) {
                return Err(ImportError::Compressed { place: record.place() });
            }
            if kind == AUXTRACE {
                let after = usize::try_from(body.u64(0)?).unwrap_or(usize::MAX);
                data.part(at, after, "data of a trace unit")?;
                at += after;
                continue;
            }
            self.record(kind, &body)?;
        }
        Ok(())
    }

    fn record(&mut self, kind: u32, body: &Part<'_>) -> Result<(), ImportError> {
        let place = body.place();
        let id = |at: usize| tid(i64::from(body.u32(at)?.cast_signed()), place);
        match kind {
            COMM => self.comm((id(0)?, id(4)?), &body.text(8)),
            FORK => {
                let (process, parent_process) = (id(0)?, id(4)?);
                let (child, parent, at) = (id(8)?, id(12)?, body.u64(16)?);
                self.belongs(child, process);
                if process == child && parent_process == KTHREADD {
                    self.kernel.insert(process);
                }
                // Threads that existed before the recording began have no start time.
                if at > 0 {
                    let cpu = cpu(self.layout.trailer(body)?.cpu.unwrap_or(0), place)?;
                    let what = ForeignEventKind::Forked { parent, child };
                    self.foreign.events.push(ForeignEvent { at, cpu, place, what });
                }
            }
            EXIT => {
                let (tid, at) = (id(8)?, body.u64(16)?);
                let cpu = cpu(self.layout.trailer(body)?.cpu.unwrap_or(0), place)?;
                let what = ForeignEventKind::Ending { tid };
                self.foreign.events.push(ForeignEvent { at, cpu, place, what });
            }
            LOST | LOST_SAMPLES => {
                let events = body.u64(if kind == LOST { 8 } else { 0 })?;
                let trailer = self.layout.trailer(body)?;
                if let (Some(at), Some(number)) = (trailer.at, trailer.cpu) {
                    let (cpu, what) = (cpu(number, place)?, ForeignEventKind::Lost { events });
                    self.foreign.events.push(ForeignEvent { at, cpu, place, what });
                }
            }
            SAMPLE => self.sample(body)?,
            _ => {}
        }
        Ok(())
    }

    fn comm(&mut self, (process, tid): (i32, i32), name: &str) {
        self.foreign.name(tid, name, None);
        self.belongs(tid, process);
        if tid == KTHREADD {
            self.kernel.insert(KTHREADD);
        }
    }

    fn belongs(&mut self, tid: i32, process: i32) {
        if tid != 0 {
            self.foreign.threads.entry(tid).or_default().process = Some(process);
        }
    }

    fn sample(&mut self, body: &Part<'_>) -> Result<(), ImportError> {
        let Sample { event, at, cpu: number, raw } = self.layout.sample(body)?;
        let Some(format) = &self.formats[event] else { return Ok(()) };
        let place = body.place();
        let cpu_of = |number: u64| cpu(number, place);
        let field = |name| format.number(&raw, name);
        let what = match format.tracepoint {
            Tracepoint::Switch => {
                let from = tid(field("prev_pid")?, place)?;
                let to = tid(field("next_pid")?, place)?;
                let is_ready = field("prev_state")? & STATES == 0;
                let priority = |name| Ok::<_, ImportError>(i32::try_from(field(name)?).ok());
                let names = [
                    (from, format.text(&raw, "prev_comm")?, priority("prev_prio")?),
                    (to, format.text(&raw, "next_comm")?, priority("next_prio")?),
                ];
                for (tid, name, priority) in names {
                    self.foreign.name(tid, &name, priority);
                }
                ForeignEventKind::Switch { from, is_ready, to }
            }
            Tracepoint::Waking | Tracepoint::Wakeup | Tracepoint::WakeupNew => {
                let tid = tid(field("pid")?, place)?;
                let target = field("target_cpu")?;
                let target = cpu_of(u64::try_from(target).unwrap_or(u64::MAX))?;
                let name = format.text(&raw, "comm")?;
                if format.tracepoint == Tracepoint::Waking {
                    self.foreign.mark = WakeMark::Waking;
                }
                if !self.foreign.threads.contains_key(&tid) {
                    self.foreign.name(tid, &name, None);
                }
                ForeignEventKind::Woke { tid, target }
            }
        };
        let cpu = cpu_of(number)?;
        self.foreign.events.push(ForeignEvent { at, cpu, place, what });
        Ok(())
    }
}
