//! What-if questions: they are checked and passed to a worker process, whose answer is sent to the
//! client.

mod largest;

use std::collections::BTreeSet;

use slackline_control::link::Answer;
use slackline_control::{FieldValue, Kind, Problem, WhatIf};
use slackline_service::{Principal, Role, Row, Terms, Ticket};
use slackline_units::{Reservation, Span};

use super::flight::Flight;
use super::{Core, wire};

impl Core {
    /// Passes a what-if question about the last seconds to a worker. The answer to a tenant has
    /// only the tenant's own VMs.
    pub(super) fn ask_whatif(
        &mut self,
        (ticket, principal): (Ticket, Principal),
        role: Role,
        asked: WhatIf,
    ) {
        if let Err(problem) = self.begin_whatif((ticket, principal), role, asked) {
            self.host.say(&wire::refused(ticket, problem));
        }
    }

    /// Checks that the dispatcher enforces all reservations, because the simulation has no other
    /// mechanism. An error for a tenant names only the tenant's own reservations.
    fn check_mechanisms(&self, tenant: Option<Principal>) -> Result<(), Problem> {
        let mut rows = self.service.listed().map(|(_, listed)| listed.row);
        let Some(row) = rows.find(|row| row.terms.enforcement().is_of_kernel()) else {
            return Ok(());
        };
        let is_seen = tenant.is_none_or(|tenant| row.owner == tenant);
        let name = if is_seen { row.name.to_string() } else { "a VM of another owner".into() };
        let by = row.terms.enforcement();
        let detail = format!(
            "cannot predict: `{by}` enforces {name}, and only the dispatcher can be simulated"
        );
        Err(Problem::new(Kind::HostCannot, detail).hinting(
            "change the reservation to `--enforce dispatcher`, and ask again after a minute",
        ))
    }

    fn begin_whatif(
        &mut self,
        (ticket, principal): (Ticket, Principal),
        role: Role,
        mut asked: WhatIf,
    ) -> Result<(), Problem> {
        asked.check().map_err(|detail| {
            Problem::new(Kind::Bad, detail).hinting(
                r#"write the body as {"since":"10s","set":[{"name":"web","slice":"3ms"}]}"#,
            )
        })?;
        if self.host.flight.is_none() {
            return Err(Problem::new(Kind::NotNow, "the flight recorder is off")
                .hinting("start the daemon without --no-recorder"));
        }
        let tenant = role == Role::Tenant;
        self.check_mechanisms(tenant.then_some(principal))?;
        let own = tenant.then(|| {
            let rows = self.service.listed().map(|(_, listed)| listed.row);
            let own = rows.filter(|row| row.owner == principal);
            own.map(|row| row.name.to_string()).collect::<BTreeSet<String>>()
        });
        let largest = self.largest_of(&asked, own.as_ref());
        let rows: Vec<Row> = self.service.listed().map(|(_, listed)| listed.row).collect();
        set_enforced_parts(&mut asked, &rows);
        let revision = self.service.revision();
        let asker = (principal, role, ticket);
        let order = self.host.whatifs.begin(asker, (asked, own), (revision, largest))?;
        let Some(order) = order else { return Ok(()) };
        if let Some(refused) = self.host.flight.as_ref().and_then(|it| Flight::window(it, order)) {
            let detail = "the flight recorder has not yet processed the latest events";
            let problem = Problem::new(Kind::NotNow, detail);
            refused.take(Err(problem.hinting("ask again in a second")));
        }
        Ok(())
    }

    /// Passes finished predictions on to the clients.
    pub(super) fn hear_whatifs(&mut self) {
        for (ticket, answer) in self.host.whatifs.ended() {
            let line = match answer {
                Ok(answer) => wire::answered(ticket, Answer::Whatif(Box::new(answer))),
                Err(problem) => wire::refused(ticket, problem),
            };
            self.host.say(&line);
        }
    }
}

/// Replaces each slice and period that a question sets by the shorter slice and period with which
/// the daemon would enforce the reservation. Recordings have the shorter periods.
fn set_enforced_parts(asked: &mut WhatIf, rows: &[Row]) {
    for set in &mut asked.set {
        let vm = set.name.rsplit_once('.').map(|(vm, _)| vm);
        let row = rows.iter().find(|row| row.name.as_str() == set.name);
        let row = row.or_else(|| rows.iter().find(|row| Some(row.name.as_str()) == vm));
        let Some(terms) = row.map(|row| row.terms) else { continue };
        let length = |key: &str| set.fields.get(key)?.written().parse::<Span>().ok();
        let (slice, period) = (length("slice"), length("period"));
        if slice.is_none() && period.is_none() {
            continue;
        }
        let (slice, period) =
            (slice.unwrap_or(terms.each().slice()), period.unwrap_or(terms.each().period()));
        let each = Reservation::new(slice, period).ok();
        let wanted = each.and_then(|each| Terms::new(each, terms.exact(), terms.vcpus()).ok());
        // The worker explains why parameters are not valid.
        let Some(wanted) = wanted else { continue };
        let part = wanted.in_each_second().each();
        if part == wanted.each() && terms.in_each_second().each() == terms.each() {
            continue;
        }
        for (key, length) in [("slice", part.slice()), ("period", part.period())] {
            set.fields.insert(key.into(), FieldValue::Text(length.to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use slackline_control::SetParameters;

    use super::*;

    #[test]
    fn prediction_for_long_period_uses_the_parts_that_are_enforced() {
        let row = |name: &str, slice, period| {
            let each = Reservation::new(Span::from_ms(slice), Span::from_ms(period)).unwrap();
            let terms = Terms::new(each, true, 1).unwrap();
            let binding = format!("qemu:{name}").parse().unwrap();
            Row::new(name.parse().unwrap(), (Principal::User(0), 0), terms, binding)
        };
        let rows = [row("long", 300, 1_000), row("short", 2, 10)];
        let parts = |name: &str, fields: &[(&str, &str)]| {
            let text = |text: &str| FieldValue::Text(text.to_owned());
            let fields = fields.iter().map(|&(key, value)| (key.to_owned(), text(value)));
            let set = vec![SetParameters { name: name.to_owned(), fields: fields.collect() }];
            let mut asked = WhatIf { set, ..WhatIf::default() };
            set_enforced_parts(&mut asked, &rows);
            let fields: BTreeMap<String, FieldValue> = asked.set.remove(0).fields;
            let fields =
                fields.into_iter().map(|(key, value)| format!("{key} {}", value.written()));
            fields.collect::<Vec<String>>().join(", ")
        };
        assert_eq!(parts("long", &[("slice", "200ms")]), "period 100ms, slice 20ms");
        assert_eq!(parts("long.0", &[("slice", "200ms")]), "period 100ms, slice 20ms");
        assert_eq!(parts("short", &[("slice", "3ms")]), "slice 3ms");
        assert_eq!(parts("short", &[("period", "20ms")]), "period 20ms");
        assert_eq!(
            parts("short", &[("slice", "100ms"), ("period", "500ms")]),
            "period 100ms, slice 20ms"
        );
        assert_eq!(parts("long", &[("weight", "3")]), "weight 3");
        assert_eq!(parts("other", &[("slice", "200ms")]), "slice 200ms");
    }
}
