//! What-if questions of clients. This module checks each question, passes it to a worker process,
//! and sends the worker's answer to the client.

mod largest;

use std::collections::BTreeSet;

use slackline_control::link::Answer;
use slackline_control::{Kind, Problem, WhatIf};
use slackline_service::{Principal, Role, Row, Ticket};

use super::{Core, wire};

impl Core {
    /// Passes a what-if question about the last seconds to a worker. The answer to a tenant
    /// contains only the tenant's own VMs.
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
        let own = tenant.then(|| {
            let rows = self.service.listed().map(|(_, listed)| listed.row);
            let own = rows.filter(|row| row.owner == principal);
            own.map(|row| row.name.to_string()).collect::<BTreeSet<String>>()
        });
        let largest = self.largest_of(&asked, own.as_ref());
        let is_seen = |row: &Row| own.as_ref().is_none_or(|own| own.contains(row.name.as_str()));
        let rows = self.service.listed().map(|(_, listed)| listed.row);
        let rows: Vec<Row> = rows.filter(is_seen).collect();
        asked.set_enforced_parts(|name| {
            rows.iter().find(|row| row.name.as_str() == name).map(|row| row.terms)
        });
        let revision = self.service.revision();
        let asker = (principal, role, ticket);
        let order = self.host.whatifs.begin(asker, (asked, own), (revision, largest))?;
        let Some(order) = order else { return Ok(()) };
        if let Some(flight) = &self.host.flight {
            flight.window(order);
        }
        Ok(())
    }

    /// Sends finished predictions to the clients that asked for them.
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
