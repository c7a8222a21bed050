//! Events that a `perf.data` file describes, and the format of their samples.

use std::collections::BTreeMap;

use crate::bytes::Part;
use crate::error::ImportError;

/// Length of the description of a section, which consists of offset and size.
const SECTION: u64 = 16;
/// Type number of tracepoint events.
const TRACEPOINT: u32 = 2;
/// Flag of an event: records that are not samples also contain time and CPU.
const SAMPLE_ID_ALL: u64 = 1 << 18;

/// Flag of an event: its samples contain the instruction pointer.
const IP: u64 = 1;
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const ADDRESS: u64 = 1 << 3;
const READ: u64 = 1 << 4;
const CALL_CHAIN: u64 = 1 << 5;
const ID: u64 = 1 << 6;
const CPU: u64 = 1 << 7;
const PERIOD: u64 = 1 << 8;
const STREAM_ID: u64 = 1 << 9;
const RAW: u64 = 1 << 10;
const IDENTIFIER: u64 = 1 << 16;

/// Flags of an event: each counter reading contains the times for which the event was enabled and
/// running.
const TOTAL_TIMES: u64 = 3;
const GROUP: u64 = 1 << 3;
/// Flags of an event: each value in a counter reading is followed by the event's id and by its
/// number of losses.
const OF_EACH: u64 = 1 << 2 | 1 << 4;

/// An event that was recorded, as the header of the file describes it.
#[derive(Debug)]
pub(crate) struct Attribute {
    /// Id of the tracepoint. `None` if the event is not a tracepoint.
    pub(crate) tracepoint: Option<u64>,
    sample: u64,
    read: u64,
    has_trailers: bool,
    ids: Vec<u64>,
}

impl Attribute {
    /// Reads the descriptions of all events. In the list, each description takes `size` bytes.
    pub(crate) fn all(
        file: &[u8],
        list: &Part<'_>,
        size: u64,
    ) -> Result<Vec<Attribute>, ImportError> {
        let (what, least) = ("an event", 48 + SECTION);
        let whole = usize::try_from(size).ok().filter(|_| size >= least);
        let short = ImportError::Short { place: list.place(), what, found: size, least };
        let whole = whole.ok_or(short)?;
        let (mut all, mut left) = (Vec::new(), file.len());
        for number in 0..list.len() / whole {
            let entry = list.part(number * whole, whole, what)?;
            let ids = (entry.u64(whole - 16)?, entry.u64(whole - 8)?);
            let ids = Part::of_file(file, ids, "the ids of an event")?;
            // Lists that overlap would need far more memory than the file.
            let overlap = ImportError::Overlap { place: entry.place() };
            left = left.checked_sub(ids.len()).ok_or(overlap)?;
            let ids = (0..ids.len() / 8).map(|index| ids.u64(index * 8));
            all.push(Attribute {
                tracepoint: (entry.u32(0)? == TRACEPOINT).then_some(entry.u64(8)?),
                sample: entry.u64(24)?,
                read: entry.u64(32)?,
                has_trailers: entry.u64(40)? & SAMPLE_ID_ALL != 0,
                ids: ids.collect::<Result<_, _>>()?,
            });
        }
        if all.is_empty() {
            let (place, found) = (list.place(), list.len() as u64);
            let what = "the list of events";
            return Err(ImportError::Short { place, what, found, least });
        }
        Ok(all)
    }
}

/// Format of all samples, and of the fields at the end of other records.
pub(crate) struct Layout {
    attributes: Vec<Attribute>,
    by_id: BTreeMap<u64, usize>,
}

/// A sample of an event.
pub(crate) struct Sample<'a> {
    /// Index of the sample's event.
    pub(crate) event: usize,
    pub(crate) at: u64,
    pub(crate) cpu: u64,
    pub(crate) raw: Part<'a>,
}

/// Fields at the end of a record that is not a sample.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trailer {
    pub(crate) at: Option<u64>,
    pub(crate) cpu: Option<u64>,
}

