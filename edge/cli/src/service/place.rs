//! Placement of a reservation on one of several hosts. Daemons do not communicate with each other,
//! so this program asks all of them.

use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use slackline_control::client::{Client, ClientError};
use slackline_control::place::order;
use slackline_control::{Kind, Length, Reservation, Room, convert};

use super::args::{PlaceArgs, Trust};
use super::show;
use crate::problem::Problem;
use crate::terminal;

/// Maximum wait for a host's answer about its capacity.
const WITHIN: Duration = Duration::from_secs(1);

/// Number of attempts to place a reservation. Another attempt is needed if other clients take the
/// capacity first.
const ROUNDS: u32 = 3;

/// Capacity that a host reports.
struct HostCapacity {
    room: Room,
    /// True if the host already has a reservation with the requested name.
    has_it: bool,
}

type Answer = Result<HostCapacity, ClientError>;

pub(crate) fn place(args: &PlaceArgs) -> Result<(), Problem> {
    let hosts = hosts(args)?;
    let hosts = &hosts[..];
    let wanted = args.much.wanted(args.r#for.as_ref(), None);
    let vcpus = wanted.vcpus.ok_or_else(|| Problem::BadOption {
        message: "cannot compare hosts: --vcpus is missing".into(),
        hint: Some("add `--vcpus N`".into()),
    })?;
    let each = convert::each(&wanted, vcpus).map_err(refused)?;
    let mut answers = Vec::new();
    for _ in 0..ROUNDS {
        answers = ask(hosts, &args.trust, &args.name, Length(each.period()));
        for host in candidates(args, &answers, (each, vcpus)) {
            match connect(&hosts[host], &args.trust)?.reserve(&args.name, &wanted) {
                Ok((reservation, text)) => {
                    super::warn(&reservation);
                    warn_of_silent(hosts, &answers, &args.name);
                    return tell(args, &hosts[host], &reservation, &text.0);
                }
                // Another client has taken the capacity.
                Err(ClientError::Refused(problem)) if problem.kind == Kind::NoRoom => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Err(nowhere(hosts, answers, (each, vcpus)))
}

/// Returns the hosts that the options name, followed by those in the file.
fn hosts(args: &PlaceArgs) -> Result<Vec<String>, Problem> {
    let mut hosts = args.host.clone();
    if let Some(file) = &args.hosts {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|source| Problem::Unreadable { file: file.clone(), source })?;
        let lines = text.lines().map(str::trim);
        hosts.extend(lines.filter(|it| !it.is_empty() && !it.starts_with('#')).map(str::to_owned));
    }
    if hosts.is_empty() {
        return Err(Problem::BadOption {
            message: "cannot choose a host: no candidate host is given".into(),
            hint: Some(
                "add `--host`, or write the socket or `https://NAME:PORT` of each daemon into the \
                 file of --hosts"
                    .into(),
            ),
        });
    }
    Ok(hosts)
}

pub(super) fn connect(host: &str, trust: &Trust) -> Result<Client, ClientError> {
    if host.starts_with("https://") {
        Client::connect_to(&trust.at(host))
    } else {
        Client::connect(Path::new(host))
    }
}

/// Asks all hosts for their capacity at the same time. An answer that arrives too late is ignored.
fn ask(hosts: &[String], trust: &Trust, name: &str, period: Length) -> Vec<Answer> {
    let (answer, heard) = channel();
    for (index, host) in hosts.iter().enumerate() {
        let (host, trust) = (host.clone(), trust.clone());
        let (name, answer) = (name.to_owned(), answer.clone());
        thread::spawn(move || {
            // After the time limit there is no receiver, and sending fails.
            let _ = answer.send((index, seen(&host, &trust, &name, period)));
        });
    }
    drop(answer);
    let end = Instant::now() + WITHIN;
    let mut answers: Vec<Answer> = hosts.iter().map(|_| Err(ClientError::Silent)).collect();
    while let Ok((index, answer)) =
        heard.recv_timeout(end.saturating_duration_since(Instant::now()))
    {
        answers[index] = answer;
    }
    answers
}

/// Asks one host for its capacity.
fn seen(host: &str, trust: &Trust, name: &str, period: Length) -> Answer {
    let mut client = connect(host, trust)?;
    let has_it = match client.show(name) {
        Ok(_) => true,
        Err(ClientError::Refused(problem)) if problem.kind == Kind::NoSuchReservation => false,
        Err(error) => return Err(error),
    };
    let (room, _) = client.room(period)?;
    Ok(HostCapacity { room, has_it })
}

/// Returns the hosts to try, in order. If a host already has the reservation, for example because
/// its answer was lost, only that host is returned. This prevents a second reservation on another
/// host.
fn candidates(
    args: &PlaceArgs,
    answers: &[Answer],
    (each, vcpus): (slackline_units::Reservation, u16),
) -> Vec<usize> {
    let has_it = |answer: &Answer| answer.as_ref().is_ok_and(|seen| seen.has_it);
    if let Some(host) = answers.iter().position(has_it) {
        return vec![host];
    }
    let rooms: Vec<Option<Room>> =
        answers.iter().map(|answer| Some(answer.as_ref().ok()?.room.clone())).collect();
    order(args.by.into(), &rooms, each, vcpus)
}

/// Warns that hosts without an answer can already have the reservation, for example because the
/// answer to an earlier request was lost.
fn warn_of_silent(hosts: &[String], answers: &[Answer], name: &str) {
    if answers.iter().flatten().any(|seen| seen.has_it) {
        return;
    }
    let silent = hosts.iter().zip(answers).filter(|(_, answer)| answer.is_err());
    for (host, _) in silent {
        terminal::tell(&format!(
            "warning: {host} did not answer, so it may already have the reservation {name}\n"
        ));
    }
}

/// Prints the reservation and its host.
fn tell(
    args: &PlaceArgs,
    host: &str,
    reservation: &Reservation,
    text: &str,
) -> Result<(), Problem> {
    if args.json {
        let host = serde_json::to_string(host).expect("a host name can be written as JSON");
        return terminal::print(&format!("{{\"host\":{host},\"reservation\":{text}}}\n"));
    }
    terminal::say(&format!("on {host}: {}", show::one(reservation)))
}

/// Returns the error for a reservation that no host accepted. The error gives the reason of each
/// host. If no host answered, returns the error of the first host.
fn nowhere(
    hosts: &[String],
    answers: Vec<Answer>,
    (each, vcpus): (slackline_units::Reservation, u16),
) -> Problem {
    let mut whys = Vec::new();
    let mut silent = Vec::new();
    for (host, answer) in hosts.iter().zip(answers) {
        match answer {
            Ok(HostCapacity { room, .. }) => {
                let slices = room.cpus.iter().map(|cpu| cpu.slice.0.to_string());
                let slices: Vec<String> = slices.collect();
                whys.push(format!(
                    "host {host} admits slices of at most {} on its CPUs",
                    slices.join(" and ")
                ));
            }
            Err(error) => {
                whys.push(format!("{host}: {error}"));
                silent.push(error);
            }
        }
    }
    if silent.len() == hosts.len()
        && let Some(first) = silent.into_iter().next()
    {
        return first.into();
    }
    let plural = if vcpus == 1 { "" } else { "s" };
    let (slice, period) = (each.slice(), each.period());
    let detail = format!(
        "no host can reserve {slice} every {period} for {vcpus} vCPU{plural}: {}",
        whys.join("; ")
    );
    refused(slackline_control::Problem::new(Kind::NoRoom, detail))
}

pub(super) fn refused(problem: slackline_control::Problem) -> Problem {
    ClientError::Refused(Box::new(problem)).into()
}
