//! Credit: weighted shares and caps by accounts that are settled every 30 ms. Sources: Xen's
//! scheduler of that name, 2006; and Cherkasova, Gupta and Vahdat, 2007. Section numbers refer to
//! our reference on Credit, a set of notes and test cases that is not in this repository.
//!
//! Each VM receives credit in proportion to its weight, and its vCPUs pay with credit for CPU time.
//! A vCPU is UNDER while it has credit left and OVER otherwise. Each CPU has a list of vCPUs by
//! class, first come, first served within a class. A timeslice lasts 30 ms by Xen's rules. A vCPU
//! that wakes UNDER is boosted: it precedes all others for a short while. A CPU that finds no UNDER
//! vCPU in its list steals one from another CPU.
//!
//! Events request passes. A *pass* chooses the vCPU that runs on a CPU and the end of its
//! timeslice. The decision is stored, and `pick` returns it until the next pass, so that repeated
//! picks renew nothing. If the chosen vCPU is not eligible, `pick` returns the next best vCPU. If
//! that vCPU starts, it becomes the chosen vCPU.
//!
//! After every call, one of these is true of a runnable vCPU:
//! - It is in one list.
//! - It is chosen for one CPU. If it was chosen because of its urgency claim (`claims`), it may
//!   also be in the list of that CPU.
//! - It is parked at its cap.
//! - It migrates at the next pass of its CPU.
//!
//! Departs from Xen, also under Xen's rules. A CPU that looks for a vCPU to steal examines all
//! other CPUs; Xen skips CPUs whose lock is taken. Timers expire early only if the host has
//! `timer_slop`; in Xen, up to 50 us early. A change of weight or cap neither stops nor boosts the
//! VM; in Xen it can.

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
    Account, AdmitError, Entitlement, Field, Moment, Pick, Policy, Roster, Spec, TimesliceEnd,
    Topology, Values, VcpuHint,
};

use claims::Claims;
use domains::Domains;
use exact::level::CreditLevel;
use gangs::Gangs;
use rules::{ClassChange, CreditStart};

pub(crate) use claims::{
    ClaimEnd, ClaimLimit, ClaimRules, ClaimSource, ClaimTasks, RequeuePosition, TaskMatching,
};
pub(crate) use order::ClaimScope;
pub(crate) use rules::{CreditRules, fields};

use runqueue::{Class, RunQueues};

const WEIGHT: Field = Field::weight("weight", "256", "share of the VM relative to other VMs");
const CAP: Field = Field::cap(
    "cap",
    CpuShare::from_ppm(256_000_000), // All CPUs of the largest host.
    "limit for all vCPUs of the VM together",
);
const GANG: Field =
    Field::flag("gang", "run the vCPUs of the VM together, under gang = \"relaxed\"");

/// Parameters of VMs whose vCPUs are scheduled independently, without gangs.
pub(crate) const SHARE_FIELDS: &[Field] = &[WEIGHT, CAP];

/// Description of the policy `credit`.
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
        let rules = CreditRules::read(values, values.choice(&fields::RULES));
        let gangs = Gangs::read(values, topology.cpus());
        Box::new(Credit { gangs, ..Credit::new(rules, topology, None) })
    },
};

/// CPU whose ticks trigger the accounting.
const MASTER: CpuId = CpuId::new(0);

