//! Report of a run as one HTML file: shares over time, waits, missed deadlines, the timeline that
//! the page of the daemon draws, numbers, claims and scenario.

pub(crate) mod claims;
pub(crate) mod columns;
pub(crate) mod figures;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use slackline_daemon::front::TIMELINE_SCRIPT;
use slackline_html::{Cell, FigureOrigin, Page, Table};
use slackline_metrics::{Meter, OverTime, Summary, VcpuSummary};
use slackline_scenario::Scenario;
use slackline_trace::{Header, Record, Sink, VcpuName};
use slackline_units::{Span, Time};

use crate::claims::CheckedRun;
use crate::pending::Pending;
use crate::problem::Problem;
use crate::show;
use columns::Columns;

/// Name of a live host in the header of a trace.
const LIVE: &str = "live";

/// Number of points of each curve in the figure of shares over time.
const POINTS: u64 = 60;

/// Number of equal parts of a run at whose ends missed deadlines are marked.
const MARKS: u64 = 100;

/// Writes the report of a trace. `checked` has the scenario, and a flag that is true if the run
/// reached its end. Only then are the claims of the scenario checked.
pub(crate) fn write(trace: &Path, to: &Path, checked: (&Scenario, bool)) -> Result<(), Problem> {
    let html = page(trace, checked)?;
    let (pending, mut out) = Pending::new(to)?;
    pending.keep(out.write_all(html.as_bytes()).and_then(|()| out.flush()))
}

fn page(file: &Path, (scenario, is_whole): (&Scenario, bool)) -> Result<String, Problem> {
    let (mut trace, names) = show::open(file)?;
    let header = trace.header().clone();
    let end = names.ended.unwrap_or(Time::START);
    let mut run = RunSinks::new(&header, end);
    let bad = |error| Problem::BadTrace { file: file.into(), error };
    trace.pass_to(&mut run).map_err(bad)?;
    run.mark_misses(end);
    let RunSinks { meter, over_time, columns, .. } = run;
    let summary = meter.view().map_err(Problem::of_stray)?;
    let window = over_time.window();
    let shares = over_time.finish().map_err(Problem::of_stray)?;
    let made = FigureOrigin::by("slackline --report")
        .with(&format!("Slackline {}", env!("CARGO_PKG_VERSION")));
    let about = format!(
        "{}, {}, seed {}, {} measured on {} CPUs.",
        header.policy, header.machine, header.seed, summary.length, header.cpus
    );
    let mut page = Page::new(&header.title, made).text(&about);
    page = page.figure(figures::shares(&shares, window));
    for figure in figures::distributions(&meter.cumulative()) {
        page = page.figure(figure);
    }
    page = page.section("Numbers").table(table(&summary));
    page = page.section("Timeline").timeline(&columns.json(header.cpus), TIMELINE_SCRIPT);
    if is_whole {
        let run = match header.machine == LIVE {
            true => CheckedRun::live(&summary),
            false => CheckedRun::sim(&summary),
        };
        page = claims::section(page, scenario, &[(header.machine.clone(), run)]);
    }
    if !header.scenario.is_empty() {
        page = page.section("Scenario").code(&header.scenario);
    }
    Ok(page.html())
}

/// Passes the records of a run to everything that the report shows.
struct RunSinks {
    meter: Meter,
    over_time: OverTime,
    columns: Columns,
    /// For each vCPU, the number of missed deadlines that the timeline already marks.
    marked: BTreeMap<String, u64>,
    /// Time between two marks, and time of the next mark.
    marks: (Span, Time),
}

impl RunSinks {
    fn new(header: &Header, end: Time) -> RunSinks {
        let length = end.since(Time::START);
        // Whole milliseconds are easier to read.
        let whole = |part: Span| Span::from_ms(part.ns().div_ceil(1_000_000));
        let part = |parts: u64| match length / parts {
            part if part >= Span::from_ms(10) => whole(part),
            part => part.max(Span::from_us(1)),
        };
        RunSinks {
            meter: Meter::new(header),
            over_time: OverTime::new(part(POINTS)),
            columns: Columns::new(end),
            marked: BTreeMap::new(),
            marks: (part(MARKS), Time::START.after(part(MARKS))),
        }
    }

    /// Marks the deadlines that were missed since the last mark.
    fn mark_misses(&mut self, at: Time) {
        let Ok(summary) = self.meter.view() else { return };
        for vcpu in summary.vcpus {
            let missed = vcpu.misses.unwrap_or(0);
            let marked = self.marked.insert(vcpu.name.clone(), missed).unwrap_or(0);
            if missed > marked {
                self.columns.mark_misses(at, &vcpu.name, missed - marked);
            }
        }
    }
}

impl Sink for RunSinks {
    fn record(&mut self, record: &Record) {
        self.meter.record(record);
        self.over_time.record(record);
        self.columns.record(record);
        let (_, at) = record.when();
        let (interval, next) = self.marks;
        if at >= next {
            self.mark_misses(at);
            self.marks.1 = at.after(interval);
        }
    }

    fn named(&mut self, named: &VcpuName) {
        self.meter.named(named);
        self.over_time.named(named);
        self.columns.named(named);
    }
}

fn table(summary: &Summary) -> Table {
    let headings = ["vCPU", "reserved", "share", "missed", "wake to run p50", "p99"];
    let table = Table::new(headings)
        .caption("Share of a CPU that each vCPU received, and how long each vCPU waited");
    summary.vcpus.iter().fold(table, |table, vcpu| table.row(cells(vcpu)))
}

fn cells(vcpu: &VcpuSummary) -> [Cell; 6] {
    let number = |text: Option<String>| text.map_or(Cell::Dash, Cell::Number);
    let reserved =
        vcpu.promised.map(|promised| format!("{}/{}", promised.slice(), promised.period()));
    let share = format!("{}.{:02} %", vcpu.delivered_ppm / 10_000, vcpu.delivered_ppm / 100 % 100);
    let missed = vcpu.misses.zip(vcpu.deadlines);
    let waits = vcpu.wake_to_run.as_ref();
    [
        Cell::Text(vcpu.name.clone()),
        number(reserved),
        Cell::Number(share),
        number(missed.map(|(missed, of)| format!("{missed} of {of}"))),
        number(waits.and_then(|it| it.p50).map(|it| it.to_string())),
        number(waits.and_then(|it| it.p99).map(|it| it.to_string())),
    ]
}
