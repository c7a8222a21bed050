//! The core: the main thread of the daemon, which owns the live session and makes all decisions.
//! Slow work (the disk, discovery of VMs, input from clients) is done by other threads and
//! processes. The core sends orders to them, and continues without waiting for an answer.
//!
//! The core is real-time, one priority below the dispatchers. So a change takes effect within a
//! millisecond even if all CPUs of the host are reserved. If a CPU is left unmanaged, the core, the
//! ledger thread, the keeper process and the front process run on that CPU.

mod access;
mod alive;
mod asking;
mod changes;
mod costs;
mod cpus;
mod deferred;
mod error;
mod flight;
mod forecasts;
mod front_process;
mod front_share;
mod grants;
mod history;
mod host;
mod incidents;
mod interference;
mod kernel;
mod kernel_checks;
mod kernel_seats;
mod leftovers;
mod listening;
mod loads;
mod lookups;
mod numbers;
mod own;
mod predictions;
mod recording;
mod reload;
mod rights;
mod scheduler;
mod scout;
mod shares;
mod socket;
mod systemd;
mod tally;
mod timeline;
mod vm_list;
mod whatif;
mod wire;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::process::{Resource, getrlimit};
use slackline_control::RequestedMechanism;
use slackline_control::link::Answer;
use slackline_fence::KeeperCommand;
use slackline_linux::{ClockStep, WallClock, with_causes};
use slackline_live::Punctual;
use slackline_live::session::{Options, OwnedCpus, Session, SessionError, knowledge};
use slackline_policy::{RawValue, Spec, Values, find};
use slackline_service::{Health, Input, LedgerFault, Name, Service, Settings, Ticket, Verb};
use slackline_units::{CpuId, Span, Time};

use cpus::{listed, live_elsewhere, managed_cpus};

pub use costs::{Factor, Prices};
pub use error::ServeError;
pub use front_process::FrontCommand;
pub use reload::Reload;
pub use socket::SocketError;

use crate::front::TlsFiles;
use crate::ledger::{Keep, Ledger, OpenedLedger, Reply, boot_id};
use crate::people::People;
use access::Access;
use alive::Alive;
use costs::Costs;
use deferred::DeferredRequests;
use front_process::FrontProcess;
use host::Host;
use leftovers::{free_kept, free_leftovers};
use lookups::Lookups;
use reload::Reader;
use scheduler::Scheduler;
use scout::Scout;
use systemd::Systemd;
use tally::Tally;
use whatif::Whatifs;
use wire::ValidRequest;

/// Name of the live session's scheduling policy: partitioned EDF. Each vCPU reserves a slice in
/// every period.
const POLICY: &str = "edf";

/// Part of each CPU that cannot be reserved. It remains for the host's own threads and for
/// dispatching.
const RESERVE: &str = "10%";

/// Longest sleep of the core (the daemon's main thread). The core reads trace records and checks
/// the scheduled threads at least this often.
const ROUND: Span = Span::from_ms(100);

/// Longest sleep of the core (the daemon's main thread) while the front process is not running or
/// has unread messages.
const BEHIND: Span = Span::from_ms(10);

/// Interval of discovery passes. A discovery pass searches for VMs that reservations wait for, and
/// checks the VMs that the daemon schedules.
const AROUND: Span = Span::from_secs(2);

/// Interval at which the core adds up costs, checks the load of the CPUs and reports its status.
const SECOND: Span = Span::from_secs(1);

/// Longest allowed time since the last pass of a dispatcher. If more time has passed, the daemon
/// counts as unhealthy.
const LOOKED: Span = Span::from_ms(200);

/// Longest time that a commit may take before the daemon counts as unhealthy.
const WRITTEN: Span = Span::from_secs(10);

/// Options with which the daemon is started.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// CPUs that the daemon schedules. If `None`, it schedules all CPUs but the first.
    pub cpus: Option<Vec<CpuId>>,
    /// Folder that contains the ledger.
    pub state: PathBuf,
    /// Path of the socket for local clients, unless systemd passes that socket.
    pub socket: PathBuf,
    /// Address for clients on other hosts. `None` if only local clients may connect.
    pub listen: Option<Listen>,
    /// Loopback address at which metrics are served without TLS. `None` if metrics are not served
    /// at a loopback address.
    pub metrics: Option<SocketAddr>,
    /// Loopback address at which browsers get the web page. `None` if the page is not served at a
    /// loopback address.
    pub page: Option<SocketAddr>,
    /// Prices of CPU time. `None` if reservations have no cost.
    pub prices: Option<Prices>,
    /// Default mechanism of enforcement. It applies to a reservation with a slice, a hard limit and
    /// no phase if the request names no mechanism.
    pub enforce: RequestedMechanism,
    /// True if the flight recorder is on. It keeps the scheduling events of the last minute, and
    /// saves a recording when a VM misses a deadline.
    pub is_recorded: bool,
    /// Command that starts the keeper process. If the daemon dies, the keeper restores the original
    /// scheduling of all threads that the daemon schedules.
    pub keeper: KeeperCommand,
    /// Command that starts the front process, which serves clients.
    pub front: FrontCommand,
    /// Command that starts a worker, a process that computes predictions from a recording.
    pub worker: FrontCommand,
}