pub(crate) struct Credit {
    rules: CreditRules,
    topology: Topology,
    /// True if each CPU is a core of its own and all CPUs are in one socket.
    is_flat: bool,
    /// True after the first vCPU has joined. Its join starts the ticks, because the policy does not
    /// know the time before.
    has_begun: bool,
    /// Number of ticks of CPU 0, which trigger the accounting, since the last accounting.
    ticks: u32,
    accounted: Time,
    cpus: Vec<CreditCpu>,
    /// For each class, the CPUs whose chosen vCPU has that class. A CPU with no chosen vCPU is
    /// under [`Class::Idle`].
    by_class: [CpuSet; runqueue::CLASSES],
    /// Number of vCPUs of each home CPU. The home CPU of a vCPU is the CPU in whose list it waits.
    population: Population,
    queues: RunQueues,
    vcpus: Roster<Vcpu>,
    domains: Domains,
    /// Total credit of the active vCPUs after the last accounting, in credits. Unused if credit is
    /// counted in nanoseconds (`credits = "exact"`).
    balance: i64,
    /// State of the distribution of credit without rounding.
    level: CreditLevel,
    /// Urgency claims of guests. `None` if hints of guests are ignored.
    claims: Option<Box<Claims>>,
    /// Invitations of gang siblings. `None` if vCPUs are scheduled independently.
    gangs: Option<Gangs>,
    /// CPUs whose last pass chose no vCPU.
    free: CpuSet,
    /// CPUs for which a pass is requested.
    requested: CpuSet,
}

/// Decision of the last scheduling pass of a CPU.
#[derive(Clone, Copy, Debug)]
struct CreditCpu {
    chosen: Option<VcpuId>,
    /// Class of the vCPU chosen for the CPU. [`Class::Idle`] if no vCPU is chosen.
    class: Class,
    from: Time,
    /// Time of the next pass: the end of the timeslice, or the end of idling if idling is limited.
    until: Time,
    /// End of the vCPU's timeslice if neither boost nor cap shortens it. Never before `until`.
    turn_ends: Time,
    tick: Time,
    /// Reason for the requested pass.
    why: PassReason,
}

