//! Activity of every vCPU and CPU in a window of time, collected from a trace.

mod columns;
mod picture;
mod ruler;

use std::collections::BTreeMap;
use std::fmt;

use slackline_trace::{Header, Knowledge, Record, Sink, VcpuName};
use slackline_units::{CpuId, GridClock, Periods, Reservation, Span, Time, VcpuId};
use thiserror::Error;

use crate::paint::Paint;
use crate::shown::shown;
use columns::{Window, overlap, part};

/// Minimum number of columns of a timeline, even if a smaller width is requested.
const FEWEST_COLUMNS: usize = 20;
/// Maximum length of a name that is shown in full.
const LONGEST_NAME: usize = 24;
/// Minimum length of a period whose end is marked, in columns of the timeline. The marks of shorter
/// periods would hide each other.
const COLUMNS_A_PERIOD: u64 = 4;

/// Character set with which a timeline is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glyphs {
    /// Unicode blocks and lines.
    Blocks,
    /// Only characters of ASCII.
    Ascii,
}

/// Reason why a timeline cannot be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WindowError {
    /// The window has zero length.
    #[error("cannot draw a timeline from {from} on: its length is zero")]
    Empty {
        /// Start of the window.
        from: Time,
    },
}

/// A timeline of a window: a line per vCPU with its activity, and a line per CPU with the running
/// vCPU.
///
/// A timeline needs all records up to the end of the trace, since run intervals and waiting are
/// recorded only when they end.
#[derive(Clone, Debug)]
pub struct Timeline {
    pub(crate) about: String,
    pub(crate) window: Window,
    /// Clock for the phases of periods. A period with a phase begins at a multiple of the period on
    /// this clock, plus the phase.
    clock: GridClock,
    pub(crate) knows: Knowledge,
    pub(crate) rows: Vec<Row>,
    /// For each CPU and column, the time of each vCPU that used the CPU.
    pub(crate) lanes: Vec<Vec<BTreeMap<VcpuId, OccupantShare>>>,
    pub(crate) ended: Option<Time>,
    latest: Time,
}

/// Activity of a vCPU in the window.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) vcpu: VcpuId,
    pub(crate) name: String,
    pub(crate) cells: Vec<TimelineCell>,
    pub(crate) periods: Vec<Period>,
    /// Reservation of the vCPU at the end of the window. `None` if the vCPU has no reservation.
    pub(crate) promise: Option<Reservation>,
    awake_since: Option<Time>,
}

/// Activity of a vCPU in one column.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimelineCell {
    /// CPU time that the vCPU used within its reservation.
    pub(crate) due: Span,
    /// CPU time that the vCPU used from slack.
    pub(crate) spare: Span,
    /// Time in which the vCPU was runnable or running.
    pub(crate) awake: Span,
}

/// A period of a vCPU's reservation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    pub(crate) from: Time,
    pub(crate) end: Time,
    slice: Span,
    used: Span,
    awake: Span,
}

impl Period {
    /// Returns true if the vCPU was runnable for the whole period and received less than its slice.
    /// A shortfall of up to a hundredth of the slice does not count. Such a shortfall would not be
    /// visible in a column, and timers of a live host are not exact.
    pub(crate) fn is_short(&self) -> bool {
        self.awake == self.end - self.from && self.used < part(self.slice, (99, 100))
    }
}

/// Time that a vCPU used of a CPU in one column.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OccupantShare {
    pub(crate) due: Span,
    pub(crate) spare: Span,
}

