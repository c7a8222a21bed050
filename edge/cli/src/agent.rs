//! `slackline agent`: what a guest tells its host.

use std::path::PathBuf;

use clap::Args;
use slackline_agent::{MOST_RULES, Options, PORT, RULES, Rule, To, run};

use crate::problem::Problem;
use crate::terminal;

#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// The port of virtio-serial to tell at.
    #[arg(long, value_name = "NAME", default_value = PORT)]
    port: String,
    /// The Unix socket to listen at for a host, in place of a port.
    #[arg(long, value_name = "PATH", conflicts_with = "port")]
    socket: Option<PathBuf>,
    /// Who is urgent, the most urgent first, four at most: name=NAME, cgroup=/PATH, real-time, or
    /// nice=N [default: real-time, nice=-1].
    #[arg(long = "urgent", value_name = "RULE")]
    rules: Vec<Rule>,
}

pub(crate) fn agent(args: &Agent) -> Result<(), Problem> {
    if args.rules.len() > MOST_RULES {
        return Err(Problem::BadOption {
            message: format!("--urgent is said {} times, {MOST_RULES} at most", args.rules.len()),
            hint: Some("one rule may be about many tasks: cgroup=/PATH, nice=N".into()),
        });
    }
    let rules = if args.rules.is_empty() { RULES.to_vec() } else { args.rules.clone() };
    let port = || To::Port(args.port.clone());
    let to = args.socket.clone().map_or_else(port, To::Socket);
    let mut says = |note: &str| terminal::tell(&format!("note:  {note}\n"));
    run(&Options { to, rules }, &mut says).map_err(|error| Problem::HostCannot {
        message: error.to_string(),
        hint: Some("`slackline help agent` says how a guest gets a port".into()),
    })
}
