//! Claims of guests: a vCPU whose VM has urgent work may precede vCPUs that have credit too. Only
//! policies that listen to guests use this module.
//! Source: Kim, Kim, Jeon, Seo and Lee, 2008, sections 3.2 to 3.4, cited as [Paper].
//!
//! A *claim* is one number for each vCPU: how urgent its work is. `told` derives it from the
//! guest's reports, `habit` from the VM's answers to I/O if guests are not asked. The run queues
//! keep waiting vCPUs in order of claim. `passes` lets the first of them precede the vCPU whose
//! turn it is, and ends that. `accounts` limits the time of each VM ahead of others.

mod accounts;
mod habit;
mod passes;
mod told;

use alloc::string::ToString;
use alloc::vec::Vec;

use slackline_units::{CpuShare, Span, Time, VcpuId, Weight};

use crate::policies::credit::order::{Claim, ClaimScope};
use crate::{Account, Moment, Roster};

use accounts::ClaimBudget;
use habit::ResponseHistory;
use told::GuestReport;

/// Rules by which claims count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimRules {
    pub(crate) tell: ClaimSource,
    /// Selects whether a blocked task that waits for I/O counts too.
    pub(crate) considers: ClaimTasks,
    /// Selects the blocked tasks that count while I/O is pending for their VM.
    pub(crate) matching: TaskMatching,
    /// Number of tasks woken by I/O that count, the latest first.
    pub(crate) list: usize,
    /// Time after its wake-up by I/O in which a task counts.
    pub(crate) list_time: Span,
    /// Limit of the time that a VM may run ahead of others. `None` if there is no limit.
    pub(crate) bound: Option<ClaimLimit>,
    pub(crate) ends: ClaimEnd,
    pub(crate) place: RequeuePosition,
    pub(crate) among: ClaimScope,
}

/// Source of the claims of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimSource {
    Guest,
    /// Inferred from the answers of a VM to I/O: whether it answers within this CPU time.
    Inferred(Span),
}

/// Tasks of a guest that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimTasks {
    RunQueue,
    All,
}

/// Blocked tasks for which pending I/O may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskMatching {
    Any,
    /// The tasks that I/O woke lately.
    List,
    /// The tasks that the driver VM names.
    Exact,
}

/// End of a turn ahead of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimEnd {
    Slice,
    /// End of the claim, or of the timeslice if that is earlier.
    Claim,
}

/// Place in the queue of a vCPU after its turn ahead of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequeuePosition {
    /// The tail. A preempted vCPU keeps its place if preemption does not end turns.
    Tail,
    /// The place that it had before.
    Kept,
}

/// Limit of the time that a VM may run ahead of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimLimit {
    /// Part of the VM's own share that it may use ahead of others.
    pub(crate) cap: CpuShare,
    /// CPU time ahead of others that a VM may save up.
    pub(crate) depth: Span,
}

/// Claims of all vCPUs, and the time ahead of others that each VM has left.
pub(super) struct Claims {
    belief: ClaimRules,
    vcpus: Roster<Claimant>,
    /// VMs, by row of `Domains`.
    domains: Vec<VmReports>,
    room: ClaimBudget,
}

/// Claim of a vCPU.
#[derive(Clone, Copy, Debug)]
struct Claimant {
    domain: usize,
    /// True if it does I/O for other VMs.
    is_driver: bool,
    /// Claim of its most urgent runnable task.
    runnable: Claim,
    /// Claim with the work that waits for its VM, also if the VM has no time ahead left.
    effective: Claim,
    /// Claim for which it preceded others when it was last chosen. `None` if it was its turn.
    ahead: Option<Claim>,
    /// Time up to which it has been charged, if it runs.
    charged: Time,
}

/// Reports of a VM, and its time ahead of others.
#[derive(Clone, Debug)]
struct VmReports {
    vcpus: Vec<VcpuId>,
    heard: GuestReport,
    habit: ResponseHistory,
    /// Number of I/O items that are done and that the VM has not taken notice of.
    pending: u32,
    weight: Option<Weight>,
    /// Time ahead of others that was left when the VM was last settled, in nanoseconds.
    left: i64,
    level: u128,
    /// True if no time ahead is left. Claims of the VM do not count then.
    is_spent: bool,
}

