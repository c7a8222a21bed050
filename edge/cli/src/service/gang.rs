//! Gangs: VMs on several hosts that start together or not at all. Daemons do not communicate with
//! each other, so this program communicates with all of them.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use slackline_control::client::ClientError;
use slackline_control::gang::{GangMessage, GangReply, GangStart, Hosts, start};
use slackline_control::{
    Clock, GangWord, Kind, Length, Reservation, ReservationParameters, Share, State, convert,
};
use slackline_units::Span;

use super::args::{Gang, Trust};
use super::place::{connect, refused};
use super::show;
use crate::grid::position;
use crate::input;
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::terminal;

/// Maximum wait for a host's answer. Even two such waits are shorter than the time for which a host
/// reserves capacity for a gang member that has not begun.
const WITHIN: Duration = Duration::from_secs(3);

/// Minimum time between sending the requests to begin and the first scheduling of the VMs. In this
/// time the requests can reach all hosts. The VMs are first scheduled [`LEAD`] before the common
/// start.
const NOTICE: Span = Span::from_secs(1);

/// The VMs of a gang are first scheduled this long before the gang's common start. Until the common
/// start, each VM has only the prorated budget of an incomplete period.
const LEAD: Span = Span::from_ms(20);

/// Number of attempts to report a broken gang to a host that does not answer.
const TRIES: u32 = 3;

/// Number of consecutive checks without an answer after which a gang member counts as lost.
const PATIENCE: u32 = 3;

/// Interval of the checks of all gang members.
const EVERY: Duration = Duration::from_secs(1);

/// Example of a gang file, shown in error messages.
const EXAMPLE: &str = "write name = \"bsp\", slice = \"4ms\", period = \"10ms\", and for each \
                       member [[member]] with host = \"a.sock\" and for = \"qemu:node-a\"";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GangFile {
    name: String,
    #[serde(default)]
    strict: bool,
    slice: Option<Length>,
    period: Option<Length>,
    cpu: Option<Share>,
    #[serde(default)]
    exact: bool,
    phase: Option<Length>,
    member: Vec<Member>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Member {
    host: String,
    name: Option<String>,
    #[serde(rename = "for")]
    binding: Option<String>,
    vcpus: Option<u16>,
}

type Answer = Result<(Reservation, String), ClientError>;

/// State of the command `gang`: the gang (reservations on several hosts whose periods begin
/// together), and the latest answer of each member's host.
struct Calls<'a> {
    file: GangFile,
    trust: &'a Trust,
    slice: Span,
    period: Span,
    phase: Span,
    clocks: Vec<Reading>,
    /// Common start of the gang in nanoseconds since 1970, on the host clock that is furthest
    /// ahead.
    begins_ns: u64,
    answers: Vec<Answer>,
    /// For each member, the reason why it could not be reserved or did not begin. `None` if there
    /// is no such reason.
    refusals: Vec<Option<(Kind, String)>>,
}

pub(crate) fn gang(args: &Gang) -> Result<(), Problem> {
    let file = parse(&args.file, &input::text(&args.file)?)?;
    let mut calls = Calls::new(file, &args.trust)?;
    calls.check_clocks()?;
    let members = calls.file.member.len();
    match start(&mut calls, members) {
        GangStart::All => calls.tell_begun(args)?,
        GangStart::None { because, untold } => return Err(calls.why_not(&because, &untold)),
    }
    if args.watch { calls.watch() } else { Ok(()) }
}

