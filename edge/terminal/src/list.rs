//! Two lists from a trace: [`Listing`] has run intervals as lines of text. [`RunList`] has the run
//! and block times of one vCPU, as a table that a workload can replay.

use std::io::{self, Write};

use std::collections::BTreeMap;

use slackline_trace::{Exchange, Header, RanEnd, Record, Sink, VcpuName};
use slackline_units::{CpuId, Span, Time, VcpuId};
use thiserror::Error;

use crate::paint::Paint;
use crate::passes::{Passes, SchedulingPass, entitled};
use crate::shown::shown;

/// Widest column of names. A longer name makes only its own line longer.
const WIDEST_NAME: usize = 64;

/// Lists the run intervals that overlap a window, one per line, for programs like `grep` and `awk`:
///
/// ```text
/// #    from_ms        to_ms cpu  vcpu      used_ms   granted_ms why       of
///  2000.000000  2004.000000 cpu0 web.0    4.000000     4.000000 limit     due
/// ```
///
/// Times are in milliseconds since the start of the run, exact to the nanosecond. The column `why`
/// has the reason why the interval ended. The column `of` has `due` for reserved CPU time and
/// `spare` for slack.
///
/// Adding a record cannot fail. If the writer fails, [`Listing::finish`] returns the error.
pub struct Listing<W: Write> {
    out: W,
    from: Time,
    end: Time,
    names: BTreeMap<VcpuId, String>,
    width: usize,
    /// Number of the trace's run intervals that are outside the window.
    left_out: u64,
    /// Finder of scheduling passes. `None` if passes are not listed.
    passes: Option<Passes>,
    outcome: io::Result<()>,
}

impl<W: Write> Listing<W> {
    /// Starts a list of the window that begins at `from` and has the length `span`. `names` must
    /// contain all vCPUs, and determines the width of the name column. The writer should be
    /// buffered.
    #[must_use]
    pub fn new(mut out: W, names: &[VcpuName], from: Time, span: Span) -> Listing<W> {
        let width = names.iter().map(|named| named.name.chars().count()).max().unwrap_or(0);
        let width = width.clamp(4, WIDEST_NAME);
        let names = BTreeMap::new();
        let outcome = writeln!(
            out,
            "{:<12} {:>13} {:<6} {:<width$} {:>12} {:>12} {:<9} of",
            "#    from_ms", "to_ms", "cpu", "vcpu", "used_ms", "granted_ms", "why"
        );
        let (end, passes) = (from.after(span), None);
        Listing { out, from, end, names, width, left_out: 0, passes, outcome }
    }

    /// Adds scheduling passes and timeslices of zero length to the list. Their lines have `pass` or
    /// `empty` in the column `why`.
    #[must_use]
    pub fn with_passes(self) -> Listing<W> {
        Listing { passes: Some(Passes::default()), ..self }
    }

    /// Ends the list. If there were run intervals outside the window, the last line states their
    /// number.
    ///
    /// # Errors
    /// If any write failed. The first error is returned.
    pub fn finish(mut self) -> io::Result<()> {
        self.outcome?;
        if self.left_out > 0 {
            let (from, end) = (ms(self.from.since(Time::START)), ms(self.end.since(Time::START)));
            let count = self.left_out;
            writeln!(self.out, "# {count} run intervals outside {from} to {end} are not listed")?;
        }
        self.out.flush()
    }

    /// Counts `count` more run intervals as outside the window. The caller skipped them and did not
    /// pass them to this list.
    pub fn skip(&mut self, count: u64) {
        // The number comes from the index of a trace, and a damaged index can have any number.
        self.left_out = self.left_out.saturating_add(count);
    }

    fn line(&mut self, record: &Record) -> io::Result<()> {
        let Record::Ran { vcpu, cpu, from, to, used, granted, end, due, .. } = *record else {
            return Ok(());
        };
        if to <= self.from || from >= self.end {
            self.left_out += 1;
            return Ok(());
        }
        let of = if due { "due" } else { "spare" };
        self.row((from, to), (cpu, Some(vcpu)), (used, granted), (why(end), of))
    }

    fn row(
        &mut self,
        (from, to): (Time, Time),
        (cpu, vcpu): (CpuId, Option<VcpuId>),
        (used, granted): (Span, Option<Span>),
        (why, of): (&str, &str),
    ) -> io::Result<()> {
        let name = |vcpu| self.names.get(&vcpu).map_or("?", |name| name);
        let name = vcpu.map_or("-", name);
        let (from, to) = (ms(from.since(Time::START)), ms(to.since(Time::START)));
        let granted = granted.map_or("-".into(), ms);
        let (used, cpu, width) = (ms(used), cpu.to_string(), self.width);
        writeln!(
            self.out,
            "{from:>12} {to:>13} {cpu:<6} {name:<width$} {used:>12} {granted:>12} {why:<9} {of}"
        )
    }

    /// Lists a scheduling pass. If the pass ends a timeslice of zero length, that timeslice is
    /// listed first.
    fn pass(&mut self, pass: &SchedulingPass) -> io::Result<()> {
        let SchedulingPass { at, cpu, picked, granted, is_refused, empty } = *pass;
        if at < self.from || at >= self.end {
            return Ok(());
        }
        let nothing = Span::ZERO;
        if empty.is_some() {
            self.row((at, at), (cpu, empty), (nothing, None), ("empty", "-"))?;
        }
        let vcpu = picked.map(|(vcpu, _)| vcpu);
        let of = picked.map_or("idle", |(_, entitlement)| entitled(entitlement));
        let of = if is_refused { "refused" } else { of };
        self.row((at, at), (cpu, vcpu), (nothing, granted), ("pass", of))
    }
}

