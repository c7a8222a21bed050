//! Implementation of the service's `World` for this host, which carries out the service's
//! decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slackline_control::link::{self, CoreMessage};
use slackline_control::{self as control, Histogram, Kind, PAGE, Problem, convert};
use slackline_linux::sys::{monotonic, wall_clock_error};
use slackline_live::mechanism::{TrialResult, better};
use slackline_service::history::{History, Hour};
use slackline_service::{
    Answer, Binding, BindingKind, ClientRequest, Commit, CpuCapacity, Event, Identity,
    JoiningDomain, LedgerFault, ListedReservation, LookError, Machine, MeasuredVm, MechanismChoice,
    Name, Principal, Refusal, Request, Role, Row, Seats, Service, Terms, Ticket, VmLookup, World,
    WorldError,
};
use slackline_units::{CpuShare, DomId, Span, Time};

use super::costs::Costs;
use super::flight::Flight;
use super::front_process::FrontProcess;
use super::lookups::{Lookups, MOST_WAITING, TooMany};
use super::scheduler::Scheduler;
use super::scout::{AwaitedVm, Listing, LookupResult, ReservedVm, Scout, VmUsers};
use super::tally::Tally;
use super::vm_list;
use super::whatif::Whatifs;
use super::wire::{self, Rest};
use slackline_linux::with_causes;

use super::POLICY;
use crate::find::{self, Absent, Around, FoundMachine};
use crate::ledger::{EventQuery, HoursQuery, Ledger};

/// Maximum number of requests whose details are kept until they are answered. It is far above the
/// number of connections of the front process. Beyond it, the oldest details are dropped.
const MOST_RESTS: usize = 4_096;

/// This host as the service sees it: scheduler, ledger, look-ups and the front process.
pub(super) struct Host {
    pub(super) scheduler: Scheduler,
    pub(super) ledger: Ledger,
    /// Boot id of the host.
    boot: String,
    pub(super) scout: Scout,
    /// Look-ups of VMs for requests. They run independently of the periodic discovery passes, which
    /// look for awaited VMs.
    pub(super) lookups: Lookups,
    pub(super) tally: Tally,
    pub(super) front: Option<FrontProcess>,
    /// Time at which the service must be called. `None` if the service has set no time.
    pub(super) ring: Option<Time>,
    /// Commits that could not be queued for the ledger's writer thread. Each has its number and the
    /// error.
    pub(super) not_handed_over: Vec<(u64, LedgerFault)>,
    /// Details of each unanswered request, which are needed only for its answer. The request itself
    /// is kept too if a tenant made it.
    rests: BTreeMap<Ticket, (Rest, Option<ClientRequest>)>,
    /// List of the host's VMs, made once while many VMs are looked up. `None` at other times.
    around: Option<Around>,
    /// VMs found in the current discovery pass, each by the binding with which it was looked up.
    fresh: BTreeMap<Binding, FoundMachine>,
    /// Result of the look-up for the request that is being executed now.
    looked: LookupResult,
    /// Look-up result that the service got for the request that is being executed now. The service
    /// can ask for it twice. `None` if the service has not asked yet.
    answered: Option<(Binding, Result<Machine, LookError>)>,
    /// Time at which the ledger got the commit that it is writing. `None` if it is writing none.
    committing: Option<Time>,
    pub(super) began: SystemTime,
    pub(super) change_effect: Histogram,
    pub(super) commit_took: Histogram,
    /// Principals that requested a migration of access, by the ticket (id) of the request.
    pub(super) migrating: BTreeMap<Ticket, Principal>,
    pub(super) meddled: u64,
    pub(super) keeper_restarts: u64,
    pub(super) ledger_errors: u64,
    /// Number of daemon restarts since the host was booted.
    pub(super) restarts: u64,
    /// Time without enforcement before this daemon started, for each domain whose VM existed in
    /// that time.
    pub(super) lapsed: BTreeMap<DomId, Span>,
    /// Accumulated costs of reservations. `None` if the daemon has no table of prices.
    pub(super) costs: Option<Costs>,
    /// Flight recorder of missed deadlines. `None` if the flight recorder is off.
    pub(super) flight: Option<Flight>,
    /// Workers that compute predictions from the events of the flight recorder.
    pub(super) whatifs: Whatifs,
    pub(super) history: History,
    /// Time at which the CPU times of all domains are next added to the history.
    pub(super) history_due: Time,
    /// Time of the last write of the history. `None` if some rows were never written.
    pub(super) history_written: Option<Time>,
}