/// Address on which the daemon listens for clients on other hosts, with its TLS files.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Address and port to listen on.
    pub address: SocketAddr,
    /// Certificates and keys for TLS.
    pub tls: TlsFiles,
}

/// Runs the daemon until `stop` is readable. When a reload is requested through `reload`, reads
/// prices, groups and certificates again. `tell` gets one line for each event that the host's
/// administrator should know about.
///
/// # Errors
/// If the service cannot start, or cannot continue. Every thread has been restored by then.
pub fn serve(
    options: &ServeOptions,
    stop: BorrowedFd<'_>,
    reload: Reload,
    tell: &mut dyn FnMut(&str),
) -> Result<(), ServeError> {
    listening::check_loopback(options)?;
    let unreadable = |what| move |source| ServeError::Unreadable { what, source };
    rights::keep_what_is_needed().map_err(unreadable("own capabilities"))?;
    rights::enough_descriptors(getrlimit(Resource::Nofile).maximum)?;
    rights::raise_descriptors();
    // Before anything on the host is changed, check that this thread may be real-time.
    drop(Punctual::begin().map_err(|source| SessionError::NoRealTime { source })?);
    let cpus = managed_cpus(options.cpus.as_deref())?;
    let owned = OwnedCpus::take(&cpus).map_err(SessionError::from)?;
    let boot = boot_id().map_err(unreadable("the boot id"))?;
    let OpenedLedger { ledger, loaded, access, history, has_tenants, .. } =
        Ledger::open(&options.state, &boot, Keep::USUAL)?;
    let people = People::of_this_host().map_err(unreadable("the host's groups"))?;
    let (listener, warning) = socket::listen(&options.socket, people)?;
    warning.iter().for_each(|line| tell(line));
    let others = listening::listen_elsewhere(options)?;
    free_leftovers(&options.keeper, tell);
    let session = open_session(options, &cpus, owned)?;
    let is_crowded = !live_elsewhere(&cpus);
    let not_started = |what| move |source| ServeError::NotStarted { what, source };
    let helpers = helpers(options)?;
    let reader = Reader::start(reload, options.listen.clone(), &listener);
    let tally = Tally::new(POLICY, cpus.len(), knowledge());
    let scheduler = Scheduler::new(session, cpus, &options.keeper);
    let mut host = Host::new(scheduler, (ledger, boot.clone(), history), helpers, tally);
    host.look_around_now(&loaded.rows);
    let (now, access) = (host.now(), Access::new(people, access, has_tenants));
    grants::report_rights_lost_by_migration(&access, &loaded, tell);
    let mut service = Service::recover(Settings::default(), now, loaded, &mut host);
    free_kept(&options.keeper, tell);
    service.set_budgets(access.budgets());
    host.costs = options.prices.clone().map(|prices| Costs::new(prices, now));
    host.forget_around();
    let begun = Alive::begin(&options.socket, &boot);
    if let Err(error) = &begun {
        tell(&format!("cannot write a heartbeat, so daemon outages are not counted: {error}"));
    }
    let (alive, last) = begun.map_or((None, None), |(alive, last)| (Some(alive), last));
    host.restarts = alive.as_ref().map_or(0, |alive| alive.restarts);
    if let Some(lapse) = host.note_lapse(&service, last) {
        tell(&format!("no reservation was enforced for {lapse}, because no daemon ran"));
    }
    let front = FrontProcess::start(options.front.clone(), listener, others);
    host.front = Some(front.map_err(not_started("the front process"))?);
    let mut core = Core {
        service,
        host,
        access,
        reader: reader.map_err(not_started("the reader of files"))?,
        systemd: Systemd::new(),
        deferred: DeferredRequests::default(),
        next_around: now,
        next_second: now,
        next_alive: now,
        alive,
        next_sign: now,
        enforce: options.enforce,
        status: String::new(),
        is_crowded,
    };
    core.begin(options, tell);
    let ran = core.run(stop, tell);
    ran.and(core.close())
}

