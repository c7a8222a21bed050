//! What guests claim of their tasks, for policies that listen: a vCPU of a domain with something
//! urgent to do may go ahead of others that have credit too.
//! Source: Kim, Kim, Jeon, Seo and Lee, 2008, sections 3.2 to 3.4, cited as [Paper].
//!
//! `told` makes of what was told one number a vCPU, its *claim*, and those that wait are kept in
//! order of it; where guests are not asked, `habit` does of what a domain does. `passes` lets the
//! first of them go ahead, and ends that; `accounts` bound for how long. Credit by itself has none
//! of this.

mod accounts;
mod habit;
mod passes;
mod told;

use alloc::string::ToString;
use alloc::vec::Vec;

use slackline_units::{CpuShare, Span, Time, VcpuId, Weight};

use crate::policies::credit::order::{Among, Claim};
use crate::{Account, Moment, Roster};

use accounts::Room;
use habit::Habit;
use told::Heard;

/// How far claims are believed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Belief {
    pub(crate) tell: Tell,
    /// Whether a task that waits for I/O counts too.
    pub(crate) considers: Consider,
    /// Which of those that wait count once I/O has been done for their domain.
    pub(crate) matching: Match,
    /// How many of those that I/O has woken lately are believed.
    pub(crate) list: usize,
    /// For how long after I/O has woken them.
    pub(crate) list_time: Span,
    /// For how long a domain may go ahead of others, if that is bounded.
    pub(crate) bound: Option<Bound>,
    pub(crate) ends: Ends,
    pub(crate) place: Place,
    pub(crate) among: Among,
}

/// Who says what a guest has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tell {
    Guest,
    /// What it does with the I/O that is done for it: whether it answers within so much CPU time.
    Inferred(Span),
}

/// Which tasks of a guest count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consider {
    RunQueue,
    All,
}

/// For which of the tasks that wait the I/O that has been done may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    Any,
    /// Those that I/O has woken lately.
    List,
    /// Those for which it is, as who does it says.
    Exact,
}

/// When a turn ahead of others ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Slice,
    /// With the claim, too.
    Claim,
}

/// Where who has gone ahead of others stands afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Behind all, or where it stood if it was preempted and turns are kept.
    Tail,
    /// Where it stood.
    Kept,
}

/// What bounds the time that a domain has ahead of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// How much of its own share that may be.
    pub(crate) cap: CpuShare,
    /// How much of it may be saved up.
    pub(crate) depth: Span,
}

/// What everybody claims, and has left to claim.
pub(super) struct Claims {
    belief: Belief,
    vcpus: Roster<Claimant>,
    /// By row of the domain.
    domains: Vec<Household>,
    room: Room,
}

/// A vCPU, as it is heard.
#[derive(Clone, Copy, Debug)]
struct Claimant {
    domain: usize,
    /// Whether it does I/O for others.
    is_driver: bool,
    /// Of its most urgent task that wants the CPU.
    runnable: Claim,
    /// What it comes to with what waits for its domain, whether or not the domain has room for it.
    effective: Claim,
    /// For what it went ahead of others when it was last chosen, if it did.
    ahead: Option<Claim>,
    /// Up to when it has been charged, if it runs.
    charged: Time,
}

/// A domain, as it is heard.
#[derive(Clone, Debug)]
struct Household {
    vcpus: Vec<VcpuId>,
    heard: Heard,
    habit: Habit,
    /// How much I/O has been done for it of which it has not taken notice.
    pending: u32,
    weight: Option<Weight>,
    /// What it may still use ahead of others, in nanoseconds, as it was at that level.
    left: i64,
    level: u128,
    /// Whether nothing is left: then its claims do not count.
    is_spent: bool,
}

impl Household {
    /// What it claims for those of its tasks that wait, or for what it is taken to be at.
    fn waiting(&self, belief: &Belief) -> Claim {
        let counts = match belief.tell {
            Tell::Guest => self.pending > 0,
            Tell::Inferred(_) => self.habit.is_at_it(self.pending),
        };
        match belief.tell {
            _ if !counts => Claim::NONE,
            Tell::Guest => self.heard.claim,
            Tell::Inferred(_) if belief.considers == Consider::RunQueue => Claim::NONE,
            Tell::Inferred(_) => Claim::INFERRED,
        }
    }

    const EMPTY: Household = Household {
        vcpus: Vec::new(),
        heard: Heard::NOTHING,
        habit: Habit::UNKNOWN,
        pending: 0,
        weight: None,
        left: 0,
        level: 0,
        is_spent: false,
    };
}