impl Host {
    pub(super) fn new(
        scheduler: Scheduler,
        (ledger, boot, history): (Ledger, String, Vec<Hour>),
        (scout, lookups, whatifs): (Scout, Lookups, Whatifs),
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
            looked: LookupResult::default(),
            answered: None,
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
            flight: None,
            whatifs,
            history: History::recover(history),
            history_due: Time::START,
            history_written: None,
        }
    }

    pub(super) fn now(&self) -> Time {
        self.scheduler.session.now()
    }

    /// Sends a message to the front process, if it is running.
    pub(super) fn say(&mut self, said: &CoreMessage) {
        if let Some(front) = &mut self.front {
            front.say(said);
        }
    }

    /// Restarts the recent metrics of a domain, because its parameters (slice, period and so on) or
    /// its state have changed.
    pub(super) fn begin_numbers(&mut self, domain: DomId) {
        let now = self.now();
        self.tally.begin(domain, now);
    }

    /// Keeps the details of a request until the request is answered.
    pub(super) fn remember(&mut self, asked: &ClientRequest, rest: Rest) {
        while self.rests.len() >= MOST_RESTS {
            self.rests.pop_first();
        }
        let tenant = (asked.role == Some(Role::Tenant)).then(|| asked.clone());
        if rest != Rest::Nothing || tenant.is_some() {
            self.rests.insert(asked.ticket, (rest, tenant));
        }
    }

    /// Notes that the commit being written has completed or failed.
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

    /// Returns true if the VM with this identity has ended, or is unknown to the scheduler.
    pub(super) fn has_ended(&self, identity: Identity) -> bool {
        let found = self.scheduler.found.get(&identity);
        found.is_none_or(|found| found.ending.has_ended().unwrap_or(false))
    }

    /// Stores a VM that a look-up or a discovery pass has found. `binding` is the binding that was
    /// looked up. If it is `None`, the VM already has a reservation.
    pub(super) fn keep_found(&mut self, binding: Option<&Binding>, found: FoundMachine) {
        match binding {
            Some(binding) => {
                self.fresh.insert(binding.clone(), found);
            }
            None => {
                self.scheduler.found.insert(found.machine.identity, found);
            }
        }
    }

    /// Starts a look-up of the VM that a request names.
    pub(super) fn seek(&mut self, asked: ClientRequest, sought: VmLookup<'_>, users: VmUsers) {
        let (ticket, now) = (asked.ticket, self.now());
        if let Err(TooMany) = self.lookups.look(now, asked, (sought.into(), users)) {
            self.refuse_look_up(ticket);
        }
    }

    fn refuse_look_up(&mut self, ticket: Ticket) {
        self.rests.remove(&ticket);
        let detail = format!(
            "this user already has {MOST_WAITING} requests that wait for VM look-ups, the maximum"
        );
        let problem = Problem::new(Kind::TooMany, detail)
            .hinting("wait for the answers to the pending look-ups first");
        self.say(&wire::refused(ticket, problem));
    }

    /// Drops a request whose caller has disconnected, with all work that was started for it.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.lookups.cancel(ticket);
        self.ledger.cancel(ticket.0);
        self.whatifs.cancel(ticket);
        self.flight.as_ref().inspect(|flight| flight.cancel(ticket));
        self.rests.remove(&ticket);
    }

    /// Sets the result of the look-up for the request that is about to be executed.
    pub(super) fn sought(&mut self, looked: LookupResult) {
        (self.looked, self.answered) = (looked, None);
    }

    /// Drops the result of the look-up after the request has been executed.
    pub(super) fn forget_looked(&mut self) {
        (self.looked, self.answered) = (LookupResult::default(), None);
    }

    /// Notes that no reservation was enforced from `last`, the previous daemon's last heartbeat,
    /// until now. Returns the length of that time. `None` if there was no heartbeat, or no VM with
    /// a reservation.
    pub(super) fn note_lapse(&mut self, service: &Service, last: Option<Time>) -> Option<Span> {
        let lapse = monotonic().since(last?);
        let is_held = |listed: &ListedReservation| listed.served > 0;
        let held = service.listed().filter(|(_, listed)| is_held(listed));
        self.lapsed = held.map(|(domain, _)| (domain, lapse)).collect();
        (!self.lapsed.is_empty()).then_some(lapse)
    }

    /// Makes a list of the host's VMs, which serves the look-ups of all reservations in `rows`.
    pub(super) fn look_around_now(&mut self, rows: &[Row]) {
        self.around = Some(Around::look(rows.iter().map(|row| &row.binding)));
    }

    pub(super) fn forget_around(&mut self) {
        self.around = None;
        self.fresh.clear();
    }

    /// Starts a discovery pass: a search for the VMs in `waiting`, and a check of the VMs that the
    /// daemon schedules.
    pub(super) fn look_around(&mut self, waiting: Vec<AwaitedVm>, service: &Service) {
        let unclear: BTreeMap<DomId, &str> = service.unclear().collect();
        let held = self.scheduler.held().filter_map(|(domain, identity)| {
            let machine = self.scheduler.found.get(&identity)?.machine.clone();
            // A VM without known vCPUs is scheduled as a whole, so it has no vCPUs to check.
            let pid = machine.pid().filter(|_| !machine.vcpus.is_empty())?;
            let is_wanting = self.scheduler.is_wanting(domain, machine.vcpus.len());
            let unclear = unclear.get(&domain).map(|why| (*why).to_owned());
            Some(ReservedVm { domain, machine, pid, is_wanting, unclear })
        });
        let held = held.collect();
        self.scout.look_around(waiting, held);
    }

    fn find(&mut self, binding: &Binding, user: u32) -> Result<FoundMachine, Absent> {
        if let Some((_, found)) = self.looked.found.take_if(|(of, _)| of == binding) {
            return found;
        }
        if let Some(found) = self.fresh.remove(binding)
            && !found.ending.has_ended().unwrap_or(true)
        {
            return Ok(found);
        }
        match &self.around {
            Some(around) => around.find(binding, Some(user)),
            None if binding.kind() == BindingKind::Pid => find::find_at_once(binding, Some(user)),
            // Only the scout's threads may make a look-up that takes long. If the VM has ended
            // since they found it, the next discovery pass looks for it again.
            None => Err(Absent::NotHere { binding: binding.clone() }),
        }
    }

    /// Returns a reservation as clients see it, with its delivered CPU time and its cost.
    fn reservation(&mut self, listed: &ListedReservation) -> control::Reservation {
        self.count_kernel_time();
        let now = self.now();
        let domain = self.scheduler.domain_of(listed.row.name.as_str());
        let delivered = domain.map(|domain| self.tally.delivered(domain, now));
        let (recent, total) = delivered.unzip();
        let costs = self.costs.as_ref().zip(domain);
        let cost = costs.map(|(costs, domain)| costs.of(domain, listed.row.terms));
        control::Reservation { cost, ..convert::reservation(listed, recent, total) }
    }

    fn answer(&mut self, ticket: Ticket, answer: &Answer) -> link::Answer {
        let (rest, tenant) = self.rests.remove(&ticket).unwrap_or((Rest::Nothing, None));
        match answer {
            Answer::Done { reservation, is_new, warning } => {
                let shown = self.reservation(reservation);
                let shown = match tenant {
                    Some(_) => wire::without_others(shown, reservation.reason.as_ref()),
                    None => shown,
                };
                let reservation = Box::new(convert::warned(shown, warning.as_ref()));
                link::Answer::Done { reservation, is_new: *is_new }
            }
            Answer::Applied { changes } => {
                link::Answer::Applied(changes.iter().map(convert::applied).collect())
            }
            Answer::List(all) if tenant.is_some() => self.list_of_tenant(all, &rest, tenant),
            Answer::List(all) => {
                let is_next = |listed: &&ListedReservation| match &rest {
                    Rest::NamesAfter(after) => listed.row.name.as_str() > after.as_str(),
                    _ => true,
                };
                let page = all.iter().filter(is_next).take(PAGE);
                link::Answer::Reservations(page.map(|listed| self.reservation(listed)).collect())
            }
            Answer::Plan(plan) => {
                link::Answer::Plan(plan.as_deref().map(convert::plan).map(Box::new))
            }
            Answer::Room(room) => {
                let period = if let Rest::Period(period) = rest { period } else { Span::ZERO };
                link::Answer::Room(convert::room(period, room))
            }
        }
    }

    /// Returns all reservations as a tenant sees them. First come the tenant's own reservations.
    /// The reservations of other owners follow, without names.
    fn list_of_tenant(
        &mut self,
        all: &[ListedReservation],
        rest: &Rest,
        tenant: Option<ClientRequest>,
    ) -> link::Answer {
        let Some(tenant) = tenant else { return link::Answer::Reservations(Vec::new()) };
        let after = match rest {
            Rest::NamesAfter(after) if after == wire::ANOTHER => {
                return link::Answer::Reservations(Vec::new());
            }
            Rest::NamesAfter(after) => after.as_str(),
            _ => "",
        };
        let (own, others): (Vec<&ListedReservation>, Vec<&ListedReservation>) =
            all.iter().partition(|listed| tenant.owns(&listed.row));
        let own = own.into_iter().filter(|listed| listed.row.name.as_str() > after);
        let own = own
            .take(PAGE)
            .map(|listed| wire::without_others(self.reservation(listed), listed.reason.as_ref()));
        let mut page: Vec<control::Reservation> = own.collect();
        let left = PAGE - page.len();
        let others = others.into_iter().take(left).map(|listed| self.reservation(listed));
        page.extend(others.map(wire::hidden_reservation));
        link::Answer::Reservations(page)
    }

    /// Answers a request to list VMs. A tenant sees no names of other users' VMs, and no names of
    /// other owners' reservations.
    pub(super) fn answer_find(
        &mut self,
        (asked, machines): (&ClientRequest, &Listing),
        service: &Service,
    ) {
        let ticket = asked.ticket;
        self.rests.remove(&ticket);
        let is_tenant = asked.role == Some(Role::Tenant);
        let own: Option<BTreeSet<String>> = is_tenant.then(|| {
            let rows = service.listed().map(|(_, listed)| listed.row);
            rows.filter(|row| asked.owns(row)).map(|row| row.name.to_string()).collect()
        });
        let knows = |name: &str| own.as_ref().is_none_or(|own| own.contains(name));
        let reserved = |machine: &find::Machine| {
            let name = self.scheduler.name_of(machine.identity)?;
            Some(if knows(&name) { name } else { wire::ANOTHER.to_owned() })
        };
        let line = match machines.as_ref() {
            Ok(machines) => {
                let list = vm_list::answer(asked, machines, reserved);
                wire::answered(ticket, link::Answer::Machines(list))
            }
            Err(absent) => wire::refused(ticket, Problem::new(Kind::NotNow, with_causes(absent))),
        };
        self.say(&line);
    }

    /// Answers a request for the host's properties.
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
            revision: service.revision(),
            reservations: count(health.reservations),
            waiting: count(health.waiting),
            clock: self.clock(),
        };
        self.say(&wire::answered(ticket, link::Answer::Host(host)));
    }

    /// Returns the wall clock as clients see it: the present time, the maximum error, and an id.
    /// All daemons that run during one boot of a host report the same id.
    fn clock(&self) -> control::Clock {
        let ahead = self.scheduler.session.wall_ahead().unwrap_or(Span::ZERO);
        control::Clock {
            id: self.boot.clone(),
            shows_ns: self.now().after(ahead).ns(),
            error_ns: wall_clock_error().map(Span::ns),
        }
    }

    /// Answers a request for the daemon's health.
    pub(super) fn answer_health(&mut self, ticket: Ticket, troubles: Vec<String>) {
        let health = control::Health { good: troubles.is_empty(), troubles };
        self.say(&wire::answered(ticket, link::Answer::Health(health)));
    }
}

