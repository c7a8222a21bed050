//! Predictions of `slackline whatif` as JSON. Field names are stable and contain their units.

use serde_json::{Value, json};
use slackline_whatif::{Forecast, Measures};

use super::shown::{lost, verdict};
use super::{Answer, form_name, limits};

const FORMAT: &str = "slackline-whatif-1";

/// Returns the result of the gate as JSON. The gate is the check that decides if the recording
/// allows a prediction.
pub(super) fn gate(answer: &Answer<'_>) -> Value {
    json!({
        "format": FORMAT,
        "recording": recording(answer),
        "gate": gate_value(answer),
        "left_out": left_out(answer)
    })
}

/// Returns the VMs without a prediction, each with the reason.
fn left_out(answer: &Answer<'_>) -> Vec<Value> {
    let vms = answer.left_out.iter();
    vms.map(|vm| json!({ "name": vm.name, "why": vm.why.to_string() })).collect()
}

/// Formats a JSON value as indented text that ends with a newline.
pub(super) fn text(file: &Value) -> String {
    format!("{file:#}\n")
}

/// Returns a prediction and the result of the gate as JSON.
pub(super) fn forecast(answer: &Answer<'_>, forecast: &Forecast) -> Value {
    let forms: Vec<&str> = answer.gate.passing().map(|form| form_name(form.form)).collect();
    let vcpus = forecast.rows.iter().map(|row| {
        let then: serde_json::Map<String, Value> = forms
            .iter()
            .zip(&row.then)
            .map(|(form, it)| ((*form).to_owned(), measures(it)))
            .collect();
        let other_phases: Vec<Value> = row.in_other_phases.iter().map(measures).collect();
        json!({
            "name": row.name, "now": row.now.as_ref().map(measures), "then": then,
            "other_phases": other_phases
        })
    });
    let vcpus: Vec<Value> = vcpus.collect();
    let losses = forecast.losses.iter().map(|loss| {
        let longer = |times: Option<(slackline_units::Span, slackline_units::Span)>| {
            times.map(|(now, then)| json!({ "now_ns": now.ns(), "then_ns": then.ns() }))
        };
        json!({
            "name": loss.name, "share_ppm": loss.share_ppm, "misses": loss.misses,
            "wait_p99": longer(loss.wait_p99), "response_p99": longer(loss.response_p99),
            "says": lost(loss)
        })
    });
    let losses: Vec<Value> = losses.collect();
    json!({
        "format": FORMAT,
        "recording": recording(answer),
        "then": { "policy": answer.model.policy(), "cpus": answer.model.cpus() },
        "gate": gate_value(answer),
        "vcpus": vcpus,
        "losses": losses,
        "left_out": left_out(answer),
        "not_known": limits(answer, forecast)
    })
}

fn recording(answer: &Answer<'_>) -> Value {
    let header = &answer.recording.header;
    json!({
        "title": header.title, "machine": header.machine, "policy": answer.policy,
        "cpus": header.cpus, "length_ns": answer.recording.length().ns()
    })
}

fn gate_value(answer: &Answer<'_>) -> Value {
    let forms = answer.gate.forms.iter().map(|form| {
        let vcpus = form.rows.iter().map(|row| {
            json!({
                "name": row.recorded.name,
                "passes": row.passes(),
                "says": verdict(row),
                "recorded": measures(&row.recorded),
                "simulated": row.simulated.as_ref().map(measures)
            })
        });
        let vcpus: Vec<Value> = vcpus.collect();
        json!({ "form": form_name(form.form), "passes": form.passes(), "vcpus": vcpus })
    });
    let forms: Vec<Value> = forms.collect();
    let cause = answer.gate.cause.as_ref().map(ToString::to_string);
    let change = answer.gate.change.as_ref().map(
        |change| json!({ "says": change.to_string(), "gone_after_ns": change.gone_after().ns() }),
    );
    let passes = answer.gate.passes();
    json!({ "passes": passes, "cause": cause, "last_change": change, "forms": forms })
}

fn measures(it: &Measures) -> Value {
    let ns = |span: Option<slackline_units::Span>| span.map(|span| span.ns());
    json!({
        "share_ppm": it.share_ppm,
        "deadlines": it.deadlines,
        "misses": it.misses,
        "wakes": it.wakes,
        "wait_p50_ns": ns(it.wait_p50),
        "wait_p99_ns": ns(it.wait_p99),
        "response_p50_ns": ns(it.response_p50),
        "response_p99_ns": ns(it.response_p99),
        "slice_ns": it.reserved.map(|reserved| reserved.slice().ns()),
        "period_ns": it.reserved.map(|reserved| reserved.period().ns())
    })
}
