//! Credit: weighted shares and caps by accounts that are settled every 30 ms.
//! Source: Xen's scheduler of that name, 2006; sections refer to our reference on it. Also
//! Cherkasova, Gupta and Vahdat, 2007, cited as [Three].
//!
//! Every domain is given credit by its weight, its vCPUs pay with it for CPU time, and a vCPU is
//! UNDER while it has some left and OVER when it has not. Each CPU has a list of vCPUs by class,
//! first come first served within a class; a turn lasts 30 ms. Who wakes UNDER is boosted: it goes
//! before all others for a short while. A CPU that finds nobody UNDER at home steals from others.
//!
//! Facts request passes, and the answer is kept: a *pass* chooses who has a CPU from now on and
//! until when, and whoever asks is told that until the next pass. So being asked again renews
//! nothing. Only where the chosen one cannot run is the next best one answered instead; if it
//! starts, it is the chosen one from then on.
//!
//! Holds after every call: an awake vCPU stands in one list, or is chosen for one CPU, or is held
//! to its cap, or is leaving its CPU for another at that one's next pass. Who goes ahead of others
//! for what it claims (`claims`) may be chosen and stand in the list of that CPU.
//!
//! Under the rules of Xen it departs from Xen in this: a CPU never passes while another holds a
//! lock; a slice ends neither early nor merged with other timers; a change of weight or cap stops
//! no domain and boosts nobody.

mod accounting;
mod claims;
mod domains;
mod exact;
mod gangs;
mod order;
mod page;
mod passes;
mod rules;
mod runqueue;
mod xen;

#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, Span, Time, VcpuId};

use crate::admission::placement::Population;
use crate::{
    Account, AdmitError, Entitlement, Field, Moment, Pick, Policy, Roster, Spec, Told, Topology,
    TurnEnd, Values,
};

use claims::Claims;
use domains::Domains;
use exact::level::Level;
use gangs::Gangs;
use rules::{Changes, Newcomers, Park};

pub(crate) use claims::{Belief, Bound, Consider, Ends, Match, Place, Tell};
pub(crate) use order::Among;
pub(crate) use rules::{Rules, fields};

use runqueue::{Class, RunQueues};

const WEIGHT: Field = Field::weight("weight", "256", "share of the VM relative to other VMs");
const CAP: Field = Field::cap(
    "cap",
    CpuShare::from_ppm(256_000_000), // All CPUs that a host may have.
    "limit for all vCPUs of the VM together",
);
const GANG: Field =
    Field::flag("gang", "run the vCPUs of the VM together, under gang = \"relaxed\"");

/// What one says of a domain whose vCPUs are on their own.
pub(crate) const SHARE_FIELDS: &[Field] = &[WEIGHT, CAP];

/// What people meet.
pub(crate) const SPEC: Spec = Spec {
    name: "credit",
    summary: "shares by weight, and caps (Xen)",
    page: page::PAGE,
    policy_fields: fields::FIELDS,
    share_fields: &[WEIGHT, CAP, GANG],
    conflict: |_| None,
    promise: |_| Ok(None),
    keeps: |_, _| true,
    limit: Some(|share, _| alloc::vec![(CAP.name, alloc::format!("\"{share}\""))]),
    together: None,
    payer: None,
    build: |values, topology| {
        let rules = Rules::read(values, values.choice(&fields::RULES));
        let gangs = Gangs::read(values, topology.cpus());
        Box::new(Credit { gangs, ..Credit::new(rules, topology, None) })
    },
};

/// The CPU at whose ticks credits are given.
const MASTER: CpuId = CpuId::new(0);

pub(crate) struct Credit {
    rules: Rules,
    topology: Topology,
    /// Whether each CPU is a core of its own, and all are of one socket.
    is_flat: bool,
    /// Nothing ticks before the first vCPU joins: only then is it known what time it is.
    has_begun: bool,
    /// Of the master, since the last accounting.
    ticks: u32,
    accounted: Time,
    cpus: Vec<Cpu>,
    /// By class, on which CPUs somebody of it is chosen; nobody is where it is [`Class::Idle`].
    by_class: [CpuSet; runqueue::CLASSES],
    /// Who is at home where.
    population: Population,
    queues: RunQueues,
    vcpus: Roster<Vcpu>,
    domains: Domains,
    /// Left by all the active after the last accounting, in credits, where credits are counted.
    balance: i64,
    /// How credit is given where it is not counted.
    level: Level,
    /// What guests claim, if they are listened to.
    claims: Option<Box<Claims>>,
    /// Who is invited where, if siblings are brought along.
    gangs: Option<Gangs>,
    /// The CPUs for which nobody was chosen at their last pass.
    free: CpuSet,
    /// The CPUs that are to pass.
    requested: CpuSet,
}

