//! Results of runs as JSON. Field names are stable and contain their units. Unknown values are
//! null.

use serde_json::{Map, Value, json};
use slackline_experiments::Numbers;
use slackline_metrics::{Field, FieldValue, OverRuns, Summary, XenMonSummary};
use slackline_terminal::{Passes, SchedulingPass, entitled, why};
use slackline_trace::{Exchange, Record, Sink};
use slackline_units::{Span, Time};

use crate::cost::Cost;
use crate::names::Names;
use crate::problem::Problem;

const FORMAT: &str = "slackline-runs-1";

/// Completion of a command: complete, or ended early by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// All runs are complete.
    Whole,
    /// A signal ended the command, so its last run is incomplete or runs are missing.
    Interrupted,
}

impl Completion {
    /// Returns the completion of a command with this outcome.
    pub(crate) fn of(outcome: &Result<(), Problem>) -> Completion {
        if outcome.is_ok() { Completion::Whole } else { Completion::Interrupted }
    }
}

/// Runs that share a heading in the output, one for each seed.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Heading under which the case's runs are shown.
    pub(crate) name: String,
    /// Name of each axis, with the name of the case's value on this axis. Empty without axes.
    pub(crate) point: Vec<(String, String)>,
    /// Summary of the run with each seed.
    pub(crate) runs: Vec<Summary>,
}

impl Case {
    /// Returns a case of a scenario without axes.
    pub(crate) fn new(name: impl Into<String>, runs: Vec<Summary>) -> Case {
        Case { name: name.into(), point: Vec::new(), runs }
    }

    /// Adds the axes of the case's point to the JSON object `into`, if the scenario has axes.
    fn place(&self, into: &mut Map<String, Value>) {
        if !self.point.is_empty() {
            let place = |(axis, name): &(String, String)| (axis.clone(), json!(name));
            into.insert("point".into(), Value::Object(self.point.iter().map(place).collect()));
        }
    }
}

/// Returns all runs of a command as JSON. With several seeds, each case also has statistics over
/// all seeds.
pub(crate) fn cases(cases: &[Case], seeds: &[u64], end: Completion) -> String {
    let mut runs = Vec::new();
    for case in cases {
        for one in &case.runs {
            let mut run = run(&case.name, one);
            case.place(&mut run);
            runs.push(Value::Object(run));
        }
    }
    if seeds.len() == 1 {
        return file(&runs, end);
    }
    let over = cases.iter().map(over_seeds).collect::<Vec<_>>();
    let interrupted = end == Completion::Interrupted;
    let file = json!({
        "format": FORMAT, "interrupted": interrupted, "runs": runs, "over_seeds": over
    });
    format!("{file:#}\n")
}

/// Returns statistics of each vCPU over runs with different seeds. A value that is missing in one
/// run is null.
fn over_seeds(case: &Case) -> Value {
    let Case { name, runs, .. } = case;
    let rows: Vec<Vec<Vec<Field>>> = runs.iter().map(Summary::vcpu_fields).collect();
    let Some(first) = rows.first() else { return json!({ "run": name, "vcpus": [] }) };
    let vcpu = |(row, fields): (usize, &Vec<Field>)| {
        let mut object = Map::new();
        for (column, (field, value)) in fields.iter().enumerate() {
            let numbers = rows.iter().map(|run| number(&run.get(row)?.get(column)?.1));
            if let Some(over) = numbers.collect::<Option<Vec<_>>>().and_then(|it| OverRuns::of(&it))
            {
                object.insert((*field).into(), mean(&over));
            } else if let ("name" | "vcpu", FieldValue::Text(text)) = (*field, value) {
                object.insert((*field).into(), json!(text));
            }
        }
        Value::Object(object)
    };
    let vcpus = first.iter().enumerate().map(vcpu).collect::<Vec<_>>();
    let mut object = Map::from_iter([("run".into(), json!(name)), ("vcpus".into(), vcpus.into())]);
    case.place(&mut object);
    Value::Object(object)
}

fn number(value: &FieldValue) -> Option<i64> {
    match value {
        FieldValue::Count(count) => i64::try_from(*count).ok(),
        FieldValue::Signed(signed) => Some(*signed),
        FieldValue::Text(_) | FieldValue::Flag(_) | FieldValue::Missing => None,
    }
}

fn mean(over: &OverRuns) -> Value {
    let thousandths = |number: i128| number as f64 / 1_000.0;
    let half = over.half_width_thousandths.and_then(|half| i128::try_from(half).ok());
    json!({
        "runs": over.runs,
        "mean": thousandths(over.mean_thousandths),
        "half_width_95": half.map(thousandths),
    })
}

/// Returns one run with all its metrics as JSON.
pub(crate) fn numbers(name: &str, numbers: &Numbers, end: Completion) -> String {
    numbers_at_cost(name, numbers, None, end)
}

/// Returns one run with all its metrics as JSON, and the cost of its simulation if that was
/// requested.
pub(crate) fn numbers_at_cost(
    name: &str,
    numbers: &Numbers,
    cost: Option<&Cost>,
    end: Completion,
) -> String {
    let mut run = run(name, &numbers.summary);
    if let Some(Cost { took, cpu, events, peak_kib }) = cost {
        let [took, cpu] = [took, cpu].map(|it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX));
        let cost =
            json!({ "took_ns": took, "cpu_ns": cpu, "events": events, "peak_kib": peak_kib });
        run.insert("cost".into(), cost);
    }
    if let Some(summary) = &numbers.xenmon {
        run.insert("xenmon".into(), xenmon(summary));
    }
    file(&[Value::Object(run)], end)
}

