//! Runs as JSON: field names are stable and carry their units; what is not known is null.

use serde_json::{Map, Value, json};
use slackline_metrics::{Field, FieldValue, OverRuns, Summary, XenMonSummary};
use slackline_runs::Numbers;
use slackline_show::why;
use slackline_trace::{Record, Sink};
use slackline_units::{Span, Time};

use crate::names::Names;

const FORMAT: &str = "slackline-runs-1";

/// All runs of a command, with what each case comes to over its seeds if there are several.
pub(crate) fn cases(cases: &[(String, Vec<Summary>)], seeds: &[u64]) -> String {
    let runs = cases.iter().flat_map(|(name, runs)| runs.iter().map(move |one| run(name, one)));
    let runs = runs.map(Value::Object).collect::<Vec<_>>();
    if seeds.len() == 1 {
        return file(&runs);
    }
    let over = cases.iter().map(|(name, runs)| over_seeds(name, runs)).collect::<Vec<_>>();
    format!("{:#}\n", json!({ "format": FORMAT, "runs": runs, "over_seeds": over }))
}

/// What the numbers of the vCPUs come to over runs with different seeds. What one of them does not
/// know, nobody knows.
fn over_seeds(name: &str, runs: &[Summary]) -> Value {
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
    json!({ "run": name, "vcpus": vcpus })
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

/// One run with all that is known of it.
pub(crate) fn numbers(name: &str, numbers: &Numbers) -> String {
    let mut run = run(name, &numbers.summary);
    if let Some(summary) = &numbers.xenmon {
        run.insert("xenmon".into(), xenmon(summary));
    }
    file(&[Value::Object(run)])
}

fn file(runs: &[Value]) -> String {
    format!("{:#}\n", json!({ "format": FORMAT, "runs": runs }))
}

fn run(name: &str, summary: &Summary) -> Map<String, Value> {
    let mut run = object(summary.fields());
    run.insert("run".into(), json!(name));
    run.insert("vcpus".into(), rows(summary.vcpu_fields()));
    run.insert("cpus".into(), rows(summary.cpu_fields()));
    run
}

/// The domains over the whole run, each with its seconds.
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

/// The stretches that touch a window, as they come.
pub(crate) struct Stretches<'a> {
    names: &'a Names,
    from: Time,
    end: Time,
    rows: Vec<Value>,
}

impl<'a> Stretches<'a> {
    pub(crate) fn new(names: &'a Names, from: Time, span: Span) -> Stretches<'a> {
        Stretches { names, from, end: from.after(span), rows: Vec::new() }
    }

    pub(crate) fn file(&self) -> String {
        format!("{:#}\n", json!({ "format": "slackline-list-1", "stretches": self.rows }))
    }
}

impl Sink for Stretches<'_> {
    fn record(&mut self, record: &Record) {
        let Record::Ran { vcpu, cpu, from, to, used, end, due, .. } = *record else { return };
        if to <= self.from || from >= self.end {
            return;
        }
        self.rows.push(json!({
            "from_ns": from.since(Time::START).ns(),
            "to_ns": to.since(Time::START).ns(),
            "cpu": cpu.to_string(),
            "vcpu": self.names.of(vcpu),
            "used_ns": used.ns(),
            "why": why(end),
            "due": due,
        }));
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
