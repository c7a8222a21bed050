//! A random run that one seed determines: requests of clients, starts and ends of VMs, faults, and
//! deaths of the service.

use slackline_service::gang::Gang;
use slackline_service::{
    Amount, Binding, CpuLoad, Input, Key, Name, Principal, Refusal, Request, Role, Ticket,
    WantedMechanism,
};
use slackline_units::{CpuId, CpuShare, Enforcement, Reservation, Span, WallTime};

use crate::checks::Checked;
use crate::draw::Draw;
use crate::kernel::DAEMON;
use crate::run::Run;
use crate::world::{Lie, Model};

const MACHINES: [&str; 4] = ["m0", "m1", "m2", "m3"];
/// Usual user of each VM in `MACHINES`. Two VMs belong to the operator, one to root, and one to
/// [`DAEMON`], the unprivileged user of processes that root starts.
const USERS: [u32; 4] = [1, 1, 0, DAEMON];
/// A user without rights, whose VMs have the names of other users' VMs.
const STRANGER: u32 = 7;
const NAMES: [&str; 5] = ["m0", "m1", "web", "db", "batch"];

/// A client that sends requests, and repeats a request until it gets a reply.
struct Client {
    who: (Principal, Option<Role>),
    waits: Option<(Request, Option<Key>, Vec<Ticket>)>,
}

/// Numbers of deaths and of replies of each kind, in one run or in all runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) deaths: u32,
    pub(crate) done: u32,
    pub(crate) no_room: u32,
    pub(crate) not_durable: u32,
}

/// Carries out the run that a seed determines.
pub(crate) fn run(
    seed: u64,
    lie: Option<Lie>,
    with_trace: bool,
) -> Result<Tally, (String, Vec<String>)> {
    let mut draw = Draw::new(seed);
    let cpus = if draw.percent(60) { 1 } else { 2 };
    let mut drawn = Drawn {
        run: Run::new(cpus, lie, with_trace),
        draw: draw.clone(),
        clients: clients(),
        asked: 0,
        tally: Tally::default(),
    };
    if draw.percent(70) {
        drawn.run.model.faults = Some(Draw::new(draw.bits()));
    }
    let went = drawn.go().and_then(|()| drawn.run.finish());
    drawn.tally.deaths = drawn.run.deaths;
    went.map(|()| drawn.tally).map_err(|error| (error, drawn.run.model.trace.unwrap_or_default()))
}

fn clients() -> Vec<Client> {
    let roles = [Some(Role::Administrator), Some(Role::Operator), Some(Role::Viewer), None];
    let clients = (0..).zip(roles);
    clients.map(|(uid, role)| Client { who: (Principal::User(uid), role), waits: None }).collect()
}

struct Drawn {
    run: Run,
    draw: Draw,
    clients: Vec<Client>,
    asked: u64,
    tally: Tally,
}

impl Drawn {
    fn go(&mut self) -> Checked {
        for name in MACHINES {
            if self.draw.percent(70) {
                let vcpus = 1 + u16::try_from(self.draw.below(2)).expect("small");
                let user = user(&mut self.draw, name);
                self.run.model.kernel.start(name, user, vcpus);
            }
        }
        for _ in 0..50 {
            let most = self.draw.one_of(&[0, 1, 1, 5, 20, 60, 300]);
            let time = Span::from_us(self.draw.below(most * 1000 + 1));
            self.run.pass(time)?;
            self.doom();
            match self.draw.below(100) {
                0..55 => self.ask()?,
                55..67 => self.machines(),
                67..85 => self.run.tell()?,
                85..90 => self.meddle()?,
                90..92 => self.run.step(Input::KeeperReplaced)?,
                92 => self.set_clock()?,
                93 => self.measure()?,
                94..97 => self.run.model.disk.fails ^= true,
                _ => {
                    let ms = self.draw.one_of(&[0, 1, 10, 40]);
                    self.run.model.sync = Span::from_ms(ms);
                }
            }
            self.hear()?;
        }
        Ok(())
    }

    /// Draws the time and the manner of the next death of the service. Mostly, no further death is
    /// drawn.
    fn doom(&mut self) {
        self.run.is_there = self.draw.percent(50);
        if self.draw.percent(8) {
            let after = u32::try_from(self.draw.below(8)).expect("small") + 1;
            self.run.model.dies_after = Some(self.run.model.calls + after);
        }
        self.run.dies_again = None;
        if self.draw.percent(20) {
            self.run.dies_again = Some(u32::try_from(self.draw.below(6)).expect("small") + 1);
        }
    }

