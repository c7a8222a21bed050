//! `slackline agent`: reports a guest's urgent tasks to the host.

use std::path::PathBuf;

use clap::Args;
use slackline_agent::{ChannelPlace, MOST_RULES, Options, PORT, RULES, Rule, run};

use crate::problem::Problem;
use crate::terminal;

#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// Virtio-serial port to report on.
    #[arg(long, value_name = "NAME", default_value = PORT)]
    port: String,
    /// Listen on this Unix socket, and report on it instead of a port.
    #[arg(long, value_name = "PATH", conflicts_with = "port")]
    socket: Option<PathBuf>,
    /// Rule for urgent tasks; repeatable, up to 4 rules, the most urgent first: name=NAME,
    /// cgroup=/PATH, real-time or nice=N [default: real-time, nice=-1].
    #[arg(long = "urgent", value_name = "RULE")]
    rules: Vec<Rule>,
}

pub(crate) fn agent(args: &Agent) -> Result<(), Problem> {
    if args.rules.len() > MOST_RULES {
        return Err(Problem::BadOption {
            message: format!(
                "cannot use {} --urgent rules: at most {MOST_RULES} are allowed",
                args.rules.len()
            ),
            hint: Some("cover several tasks with one rule: cgroup=/PATH or nice=N".into()),
        });
    }
    let rules = if args.rules.is_empty() { RULES.to_vec() } else { args.rules.clone() };
    let port = || ChannelPlace::Port(args.port.clone());
    let to = args.socket.clone().map_or_else(port, ChannelPlace::Socket);
    let mut says = |note: &str| terminal::tell(&format!("note:  {note}\n"));
    run(&Options { to, rules }, &mut says).map_err(|error| Problem::HostCannot {
        message: error.to_string(),
        hint: Some("add the port to the guest as `slackline help agent` shows".into()),
    })
}