impl Timeline {
    /// Returns an empty timeline of the window that begins at `from` and has the length `span`. The
    /// timeline has a line for each vCPU in `names`, and at most `width` characters per line unless
    /// `width` is too small.
    ///
    /// # Errors
    /// If `span` is zero.
    pub fn new(
        (header, names): (&Header, &[VcpuName]),
        from: Time,
        span: Span,
        width: usize,
    ) -> Result<Timeline, WindowError> {
        if span.is_zero() || from == Time::NEVER {
            return Err(WindowError::Empty { from });
        }
        // A vCPU that leaves and rejoins has one line.
        let names: BTreeMap<VcpuId, String> =
            names.iter().map(|named| (named.vcpu, cut(&named.name))).collect();
        let longest = names.values().map(|name| name.chars().count()).max().unwrap_or(0);
        let columns = width.saturating_sub(picture::margin(longest)).max(FEWEST_COLUMNS);
        let window = ruler::even_window(from, span, columns);
        let row = |(vcpu, name)| Row {
            vcpu,
            name,
            cells: vec![TimelineCell::default(); window.columns()],
            periods: Vec::new(),
            promise: None,
            awake_since: None,
        };
        Ok(Timeline {
            about: about(header),
            window,
            clock: GridClock::default(),
            knows: header.knows,
            rows: names.into_iter().map(row).collect(),
            lanes: vec![vec![BTreeMap::new(); window.columns()]; header.cpus],
            ended: None,
            latest: Time::START,
        })
    }

    /// Formats the timeline as text, with a line break after each line.
    #[must_use]
    pub fn render(&self, glyphs: Glyphs, paint: Paint) -> String {
        let mut whole = self.clone();
        whole.settle_all(self.latest);
        picture::draw(&whole, glyphs, paint)
    }

    fn row(&mut self, vcpu: VcpuId) -> Option<&mut Row> {
        let index = self.index(vcpu)?;
        self.rows.get_mut(index)
    }

    /// Returns the index of the line of a vCPU. `None` if the vCPU has no line.
    pub(crate) fn index(&self, vcpu: VcpuId) -> Option<usize> {
        let index = vcpu.slot();
        if self.rows.get(index).is_some_and(|row| row.vcpu == vcpu) {
            return Some(index);
        }
        self.rows.binary_search_by_key(&vcpu, |row| row.vcpu).ok()
    }

    fn promised(&mut self, at: Time, vcpu: VcpuId, promise: Option<Periods>) {
        let (window, clock) = (self.window, self.clock);
        if at >= window.end() {
            return;
        }
        let Some(row) = self.row(vcpu) else { return };
        row.promise = promise.map(|periods| periods.reservation);
        // The previous reservation ends with the last period that ended before this time.
        row.periods.retain(|period| period.end <= at);
        let Some(periods) = promise else { return };
        let promise = periods.reservation;
        let fewest = part(window.span(), (1, window.columns() as u64)) * COLUMNS_A_PERIOD;
        if promise.period() < fewest {
            return;
        }
        // Periods that end before the window are not shown. A period that ends in the window is
        // shown, even if it began before the window.
        let mut from = at;
        let mut end = periods.first_end(at, &clock);
        if end < window.from() {
            from = end.after(promise.period() * (window.from().since(end) / promise.period()));
            end = from.after(promise.period());
        }
        // Each change of the reservation ends a period early, so there can be very many short
        // periods.
        let most = 2 * window.columns();
        while from < window.end() && row.periods.len() < most {
            let slice = periods.worth(from, end);
            row.periods.push(Period { from, end, slice, used: Span::ZERO, awake: Span::ZERO });
            (from, end) = (end, periods.next_end(end, &clock));
        }
    }

    fn ran(&mut self, vcpu: VcpuId, cpu: CpuId, stretch: Stretch) {
        let window = self.window;
        let Stretch { from, to, used, due } = stretch;
        if to <= from {
            return;
        }
        // It is not known when within the interval the CPU time was used, so it is spread evenly.
        let length = (to - from).ns();
        let share = |span: Span| part(span, (used.ns().min(length), length));
        let kind = |part: Span| if due { (part, Span::ZERO) } else { (Span::ZERO, part) };
        if let Some(row) = self.row(vcpu) {
            for (column, part) in window.spread((from, to)) {
                let (due, spare) = kind(share(part));
                row.cells[column].due += due;
                row.cells[column].spare += spare;
            }
            for period in &mut row.periods {
                period.used += share(overlap((from, to), (period.from, period.end)));
            }
        }
        let Some(lane) = self.lanes.get_mut(cpu.index()) else { return };
        for (column, part) in window.spread((from, to)) {
            let (due, spare) = kind(share(part));
            let held = lane[column].entry(vcpu).or_default();
            held.due += due;
            held.spare += spare;
        }
    }