impl VmReports {
    /// Returns the claim of the VM for its blocked tasks, or for its answers to I/O.
    fn waiting(&self, belief: &ClaimRules) -> Claim {
        let counts = match belief.tell {
            ClaimSource::Guest => self.pending > 0,
            ClaimSource::Inferred(_) => self.habit.is_at_it(self.pending),
        };
        match belief.tell {
            _ if !counts => Claim::NONE,
            ClaimSource::Guest => self.heard.claim,
            ClaimSource::Inferred(_) if belief.considers == ClaimTasks::RunQueue => Claim::NONE,
            ClaimSource::Inferred(_) => Claim::INFERRED,
        }
    }

    const EMPTY: VmReports = VmReports {
        vcpus: Vec::new(),
        heard: GuestReport::NOTHING,
        habit: ResponseHistory::UNKNOWN,
        pending: 0,
        weight: None,
        left: 0,
        level: 0,
        is_spent: false,
    };
}

impl Claims {
    /// Creates the state without any vCPU.
    pub(super) fn new(belief: ClaimRules) -> Claims {
        Claims {
            belief,
            vcpus: Roster::default(),
            domains: Vec::new(),
            room: ClaimBudget::default(),
        }
    }

    /// Adds a vCPU. It claims nothing.
    pub(super) fn join(&mut self, vcpu: VcpuId, domain: usize) {
        if self.domains.len() <= domain {
            self.domains.resize(domain + 1, VmReports::EMPTY);
        }
        if self.domains[domain].vcpus.is_empty() {
            self.domains[domain] = VmReports { level: self.room.level, ..VmReports::EMPTY };
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

    /// Removes a vCPU, and its VM if it was the last one.
    pub(super) fn leave(&mut self, vcpu: VcpuId) {
        let Some(Claimant { domain, .. }) = self.vcpus.remove(vcpu) else { return };
        let household = &mut self.domains[domain];
        household.vcpus.retain(|&other| other != vcpu);
        if household.vcpus.is_empty() {
            self.forget(domain);
        }
    }

    /// Records that a vCPU is chosen: ahead of others for that claim, or in its turn.
    #[inline]
    pub(super) fn begin(&mut self, vcpu: VcpuId, ahead: Option<Claim>) {
        self.vcpus[vcpu].ahead = ahead;
    }

    /// Returns true if a vCPU preceded others when it was last chosen.
    #[inline]
    pub(super) fn is_ahead(&self, vcpu: VcpuId) -> bool {
        self.vcpus[vcpu].ahead.is_some()
    }

    /// Records that a vCPU has started, or has been charged up to now.
    #[inline]
    pub(super) fn charged(&mut self, now: Time, vcpu: VcpuId) {
        self.vcpus[vcpu].charged = now;
    }

    /// Returns the CPU time that the vCPUs of a VM have received. A running vCPU counts as having
    /// run since it was last charged.
    fn ran(&self, at: &Moment, domain: usize) -> Span {
        let VmReports { vcpus, habit, .. } = &self.domains[domain];
        let running = vcpus.iter().filter(|&&vcpu| at.cpu_of(vcpu).is_some());
        let since = running.map(|&vcpu| at.now().since(self.vcpus[vcpu].charged));
        habit.ran + since.sum::<Span>()
    }

    /// Returns true if a vCPU with a claim pays for its own turn too. Otherwise a guest that claims
    /// that all its work is urgent would have turns that no vCPU can precede.
    fn are_turns_paid_for(&self) -> bool {
        self.belief.bound.is_some() && self.keeps_places()
    }

    /// Returns true if a vCPU keeps its place in the queue however its turn ahead ends.
    pub(super) fn keeps_places(&self) -> bool {
        self.belief.place == RequeuePosition::Kept
    }

    /// Returns the rows to show for a vCPU. `is_chosen` is true if it is chosen for a CPU.
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
        if let ClaimSource::Inferred(_) = self.belief.tell {
            let answered = self.domains[self.vcpus[vcpu].domain].habit.answered();
            rows.push(("answered", alloc::format!("{answered} of 10")));
        }
        rows
    }

    /// Returns the claim of a vCPU as it counts. If time ahead is limited, ordinary work claims
    /// nothing: it would use up the time that its VM needs for urgent work.
    #[inline]
    fn counted(&self, vcpu: VcpuId) -> Claim {
        let Claimant { domain, effective, .. } = self.vcpus[vcpu];
        let is_ordinary = self.belief.bound.is_some() && effective >= Claim::ORDINARY;
        if self.domains[domain].is_spent || is_ordinary { Claim::NONE } else { effective }
    }
}