/// Returns the JSON of a command that was interrupted before it measured anything.
pub(crate) fn nothing() -> String {
    file(&[], Completion::Interrupted)
}

fn file(runs: &[Value], end: Completion) -> String {
    let interrupted = end == Completion::Interrupted;
    format!("{:#}\n", json!({ "format": FORMAT, "interrupted": interrupted, "runs": runs }))
}

fn run(name: &str, summary: &Summary) -> Map<String, Value> {
    let mut run = object(summary.fields());
    run.insert("run".into(), json!(name));
    run.insert("vcpus".into(), rows(summary.vcpu_fields()));
    run.insert("domains".into(), rows(summary.domain_fields()));
    run.insert("cpus".into(), rows(summary.cpu_fields()));
    run.insert("tasks".into(), rows(summary.task_fields()));
    run.insert("clients".into(), rows(summary.client_fields()));
    run
}

/// Returns the metrics of all domains as JSON, over the whole run and for each second.
fn xenmon(summary: &XenMonSummary) -> Value {
    let domain = |domain| {
        let second = |point| object(summary.point_fields(&point, Span::from_secs(1)));
        let seconds = summary.seconds(domain).map(|point| Value::Object(second(point)));
        let mut fields = object(summary.domain_fields(domain));
        fields.insert("seconds".into(), seconds.collect());
        Value::Object(fields)
    };
    let mut fields = object(summary.fields());
    fields.insert("domains".into(), summary.domains.iter().map(domain).collect());
    Value::Object(fields)
}

/// Run intervals of a trace that overlap a window of time, as JSON.
pub(crate) struct Stretches<'a> {
    names: &'a Names,
    from: Time,
    end: Time,
    /// Number of run intervals of the trace outside the window.
    left_out: u64,
    rows: Vec<Value>,
    /// Scheduling passes, if they were requested.
    passes: Option<(Passes, Vec<Value>)>,
}

impl<'a> Stretches<'a> {
    pub(crate) fn new(names: &'a Names, from: Time, span: Span, passes: bool) -> Stretches<'a> {
        let passes = passes.then(Default::default);
        Stretches { names, from, end: from.after(span), left_out: 0, rows: Vec::new(), passes }
    }

    /// Returns a scheduling pass as JSON. `None` if the pass is outside the window.
    fn pass(&self, pass: &SchedulingPass) -> Option<Value> {
        let SchedulingPass { at, cpu, picked, granted, is_refused, empty } = *pass;
        (self.from <= at && at < self.end).then(|| {
            json!({
                "at_ns": at.since(Time::START).ns(),
                "cpu": cpu.to_string(),
                "vcpu": picked.map(|(vcpu, _)| self.names.of(vcpu)),
                "entitlement": picked.map(|(_, entitlement)| entitled(entitlement)),
                "granted_ns": granted.map(Span::ns),
                "refused": is_refused,
                "empty_timeslice_of": empty.map(|vcpu| self.names.of(vcpu)),
            })
        })
    }

    /// Adds `count` run intervals, which the caller has skipped, to the number of run intervals
    /// outside the window.
    pub(crate) fn skip(&mut self, count: u64) {
        self.left_out = self.left_out.saturating_add(count);
    }

    pub(crate) fn file(&self) -> String {
        let mut file = json!({
            "format": "slackline-list-1",
            "not_listed": self.left_out,
            "stretches": self.rows,
        });
        if let Some((_, passes)) = &self.passes {
            file["passes"] = json!(passes);
        }
        format!("{file:#}\n")
    }
}

impl Sink for Stretches<'_> {
    fn record(&mut self, record: &Record) {
        self.passes.iter_mut().for_each(|(passes, _)| passes.record(record));
        let Record::Ran { vcpu, cpu, from, to, used, granted, end, due, .. } = *record else {
            return;
        };
        if to <= self.from || from >= self.end {
            self.left_out += 1;
            return;
        }
        self.rows.push(json!({
            "from_ns": from.since(Time::START).ns(),
            "to_ns": to.since(Time::START).ns(),
            "cpu": cpu.to_string(),
            "vcpu": self.names.of(vcpu),
            "used_ns": used.ns(),
            "granted_ns": granted.map(Span::ns),
            "why": why(end),
            "due": due,
        }));
    }

    fn exchange(&mut self, exchange: &Exchange) {
        let pass = self.passes.as_mut().and_then(|(passes, _)| passes.exchange(exchange));
        let row = pass.and_then(|pass| self.pass(&pass));
        if let Some((_, rows)) = &mut self.passes {
            rows.extend(row);
        }
    }
}

fn rows(rows: Vec<Vec<Field>>) -> Value {
    rows.into_iter().map(|row| Value::Object(object(row))).collect::<Vec<_>>().into()
}

fn object(fields: Vec<Field>) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_string(), to_json(value))).collect()
}

fn to_json(value: FieldValue) -> Value {
    match value {
        FieldValue::Text(text) => json!(text),
        FieldValue::Count(count) => json!(count),
        FieldValue::Signed(number) => json!(number),
        FieldValue::Flag(flag) => json!(flag),
        FieldValue::Missing => Value::Null,
    }
}
