//! Urgency claims of guests: a vCPU with urgent work may run before other vCPUs that have credit
//! too. Only policies that use hints of guests have claims. Source: Kim, Kim, Jeon, Seo and Lee,
//! 2008, sections 3.2 to 3.4, cited as [Paper].
//!
//! A *claim* is one number for each vCPU: the urgency of its work. `told` derives the claim from
//! the guest's reports. If guests report nothing, `habit` infers it from how quickly the VM answers
//! I/O. The run queues keep waiting vCPUs in order of claim. `passes` lets the vCPU with the most
//! urgent claim run before the vCPU that is first in the queue, and ends its run. The CPU time for
//! which a VM may run before others in this way is its *time ahead*; `accounts` limits it.

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

/// Rules by which urgency claims of guests count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimRules {
    pub(crate) tell: ClaimSource,
    /// Tasks that count in the urgency claim of a VM: runnable tasks only, or also blocked tasks
    /// that wait for I/O.
    pub(crate) considers: ClaimTasks,
    /// Selects the blocked tasks that count in the urgency claim of a VM while I/O is pending for
    /// the VM.
    pub(crate) matching: TaskMatching,
    /// Maximum number of tasks woken by I/O that count in an urgency claim. The tasks that were
    /// woken most recently count.
    pub(crate) list: usize,
    /// Time for which a task counts in an urgency claim after I/O woke it.
    pub(crate) list_time: Span,
    /// Limit of the CPU time for which a VM may precede others by its urgency claim. `None` if
    /// there is no limit.
    pub(crate) bound: Option<ClaimLimit>,
    pub(crate) ends: ClaimEnd,
    pub(crate) place: RequeuePosition,
    pub(crate) among: ClaimScope,
}

/// Source of the urgency claims of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimSource {
    Guest,
    /// Inferred from the answers of a VM to I/O. An answer is in time if it comes before the VM has
    /// used this CPU time.
    Inferred(Span),
}

/// Tasks of a guest that count in the urgency claim of its vCPU. `RunQueue`: runnable tasks. `All`:
/// also blocked tasks that wait for I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimTasks {
    RunQueue,
    All,
}

/// Blocked tasks that may be the receivers of pending I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskMatching {
    Any,
    /// The tasks that I/O woke recently.
    List,
    /// The tasks that the driver VM names as receivers.
    Exact,
}

/// End of a timeslice in which a vCPU runs before others because of its urgency claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimEnd {
    Slice,
    /// The timeslice ends with the urgency claim, or at its usual length if that is earlier.
    Claim,
}

/// Place of a vCPU in the queue after a timeslice in which it ran before others because of its
/// urgency claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequeuePosition {
    /// The tail of the queue. Exception: a preempted vCPU keeps its place under
    /// `rotation = "turn"`, so that it can finish its timeslice.
    Tail,
    /// The place that the vCPU had before that timeslice.
    Kept,
}

/// Limit of the CPU time for which a VM may precede others by its urgency claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimLimit {
    /// Fraction of the VM's share (all CPUs divided by weight) in which the VM may precede others.
    pub(crate) cap: CpuShare,
    /// Largest amount of CPU time that a VM can save up for preceding others.
    pub(crate) depth: Span,
}

/// Urgency claims of all vCPUs, and the CPU time for which each VM may still precede others.
pub(super) struct Claims {
    belief: ClaimRules,
    vcpus: Roster<Claimant>,
    /// Reports and claims of VMs, indexed by their row in `Domains`.
    domains: Vec<VmReports>,
    /// Account of the CPU time for which each VM may still precede others by its urgency claims.
    room: ClaimBudget,
}

/// Urgency claim of one vCPU, and the state on which the claim depends.
#[derive(Clone, Copy, Debug)]
struct Claimant {
    /// Row of the vCPU's VM in `Domains`.
    domain: usize,
    /// True if the vCPU does I/O for other VMs.
    is_driver: bool,
    /// Urgency claim of the vCPU's most urgent runnable task.
    runnable: Claim,
    /// More urgent of two claims: `runnable`, and the claim of the VM for its pending I/O. Stored
    /// also while the claim does not count, because the VM has used up its time to precede others.
    effective: Claim,
    /// Urgency claim by which the vCPU preceded others when it was last chosen. `None` if it was
    /// chosen in the order of the queue.
    ahead: Option<Claim>,
    /// Time at which the vCPU started or was last charged. Unused while the vCPU does not run.
    charged: Time,
}