/// What the last pass of a CPU decided.
#[derive(Clone, Copy, Debug)]
struct Cpu {
    chosen: Option<VcpuId>,
    /// Of what class the chosen one is, and whether there is none.
    class: Class,
    from: Time,
    /// When it must pass again: the end of idling too, where that has one.
    until: Time,
    /// The end of the turn, which is no earlier.
    turn_ends: Time,
    tick: Time,
    /// Why it is to pass, if it is.
    why: Why,
}

/// A vCPU's account.
struct Vcpu {
    domain: usize,
    /// In whose list it belongs, and where it runs.
    home: CpuId,
    /// The CPU for which it is chosen.
    on: Option<CpuId>,
    class: Class,
    /// In nanoseconds of CPU time.
    credit: i64,
    is_active: bool,
    /// Held to its cap: in no list.
    is_parked: bool,
    /// To run elsewhere, once its CPU has passed.
    is_moving: bool,
    /// What is left of a turn that was interrupted.
    turn: Span,
    /// What it has been charged since it was chosen.
    paid: Span,
    /// For how much longer it is boosted.
    boost: Span,
    /// Taken from its domain's budget and not used yet.
    held: i64,
}

impl Policy for Credit {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        self.begin(at.now());
        let domain = self.domains.join(vcpu);
        let home = self.population.join(at.allowed(vcpu));
        let account = Vcpu {
            domain,
            home,
            on: None,
            class: Class::Under,
            credit: 0,
            is_active: false,
            is_parked: false,
            is_moving: false,
            turn: self.rules.slice,
            paid: Span::ZERO,
            boost: Span::ZERO,
            held: 0,
        };
        self.vcpus.insert(vcpu, account);
        self.queues.join(vcpu);
        if let Some(claims) = &mut self.claims {
            claims.join(vcpu, domain);
        }
        self.change_terms(domain, share);
        if self.rules.newcomers == Newcomers::Active {
            self.become_active(vcpu);
        }
        Ok(())
    }

    /// All vCPUs of a domain have the terms that were told last. The weight counts from the next
    /// accounting on, the cap from the next turn on.
    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        let domain = self.vcpus[vcpu].domain;
        self.change_terms(domain, share);
        if self.rules.park == Park::Budget {
            self.unpark(at, domain);
        }
        if at.is_allowed(vcpu, self.vcpus[vcpu].home) {
            self.offer(at, vcpu);
        } else {
            self.expel(at, vcpu);
        }
        Ok(self.requested)
    }

    fn leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let on = self.vcpus[vcpu].on;
        self.retire(at, vcpu);
        self.become_inactive(vcpu);
        let account = self.vcpus.remove(vcpu).expect("a vCPU that has joined");
        self.population.leave(account.home);
        self.domains.leave(account.domain, vcpu);
        if let Some(claims) = &mut self.claims {
            claims.leave(vcpu);
        }
        if let Some(gangs) = &mut self.gangs {
            gangs.leave(vcpu);
        }
        self.request_all(on, Why::Over);
        self.requested
    }

    fn wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        if self.rules.newcomers == Newcomers::Awake {
            self.become_active(vcpu);
        }
        self.wake_up(at, vcpu);
        self.requested
    }

    fn start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        if let Some(claims) = &mut self.claims {
            claims.charged(at.now(), vcpu);
        }
        match at.cpu_of(vcpu) {
            Some(cpu) if self.cpus[cpu.index()].chosen != Some(vcpu) => {
                self.replace(at, cpu, vcpu);
                self.requested
            }
            _ => CpuSet::NONE,
        }
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        if self.domains.are_capped() {
            self.charge_budget(vcpu, ran);
        }
        if self.claims.is_some() {
            self.charge_claim(at.now(), vcpu, ran);
        }
        let stands = self.stands_in_line(vcpu);
        let account = &mut self.vcpus[vcpu];
        let class = account.pay(ran, &self.rules);
        if account.on.is_some() && !stands {
            account.class = class; // It is in no list.
            account.on.into_iter().for_each(|cpu| self.set_class_on(cpu, class));
        } else {
            self.reclass(vcpu, class);
        }
        CpuSet::NONE
    }

    fn hear(&mut self, at: &Moment, vcpu: VcpuId, told: &Told) -> CpuSet {
        if self.claims.is_some() { self.listen(at, vcpu, told) } else { CpuSet::NONE }
    }

    fn turn_over(&mut self, _: &Moment, vcpu: VcpuId, why: TurnEnd) -> CpuSet {
        let why = if why == TurnEnd::Yield { Why::Yielded } else { Why::Over };
        self.request_all(self.vcpus[vcpu].on, why);
        CpuSet::NONE // It concerns that CPU and no other.
    }

    fn block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let on = self.vcpus[vcpu].on;
        self.retire(at, vcpu);
        if self.claims.is_some() {
            self.rest(at, vcpu);
        }
        self.request_all(on, Why::Over);
        CpuSet::NONE
    }

    fn pass(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        if !at.idle().is_empty() {
            self.notice_refusals(at);
        }
        if !self.requested.contains(cpu) {
            return self.requested;
        }
        if self.cpus[cpu.index()].tick < at.now() {
            self.tick(at, cpu); // Its timer is late: it comes before all passes.
        }
        self.requested.remove(cpu);
        self.decide(at, cpu);
        let mut cpus = self.take_shortened();
        cpus.add(&self.requested);
        cpus
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        let this = &self.cpus[cpu.index()];
        match this.chosen {
            Some(vcpu) if at.is_eligible(vcpu, cpu) => run(vcpu, this.until.since(at.now())),
            _ => self.stand_in(at, cpu),
        }
    }

    fn alarm(&self, cpu: CpuId) -> Option<Time> {
        let this = &self.cpus[cpu.index()];
        let idles = this.chosen.is_none() && self.rules.changes == Changes::Tick;
        let waits = idles && !self.requested.contains(cpu);
        let passes = if waits { this.until } else { Time::NEVER };
        let first = this.tick.min(passes);
        (self.has_begun && first != Time::NEVER).then_some(first)
    }

    fn ring(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        if self.cpus[cpu.index()].tick <= at.now() {
            self.tick(at, cpu);
        }
        let this = &mut self.cpus[cpu.index()];
        let has_idled = this.chosen.is_none() && this.until <= at.now();
        if has_idled && self.rules.changes == Changes::Tick {
            self.request(cpu, Why::Over);
        }
        self.requested
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        let account = &self.vcpus[vcpu];
        let class = match account.class {
            _ if account.is_parked => "parked",
            Class::Parked | Class::Idle => "parked",
            Class::Over => "over",
            Class::Under => "under",
            Class::Boost => "boost",
        };
        let mut rows = alloc::vec![
            ("cpu", account.home.to_string()),
            ("class", class.to_string()),
            ("credit", signed(account.credit)),
            ("active", account.is_active.to_string()),
        ];
        let is_chosen = account.on.is_some();
        rows.extend(self.claims.iter().flat_map(|claims| claims.account(vcpu, is_chosen)));
        rows
    }
}