fn parse(path: &Path, text: &str) -> Result<GangFile, Problem> {
    let bad = |start: usize, message: String| {
        let (line, column) = position(text, start);
        Problem::BadAxis { file: path.into(), line, column, message, hint: Some(EXAMPLE.into()) }
    };
    let file: GangFile = toml::from_str(text).map_err(|error| {
        let message = error
            .message()
            .lines()
            .next()
            .unwrap_or("the file does not describe a gang")
            .to_owned();
        bad(error.span().map_or(0, |span| span.start), message)
    })?;
    if file.member.len() < 2 {
        let message = format!(
            "a gang needs at least 2 members; the gang in this file has {}",
            file.member.len()
        );
        return Err(bad(0, message));
    }
    for (index, member) in file.member.iter().enumerate() {
        let same = |other: &Member| other.host == member.host && other.name == member.name;
        if member.name.is_some() && file.member[..index].iter().any(same) {
            let name = member.name.as_deref().unwrap_or_default();
            return Err(bad(0, format!("two members on {} have the name {name}", member.host)));
        }
    }
    Ok(file)
}

impl GangFile {
    fn name_of(&self, member: usize) -> String {
        let named = self.member[member].name.clone();
        named.unwrap_or_else(|| format!("{}-{}", self.name, member + 1))
    }

    fn wanted(&self, member: usize) -> ReservationParameters {
        let Member { binding, vcpus, .. } = self.member[member].clone();
        let phase = Some(self.phase.unwrap_or(Length(Span::ZERO)));
        let GangFile { slice, period, cpu, exact, .. } = *self;
        let (user, until, enforce) = (None, None, None);
        ReservationParameters {
            slice,
            period,
            cpu,
            exact,
            phase,
            vcpus,
            binding,
            user,
            until,
            enforce,
        }
    }
}

impl<'a> Calls<'a> {
    fn new(file: GangFile, trust: &'a Trust) -> Result<Calls<'a>, Problem> {
        let wanted = file.wanted(0);
        let each = convert::each(&wanted, wanted.vcpus.unwrap_or(1)).map_err(refused)?;
        let phase = wanted.phase.map_or(Span::ZERO, |phase| phase.0);
        let clocks = read_clocks(&file.member, trust)?;
        let (slice, period) = (each.slice(), each.period());
        let answers = file.member.iter().map(|_| Err(ClientError::Silent)).collect();
        let (refusals, begins_ns) = (vec![None; file.member.len()], 0);
        Ok(Calls { file, trust, slice, period, phase, clocks, begins_ns, answers, refusals })
    }

    /// Checks that the clocks of all hosts agree well enough. If the clocks of two hosts differ,
    /// the periods of their VMs begin apart by the same amount.
    fn check_clocks(&self) -> Result<(), Problem> {
        for (one, other) in self.clock_pairs() {
            let differ = one.differs_from(other);
            if differ > self.slice / 2 {
                let detail = format!(
                    "cannot start the gang: the clocks of {} and {} differ by at least {differ}, \
                     more than half of the slice of {}",
                    one.host, other.host, self.slice
                );
                let problem = slackline_control::Problem::new(Kind::HostCannot, detail);
                return Err(refused(
                    problem.hinting("synchronize both clocks with chrony or ptp4l"),
                ));
            }
        }
        if let Some(warning) = self.clock_warning() {
            terminal::tell(&format!("warning: {warning}\n"));
        }
        Ok(())
    }

    /// Returns all pairs of hosts that do not have the same clock.
    fn clock_pairs(&self) -> impl Iterator<Item = (&Reading, &Reading)> {
        self.clocks.iter().enumerate().flat_map(|(index, one)| {
            let others = self.clocks[..index].iter();
            others.filter(|other| other.clock.id != one.clock.id).map(move |other| (one, other))
        })
    }

    /// Returns a warning if two clocks differ, or may differ, by a considerable part of a slice.
    fn clock_warning(&self) -> Option<String> {
        let (mut most, mut unknown) = (Span::ZERO, None);
        for (one, other) in self.clock_pairs() {
            most = most.max(one.differs_from(other));
            match (one.clock.error_ns, other.clock.error_ns) {
                (Some(one), Some(other)) => most = most.max(Span::from_ns(one + other)),
                (None, _) => unknown = Some(&one.host),
                (_, None) => unknown = Some(&other.host),
            }
        }
        let slice = self.slice;
        if most > slice / 20 {
            return Some(format!(
                "clocks may differ by {most}, so slices of {slice} may begin that far apart on the \
                 hosts"
            ));
        }
        let says = "does not report the error of its clock, so slices may begin at different times";
        unknown.map(|host| format!("{host} {says}"))
    }

    /// Returns the common start: the first start of a period that is at least [`NOTICE`] plus
    /// [`LEAD`] from now. In nanoseconds since 1970, on the host clock that is furthest ahead.
    fn first_period(&self) -> u64 {
        let ahead = self.clocks.iter().map(|reading| reading.ahead).max().unwrap_or(0);
        let now = i128::try_from(since_1970().as_nanos()).unwrap_or(i128::MAX) + ahead;
        let least = u64::try_from(now).unwrap_or(0) + NOTICE.ns() + LEAD.ns();
        let (period, phase) = (self.period.ns(), self.phase.ns());
        least.saturating_sub(phase).div_ceil(period) * period + phase
    }

    /// Returns the request that carries a message to the host of a member.
    fn word(&self, word: GangMessage, member: usize) -> GangWord {
        let (gang, name) = (self.file.name.clone(), self.file.name_of(member));
        match word {
            GangMessage::Hold => GangWord::Hold { gang, name, wanted: self.file.wanted(member) },
            GangMessage::Begin => {
                let at_ns = self.begins_ns - LEAD.ns();
                GangWord::Begin { gang, name, at_ns, strict: self.file.strict }
            }
            GangMessage::Break { lost } => {
                let (host, lost) = (&self.file.member[lost].host, self.file.name_of(lost));
                let lost = format!("{lost} on {host}");
                let lost = lost.chars().filter(|it| !it.is_control()).take(60).collect();
                GangWord::Break { gang, name, lost }
            }
        }
    }

    /// Sends a message to the hosts of some members at the same time, and waits for their answers.
    fn say_all(&mut self, word: GangMessage, members: &[usize]) -> Vec<GangReply> {
        let (answer, heard) = channel();
        for &member in members {
            let (answer, trust) = (answer.clone(), self.trust.clone());
            let (host, word) = (self.file.member[member].host.clone(), self.word(word, member));
            thread::spawn(move || {
                let said = connect(&host, &trust).and_then(|mut client| client.gang(&word));
                // After the time limit there is no receiver, and sending fails.
                let _ = answer.send((member, said.map(|(is, text)| (is, text.0))));
            });
        }
        drop(answer);
        let end = Instant::now() + WITHIN;
        members.iter().for_each(|&member| self.answers[member] = Err(ClientError::Silent));
        while let Ok((member, said)) =
            heard.recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            self.answers[member] = said;
        }
        members.iter().map(|&member| said(&self.answers[member])).collect()
    }