/// Reports of a VM, and the CPU time for which it may still precede others by its urgency claims.
#[derive(Clone, Debug)]
struct VmReports {
    vcpus: Vec<VcpuId>,
    /// Latest report of the guest about its blocked tasks.
    heard: GuestReport,
    /// Record of the VM's answers to I/O.
    habit: ResponseHistory,
    /// Number of completed I/O items that the VM has not noticed yet.
    pending: u32,
    weight: Option<Weight>,
    /// CPU time for which the VM could still run before others by its urgency claims, in
    /// nanoseconds, at the moment when `level` was stored.
    left: i64,
    /// Value of `ClaimBudget::level` when `left` was computed: CPU time for running before others
    /// that had been granted per unit of weight, in 2^-20 ns.
    level: u128,
    /// True if the VM has used up the CPU time for which it may precede others. Its urgency claims
    /// do not count then.
    is_spent: bool,
}

impl VmReports {
    /// Returns the urgency claim that the VM has because I/O is pending. Computed from its blocked
    /// tasks, or from its earlier answers to I/O.
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
    /// Creates the state of a host without vCPUs.
    pub(super) fn new(belief: ClaimRules) -> Claims {
        Claims {
            belief,
            vcpus: Roster::default(),
            domains: Vec::new(),
            room: ClaimBudget::default(),
        }
    }

    /// Adds a vCPU, which has no urgency claim at first.
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

    /// Removes a vCPU, and its VM if this was the last vCPU of the VM.
    pub(super) fn leave(&mut self, vcpu: VcpuId) {
        let Some(Claimant { domain, .. }) = self.vcpus.remove(vcpu) else { return };
        let household = &mut self.domains[domain];
        household.vcpus.retain(|&other| other != vcpu);
        if household.vcpus.is_empty() {
            self.forget(domain);
        }
    }

    /// Records that a vCPU is chosen for a CPU. `ahead` is the urgency claim by which the vCPU
    /// precedes others in the queue. If `None`, the vCPU is chosen in the order of the queue.
    #[inline]
    pub(super) fn begin(&mut self, vcpu: VcpuId, ahead: Option<Claim>) {
        self.vcpus[vcpu].ahead = ahead;
    }

    /// Returns true if a vCPU preceded others by its urgency claim when it was last chosen.
    #[inline]
    pub(super) fn is_ahead(&self, vcpu: VcpuId) -> bool {
        self.vcpus[vcpu].ahead.is_some()
    }

    /// Records that a vCPU has started, or has been charged, at `now`.
    #[inline]
    pub(super) fn charged(&mut self, now: Time, vcpu: VcpuId) {
        self.vcpus[vcpu].charged = now;
    }

    /// Returns the CPU time that the vCPUs of a VM have received. A running vCPU counts as having
    /// run from its last charge until now.
    fn ran(&self, at: &Moment, domain: usize) -> Span {
        let VmReports { vcpus, habit, .. } = &self.domains[domain];
        let running = vcpus.iter().filter(|&&vcpu| at.cpu_of(vcpu).is_some());
        let since = running.map(|&vcpu| at.now().since(self.vcpus[vcpu].charged));
        habit.ran + since.sum::<Span>()
    }

    /// Returns true if every timeslice of a vCPU with a claim counts against its VM's limit for
    /// running before others, even if the vCPU was first in the queue anyway. Without this rule, a
    /// guest that claims all its work to be urgent would have timeslices that no other vCPU can
    /// precede.
    fn are_turns_paid_for(&self) -> bool {
        self.belief.bound.is_some() && self.keeps_places()
    }

    /// Returns true if a vCPU that preceded others by its urgency claim keeps its place in the
    /// queue, whatever ended its timeslice.
    pub(super) fn keeps_places(&self) -> bool {
        self.belief.place == RequeuePosition::Kept
    }

    /// Returns the rows about urgency claims that are shown for a vCPU. `is_chosen` is true if the
    /// vCPU is chosen for a CPU.
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

    /// Returns the claim of a vCPU, or `NONE` if the claim does not count. If the time to precede
    /// others is limited, a claim of ordinary urgency does not count. Such a claim would use up the
    /// time that its VM needs for urgent work.
    #[inline]
    fn counted(&self, vcpu: VcpuId) -> Claim {
        let Claimant { domain, effective, .. } = self.vcpus[vcpu];
        let is_ordinary = self.belief.bound.is_some() && effective >= Claim::ORDINARY;
        if self.domains[domain].is_spent || is_ordinary { Claim::NONE } else { effective }
    }
}