/// Why a CPU passes: of several reasons the last of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    /// Somebody may come before the chosen one.
    Preempted,
    /// Its turn is over, or nobody is there.
    Over,
    /// The chosen one has given its turn away.
    Yielded,
}

/// A turn that ended while a timer was late has no length.
fn run(vcpu: VcpuId, limit: Span) -> Pick {
    Pick::Run { vcpu, limit: Some(limit), entitlement: Entitlement::Due }
}

impl Credit {
    /// With those rules; guests are listened to if it is said how far they are believed.
    pub(crate) fn new(rules: Rules, topology: &Topology, belief: Option<Belief>) -> Credit {
        let cpu = Cpu {
            chosen: None,
            class: Class::Idle,
            from: Time::START,
            until: Time::NEVER,
            tick: Time::NEVER,
            turn_ends: Time::NEVER,
            why: Why::Preempted,
        };
        Credit {
            rules,
            topology: topology.clone(),
            is_flat: *topology
                == Topology::flat(topology.cpus()).with_dispatch(topology.dispatch()),
            has_begun: false,
            ticks: 0,
            accounted: Time::START,
            cpus: alloc::vec![cpu; topology.cpus()],
            by_class: core::array::from_fn(|class| {
                let all = class == Class::Idle as usize;
                if all { CpuSet::first_n(topology.cpus()) } else { CpuSet::NONE }
            }),
            population: Population::new(topology.cpus()),
            queues: match belief {
                Some(belief) => RunQueues::with_order(topology.cpus(), belief.among),
                None => RunQueues::new(topology.cpus()),
            },
            vcpus: Roster::default(),
            domains: Domains::new(&rules),
            balance: 0,
            level: Level::default(),
            claims: belief.map(|belief| Box::new(Claims::new(belief))),
            gangs: None,
            free: CpuSet::first_n(topology.cpus()),
            requested: CpuSet::NONE,
        }
    }

