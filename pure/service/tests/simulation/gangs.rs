//! Simulation of a gang over several hosts. Hosts die, messages are lost in both directions, clocks
//! are wrong, and the client that starts the gang dies.

use slackline_service::gang::{Gang, GangMessage, GangReply, GangStart, Hosts, LEASE, start};
use slackline_service::{Amount, Name, Request, State, WantedMechanism};
use slackline_units::{CpuId, Reservation, Span, Time};

use crate::checks::Checked;
use crate::draw::Draw;
use crate::requests::ROOT;
use crate::run::Run;

const SLICE: Span = Span::from_ms(3);
const PERIOD: Span = Span::from_ms(10);

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// Numbers of runs with each outcome. The test checks that every outcome occurs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) begun: u32,
    pub(crate) refused: u32,
    pub(crate) cut_off: u32,
    pub(crate) died: u32,
    pub(crate) halves: u32,
}

/// The client that starts the gang, with the hosts to which it is connected.
struct Starter {
    draw: Draw,
    hosts: Vec<Run>,
    /// True if faults are injected.
    faults: bool,
    is_dead: bool,
    is_strict: bool,
    /// True if a host refused to hold its member.
    refused: bool,
    /// Number of members to which the client sent the request to begin.
    begun: usize,
    at: Option<Time>,
    wrong: Option<String>,
    seq: u64,
}

impl Starter {
    fn new(seed: u64) -> Starter {
        let mut draw = Draw::new(seed);
        let hosts = (0..3).map(|_| Run::new(1, None, false)).collect();
        let (faults, is_strict) = (draw.percent(80), draw.percent(50));
        let mut starter = Starter {
            draw,
            hosts,
            faults,
            is_dead: false,
            is_strict,
            refused: false,
            begun: 0,
            at: None,
            wrong: None,
            seq: 0,
        };
        for host in 0..starter.hosts.len() {
            starter.hosts[host].model.kernel.start("m0", 0, 1);
        }
        starter
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.faults && self.draw.percent(percent)
    }

    /// Lets time pass on all hosts.
    fn pass(&mut self, time: Span) -> Checked {
        self.hosts.iter_mut().try_for_each(|host| host.pass(time))
    }

    fn request(&mut self, word: GangMessage, host: usize) -> Request {
        let (gang, member) = (name("lockstep"), name("web"));
        match word {
            GangMessage::Hold => {
                let amount = Reservation::new(SLICE, PERIOD).expect("less than a period");
                Request::Hold {
                    gang,
                    member: Box::new(Request::Reserve {
                        name: member,
                        amount: Amount::Each(amount),
                        exact: true,
                        phase: Some(Span::ZERO),
                        vcpus: Some(1),
                        binding: Some("qemu:m0".parse().expect("a binding")),
                        user: None,
                        until: None,
                        enforce: WantedMechanism::default(),
                    }),
                }
            }
            GangMessage::Begin => {
                let now = self.hosts[host].model.now;
                let at = *self.at.get_or_insert(now.after(Span::from_ms(1_500)));
                // A clock is usually wrong by a small amount. If it is wrong by a large amount, the
                // host refuses to begin.
                let wrong = if self.chance(4) { 90_000_000_000 } else { 1_000_000 };
                let late = Span::from_ns(self.draw.below(wrong));
                let gang = Gang { name: gang, is_strict: self.is_strict };
                Request::Begin { gang, name: member, at: at.after(late) }
            }
            GangMessage::Break { lost } => {
                Request::Break { gang, name: member, lost: format!("member {lost}") }
            }
        }
    }

    fn say(&mut self, word: GangMessage, host: usize) -> Result<GangReply, String> {
        let most = self.draw.one_of(&[0, 1, 20, 400]);
        let time = Span::from_us(self.draw.below(most * 1_000 + 1));
        self.pass(time)?;
        self.is_dead |= self.chance(4);
        if self.is_dead || self.chance(6) {
            return Ok(GangReply::Nothing);
        }
        if self.chance(6) {
            // The host dies. The commit that is under way may or may not be on its disk.
            self.hosts[host].is_there = self.draw.percent(50);
            self.hosts[host].die()?;
        }
        if word == GangMessage::Begin {
            self.begun += 1;
        }
        let request = self.request(word, host);
        self.seq += 1;
        let key = Some(format!("k{}", self.seq).parse().expect("a key"));
        let ticket = self.hosts[host].ask(ROOT, request, key)?;
        if self.chance(4) {
            self.hosts[host].is_there = self.draw.percent(50);
            self.hosts[host].die()?;
        }
        self.pass(Span::from_ms(20))?;
        let mut replies = self.hosts[host].replies().into_iter();
        let said = match replies.find(|(replied, _)| *replied == ticket) {
            Some((_, Ok(_))) => GangReply::Yes,
            Some((_, Err(_))) => GangReply::No,
            None => GangReply::Nothing,
        };
        Ok(if self.chance(5) { GangReply::Nothing } else { said })
    }
}

