//! The suite's own books: who is awake, who is where, who was refused, who ran how long. They are
//! kept from what the hardware did, and never ask the host.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use slackline_policy::{AdmitError, Pick, Told};
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

/// A promise that was broken. The first one found counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Breach {
    /// Somebody was picked or left running who has not joined, or has left.
    Stranger(VcpuId, CpuId, Time),
    /// Somebody was picked or left running who has no work.
    Sleeper(VcpuId, CpuId, Time),
    /// Somebody was picked who is on another CPU.
    Elsewhere(VcpuId, CpuId, Time),
    /// Somebody was picked or ordered again who had been refused and not been allowed since.
    Refused(VcpuId, CpuId, Time),
    /// An alarm in the past, or again for the instant at which it rang.
    AlarmPassed(CpuId, Time),
    /// A CPU that the host does not have.
    NoSuchCpu(CpuId),
    /// Two answers to the same question.
    ChangedItsMind(CpuId, Time),
    /// Time that was used and not charged, or charged and not used.
    Charged(VcpuId, Time),
    /// Time stands still, and things go on happening.
    Stuck(Time),
    /// The host says that the contract is broken, and these books do not.
    Host(String),
    /// An awake vCPU did not get its slice in the period that begins then.
    ShortSlice(VcpuId, Time),
    /// A vCPU that must not have more than its slice had more in the period that begins then.
    OverSlice(VcpuId, Time),
    /// A vCPU had more than its promises came to and one slice, in what ends with the stretch that
    /// begins then.
    Advanced(VcpuId, Time),
    /// A vCPU waited longer than everybody's turns last, from then on.
    Waited(VcpuId, Time),
    /// A CPU that nobody wanted asked would be answered otherwise than it is.
    Unasked(CpuId, Time),
    /// The policy heard something else than what was told, or nothing.
    Misheard(VcpuId, Time),
    /// A vCPU that could run was given nothing at all while everybody should have had a turn.
    Forgotten(VcpuId),
    /// A fresh copy did something else under the same script.
    NotTheSame,
    /// Asking more often than needed changed what was done.
    AskingChangedIt,
    /// A share that was declined changed what was done.
    DeclinedChangedIt,
}

/// A vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    pub(crate) is_awake: bool,
    pub(crate) is_barred: bool,
    pub(crate) cpu: Option<CpuId>,
    /// As the hardware measured it.
    pub(crate) used: Span,
    /// As the policy was told.
    pub(crate) charged: Span,
}

/// The books.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) now: Time,
    pub(crate) cpus: usize,
    pub(crate) rows: BTreeMap<VcpuId, Row>,
    /// By CPU: the alarm that has been set and not rung.
    pub(crate) alarms: Vec<Option<Time>>,
    /// The CPU whose alarm is ringing.
    pub(crate) rings: Option<CpuId>,
    /// The longest turn that was handed out; none if one had no end.
    pub(crate) longest: Option<Span>,
    /// How often a share has been put to the policy, and what came of those that it declined.
    pub(crate) requests: usize,
    pub(crate) declined: BTreeMap<usize, AdmitError>,
    /// What the policy has heard since the last step.
    pub(crate) heard: Vec<(VcpuId, Told)>,
    pub(crate) breach: Option<Breach>,
}

/// The books, in reach of the hardware and of the watch on the policy.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<Books>>);

impl Shared {
    pub(crate) fn new(cpus: usize) -> Shared {
        let (alarms, longest) = (vec![None; cpus], Some(Span::ZERO));
        Shared(Arc::new(Mutex::new(Books { cpus, alarms, longest, ..Books::default() })))
    }

    pub(crate) fn open(&self) -> MutexGuard<'_, Books> {
        self.0.lock().expect("one thread keeps them")
    }
}

impl Books {
    pub(crate) fn note(&mut self, breach: Breach) {
        self.breach.get_or_insert(breach);
    }

    pub(crate) fn row(&mut self, vcpu: VcpuId) -> &mut Row {
        self.rows.get_mut(&vcpu).expect("the script names only members")
    }

    /// Whether an answer may be given.
    pub(crate) fn check_pick(&mut self, pick: Pick, cpu: CpuId) {
        let Pick::Run { vcpu, limit, .. } = pick else { return };
        self.check_runs(vcpu, cpu);
        self.longest = self.longest.and_then(|longest| Some(longest.max(limit?)));
    }

    /// Whether a vCPU may be on a CPU.
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

    /// An alarm lies in the past only while it, or an earlier one, is late to ring; and the one
    /// that rings now is gone or later.
    pub(crate) fn check_alarm(&mut self, cpu: CpuId, alarm: Option<Time>) {
        let Some(alarm) = alarm else { return };
        let is_late = self.alarms[cpu.index()].is_some_and(|before| before < self.now);
        let passed =
            if self.rings == Some(cpu) { alarm <= self.now } else { alarm < self.now && !is_late };
        if passed {
            self.note(Breach::AlarmPassed(cpu, self.now));
        }
    }

    /// The CPUs of an answer that there are.
    pub(crate) fn check_cpus(&mut self, cpus: CpuSet) -> CpuSet {
        let (known, others): (Vec<_>, Vec<_>) =
            cpus.iter().partition(|cpu| cpu.index() < self.cpus);
        if let Some(&cpu) = others.first() {
            self.note(Breach::NoSuchCpu(cpu));
        }
        known.into_iter().collect()
    }
}
