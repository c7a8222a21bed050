//! What the command line says of itself, and hints at when it does not know a word: nothing that is
//! hidden.

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, CommandFactory};
use slackline_terminal::Paint;

use crate::args::Cli;
use crate::terminal;

/// Says what is wrong with a command line, or what it asks for (`--help`, `--version`), and ends.
pub(crate) fn exit(error: clap::Error) -> ! {
    let error = without_hidden(error);
    let text = error.render();
    if error.use_stderr() {
        terminal::tell(&text.to_string());
    } else {
        let text = match terminal::paint() {
            Paint::Colour => text.ansi().to_string(),
            Paint::Plain => text.to_string(),
        };
        // Nobody is left to hear that it could not be said.
        let _ = terminal::say(&text);
    }
    std::process::exit(error.exit_code())
}

/// The same error without what it suggests, if that is only for the program itself.
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

/// The names of all that is hidden: commands, and options with their dashes.
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