    fn ask(&mut self) -> Checked {
        let who = usize::try_from(self.draw.one_of(&[0, 0, 0, 1, 1, 1, 2, 3])).expect("small");
        let (request, key) = match &self.clients[who].waits {
            Some((request, key, _)) => (request.clone(), key.clone()),
            None => self.new_request(),
        };
        let times = if self.draw.percent(5) { 2 } else { 1 };
        for _ in 0..times {
            let ticket = self.run.ask(self.clients[who].who, request.clone(), key.clone())?;
            let fresh = (request.clone(), key.clone(), Vec::new());
            self.clients[who].waits.get_or_insert(fresh).2.push(ticket);
        }
        Ok(())
    }

    fn new_request(&mut self) -> (Request, Option<Key>) {
        self.asked += 1;
        let draw = &mut self.draw;
        let name: Name = draw.one_of(&NAMES).parse().expect("a name");
        let vcpus = draw.percent(40).then(|| u16::try_from(draw.below(3)).expect("small") + 1);
        let if_revision = draw.percent(10).then(|| draw.below(20));
        let key = draw.percent(60).then(|| format!("k{}", self.asked).parse().expect("a key"));
        let amount = amount(draw, self.asked);
        let until = end(&self.run.model, self.asked);
        let request = match draw.below(100) {
            0..40 => {
                let exact = !draw.percent(15);
                let binding = binding(draw, &name);
                let user = draw.percent(10).then(|| draw.one_of(&USERS));
                let phase = phase(draw);
                let enforce = mechanism(self.asked);
                Request::Reserve {
                    name,
                    amount,
                    exact,
                    phase,
                    vcpus,
                    binding,
                    user,
                    until,
                    enforce,
                }
            }
            40..65 => {
                let exact = draw.percent(10).then(|| draw.percent(50));
                let amount = draw.percent(90).then_some(amount);
                let vcpus = vcpus.filter(|_| draw.percent(30));
                let phase = draw.percent(20).then(|| phase(draw));
                // Every third change removes the end time. The other changes keep it or set another
                // one.
                let until = until.map(Some).or(self.asked.is_multiple_of(3).then_some(None));
                let enforce = self.asked.is_multiple_of(7).then(|| mechanism(self.asked / 7));
                let why = self.asked.is_multiple_of(5).then(|| format!("reason {}", self.asked));
                Request::Change {
                    name,
                    amount,
                    exact,
                    phase,
                    vcpus,
                    until,
                    enforce,
                    why,
                    if_revision,
                }
            }
            65..68 => match binding(draw, &name) {
                Some(binding) => Request::Rebind { name, binding, if_revision },
                None => Request::Pause { name, if_revision },
            },
            68..72 => Request::Pause { name, if_revision },
            72..80 => Request::Resume { name, if_revision },
            80..92 => Request::Release { name, if_revision },
            92..94 => return (self.of_gang(name), key),
            94..96 => return (self.list(), key),
            96..97 => Request::List { name: None },
            97..98 => Request::Room { period: Span::from_ms(10) },
            _ => Request::Log { name: None, before: None, most: 10 },
        };
        (request, key)
    }

    /// Draws a request with a list of reservations.
    fn list(&mut self) -> Request {
        let draw = &mut self.draw;
        let mut targets = Vec::new();
        for (number, name) in (0..).zip(NAMES) {
            if draw.percent(50) {
                let name: Name = name.parse().expect("a name");
                let binding = draw.percent(90).then(|| binding(draw, &name)).flatten();
                let amount = amount(draw, 1_000 * (number + 1) + self.asked);
                let (exact, phase, vcpus) = (draw.percent(50), phase(draw), Some(1));
                let (user, until) = (None, end(&self.run.model, self.asked + number));
                let enforce = mechanism(self.asked + number);
                let target = Request::Reserve {
                    name,
                    amount,
                    exact,
                    phase,
                    vcpus,
                    binding,
                    user,
                    until,
                    enforce,
                };
                targets.push(target);
            }
        }
        Request::Apply {
            targets,
            prune: draw.percent(20),
            dry_run: draw.percent(10),
            revision: None,
        }
    }