    /// Prints the members of the gang and the time until their common start.
    fn tell_begun(&self, args: &Gang) -> Result<(), Problem> {
        let begun = self.answers.iter().filter_map(|answer| answer.as_ref().ok());
        if args.json {
            let members = self.file.member.iter().zip(begun).map(|(member, (_, text))| {
                let host = serde_json::to_string(&member.host)
                    .expect("a host name can be written as JSON");
                format!("{{\"host\":{host},\"reservation\":{text}}}")
            });
            let members: Vec<String> = members.collect();
            let begins = self.begins_ns;
            let members = members.join(",");
            return terminal::print(&format!(
                "{{\"begins_ns\":{begins},\"members\":[{members}]}}\n"
            ));
        }
        for (member, (reservation, _)) in self.file.member.iter().zip(begun) {
            super::warn(reservation);
            terminal::say(&format!("on {}: {}", member.host, show::one(reservation)))?;
        }
        let ahead = self.clocks.iter().map(|reading| reading.ahead).max().unwrap_or(0);
        let now = i128::try_from(since_1970().as_nanos()).unwrap_or(0) + ahead;
        let left = i128::from(self.begins_ns) - now;
        let left = Span::from_ms(u64::try_from(left / 1_000_000).unwrap_or(0));
        let (name, count) = (&self.file.name, self.file.member.len());
        terminal::say(&format!(
            "gang {name} starts in {left}, all {count} members at the same time\n"
        ))
    }

