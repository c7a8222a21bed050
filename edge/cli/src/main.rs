//! The program `slackline`. Each command is a module, and this file calls the command that the user
//! named.

mod agent;
mod alert;
mod amounts;
mod args;
mod bug;
mod busy;
mod by_second;
mod check;
mod claims;
mod command;
mod compare;
mod cost;
mod counted;
mod cumulative;
mod date;
mod demo;
mod diff;
mod doctor;
mod edits;
mod enforce;
mod entries;
mod fit;
mod fit_args;
mod folded;
mod grid;
mod headings;
mod help;
mod hints;
mod hold;
mod hold_args;
mod hook;
mod import;
mod import_args;
mod input;
mod json;
mod load;
mod manage;
mod manage_args;
mod manual;
mod manual_args;
mod merge;
mod metric;
mod names;
mod notes;
mod outputs;
mod paper;
mod parse;
mod part;
mod pending;
mod places;
mod points;
mod prices;
mod problem;
mod quoted;
mod record;
mod replay;
mod report;
mod run;
mod seeds;
mod serve;
mod service;
mod show;
mod signals;
mod sim;
mod sweep;
mod terminal;
mod tls;
mod top;
mod whatif;
mod why;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use slackline_daemon::front::OtherSockets;

/// Exit code for a bug in Slackline.
const BUG: u8 = 70;

fn main() -> ExitCode {
    // A panic has already been reported on standard error.
    std::panic::catch_unwind(run_command).unwrap_or(ExitCode::from(BUG))
}

fn run_command() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| hints::exit(error));
    let result = match cli.command {
        Command::Keep => return slackline_fence::keeper_main(),
        Command::ServeFront(args) => {
            let others = OtherSockets { metrics: args.metrics, page: args.page };
            return slackline_daemon::front::main(args.tls.files().as_ref(), others);
        }
        Command::ServeWorker => return whatif::worker(),
        Command::Hook(args) => return hook::hook(&args),
        Command::Sim(args) => sim::sim(&args),
        Command::Run(args) => run::run(&args),
        Command::Hold(args) => hold::hold(&args),
        Command::Serve(args) => serve::serve(&args),
        Command::Find(args) => service::find(&args),
        Command::Reserve(args) => service::reserve(&args),
        Command::Place(args) => service::place(&args),
        Command::Gang(args) => service::gang(&args),
        Command::Apply(args) => service::apply(&args),
        Command::Undo(args) => service::undo(&args),
        Command::Change(args) => service::change(&args),
        Command::Pause(args) => service::pause(&args),
        Command::Resume(args) => service::resume(&args),
        Command::Release(args) => service::release(&args),
        Command::List(args) => service::list(&args),
        Command::Watch(args) => service::watch(&args),
        Command::Room(args) => service::room(&args),
        Command::Log(args) => service::log(&args),
        Command::History(args) => service::history(&args),
        Command::Access(args) => service::access(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::Sweep(args) => sweep::sweep(&args),
        Command::Join(args) => sweep::join(&args),
        Command::Fit(args) => fit::fit(&args),
        Command::Alert(args) => alert::alert(&args),
        Command::Manage(args) => manage::manage(&args),
        Command::Check(args) => check::check(&args),
        Command::Record(args) => record::record(&args),
        Command::Import(args) => import::import(&args),
        Command::Diff(args) => diff::diff(&args),
        Command::Merge(args) => merge::merge(&args),
        Command::Why(args) => why::why(&args),
        Command::Top(args) => top::top(&args),
        Command::Page(args) => service::page(&args),
        Command::Demo(args) => demo::demo(&args),
        Command::Incidents(args) => service::incidents(&args),
        Command::Predictions(args) => service::predictions(&args),
        Command::Show(args) => show::show(&args),
        Command::Replay(args) => replay::replay(&args),
        Command::Whatif(args) => whatif::whatif(&args),
        Command::Paper(args) => paper::command(&args),
        Command::Agent(args) => agent::agent(&args),
        Command::Load(args) => load::load(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::manual(&args),
        Command::Help { topic } => help::help(topic.as_deref()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            terminal::report(&problem);
            problem.exit_code()
        }
    }
}
