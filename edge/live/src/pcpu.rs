//! The CPUs that we schedule, as the host's orders want them and as the kernel's events show them.

use slackline_host::policy::Entitlement;
use slackline_host::{Hardware, Order, Outcome, Used};
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::alarm_clock::AlarmClock;
use crate::fair_server::FairServerDebt;

/// One CPU that we schedule.
#[derive(Clone, Debug)]
pub(crate) struct Pcpu {
    /// The CPU of this machine.
    pub(crate) real: CpuId,
    pub(crate) turn: Option<(VcpuId, Option<Time>, Entitlement)>,
    /// What the turn had left to use when its dispatcher last looked, less what it has used since.
    pub(crate) left: Span,
    pub(crate) alarm: Option<Time>,
    /// Who is seen running there, and since when that has not been reported.
    pub(crate) running: Option<(VcpuId, Time)>,
    /// Up to when its time has been reported.
    pub(crate) reported: Time,
    /// What ordinary threads have to have of it.
    pub(crate) fair_server: FairServerDebt,
    /// Whether the chosen one runs as an ordinary thread to pay that, although it is due.
    pub(crate) is_paying: bool,
    /// What its dispatcher is woken by.
    pub(crate) clock: AlarmClock,
    /// Whether anybody has been counted CPU time there since its dispatcher last looked.
    pub(crate) has_run: bool,
    /// Whether others are due as well as the chosen one.
    pub(crate) is_awaited: bool,
    /// The shortest limit of those that stand ready below the chosen one.
    pub(crate) ready: Option<Span>,
    /// Whether the kernel has yet to be told.
    pub(crate) is_stale: bool,
    /// Whether its dispatcher has been called and has not looked since.
    pub(crate) is_called: bool,
    /// Who was chosen or in line when it was last told.
    pub(crate) placed: Vec<VcpuId>,
}

/// What the host does to it.
pub(crate) struct Pcpus {
    pub(crate) all: Vec<Pcpu>,
    /// By slot: CPU time that the kernel has counted and that has not been reported.
    pub(crate) unreported: Vec<Span>,
    /// By slot: how long the stretches last that have been seen and not been reported yet. What the
    /// kernel has counted is known of all of them together.
    pub(crate) ahead: Vec<Span>,
    /// Of whom the kernel refused something: when that is tried again, and on which CPU.
    pub(crate) refused: Vec<(VcpuId, CpuId, Time)>,
}

impl Pcpus {
    /// These CPUs, with nothing ordered and nothing seen.
    pub(crate) fn new(real: &[CpuId]) -> Pcpus {
        let pcpu = |&real| Pcpu {
            real,
            turn: None,
            left: Span::ZERO,
            alarm: None,
            running: None,
            reported: Time::START,
            fair_server: FairServerDebt::new(),
            is_paying: false,
            clock: AlarmClock::new(),
            has_run: false,
            is_awaited: false,
            ready: None,
            is_stale: false,
            is_called: false,
            placed: Vec::new(),
        };
        let all = real.iter().map(pcpu).collect();
        Pcpus { all, unreported: Vec::new(), ahead: Vec::new(), refused: Vec::new() }
    }

    /// Whether the kernel refused something of a vCPU, and that has not been tried again yet.
    pub(crate) fn is_refused(&self, vcpu: VcpuId) -> bool {
        self.refused.iter().any(|&(refused, ..)| refused == vcpu)
    }

    /// The stretch on a CPU, up to now: when it was is known from its switches, how much of it was
    /// CPU time from the kernel's count.
    ///
    /// The kernel counts a switch to a thread as the thread's own, and notes it when it is done. So
    /// a stretch begins earlier than noted by what has been counted beyond its length, as far as
    /// the CPU was nobody else's then. Were that left out, whoever is held to a hundred short turns
    /// a second would have some microseconds more in each, and nobody would ever know. What was
    /// counted of stretches that come after it, as those of other threads of a tree, is theirs.
    pub(crate) fn cut(&mut self, cpu: CpuId, now: Time) -> Option<Used> {
        let pcpu = &mut self.all[cpu.index()];
        let (vcpu, since) = pcpu.running?;
        let from = since.max(pcpu.reported);
        if from >= now {
            return None;
        }
        let ahead = &mut self.ahead[vcpu.slot()];
        *ahead = ahead.left_after(now - from);
        let unreported = &mut self.unreported[vcpu.slot()];
        let switch = unreported.left_after(now - from).left_after(*ahead);
        let switch = switch.min(from.since(pcpu.reported));
        let from = Time::from_ns(from.ns() - switch.ns());
        let ran = (*unreported).min(now - from);
        *unreported -= ran;
        pcpu.running = Some((vcpu, now));
        pcpu.reported = now;
        pcpu.has_run |= !ran.is_zero();
        let of_turn = pcpu.turn.filter(|&(chosen, ..)| chosen == vcpu);
        if of_turn.is_some() {
            pcpu.left = pcpu.left.left_after(ran);
        }
        // Besides the chosen one, those are real-time that stand ready below it.
        let is_raised =
            of_turn.map_or(pcpu.is_awaited, |(.., entitlement)| entitlement != Entitlement::Spare);
        if is_raised && !pcpu.is_paying {
            pcpu.fair_server.had(now - from);
        }
        Some(Used { vcpu, cpu, from, to: now, ran })
    }
}

impl Hardware for Pcpus {
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<Used> {
        let (vcpu, _) = self.all[cpu.index()].running?;
        // What runs on another CPU at this moment is counted when it is switched out there.
        if self.unreported[vcpu.slot()].is_zero() { None } else { self.cut(cpu, now) }
    }

    /// What the kernel says to it is known only when the step is over: then the vCPU is refused if
    /// it is chosen again, until it has been tried once more.
    fn carry_out(&mut self, order: Order) -> Outcome {
        let (cpu, turn) = match order {
            Order::Run { cpu, vcpu, until, entitlement } => (cpu, Some((vcpu, until, entitlement))),
            Order::Idle { cpu } => (cpu, None),
        };
        let outcome = match turn {
            Some((vcpu, ..)) if self.is_refused(vcpu) => Outcome::Refused,
            _ => Outcome::Done,
        };
        let turn = turn.filter(|_| outcome == Outcome::Done);
        let pcpu = &mut self.all[cpu.index()];
        pcpu.turn = turn;
        pcpu.left = Span::ZERO;
        pcpu.is_stale = true;
        outcome
    }

    fn set_alarm(&mut self, cpu: CpuId, alarm: Option<Time>) {
        let pcpu = &mut self.all[cpu.index()];
        pcpu.alarm = alarm;
        pcpu.is_stale = true;
    }
}