/// Credit account of a vCPU.
struct Vcpu {
    domain: usize,
    /// CPU in whose list the vCPU belongs and on which it runs.
    home: CpuId,
    /// CPU for which the vCPU is chosen. `None` if it is chosen for no CPU.
    on: Option<CpuId>,
    class: Class,
    /// Credit in nanoseconds of CPU time.
    credit: i64,
    is_active: bool,
    /// True if the vCPU is parked at its cap, and in no list.
    is_parked: bool,
    /// True if the vCPU migrates after the next scheduling pass of its CPU.
    is_moving: bool,
    /// Length of the vCPU's next timeslice: a whole timeslice, or the rest of an interrupted
    /// timeslice.
    turn: Span,
    /// CPU time charged to the vCPU since it was chosen.
    paid: Span,
    /// CPU time that the vCPU can still use while it is boosted. Used only with `boost = "exact"`.
    boost: Span,
    /// Budget that the vCPU has taken from its capped VM and not used yet, in nanoseconds.
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
        if self.rules.newcomers == CreditStart::Active {
            self.become_active(vcpu);
        }
        Ok(())
    }

    /// Handles the join of a vCPU. Its cap applies to the whole VM, so other vCPUs of the VM may be
    /// able to run now.
    fn on_join(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.apply_cap(at, vcpu);
        self.requested
    }

    /// Changes weight and cap of a VM. The latest parameters apply to all vCPUs of the VM. The
    /// weight counts from the next accounting on, the cap from the next timeslice on.
    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        let domain = self.vcpus[vcpu].domain;
        self.change_terms(domain, share);
        self.apply_cap(at, vcpu);
        if at.is_allowed(vcpu, self.vcpus[vcpu].home) {
            self.offer(at, vcpu);
        } else {
            self.expel(at, vcpu);
        }
        Ok(self.requested)
    }

    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let on = self.vcpus[vcpu].on;
        self.retire(at, vcpu);
        self.offer_returned_budget(at, vcpu);
        self.become_inactive(vcpu);
        let account = self.vcpus.remove(vcpu).expect("a joined vCPU has an account");
        self.population.leave(account.home);
        self.domains.leave(account.domain, vcpu);
        if let Some(claims) = &mut self.claims {
            claims.leave(vcpu);
        }
        if let Some(gangs) = &mut self.gangs {
            gangs.leave(vcpu);
        }
        self.request_all(on, PassReason::Over);
        self.requested
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        if self.rules.newcomers == CreditStart::Awake {
            self.become_active(vcpu);
        }
        self.wake_up(at, vcpu);
        self.requested
    }

    fn on_start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
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
            account.class = class; // The vCPU is in no list.
            account.on.into_iter().for_each(|cpu| self.set_class_on(cpu, class));
        } else {
            self.reclass(vcpu, class);
        }
        CpuSet::NONE
    }

    fn on_hint(&mut self, at: &Moment, vcpu: VcpuId, told: &VcpuHint) -> CpuSet {
        if self.claims.is_some() { self.listen(at, vcpu, told) } else { CpuSet::NONE }
    }

    fn on_timeslice_end(&mut self, _: &Moment, vcpu: VcpuId, why: TimesliceEnd) -> CpuSet {
        let why = if why == TimesliceEnd::Yield { PassReason::Yielded } else { PassReason::Over };
        self.request_all(self.vcpus[vcpu].on, why);
        CpuSet::NONE // The event concerns that CPU only.
    }

    fn on_block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let on = self.vcpus[vcpu].on;
        self.retire(at, vcpu);
        if self.claims.is_some() {
            self.rest(at, vcpu);
        }
        self.request_all(on, PassReason::Over);
        self.offer_returned_budget(at, vcpu)
    }

    fn prepare_pick(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        if !at.idle().is_empty() {
            self.notice_refusals(at);
        }
        if !self.requested.contains(cpu) {
            return self.requested;
        }
        if self.cpus[cpu.index()].tick < at.now() {
            self.tick(at, cpu); // A tick whose timer is late precedes all passes.
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

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        let this = &self.cpus[cpu.index()];
        let idles = this.chosen.is_none() && self.rules.changes == ClassChange::Tick;
        let waits = idles && !self.requested.contains(cpu);
        let passes = if waits { this.until } else { Time::NEVER };
        let first = this.tick.min(passes);
        (self.has_begun && first != Time::NEVER).then_some(first)
    }

    fn on_timer(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        if self.cpus[cpu.index()].tick <= at.now() {
            self.tick(at, cpu);
        }
        let this = &mut self.cpus[cpu.index()];
        let has_idled = this.chosen.is_none() && this.until <= at.now();
        if has_idled && self.rules.changes == ClassChange::Tick {
            self.request(cpu, PassReason::Over);
        }
        self.requested
    }

    fn is_boosted(&self, vcpu: VcpuId) -> bool {
        self.vcpus[vcpu].class == Class::Boost
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

/// Reason for a scheduling pass. If a pass is requested for several reasons, the reason listed last
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PassReason {
    /// Another vCPU may precede the chosen vCPU.
    Preempted,
    /// The timeslice has ended, or no vCPU is chosen.
    Over,
    /// The chosen vCPU yielded.
    Yielded,
}

/// Returns a pick of `vcpu` for at most `limit`. The limit is zero if the timeslice has ended and
/// its timer is late.
fn run(vcpu: VcpuId, limit: Span) -> Pick {
    Pick::Run { vcpu, limit: Some(limit), entitlement: Entitlement::Due }
}

impl Credit {
    /// Creates the policy. `belief` has the rules for urgency claims of guests. With `None`, claims
    /// are ignored.
    pub(crate) fn new(
        rules: CreditRules,
        topology: &Topology,
        belief: Option<ClaimRules>,
    ) -> Credit {
        let cpu = CreditCpu {
            chosen: None,
            class: Class::Idle,
            from: Time::START,
            until: Time::NEVER,
            tick: Time::NEVER,
            turn_ends: Time::NEVER,
            why: PassReason::Preempted,
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
            level: CreditLevel::default(),
            claims: belief.map(|belief| Box::new(Claims::new(belief))),
            gangs: None,
            free: CpuSet::first_n(topology.cpus()),
            requested: CpuSet::NONE,
        }
    }

    /// Returns the pick of a CPU for which no vCPU is chosen, or whose chosen vCPU is not eligible.
    fn stand_in(&self, at: &Moment, cpu: CpuId) -> Pick {
        // By Xen's rules an idle CPU waits until a pass is requested or a timeslice has gone by.
        let waits =
            self.rules.changes == ClassChange::Tick && self.cpus[cpu.index()].chosen.is_none();
        let stand_in = if waits { None } else { self.best(at, cpu) };
        stand_in.map_or(Pick::Idle, |vcpu| run(vcpu, self.turn(vcpu)))
    }

    /// Requests a scheduling pass on a CPU.
    #[inline]
    fn request(&mut self, cpu: CpuId, why: PassReason) {
        let this = &mut self.cpus[cpu.index()];
        let is_first = !self.requested.contains(cpu);
        this.why = if is_first { why } else { this.why.max(why) };
        self.requested.insert(cpu);
    }

    /// Requests a scheduling pass on each of these CPUs.
    #[inline]
    fn request_all(&mut self, cpus: impl IntoIterator<Item = CpuId>, why: PassReason) {
        cpus.into_iter().for_each(|cpu| self.request(cpu, why));
    }

    /// Requests a pass on each CPU that idles although a vCPU is chosen for it. The host has barred
    /// that vCPU, and no other vCPU can run there. The pass makes the CPU free for vCPUs that wake.
    #[inline]
    fn notice_refusals(&mut self, at: &Moment) {
        let idle = at.idle().without(&self.free).without(&self.requested);
        for cpu in idle.iter() {
            if self.cpus[cpu.index()].chosen.is_some() {
                self.request(cpu, PassReason::Preempted);
            }
        }
    }

    /// Makes `vcpu` the chosen vCPU of `cpu`. Called when `vcpu` has started there in place of the
    /// chosen vCPU, which was not eligible.
    fn replace(&mut self, at: &Moment, cpu: CpuId, vcpu: VcpuId) {
        self.requested.remove(cpu);
        self.put_back(at, cpu, PassReason::Preempted);
        if self.rules.changes == ClassChange::Tick {
            self.queues.put_mark(cpu);
        }
        self.free.remove(cpu);
        self.take(at, cpu, vcpu);
    }

    /// Moves a vCPU away from its home CPU, in whose list it waits, because its affinity no longer
    /// allows that CPU.
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
        let allowed_before = self.domains.allowance(domain, self.rules.tick * 3);
        self.domains.change(domain, share.weight(&WEIGHT), cap);
        if let Some(claims) = &mut self.claims {
            claims.set_weight(domain, share.weight(&WEIGHT));
        }
        self.domains[domain].is_gang = self.gangs.is_some() && share.flag(&GANG);
        self.reckon(domain);
        if cap != before {
            self.change_budget(domain, allowed_before);
        }
    }

    /// Starts the ticks. Xen ran a pass on each CPU before the first vCPU joined. So an idle CPU
    /// runs its next pass after one timeslice (section 15 of the reference on Credit, item 13).
    fn begin(&mut self, now: Time) {
        if core::mem::replace(&mut self.has_begun, true) {
            return;
        }
        self.accounted = now;
        let CreditRules { slice, tick, clock, .. } = self.rules;
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
            // The timer starts when the tick is handled, so it drifts (section 2.5).
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
        if self.rules.changes == ClassChange::Tick {
            self.queues.sort(cpu);
        }
    }
}

fn nanoseconds(span: Span) -> i64 {
    i64::try_from(span.ns()).unwrap_or(i64::MAX)
}

/// Formats credit, which may be negative.
fn signed(ns: i64) -> alloc::string::String {
    let sign = if ns < 0 { "-" } else { "" };
    alloc::format!("{sign}{}", Span::from_ns(ns.unsigned_abs()))
}