    /// Explains which members were refused, and which hosts perhaps do not know that the gang has
    /// failed.
    fn why_not(&self, because: &[usize], untold: &[usize]) -> Problem {
        let name = |member: usize| {
            format!("{} on {}", self.file.name_of(member), self.file.member[member].host)
        };
        let whys = because.iter().map(|&member| match &self.refusals[member] {
            Some((_, why)) => format!("{}: {why}", name(member)),
            None => name(member),
        });
        let whys: Vec<String> = whys.collect();
        let kinds = because.iter().filter_map(|&member| self.refusals[member].as_ref());
        let kind = kinds.map(|(kind, _)| *kind).next().unwrap_or(Kind::NotAnswered);
        let gang = &self.file.name;
        let whys = whys.join("; ");
        let detail = if untold.is_empty() {
            format!("cannot start gang {gang}, so no member keeps a reservation: {whys}")
        } else {
            let untold: Vec<String> = untold.iter().map(|&member| name(member)).collect();
            let untold = untold.join(", ");
            format!(
                "cannot start gang {gang}: {whys}. Members not reached, which may stay reserved \
                 for 10 s or longer: {untold}"
            )
        };
        refused(
            slackline_control::Problem::new(kind, detail)
                .hinting("check each host with `slackline room`"),
        )
    }
}

impl Hosts for Calls<'_> {
    fn tell(&mut self, word: GangMessage, members: &[usize]) -> Vec<GangReply> {
        if word == GangMessage::Begin {
            self.begins_ns = self.first_period();
        }
        let mut said = self.say_all(word, members);
        if let GangMessage::Break { .. } = word {
            for _ in 1..TRIES {
                let silent =
                    said.iter().zip(members).filter(|(said, _)| **said == GangReply::Nothing);
                let silent: Vec<usize> = silent.map(|(_, &member)| member).collect();
                if silent.is_empty() {
                    break;
                }
                thread::sleep(EVERY);
                for (member, now) in silent.iter().zip(self.say_all(word, &silent)) {
                    if let Some(index) = members.iter().position(|one| one == member) {
                        said[index] = now;
                    }
                }
            }
        } else {
            for &member in members {
                self.refusals[member] = self.answers[member].as_ref().err().map(reason);
            }
        }
        said
    }
}

/// Classifies the answer of a host. Without an answer it is unknown whether the host executed the
/// request.
fn said(answer: &Answer) -> GangReply {
    match answer {
        Ok(_) => GangReply::Yes,
        Err(ClientError::Refused(problem)) => match problem.kind {
            Kind::NotAnswered | Kind::TooSlow | Kind::Bug => GangReply::Nothing,
            _ => GangReply::No,
        },
        Err(_) => GangReply::Nothing,
    }
}

fn reason(error: &ClientError) -> (Kind, String) {
    match error {
        ClientError::Refused(problem) => {
            let hint = problem.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            (problem.kind, format!("{}{hint}", problem.detail))
        }
        error => (Kind::NotAnswered, error.to_string()),
    }
}

/// Reading of another host's clock, compared with the clock of this host.
struct Reading {
    host: String,
    clock: Clock,
    /// Nanoseconds by which the other clock is ahead of this host's clock.
    ahead: i128,
    /// Maximum error of `ahead` in nanoseconds, which comes from the time that the answer took.
    within: i128,
}

impl Reading {
    /// Returns the minimum by which two clocks differ, considering the errors of both readings.
    fn differs_from(&self, other: &Reading) -> Span {
        let differ = (self.ahead - other.ahead).abs() - self.within - other.within;
        Span::from_ns(u64::try_from(differ.max(0)).unwrap_or(u64::MAX))
    }
}