    /// Draws a request about the gang member `name`. All members belong to the same gang.
    fn of_gang(&mut self, name: Name) -> Request {
        let draw = &mut self.draw;
        let gang: Name = "gang".parse().expect("a name");
        match draw.below(10) {
            0..5 => {
                let amount = amount(draw, self.asked);
                let (exact, phase) = (true, phase(draw));
                let (vcpus, binding) = (Some(1), binding(draw, &name));
                let (user, until) = (None, end(&self.run.model, self.asked));
                let enforce = mechanism(self.asked);
                let member = Request::Reserve {
                    name,
                    amount,
                    exact,
                    phase,
                    vcpus,
                    binding,
                    user,
                    until,
                    enforce,
                };
                Request::Hold { gang, member: Box::new(member) }
            }
            5..9 => {
                let at = self.run.model.now.after(Span::from_ms(draw.below(500)));
                let gang = Gang { name: gang, is_strict: draw.percent(50) };
                Request::Begin { gang, name, at }
            }
            _ => Request::Break { gang, name, lost: "somebody".into() },
        }
    }

    fn machines(&mut self) {
        let name = self.draw.one_of(&MACHINES);
        let vcpus = 1 + u16::try_from(self.draw.below(3)).expect("small");
        let more = self.draw.percent(50);
        let user = user(&mut self.draw, name);
        match self.draw.below(3) {
            0 => self.run.model.kernel.end(name),
            1 => self.run.model.kernel.start(name, user, vcpus),
            _ => self.run.model.kernel.plug(name, more),
        }
    }

    fn meddle(&mut self) -> Checked {
        let held: Vec<_> = self.run.model.scheduler.domains.keys().copied().collect();
        if held.is_empty() {
            return Ok(());
        }
        let domain = self.draw.one_of(&held);
        let place = self.draw.one_of(&[0, 0, 1, 9]);
        let what = format!("change {}", self.draw.below(3));
        self.run.step(match self.draw.below(4) {
            0 => Input::Meddled { domain, what },
            1 | 2 => Input::Contested { domain, place, what },
            _ => Input::Settled { domain, place },
        })
    }

    /// Sets the wall clock forward or back by a small or a large step.
    fn set_clock(&mut self) -> Checked {
        let most = self.draw.one_of(&[1_000, 10_000_000, 3_600_000_000_000]);
        let by = Span::from_ns(self.draw.below(most));
        let is_ahead = self.draw.percent(50);
        self.run.model.step_clock(by, is_ahead);
        self.run.step(Input::ClockStepped { by, is_ahead })
    }

    /// Reports a measured load of a CPU to the service. Most of the loads are near the CPU's limit.
    fn measure(&mut self) -> Checked {
        let cpu = CpuId::new(usize::from(self.draw.percent(50)));
        let share = |ppm: u64| CpuShare::from_ppm(u32::try_from(ppm).expect("below a CPU"));
        let (reserved, limit) = (share(900_000), share(950_000));
        let overhead = share(40_000 + self.draw.below(20_000));
        self.run.step(Input::Load { cpu, load: CpuLoad { reserved, overhead, limit } })
    }

    /// Delivers the service's replies to the clients. Some replies are lost.
    fn hear(&mut self) -> Checked {
        for (ticket, reply) in self.run.replies() {
            if let Err(Refusal::NotDurable { .. }) = reply {
                self.check_undone(ticket)?;
            }
            match reply {
                Ok(_) => self.tally.done += 1,
                Err(Refusal::NoRoom { .. }) => self.tally.no_room += 1,
                Err(Refusal::NotDurable { .. }) => self.tally.not_durable += 1,
                Err(_) => {}
            }
            let is_lost = self.draw.percent(15);
            for client in self.clients.iter_mut().filter(|_| !is_lost) {
                client.waits.take_if(|(_, _, tickets)| tickets.contains(&ticket));
            }
        }
        Ok(())
    }

