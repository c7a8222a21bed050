//! Report of a run as one HTML file: shares over time, waits, missed deadlines, the timeline that
//! the page of the daemon draws, numbers, claims and scenario.

pub(crate) mod claims;
mod columns;
pub(crate) mod figures;
pub(crate) mod timeline;

use std::io::Write as _;
use std::path::Path;

use slackline_daemon::front::TIMELINE_SCRIPT;
use slackline_html::{Cell, FigureOrigin, Page, Table};
use slackline_metrics::{OverTime, Summary, VcpuSummary};
use slackline_scenario::Scenario;
use slackline_terminal::percent;
use slackline_trace::{Record, Sink, VcpuName};
use slackline_units::Time;

use crate::claims::CheckedRun;
use crate::counted::counted;
use crate::pending::Pending;
use crate::problem::Problem;
use crate::show;
use timeline::{RunTimeline, equal_part};

/// Name of a live host in the header of a trace.
const LIVE: &str = "live";

/// Number of points of each curve in the figure of shares over time.
const POINTS: u64 = 60;

/// Writes the report of a trace. `checked` has the scenario, and a flag that is true if the run
/// reached its end. If the flag is false, the claims of the scenario are not checked.
pub(crate) fn write(trace: &Path, to: &Path, checked: (&Scenario, bool)) -> Result<(), Problem> {
    let html = page(trace, checked)?;
    let (pending, mut out) = Pending::new(to)?;
    pending.keep(out.write_all(html.as_bytes()).and_then(|()| out.flush()))
}

fn page(file: &Path, (scenario, is_whole): (&Scenario, bool)) -> Result<String, Problem> {
    let (mut trace, names) = show::open(file)?;
    let header = trace.header().clone();
    let end = names.ended.unwrap_or(Time::START);
    let over_time = OverTime::new(equal_part(end, POINTS));
    let mut run = RunSinks { timeline: RunTimeline::new(&header, end), over_time };
    let bad = |error| Problem::BadTrace { file: file.into(), error };
    trace.pass_to(&mut run).map_err(bad)?;
    let RunSinks { timeline, over_time } = run;
    let (meter, timeline) = timeline.finish();
    let summary = meter.view().map_err(Problem::of_stray)?;
    let window = over_time.window();
    let shares = over_time.finish().map_err(Problem::of_stray)?;
    let made = FigureOrigin::by("slackline --report")
        .with(&format!("Slackline {}", env!("CARGO_PKG_VERSION")));
    let about = format!(
        "{policy}, {hardware}, seed {seed}, {length} measured on {cpus}.",
        policy = header.policy,
        hardware = header.machine,
        seed = header.seed,
        length = summary.length,
        cpus = counted(header.cpus, "CPU")
    );
    let mut page = Page::new(&header.title, made).text(&about);
    page = page.figure(figures::shares(&shares, window));
    for figure in figures::distributions(&meter.cumulative()) {
        page = page.figure(figure);
    }
    page = page.section("Numbers").table(table(&summary));
    page = page.section("Timeline").timeline(&timeline, TIMELINE_SCRIPT);
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
    timeline: RunTimeline,
    over_time: OverTime,
}

impl Sink for RunSinks {
    fn record(&mut self, record: &Record) {
        self.timeline.record(record);
        self.over_time.record(record);
    }

    fn named(&mut self, named: &VcpuName) {
        self.timeline.named(named);
        self.over_time.named(named);
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
    let share = format!("{} %", percent(vcpu.delivered_ppm));
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
