//! Timeline of a run in the form that the page of the daemon draws: which vCPUs ran on each CPU, in
//! equal parts of the run.

use std::collections::BTreeMap;

use serde_json::json;
use slackline_trace::{Record, Sink, VcpuName};
use slackline_units::{Span, Time, VcpuId};

/// Number of columns of the timeline, which the script of the page assumes too.
const COLUMNS: u64 = 500;

/// Index, in the timeline, of the entry for all threads that are not vCPUs.
const OTHERS: usize = 0;

/// Timeline of a run, divided into columns. A column has the time that each vCPU ran on each CPU in
/// one of [`COLUMNS`] equal parts of the run.
pub(crate) struct Columns {
    step: Span,
    vcpus: BTreeMap<VcpuId, usize>,
    names: Vec<String>,
    ran: Vec<BTreeMap<(usize, usize), Span>>,
    /// Missed deadlines: column, index of the vCPU in `names`, and number of misses.
    missed: Vec<(usize, usize, u64)>,
}

impl Columns {
    pub(crate) fn new(end: Time) -> Columns {
        let step = (end.since(Time::START) / COLUMNS).max(Span::from_us(1));
        let names = vec!["other threads".into()];
        Columns { step, vcpus: BTreeMap::new(), names, ran: Vec::new(), missed: Vec::new() }
    }

    /// Returns the columns in the form that the script reads.
    pub(crate) fn json(&self, cpus: usize) -> String {
        let part = |used: Span| used.ns().min(self.step.ns()) * 1_000 / self.step.ns();
        let column = |column: &BTreeMap<(usize, usize), Span>| {
            let runs = column.iter();
            let runs = runs.flat_map(|(&(cpu, vcpu), &used)| [cpu as u64, vcpu as u64, part(used)]);
            runs.collect::<Vec<u64>>()
        };
        let columns: Vec<Vec<u64>> = self.ran.iter().map(column).collect();
        json!({
            "first": 0, "step_ns": self.step.ns(), "cpus": (0..cpus).collect::<Vec<_>>(),
            "vcpus": self.names, "columns": columns, "missed": self.missed
        })
        .to_string()
    }

    /// Marks the deadlines that a vCPU missed after the last mark and up to the time `at`.
    pub(super) fn mark_misses(&mut self, at: Time, name: &str, count: u64) {
        let column = usize::try_from(at.since(Time::START) / self.step);
        let vcpu = self.names.iter().position(|known| known == name);
        if let (Ok(column), Some(vcpu)) = (column, vcpu) {
            self.missed.push((column.saturating_sub(1), vcpu, count));
        }
    }
}

impl Sink for Columns {
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
}

#[cfg(test)]
mod tests {
    use slackline_trace::RanEnd;
    use slackline_units::{CpuId, DomId};

    use super::*;

    #[test]
    fn html_report_timeline_splits_run_interval_at_column_boundaries() {
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
