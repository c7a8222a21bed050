//! Changes to grants of access. A client requests a change, the ledger writes it, and then the
//! daemon applies it.

use std::time::SystemTime;

use slackline_control::link::Answer;
use slackline_control::{Kind, Problem};
use slackline_linux::with_causes;
use slackline_service::{EventKind, Input, LedgerContents, Principal, Role, Ticket};

use super::access::{Access, Change, Done};
use super::{Core, wire};
use crate::ledger::LedgerError;
use crate::people::members;

impl Core {
    /// Starts a change to grants. The change takes effect after the ledger has written it.
    pub(super) fn change_access(&mut self, ticket: Ticket, by: Principal, change: Change) {
        if let Err(detail) = self.access.check_room(&change) {
            let problem = Problem::new(Kind::NoRoom, detail).hinting("revoke a grant first");
            return self.host.say(&wire::refused(ticket, problem));
        }
        match self.host.ledger.change_access(ticket.0, change.write.clone()) {
            Ok(()) => self.access.begin(ticket, by, change),
            Err(error) => {
                let problem = Problem::new(Kind::NotNow, error.to_string());
                self.host.say(&wire::refused(ticket, problem));
            }
        }
    }

    /// Starts the migration of access, which a client has requested. After the ledger has written
    /// the migration, members of the operators' group without a grant are tenants.
    pub(super) fn migrate_access(&mut self, ticket: Ticket, by: Principal) {
        match self.host.ledger.migrate_access(ticket.0) {
            Ok(()) => drop(self.host.migrating.insert(ticket, by)),
            Err(error) => {
                let problem = Problem::new(Kind::NotNow, error.to_string());
                self.host.say(&wire::refused(ticket, problem));
            }
        }
    }

    /// Applies the migration of access after the ledger has written it. If writing failed, reports
    /// the reason.
    fn migrated_access(&mut self, ticket: Ticket, by: Principal, done: Result<(), LedgerError>) {
        let line = match done {
            Ok(()) => {
                self.access.migrate();
                self.refuse_waiting(|asked| asked.role == Some(Role::Operator));
                let says = "members of group slackline without a grant are tenants";
                let what = EventKind::Granted(says.into());
                self.step(Input::Access { by, whom: None, what });
                wire::answered(ticket, Answer::Access(self.access.listed()))
            }
            Err(error) => {
                self.host.ledger_errors += 1;
                wire::refused(ticket, Problem::new(Kind::NotDurable, with_causes(&error)))
            }
        };
        self.host.say(&line);
    }

    /// Applies a change to grants after the ledger has written it. If writing failed, reports the
    /// reason.
    pub(super) fn changed_access(&mut self, ticket: Ticket, done: Result<(), LedgerError>) {
        if let Some(by) = self.host.migrating.remove(&ticket) {
            return self.migrated_access(ticket, by, done);
        }
        if let Err(error) = done {
            self.access.fail(ticket);
            self.host.ledger_errors += 1;
            let problem = Problem::new(Kind::NotDurable, with_causes(&error));
            self.host.say(&wire::refused(ticket, problem));
            return;
        }
        let Some(Done { by, whom, what, shown }) = self.access.finish(ticket) else {
            let problem = Problem::new(
                Kind::NoSuchReservation,
                "another request has already removed the grant",
            );
            self.host.say(&wire::refused(ticket, problem));
            return;
        };
        self.refuse_waiting(|asked| asked.principal == whom);
        self.service.set_budgets(self.access.budgets());
        self.step(Input::Access { by, whom: Some(whom), what });
        self.host.say(&wire::answered(ticket, Answer::Access(vec![shown])));
    }
}

/// Reports the operators who would become tenants by a migration of access, and the rights that
/// they would lose.
pub(super) fn report_rights_lost_by_migration(
    access: &Access,
    loaded: &LedgerContents,
    tell: &mut dyn FnMut(&str),
) {
    let owners: Vec<Principal> = loaded.rows.iter().map(|row| row.owner).collect();
    let members = members().unwrap_or_default();
    let lines = access.would_lose(&members, &owners, SystemTime::now());
    lines.iter().for_each(|line| tell(line));
}