/// Starts the threads that look up VMs, and creates an empty set of prediction workers.
fn helpers(options: &ServeOptions) -> Result<(Scout, Lookups, Whatifs), ServeError> {
    let not_started = |what| move |source| ServeError::NotStarted { what, source };
    let scout = Scout::start(scout::PREFERRED).map_err(not_started("the scout thread"))?;
    let lookups = Lookups::start().map_err(not_started("the threads that look up VMs"))?;
    let whatifs = Whatifs::new(options.worker.clone()).map_err(not_started("workers"))?;
    Ok((scout, lookups, whatifs))
}

/// State of the event loop that runs in the daemon's main thread.
struct Core {
    service: Service,
    host: Host,
    access: Access,
    reader: Reader,
    systemd: Systemd,
    deferred: DeferredRequests,
    next_around: Time,
    next_second: Time,
    next_alive: Time,
    alive: Option<Alive>,
    next_sign: Time,
    /// Default mechanism of enforcement. It applies to a reservation with a slice, a hard limit and
    /// no phase if the request names no mechanism.
    enforce: RequestedMechanism,
    /// Status that was last reported to systemd.
    status: String,
    /// True if the daemon schedules all CPUs and leaves none for its own threads.
    is_crowded: bool,
}

impl Core {
    fn run(&mut self, stop: BorrowedFd<'_>, tell: &mut dyn FnMut(&str)) -> Result<(), ServeError> {
        loop {
            if self.wait(stop) {
                return Ok(());
            }
            self.look_after_session(tell)?;
            self.hear_ledger(tell);
            self.hear_front(tell);
            self.hear_scout();
            self.hear_lookups();
            self.hear_flight(tell);
            self.hear_whatifs();
            self.reload(tell);
            self.keep_time();
            self.hear_deferred();
        }
    }

    /// Waits for an event or until the next timer expires. Returns true if the service must stop.
    fn wait(&self, stop: BorrowedFd<'_>) -> bool {
        let now = self.host.now();
        let most = FrontProcess::longest_sleep(self.host.front.as_ref());
        let most = self.host.ring.map_or(most, |ring| ring.since(now).min(most));
        let mut fds = vec![stop, self.host.ledger.as_fd()];
        fds.extend([self.host.scout.as_fd(), self.reader.fd(), self.host.whatifs.as_fd()]);
        fds.extend(self.host.lookups.fds());
        fds.extend(self.host.front.as_ref().and_then(FrontProcess::fd));
        self.host.scheduler.session.wait(&fds, most)[0]
    }

    fn look_after_session(&mut self, tell: &mut dyn FnMut(&str)) -> Result<(), ServeError> {
        let mut records = Vec::new();
        let mut seen = self.host.scheduler.session.poll(&mut records)?;
        self.host.scheduler.name_mechanisms(&mut records);
        let shrunk = self.host.scheduler.look_at_kernel(&mut records, &mut seen);
        if let Some(flight) = &mut self.host.flight {
            flight.hand_over(&records, self.host.scheduler.changed_threads());
        }
        self.host.tally.take(&mut records, seen.now);
        if seen.keeper_replaced {
            tell("the keeper died and was replaced");
            self.host.keeper_restarts += 1;
            self.step(Input::KeeperReplaced);
        }
        if let Some(ClockStep { by, is_ahead }) = seen.clock_stepped {
            self.step(Input::ClockStepped { by, is_ahead });
        }
        self.hear_of_changes(&seen);
        for thinned in self.host.scheduler.ended(&seen.ended).into_iter().chain(shrunk) {
            if thinned.has_ended || self.host.has_ended(thinned.identity) {
                let (domain, identity) = (thinned.domain, thinned.identity);
                self.host.scheduler.unseat(domain);
                self.step(Input::Vanished { domain, identity });
            } else {
                // The VM has not ended, so a discovery pass must find its remaining threads.
                self.next_around = seen.now;
            }
        }
        Ok(())
    }

    fn hear_ledger(&mut self, tell: &mut dyn FnMut(&str)) {
        for reply in self.host.ledger.replies() {
            match reply {
                Reply::Committed { seq } => {
                    self.host.committed();
                    self.step(Input::Committed { seq });
                }
                Reply::Failed { seq, error } => {
                    self.host.committed();
                    self.host.ledger_errors += 1;
                    let says = with_causes(&error);
                    tell(&format!("cannot write the ledger: {says}"));
                    self.step(Input::NotCommitted { seq, fault: LedgerFault { says } });
                }
                Reply::Events { ticket, events } => self.host.answer_log(Ticket(ticket), events),
                Reply::History { rows, done } => {
                    if let Err(error) = done {
                        tell(&format!("cannot write the history: {}", with_causes(&error)));
                        self.host.history.put_back(rows);
                    }
                }
                Reply::Hours { ticket, hours } => {
                    self.host.answer_history(Ticket(ticket), hours);
                }
                Reply::Access { ticket, done } => self.changed_access(Ticket(ticket), done),
                Reply::NoBackup(error) => {
                    tell(&format!("cannot back up the ledger: {}", with_causes(&error)));
                }
            }
        }
        // Commits that could not be queued for the ledger's writer at all.
        for (seq, fault) in std::mem::take(&mut self.host.not_handed_over) {
            self.host.ledger_errors += 1;
            self.step(Input::NotCommitted { seq, fault });
        }
    }

