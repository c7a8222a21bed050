//! What every scenario amounts to under every policy that it has shares for: kept beside the
//! scenarios, so that a change of behaviour is seen as a change of these files. With `UPDATE=1` in
//! the environment they are written anew.

mod common;

use std::fmt::Write as _;

use common::{folder, header, scenarios};
use slackline_host::policy::ALL;
use slackline_metrics::Meter;
use slackline_scenario::Scenario;
use slackline_show::Paint;
use slackline_trace::{Header, Writer};

/// The tables, and the checksum of the trace, in which nothing is rounded.
fn summary(scenario: &Scenario) -> String {
    // Not the scenario's text: a comment in it changes nothing.
    let header = Header { scenario: String::new(), ..header(scenario) };
    let mut sink = (Meter::new(&header), Writer::new(std::io::sink(), &header));
    let outcome = match slackline_sim::run(scenario, &mut sink) {
        Ok(outcome) => outcome,
        Err(error) => return format!("{error}\n"),
    };
    let mut text = slackline_show::summary(&sink.0.finish(), 100, Paint::Plain);
    for (at, vcpu, error) in outcome.declined {
        let _ = writeln!(text, " declined at {at}: {vcpu}: {error}");
    }
    let hash = sink.1.finish().expect("a sink takes everything");
    let _ = writeln!(text, " trace {hash:016x}");
    text
}

/// Lines that are only in one of two texts, with those before and after left out.
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
fn every_scenario_amounts_to_what_it_did() {
    let update = std::env::var_os("UPDATE").is_some();
    let expected = folder().join("expected");
    if update {
        std::fs::create_dir_all(&expected).expect("a folder for what is expected");
    }
    let mut message = String::new();
    for (name, scenario) in scenarios() {
        for spec in ALL {
            // What has no shares for a policy is not run under it.
            let Ok(scenario) = scenario.with_policy(spec.name) else { continue };
            let found = summary(&scenario);
            let file = format!("{name}.{}.txt", spec.name);
            let path = expected.join(&file);
            let kept = std::fs::read_to_string(&path).unwrap_or_default();
            if kept == found {
                continue;
            }
            if update {
                std::fs::write(&path, found).expect("a file that can be written");
            } else {
                let _ = write!(message, "{file}:\n{}", difference(&kept, &found));
            }
        }
    }
    assert!(message.is_empty(), "{message}With UPDATE=1 these become what is expected.");
}
