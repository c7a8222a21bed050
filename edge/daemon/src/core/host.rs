//! The world of the service, as this host is.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slackline_control::link::{Answer as Said, Said as Line};
use slackline_control::{self as control, Histogram, Kind, Numbers, PAGE, Problem, convert};
use slackline_linux::sys::{Tid, monotonic, process_cpu_time, wall_clock_error};
use slackline_live::session::knowledge;
use slackline_service::history::{History, Hour};
use slackline_service::{
    Answer, Asked, Binding, BindingKind, Commit, Declined, Event, Identity, Joining, LedgerFault,
    Listed, LookError, Machine, Name, Principal, Refusal, Request, Role, Room, Seats, Service,
    Sought, Terms, Ticket, World,
};
use slackline_units::{CpuShare, DomId, Span, Time};

use super::costs::Costs;
use super::front_process::FrontProcess;
use super::lookups::{Lookups, TooMany, sought_text};
use super::scheduler::Scheduler;
use super::scout::{Awaited, Held, Listing, Looked, Scout};
use super::tally::Tally;
use super::wire::{self, Rest};
use slackline_linux::with_causes;

use super::POLICY;
use crate::find::{self, Absent, Found};
use crate::ledger::{Asked as AskedFor, AskedHours, Ledger};

/// How many questions of the front may wait for an answer; it has as many connections at most.
const MOST_RESTS: usize = 4_096;

/// This host: all that the service acts on.
pub(super) struct Host {
    pub(super) scheduler: Scheduler,
    pub(super) ledger: Ledger,
    /// Which boot of the machine this is.
    boot: String,
    pub(super) scout: Scout,
    /// Looks up what requests need: they do not wait for the scout's round.
    pub(super) lookups: Lookups,
    pub(super) tally: Tally,
    pub(super) front: Option<FrontProcess>,
    /// When the service wants to be rung.
    pub(super) ring: Option<Time>,
    /// Commits that the ledger did not even take.
    pub(super) not_handed_over: Vec<(u64, LedgerFault)>,
    /// What the service need not know of questions that are not answered yet, with the question if
    /// a tenant asks.
    rests: BTreeMap<Ticket, (Rest, Option<Asked>)>,
    /// All machines that go by a name, while many are looked for at once.
    around: Option<Vec<find::Machine>>,
    /// What was found a moment ago.
    fresh: BTreeMap<Binding, Found>,
    /// What there is of what the request is for that is done now.
    looked: Looked,
    /// When the commit that is under way was begun.
    committing: Option<Time>,
    began: SystemTime,
    pub(super) change_effect: Histogram,
    commit_took: Histogram,
    /// Who wants members of the group to be tenants.
    pub(super) migrating: BTreeMap<Ticket, Principal>,
    pub(super) meddled: u64,
    pub(super) keeper_restarts: u64,
    pub(super) ledger_errors: u64,
    /// How often a core was started again since the host was.
    pub(super) restarts: u64,
    /// Whose promise nobody kept before us, and for how long.
    lapsed: BTreeMap<DomId, Span>,
    /// What reservations cost, if there are prices.
    pub(super) costs: Option<Costs>,
    pub(super) history: History,
    /// Time at which the history is counted next.
    pub(super) history_due: Time,
    /// Time of the last write of the history. `None` if it has rows that were never written.
    pub(super) history_written: Option<Time>,
}

impl Host {
    pub(super) fn new(
        scheduler: Scheduler,
        (ledger, boot, history): (Ledger, String, Vec<Hour>),
        (scout, lookups): (Scout, Lookups),
        tally: Tally,
    ) -> Host {
        Host {
            scheduler,
            ledger,
            boot,
            scout,
            lookups,
            tally,
            front: None,
            ring: None,
            not_handed_over: Vec::new(),
            rests: BTreeMap::new(),
            around: None,
            fresh: BTreeMap::new(),
            looked: Looked::default(),
            committing: None,
            began: SystemTime::now(),
            change_effect: Histogram::default(),
            commit_took: Histogram::default(),
            migrating: BTreeMap::new(),
            meddled: 0,
            keeper_restarts: 0,
            ledger_errors: 0,
            restarts: 0,
            lapsed: BTreeMap::new(),
            costs: None,
            history: History::recover(history),
            history_due: Time::START,
            history_written: None,
        }
    }

    pub(super) fn now(&self) -> Time {
        self.scheduler.session.now()
    }

    /// Says something to the front, if there is one.
    pub(super) fn say(&mut self, said: &Line) {
        if let Some(front) = &mut self.front {
            front.say(said);
        }
    }

