//! Results of a load process, as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};
use slackline_load::{LoadResults, Report};
use slackline_units::Span;

/// Returns the results as one line of text.
pub(crate) fn line(done: &LoadResults) -> String {
    let LoadResults { elapsed, used, .. } = *done;
    let mut text = String::new();
    if done.asked > 0 {
        let rate = tenths(done.answered, 1_000_000_000, elapsed);
        let _ = write!(text, "{} requests, {} answered ", done.asked, done.answered);
        let _ = write!(text, "({rate}/s), {} lost; ", done.lost);
    }
    if let Some(responses) = done.responses {
        let worst = micros(responses.worst);
        let _ = match (responses.p50.map(micros), responses.p99.map(micros)) {
            (Some(p50), Some(p99)) => {
                write!(text, "response p50 {p50}, p99 {p99}, worst {worst} us; ")
            }
            _ => write!(text, "response {worst} us; "),
        };
    }
    for (what, bytes) in [("sent", done.sent), ("received", done.received), ("read", done.read)] {
        if bytes > 0 {
            // A bit per microsecond is a megabit per second.
            let rate = tenths(bytes, 8 * 1_000, elapsed);
            let _ = write!(text, "{what} {bytes} bytes ({rate} Mbit/s); ");
        }
    }
    if done.is_direct == Some(false) {
        text += "through the cache; ";
    }
    let _ = writeln!(text, "used {used} of CPU time in {elapsed}");
    text
}

/// Returns the results as JSON. Names contain their units, and values that do not apply are null.
pub(crate) fn json(done: &LoadResults) -> String {
    let span = |pick: fn(&slackline_load::Responses) -> Option<Span>| {
        done.responses.as_ref().and_then(pick).map_or(Value::Null, |span| json!(span.ns()))
    };
    let whole = json!({
        "format": "slackline-load-1",
        "elapsed_ns": done.elapsed.ns(),
        "used_ns": done.used.ns(),
        "requests": done.asked,
        "answered": done.answered,
        "lost": done.lost,
        "response_mean_ns": span(|responses| Some(responses.mean)),
        "response_p50_ns": span(|responses| responses.p50),
        "response_p99_ns": span(|responses| responses.p99),
        "response_worst_ns": span(|responses| Some(responses.worst)),
        "sent_bytes": done.sent,
        "received_bytes": done.received,
        "read_bytes": done.read,
        "read_past_the_cache": done.is_direct,
    });
    format!("{whole:#}\n")
}

/// Returns as JSON the results of a load program that uses no device.
pub(crate) fn program_json(report: &Report) -> String {
    let whole = json!({
        "format": "slackline-load-1",
        "elapsed_ns": report.elapsed.ns(),
        "used_ns": report.used.ns(),
        "jobs": report.jobs,
    });
    format!("{whole:#}\n")
}

/// Formats a rate with one decimal: `count` events in the time `elapsed`, per `ns` nanoseconds.
fn tenths(count: u64, ns: u128, elapsed: Span) -> String {
    let length = u128::from(elapsed.ns().max(1));
    let tenths = (u128::from(count) * 10 * ns + length / 2) / length;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn micros(span: Span) -> String {
    let tenths = (span.ns() + 50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use slackline_load::Responses;

    use super::*;

    #[test]
    fn report_of_load_command_omits_inapplicable_values() {
        let us = Span::from_us;
        let done = LoadResults {
            elapsed: Span::from_secs(2),
            used: Span::from_ms(30),
            asked: 301,
            answered: 300,
            lost: 1,
            received: 3_000_000,
            responses: Some(Responses {
                mean: us(600),
                p50: Some(us(400)),
                p99: Some(us(1_500)),
                worst: us(2_000),
            }),
            ..LoadResults::default()
        };
        let expected = "301 requests, 300 answered (150.0/s), 1 lost; response p50 400.0, \
                        p99 1500.0, worst 2000.0 us; received 3000000 bytes (12.0 Mbit/s); \
                        used 30ms of CPU time in 2s\n";
        assert_eq!(line(&done), expected);
        let one = Responses { mean: us(400), p50: None, p99: None, worst: us(400) };
        let one = LoadResults { answered: 1, responses: Some(one), ..done };
        assert!(line(&one).contains("1 answered (0.5/s), 1 lost; response 400.0 us; "));
        assert!(json(&one).contains("\"response_p99_ns\": null"));
        assert!(json(&one).contains("\"response_mean_ns\": 400000,"));
        let idle = LoadResults { elapsed: Span::from_secs(1), ..LoadResults::default() };
        assert_eq!(line(&idle), "used 0s of CPU time in 1s\n");
    }
}
