//! Expected results of every scenario under every policy for which it has shares. The results are
//! stored in files beside the scenarios, so a change of behaviour shows as a change of these files.
//! `UPDATE=1` in the environment writes the files again.

use std::fmt::Write as _;

use crate::common::{folder, scenarios};
use slackline_host::policy::ALL;
use slackline_metrics::Meter;
use slackline_scenario::Scenario;
use slackline_terminal::Paint;
use slackline_trace::Checksum;

/// Returns the tables of a run, and a checksum of its records. Unlike the tables, the records are
/// not rounded.
fn summary(scenario: &Scenario) -> String {
    let mut sink =
        (Meter::new(&slackline_sim::trace_header(scenario)), Checksum::new(&about(scenario)));
    let outcome = match slackline_sim::run(scenario, &mut sink) {
        Ok(outcome) => outcome,
        Err(error) => return format!("{error}\n"),
    };
    let summary = sink.0.view().expect("every record names a known vCPU");
    let mut text = slackline_terminal::summary(&summary, 100, Paint::Plain);
    for (at, vcpu, error) in outcome.declined {
        let _ = writeln!(text, " declined at {at}: {vcpu}: {error}");
    }
    let _ = writeln!(text, " trace {:016x}", sink.1.sum());
    text
}

/// Returns the header of a trace in the encoding used when the checksums were first stored. It
/// contains the parameters of the run but not the scenario's text, because a comment in that text
/// changes nothing. The encoding stays the same when the trace file format changes.
fn about(scenario: &Scenario) -> Vec<u8> {
    let mut bytes = b"slackline-trace-2\n".to_vec();
    text(&mut bytes, &scenario.title);
    text(&mut bytes, "sim");
    text(&mut bytes, &scenario.policy.to_string());
    number(&mut bytes, scenario.seed);
    number(&mut bytes, scenario.host.cpus as u64);
    number(&mut bytes, scenario.warmup.ns());
    number(&mut bytes, 3);
    number(&mut bytes, 0);
    text(&mut bytes, "");
    number(&mut bytes, scenario.vcpus().count() as u64);
    for (vcpu, name) in scenario.vcpus() {
        number(&mut bytes, vcpu.slot() as u64);
        number(&mut bytes, u64::from(vcpu.domain().number()));
        number(&mut bytes, u64::from(vcpu.number()));
        text(&mut bytes, &name);
    }
    bytes
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    number(bytes, text.len() as u64);
    bytes.extend_from_slice(text.as_bytes());
}

/// Writes a number with seven bits per byte, lowest bits first.
fn number(bytes: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
}

/// Returns the lines that differ between two texts, without the common start and end.
fn difference(kept: &str, found: &str) -> String {
    let (kept, found): (Vec<&str>, Vec<&str>) = (kept.lines().collect(), found.lines().collect());
    let same = kept.iter().zip(&found).take_while(|(a, b)| a == b).count();
    let (kept, found) = (&kept[same..], &found[same..]);
    let same = kept.iter().rev().zip(found.iter().rev()).take_while(|(a, b)| a == b).count();
    let mut text = String::new();
    let marked = [("-", &kept[..kept.len() - same]), ("+", &found[..found.len() - same])];
    for (mark, lines) in marked {
        for line in lines {
            let _ = writeln!(text, "{mark}{line}");
        }
    }
    text
}

#[test]
fn every_scenario_gives_its_stored_results_under_every_policy() {
    let update = std::env::var_os("UPDATE").is_some();
    let expected = folder().join("expected");
    if update {
        std::fs::create_dir_all(&expected).expect("the folder of expected results can be created");
    }
    let mut message = String::new();
    for (name, scenario) in scenarios() {
        for spec in ALL {
            // A scenario without shares for a policy is not run under it.
            let Ok(scenario) = scenario.with_policy(spec.name) else { continue };
            let found = summary(&scenario);
            let file = format!("{name}.{}.txt", spec.name);
            let path = expected.join(&file);
            let kept = std::fs::read_to_string(&path).unwrap_or_default();
            if kept == found {
                continue;
            }
            if update {
                std::fs::write(&path, found).expect("the file of expected results can be written");
            } else {
                let _ = write!(message, "{file}:\n{}", difference(&kept, &found));
            }
        }
    }
    assert!(message.is_empty(), "{message}Set UPDATE=1 to store the lines with + as expected.");
}