    fn hear_front(&mut self, tell: &mut dyn FnMut(&str)) {
        let Some(front) = &mut self.host.front else { return };
        if front.look_after() {
            tell("the front process ended and was replaced");
            self.promise_front(tell);
        }
        let Some(front) = &mut self.host.front else { return };
        front.hear();
        while let Some(mut ask) = self.host.front.as_mut().and_then(FrontProcess::next_ask) {
            kernel::name_mechanism(&mut ask.request, self.enforce);
            let each = |name: &Name| {
                let mut all = self.service.listed();
                let (_, listed) = all.find(|(_, listed)| listed.row.name == *name)?;
                Some((listed.row.owner, listed.row.terms.each()))
            };
            let wall_ahead = self.host.scheduler.session.wall_ahead().unwrap_or(Span::ZERO);
            match wire::heard(ask, &self.access, (each, wall_ahead)) {
                Err((ticket, problem)) => self.host.say(&wire::refused(ticket, problem)),
                Ok(ValidRequest::Host(ticket)) => self.host.answer_host(ticket, &self.service),
                Ok(ValidRequest::Health(ticket)) => {
                    let troubles = self.troubles();
                    self.host.answer_health(ticket, troubles);
                }
                Ok(ValidRequest::Numbers(ticket, tenant)) => {
                    self.host.answer_numbers((ticket, tenant), &self.service);
                }
                Ok(ValidRequest::MigrateAccess(ticket, by)) => self.migrate_access(ticket, by),
                Ok(ValidRequest::Access(ticket)) => {
                    let listed = self.access.listed();
                    self.host.say(&wire::answered(ticket, Answer::Access(listed)));
                }
                Ok(ValidRequest::Flight(asker, question, tenant)) => {
                    self.host.ask_flight((asker, question), tenant, &self.service);
                }
                Ok(ValidRequest::Whatif(who, role, asked)) => {
                    self.ask_whatif(who, role, asked);
                }
                Ok(ValidRequest::Cancel(ticket)) => {
                    self.deferred.cancel(ticket);
                    self.host.cancel(ticket);
                }
                Ok(ValidRequest::Whoami(ticket, role)) => {
                    self.host.say(&wire::answered(ticket, Answer::You(role.into())));
                }
                Ok(ValidRequest::ChangeAccess(ticket, by, change)) => {
                    self.change_access(ticket, by, change);
                }
                Ok(ValidRequest::Service(asked, rest)) => {
                    self.host.remember(&asked, rest);
                    self.hear_asked(asked);
                }
            }
        }
    }

    /// Reserves CPU time for the front process if the daemon schedules all CPUs.
    fn promise_front(&mut self, tell: &mut dyn FnMut(&str)) {
        let pid = self.host.front.as_ref().and_then(FrontProcess::pid);
        let Some(pid) = pid.filter(|_| self.is_crowded) else { return };
        if let Err(declined) = self.host.scheduler.seat_front(pid) {
            tell(&format!(
                "cannot reserve CPU for the front process, so requests may wait: {declined}"
            ));
        }
    }

    fn note_effect(&mut self, verb: Verb, began: Time) {
        if verb.is_change() {
            let took = self.host.now().since(began);
            self.host.change_effect.observe(took);
        }
    }

    fn keep_time(&mut self) {
        let now = self.host.now();
        if self.host.ring.is_some_and(|ring| ring <= now) {
            self.host.ring = None;
            self.step(Input::Rang);
        }
        if now >= self.next_around {
            self.next_around = now + AROUND;
            self.notice_ended();
            let waiting = self.service.awaited().map(scout::AwaitedVm::of).collect();
            self.host.look_around(waiting, &self.service);
            let service = &self.service;
            self.host.tally.forget(|domain| service.name_of(domain).is_some());
        }
        if now >= self.next_second {
            self.next_second = now + SECOND;
            if let Some(costs) = &mut self.host.costs {
                costs.count(now, self.service.listed());
            }
            for (cpu, load) in self.host.loads() {
                self.step(Input::Load { cpu, load });
            }
            self.say_status();
        }
        self.host.keep_history(now, &self.service);
        if let Some(alive) = &mut self.alive
            && now >= self.next_sign
        {
            self.next_sign = now + alive::EVERY;
            alive.sign();
        }
        if let Some(watchdog) = self.systemd.watchdog
            && now >= self.next_alive
            && self.is_well()
        {
            let often = u64::try_from(watchdog.as_nanos()).unwrap_or(u64::MAX) / 4;
            self.next_alive = now + Span::from_ns(often);
            self.systemd.alive();
        }
    }