    /// What a domain is given lately is shown from now on: it has changed.
    pub(super) fn begin_numbers(&mut self, domain: DomId) {
        let now = self.now();
        self.tally.begin(domain, now);
    }

    pub(super) fn is_front_behind(&self) -> bool {
        self.front.as_ref().is_some_and(|front| front.is_behind() || front.fd().is_none())
    }

    /// Until it is answered.
    pub(super) fn remember(&mut self, asked: &Asked, rest: Rest) {
        while self.rests.len() >= MOST_RESTS {
            self.rests.pop_first();
        }
        let tenant = (asked.role == Some(Role::Tenant)).then(|| asked.clone());
        if rest != Rest::Nothing || tenant.is_some() {
            self.rests.insert(asked.ticket, (rest, tenant));
        }
    }

    /// What came of the commit that was under way.
    pub(super) fn committed(&mut self) {
        if let Some(began) = self.committing.take() {
            let took = self.now().since(began);
            self.commit_took.observe(took);
        }
    }

    pub(super) fn is_ledger_answering(&self, within: Span) -> bool {
        self.ledger.has_writer()
            && self.committing.is_none_or(|began| self.now().since(began) <= within)
    }

    /// Whether a machine that was held has ended.
    pub(super) fn has_ended(&self, identity: Identity) -> bool {
        let found = self.scheduler.found.get(&identity);
        found.is_none_or(|found| found.ending.has_ended().unwrap_or(false))
    }

    /// Notes what was found, and that it goes by this binding.
    pub(super) fn keep_found(&mut self, binding: Option<&Binding>, found: Found) {
        match binding {
            Some(binding) => {
                self.fresh.insert(binding.clone(), found);
            }
            None => {
                self.scheduler.found.insert(found.machine.identity, found);
            }
        }
    }

    /// The machine of a request is looked for first.
    pub(super) fn seek(&mut self, asked: Asked, sought: Sought<'_>, user: u32) {
        let (ticket, now) = (asked.ticket, self.now());
        if let Err(TooMany) = self.lookups.look(now, asked, (sought.into(), user)) {
            self.refuse_look_up(ticket);
        }
    }

    fn refuse_look_up(&mut self, ticket: Ticket) {
        self.rests.remove(&ticket);
        let detail = "you have too many requests waiting for VMs to be looked up";
        let problem = Problem::new(Kind::TooMany, detail).hinting("wait for their answers first");
        self.say(&wire::refused(ticket, problem));
    }

