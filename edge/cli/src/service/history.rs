//! Command `slackline history`, which shows the CPU time that a reservation received by hour or
//! day.

use slackline_control::client::{Client, Text};
use slackline_control::{Account, MOST_ACCOUNTS};
use slackline_terminal::Cell;
use slackline_units::Span;

use super::args::{History, Since, Step};
use super::show::{column, moment, part, text};
use super::view::Table;
use super::{answer, connect};
use crate::date::now;
use crate::headings::{
    CONTESTED, DELIVERED, DELIVERED_TIME, DUE, EXISTED, FROM, LATE, MISSED, RESERVED_TIME, UNKNOWN,
};
use crate::problem::Problem;
use crate::terminal;

/// Footnote in place of a percentage of missed deadlines.
const NOTHING: &str = "no CPU time was due to the VM";

pub(crate) fn history(args: &History) -> Result<(), Problem> {
    let accounts = accounts(args, &mut connect(&args.at)?)?;
    if args.at.json {
        let text = serde_json::to_string(&accounts).expect("string keys serialize to JSON");
        return answer(&args.at, &Text(text), String::new);
    }
    if accounts.is_empty() && !args.view.csv {
        return terminal::say(&format!("no CPU use of {} is recorded for that time\n", args.name));
    }
    terminal::print(&table(&accounts, args.view.csv).shown(&args.view)?)
}

/// Returns the history of the requested time, oldest first. The daemon returns it page by page.
fn accounts(args: &History, client: &mut Client) -> Result<Vec<Account>, Problem> {
    let mut since = match args.since {
        Since::At(ns) => ns,
        Since::Ago(ago) => now().saturating_sub(ago.ns()),
    };
    let mut all: Vec<Account> = Vec::new();
    loop {
        let (page, _) = client.history(&args.name, since, args.by == Step::Day)?;
        let is_last = page.len() < MOST_ACCOUNTS;
        all.extend(page);
        match all.last() {
            Some(last) if !is_last => since = last.from_ns + last.length_ns,
            _ => return Ok(all),
        }
    }
}

/// Returns the history as a table. In a table for people, times have units. In CSV they are in
/// seconds, for a spreadsheet.
fn table(all: &[Account], is_csv: bool) -> Table {
    let time = |of: fn(&Account) -> u64| {
        move |one: &Account| text(if is_csv { seconds(of(one)) } else { rounded(of(one)) })
    };
    let groups = vec![
        vec![
            column(EXISTED, all, time(|one| one.existed_ns)),
            column(UNKNOWN, all, time(|one| one.unknown_ns)),
            column(CONTESTED, all, time(|one| one.contested_ns)),
        ],
        vec![
            column(RESERVED_TIME, all, time(|one| one.reserved_ns)),
            column(DUE, all, time(|one| one.due_ns)),
            column(DELIVERED_TIME, all, time(|one| one.delivered_ns)),
            column(DELIVERED, all, |one| part(one.delivered_ns, one.reserved_ns)),
        ],
        vec![column(MISSED, all, missed), column(LATE, all, time(|one| one.late_ns))],
    ];
    Table { names: column(FROM, all, |one| text(moment(one.from_ns))), groups }
}

fn missed(one: &Account) -> Cell {
    match (one.missed, one.deadlines) {
        (_, 0) => Cell::Dash(NOTHING),
        (missed, deadlines) => part(missed, deadlines),
    }
}

/// Formats a time in seconds with three decimals.
fn seconds(ns: u64) -> String {
    let ms = ns / 1_000_000;
    format!("{}.{:03}", ms / 1_000, ms % 1_000)
}

/// Formats a time with its unit, rounded down. The precision is 1 us below 10 ms, 1 ms below 10 s,
/// and 0.1 s above.
fn rounded(ns: u64) -> String {
    let unit = match ns {
        0..10_000_000 => 1_000,
        10_000_000..10_000_000_000 => 1_000_000,
        _ => 100_000_000,
    };
    Span::from_ns(ns / unit * unit).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::view::View;

    fn hour() -> Account {
        Account {
            from_ns: 1_191_153_600_000_000_000,
            length_ns: 3_600_000_000_000,
            existed_ns: 3_600_000_000_000,
            unknown_ns: 600_000_000_000,
            reserved_ns: 600_000_000_000,
            due_ns: 300_000_000_000,
            delivered_ns: 299_123_456_789,
            late_ns: 7_654_321,
            deadlines: 1_000,
            missed: 5,
            ..Account::default()
        }
    }

    #[test]
    fn csv_history_is_in_seconds_and_history_table_has_units() {
        let view = View { csv: true, ..View::default() };
        let csv = table(&[hour(), Account::default()], true).shown(&view).expect("all columns");
        assert_eq!(
            csv,
            "from,existed,unknown,contested,reserved,due,delivered,used %,missed %,late\n\
             2007-09-30 12:00:00,3600.000,600.000,0.000,600.000,300.000,299.123,49.85,0.50,0.007\n\
             1970-01-01 00:00:00,0.000,0.000,0.000,0.000,0.000,0.000,,,0.000\n"
        );
        let shown = table(&[hour()], false).shown(&View::default()).expect("all columns");
        assert!(shown.contains("299.1s") && shown.contains("7.654ms"), "{shown}");
    }
}
