//! Independent records of the suite: which vCPUs are runnable, running or barred, and the CPU time
//! of each. They are kept from what the hardware did and never query the host.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use slackline_policy::{AdmitError, Pick, VcpuHint};
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

/// Violation of the contract. Only the first one found is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Breach {
    /// A vCPU that has not joined, or has left, was picked or left running.
    Stranger(VcpuId, CpuId, Time),
    /// A blocked vCPU was picked or left running.
    Sleeper(VcpuId, CpuId, Time),
    /// A vCPU that runs on another CPU was picked.
    Elsewhere(VcpuId, CpuId, Time),
    /// A vCPU that the hardware refused was picked or ordered again before it was allowed.
    Refused(VcpuId, CpuId, Time),
    /// A timer was set in the past, or set again for the instant at which it expired.
    AlarmPassed(CpuId, Time),
    /// The policy named a CPU that the host does not have.
    NoSuchCpu(CpuId),
    /// Two calls of `pick` at the same instant returned different answers.
    ChangedItsMind(CpuId, Time),
    /// CPU time charged to the policy differs from the CPU time used.
    Charged(VcpuId, Time),
    /// Events go on at this instant and time does not advance.
    Stuck(Time),
    /// The host reported a violation that these books did not find.
    Host(String),
    /// A runnable vCPU did not receive its slice in the period that begins at this time.
    ShortSlice(VcpuId, Time),
    /// A vCPU with a hard limit received more than its slice in the period that begins at this
    /// time.
    OverSlice(VcpuId, Time),
    /// A vCPU received more than its reservations amount to and one slice, up to the end of the run
    /// interval that begins at this time.
    Advanced(VcpuId, Time),
    /// A vCPU waited from this time for longer than the timeslices of all others last.
    Waited(VcpuId, Time),
    /// A CPU that no answer named for rescheduling would now get another answer than it has.
    Unasked(CpuId, Time),
    /// The policy received another hint than the one that was reported, or none.
    Misheard(VcpuId, Time),
    /// An eligible vCPU never ran, although the time was enough for a timeslice of each vCPU.
    Forgotten(VcpuId),
    /// A fresh copy of the policy decided differently under the same script.
    NotTheSame,
    /// Calling `pick` more often than needed changed later decisions.
    AskingChangedIt,
    /// A rejected share changed later decisions.
    DeclinedChangedIt,
}

/// State of one vCPU as the suite saw it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    pub(crate) is_awake: bool,
    pub(crate) is_barred: bool,
    pub(crate) cpu: Option<CpuId>,
    /// CPU time as the hardware measured it.
    pub(crate) used: Span,
    /// CPU time that the policy was charged with.
    pub(crate) charged: Span,
}

/// Records of one run, filled by the hardware and by the wrapper of the policy.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) now: Time,
    pub(crate) cpus: usize,
    pub(crate) rows: BTreeMap<VcpuId, Row>,
    /// By CPU: the timer that is set and has not expired.
    pub(crate) alarms: Vec<Option<Time>>,
    /// The CPU whose timer is expiring.
    pub(crate) rings: Option<CpuId>,
    /// Longest timeslice handed out. `None` if one had no end.
    pub(crate) longest: Option<Span>,
    /// Number of shares that were put to the policy.
    pub(crate) requests: usize,
    pub(crate) declined: BTreeMap<usize, AdmitError>,
    /// Hints that the policy received since the last step.
    pub(crate) heard: Vec<(VcpuId, VcpuHint)>,
    pub(crate) breach: Option<Breach>,
}

/// Handle on the books that the hardware and the wrapper of the policy share.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<Books>>);

impl Shared {
    pub(crate) fn new(cpus: usize) -> Shared {
        let (alarms, longest) = (vec![None; cpus], Some(Span::ZERO));
        Shared(Arc::new(Mutex::new(Books { cpus, alarms, longest, ..Books::default() })))
    }

    pub(crate) fn open(&self) -> MutexGuard<'_, Books> {
        self.0.lock().expect("the books are used by one thread only")
    }
}

impl Books {
    pub(crate) fn note(&mut self, breach: Breach) {
        self.breach.get_or_insert(breach);
    }

    pub(crate) fn row(&mut self, vcpu: VcpuId) -> &mut Row {
        self.rows.get_mut(&vcpu).expect("the script names only joined vCPUs")
    }

    /// Checks an answer of `pick` for `cpu` and notes its timeslice.
    pub(crate) fn check_pick(&mut self, pick: Pick, cpu: CpuId) {
        let Pick::Run { vcpu, limit, .. } = pick else { return };
        self.check_runs(vcpu, cpu);
        self.longest = self.longest.and_then(|longest| Some(longest.max(limit?)));
    }

    /// Checks that a vCPU may be on a CPU, and notes the breach otherwise.
    pub(crate) fn check_runs(&mut self, vcpu: VcpuId, cpu: CpuId) {
        let breach = match self.rows.get(&vcpu) {
            None => Breach::Stranger,
            Some(row) if !row.is_awake => Breach::Sleeper,
            Some(row) if row.cpu.is_some_and(|other| other != cpu) => Breach::Elsewhere,
            Some(row) if row.is_barred => Breach::Refused,
            Some(_) => return,
        };
        self.note(breach(vcpu, cpu, self.now));
    }

    /// Checks a timer that the policy asked for. It may lie in the past only while it, or an
    /// earlier one, is late to expire. The timer that expires now must be gone or later.
    pub(crate) fn check_alarm(&mut self, cpu: CpuId, alarm: Option<Time>) {
        let Some(alarm) = alarm else { return };
        let is_late = self.alarms[cpu.index()].is_some_and(|before| before < self.now);
        let passed =
            if self.rings == Some(cpu) { alarm <= self.now } else { alarm < self.now && !is_late };
        if passed {
            self.note(Breach::AlarmPassed(cpu, self.now));
        }
    }

    /// Returns the CPUs of an answer that exist, and notes a breach for the first other one.
    pub(crate) fn check_cpus(&mut self, cpus: CpuSet) -> CpuSet {
        let (known, others): (Vec<_>, Vec<_>) =
            cpus.iter().partition(|cpu| cpu.index() < self.cpus);
        if let Some(&cpu) = others.first() {
            self.note(Breach::NoSuchCpu(cpu));
        }
        known.into_iter().collect()
    }
}
