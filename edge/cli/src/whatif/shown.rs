//! Contents of a prediction as outputs show them. They come from a prediction of this command, or
//! from the JSON with which the daemon answers a question.

use serde_json::Value;
use slackline_policy::{find, is_simulated_only};
use slackline_terminal::percent;
use slackline_units::Span;
use slackline_whatif::{Forecast, GateRow, LastChange, Loss, Measures, Row};

use super::{Answer, form_name, limits};

/// Properties of the recording from which a prediction is made.
pub(super) struct ShownRecording {
    pub(super) title: String,
    pub(super) machine: String,
    pub(super) policy: String,
    pub(super) cpus: usize,
    pub(super) length: Span,
}

/// Result of the gate, the check that decides if the recording allows a prediction.
pub(super) struct ShownGate {
    pub(super) recording: ShownRecording,
    pub(super) forms: Vec<ShownForm>,
    /// Number of jobs in the recording. `None` if the daemon answered, because its answer does not
    /// contain the number.
    pub(super) jobs: Option<usize>,
    /// Name of each VM without a prediction, with the reason.
    pub(super) left_out: Vec<(String, String)>,
    /// Cause of the differences between recording and simulation. `None` if a form passes.
    pub(super) cause: Option<String>,
    /// Last change of a VM during the recording. `None` if a form passes, or if no VM changed.
    pub(super) change: Option<ShownChange>,
}

/// Last change of a VM during a recording, shown if no prediction from the recording is possible.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShownChange {
    pub(super) says: String,
    /// Time after which a new recording of the same length does not contain the change.
    pub(super) gone_after: Span,
}

/// Result of the gate for one form of the simulation, open or closed.
pub(super) struct ShownForm {
    pub(super) name: String,
    pub(super) passes: bool,
    pub(super) rows: Vec<ShownGateRow>,
}

/// Recorded and simulated results of one vCPU, with the verdict of the gate on them.
pub(super) struct ShownGateRow {
    pub(super) recorded: Measures,
    pub(super) simulated: Option<Measures>,
    pub(super) verdict: String,
}

/// Prediction for all vCPUs.
pub(super) struct ShownForecast {
    pub(super) recording: ShownRecording,
    /// Policy of the prediction.
    pub(super) policy: String,
    /// Number of CPUs of the prediction.
    pub(super) cpus: usize,
    pub(super) rows: Vec<Row>,
    /// Name of each vCPU that loses by the edits, with a description of its loss.
    pub(super) losses: Vec<(String, String)>,
    /// Statements about what the prediction does not cover.
    pub(super) limits: Vec<String>,
}

impl ShownRecording {
    /// Returns true if waits are compared with the recording. Waits are not compared if the
    /// recorded host had no reservations, because its simulated waits differ from the recorded
    /// waits even without any change.
    pub(super) fn judges_waits(&self) -> bool {
        let name = self.policy.split_whitespace().next().unwrap_or_default();
        !find(name).is_some_and(is_simulated_only)
    }

    fn of(answer: &Answer<'_>) -> ShownRecording {
        let header = &answer.recording.header;
        ShownRecording {
            title: header.title.clone(),
            machine: header.machine.clone(),
            policy: answer.policy.to_owned(),
            cpus: header.cpus,
            length: answer.recording.length(),
        }
    }

    fn of_json(recording: &Value) -> Option<ShownRecording> {
        Some(ShownRecording {
            title: text(&recording["title"])?,
            machine: text(&recording["machine"])?,
            policy: text(&recording["policy"])?,
            cpus: count(&recording["cpus"])?,
            length: Span::from_ns(recording["length_ns"].as_u64()?),
        })
    }
}

impl ShownGate {
    pub(super) fn of(answer: &Answer<'_>) -> ShownGate {
        let forms = answer.gate.forms.iter().map(|form| ShownForm {
            name: form_name(form.form).to_owned(),
            passes: form.passes(),
            rows: form
                .rows
                .iter()
                .map(|row| ShownGateRow {
                    recorded: row.recorded.clone(),
                    simulated: row.simulated.clone(),
                    verdict: verdict(row).to_owned(),
                })
                .collect(),
        });
        ShownGate {
            recording: ShownRecording::of(answer),
            forms: forms.collect(),
            jobs: Some(answer.recording.demand.vcpus.iter().map(|vcpu| vcpu.jobs.len()).sum()),
            left_out: answer
                .left_out
                .iter()
                .map(|vm| (vm.name.clone(), vm.why.to_string()))
                .collect(),
            cause: answer.gate.cause.as_ref().map(ToString::to_string),
            change: answer.gate.change.as_ref().map(ShownChange::of),
        }
    }

    /// Returns the result of the gate in an answer of the daemon. `None` if the answer lacks a
    /// value.
    pub(super) fn of_json(answer: &Value) -> Option<ShownGate> {
        let gate = &answer["gate"];
        let row = |row: &Value| {
            let name = text(&row["name"])?;
            let simulated = match &row["simulated"] {
                Value::Null => None,
                simulated => Some(measures(&name, simulated)?),
            };
            let recorded = measures(&name, &row["recorded"])?;
            Some(ShownGateRow { recorded, simulated, verdict: text(&row["says"])? })
        };
        let form = |form: &Value| {
            let rows = form["vcpus"].as_array()?.iter().map(row);
            let (name, passes) = (text(&form["form"])?, form["passes"].as_bool()?);
            Some(ShownForm { name, passes, rows: rows.collect::<Option<_>>()? })
        };
        let left_out = |vm: &Value| Some((text(&vm["name"])?, text(&vm["why"])?));
        Some(ShownGate {
            recording: ShownRecording::of_json(&answer["recording"])?,
            forms: gate["forms"].as_array()?.iter().map(form).collect::<Option<_>>()?,
            jobs: None,
            left_out: answer["left_out"].as_array()?.iter().map(left_out).collect::<Option<_>>()?,
            cause: text(&gate["cause"]),
            change: ShownChange::of_json(&gate["last_change"]),
        })
    }
}

