//! `slackline help`: teaches a policy in a page, made from its table of parameters; or what a
//! scenario says of devices, from the page that the reader of scenarios has.

use std::fmt::Write as _;

use clap::CommandFactory;
use slackline_policy::{ALL, Field, Spec, find, nearest};
use slackline_scenario::io;

use crate::args::Cli;
use crate::problem::Problem;
use crate::terminal;

/// The tables of a scenario that one page teaches together.
const DEVICES: &[&str] = &["driver", "client", "nic", "disk", "kernel", "task"];

pub(crate) fn help(topic: Option<&str>) -> Result<(), Problem> {
    let Some(name) = topic else { return terminal::print(&overview()) };
    if DEVICES.contains(&name) {
        return terminal::print(&devices());
    }
    if let Some(spec) = find(name) {
        return terminal::print(&page(spec));
    }
    let policies = ALL.iter().map(|spec| spec.name);
    let meant = nearest(name, policies.chain(DEVICES.iter().copied()));
    let lists = || "`slackline help` lists all pages".to_owned();
    Err(Problem::BadOption {
        message: format!("there is no page about `{name}`"),
        hint: Some(meant.map_or_else(lists, |name| format!("did you mean `{name}`?"))),
    })
}

/// The page about devices, without the marks of its examples.
fn devices() -> String {
    let lines = io::PAGE.lines().filter(|line| !line.starts_with("```"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn overview() -> String {
    let mut text = Cli::command().render_long_help().to_string();
    text.push_str("\nPolicies (`slackline help POLICY` teaches one):\n");
    let longest = ALL.iter().map(|spec| spec.name.len()).max().unwrap_or(0);
    for spec in ALL {
        let _ = writeln!(text, "  {:longest$}  {}", spec.name, spec.summary);
    }
    let _ = writeln!(text, "\nTables of a scenario (one page teaches them all):");
    let _ = writeln!(text, "  {}  devices behind a driver domain, and clients", DEVICES.join(", "));
    text
}

/// The manual page of a policy.
pub(crate) fn page(spec: &Spec) -> String {
    let mut text = format!("{}: {}\n\n{}\n", spec.name, spec.summary, spec.page);
    let policy = format!("policy = {{ name = \"{}\", ... }}", spec.name);
    fields(&mut text, &policy, spec.policy_fields);
    fields(&mut text, &format!("share.{} = {{ ... }}", spec.name), spec.share_fields);
    text
}

fn fields(text: &mut String, heading: &str, fields: &[Field]) {
    if fields.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{heading}");
    let longest = fields.iter().map(|field| field.name.len()).max().unwrap_or(0);
    for field in fields {
        let _ = writeln!(text, "  {:longest$}  {}", field.name, field.help);
        let default = match field.default {
            Some(default) => format!("default {default}"),
            None => "must be said".into(),
        };
        let _ = writeln!(text, "  {:longest$}  {}; {default}", "", field.kind);
    }
}
