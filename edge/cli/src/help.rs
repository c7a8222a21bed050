//! `slackline help`: teaches a policy in a page, made from its table of parameters.

use std::fmt::Write as _;

use clap::CommandFactory;
use slackline_policy::{ALL, Field, Spec, find, nearest};

use crate::args::Cli;
use crate::problem::Problem;
use crate::terminal;

pub(crate) fn help(policy: Option<&str>) -> Result<(), Problem> {
    match policy {
        None => terminal::print(&overview()),
        Some(name) => match find(name) {
            Some(spec) => terminal::print(&page(spec)),
            None => {
                let meant = nearest(name, ALL.iter().map(|spec| spec.name));
                Err(Problem::BadOption {
                    message: format!("there is no policy `{name}`"),
                    hint: Some(meant.map_or("`slackline help` lists them".into(), |name| {
                        format!("did you mean `{name}`?")
                    })),
                })
            }
        },
    }
}

fn overview() -> String {
    let mut text = Cli::command().render_long_help().to_string();
    text.push_str("\nPolicies (`slackline help POLICY` teaches one):\n");
    let longest = ALL.iter().map(|spec| spec.name.len()).max().unwrap_or(0);
    for spec in ALL {
        let _ = writeln!(text, "  {:longest$}  {}", spec.name, spec.summary);
    }
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