impl ShownChange {
    pub(super) fn of(change: &LastChange) -> ShownChange {
        ShownChange { says: change.to_string(), gone_after: change.gone_after() }
    }

    fn of_json(change: &Value) -> Option<ShownChange> {
        let gone_after = Span::from_ns(change["gone_after_ns"].as_u64()?);
        Some(ShownChange { says: text(&change["says"])?, gone_after })
    }
}

impl ShownForecast {
    pub(super) fn of(answer: &Answer<'_>, forecast: &Forecast) -> ShownForecast {
        let losses = forecast.losses.iter().map(|loss| (loss.name.clone(), lost(loss)));
        ShownForecast {
            recording: ShownRecording::of(answer),
            policy: answer.model.policy(),
            cpus: answer.model.cpus(),
            rows: forecast.rows.clone(),
            losses: losses.collect(),
            limits: limits(answer, forecast),
        }
    }

    /// Returns the prediction in an answer of the daemon. `None` if the answer lacks a value.
    pub(super) fn of_json(answer: &Value) -> Option<ShownForecast> {
        let row = |row: &Value| {
            let name = text(&row["name"])?;
            let now = match &row["now"] {
                Value::Null => None,
                now => Some(measures(&name, now)?),
            };
            let measured = |it: &Value| measures(&name, it);
            let then = row["then"].as_object()?.values().map(measured).collect::<Option<_>>()?;
            let others = row["other_phases"].as_array()?.iter().map(measured);
            let in_other_phases = others.collect::<Option<_>>()?;
            Some(Row { name, now, then, in_other_phases })
        };
        let loss = |loss: &Value| Some((text(&loss["name"])?, text(&loss["says"])?));
        let list = |key: &str| answer[key].as_array();
        Some(ShownForecast {
            recording: ShownRecording::of_json(&answer["recording"])?,
            policy: text(&answer["then"]["policy"])?,
            cpus: count(&answer["then"]["cpus"])?,
            rows: list("vcpus")?.iter().map(row).collect::<Option<_>>()?,
            losses: list("losses")?.iter().map(loss).collect::<Option<_>>()?,
            limits: list("not_known")?.iter().map(text).collect::<Option<_>>()?,
        })
    }
}

/// Formats a time in milliseconds.
pub(super) fn ms(span: Span) -> String {
    let us = (span.ns() + 500) / 1000;
    format!("{}.{:03} ms", us / 1000, us % 1000)
}

/// Describes the losses of a vCPU because of the edits: less CPU time, more misses, longer waits,
/// longer responses.
pub(super) fn lost(loss: &Loss) -> String {
    let mut parts = Vec::new();
    if loss.share_ppm > 0 {
        parts.push(format!("{} percentage points less CPU time", percent(loss.share_ppm)));
    }
    if loss.misses > 0 {
        let misses = if loss.misses == 1 { "miss" } else { "misses" };
        parts.push(format!("{} more deadline {misses}", loss.misses));
    }
    if let Some((now, then)) = loss.wait_p99 {
        parts.push(format!("p99 wait {} instead of {}", ms(then), ms(now)));
    }
    if let Some((now, then)) = loss.response_p99 {
        parts.push(format!("p99 response {} instead of {}", ms(then), ms(now)));
    }
    parts.join(", ")
}

/// Describes the differences between recording and simulation that the gate found for a vCPU. Empty
/// if there are none.
pub(super) fn verdict(row: &GateRow) -> &'static str {
    match (row.has_share(), row.has_wait()) {
        (true, true) => "",
        (false, true) => "share differs",
        (true, false) if !row.tolerance.judges_waits() => "wait differs (not judged)",
        (true, false) => "wait differs",
        (false, false) => "share and wait differ",
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn count(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// Returns the results of a vCPU from their JSON. The JSON lacks the results that no output shows.
fn measures(name: &str, it: &Value) -> Option<Measures> {
    let span = |key: &str| it[key].as_u64().map(Span::from_ns);
    Some(Measures {
        name: name.to_owned(),
        reserved: None,
        share_ppm: it["share_ppm"].as_u64()?,
        uses_slack: false,
        deadlines: it["deadlines"].as_u64(),
        misses: it["misses"].as_u64(),
        wakes: it["wakes"].as_u64()?,
        wait_p50: span("wait_p50_ns"),
        wait_p99: span("wait_p99_ns"),
        wait_p99_interval: None,
        response_p50: span("response_p50_ns"),
        response_p99: span("response_p99_ns"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn daemon_answer_with_cause_and_last_vm_change_is_parsed() {
        let recording = json!({
            "title": "t", "machine": "live", "policy": "edf", "cpus": 1, "length_ns": 10
        });
        let change = json!({ "says": "web left", "gone_after_ns": 3_000_000_000_u64 });
        let gate = json!({ "forms": [], "cause": "a cause", "last_change": change });
        let answer = json!({ "recording": recording, "gate": gate, "left_out": [] });
        let gate = ShownGate::of_json(&answer).expect("all values");
        let change = ShownChange { says: "web left".into(), gone_after: Span::from_secs(3) };
        assert_eq!((gate.cause.as_deref(), gate.change), (Some("a cause"), Some(change)));
    }
}
