//! History of reservations: the CPU time that each reservation received in each hour. Also answers
//! to clients that query the history or the log of events.

use std::time::{SystemTime, UNIX_EPOCH};

use slackline_control::link::Answer;
use slackline_control::{Kind, Problem};
use slackline_linux::with_causes;
use slackline_service::history::{Clocks, Hour};
use slackline_service::{JoiningDomain, Principal, Service, State, Ticket};
use slackline_units::{DomId, Span, Time};

use super::host::Host;
use super::wire;
use crate::ledger::{HoursQuery, LedgerError, LoggedEvent, NotHandedOver};

/// Interval at which the CPU time of all reservations is added to their history.
const COUNT_INTERVAL: Span = Span::from_secs(10);

/// Interval at which the history is written to the ledger. If the daemon is killed, at most the
/// history of this interval is lost.
const WRITE_INTERVAL: Span = Span::from_secs(60);

/// Maximum age of the last write of the history when a client queries the history. If the last
/// write is older, the daemon writes the newest rows before it answers.
const FRESH: Span = Span::from_secs(1);

impl Host {
    fn clocks(&self) -> Clocks {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clocks { now: self.now(), wall_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX) }
    }

    /// Begins the history of domains that have just joined the scheduler.
    pub(super) fn begin_history(&mut self, joined: &[&JoiningDomain<'_>]) {
        let at = self.clocks();
        for JoiningDomain { domain, name, owner, terms, .. } in joined.iter().copied() {
            let counters = self.tally.counters_of(*domain, at.now);
            self.history.begin(*domain, (name, *owner, **terms), counters, at);
        }
        // The new rows are due at once. If the daemon is killed, the next daemon learns of these
        // reservations only from rows in the ledger.
        (self.history_due, self.history_written) = (at.now, None);
    }

    /// Adds the CPU time of a domain up to now to its history. Must be called before the state or
    /// the parameters of the domain change.
    pub(super) fn count_history(&mut self, domain: DomId) {
        self.count_kernel_time();
        let at = self.clocks();
        let counters = self.tally.counters_of(domain, at.now);
        self.history.count(domain, counters, at);
    }

    /// Adds the CPU time of a domain to its history for the last time, before the domain leaves the
    /// scheduler.
    pub(super) fn end_history(&mut self, domain: DomId) {
        self.count_kernel_time();
        let at = self.clocks();
        let counters = self.tally.counters_of(domain, at.now);
        self.history.end(domain, Some(counters), at);
    }

    /// Adds the CPU time of all domains to their history, and writes the history to the ledger.
    /// Each of the two steps is done only when it is due.
    pub(super) fn keep_history(&mut self, now: Time, service: &Service) {
        if now < self.history_due {
            return;
        }
        self.history_due = now + COUNT_INTERVAL;
        self.count_all();
        for (domain, listed) in service.listed() {
            self.history.contest(domain, listed.state == State::Contested);
        }
        if self.is_written_before(WRITE_INTERVAL) {
            self.write_history();
        }
    }

    /// Returns true if the last write of the history is at least `age` ago, or if some rows were
    /// never written.
    fn is_written_before(&self, age: Span) -> bool {
        self.history_written.is_none_or(|at| self.now().since(at) >= age)
    }

    fn count_all(&mut self) {
        self.count_kernel_time();
        let at = self.clocks();
        let counters = self.tally.counters(at.now);
        let domains: Vec<DomId> = self.history.domains().collect();
        for domain in domains {
            self.history.count(domain, counters.get(&domain).copied().unwrap_or_default(), at);
        }
    }

    fn write_history(&mut self) {
        self.history_written = Some(self.now());
        let rows = self.history.take_unwritten();
        if rows.is_empty() {
            return;
        }
        if let Err((_, rows)) = self.ledger.keep_history(rows) {
            self.history.put_back(rows);
        }
    }

    /// Adds the latest CPU times to the history and writes it, when the daemon ends.
    pub(super) fn close_history(&mut self) {
        self.count_all();
        self.write_history();
    }

    /// Requests the history of a reservation from the ledger, after its newest rows are written.
    pub(super) fn ask_history(&mut self, (ticket, by): (Ticket, Principal), asked: HoursQuery) {
        if self.is_written_before(FRESH) {
            self.count_all();
            self.write_history();
        }
        let begun = self.ledger.look_up_hours((ticket.0, by), asked);
        self.refuse_query(ticket, begun);
    }

    /// Refuses a query that the ledger did not accept.
    pub(super) fn refuse_query(&mut self, ticket: Ticket, begun: Result<(), NotHandedOver>) {
        let Err(error) = begun else { return };
        let kind = match error {
            NotHandedOver::TooManyOfOne => Kind::TooMany,
            _ => Kind::NotNow,
        };
        let problem = Problem::new(kind, error.to_string());
        let problem = problem.hinting("wait for the pending answers, then try again");
        self.say(&wire::refused(ticket, problem));
    }

    /// Answers a query for the history of a reservation.
    pub(super) fn answer_history(&mut self, ticket: Ticket, hours: Result<Vec<Hour>, LedgerError>) {
        let line = match hours {
            Ok(hours) => {
                let accounts = hours.iter().map(slackline_control::convert::account).collect();
                wire::answered(ticket, Answer::History(accounts))
            }
            Err(error) => wire::refused(ticket, Problem::new(Kind::NotNow, with_causes(&error))),
        };
        self.say(&line);
    }

    /// Sends a client the events of the log that it asked for, which the ledger has read.
    pub(super) fn answer_log(
        &mut self,
        ticket: Ticket,
        events: Result<Vec<LoggedEvent>, LedgerError>,
    ) {
        let line = match events {
            Ok(events) => {
                let events = events.into_iter().map(wire::logged).collect();
                wire::answered(ticket, Answer::Events(events))
            }
            Err(error) => wire::refused(ticket, Problem::new(Kind::NotNow, with_causes(&error))),
        };
        self.say(&line);
    }
}
