//! Formats of tracepoints, parsed from the text in which the kernel describes them.

use crate::bytes::{Part, printable};
use crate::error::ImportError;

/// Tracepoints that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracepoint {
    Switch,
    Waking,
    Wakeup,
    WakeupNew,
}

impl Tracepoint {
    pub(crate) const ALL: [Tracepoint; 4] =
        [Tracepoint::Switch, Tracepoint::Waking, Tracepoint::Wakeup, Tracepoint::WakeupNew];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Tracepoint::Switch => "sched_switch",
            Tracepoint::Waking => "sched_waking",
            Tracepoint::Wakeup => "sched_wakeup",
            Tracepoint::WakeupNew => "sched_wakeup_new",
        }
    }
}

/// Format of a tracepoint: its id, and the position and size of each field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) tracepoint: Tracepoint,
    pub(crate) id: u64,
    fields: Vec<(String, usize, usize)>,
}

impl Format {
    /// Finds the formats of all tracepoints in a text that the kernel wrote. Any bytes may come
    /// between the formats.
    pub(crate) fn all(bytes: &[u8]) -> Vec<Format> {
        Tracepoint::ALL.into_iter().filter_map(|it| Format::find(it, bytes)).collect()
    }

    fn find(tracepoint: Tracepoint, bytes: &[u8]) -> Option<Format> {
        let head = format!("name: {}\nID: ", tracepoint.name());
        let head = head.as_bytes();
        let begin = bytes.windows(head.len()).position(|window| window == head)?;
        let mut lines = bytes[begin + head.len()..].split(|&byte| byte == b'\n');
        let id = text(lines.next()?).trim().parse().ok()?;
        let lines = lines.take_while(|line| !line.starts_with(b"print fmt"));
        let fields = lines.filter_map(|line| field(&text(line))).collect();
        Some(Format { tracepoint, id, fields })
    }

    /// Returns the number in a field of 4 or 8 bytes.
    pub(crate) fn number(&self, raw: &Part<'_>, name: &'static str) -> Result<i64, ImportError> {
        let (at, size) = self.field(name)?;
        match size {
            8 => Ok(raw.u64(at)?.cast_signed()),
            _ => Ok(i64::from(raw.u32(at)?.cast_signed())),
        }
    }

    /// Returns the text in a field.
    pub(crate) fn text(&self, raw: &Part<'_>, name: &'static str) -> Result<String, ImportError> {
        let (at, size) = self.field(name)?;
        Ok(raw.part(at, size, self.tracepoint.name())?.text(0))
    }

    fn field(&self, name: &'static str) -> Result<(usize, usize), ImportError> {
        let known = self.fields.iter().find(|(known, ..)| known == name);
        let missing = ImportError::NoFormat { event: self.tracepoint.name(), field: name };
        known.map(|&(_, at, size)| (at, size)).ok_or(missing)
    }
}

fn text(line: &[u8]) -> String {
    printable(line)
}

/// Parses a line `field:pid_t prev_pid; offset:24; size:4; signed:1;`.
fn field(line: &str) -> Option<(String, usize, usize)> {
    let mut parts = line.split(';').map(|part| part.trim_start_matches(['?', ' ', '\t']));
    let declared = parts.next()?.strip_prefix("field:")?;
    let name = declared.split_whitespace().next_back()?;
    let name = name.split('[').next()?.to_owned();
    let offset = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
    let size = parts.next()?.strip_prefix("size:")?.parse().ok()?;
    Some((name, offset, size))
}
