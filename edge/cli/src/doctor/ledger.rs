//! Command `slackline doctor --ledger`, which reports damage to a ledger and can rebuild the
//! ledger.

use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use serde_json::{Value, json};
use slackline_daemon::ledger::{LedgerCheck, LedgerError, Rebuilt, Source, check, rebuild};
use slackline_linux::with_causes;

use crate::problem::Problem;
use crate::terminal;

/// Reports damage to the ledger in a folder. Fails if the ledger is damaged.
pub(super) fn show(folder: &Path, is_json: bool) -> Result<(), Problem> {
    let examined = check(folder).map_err(|error| of_ledger(&error))?;
    match is_json {
        true => terminal::print(&to_json(&examined))?,
        false => terminal::say(&told(&examined))?,
    }
    if examined.problems.is_empty() {
        return Ok(());
    }
    Err(Problem::HostCannot {
        message: format!("{} is damaged", examined.path.display()),
        hint: Some(format!(
            "rebuild the ledger with `slackline doctor --ledger {} --rebuild`",
            folder.display()
        )),
    })
}

/// Rebuilds a damaged ledger from its intact tables and its backups.
pub(super) fn mend(folder: &Path) -> Result<(), Problem> {
    match rebuild(folder).map_err(|error| of_ledger(&error))? {
        None => terminal::say("the ledger is intact; nothing was changed\n"),
        Some(rebuilt) => terminal::say(&mended(&rebuilt)),
    }
}

/// Describes the state of a ledger: damage, rows of each table, and backups.
fn told(examined: &LedgerCheck) -> String {
    let LedgerCheck { path, is_in_use, problems, tables, backups } = examined;
    let mut text = format!("{}: ", path.display());
    text += if problems.is_empty() { "intact" } else { "damaged" };
    text += if *is_in_use { "; a daemon uses it\n" } else { "; no daemon uses it\n" };
    for problem in problems {
        text += &format!("  {problem}\n");
    }
    let rows = tables.iter().map(|(table, rows)| match rows {
        Some(rows) => format!("{table} {rows}"),
        None => format!("{table} unreadable"),
    });
    text += &format!("rows: {}\n", rows.collect::<Vec<_>>().join(", "));
    match &backups[..] {
        [] => text += "there is no backup\n",
        backups => {
            for backup in backups {
                text += &format!("backup: {}, {}\n", backup.path.display(), ago(backup.made));
            }
        }
    }
    text
}

/// Describes a rebuilt ledger: the source and the number of rows of each table.
fn mended(rebuilt: &Rebuilt) -> String {
    let mut text = format!("the damaged files are now in {}\n", rebuilt.set_aside.display());
    for table in &rebuilt.tables {
        let source = match &table.source {
            Source::Ledger => "from the ledger".to_owned(),
            Source::Backup(backup) => format!("from a backup made {}", ago(backup.made)),
            Source::Nowhere => "lost: unreadable in the ledger and all backups".to_owned(),
        };
        text += &format!("{}: {} rows, {source}\n", table.name, table.rows);
    }
    text
}

fn ago(made: SystemTime) -> String {
    let minutes = made.elapsed().unwrap_or_default().as_secs() / 60;
    match minutes {
        0..=119 => format!("{minutes} minutes ago"),
        120..=2_879 => format!("{} hours ago", minutes / 60),
        _ => format!("{} days ago", minutes / 1_440),
    }
}

fn to_json(examined: &LedgerCheck) -> String {
    let LedgerCheck { path, is_in_use, problems, tables, backups } = examined;
    let tables: serde_json::Map<String, Value> =
        tables.iter().map(|(table, rows)| ((*table).to_owned(), json!(rows))).collect();
    let backups: Vec<Value> = backups.iter().map(|backup| json!(backup.path)).collect();
    let whole = json!({
        "format": "slackline-ledger-1",
        "ledger": path,
        "is_in_use": is_in_use,
        "problems": problems,
        "rows": tables,
        "backups": backups,
    });
    format!("{whole:#}\n")
}

/// Explains why a ledger cannot be checked or rebuilt. The usual hints are for `slackline serve`,
/// which has other options and creates missing folders.
fn of_ledger(error: &LedgerError) -> Problem {
    let hint = match error {
        LedgerError::Files { source, .. } => match source.kind() {
            ErrorKind::NotFound => Some(
                "start a daemon with `slackline serve`, which makes a ledger, or write --ledger \
                 and the folder that the daemon has after --state",
            ),
            ErrorKind::NotADirectory => Some("name the folder of the ledger, and not a file"),
            _ => None,
        },
        LedgerError::Taken { .. } => Some("stop the daemon first"),
        LedgerError::Foreign { .. } => {
            Some("write --ledger and the folder that the daemon has after --state")
        }
        _ => None,
    };
    let hint = hint.map(str::to_owned).or_else(|| error.hint());
    Problem::HostCannot { message: with_causes(error), hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_about_inaccessible_ledger_matches_the_kind_of_error() {
        let hint = |kind: ErrorKind| {
            let (path, source) = ("/nowhere/ledger.db".into(), kind.into());
            of_ledger(&LedgerError::Files { path, source }).hint().expect("a hint")
        };
        assert!(hint(ErrorKind::NotFound).starts_with("start a daemon with `slackline serve`"));
        let file = hint(ErrorKind::NotADirectory);
        assert_eq!(file, "name the folder of the ledger, and not a file");
        assert!(hint(ErrorKind::PermissionDenied).starts_with("run as root"));
        let taken = of_ledger(&LedgerError::Taken { folder: "/nowhere".into() });
        assert_eq!(taken.hint().as_deref(), Some("stop the daemon first"));
    }
}