impl Claims {
    /// Nobody has joined.
    pub(super) fn new(belief: Belief) -> Claims {
        Claims { belief, vcpus: Roster::default(), domains: Vec::new(), room: Room::default() }
    }

    /// A vCPU joins its domain and has told nothing.
    pub(super) fn join(&mut self, vcpu: VcpuId, domain: usize) {
        if self.domains.len() <= domain {
            self.domains.resize(domain + 1, Household::EMPTY);
        }
        if self.domains[domain].vcpus.is_empty() {
            self.domains[domain] = Household { level: self.room.level, ..Household::EMPTY };
            self.spend_all(domain);
        }
        self.domains[domain].vcpus.push(vcpu);
        let claimant = Claimant {
            domain,
            is_driver: false,
            runnable: Claim::NONE,
            effective: Claim::NONE,
            ahead: None,
            charged: Time::START,
        };
        self.vcpus.insert(vcpu, claimant);
    }

    /// A vCPU leaves.
    pub(super) fn leave(&mut self, vcpu: VcpuId) {
        let Some(Claimant { domain, .. }) = self.vcpus.remove(vcpu) else { return };
        let household = &mut self.domains[domain];
        household.vcpus.retain(|&other| other != vcpu);
        if household.vcpus.is_empty() {
            self.forget(domain);
        }
    }

    /// A vCPU is chosen: ahead of others for that claim, or in its turn.
    #[inline]
    pub(super) fn begin(&mut self, vcpu: VcpuId, ahead: Option<Claim>) {
        self.vcpus[vcpu].ahead = ahead;
    }

    /// Whether a vCPU went ahead of others when it was last chosen.
    #[inline]
    pub(super) fn is_ahead(&self, vcpu: VcpuId) -> bool {
        self.vcpus[vcpu].ahead.is_some()
    }

    /// A vCPU has begun to run, or has been charged for what it has run.
    #[inline]
    pub(super) fn charged(&mut self, now: Time, vcpu: VcpuId) {
        self.vcpus[vcpu].charged = now;
    }

    /// What the vCPUs of a domain have had by now; who runs is taken to have had all the time since
    /// it was charged.
    fn ran(&self, at: &Moment, domain: usize) -> Span {
        let Household { vcpus, habit, .. } = &self.domains[domain];
        let running = vcpus.iter().filter(|&&vcpu| at.cpu_of(vcpu).is_some());
        let since = running.map(|&vcpu| at.now().since(self.vcpus[vcpu].charged));
        habit.ran + since.sum::<Span>()
    }

    /// Whether who has its turn pays for it while others claim something and it claims more: else
    /// whoever says that all it does is urgent would have turns that nobody can go ahead of.
    fn are_turns_paid_for(&self) -> bool {
        self.belief.bound.is_some() && self.keeps_places()
    }

    /// Whether who has gone ahead of others has its place again whatever ends its turn.
    pub(super) fn keeps_places(&self) -> bool {
        self.belief.place == Place::Kept
    }

    /// What there is to show of a vCPU, which is chosen or not.
    pub(super) fn account(&self, vcpu: VcpuId, is_chosen: bool) -> Account {
        let Claimant { effective, ahead, .. } = self.vcpus[vcpu];
        let shown = |claim: Option<Claim>| {
            let urgency = claim.and_then(Claim::urgency);
            urgency.map_or("none".to_string(), |urgency| urgency.to_string())
        };
        let mut rows = alloc::vec![
            ("claim", shown(Some(effective))),
            ("ahead for", shown(ahead.filter(|_| is_chosen))),
        ];
        rows.extend(self.left(vcpu).map(|left| ("claim left", left.to_string())));
        if let Tell::Inferred(_) = self.belief.tell {
            let answered = self.domains[self.vcpus[vcpu].domain].habit.answered();
            rows.push(("answered", alloc::format!("{answered} of 10")));
        }
        rows
    }

    /// What a vCPU's claim counts for. Where claims are bounded one is paid for, and ordinary work
    /// is not worth that: it would use up what its domain has for what is urgent.
    #[inline]
    fn counted(&self, vcpu: VcpuId) -> Claim {
        let Claimant { domain, effective, .. } = self.vcpus[vcpu];
        let is_ordinary = self.belief.bound.is_some() && effective >= Claim::ORDINARY;
        if self.domains[domain].is_spent || is_ordinary { Claim::NONE } else { effective }
    }
}
