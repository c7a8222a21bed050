//! Runs as JSON: field names are stable and carry their units; what is not known is null.

use serde_json::{Map, Value, json};
use slackline_metrics::{Field, FieldValue, Summary};

/// All runs of a command.
pub(crate) fn runs(runs: &[(&str, &Summary)]) -> String {
    let runs: Vec<Value> = runs
        .iter()
        .map(|(name, summary)| {
            let mut run = object(summary.fields());
            run.insert("run".into(), json!(name));
            run.insert("vcpus".into(), rows(summary.vcpu_fields()));
            run.insert("cpus".into(), rows(summary.cpu_fields()));
            Value::Object(run)
        })
        .collect();
    format!("{:#}\n", json!({ "format": "slackline-runs-1", "runs": runs }))
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