impl<W: Write> Sink for Listing<W> {
    fn record(&mut self, record: &Record) {
        self.passes.iter_mut().for_each(|passes| passes.record(record));
        if self.outcome.is_ok() {
            self.outcome = self.line(record);
        }
    }

    fn exchange(&mut self, exchange: &Exchange) {
        let pass = self.passes.as_mut().and_then(|passes| passes.exchange(exchange));
        if let (Some(pass), true) = (pass, self.outcome.is_ok()) {
            self.outcome = self.pass(&pass);
        }
    }

    fn named(&mut self, named: &VcpuName) {
        self.names.insert(named.vcpu, shown(&named.name, Paint::Plain).into_owned());
    }
}

/// Returns the reason why a run interval ended, in one word.
#[must_use]
pub fn why(end: RanEnd) -> &'static str {
    match end {
        RanEnd::Blocked => "blocked",
        RanEnd::Limit => "limit",
        RanEnd::Preempted => "preempted",
        RanEnd::Yielded => "yielded",
        RanEnd::Over => "over",
    }
}

/// Formats a time in milliseconds, exact to the nanosecond.
fn ms(span: Span) -> String {
    format!("{}.{:06}", span.ns() / 1_000_000, span.ns() % 1_000_000)
}

/// Reason why the run and block times of a vCPU cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RunListError {
    /// The host that made the trace could not observe when vCPUs block.
    #[error(
        "cannot list runs of `{vcpu}`: this trace of a `{machine}` run does not record when \
         vCPUs block"
    )]
    SleepUnknown {
        /// Kind of the host that made the trace: `sim` or `live`.
        machine: String,
        /// Name of the requested vCPU.
        vcpu: String,
    },
    /// No vCPU of the trace has this name.
    #[error("the trace has no vCPU `{vcpu}`; it has {known}")]
    NoSuchVcpu {
        /// Name of the requested vCPU.
        vcpu: String,
        /// Names of the vCPUs in the trace.
        known: String,
    },
}

/// Writes run and block times of a vCPU as CSV, `run_ns,block_ns`. There is one line for each block
/// of the vCPU. The line has the CPU time that the vCPU used before the block, since its last wake,
/// and the length of the block.
///
/// If the vCPU wakes and blocks again without using CPU time, the whole time counts as one block.
/// An incomplete line at the end of the run is left out.
///
/// Adding a record cannot fail. If the writer fails, [`RunList::finish`] returns the error.
pub struct RunList<W: Write> {
    out: W,
    vcpu: VcpuId,
    used: Span,
    /// CPU time that the vCPU used between its last wake and the last block, and the time of that
    /// block. `None` if the vCPU has not blocked.
    slept: Option<(Span, Time)>,
    woke: Option<Time>,
    outcome: io::Result<()>,
}

impl<W: Write> RunList<W> {
    /// Starts the table of the vCPU with this name. If several vCPUs have this name, the first is
    /// used. The writer should be buffered.
    ///
    /// # Errors
    /// If no vCPU has the name, or the trace has no times of blocking.
    pub fn new(
        mut out: W,
        header: &Header,
        names: &[VcpuName],
        name: &str,
    ) -> Result<RunList<W>, RunListError> {
        let Some(named) = names.iter().find(|named| named.name == name) else {
            let names: Vec<_> = names.iter().map(|named| &*named.name).collect();
            return Err(RunListError::NoSuchVcpu { vcpu: name.into(), known: names.join(", ") });
        };
        if !header.knows.sleep {
            let machine = header.machine.clone();
            return Err(RunListError::SleepUnknown { machine, vcpu: name.into() });
        }
        let outcome = writeln!(out, "run_ns,block_ns");
        let (vcpu, used) = (named.vcpu, Span::ZERO);
        Ok(RunList { out, vcpu, used, slept: None, woke: None, outcome })
    }

    /// Ends the table and flushes the writer.
    ///
    /// # Errors
    /// If any write failed. The first error is returned.
    pub fn finish(mut self) -> io::Result<()> {
        self.write_slept();
        self.outcome?;
        self.out.flush()
    }

    /// Writes the line of the last block if the vCPU has woken since then. Until it wakes, the
    /// length of the block is unknown.
    fn write_slept(&mut self) {
        if let (Some((run, since)), Some(woke)) = (self.slept, self.woke) {
            self.slept = None;
            if self.outcome.is_ok() {
                let block = woke.since(since);
                self.outcome = writeln!(self.out, "{},{}", run.ns(), block.ns());
            }
        }
    }
}

impl<W: Write> Sink for RunList<W> {
    fn record(&mut self, record: &Record) {
        match *record {
            Record::Woke { at, vcpu } if vcpu == self.vcpu => self.woke = Some(at),
            Record::Ran { vcpu, used, .. } if vcpu == self.vcpu && !used.is_zero() => {
                self.write_slept();
                self.used += used;
            }
            Record::Blocked { at, vcpu } if vcpu == self.vcpu => {
                self.woke = None;
                if !self.used.is_zero() {
                    self.slept = Some((std::mem::take(&mut self.used), at));
                }
            }
            _ => {}
        }
    }
}
