//! `slackline help`: teaches a policy in a page, made from its table of parameters; or what a
//! scenario says of devices, from the page that the reader of scenarios has.

use std::fmt::Write as _;

use clap::CommandFactory;
use slackline_policy::{ALL, Field, Spec, find, nearest};
use slackline_scenario::{domain, host, io};

use crate::args::Cli;
use crate::problem::Problem;
use crate::terminal;

/// The table of a scenario that says what the host is.
const HOST: &str = "host";

/// The one that says who runs there, and what.
const DOMAIN: &str = "domain";

/// The tables of a scenario that one page teaches together.
const DEVICES: &[&str] = &["driver", "client", "nic", "disk", "kernel", "task"];

pub(crate) fn help(topic: Option<&str>) -> Result<(), Problem> {
    let Some(name) = topic else { return terminal::print(&overview()) };
    if DEVICES.contains(&name) {
        return terminal::print(&without_marks(io::PAGE));
    }
    if name == HOST {
        return terminal::print(&without_marks(host::PAGE));
    }
    if name == DOMAIN {
        return terminal::print(&without_marks(domain::PAGE));
    }
    if let Some(spec) = find(name) {
        return terminal::print(&page(spec));
    }
    let policies = ALL.iter().map(|spec| spec.name);
    let meant = nearest(name, policies.chain([HOST, DOMAIN]).chain(DEVICES.iter().copied()));
    let lists = || "`slackline help` lists all pages".to_owned();
    Err(Problem::BadOption {
        message: format!("there is no page about `{name}`"),
        hint: Some(meant.map_or_else(lists, |name| format!("did you mean `{name}`?"))),
    })
}

/// A page about tables of a scenario, without the marks of its examples.
fn without_marks(page: &str) -> String {
    let lines = page.lines().filter(|line| !line.starts_with("```"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn overview() -> String {
    let mut text = Cli::command().render_long_help().to_string();
    text.push_str("\nPolicies (`slackline help POLICY` teaches one):\n");
    let longest = ALL.iter().map(|spec| spec.name.len()).max().unwrap_or(0);
    for spec in ALL {
        let _ = writeln!(text, "  {:longest$}  {}", spec.name, spec.summary);
    }
    let _ = writeln!(text, "\nTables of a scenario:");
    let _ = writeln!(text, "  {HOST}  the simulated host: its CPUs, what it costs");
    let _ = writeln!(text, "  {DOMAIN}  a domain: where and when it runs, and what");
    let _ = writeln!(
        text,
        "  {}  guests with tasks, devices behind a driver domain, clients (one page)",
        DEVICES.join(", ")
    );
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
