//! Commands that send requests to the daemon and show the answers.

mod apply;
pub(crate) mod args;
mod command;
mod gang;
mod history;
mod incidents;
mod log;
mod place;
mod predictions;
mod show;
mod socket_access;
pub(crate) mod view;

use std::fs::File;
use std::io::{IsTerminal, stderr, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slackline_control::client::{Answered, Client, ClientError, Frame, Stream, Text, WaitOutcome};
use slackline_control::{
    Culprits, Event, Grant, Kind, Length, PAGE, Recording, Reservation, Share,
};
use slackline_units::Span;

use crate::amounts::{percent_hint, share_hint};
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::terminal;
use args::{
    AccessArgs, AccessCommand, Add, AmountArgs, Change, DaemonArgs, Find, IncidentsArgs, List, Log,
    NamedArgs, PageArgs, Pause, PredictionsArgs, Reserve, Room, SelectionArgs,
};

pub(crate) use apply::{REVISION, apply, as_table, key, undo};
pub(crate) use gang::gang;
pub(crate) use history::history;
pub(crate) use place::place;

/// Pause before a request that exceeded a rate limit is repeated.
const RATE_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of times that a request is repeated after it exceeded a rate limit.
const RATE_RETRIES: u32 = 100;

/// Interval of checks for signals, and of attempts to reconnect to a daemon.
const OFTEN: Duration = Duration::from_millis(100);

/// Maximum number of attempts to reconnect to a daemon.
const BACK_WITHIN: u32 = 50;

/// Number of latest events that `watch` shows.
const IN_SIGHT: usize = 5;

pub(crate) fn find(args: &Find) -> Result<(), Problem> {
    let (machines, text) = connect(&args.at)?.find(args.text.as_deref())?;
    answer(&args.at, &text, || match (&machines[..], &args.text) {
        ([], None) => "this host has no VMs\n".into(),
        ([], Some(text)) => format!("no VM has `{text}` in its name or binding\n"),
        (all, _) => show::machines(all),
    })
}

pub(crate) fn reserve(args: &Reserve) -> Result<(), Problem> {
    if !args.command.is_empty() {
        return command::reserve_command(args);
    }
    let wanted = args.much.wanted(args.r#for.as_ref(), args.user);
    let answered = connect(&args.at)?.reserve(&args.name, &wanted);
    done(&args.at, answered.map_err(|error| in_same_terms(&args.much, error)))
}

pub(crate) fn change(args: &Change) -> Result<(), Problem> {
    let AmountArgs { slice, period, cpu, vcpus, exact, at_least, phase, until, enforce } =
        args.much;
    let exact = (exact || at_least).then_some(exact);
    let binding = None;
    let change = slackline_control::Change {
        slice,
        period,
        cpu,
        exact,
        phase,
        vcpus,
        until,
        enforce,
        binding,
        why: None,
    };
    let is_bare = change == slackline_control::Change::default();
    let change = slackline_control::Change { why: args.why.clone(), ..change };
    if let Some(binding) = &args.r#for {
        rebind(args, binding.clone())?;
        if is_bare {
            return Ok(());
        }
    }
    if is_bare {
        return Err(Problem::BadOption {
            message: "cannot change the reservation: no new parameter is given".into(),
            hint: Some(
                "add `--slice 3ms`, `--period 20ms`, `--cpu 50%`, `--vcpus 4`, `--phase 3ms`, \
                 `--until 2h`, `--exact`, `--at-least`, `--enforce deadline` or `--for libvirt:web`"
                    .into(),
            ),
        });
    }
    // With --for, the change of the binding has already checked --if-revision and changed the
    // revision.
    let if_revision = args.if_revision.filter(|_| args.r#for.is_none());
    each(&args.at, &args.name, if_revision, |client, name, revision| {
        client.change(name, &change, revision)
    })
}

/// Changes the binding of a reservation, so that it applies to another VM.
fn rebind(args: &Change, binding: String) -> Result<(), Problem> {
    if args.name.contains(['*', '?']) {
        return Err(Problem::BadOption {
            message: format!(
                "cannot use --for with `{}`: it is a pattern, and --for moves one reservation",
                args.name
            ),
            hint: Some("name the reservation that --for moves".into()),
        });
    }
    let change = slackline_control::Change {
        binding: Some(binding),
        ..slackline_control::Change::default()
    };
    done(&args.at, connect(&args.at)?.change(&args.name, &change, args.if_revision))
}

pub(crate) fn pause(args: &Pause) -> Result<(), Problem> {
    if !args.yes && stdin().is_terminal() && !is_meant(&args.name)? {
        return Ok(());
    }
    each(&args.at, &args.name, args.if_revision, Client::pause)
}

/// Asks the user to confirm a pause. Returns true for yes.
fn is_meant(name: &str) -> Result<bool, Problem> {
    terminal::tell(&format!(
        "{name} stops until it is resumed; its users see it hang. Pause? [y/N] "
    ));
    let mut said = String::new();
    let cannot = |source| Problem::Unreadable { file: "standard input".into(), source };
    stdin().read_line(&mut said).map_err(cannot)?;
    Ok(matches!(said.trim(), "y" | "Y" | "yes"))
}

/// Prints the address of the page. The login code is in the fragment of the address, which browsers
/// send to no server.
pub(crate) fn page(args: &PageArgs) -> Result<(), Problem> {
    let (code, text) = connect(&args.at)?.page_code()?;
    let address = match (&args.at.host, &code.address) {
        (Some(url), _) => format!("{}/", url.trim_end_matches('/')),
        (None, Some(address)) => address.clone(),
        (None, None) => String::new(),
    };
    answer(&args.at, &text, || format!("{address}#{}\n", code.code))?;
    if !args.at.json {
        let within = Span::from_ns(code.lasts_ns);
        terminal::tell(&format!(
            "note:  open the address within {within}; the code in it works once\n"
        ));
    }
    Ok(())
}

pub(crate) fn resume(args: &NamedArgs) -> Result<(), Problem> {
    each(&args.at, &args.name, args.if_revision, Client::resume)
}

pub(crate) fn release(args: &NamedArgs) -> Result<(), Problem> {
    let mut client = connect(&args.at)?;
    for name in meant(&mut client, &args.name, args.if_revision)? {
        let (reservation, text) = patiently(|| client.release(&name, args.if_revision))?;
        warn(&reservation);
        answer(&args.at, &text, || format!("{} is released\n", reservation.name))?;
    }
    Ok(())
}

/// Sends a request for one reservation. If `name` is a pattern, sends one request after the other,
/// for all reservations that match. Stops at the first refusal.
fn each(
    at: &DaemonArgs,
    name: &str,
    revision: Option<u64>,
    mut ask: impl FnMut(&mut Client, &str, Option<u64>) -> Answered<Reservation>,
) -> Result<(), Problem> {
    let mut client = connect(at)?;
    for name in meant(&mut client, name, revision)? {
        done(at, patiently(|| ask(&mut client, &name, revision)))?;
    }
    Ok(())
}

/// Sends a request, and repeats the request while it exceeds a rate limit. A command with a pattern
/// that matches many reservations can exceed the limit.
fn patiently<T>(mut ask: impl FnMut() -> Answered<T>) -> Answered<T> {
    for _ in 0..RATE_RETRIES {
        match ask() {
            Err(ClientError::Refused(problem)) if problem.kind == Kind::TooMany => {
                std::thread::sleep(RATE_PAUSE);
            }
            answered => return answered,
        }
    }
    ask()
}

/// Returns the names of the reservations to which a name or a pattern refers.
fn meant(client: &mut Client, name: &str, revision: Option<u64>) -> Result<Vec<String>, Problem> {
    if !apply::is_pattern(name) {
        return Ok(vec![name.to_owned()]);
    }
    if revision.is_some() {
        return Err(Problem::BadOption {
            message: format!("--if-revision cannot be combined with the pattern `{name}`"),
            hint: Some("name one reservation".into()),
        });
    }
    apply::matching(client, name)
}

pub(crate) fn list(args: &List) -> Result<(), Problem> {
    let mut client = connect(&args.at)?;
    if let Some(name) = &args.name {
        let (one, text) = client.show(name)?;
        let one = [one];
        if args.toml {
            return terminal::print(&apply::as_file(&one));
        }
        return listed(args, &text, &one);
    }
    let all = all(&mut client)?;
    if args.toml {
        return terminal::print(&apply::as_file(&all));
    }
    let text = Text(serde_json::to_string(&all).expect("the answer can be written as JSON"));
    listed(args, &text, &all)?;
    overloads(args, &mut client)
}

/// Prints reservations. If the output is a table, the reasons for the states of the reservations
/// follow.
fn listed(args: &List, text: &Text, all: &[Reservation]) -> Result<(), Problem> {
    if args.at.json {
        return answer(&args.at, text, String::new);
    }
    if args.view.csv || !args.view.columns.is_empty() {
        let is_chosen = !args.view.columns.is_empty();
        return terminal::print(&show::reservations(all, is_chosen).shown(&args.view)?);
    }
    terminal::print(&table(all))?;
    terminal::say(&show::reasons(all))
}

/// Prints the CPUs that cannot deliver their reservations. Prints nothing if the daemon is too old
/// to report such CPUs.
fn overloads(args: &List, client: &mut Client) -> Result<(), Problem> {
    if args.at.json || args.view.csv || !args.view.columns.is_empty() {
        return Ok(());
    }
    match client.host() {
        Ok((host, _)) => terminal::say(&show::overloads(&host)),
        Err(_) => Ok(()),
    }
}

/// Returns all reservations of a daemon, which are requested page by page.
pub(crate) fn all(client: &mut Client) -> Result<Vec<Reservation>, Problem> {
    let mut all: Vec<Reservation> = Vec::new();
    loop {
        let after = all.last().map(|last| last.name.clone());
        let (page, _) = client.list(after.as_deref())?;
        let is_last = page.len() < PAGE;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}

fn table(all: &[Reservation]) -> String {
    match all {
        [] => "there are no reservations\n".into(),
        all => show::reservations(all, false).without_blank(crate::headings::UNTIL).text(),
    }
}

pub(crate) fn room(args: &Room) -> Result<(), Problem> {
    let Length(period) = args.period;
    let mut client = connect(&args.at)?;
    let (room, text) = client.room(args.period)?;
    let (host, _) = client.host()?;
    answer(&args.at, &text, || show::room(period, &room, &host))
}

pub(crate) fn log(args: &Log) -> Result<(), Problem> {
    let mut client = connect(&args.at)?;
    let events = log::events(args, &mut client)?;
    if args.at.json {
        let newest_first: Vec<&Event> = events.iter().rev().collect();
        let text = serde_json::to_string(&newest_first).expect("events can be written as JSON");
        return answer(&args.at, &Text(text), String::new);
    }
    if events.is_empty() && !args.view.csv {
        return terminal::say("there are no events\n");
    }
    terminal::print(&show::events(&events, args.name.is_none()).shown(&args.view)?)
}

/// Asks a daemon which programs and other causes kept a VM from running in the last minute, or in
/// an incident of this VM. Returns the answer as a value and as JSON.
pub(crate) fn why(
    at: &DaemonArgs,
    name: &str,
    incident: Option<u64>,
) -> Result<(Culprits, String), Problem> {
    let mut client = connect(at)?;
    let (why, text) = match incident {
        None => client.why(name)?,
        Some(id) => client.why_incident(id)?,
    };
    if let Some(id) = incident.filter(|_| why.name != name) {
        let message = format!("incident {id} is of the VM {}, not of {name}", why.name);
        let hint = Some("list incidents with `slackline incidents`".into());
        return Err(Problem::BadOption { message, hint });
    }
    Ok((why, text.0))
}

pub(crate) fn incidents(args: &IncidentsArgs) -> Result<(), Problem> {
    let (incidents, text) = connect(&args.at)?.incidents()?;
    answer(&args.at, &text, || match &incidents[..] {
        [] => "there are no incidents\n".into(),
        all => incidents::lines(all),
    })
}

pub(crate) fn predictions(args: &PredictionsArgs) -> Result<(), Problem> {
    let (all, text) = connect(&args.at)?.predictions()?;
    answer(&args.at, &text, || match &all[..] {
        [] => "there are no predictions; they come from `slackline apply` of a plan that `whatif` \
             saved\n"
            .into(),
        all => predictions::shown(all),
    })
}

/// Returns one line that states how close the results came to a daemon's predictions. `None` if the
/// daemon has made no predictions.
pub(crate) fn record_of_predictions(socket: &Path) -> Option<String> {
    let (all, _) = Client::connect(socket).ok()?.predictions().ok()?;
    (!all.is_empty()).then(|| predictions::record(&all))
}

/// Reservations of a daemon's host.
pub(crate) struct HostReservations {
    /// Revision of the host: the number of the event that last changed a reservation.
    pub(crate) revision: u64,
    pub(crate) all: Vec<Reservation>,
}

/// Checks that the dispatcher enforces all reservations. If the kernel enforces a reservation, the
/// waits of its VM are not recorded.
pub(crate) fn check_mechanisms(cannot: &str, all: &[Reservation]) -> Result<(), Problem> {
    let Some(of_kernel) = all.iter().find(|it| !it.enforce.is_dispatcher()) else { return Ok(()) };
    let (name, by) = (&of_kernel.name, of_kernel.enforce.word());
    Err(Problem::BadOption {
        message: format!(
            "{cannot}: the kernel enforces the reservation of {name} (`{by}`), so the waits of \
             {name} are not recorded"
        ),
        hint: Some(format!(
            "run `slackline change {name} --enforce dispatcher`, and repeat the command after a \
             minute"
        )),
    })
}

/// Returns the reservations of a daemon's host. The revision is read first, so that a reservation
/// that changes meanwhile makes the revision outdated.
pub(crate) fn host_reservations(socket: &Path) -> Result<HostReservations, Problem> {
    let mut client = Client::connect(socket)?;
    let (host, _) = client.host()?;
    let all = all(&mut client)?;
    Ok(HostReservations { revision: host.revision, all })
}

/// Makes the daemon that listens on this socket save what its flight recorder recorded in the last
/// `since`.
pub(crate) fn save_recording(socket: &Path, since: Span) -> Result<Recording, Problem> {
    let (recording, _) = Client::connect(socket)?.record(Length(since))?;
    let file = Path::new(&recording.file);
    File::open(file).map_err(|source| Problem::of_recording(file, source))?;
    Ok(recording)
}

pub(crate) fn access(args: &AccessArgs) -> Result<(), Problem> {
    match &args.what {
        AccessCommand::List { at } => {
            let (all, text) = connect(at)?.access()?;
            answer(at, &text, || match &all[..] {
                [] => "there are no grants; roles follow from the groups of users\n".into(),
                all => show::access(all),
            })
        }
        AccessCommand::Add(Add { whom, role, cpu, machines, users, certificate, days, at }) => {
            let (role, cpu, machines, days) = (*role, *cpu, *machines, *days);
            let read = |file: &PathBuf| {
                let unreadable = |source| Problem::Unreadable { file: file.clone(), source };
                std::fs::read_to_string(file).map_err(unreadable)
            };
            let certificate = certificate.as_ref().map(read).transpose()?;
            let users = users.clone();
            let grant = Grant { role, cpu, machines, users, days, certificate };
            let (one, text) = connect(at)?.grant(whom, &grant)?;
            socket_access::warn_of_missing_group(whom);
            // The token is alone on standard output, so that it can be redirected to a file. It is
            // shown only once.
            let to_others = format!("{} {}", one.principal, role.to_others());
            if let (Some(token), false) = (&one.token, at.json) {
                if stderr().is_terminal() {
                    terminal::tell(&format!("note: {to_others}\n"));
                }
                return terminal::print(&format!("{token}\n"));
            }
            answer(at, &text, || format!("{}\n{to_others}\n", show::access(&[one])))
        }
        AccessCommand::Migrate { at } => {
            let (_, text) = connect(at)?.migrate_access()?;
            answer(at, &text, || {
                "members of the group slackline without a grant are tenants now\n".into()
            })
        }
        AccessCommand::Revoke { whom, at } => {
            let (one, text) = connect(at)?.revoke(whom)?;
            answer(at, &text, || show::revoked(&one))
        }
    }
}

/// Shows all reservations every second, and events as they happen, until Ctrl-C.
pub(crate) fn watch(args: &SelectionArgs) -> Result<(), Problem> {
    let stop = stop_flag()?;
    if let Some(name) = &args.name {
        connect(&args.at)?.show(name)?;
    }
    let mut stream = connect(&args.at)?.watch()?;
    let mut seen =
        ReceivedEvents { json: args.at.json, name: args.name.as_deref(), events: Vec::new() };
    while !stop.load(Ordering::Relaxed) {
        match stream.hear(OFTEN) {
            Ok(WaitOutcome::Frame(frame)) => seen.hear(&frame)?,
            Ok(WaitOutcome::Quiet) => {}
            Ok(WaitOutcome::End) | Err(ClientError::Lost(_)) => match again(&args.at, &stop)? {
                Some(next) => stream = next,
                None => return Ok(()),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reconnects to the daemon. The attempts go on for longer than the daemon takes to restart.
/// Returns `None` if a signal asks to stop meanwhile.
fn again(at: &DaemonArgs, stop: &AtomicBool) -> Result<Option<Stream>, Problem> {
    for _ in 0..BACK_WITHIN {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        std::thread::sleep(OFTEN);
        if let Ok(stream) = open(at).and_then(Client::watch) {
            return Ok(Some(stream));
        }
    }
    Ok(Some(connect(at)?.watch()?))
}

/// Events that `watch` has received.
struct ReceivedEvents<'a> {
    json: bool,
    name: Option<&'a str>,
    /// The latest events, oldest first.
    events: Vec<Event>,
}

impl ReceivedEvents<'_> {
    /// Prints a message of the daemon as JSON if the user requested that. Otherwise draws the
    /// message's table of reservations, or keeps the message's event for the next table.
    fn hear(&mut self, frame: &Frame) -> Result<(), Problem> {
        let Frame { kind, data, .. } = frame;
        if self.json {
            return terminal::print(&format!("{{\"{kind}\":{data}}}\n"));
        }
        let data = Text(data.clone());
        match kind.as_str() {
            "event" => {
                let event: Event = data.read()?;
                if self.name.is_none_or(|name| name == event.name) {
                    self.events.push(event);
                    let old = self.events.len().saturating_sub(IN_SIGHT);
                    self.events.drain(..old);
                }
                Ok(())
            }
            "reservations" => {
                let mut all: Vec<Reservation> = data.read()?;
                all.retain(|one| self.name.is_none_or(|name| name == one.name));
                self.draw(&all)
            }
            // A message of a newer daemon is ignored.
            _ => Ok(()),
        }
    }

    fn draw(&self, all: &[Reservation]) -> Result<(), Problem> {
        let begin = if stdout().is_terminal() { terminal::CLEAR } else { "" };
        terminal::print(&format!("{begin}{}", table(all)))?;
        terminal::say(&show::reasons(all))?;
        let end = if begin.is_empty() { "\n" } else { "" };
        if self.events.is_empty() {
            return terminal::print(end);
        }
        terminal::print(&format!("\n{}{end}", show::events(&self.events, false).text()))
    }
}

/// Connects to the daemon of the host that the options name, or else to the daemon of this host.
fn open(at: &DaemonArgs) -> Result<Client, ClientError> {
    let Some(url) = &at.host else { return Client::connect(&at.socket) };
    Client::connect_to(&at.trust.at(url))
}

/// Connects to the daemon that the options name.
pub(crate) fn connect(at: &DaemonArgs) -> Result<Client, Problem> {
    Ok(open(at)?)
}

/// Adapts the hint of an error about the requested amount: if the user requested a share, the hint
/// states a share and not a slice.
fn in_same_terms(much: &AmountArgs, error: ClientError) -> ClientError {
    let Some(Share(share)) = much.cpu else { return error };
    let ClientError::Refused(mut problem) = error else { return error };
    let room = problem.room.as_deref().and_then(|room| {
        let all = u128::from(share.ppm()) * u128::from(room.asked_period_ns) / 1_000_000;
        let each = u128::from(room.asked_slice_ns.max(1));
        let parts = u64::try_from((all + each / 2) / each).unwrap_or(u64::MAX);
        share_hint(room.largest.0, room.asked_period.0, parts)
    });
    let less = "reserve less than a CPU for each vCPU; `slackline room` shows what fits";
    let is_whole = problem.kind == Kind::Bad && problem.hint.is_none();
    let less = is_whole.then(|| less.to_owned());
    problem.hint = percent_hint(share).or(room).or(less).or(problem.hint);
    ClientError::Refused(problem)
}

/// Prints a reservation after the daemon has changed it.
fn done(at: &DaemonArgs, answered: Answered<Reservation>) -> Result<(), Problem> {
    let (reservation, text) = answered?;
    warn(&reservation);
    if at.json {
        return answer(at, &text, String::new);
    }
    terminal::say(&show::one(&reservation))
}

/// Prints the warning of a reservation, if it has one.
fn warn(reservation: &Reservation) {
    if let Some(warning) = &reservation.warning {
        terminal::tell(&format!("warning: {warning}\n"));
    }
}

/// Prints an answer as JSON if the user requested that, and otherwise as the function `shown`
/// formats it.
fn answer(at: &DaemonArgs, text: &Text, shown: impl FnOnce() -> String) -> Result<(), Problem> {
    if at.json {
        return terminal::print(&format!("{}\n", text.0));
    }
    terminal::say(&shown())
}