    /// Who runs where nobody is chosen, or the chosen one cannot run.
    fn stand_in(&self, at: &Moment, cpu: CpuId) -> Pick {
        // By Xen's rules an idle CPU waits until it is told to pass, or has idled for a slice.
        let waits = self.rules.changes == Changes::Tick && self.cpus[cpu.index()].chosen.is_none();
        let stand_in = if waits { None } else { self.best(at, cpu) };
        stand_in.map_or(Pick::Idle, |vcpu| run(vcpu, self.turn(vcpu)))
    }

    /// A CPU is to pass.
    #[inline]
    fn request(&mut self, cpu: CpuId, why: Why) {
        let this = &mut self.cpus[cpu.index()];
        let is_first = !self.requested.contains(cpu);
        this.why = if is_first { why } else { this.why.max(why) };
        self.requested.insert(cpu);
    }

    /// These CPUs are to pass.
    #[inline]
    fn request_all(&mut self, cpus: impl IntoIterator<Item = CpuId>, why: Why) {
        cpus.into_iter().for_each(|cpu| self.request(cpu, why));
    }

    /// Where the chosen one was refused and nobody else was there to run, nobody is chosen any
    /// more: whoever comes finds an idle CPU.
    #[inline]
    fn notice_refusals(&mut self, at: &Moment) {
        let idle = at.idle().without(&self.free).without(&self.requested);
        for cpu in idle.iter() {
            if self.cpus[cpu.index()].chosen.is_some() {
                self.request(cpu, Why::Preempted);
            }
        }
    }

    /// The chosen one cannot run, so the next best one does.
    fn replace(&mut self, at: &Moment, cpu: CpuId, vcpu: VcpuId) {
        self.requested.remove(cpu);
        self.put_back(at, cpu, Why::Preempted);
        if self.rules.changes == Changes::Tick {
            self.queues.put_mark(cpu);
        }
        self.free.remove(cpu);
        self.take(at, cpu, vcpu);
    }

    /// A vCPU may no longer run where it is at home.
    fn expel(&mut self, at: &Moment, vcpu: VcpuId) {
        if self.vcpus[vcpu].on.is_some() {
            return self.migrate(vcpu);
        }
        self.find_home(at, vcpu);
        if self.queues.list_of(vcpu).is_some() {
            self.queues.remove(vcpu);
            self.enqueue(at, vcpu);
        }
    }

    fn change_terms(&mut self, domain: usize, share: &Values) {
        self.settle(domain);
        let (before, cap) = (self.domains[domain].cap, share.cap(&CAP));
        self.domains.change(domain, share.weight(&WEIGHT), cap);
        if let Some(claims) = &mut self.claims {
            claims.set_weight(domain, share.weight(&WEIGHT));
        }
        self.domains[domain].is_gang = self.gangs.is_some() && share.flag(&GANG);
        self.reckon(domain);
        if cap != before {
            self.renew_budget(domain);
        }
    }

    /// Starts the ticks. As Xen ran a pass on each CPU before the first vCPU came, an idle CPU
    /// looks for work after a slice (section 15, item 13).
    fn begin(&mut self, now: Time) {
        if core::mem::replace(&mut self.has_begun, true) {
            return;
        }
        self.accounted = now;
        let Rules { slice, tick, clock, .. } = self.rules;
        let cpus = self.cpus.len();
        for (index, cpu) in self.cpus.iter_mut().enumerate() {
            cpu.until = now.after(slice);
            if self.rules.needs_ticks() {
                cpu.tick = now.after(tick).after(clock.first(index, cpus));
            } else if index == MASTER.index() {
                cpu.tick = now.after(tick * 3).after(clock.first(index, 1));
            }
        }
    }

    fn tick(&mut self, at: &Moment, cpu: CpuId) {
        let this = &mut self.cpus[cpu.index()];
        let (now, due) = (at.now(), this.tick);
        if self.rules.needs_ticks() {
            // Armed from when it is handled, so that it drifts (section 2.5).
            this.tick = now.after(self.rules.tick);
            self.ticks += u32::from(cpu == MASTER);
            self.sample(at, cpu);
        } else {
            let step = self.rules.tick * 3;
            let next = due.after(step);
            this.tick = if next > now { next } else { now.after(step) };
            self.ticks = 3;
        }
        if cpu == MASTER && self.ticks >= 3 {
            self.ticks = 0;
            self.give_credit(at);
            self.accounted = now;
        }
        if self.rules.changes == Changes::Tick {
            self.queues.sort(cpu);
        }
    }
}

fn nanoseconds(span: Span) -> i64 {
    i64::try_from(span.ns()).unwrap_or(i64::MAX)
}

/// A text for credit, which may be negative.
fn signed(ns: i64) -> alloc::string::String {
    let sign = if ns < 0 { "-" } else { "" };
    alloc::format!("{sign}{}", Span::from_ns(ns.unsigned_abs()))
}
