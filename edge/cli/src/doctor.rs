//! Command `slackline doctor`, which reports what this host supports and which threads killed runs
//! left changed.

mod kept;
mod ledger;
mod trial;

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};
use slackline_fence::{
    KeeperCommand, Leftover, Leftovers, give_back_all, give_back_budgets, keepers_have_ended,
    leftovers,
};
use slackline_live::doctor::{Ink, Report, examine};
use slackline_terminal::Paint;

use crate::args::Doctor;
use crate::problem::Problem;
use crate::terminal;

pub(crate) fn doctor(args: &Doctor) -> Result<(), Problem> {
    match &args.ledger {
        Some(folder) if args.rebuild => return ledger::mend(folder),
        Some(folder) => return ledger::show(folder, args.json),
        None => {}
    }
    if args.trial {
        return trial::run(args.json);
    }
    let held = Path::new(KeeperCommand::STATE_DIRECTORY);
    if args.free {
        // A keeper may still be restoring threads. The wait has a limit, in case a keeper hangs.
        let _ = keepers_have_ended(held, KEEPERS);
    }
    let mut found = leftovers(held);
    let mut kept = Vec::new();
    if args.unless_kept {
        (kept, found.threads) = found.threads.into_iter().partition(Leftover::is_kept);
    }
    let (lines, failed) = if args.free { free(&found) } else { (list(&found), 0) };
    if args.free && !args.json {
        let nothing = || "no thread of a killed run has to be restored".to_owned();
        let said = if lines.is_empty() { vec![nothing()] } else { lines };
        terminal::say(&(said.join("\n") + "\n"))?;
        kept::start_timer(&kept)?;
        return are_all_restored(&found, failed);
    }
    let report = examine().with_leftovers(lines);
    if args.json {
        terminal::print(&to_json(&report))?;
        if args.free {
            kept::start_timer(&kept)?;
            return are_all_restored(&found, failed);
        }
        Ok(())
    } else {
        let ink = match terminal::paint() {
            Paint::Colour => Ink::Color,
            Paint::Plain => Ink::Plain,
        };
        terminal::print(&report.render(terminal::width(), ink))
    }
}

/// Maximum wait until the keepers of killed runs have ended. A keeper restores the threads of its
/// run.
const KEEPERS: Duration = Duration::from_secs(2);

/// Returns a line for each thread that a killed run left changed, and for each journal that cannot
/// be read.
fn list(found: &Leftovers) -> Vec<String> {
    let mut lines: Vec<String> = found
        .threads
        .iter()
        .map(|left| {
            if left.is_kept() {
                let (tid, pid, owner) = (left.tid(), left.pid(), left.owner());
                return format!(
                    "thread {tid} of process {pid} still has a reservation that the kernel \
                     enforces for a killed daemon (process {owner}); the next `slackline serve` \
                     adopts or ends that reservation, `slackline doctor --free` ends it"
                );
            }
            format!(
                "thread {} of process {} is still stopped, or has the priority or CPUs that a \
                 killed run (process {}) set; restore it with `slackline doctor --free`",
                left.tid(),
                left.pid(),
                left.owner(),
            )
        })
        .collect();
    lines.extend(found.unread.iter().map(ToString::to_string));
    lines
}

/// Checks that `failed`, the number of threads and budgets that could not be restored, is zero.
/// Also checks that every journal of a killed run could be read, because an unreadable journal can
/// list threads that are still changed.
fn are_all_restored(found: &Leftovers, failed: usize) -> Result<(), Problem> {
    let message = match (found.unread.len(), failed) {
        (0, 0) => return Ok(()),
        (0, _) => format!(
            "cannot restore {failed} threads or budgets of killed runs: threads may still be \
             stopped or real-time"
        ),
        (count, _) => format!(
            "cannot read {count} journals of scheduled threads: these threads may \
             still be stopped or real-time"
        ),
    };
    let hint = Some("run as root; then look at the files in /run/slackline/held".into());
    Err(Problem::HostCannot { message, hint })
}

/// Restores the threads that killed runs left changed. Returns the lines to print, and the number
/// of threads and budgets that could not be restored. There is a line for each thread and for each
/// failure.
fn free(found: &Leftovers) -> (Vec<String>, usize) {
    let given_back = give_back_all(&found.threads);
    let failed = given_back.iter().filter(|result| result.is_err()).count();
    let mut lines: Vec<String> = found
        .threads
        .iter()
        .zip(given_back)
        .map(|(left, given_back)| match given_back {
            Ok(_) => format!("thread {} of process {} was restored", left.tid(), left.pid()),
            Err(error) => format!("cannot restore thread {}: {error}", left.tid()),
        })
        .collect();
    // Real-time budgets of cgroups are restored last: a thread needs its budget until the thread is
    // restored.
    let budgets = give_back_budgets(Path::new(KeeperCommand::STATE_DIRECTORY));
    lines.extend(budgets.iter().map(ToString::to_string));
    lines.extend(found.unread.iter().map(ToString::to_string));
    (lines, failed + budgets.len())
}

fn to_json(report: &Report) -> String {
    let findings: Vec<Value> = report
        .findings()
        .iter()
        .map(|finding| {
            let figures: Map<String, Value> = finding
                .figures
                .iter()
                .map(|figure| (figure.name.to_string(), json!(figure.value)))
                .collect();
            json!({
                "id": finding.id(),
                "state": finding.state.word(),
                "found": finding.found,
                "matters": finding.matters(),
                "hint": finding.hint,
                "figures": figures,
            })
        })
        .collect();
    let whole = json!({
        "format": "slackline-doctor-1",
        "can_run_live": report.can_run_live(),
        "findings": findings,
        "leftovers": report.leftovers(),
    });
    format!("{whole:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_command_fails_if_thread_or_budget_cannot_be_restored() {
        let found = Leftovers::default();
        assert!(are_all_restored(&found, 0).is_ok());
        let error = are_all_restored(&found, 2).unwrap_err().to_string();
        assert!(error.starts_with("cannot restore 2 threads or budgets"), "{error}");
    }
}
