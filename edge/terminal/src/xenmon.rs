//! Table of XenMon's six metrics, each with its secondary values.

use slackline_metrics::{Field, FieldValue, POINT, XenMonSummary};
use slackline_units::Span;

use crate::layout::{Cell, Column, Group, Sheet};
use crate::numbers::{Unit, percent, thousandths};
use crate::paint::Paint;

const NO_IO: &str = " -  the trace says nothing about I/O\n";
const NO_SLEEP: &str = "this host does not see when vCPUs block";
const NO_STRETCHES: &str = "this host does not see which vCPU ran when";
const NO_SLICE: &str = "was never granted a slice";
const NEVER_RAN: &str = "was never switched in";
const DID_NO_IO: &str = "did no I/O";

/// Returns XenMon's metrics of all domains as tables, at most `width` columns wide if that is
/// possible.
#[must_use]
pub fn xenmon(run: &XenMonSummary, width: usize, paint: Paint) -> String {
    let names = Column::new("domain", &run.domains, |domain| Cell::Text(domain.name.clone()));
    let rows = run.domains.iter().map(|domain| run.domain_fields(domain)).collect();
    let groups = Domains { run, rows }.groups();
    let head = format!("XenMon: {} sampled every {POINT}\n\n", run.length);
    let io = if run.knows_io { "" } else { NO_IO };
    head + &Sheet { names, groups }.render(width, paint) + io
}

struct Domains<'a> {
    run: &'a XenMonSummary,
    /// Values of each domain, by row of the table.
    rows: Vec<Vec<Field>>,
}

impl Domains<'_> {
    fn groups(&self) -> Vec<Group> {
        let (sleep, stretches) = (self.run.knows.sleep, self.run.knows.stretches);
        let no_sleep = if sleep { NEVER_RAN } else { NO_SLEEP };
        let no_wait = if sleep && !stretches { NO_STRETCHES } else { no_sleep };
        let seen = |why| if stretches { why } else { NO_STRETCHES };
        let mut blocked = vec![self.share("blocked_ppm", no_sleep).under("blocked")];
        if self.run.knows_io {
            let why = if sleep { DID_NO_IO } else { NO_SLEEP };
            blocked.push(self.time("blocked_per_io_ns", "I/O", why).under("blocked"));
        }
        vec![
            vec![
                self.share("gotten_ppm", NEVER_RAN).under("gotten"),
                self.time("gotten_per_execution_ns", "exec", seen(NEVER_RAN)).under("gotten"),
            ],
            vec![
                self.time("allocated_per_execution_ns", "exec", seen(NO_SLICE)).under("allocated"),
            ],
            blocked,
            vec![
                self.share("waited_ppm", no_wait).under("waited"),
                self.time("waited_per_execution_ns", "exec", no_wait).under("waited"),
            ],
            vec![self.rate("executions_milli_per_s", "exec/s", seen(NEVER_RAN))],
            vec![self.io("io_milli_per_s", "per s"), self.io("io_milli_per_execution", "per exec")],
        ]
    }

    fn column(
        &self,
        (field, heading): (&str, &str),
        why_not: &'static str,
        written: impl Fn(u64) -> String,
    ) -> Column {
        Column::new(heading, &self.rows, |row| {
            Cell::or_dash(value(row, field).map(&written), why_not)
        })
    }

    /// Returns a column of times. All cells have the same unit.
    fn time(&self, field: &str, each: &str, why_not: &'static str) -> Column {
        let longest = self.rows.iter().filter_map(|row| value(row, field)).max();
        let unit = Unit::of(Span::from_ns(longest.unwrap_or_default()));
        let heading = format!("{}/{each}", unit.name);
        self.column((field, &heading), why_not, |ns| unit.write(Span::from_ns(ns)))
    }

    fn share(&self, field: &str, why_not: &'static str) -> Column {
        self.column((field, "%"), why_not, percent)
    }

    fn rate(&self, field: &str, heading: &str, why_not: &'static str) -> Column {
        self.column((field, heading), why_not, thousandths)
    }

    fn io(&self, field: &str, heading: &str) -> Column {
        if self.run.knows_io {
            return self.rate(field, heading, NEVER_RAN).under("I/O");
        }
        // This is a text and not a dash: a column with only dashes would be left out.
        Column::new(heading, &self.rows, |_| Cell::Text("-".into())).under("I/O")
    }
}

/// Returns the value of a field, or `None` if it is missing.
fn value(row: &[Field], name: &str) -> Option<u64> {
    row.iter().find_map(|field| match field {
        (known, FieldValue::Count(count)) if *known == name => Some(*count),
        _ => None,
    })
}