impl Layout {
    pub(crate) fn of(attributes: &[Attribute]) -> Result<Layout, ImportError> {
        let events = attributes.len();
        let first = &attributes[0];
        for (index, attribute) in attributes.iter().enumerate() {
            let has = |bit: u64| attribute.sample & bit != 0;
            let needed = [(TIME, "time"), (CPU, "CPU"), (RAW, "raw data")];
            let needed = needed.into_iter().filter(|_| attribute.tracepoint.is_some());
            if let Some((_, missing)) = needed.into_iter().find(|&(bit, _)| !has(bit)) {
                return Err(ImportError::NoSampleField { event: index + 1, events, missing });
            }
            let is_told = has(IDENTIFIER) && first.sample & IDENTIFIER != 0;
            let is_same = attribute.sample == first.sample && attribute.read == first.read;
            if !is_told && !(is_same && (has(ID) || events == 1)) {
                return Err(ImportError::Ambiguous { event: index + 1, events });
            }
        }
        let ids = attributes.iter().enumerate();
        let by_id = ids.flat_map(|(index, it)| it.ids.iter().map(move |&id| (id, index)));
        let attributes = attributes.iter().map(|it| Attribute { ids: Vec::new(), ..*it });
        Ok(Layout { by_id: by_id.collect(), attributes: attributes.collect() })
    }

    /// Reads a sample of any event.
    pub(crate) fn sample<'a>(&self, body: &Part<'a>) -> Result<Sample<'a>, ImportError> {
        let event = self.event(body)?;
        let Attribute { sample, read, .. } = self.attributes[event];
        let has = |bit: u64| sample & bit != 0;
        let words = |bits: u64| 8 * (sample & bits).count_ones() as usize;
        let mut at = words(IDENTIFIER | IP | TID);
        let time = if has(TIME) { body.u64(at)? } else { 0 };
        at += words(TIME | ADDRESS | ID | STREAM_ID);
        let cpu = if has(CPU) { u64::from(body.u32(at)?) } else { 0 };
        at += words(CPU | PERIOD);
        if has(READ) {
            at += read_size(body, at, read)?;
        }
        if has(CALL_CHAIN) {
            let calls = usize::try_from(body.u64(at)?).unwrap_or(usize::MAX);
            at = at.saturating_add(calls.saturating_mul(8)).saturating_add(8);
        }
        let raw = match has(RAW) {
            true => {
                let size = usize::try_from(body.u32(at)?).unwrap_or(usize::MAX);
                body.part(at.saturating_add(4), size, "the raw data of a sample")?
            }
            false => body.part(0, 0, "a sample")?,
        };
        Ok(Sample { event, at: time, cpu, raw })
    }

    fn event(&self, body: &Part<'_>) -> Result<usize, ImportError> {
        let sample = self.attributes[0].sample;
        let id = if sample & IDENTIFIER != 0 {
            body.u64(0)?
        } else if self.attributes.len() > 1 {
            body.u64(8 * (sample & (IP | TID | TIME | ADDRESS)).count_ones() as usize)?
        } else {
            return Ok(0);
        };
        let events = self.attributes.len();
        let unknown = ImportError::UnknownEvent { place: body.place(), id, events };
        self.by_id.get(&id).copied().ok_or(unknown)
    }

    /// Reads time and CPU at the end of a record that is not a sample.
    pub(crate) fn trailer(&self, body: &Part<'_>) -> Result<Trailer, ImportError> {
        let Attribute { sample, has_trailers, .. } = self.attributes[0];
        if !has_trailers {
            return Ok(Trailer::default());
        }
        let parts = [TID, TIME, ID, STREAM_ID, CPU, IDENTIFIER];
        let size = 8 * parts.iter().filter(|&&bit| sample & bit != 0).count();
        let from = body.len().saturating_sub(size);
        let part = body.part(from, size, "the end of a record")?;
        let place = |bit: u64| {
            let before = parts.iter().take_while(|&&it| it != bit);
            8 * before.filter(|&&it| sample & it != 0).count()
        };
        let at = (sample & TIME != 0).then(|| part.u64(place(TIME))).transpose()?;
        let cpu = (sample & CPU != 0).then(|| part.u32(place(CPU))).transpose()?;
        Ok(Trailer { at, cpu: cpu.map(u64::from) })
    }
}

/// Returns the length of the counter value that a sample contains.
fn read_size(body: &Part<'_>, at: usize, read: u64) -> Result<usize, ImportError> {
    let times = (read & TOTAL_TIMES).count_ones() as usize;
    let each = 1 + (read & OF_EACH).count_ones() as usize;
    let count = match read & GROUP {
        0 => return Ok(8 * (times + each)),
        _ => usize::try_from(body.u64(at)?).unwrap_or(usize::MAX),
    };
    Ok(count.saturating_mul(8 * each).saturating_add(8 * (times + 1)).min(body.len()))
}
