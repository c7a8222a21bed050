//! The table that people see: XenMon's six metrics with their secondary values.

use slackline_units::Span;

use super::fields::{milli_per_second, part};
use super::{XenMonDomain, XenMonSummary};
use crate::layout::{Cell, Column, Group, Sheet};
use crate::numbers::{Unit, percent, thousandths};
use crate::split::ppm;

const NO_IO: &str = " -  the trace says nothing about I/O\n";
const NO_SLEEP: &str = "this machine does not see who sleeps";
const NO_STRETCHES: &str = "this machine does not see who ran when";
const NO_SLICE: &str = "was never granted a slice";
const NEVER_RAN: &str = "was never switched in";

impl XenMonSummary {
    /// The table of all domains, at most `width` columns wide where that is possible.
    #[must_use]
    pub fn render(&self, width: usize, color: bool) -> String {
        let names = Column::new("domain", &self.domains, |domain| Cell::Text(domain.name.clone()));
        let groups = vec![
            self.gotten(),
            self.allocated(),
            self.blocked(),
            self.waited(),
            self.executions(),
            self.io(),
        ];
        let head = format!("XenMon: {} sampled every {}\n\n", self.length, super::POINT);
        let io = if self.knows_io { "" } else { NO_IO };
        head + &Sheet { names, groups }.render(width, color) + io
    }

    fn column(&self, heading: &str, cell: impl Fn(&XenMonDomain) -> Cell) -> Column {
        Column::new(heading, &self.domains, cell)
    }

    /// Time in a unit that the whole column shares, or a dash.
    fn times(
        &self,
        what: &str,
        value: impl Fn(&XenMonDomain) -> Result<Span, &'static str>,
    ) -> Column {
        let longest = self.domains.iter().filter_map(|domain| value(domain).ok()).max();
        let unit = Unit::of(longest.unwrap_or_default());
        let heading = format!("{}/{what}", unit.name);
        self.column(&heading, |domain| match value(domain) {
            Ok(span) => Cell::Text(unit.write(span)),
            Err(why) => Cell::Dash(why),
        })
    }

    fn share(
        &self,
        over: &str,
        of: impl Fn(&XenMonDomain) -> Result<Span, &'static str>,
    ) -> Column {
        let cell = |domain: &XenMonDomain| match of(domain) {
            Ok(span) => Cell::Text(percent(ppm(span, self.length))),
            Err(why) => Cell::Dash(why),
        };
        self.column("%", cell).under(over)
    }

    fn executions_of(&self, domain: &XenMonDomain) -> Result<u64, &'static str> {
        if self.knows.stretches { Ok(domain.total.executions) } else { Err(NO_STRETCHES) }
    }

    fn each(&self, domain: &XenMonDomain, of: Span) -> Result<Span, &'static str> {
        part(of, self.executions_of(domain)?).ok_or(NEVER_RAN)
    }

    fn gotten(&self) -> Group {
        let each = self.times("exec", |domain| self.each(domain, domain.total.gotten));
        vec![self.share("gotten", |domain| Ok(domain.total.gotten)), each.under("gotten")]
    }

    fn allocated(&self) -> Group {
        let each = self.times("exec", |domain| {
            self.executions_of(domain)?;
            part(domain.total.allocated, domain.total.sliced).ok_or(NO_SLICE)
        });
        vec![each.under("allocated")]
    }

    fn blocked(&self) -> Group {
        let blocked = |domain: &XenMonDomain| match self.knows.sleep {
            true => Ok(domain.total.blocked),
            false => Err(NO_SLEEP),
        };
        let mut group = vec![self.share("blocked", blocked)];
        if self.knows_io {
            let each = self
                .times("I/O", |domain| part(blocked(domain)?, domain.total.io).ok_or("did no I/O"));
            group.push(each.under("blocked"));
        }
        group
    }

    fn waited(&self) -> Group {
        let waited = |domain: &XenMonDomain| match (self.knows.sleep, self.knows.stretches) {
            (true, true) => Ok(domain.total.waited),
            (false, _) => Err(NO_SLEEP),
            (_, false) => Err(NO_STRETCHES),
        };
        let each = self.times("exec", |domain| self.each(domain, waited(domain)?));
        vec![self.share("waited", waited), each.under("waited")]
    }

    fn executions(&self) -> Group {
        let rate = |domain: &XenMonDomain| {
            let count = self.executions_of(domain)?;
            milli_per_second(count, self.length).ok_or(NEVER_RAN)
        };
        let rate = |domain: &XenMonDomain| match rate(domain) {
            Ok(milli) => Cell::Text(thousandths(milli)),
            Err(why) => Cell::Dash(why),
        };
        vec![self.column("exec/s", rate)]
    }

    fn io(&self) -> Group {
        let rate = |domain: &XenMonDomain| milli_per_second(domain.total.io, self.length);
        let each = |domain: &XenMonDomain| {
            let executions = self.executions_of(domain).unwrap_or(0);
            (domain.total.io * 1_000 + executions / 2).checked_div(executions)
        };
        // Not a dash of the layout: a column of these would be left out.
        let cell = |milli: Option<u64>| match (self.knows_io, milli) {
            (true, Some(milli)) => Cell::Text(thousandths(milli)),
            (true, None) => Cell::Dash(NEVER_RAN),
            (false, _) => Cell::Text("-".into()),
        };
        vec![
            self.column("per s", |domain| cell(rate(domain))).under("I/O"),
            self.column("per exec", |domain| cell(each(domain))).under("I/O"),
        ]
    }
}
