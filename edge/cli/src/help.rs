//! `slackline help`: help pages of topics, policies and commands.
//!
//! Lists of keys, parameters, metrics and options come from the tables that the code reads, so they
//! are always complete.

mod agent;
mod metrics;
mod pages;
mod search;
mod service;

use clap::CommandFactory;
use slackline_policy::{ALL, SIMULATED_ONLY, find, nearest};

use crate::args::Cli;
use crate::entries::entries;
use crate::problem::Problem;
use crate::terminal;

/// A help page about a topic, which is neither a policy nor a command.
struct Topic {
    names: &'static [&'static str],
    says: &'static str,
    page: fn() -> String,
}

const TOPICS: &[Topic] = &[
    Topic {
        names: &["scenario"],
        says: "the scenario file: its tables and their keys",
        page: pages::scenario,
    },
    Topic {
        names: &["domain"],
        says: "VMs of a scenario: the keys of [[domain]]",
        page: pages::domain,
    },
    Topic { names: &["work"], says: "kinds of workload that vCPUs run", page: pages::work },
    Topic {
        names: &["live"],
        says: "live runs: processes and VMs of this host as domains of a scenario",
        page: pages::live,
    },
    Topic {
        names: &["claims"],
        says: "claims about a run: what can be tested, and how",
        page: pages::claims,
    },
    Topic {
        names: &["metrics"],
        says: "names and units of all metrics; `slackline help METRIC` explains one",
        page: metrics::list,
    },
    Topic {
        names: &["host"],
        says: "the simulated host: its CPUs and its costs",
        page: || pages::without_marks(slackline_scenario::host::PAGE),
    },
    Topic {
        names: &["family"],
        says: "random hosts for `sweep`: how hosts are drawn",
        page: pages::family,
    },
    Topic {
        names: &["tasks"],
        says: "task sets for `fit`: periodic tasks of a guest",
        page: || pages::TASKS.into(),
    },
    Topic {
        names: &["driver", "client", "nic", "disk", "kernel", "task"],
        says: "guests with tasks, devices behind a driver domain, and clients",
        page: || pages::without_marks(slackline_scenario::io::PAGE),
    },
    Topic {
        names: &["agent"],
        says: "the guest agent, which reports urgent tasks to the host",
        page: || agent::PAGE.into(),
    },
    Topic {
        names: &["service"],
        says: "the reservation daemon: commands, states, access",
        page: || service::service(&commands()),
    },
    Topic {
        names: &["refusals"],
        says: "refusals of the daemon, with HTTP status and exit code",
        page: service::refusals,
    },
];

pub(crate) fn help(topic: Option<&str>) -> Result<(), Problem> {
    let Some(name) = topic else { return terminal::say(&overview()) };
    if let Some(topic) = TOPICS.iter().find(|topic| topic.names.contains(&name)) {
        return terminal::say(&(topic.page)());
    }
    if let Some(spec) = find(name) {
        return terminal::say(&pages::policy(spec));
    }
    let commands = commands();
    let mut cli = Cli::command();
    if commands.iter().any(|(command, _)| command == name) {
        cli.build();
        let command = cli.find_subcommand_mut(name).map(clap::Command::render_long_help);
        return terminal::say(&command.map(|text| text.to_string()).unwrap_or_default());
    }
    if let Some(page) = metrics::meaning(name) {
        return terminal::say(&page);
    }
    if let Some(found) = search::word(name, &titled_pages()) {
        return terminal::say(&found);
    }
    let policies = ALL.iter().chain(SIMULATED_ONLY).map(|spec| spec.name);
    let topics = TOPICS.iter().flat_map(|topic| topic.names.iter().copied());
    let commands = commands.iter().map(|(command, _)| command.as_str());
    let meant = nearest(name, policies.chain(topics).chain(commands));
    let lists = || "list all pages with `slackline help`".to_owned();
    Err(Problem::BadOption {
        message: format!("there is no help page about `{name}`"),
        hint: Some(meant.map_or_else(lists, |name| format!("did you mean `{name}`?"))),
    })
}

/// Returns the pages of all topics, policies and commands, each with the name that opens it.
fn titled_pages() -> Vec<(String, String)> {
    let topics = TOPICS.iter().map(|topic| (topic.names[0].to_owned(), (topic.page)()));
    let policies = ALL.iter().chain(SIMULATED_ONLY);
    let policies = policies.map(|spec| (spec.name.to_owned(), pages::policy(spec)));
    let mut cli = Cli::command();
    cli.build();
    let shown = cli.get_subcommands_mut().filter(|command| !command.is_hide_set());
    let page = |command: &mut clap::Command| command.render_long_help().to_string();
    let commands = shown.map(|command| (command.get_name().to_owned(), page(command)));
    topics.chain(policies).chain(commands).collect()
}

/// Returns the visible commands, each with its summary.
fn commands() -> Vec<(String, String)> {
    let cli = Cli::command();
    let shown = cli.get_subcommands().filter(|command| !command.is_hide_set());
    let about = |command: &clap::Command| {
        command.get_about().map(|about| about.to_string()).unwrap_or_default()
    };
    shown.map(|command| (command.get_name().to_owned(), about(command))).collect()
}

fn overview() -> String {
    let mut text = String::from(
        "Slackline reserves and shares CPU time for virtual machines (VMs), and measures what each \
         VM received.\n\nCommands (`slackline help COMMAND` lists the options):\n",
    );
    entries(&mut text, commands().iter().map(|(name, says)| (name.as_str(), says.as_str())));
    text += "\nTopics (`slackline help TOPIC`):\n";
    let topics = TOPICS.iter().map(|topic| (topic.names[0], topic.says));
    entries(&mut text, topics);
    text += "\nPolicies (`slackline help POLICY`):\n";
    let policies = ALL.iter().chain(SIMULATED_ONLY);
    entries(&mut text, policies.map(|spec| (spec.name, spec.summary)));
    text += "\nExit codes: 0 success; 1 a claim failed; 2 bad input; 3 not possible on this host;\n\
             4 no capacity on a daemon, or for `fit` or `whatif` (2 for a scenario or `hold`);\n\
             5 not permitted; 70 bug in Slackline; 130 interrupted.\n";
    text
}