/// Reads the clocks of all hosts at the same time. Fails if a host does not answer. At this time
/// nothing has been reserved yet.
fn read_clocks(members: &[Member], trust: &Trust) -> Result<Vec<Reading>, Problem> {
    let mut hosts: Vec<String> = members.iter().map(|member| member.host.clone()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let asked = hosts.into_iter().map(|host| {
        let trust = trust.clone();
        thread::spawn(move || read_clock(host, &trust))
    });
    let asked: Vec<_> = asked.collect();
    let mut readings = Vec::new();
    for reading in asked {
        readings.push(reading.join().map_err(|_| ClientError::Silent)??);
    }
    Ok(readings)
}

fn read_clock(host: String, trust: &Trust) -> Result<Reading, ClientError> {
    let mut client = connect(&host, trust)?;
    let before = since_1970();
    let (said, _) = client.host()?;
    let took = since_1970().saturating_sub(before);
    let ns = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
    let (within, ours) = (ns(took / 2), ns(before + took / 2));
    let ahead = i128::from(said.clock.shows_ns) - ours;
    Ok(Reading { host, clock: said.clock, ahead, within })
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Calls<'_> {
    /// Checks all members until one is lost, and then reports to the other hosts that the gang is
    /// broken. Returns without an error if a signal asks to stop.
    fn watch(&mut self) -> Result<(), Problem> {
        let stop = stop_flag()?;
        let all = 0..self.file.member.len();
        let mut silent = vec![0; all.len()];
        thread::sleep(Duration::from_nanos(NOTICE.ns() + LEAD.ns() + self.period.ns()));
        loop {
            for member in all.clone() {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                if let Some(why) = self.is_lost(member, &mut silent[member]) {
                    return Err(self.broken(member, &why));
                }
            }
            thread::sleep(EVERY);
        }
    }

    /// Returns the reason why a member counts as lost. `None` if the member is not lost. `silent`
    /// counts the member's consecutive checks without an answer.
    fn is_lost(&self, member: usize, silent: &mut u32) -> Option<String> {
        let host = &self.file.member[member].host;
        let shown = connect(host, self.trust)
            .and_then(|mut client| client.show(&self.file.name_of(member)));
        match shown {
            Ok((now, _)) => {
                *silent = 0;
                let is_there = matches!(now.state, State::Active | State::Partial | State::Paused);
                let is_member = now.gang.as_deref() == Some(&self.file.name);
                let why = || now.why.clone().unwrap_or_else(|| now.state.word().to_owned());
                (!is_there || !is_member).then(why)
            }
            Err(ClientError::Refused(problem)) if problem.kind == Kind::NoSuchReservation => {
                Some(problem.detail)
            }
            Err(error) => {
                *silent += 1;
                (*silent >= PATIENCE).then(|| error.to_string())
            }
        }
    }

    /// Reports the loss of the member `lost` to the hosts of the other members. Returns the error
    /// with which this program ends.
    fn broken(&mut self, lost: usize, why: &str) -> Problem {
        let others: Vec<usize> = (0..self.file.member.len()).filter(|it| *it != lost).collect();
        let said = self.tell(GangMessage::Break { lost }, &others);
        let (gang, name) = (&self.file.name, self.file.name_of(lost));
        let consequence = if self.file.strict {
            "the reservations of all other members end"
        } else {
            "the other members keep their reservations"
        };
        let mut message = format!("gang {gang} lost its member {name}, so {consequence}: {why}");
        let untold = said.iter().zip(&others).filter(|(said, _)| **said == GangReply::Nothing);
        let untold: Vec<String> = untold.map(|(_, &member)| self.file.name_of(member)).collect();
        if !untold.is_empty() {
            message += &format!(". Members not reached: {}", untold.join(", "));
        }
        Problem::HostCannot { message, hint: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = \"bsp\"\nslice = \"4ms\"\nperiod = \"10ms\"\nphase = \"3ms\"\n\
                        [[member]]\nhost = \"a\"\nfor = \"qemu:a\"\n\
                        [[member]]\nhost = \"b\"\nname = \"other\"\n";

    fn reading(id: &str, ahead: i128, within: i128) -> Reading {
        let clock = Clock { id: id.into(), shows_ns: 0, error_ns: Some(0) };
        Reading { host: id.into(), clock, ahead, within }
    }

    fn calls(clocks: Vec<Reading>, trust: &Trust) -> Calls<'_> {
        let file = parse(Path::new("gang"), GOOD).unwrap();
        let ms = Span::from_ms;
        let (slice, period, phase) = (ms(4), ms(10), ms(3));
        let (answers, refusals) = (Vec::new(), vec![None; 2]);
        Calls { file, trust, slice, period, phase, clocks, begins_ns: 0, answers, refusals }
    }

    fn nobody() -> Trust {
        Trust { ca: None, token: None, client_certificate: None, client_key: None }
    }

    #[test]
    fn gang_file_is_parsed_into_members_or_refused_with_reason() {
        let file = parse(Path::new("gang"), GOOD).unwrap();
        assert_eq!((file.name_of(0), file.name_of(1)), ("bsp-1".into(), "other".into()));
        let wanted = file.wanted(0);
        assert_eq!(wanted.phase, Some(Length(Span::from_ms(3))));
        assert_eq!(wanted.binding.as_deref(), Some("qemu:a"));
        let says = |from: &str, to: &str| {
            let text = GOOD.replacen(from, to, 1);
            parse(Path::new("gang"), &text).err().unwrap().to_string()
        };
        assert!(says("\"4ms\"", "\"4\"").starts_with("gang:2:9: `4` has no unit"));
        assert!(says("phase", "phrase").starts_with("gang:4:1: unknown field `phrase`"));
        let one = GOOD.split("[[member]]\nhost = \"b\"").next().unwrap();
        let error = parse(Path::new("gang"), one).err().unwrap().to_string();
        assert_eq!(error, "gang:1:1: a gang needs at least 2 members; the gang in this file has 1");
    }

    #[test]
    fn first_gang_period_begins_after_every_host_was_notified() {
        let trust = nobody();
        let calls = calls(vec![reading("a", 0, 0), reading("b", 5_000_000_000, 0)], &trust);
        let before = u64::try_from(since_1970().as_nanos()).unwrap();
        let begins = calls.first_period();
        assert_eq!(begins % 10_000_000, 3_000_000);
        let notice = begins - before;
        assert!((6_020_000_000..7_000_000_000).contains(&notice), "{notice}");
    }

    #[test]
    fn gang_warns_of_clock_difference_above_twentieth_of_slice() {
        let trust = nobody();
        let warning = |ahead, error_ns| {
            let mut other = reading("b", ahead, 0);
            other.clock.error_ns = error_ns;
            calls(vec![reading("a", 0, 0), other], &trust).clock_warning()
        };
        assert_eq!(warning(200_000, Some(200_000)), None);
        for (ahead, error_ns) in [(200_001, Some(0)), (200_001, None), (0, Some(200_001))] {
            let says = warning(ahead, error_ns).expect("a warning");
            assert!(says.starts_with("clocks may differ by 200.001us"), "{says}");
        }
        let says = warning(0, None).expect("a warning");
        assert!(says.starts_with("b does not report the error of its clock"), "{says}");
    }

    #[test]
    fn gang_is_refused_if_host_clock_difference_exceeds_half_slice() {
        let trust = nobody();
        let check = |clocks| calls(clocks, &trust).check_clocks().map_err(|it| it.to_string());
        assert_eq!(check(vec![reading("a", 0, 500_000), reading("b", 2_900_000, 400_000)]), Ok(()));
        let says = check(vec![reading("a", 0, 100_000), reading("b", -2_900_000, 0)]).unwrap_err();
        assert!(
            says.contains("differ by at least 2.8ms, more than half of the slice of 4ms"),
            "{says}"
        );
        // Two readings of one clock were taken at different times.
        assert_eq!(check(vec![reading("a", 0, 0), reading("a", 9_000_000, 0)]), Ok(()));
    }
}
