//! Report of a run as one HTML file. It has the numbers of each vCPU, and the timeline of the
//! daemon's page, drawn by the same script.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use serde_json::json;
use slackline_daemon::front::TIMELINE_SCRIPT;
use slackline_html::{Cell, FigureOrigin, Page, Table};
use slackline_metrics::{Meter, Summary, VcpuSummary};
use slackline_trace::{Record, Sink, VcpuName};
use slackline_units::{Span, Time, VcpuId};

use crate::pending::Pending;
use crate::problem::Problem;
use crate::show;

/// Number of columns of the timeline, which the script of the page assumes too.
const COLUMNS: u64 = 500;

/// Index, in the timeline, of the entry for all threads that are not vCPUs.
const OTHERS: usize = 0;

/// Writes the report of a trace.
pub(crate) fn write(trace: &Path, to: &Path) -> Result<(), Problem> {
    let html = page(trace)?;
    let (pending, mut out) = Pending::new(to)?;
    pending.keep(out.write_all(html.as_bytes()).and_then(|()| out.flush()))
}

fn page(file: &Path) -> Result<String, Problem> {
    let (mut trace, names) = show::open(file)?;
    let header = trace.header().clone();
    let end = names.ended.unwrap_or(Time::START);
    let mut meter = Meter::new(&header);
    let mut columns = Columns::new(end);
    let bad = |error| Problem::BadTrace { file: file.into(), error };
    trace
        .pass_to(&mut (MeterAndColumns { meter: &mut meter, columns: &mut columns }))
        .map_err(bad)?;
    let summary = meter.view().map_err(Problem::of_stray)?;
    let made = FigureOrigin::by("slackline --report")
        .with(&format!("Slackline {}", env!("CARGO_PKG_VERSION")));
    let about = format!(
        "{}, {}, seed {}, {} measured on {} CPUs.",
        header.policy, header.machine, header.seed, summary.length, header.cpus
    );
    let page =
        Page::new(&header.title, made).text(&about).section("Numbers").table(table(&summary));
    let page = page.section("Timeline").timeline(&columns.json(header.cpus), TIMELINE_SCRIPT);
    let page = match header.scenario.as_str() {
        "" => page,
        scenario => page.section("Scenario").code(scenario),
    };
    Ok(page.html())
}

/// Passes records to a meter and to the columns of the timeline.
struct MeterAndColumns<'a> {
    meter: &'a mut Meter,
    columns: &'a mut Columns,
}

impl Sink for MeterAndColumns<'_> {
    fn record(&mut self, record: &Record) {
        self.meter.record(record);
        self.columns.record(record);
    }

    fn named(&mut self, named: &VcpuName) {
        self.meter.named(named);
        self.columns.named(named);
    }
}

/// Columns of the timeline. Each has the time that each vCPU ran on each CPU in one of [`COLUMNS`]
/// equal parts of the run.
struct Columns {
    step: Span,
    vcpus: BTreeMap<VcpuId, usize>,
    names: Vec<String>,
    ran: Vec<BTreeMap<(usize, usize), Span>>,
}

impl Columns {
    fn new(end: Time) -> Columns {
        let step = (end.since(Time::START) / COLUMNS).max(Span::from_us(1));
        let names = vec!["other threads".into()];
        Columns { step, vcpus: BTreeMap::new(), names, ran: Vec::new() }
    }

    fn named(&mut self, named: &VcpuName) {
        let number = self.names.iter().position(|name| *name == named.name);
        let number = number.unwrap_or_else(|| {
            self.names.push(named.name.clone());
            self.names.len() - 1
        });
        self.vcpus.insert(named.vcpu, number);
    }

    fn record(&mut self, record: &Record) {
        let Record::Ran { vcpu, cpu, mut from, to, .. } = *record else { return };
        let vcpu = self.vcpus.get(&vcpu).copied().unwrap_or(OTHERS);
        while from < to {
            let number = from.since(Time::START) / self.step;
            let end = to.min(Time::START.after(self.step * (number + 1)));
            let index = usize::try_from(number).expect("the columns of a run fit in memory");
            if self.ran.len() <= index {
                self.ran.resize_with(index + 1, BTreeMap::new);
            }
            *self.ran[index].entry((cpu.index(), vcpu)).or_default() += end.since(from);
            from = end;
        }
    }

    /// Returns the columns in the form that the script reads.
    fn json(&self, cpus: usize) -> String {
        let part = |used: Span| used.ns().min(self.step.ns()) * 1_000 / self.step.ns();
        let column = |column: &BTreeMap<(usize, usize), Span>| {
            let runs = column.iter();
            let runs = runs.flat_map(|(&(cpu, vcpu), &used)| [cpu as u64, vcpu as u64, part(used)]);
            runs.collect::<Vec<u64>>()
        };
        let columns: Vec<Vec<u64>> = self.ran.iter().map(column).collect();
        json!({
            "first": 0, "step_ns": self.step.ns(), "cpus": (0..cpus).collect::<Vec<_>>(),
            "vcpus": self.names, "columns": columns, "missed": []
        })
        .to_string()
    }
}

fn table(summary: &Summary) -> Table {
    let headings = ["vCPU", "reserved", "share", "missed", "wake to run p50", "p99"];
    let table =
        Table::new(headings).caption("Share of a CPU that each vCPU received, and its waits");
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

#[cfg(test)]
mod tests {
    use slackline_trace::RanEnd;
    use slackline_units::{CpuId, DomId};

    use super::*;

    #[test]
    fn report_columns_divide_run_intervals_and_name_vcpus_like_page() {
        let vcpu = VcpuId::new(0, DomId::new(1), 0);
        let mut columns = Columns::new(Time::START.after(Span::from_ms(5_000)));
        let (at, name) = (Time::START, "a </script>".to_owned());
        columns.named(&VcpuName { at, vcpu, name: name.clone(), domain: name });
        let at = |ms| Time::START.after(Span::from_ms(ms));
        columns.record(&Record::Ran {
            vcpu,
            cpu: CpuId::new(1),
            from: at(5),
            to: at(15),
            used: Span::from_ms(10),
            granted: None,
            late: Span::ZERO,
            end: RanEnd::Blocked,
            due: false,
        });
        let text = columns.json(2);
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&read["step_ns"], &read["cpus"]), (&json!(10_000_000), &json!([0, 1])));
        assert_eq!(read["columns"], json!([[1, 1, 500], [1, 1, 500]]));
    }
}
