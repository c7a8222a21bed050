//! One run of the simulation: the service in the model world gets inputs, dies, and is restarted.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use slackline_service::gang::LEASE;
use slackline_service::{
    ClientRequest, Identity, Input, Key, LedgerFault, Machine, Principal, Request, Role, Row,
    Service, Settings, State, Ticket,
};
use slackline_units::{DomId, Span, Time};

use crate::checks::{self, Checked, History, Sent};
use crate::world::{Crash, Lie, Model, Replied};

/// A run of the simulation in progress, with its model world.
pub(crate) struct Run {
    pub(crate) service: Service,
    pub(crate) model: Model,
    pub(crate) history: History,
    pub(crate) deaths: u32,
    /// True if, whenever the service dies in this run, the commit that is in progress is on the
    /// disk.
    pub(crate) is_there: bool,
    /// Number of calls after which the service dies again during its restart. `None` if it does not
    /// die again.
    pub(crate) dies_again: Option<u32>,
    /// Users for whose VMs the senders of requests may reserve, besides their own VMs.
    pub(crate) users: Vec<u32>,
    /// Requests that wait until no list waits for capacity any more. They are then passed to the
    /// service.
    pub(crate) deferred: Vec<ClientRequest>,
    next_ticket: u64,
}

impl Run {
    pub(crate) fn new(cpus: usize, lie: Option<Lie>, with_trace: bool) -> Run {
        let mut model = Model::new(cpus);
        model.lie = lie;
        model.scheduler.admits_all = lie == Some(Lie::AdmitsAll);
        model.scheduler.forgets = lie == Some(Lie::ForgetsAccounts);
        model.trace = with_trace.then(Vec::new);
        let mut service =
            Service::recover(Settings::default(), Time::START, model.loaded(), &mut model);
        service.set_budgets(checks::budgets());
        Run {
            service,
            model,
            history: History::default(),
            deaths: 0,
            is_there: false,
            dies_again: None,
            users: Vec::new(),
            deferred: Vec::new(),
            next_ticket: 0,
        }
    }

    /// Passes one input to the service, and checks all invariants. If the service dies, it is
    /// restarted.
    pub(crate) fn step(&mut self, input: Input) -> Checked {
        self.model.note(|| format!("{input:?}"));
        let (service, model) = (&mut self.service, &mut self.model);
        let now = model.now;
        let stepped = catch_unwind(AssertUnwindSafe(|| service.step(now, input, model)));
        match stepped {
            Ok(()) => {}
            Err(payload) if payload.is::<Crash>() => self.recover()?,
            Err(_) => return Err("the core panics".into()),
        }
        checks::all(&self.service, &mut self.model, &self.history)?;
        if self.service.has_postponed_list() || self.deferred.is_empty() {
            return Ok(());
        }
        let asked = self.deferred.remove(0);
        self.step(Input::Sought(asked))
    }

    /// Kills the service and restarts it.
    pub(crate) fn die(&mut self) -> Checked {
        self.recover()?;
        checks::all(&self.service, &mut self.model, &self.history)
    }

    /// Restarts the dead service, and tries again if the service dies during the restart.
    pub(crate) fn recover(&mut self) -> Checked {
        loop {
            self.deaths += 1;
            self.model.crash(self.is_there);
            self.deferred.clear();
            self.model.dies_after = self.dies_again.take().map(|after| self.model.calls + after);
            let model = &mut self.model;
            let (now, loaded) = (model.now, model.loaded());
            let recovered = catch_unwind(AssertUnwindSafe(|| {
                Service::recover(Settings::default(), now, loaded, model)
            }));
            match recovered {
                Ok(service) => {
                    self.service = service;
                    self.service.set_budgets(checks::budgets());
                    break;
                }
                Err(payload) if payload.is::<Crash>() => {}
                Err(_) => return Err("the core panics as it starts".into()),
            }
        }
        self.recovered()
    }

    /// Checks that the restarted service has restored all stored reservations, except those whose
    /// process has ended or whose end time has passed.
    fn recovered(&self) -> Checked {
        let rows: BTreeMap<_, _> =
            self.service.listed().map(|(_, one)| (one.row.name.clone(), one.row)).collect();
        for (name, row) in &self.model.disk.rows {
            match rows.get(name) {
                Some(there) => {
                    let is_same = there.terms == row.terms
                        && there.paused == row.paused
                        && there.since == row.since
                        && there.owner == row.owner
                        && there.binding == row.binding;
                    if !is_same {
                        return Err(format!("{name} is restored as {there}, but was {row}"));
                    }
                }
                None if self.has_passed(row) => {}
                None if row.binding.lasts() => return Err(format!("{name} is lost")),
                None => {}
            }
        }
        match rows.keys().find(|name| !self.model.disk.rows.contains_key(name)) {
            Some(name) => Err(format!("{name} is restored, but was not stored")),
            None => Ok(()),
        }
    }