impl World for Host {
    fn look(&mut self, binding: &Binding, user: u32) -> Result<Machine, LookError> {
        let known = self.answered.as_ref().filter(|(of, _)| of == binding);
        if let Some((_, answer)) = known {
            return answer.clone();
        }
        let is_of_request = self.looked.found.as_ref().is_some_and(|(of, _)| of == binding);
        let found = self.find(binding, user).map_err(|absent| absent.in_service());
        let answer = found.map(|found| {
            let mut machine = found.machine.in_service();
            // A cgroup proves the name of a VM, but not its UUID.
            machine.is_vouched &= binding.kind() != BindingKind::Uuid;
            self.scheduler.found.insert(machine.identity, found);
            machine
        });
        if is_of_request {
            self.answered = Some((binding.clone(), answer.clone()));
        }
        answer
    }

    fn named(&mut self, name: &Name) -> Vec<Binding> {
        match &self.looked.named {
            Some((of, bindings)) if of == name => bindings.clone(),
            _ => Vec::new(),
        }
    }

    fn join(&mut self, group: &[JoiningDomain<'_>]) -> Vec<Result<(), WorldError>> {
        let done = self.scheduler.join(group);
        let joined = group.iter().zip(&done).filter(|(_, done)| done.is_ok());
        let joined: Vec<&JoiningDomain<'_>> = joined.map(|(joining, _)| joining).collect();
        self.begin_history(&joined);
        done
    }

    fn seat(&mut self, domain: DomId, seats: &Seats) -> Result<(), WorldError> {
        let done = self.scheduler.seat(domain, seats);
        self.begin_numbers(domain);
        done
    }

    fn unseat(&mut self, domain: DomId) {
        self.count_kernel_time();
        self.scheduler.unseat(domain);
        self.history.contest(domain, false);
        self.begin_numbers(domain);
    }

    fn change(&mut self, domain: DomId, terms: &Terms) -> Result<(), WorldError> {
        self.count_history(domain);
        let done = self.scheduler.change(domain, terms);
        if done.is_ok() {
            self.history.change(domain, *terms);
        }
        self.begin_numbers(domain);
        done
    }

    fn pause(&mut self, domain: DomId) -> Result<(), WorldError> {
        let done = self.scheduler.pause(domain);
        self.begin_numbers(domain);
        done
    }

    fn resume(&mut self, domain: DomId) -> Result<(), WorldError> {
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

    fn wall_ahead(&mut self) -> Span {
        self.scheduler.session.wall_ahead().unwrap_or(Span::ZERO)
    }

    fn best_mechanism(&mut self) -> MechanismChoice {
        let trial = TrialResult::read_all(Path::new(TrialResult::FILE));
        let (by, why) = better(&trial);
        MechanismChoice { by, why }
    }

    fn room(&mut self, period: Span) -> Vec<CpuCapacity> {
        self.scheduler.room(period)
    }

    fn measured(&mut self, domain: DomId) -> MeasuredVm {
        self.count_kernel_time();
        let now = self.now();
        let (_, all) = self.tally.delivered(domain, now);
        MeasuredVm {
            present: Span::from_ns(all.over_ns),
            used: Span::from_ns(all.used_ns),
            deadlines: all.deadlines,
            missed: all.missed,
        }
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

    fn hand_over(&mut self, asked: &ClientRequest) {
        let (ticket, now) = (asked.ticket, self.now());
        match &asked.request {
            Request::Find { .. } => {
                let listed = self.lookups.list(now, asked);
                if listed == Err(TooMany) {
                    self.refuse_look_up(ticket);
                }
            }
            Request::Log { name, before, most } => {
                let limit = usize::from(*most);
                let query = EventQuery { name: name.clone(), before: *before, limit };
                let begun = self.ledger.look_up((ticket.0, asked.principal), query);
                self.refuse_query(ticket, begun);
            }
            Request::History { name, since_ns, by_day } => {
                let (name, since_ns, by_day) = (name.clone(), *since_ns, *by_day);
                let by = (ticket, asked.principal);
                self.ask_history(by, HoursQuery { name, since_ns, by_day });
            }
            // The service answers all other requests itself.
            _ => {}
        }
    }

    fn publish(&mut self, event: &Event) {
        let age = Duration::from_nanos(self.now().since(event.at).ns());
        let at = SystemTime::now().checked_sub(age).unwrap_or(UNIX_EPOCH);
        self.say(&CoreMessage::Event(convert::event(event, at)));
    }

    fn ring(&mut self, at: Time) {
        self.ring = Some(at);
    }
}