    /// Checks that a request that was refused because of a full disk had no effect. A refused
    /// release or pause must leave no reservation of that name in force, unless a later request
    /// could have made it.
    fn check_undone(&self, ticket: Ticket) -> Checked {
        let sent = &self.run.history.sent;
        let number = usize::try_from(ticket.0).map_err(|error| error.to_string())?;
        let refused = sent.get(number).map(|sent| &sent.request);
        if let Some(request @ (Request::Release { name, .. } | Request::Pause { name, .. })) =
            refused
            && self.run.service.listed().any(|(_, one)| one.row.name == *name)
            && !sent.iter().skip(number + 1).any(|later| reserves(&later.request, name))
        {
            return Err(format!("{request} is refused, because the disk is full"));
        }
        let Some(slice) = refused.and_then(slice) else { return Ok(()) };
        // A client that got no reply sends its request again, which may then succeed.
        if sent.iter().filter(|one| self::slice(&one.request) == Some(slice)).count() > 1 {
            return Ok(());
        }
        match self.run.service.listed().find(|(_, one)| one.row.terms.each().slice() == slice) {
            Some((_, one)) => Err(format!("{} is in force, and was refused", one.row)),
            None => Ok(()),
        }
    }
}

/// Returns the slice that a request sets, by which the request is recognized. `None` if the request
/// sets no slice.
fn slice(request: &Request) -> Option<Span> {
    match request {
        Request::Reserve { amount: Amount::Each(each), .. }
        | Request::Change { amount: Some(Amount::Each(each)), .. } => Some(each.slice()),
        _ => None,
    }
}

/// Draws an amount of CPU time. If the amount contains a slice, no other request has the same
/// slice, so that the effect can be traced to the request.
fn amount(draw: &mut Draw, number: u64) -> Amount {
    let period = Span::from_ms(draw.one_of(&[5, 10, 20, 50]));
    if draw.percent(8) {
        let share = CpuShare::from_ppm(draw.one_of(&[100_000, 500_000, 1_500_000]));
        return Amount::Together { share, period: Some(period) };
    }
    let tenths = draw.one_of(&[1, 1, 2, 2, 3, 4, 6, 8]);
    let slice = period / 10 * tenths + Span::from_ns(number);
    Amount::Each(Reservation::new(slice, period).expect("less than a period"))
}

/// Returns an end time if `asked` is a multiple of six, and otherwise `None`. The end time is at
/// most three seconds in the future. Some end times are already over, and their requests are
/// refused. The end time is computed and not drawn, so that the random numbers for all other values
/// stay the same.
fn end(model: &Model, asked: u64) -> Option<WallTime> {
    const SECOND_NS: u64 = 1_000_000_000;
    let ahead = Span::from_ns((asked / 6 % 5) * SECOND_NS).left_after(Span::from_secs(1));
    let at = WallTime::at(model.now.after(ahead), model.wall_ahead);
    asked.is_multiple_of(6).then_some(at)
}

/// Draws a phase. Most results are `None`. Some phases are invalid because they are not shorter
/// than the period.
fn phase(draw: &mut Draw) -> Option<Span> {
    draw.percent(25).then(|| Span::from_us(draw.below(12_000)))
}

/// Returns true if a request makes a reservation called `name`, alone or in a list.
fn reserves(request: &Request, name: &Name) -> bool {
    match request {
        Request::Reserve { name: reserved, .. } => reserved == name,
        Request::Apply { targets, .. } => targets.iter().any(|target| reserves(target, name)),
        _ => false,
    }
}

/// Draws the user whose VM starts under a name. Most VMs of the same name have the same user.
fn user(draw: &mut Draw, name: &str) -> u32 {
    let own = MACHINES.iter().zip(USERS).find(|(machine, _)| **machine == name);
    if draw.percent(15) { STRANGER } else { own.map_or(STRANGER, |(_, user)| user) }
}

fn binding(draw: &mut Draw, name: &Name) -> Option<Binding> {
    let is_machine = MACHINES.contains(&name.as_str());
    if is_machine && draw.percent(50) {
        return None;
    }
    let text = if draw.percent(25) {
        format!("pid:{}", 100 + draw.below(5))
    } else {
        format!("qemu:{}", draw.one_of(&MACHINES))
    };
    Some(text.parse().expect("a binding"))
}

/// Returns the mechanism for the request with this number. Every fifth number names `deadline`. Of
/// the other numbers, about every eleventh has `auto`, and the rest name the dispatcher.
const fn mechanism(number: u64) -> WantedMechanism {
    match (number % 5, number % 11) {
        (0, _) => WantedMechanism::only(Enforcement::Deadline),
        (_, 1) => WantedMechanism::AUTO,
        _ => WantedMechanism::only(Enforcement::Dispatcher),
    }
}