    /// Reports to the service each VM that ended later than its last vCPU thread. The live session
    /// reports the end of each thread, but not the later end of the VM.
    fn notice_ended(&mut self) {
        let held = self.host.scheduler.held();
        let ended: Vec<_> = held.filter(|&(_, identity)| self.host.has_ended(identity)).collect();
        for (domain, identity) in ended {
            self.host.scheduler.unseat(domain);
            self.step(Input::Vanished { domain, identity });
        }
    }

    /// Returns true if all dispatchers make passes, and the ledger completes commits in time. If
    /// false, the daemon sends no watchdog notification, so systemd kills the daemon.
    fn is_well(&self) -> bool {
        self.host.scheduler.session.unlooked() <= LOOKED && self.host.is_ledger_answering(WRITTEN)
    }

    fn step(&mut self, input: Input) {
        let now = self.host.now();
        if let Some(costs) = &mut self.host.costs {
            costs.count(now, self.service.listed());
        }
        self.service.step(now, input, &mut self.host);
    }

    /// Returns the reasons why the daemon is unhealthy, one sentence each. Empty if it is healthy.
    fn troubles(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        let health = self.service.health();
        troubles.extend(health.ledger.map(|why| format!("cannot write the ledger: {why}")));
        let unlooked = self.host.scheduler.session.unlooked();
        if unlooked > LOOKED {
            troubles.push(format!("a dispatcher has made no scheduling pass for {unlooked}"));
        }
        if !self.host.is_ledger_answering(WRITTEN) {
            troubles.push(format!("the ledger has not answered for more than {WRITTEN}"));
        }
        troubles
    }

    fn say_ready(&mut self, tell: &mut dyn FnMut(&str)) {
        self.status = status(&self.service.health());
        self.systemd.ready(&self.status);
        let cpus = listed(self.host.scheduler.cpus());
        tell(&format!("ready on CPU {cpus}: {}", self.status));
    }

    fn say_status(&mut self) {
        let status = status(&self.service.health());
        if status != self.status {
            self.status = status;
            self.systemd.status(&self.status);
        }
    }

    /// Restores the original scheduling of all threads, and writes all pending commits to the
    /// ledger.
    fn close(self) -> Result<(), ServeError> {
        self.systemd.stopping();
        let Core { mut host, alive, .. } = self;
        host.close_history();
        if let Some(mut alive) = alive {
            alive.sign();
        }
        let Host { scheduler, ledger, front, .. } = host;
        drop(front);
        let mut records = Vec::new();
        let closed = scheduler.session.close(&mut records);
        let (_, written) = ledger.close();
        closed?;
        Ok(written?)
    }
}

fn status(health: &Health) -> String {
    let Health { reservations, waiting, .. } = health;
    let plural = if *reservations == 1 { "" } else { "s" };
    format!("{reservations} reservation{plural}, {waiting} waiting")
}

/// Returns the policy of the session with its parameters.
fn policy() -> (&'static Spec, Values) {
    let policy = find(POLICY).expect("the policy of the session is built in");
    let given = [("reserve", RawValue::Text(RESERVE))];
    let values = Values::read(policy.policy_fields, given.into_iter());
    (policy, values.expect("the policy accepts the reserve"))
}

fn open_session(
    options: &ServeOptions,
    cpus: &[CpuId],
    owned: OwnedCpus,
) -> Result<Session, SessionError> {
    let (policy, values) = policy();
    let (cpus, owned, keeper) = (cpus.to_vec(), Some(owned), options.keeper.clone());
    let wall_clock = Some(WallClock::default());
    let (dispatch, origin) = (None, None);
    let mut session = Session::open(&Options {
        cpus,
        owned,
        policy,
        values,
        keeper,
        dispatch,
        origin,
        wall_clock,
    })?;
    if options.is_recorded {
        // The reservations of the ledger join before the recorder starts. Without the recorded
        // exchanges, the recorder would not know their parameters and affinities.
        session.keep_exchanges();
    }
    Ok(session)
}
