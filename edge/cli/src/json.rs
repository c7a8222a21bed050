//! Runs as JSON: field names are stable and carry their units; what is not known is null.

use serde_json::{Map, Value, json};
use slackline_metrics::{Field, FieldValue, Summary, XenMonSummary};
use slackline_runs::Numbers;
use slackline_units::Span;

/// All runs of a command.
pub(crate) fn runs(runs: &[(&str, &Summary)]) -> String {
    let runs = runs.iter().map(|(name, summary)| run(name, summary));
    file(&runs.map(Value::Object).collect::<Vec<_>>())
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
    format!("{:#}\n", json!({ "format": "slackline-runs-1", "runs": runs }))
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