    /// Returns true if the end time of a stored reservation has passed.
    fn has_passed(&self, row: &Row) -> bool {
        let wall = self.model.now.after(self.model.wall_ahead).ns();
        row.terms.until().is_some_and(|until| until.ns() <= wall)
    }

    /// Advances the simulated time by `time`, and handles all events that are due in this time.
    pub(crate) fn pass(&mut self, time: Span) -> Checked {
        let end = self.model.now.after(time);
        loop {
            let written = self.model.disk.pending.as_ref().map(|(_, due)| *due);
            let due = written.into_iter().chain(self.model.rings).min();
            let next = due.unwrap_or(Time::NEVER).max(self.model.now);
            self.model.scheduler.run_until(next.min(end));
            self.model.now = next.min(end);
            if next > end {
                return Ok(());
            }
            if let Some((seq, is_written)) = self.model.disk.finish(next) {
                self.step(if is_written {
                    Input::Committed { seq }
                } else {
                    let fault = LedgerFault { says: "the disk is full".into() };
                    Input::NotCommitted { seq, fault }
                })?;
            } else {
                self.model.rings = None;
                self.step(Input::Rang)?;
            }
        }
    }

    /// Sends a request and returns its ticket.
    pub(crate) fn ask(
        &mut self,
        who: (Principal, Option<Role>),
        request: Request,
        key: Option<Key>,
    ) -> Result<Ticket, String> {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let (principal, role) = who;
        let sent = Sent { principal, role, key: key.clone(), request: request.clone() };
        self.history.sent.push(sent);
        self.model.open.insert(ticket, request.clone());
        let asked =
            ClientRequest { ticket, principal, role, users: self.users.clone(), key, request };
        if !self.service.must_wait(&asked) {
            self.step(Input::Asked(asked))?;
        } else if let Err(refusal) = self.service.count(self.model.now, &asked) {
            self.model.open.remove(&ticket);
            self.model.replies.push((ticket, Err(refusal)));
        } else {
            self.deferred.push(asked);
            self.deferred.sort_by_key(|asked| asked.request.is_list());
        }
        Ok(ticket)
    }

    /// Returns the replies that have arrived since the last call of this function.
    pub(crate) fn replies(&mut self) -> Vec<Replied> {
        std::mem::take(&mut self.model.replies)
    }

    /// Reports the present state of all VMs to the service.
    pub(crate) fn tell(&mut self) -> Checked {
        let held: Vec<(DomId, Identity, Option<Machine>)> = self
            .model
            .scheduler
            .domains
            .iter()
            .filter_map(|(&domain, one)| {
                let identity = one.identity?;
                let process = self.model.kernel.alive(identity);
                Some((domain, identity, process.map(|process| process.machine.clone())))
            })
            .collect();
        for (domain, identity, machine) in held {
            self.step(match machine {
                None => Input::Vanished { domain, identity },
                Some(machine) => Input::Vcpus { domain, machine },
            })?;
        }
        let waiting = self.service.waiting().map(|row| (row.binding.clone(), row.user));
        let waiting: Vec<_> = waiting.collect();
        for (binding, user) in waiting {
            if !binding.lasts() || self.model.kernel.meant(&binding).is_some() {
                self.step(Input::Appeared { binding, user })?;
            }
        }
        Ok(())
    }

    /// Stops all faults, and completes everything that is in progress. Checks that each request has
    /// a reply then.
    pub(crate) fn finish(&mut self) -> Checked {
        self.model.faults = None;
        self.model.dies_after = None;
        self.model.disk.fails = false;
        for _ in 0..3 {
            self.pass(Span::from_ms(1500))?;
            self.tell()?;
        }
        self.pass(Span::from_ms(100))?;
        self.pass(LEASE)?;
        if let Some((_, one)) = self.service.listed().find(|(_, one)| one.state == State::Held) {
            return Err(format!("{} is held forever", one.row));
        }
        if let Some((ticket, request)) = self.model.open.first_key_value() {
            return Err(format!("{ticket:?} got no answer: {request}"));
        }
        if let Some(why) = self.service.health().ledger {
            return Err(format!("the ledger works again, but health reports {why}"));
        }
        checks::written(&self.service, &self.model)?;
        checks::once(&self.history, &self.model)
    }
}