impl Hosts for Starter {
    fn tell(&mut self, word: GangMessage, members: &[usize]) -> Vec<GangReply> {
        if word == GangMessage::Begin && self.refused {
            self.wrong = Some("members are told to begin, although one was refused".into());
        }
        let mut all = Vec::new();
        for &host in members {
            let mut said = self.say(word, host);
            // The message that the gang is broken is sent again up to three times.
            let tries = if matches!(word, GangMessage::Break { .. }) { 3 } else { 0 };
            for _ in 0..tries {
                if said == Ok(GangReply::Nothing) && self.pass(Span::from_secs(1)).is_ok() {
                    said = self.say(word, host);
                }
            }
            match said {
                Ok(said) => {
                    self.refused |= word == GangMessage::Hold && said == GangReply::No;
                    all.push(said);
                }
                Err(wrong) => {
                    self.wrong = Some(wrong);
                    all.push(GangReply::Nothing);
                }
            }
        }
        all
    }
}

/// Starts one gang on three hosts, and checks the outcome.
pub(crate) fn run(seed: u64, count: &mut Count) -> Checked {
    let mut starter = Starter::new(seed);
    if starter.draw.percent(25) {
        fill(&mut starter)?;
    }
    let before: Vec<Span> = (0..3).map(|host| room(&starter.hosts[host])).collect();
    let started = start(&mut starter, 3);
    if let Some(wrong) = starter.wrong.take() {
        return Err(wrong);
    }
    starter.faults = false;
    starter.pass(LEASE)?;
    for host in &starter.hosts {
        // A member that was told to begin has a revision, and waits for its begin time.
        let mut listed = host.service.listed().map(|(_, one)| one);
        if let Some(one) = listed.find(|one| one.state == State::Held && one.row.revision == 0) {
            return Err(format!("{} is held for longer than {LEASE}", one.row));
        }
    }
    starter.pass(Span::from_secs(95))?;
    let mut there = Vec::new();
    for (host, before) in (0..).zip(before) {
        let run = &mut starter.hosts[host];
        run.tell()?;
        run.finish()?;
        let mut listed = run.service.listed().map(|(_, one)| one);
        let one = listed.find(|one| one.row.name.as_str() == "web");
        drop(listed);
        let room = room(run);
        match &one {
            Some(one) if one.state == State::Held => {
                return Err(format!("host {host} holds {} forever", one.row));
            }
            None if room != before => {
                return Err(format!("host {host} had capacity {before}, and now {room}"));
            }
            _ => there.push(one),
        }
    }
    let is_of = |host: usize| there[host].as_ref().is_some_and(|one| one.row.gang.is_some());
    let members = (0..3).filter(|&host| is_of(host)).count();
    count.died += u32::from(starter.is_dead);
    count.refused += u32::from(starter.refused);
    match started {
        GangStart::All if members != 3 => Err(format!("not all members began: {there:?}")),
        GangStart::All => {
            count.begun += 1;
            Ok(())
        }
        GangStart::None { .. } if starter.begun == 0 && there.iter().any(Option::is_some) => {
            Err(format!("no member was told to begin, but some did: {there:?}"))
        }
        GangStart::None { untold, because } => {
            count.cut_off += u32::from(!starter.refused && !because.is_empty());
            count.halves += u32::from(members > 0);
            match (0..3).find(|host| !untold.contains(host) && is_of(*host)) {
                Some(host) => {
                    Err(format!("host {host} was told that the gang is broken, but has {there:?}"))
                }
                None => Ok(()),
            }
        }
    }
}

/// Reserves most of one host's capacity for another VM.
fn fill(starter: &mut Starter) -> Checked {
    let host = usize::try_from(starter.draw.below(3)).expect("small");
    let amount = Reservation::new(Span::from_ms(7), PERIOD).expect("less than a period");
    let request = Request::Reserve {
        name: name("other"),
        amount: Amount::Each(amount),
        exact: true,
        phase: None,
        vcpus: Some(1),
        binding: Some("qemu:other".parse().expect("a binding")),
        user: None,
        until: None,
        enforce: WantedMechanism::default(),
    };
    starter.hosts[host].ask(ROOT, request, None)?;
    starter.pass(Span::from_ms(50))
}

fn room(run: &Run) -> Span {
    run.model.scheduler.room(PERIOD, CpuId::new(0))
}