    /// Counts the vCPU as runnable up to the time `at`. The counted time begins when the vCPU woke
    /// or at the last call, whichever is later.
    fn settle(&mut self, vcpu: VcpuId, at: Time) {
        let window = self.window;
        let Some(row) = self.row(vcpu) else { return };
        let Some(since) = row.awake_since.take() else { return };
        for (column, part) in window.spread((since, at)) {
            row.cells[column].awake += part;
        }
        for period in &mut row.periods {
            period.awake += overlap((since, at), (period.from, period.end));
        }
    }

    fn settle_all(&mut self, at: Time) {
        for index in 0..self.rows.len() {
            self.settle(self.rows[index].vcpu, at);
        }
    }
}

/// A run interval of a vCPU, with its CPU time.
#[derive(Clone, Copy)]
struct Stretch {
    from: Time,
    to: Time,
    used: Span,
    due: bool,
}

impl Sink for Timeline {
    fn record(&mut self, record: &Record) {
        match *record {
            Record::Woke { at, vcpu } => {
                self.latest = self.latest.max(at);
                let since = self.knows.sleep.then_some(at);
                if let Some(row) = self.row(vcpu) {
                    row.awake_since = row.awake_since.or(since);
                }
            }
            Record::Blocked { at, vcpu } | Record::Paused { at, vcpu } => self.settle(vcpu, at),
            Record::Left { at, vcpu } => {
                self.settle(vcpu, at);
                self.promised(at, vcpu, None);
            }
            Record::Promised { at, vcpu, reservation, phase, .. } => {
                let periods = reservation.map(|reservation| Periods { reservation, phase });
                self.promised(at, vcpu, periods);
            }
            Record::ClockSet { at, ahead } => self.clock.set(at, ahead),
            Record::Ran { vcpu, cpu, from, to, used, due, .. } => {
                self.latest = self.latest.max(to);
                self.ran(vcpu, cpu, Stretch { from, to, used, due });
            }
            Record::Ended { at } => {
                self.settle_all(at);
                self.ended = Some(at);
            }
            Record::Joined { .. }
            | Record::RangLate { .. }
            | Record::Refused { .. }
            | Record::Declined { .. }
            | Record::Changed { .. }
            | Record::Boosted { .. }
            | Record::ClientStarted { .. }
            | Record::Job { .. }
            | Record::Unfinished { .. }
            | Record::Spun { .. }
            | Record::Served { .. }
            | Record::Moved { .. }
            | Record::Slowed { .. }
            | Record::Stopped { .. }
            | Record::Spent { .. }
            | Record::Elsewhere { .. }
            | Record::Overhead { .. }
            | Record::OnCpu { .. }
            | Record::Awoken { .. }
            | Record::Halted { .. }
            | Record::Lost { .. }
            | Record::Counted { .. }
            | Record::Accounted { .. } => {}
        }
    }
}

/// Returns a line that describes the trace. Properties that the trace header does not contain are
/// left out.
fn about(header: &Header) -> String {
    let seed =
        if header.machine == "sim" { format!("seed {}", header.seed) } else { String::new() };
    let parts = [&header.title, &header.policy, &header.machine, &seed];
    let mut text = String::new();
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        let comma = if text.is_empty() { "" } else { ", " };
        fmt::Write::write_fmt(&mut text, format_args!("{comma}{part}")).expect("a string has room");
    }
    shown(&text, Paint::Plain).into_owned()
}

fn cut(name: &str) -> String {
    shown(name, Paint::Plain).chars().take(LONGEST_NAME).collect()
}