    /// The caller of a request has gone: nothing more is looked up for it.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.lookups.cancel(ticket);
        self.rests.remove(&ticket);
    }

    /// Keeps what was looked up while the request is done that it is for.
    pub(super) fn sought(&mut self, looked: Looked) {
        self.looked = looked;
    }

    /// That request is done.
    pub(super) fn forget_looked(&mut self) {
        self.looked = Looked::default();
    }

    /// Whoever is held again went without its promise since then. Says for how long, if there is
    /// anybody.
    pub(super) fn note_lapse(&mut self, service: &Service, last: Option<Time>) -> Option<Span> {
        let lapse = monotonic().since(last?);
        let is_held = |listed: &Listed| listed.served > 0;
        let held = service.listed().filter(|(_, listed)| is_held(listed));
        self.lapsed = held.map(|(domain, _)| (domain, lapse)).collect();
        (!self.lapsed.is_empty()).then_some(lapse)
    }

    /// Many are about to be looked for.
    pub(super) fn look_around_now(&mut self) {
        self.around = find::find_all().ok();
    }

    pub(super) fn forget_around(&mut self) {
        self.around = None;
        self.fresh.clear();
    }

    /// The scout is to look for these, and at who is held.
    pub(super) fn look_around(&mut self, waiting: Vec<Awaited>) {
        let held = self.scheduler.held().filter_map(|(domain, identity)| {
            let machine = self.scheduler.found.get(&identity)?.machine.clone();
            // What has no vCPUs is held as a whole.
            let pid = machine.pid().filter(|_| !machine.vcpus.is_empty())?;
            let is_wanting = self.scheduler.is_wanting(domain, machine.vcpus.len());
            Some(Held { domain, machine, pid, is_wanting })
        });
        let held = held.collect();
        self.scout.look_around(waiting, held);
    }

    fn find(&mut self, binding: &Binding, user: u32) -> Result<Found, Absent> {
        if let Some((_, found)) = self.looked.found.take_if(|(of, _)| of == binding) {
            return found;
        }
        if let Some(found) = self.fresh.remove(binding)
            && !found.ending.has_ended().unwrap_or(true)
        {
            return Ok(found);
        }
        if let Some(around) = &self.around {
            let mut going_by_it = around.iter().filter(|machine| machine.is(binding));
            let number = |machine: &find::Machine| {
                let pid = machine.pid()?.raw().to_string();
                Binding::new(BindingKind::Pid, &pid).ok()
            };
            if let (Some(one), None) = (going_by_it.next(), going_by_it.next())
                && let Some(Ok(found)) = number(one).map(|number| find::find_at_once(&number, None))
                && found.machine.is(binding)
            {
                return Ok(found);
            }
        }
        // What takes long is left to those who look around.
        find::find_at_once(binding, Some(user))
    }

    /// A reservation with what was delivered.
    fn reservation(&mut self, listed: &Listed) -> control::Reservation {
        let now = self.now();
        let domain = self.scheduler.domain_of(listed.row.name.as_str());
        let delivered = domain.map(|domain| self.tally.delivered(domain, now));
        let (recent, total) = delivered.unzip();
        let costs = self.costs.as_ref().zip(domain);
        let cost = costs.map(|(costs, domain)| costs.of(domain, listed.row.terms));
        control::Reservation { cost, ..convert::reservation(listed, recent, total) }
    }

    fn answer(&mut self, ticket: Ticket, answer: &Answer) -> Said {
        let (rest, tenant) = self.rests.remove(&ticket).unwrap_or((Rest::Nothing, None));
        match answer {
            Answer::Done { reservation, is_new, warning } => {
                let reservation = self.reservation(reservation);
                let reservation = Box::new(convert::warned(reservation, warning.as_ref()));
                Said::Done { reservation, is_new: *is_new }
            }
            Answer::Applied { changes } => {
                Said::Applied(changes.iter().map(convert::applied).collect())
            }
            Answer::List(all) if tenant.is_some() => self.list_of_tenant(all, &rest, tenant),
            Answer::List(all) => {
                let is_next = |listed: &&Listed| match &rest {
                    Rest::NamesAfter(after) => listed.row.name.as_str() > after.as_str(),
                    _ => true,
                };
                let page = all.iter().filter(is_next).take(PAGE);
                Said::Reservations(page.map(|listed| self.reservation(listed)).collect())
            }
            Answer::Room(room) => {
                let period = if let Rest::Period(period) = rest { period } else { Span::ZERO };
                Said::Room(convert::room(period, room))
            }
        }
    }

    /// The reservations that a tenant sees: its own by name, then those of others without names.
    fn list_of_tenant(&mut self, all: &[Listed], rest: &Rest, tenant: Option<Asked>) -> Said {
        let Some(tenant) = tenant else { return Said::Reservations(Vec::new()) };
        let after = match rest {
            Rest::NamesAfter(after) if after == wire::ANOTHER => {
                return Said::Reservations(Vec::new());
            }
            Rest::NamesAfter(after) => after.as_str(),
            _ => "",
        };
        let (own, others): (Vec<&Listed>, Vec<&Listed>) =
            all.iter().partition(|listed| tenant.owns(&listed.row));
        let own = own.into_iter().filter(|listed| listed.row.name.as_str() > after);
        let mut page: Vec<control::Reservation> =
            own.take(PAGE).map(|listed| self.reservation(listed)).collect();
        let left = PAGE - page.len();
        let others = others.into_iter().take(left).map(|listed| self.reservation(listed));
        page.extend(others.map(wire::hidden_reservation));
        Said::Reservations(page)
    }

    /// The machines that somebody asked for.
    pub(super) fn answer_find(&mut self, asked: &Asked, machines: &Listing) {
        let (ticket, text) = (asked.ticket, sought_text(&asked.request).unwrap_or_default());
        let line = match machines.as_ref() {
            Ok(machines) => {
                let is_seen = |machine: &find::Machine| {
                    asked.role != Some(Role::Tenant) || asked.may_have(machine.owner)
                };
                let fits = |machine: &control::Machine| {
                    machine.name.contains(text) || machine.binding.contains(text)
                };
                let machines = machines.iter().map(|(machine, uses)| {
                    let reserved = self.scheduler.name_of(machine.identity);
                    let shown = wire::machine(machine, reserved, *uses);
                    if is_seen(machine) { shown } else { wire::hidden_machine(shown) }
                });
                let machines = machines.filter(fits);
                wire::answered(ticket, Said::Machines(machines.collect()))
            }
            Err(absent) => wire::refused(ticket, Problem::new(Kind::NotNow, with_causes(absent))),
        };
        self.say(&line);
    }

    /// What this host is.
    pub(super) fn answer_host(&mut self, ticket: Ticket, service: &Service) {
        let health = service.health();
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = control::Host {
            name: name.trim_end().into(),
            version: env!("CARGO_PKG_VERSION").into(),
            policy: POLICY.into(),
            cpus: self.cpus(service),
            reserve_ppm: CpuShare::ONE.ppm() - self.scheduler.capacity().ppm(),
            reservations: count(health.reservations),
            waiting: count(health.waiting),
            clock: self.clock(),
        };
        self.say(&wire::answered(ticket, Said::Host(host)));
    }

    /// The clock on the wall. The daemons of one boot of one machine have one.
    fn clock(&self) -> control::Clock {
        let ahead = self.scheduler.session.wall_ahead().unwrap_or(Span::ZERO);
        control::Clock {
            id: self.boot.clone(),
            shows_ns: self.now().after(ahead).ns(),
            error_ns: wall_clock_error().map(Span::ns),
        }
    }

    /// How we are.
    pub(super) fn answer_health(&mut self, ticket: Ticket, troubles: Vec<String>) {
        let health = control::Health { good: troubles.is_empty(), troubles };
        self.say(&wire::answered(ticket, Said::Health(health)));
    }

    /// What is counted.
    pub(super) fn answer_numbers(
        &mut self,
        (ticket, tenant): (Ticket, Option<Principal>),
        service: &Service,
    ) {
        let now = self.now();
        let mut reservations = Vec::new();
        let is_seen = |listed: &Listed| tenant.is_none_or(|tenant| listed.row.owner == tenant);
        for (domain, listed) in service.listed().filter(|(_, listed)| is_seen(listed)) {
            let each = listed.row.terms.each();
            let lapsed = self.lapsed.get(&domain).copied().unwrap_or_default();
            let vcpus = self.tally.by_vcpu(domain, now).into_iter();
            let vcpus = vcpus.map(|(vcpu, sum)| control::VcpuNumbers {
                vcpu,
                cpu_ns: sum.delivered.used_ns,
                promised_ns: sum.delivered.promised_ns,
                due_ns: sum.delivered.due_ns,
                deadlines: sum.delivered.deadlines,
                missed: sum.delivered.missed,
                late_ns: sum.late.ns(),
                waited_ns: sum.waited.ns(),
                lapsed_ns: lapsed.ns(),
            });
            reservations.push(control::ReservationNumbers {
                name: listed.row.name.to_string(),
                slice_ns: each.slice().ns(),
                period_ns: each.period().ns(),
                state: listed.state.into(),
                vcpus: vcpus.collect(),
                cost: self.costs.as_ref().map(|costs| costs.of(domain, listed.row.terms)),
            });
        }
        let cpus = self.cpus(service).into_iter().zip(&self.tally.cpus);
        let cpus = cpus.map(|(cpu, tally)| control::CpuNumbers {
            cpu: cpu.cpu,
            promised_ppm: cpu.promised_ppm,
            capacity_ppm: cpu.capacity_ppm,
            stolen_ns: tally.stolen.ns(),
            dispatcher_ns: tally.dispatching.ns(),
        });
        let numbers = Numbers {
            reservations,
            cpus: cpus.collect(),
            timer_late: self.tally.timer_late.clone(),
            change_effect: self.change_effect.clone(),
            commit: self.commit_took.clone(),
            meddled: self.meddled,
            keeper_restarts: self.keeper_restarts,
            restarts: self.restarts,
            front_restarts: self.front.as_ref().map_or(0, |front| front.restarts),
            ledger_errors: self.ledger_errors,
            sight: if knowledge().sleep { "perf" } else { "polling" }.into(),
            process: self.process(),
        };
        self.say(&wire::answered(ticket, Said::Numbers(Box::new(numbers))));
    }

    fn process(&self) -> control::ProcessNumbers {
        let pid = i32::try_from(std::process::id()).ok().and_then(Tid::new);
        let used = pid.and_then(|pid| process_cpu_time(pid).ok());
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut lines = status.lines().filter_map(|line| line.strip_prefix("VmRSS:"));
        let kib =
            lines.next().and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        let fds = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let started = self.began.duration_since(UNIX_EPOCH).unwrap_or_default();
        control::ProcessNumbers {
            cpu_ns: used.map_or(0, Span::ns),
            resident_bytes: kib.unwrap_or(0) * 1_024,
            open_fds: u64::try_from(fds).unwrap_or(u64::MAX),
            started_ns: u64::try_from(started.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

impl World for Host {
    fn look(&mut self, binding: &Binding, user: u32) -> Result<Machine, LookError> {
        let found = self.find(binding, user).map_err(|absent| absent.in_service())?;
        let mut machine = found.machine.in_service();
        // Groups are made for names; nobody says whose a UUID is.
        machine.is_vouched &= binding.kind() != BindingKind::Uuid;
        self.scheduler.found.insert(machine.identity, found);
        Ok(machine)
    }

    fn named(&mut self, name: &Name) -> Vec<Binding> {
        match &self.looked.named {
            Some((of, bindings)) if of == name => bindings.clone(),
            _ => find::named(name.as_str()).unwrap_or_default(),
        }
    }

    fn join(&mut self, group: &[Joining<'_>]) -> Vec<Result<(), Declined>> {
        let done = self.scheduler.join(group);
        let joined = group.iter().zip(&done).filter(|(_, done)| done.is_ok());
        let joined: Vec<&Joining<'_>> = joined.map(|(joining, _)| joining).collect();
        self.begin_history(&joined);
        done
    }

    fn seat(&mut self, domain: DomId, seats: &Seats) -> Result<(), Declined> {
        let done = self.scheduler.seat(domain, seats);
        self.begin_numbers(domain);
        done
    }

    fn unseat(&mut self, domain: DomId) {
        self.scheduler.unseat(domain);
        self.history.contest(domain, false);
        self.begin_numbers(domain);
    }

    fn change(&mut self, domain: DomId, terms: &Terms) -> Result<(), Declined> {
        self.count_history(domain);
        let done = self.scheduler.change(domain, terms);
        if done.is_ok() {
            self.history.change(domain, *terms);
        }
        self.begin_numbers(domain);
        done
    }

    fn pause(&mut self, domain: DomId) -> Result<(), Declined> {
        let done = self.scheduler.pause(domain);
        self.begin_numbers(domain);
        done
    }

    fn resume(&mut self, domain: DomId) -> Result<(), Declined> {
        self.count_history(domain);
        let done = self.scheduler.resume(domain);
        if done.is_ok() {
            self.history.contest(domain, false);
        }
        self.begin_numbers(domain);
        done
    }

    fn leave(&mut self, domain: DomId) {
        self.end_history(domain);
        self.scheduler.leave(domain);
    }

    fn room(&mut self, period: Span) -> Vec<Room> {
        self.scheduler.room(period)
    }

    fn commit(&mut self, commit: &Commit) {
        let now = self.now();
        match self.ledger.append(commit.clone(), now) {
            Ok(()) => self.committing = Some(now),
            Err(error) => {
                let fault = LedgerFault { says: error.to_string() };
                self.not_handed_over.push((commit.seq, fault));
            }
        }
    }

    fn reply(&mut self, ticket: Ticket, reply: &Result<Answer, Refusal>) {
        let line = match reply {
            Ok(answer) => wire::answered(ticket, self.answer(ticket, answer)),
            Err(refusal) => {
                self.rests.remove(&ticket);
                wire::refused(ticket, convert::problem(refusal))
            }
        };
        self.say(&line);
    }

    fn hand_over(&mut self, asked: &Asked) {
        let (ticket, now) = (asked.ticket, self.now());
        match &asked.request {
            Request::Find { .. } => match self.lookups.list(now, asked) {
                Ok(None) => {}
                Ok(Some(listing)) => self.answer_find(asked, &listing),
                Err(TooMany) => self.refuse_look_up(ticket),
            },
            Request::Log { name, before, most } => {
                let limit = usize::from(*most);
                let asked = AskedFor { name: name.clone(), before: *before, limit };
                if let Err(error) = self.ledger.look_up(ticket.0, asked) {
                    let problem = Problem::new(Kind::NotNow, error.to_string());
                    self.say(&wire::refused(ticket, problem));
                }
            }
            Request::History { name, since_ns, by_day } => {
                let (name, since_ns, by_day) = (name.clone(), *since_ns, *by_day);
                self.ask_history(ticket, AskedHours { name, since_ns, by_day });
            }
            // The service answers all others itself.
            _ => {}
        }
    }

    fn publish(&mut self, event: &Event) {
        let age = Duration::from_nanos(self.now().since(event.at).ns());
        let at = SystemTime::now().checked_sub(age).unwrap_or(UNIX_EPOCH);
        self.say(&Line::Event(convert::event(event, at)));
    }

    fn ring(&mut self, at: Time) {
        self.ring = Some(at);
    }
}
