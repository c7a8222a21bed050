//! Shell completions and manual pages, generated from the definition of the command line.

use std::io::Write;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::manual_args::{Completions, Manual};
use crate::pending::Pending;
use crate::problem::Problem;
use crate::terminal;

/// Name of the installed program.
const NAME: &str = "slackline";

pub(crate) fn completions(args: &Completions) -> Result<(), Problem> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut visible_commands(), NAME, &mut text);
    // Topics of `help` are not commands, so they are not completed.
    let text = String::from_utf8_lossy(&text).into_owned();
    terminal::print(&(banner(args.shell) + &text))
}

/// Returns a comment in the shell's language that names the help page.
fn banner(shell: Shell) -> String {
    match shell {
        // The first line of a zsh script names the command, so no comment may come before it.
        Shell::Zsh => String::new(),
        shell => {
            format!("# Completions of slackline for {shell}; see `slackline help completions`.\n")
        }
    }
}

pub(crate) fn manual(args: &Manual) -> Result<(), Problem> {
    let pages = pages();
    if let Some(folder) = &args.to {
        return pages.iter().try_for_each(|(name, page)| write(folder, name, page));
    }
    let wanted = args.command.as_ref().map_or(NAME.to_owned(), |name| format!("{NAME}-{name}"));
    match pages.into_iter().find(|(name, _)| *name == wanted) {
        Some((_, page)) => terminal::print(&page),
        None => Err(Problem::BadOption {
            message: format!("there is no command `{}`", args.command.as_deref().unwrap_or("")),
            hint: Some("list commands with `slackline help`".into()),
        }),
    }
}

fn write(folder: &Path, name: &str, page: &str) -> Result<(), Problem> {
    let (pending, mut out) = Pending::new(&folder.join(format!("{name}.1")))?;
    pending.keep(out.write_all(page.as_bytes()).and_then(|()| out.flush()))
}

/// Returns the name and text of each manual page: of the program, of each visible command and of
/// each visible subcommand.
fn pages() -> Vec<(String, String)> {
    let mut cli = visible_commands();
    cli.build();
    let mut all = vec![(NAME.to_owned(), page(&cli, NAME))];
    add(&cli, NAME, &mut all);
    all
}

fn add(command: &Command, name: &str, all: &mut Vec<(String, String)>) {
    // The parser adds a subcommand `help` to each command that has subcommands. The command
    // `slackline help` is our own.
    let is_ours =
        |below: &&Command| below.get_name() != "help" || command.is_disable_help_subcommand_set();
    for below in command.get_subcommands().filter(is_ours) {
        let name = format!("{name}-{}", below.get_name());
        all.push((name.clone(), page(below, &name)));
        add(below, &name, all);
    }
}

fn page(command: &Command, name: &str) -> String {
    let named = command.clone().name(name.to_owned()).display_name(name.to_owned());
    let mut text = Vec::new();
    // Writing to memory cannot fail.
    let _ = Man::new(named).render(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns the definition of the command line without hidden commands, which only the program
/// itself starts.
fn visible_commands() -> Command {
    let whole = Cli::command();
    let mut shown = Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .about(whole.get_about().cloned().unwrap_or_default())
        .after_help(whole.get_after_help().cloned().unwrap_or_default());
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        shown = shown.subcommand(without_hidden(command));
    }
    shown
}

/// Returns a command without its hidden subcommands and options. The groups of options are left
/// out too, because a group may contain a hidden option.
fn without_hidden(command: &Command) -> Command {
    if !has_hidden(command) {
        return command.clone();
    }
    let about = command.get_about().cloned().unwrap_or_default();
    let options = command.get_arguments().filter(|option| !option.is_hide_set());
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    Command::new(command.get_name().to_owned())
        .long_about(command.get_long_about().cloned().unwrap_or_else(|| about.clone()))
        .about(about)
        .after_help(command.get_after_help().cloned().unwrap_or_default())
        .subcommand_required(command.is_subcommand_required_set())
        .args(options.cloned())
        .subcommands(below.map(without_hidden))
}

/// Returns true if a command, or a command below it, has a hidden subcommand or option.
fn has_hidden(command: &Command) -> bool {
    command.get_arguments().any(|option| option.is_hide_set())
        || command.get_subcommands().any(|below| below.is_hide_set() || has_hidden(below))
}
