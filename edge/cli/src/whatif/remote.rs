//! Predictions that the daemon computes, for callers who may not read the daemon's recording.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use slackline_control::client::{Client, ClientError};
use slackline_control::{AddedVm, FieldValue, Length, MovedVm, SetParameters, WhatIf};
use slackline_whatif::Edit;

use super::shown::{ShownForecast, ShownGate};
use super::{NAME_OF_LAST, json, no_prediction, report, save, table};
use crate::edits::Whatif;
use crate::problem::Problem;
use crate::{service, terminal};

/// Time limit for an answer. The daemon itself limits a prediction to 10 s.
const ANSWER_TIME_LIMIT: Duration = Duration::from_secs(20);

/// Prints a prediction that the daemon computes. The output is the same as that of a prediction
/// from the daemon's recording. A tenant gets the numbers of its own VMs only.
///
/// # Errors
/// If an option needs the recording itself, if the question is not valid, or if the daemon makes no
/// prediction.
pub(super) fn predict(args: &Whatif, edits: &[Edit]) -> Result<(), Problem> {
    let needy = [("--save", &args.save), ("--save-scenario", &args.save_scenario)];
    if let Some((option, _)) = needy.into_iter().find(|(_, file)| file.is_some()) {
        return Err(Problem::BadOption {
            message: format!(
                "cannot use {option}: it needs the daemon's recording, which only administrators \
                 may save"
            ),
            hint: Some(format!("leave {option} out, or run the command as root")),
        });
    }
    let asked = question(args, edits);
    asked.check().map_err(|why| Problem::BadOption {
        message: format!("cannot predict: {why}"),
        hint: Some("shorten --since, or give fewer changes".into()),
    })?;
    let mut client = Client::connect(&args.socket)?.within(ANSWER_TIME_LIMIT);
    let (answer, _) = client.whatif(&asked)?;
    let answer = Value::Object(answer.prediction.into_iter().collect());
    let lacking = || Problem::Service(ClientError::Garbled("a prediction lacks a value".into()));
    if edits.is_empty() {
        let gate = ShownGate::of_json(&answer).ok_or_else(lacking)?;
        match args.json {
            true => terminal::print(&json::text(&answer))?,
            false => terminal::say(&table::gate(&gate))?,
        }
        return match gate.cause {
            Some(cause) => Err(no_prediction(NAME_OF_LAST, &cause, gate.change.as_ref())),
            None => Ok(()),
        };
    }
    let forecast = ShownForecast::of_json(&answer).ok_or_else(lacking)?;
    if let Some(file) = &args.report {
        save(file, &report::page(&forecast))?;
    }
    if args.json {
        return terminal::print(&json::text(&answer));
    }
    let record = service::record_of_predictions(&args.socket);
    terminal::say(&(table::forecast(&forecast) + &record.unwrap_or_default()))
}

/// Returns the question with which the daemon predicts what the options describe.
fn question(args: &Whatif, edits: &[Edit]) -> WhatIf {
    let since = Length(args.since.unwrap_or_default());
    let (cpus, fresh) = (args.cpus.clone(), true);
    let mut asked = WhatIf { since, cpus, fresh, ..WhatIf::default() };
    for edit in edits {
        match edit.clone() {
            Edit::Policy(policy) => asked.policy = Some(policy),
            Edit::Add { name, like } => asked.add.push(AddedVm { name, like }),
            Edit::Remove(name) => asked.remove.push(name),
            Edit::Set { name, field, value } => {
                let fields = BTreeMap::from([(field, FieldValue::Text(value))]);
                asked.set.push(SetParameters { name, fields });
            }
            Edit::Move { name, cpu } => asked.moves.push(MovedVm { name, to_cpu: cpu }),
            // The question has the list of CPUs in the user's own words.
            Edit::Cpus(_) => {}
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Whatif,
    }

    #[test]
    fn whatif_request_to_daemon_contains_every_command_line_option() {
        let options = "whatif --since 30s --policy credit --add db2 --like db --remove x \
                       --cpus 0-1 --set db.slice=2ms --set db.period=9ms --move web --to-cpu 1";
        let Command { args } = Command::parse_from(options.split_whitespace());
        let asked = question(&args, &args.edits().expect("valid options"));
        let expected = serde_json::json!({
            "since": "30s", "policy": "credit", "add": [{ "name": "db2", "like": "db" }],
            "remove": ["x"], "cpus": "0-1", "move": [{ "name": "web", "to_cpu": 1 }],
            "set": [{ "name": "db", "slice": "2ms" }, { "name": "db", "period": "9ms" }],
            "fresh": true
        });
        assert_eq!(serde_json::to_value(&asked).expect("JSON"), expected);
    }
}
