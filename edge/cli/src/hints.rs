//! Errors of the command line and their hints. Hidden commands and options are never suggested.

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, CommandFactory};
use slackline_terminal::Paint;

use crate::args::Cli;
use crate::terminal;

/// Prints an error of the command line, or the requested `--help` or `--version`, and exits.
pub(crate) fn exit(error: clap::Error) -> ! {
    let error = of_rename(without_hidden(error));
    let text = error.render();
    if error.use_stderr() {
        terminal::tell(&text.to_string());
    } else {
        let text = match terminal::paint() {
            Paint::Colour => text.ansi().to_string(),
            Paint::Plain => text.to_string(),
        };
        // If output fails as well, the failure cannot be reported.
        let _ = terminal::say(&text);
    }
    std::process::exit(error.exit_code())
}

/// Removes suggestions of hidden commands and options from an error.
fn without_hidden(mut error: clap::Error) -> clap::Error {
    let hidden = hidden(&Cli::command());
    let names = |value: &ContextValue| {
        hidden.iter().any(|name| match value {
            ContextValue::String(text) => text == name,
            ContextValue::Strings(texts) => texts.contains(name),
            ContextValue::StyledStr(text) => text.to_string().contains(&format!("'{name}'")),
            ContextValue::StyledStrs(texts) => {
                texts.iter().any(|text| text.to_string().contains(&format!("'{name}'")))
            }
            _ => false,
        })
    };
    for kind in
        [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::Suggested]
    {
        if error.get(kind).is_some_and(names) {
            error.remove(kind);
        }
    }
    error
}

/// Replaces the suggestion for `rename`, which is no command, by advice on renamed VMs. The
/// suggestion would be the most similar command, `resume`, which lets a paused VM run.
fn of_rename(mut error: clap::Error) -> clap::Error {
    let is_it =
        |value: &ContextValue| matches!(value, ContextValue::String(text) if text == "rename");
    if error.get(ContextKind::InvalidSubcommand).is_some_and(is_it) {
        error.remove(ContextKind::SuggestedSubcommand);
        let tip = "`slackline change NAME --for BINDING` moves a reservation to another VM, or to \
                   the new name of its VM";
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

/// Returns the names of all hidden commands and options. The names of options include the dashes.
fn hidden(command: &Command) -> Vec<String> {
    let options = command.get_arguments().filter(|option| option.is_hide_set());
    let mut names: Vec<String> =
        options.filter_map(Arg::get_long).map(|name| format!("--{name}")).collect();
    for command in command.get_subcommands() {
        if command.is_hide_set() {
            names.push(command.get_name().to_owned());
        }
        names.extend(hidden(command));
    }
    names
}
