//! Independent records of the contract suite: which vCPUs are runnable, running or barred, and the
//! CPU time of each. The records follow from the actions of the hardware and never query the host.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use slackline_policy::{AdmitError, Pick, VcpuHint};
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

/// Violation of the contract. A run reports only the first violation that is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Breach {
    /// A vCPU that is not joined was picked, or still occupied a CPU after a step.
    Stranger(VcpuId, CpuId, Time),
    /// A blocked vCPU was picked, or still occupied a CPU after a step.
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
    /// The CPU time for which the host charged a vCPU differs from the CPU time that the vCPU used.
    Charged(VcpuId, Time),
    /// The hardware reported too many events at this instant, and time does not advance.
    Stuck(Time),
    /// The host reported a violation that the suite's own records did not find. The text is the
    /// message of the host.
    Host(String),
    /// A runnable vCPU did not receive its slice in the period that begins at this time.
    ShortSlice(VcpuId, Time),
    /// A vCPU with a hard limit received more than its slice in the period that begins at this
    /// time.
    OverSlice(VcpuId, Time),
    /// A vCPU received more CPU time than its bound: the CPU time that its reservations allow so
    /// far, plus one slice. The bound is exceeded in the run interval that begins at this time.
    Advanced(VcpuId, Time),
    /// A vCPU that began to wait at this time waited for longer than the other runnable vCPUs need
    /// for one timeslice each.
    Waited(VcpuId, Time),
    /// The policy's pick for a CPU has changed, but the policy did not return the CPU for
    /// rescheduling.
    Unasked(CpuId, Time),
    /// The hardware reported a hint, but the policy received a different hint or none.
    Misheard(VcpuId, Time),
    /// An eligible vCPU never ran, although there was time enough for a timeslice of each vCPU.
    Forgotten(VcpuId),
    /// A fresh copy of the policy decided differently under the same script.
    NotTheSame,
    /// Calling `pick` more often than needed changed later decisions.
    AskingChangedIt,
    /// Parameters that the policy rejected changed later decisions.
    DeclinedChangedIt,
}

/// State of one vCPU, as the suite tracks it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    pub(crate) is_awake: bool,
    pub(crate) is_barred: bool,
    pub(crate) cpu: Option<CpuId>,
    /// CPU time that the hardware measured.
    pub(crate) used: Span,
    /// CPU time for which the host asked the policy to charge the vCPU.
    pub(crate) charged: Span,
}

/// Records of one run of the suite, filled by the hardware and by the wrapper of the policy.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) now: Time,
    pub(crate) cpus: usize,
    pub(crate) rows: BTreeMap<VcpuId, Row>,
    /// Time at which the timer of each CPU expires. `None` if the timer is not set or has expired.
    pub(crate) alarms: Vec<Option<Time>>,
    /// CPU whose timer is expiring. `None` if no timer is expiring.
    pub(crate) rings: Option<CpuId>,
    /// Length limit of the longest timeslice that was picked so far. `None` if a timeslice without
    /// a limit was picked.
    pub(crate) longest: Option<Span>,
    /// Number of times that parameters were passed to the policy for admission.
    pub(crate) requests: usize,
    pub(crate) declined: BTreeMap<usize, AdmitError>,
    /// Hints that the policy received since the last step.
    pub(crate) heard: Vec<(VcpuId, VcpuHint)>,
    pub(crate) breach: Option<Breach>,
}

/// Handle on the [`Books`] of a run, which the hardware and the wrapper of the policy share.
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

    /// Checks a result of `pick` for `cpu` and records the length of its timeslice.
    pub(crate) fn check_pick(&mut self, pick: Pick, cpu: CpuId) {
        let Pick::Run { vcpu, limit, .. } = pick else { return };
        self.check_runs(vcpu, cpu);
        self.longest = self.longest.and_then(|longest| Some(longest.max(limit?)));
    }

    /// Checks that a vCPU may run on a CPU, and records a violation if not.
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

    /// Checks a time to which the policy set the timer of a CPU. In general the time must not be in
    /// the past. The one exception is a timer that should already have expired and is late: the
    /// policy may set it to a past time. While a timer expires, the policy must clear it or set it
    /// to a later time.
    pub(crate) fn check_alarm(&mut self, cpu: CpuId, alarm: Option<Time>) {
        let Some(alarm) = alarm else { return };
        let is_late = self.alarms[cpu.index()].is_some_and(|before| before < self.now);
        let passed =
            if self.rings == Some(cpu) { alarm <= self.now } else { alarm < self.now && !is_late };
        if passed {
            self.note(Breach::AlarmPassed(cpu, self.now));
        }
    }

    /// Returns the CPUs of a result that exist. Records a violation for the first CPU that does not
    /// exist.
    pub(crate) fn check_cpus(&mut self, cpus: CpuSet) -> CpuSet {
        let (known, others): (Vec<_>, Vec<_>) =
            cpus.iter().partition(|cpu| cpu.index() < self.cpus);
        if let Some(&cpu) = others.first() {
            self.note(Breach::NoSuchCpu(cpu));
        }
        known.into_iter().collect()
    }
}
