//! The managed CPUs, as ordered by the host and as the kernel's events show them.

use slackline_host::policy::Entitlement;
use slackline_host::{CpuUse, Hardware, Order, Outcome};
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::alarm_clock::AlarmClock;
use crate::fair_server::FairServerDebt;

/// State of one managed CPU.
#[derive(Clone, Debug)]
pub(crate) struct Pcpu {
    /// Number of the CPU in the kernel.
    pub(crate) real: CpuId,
    pub(crate) turn: Option<(VcpuId, Option<Time>, Entitlement)>,
    /// Budget left in the timeslice at the last dispatcher pass, less what was used since.
    pub(crate) left: Span,
    pub(crate) alarm: Option<Time>,
    /// vCPU that is seen running there, and the time since when that has not been reported.
    pub(crate) running: Option<(VcpuId, Time)>,
    /// Time up to which the use of the CPU has been reported.
    pub(crate) reported: Time,
    /// Debt of the CPU to ordinary threads.
    pub(crate) fair_server: FairServerDebt,
    /// True if the chosen vCPU runs as an ordinary thread to pay that debt, although it is
    /// entitled.
    pub(crate) is_paying: bool,
    /// Timer of its dispatcher.
    pub(crate) clock: AlarmClock,
    /// True if any CPU time was counted there since the last dispatcher pass.
    pub(crate) has_run: bool,
    /// True if other vCPUs are entitled besides the chosen one.
    pub(crate) is_awaited: bool,
    /// Shortest limit among the vCPUs that stand by below the chosen one. `None` if there is none.
    pub(crate) ready: Option<Span>,
    /// True if there are changes that the kernel has yet to be told.
    pub(crate) is_stale: bool,
    /// True if its dispatcher has been woken and has had no pass since.
    pub(crate) is_called: bool,
    /// vCPUs that were chosen or in line at the last order, and those whose class may have changed
    /// since.
    pub(crate) placed: Vec<VcpuId>,
}

/// Hardware that the host gives its orders to.
pub(crate) struct Pcpus {
    pub(crate) all: Vec<Pcpu>,
    /// CPU time that the kernel has counted and that has not been reported, by slot.
    pub(crate) unreported: Vec<Span>,
    /// Total length of the run intervals that have been seen and not yet reported, by slot. The
    /// kernel's count covers all of them together.
    pub(crate) ahead: Vec<Span>,
    /// Refused vCPUs, each with the CPU on which it is tried again, and when.
    pub(crate) refused: Vec<(VcpuId, CpuId, Time)>,
}

impl Pcpus {
    /// Creates these CPUs without orders or events.
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

    /// Returns true if the kernel refused a vCPU and it has not been tried again.
    pub(crate) fn is_refused(&self, vcpu: VcpuId) -> bool {
        self.refused.iter().any(|&(refused, ..)| refused == vcpu)
    }

    /// Reports the run interval on a CPU up to `now`, as far as it is not reported yet. Its time is
    /// known from its switches, its CPU time from the kernel's count. `None` if nothing runs there
    /// or all is reported.
    ///
    /// The kernel charges a switch to the thread that comes in, and records the switch when it is
    /// done. So the interval begins earlier than recorded, by the time counted beyond its length,
    /// as far as no other thread had the CPU then. If that were left out, a vCPU with a hard limit
    /// and a hundred short timeslices a second would receive some microseconds too much in each,
    /// and no one would ever know. Time counted for intervals that come later, such as those of
    /// other threads of a tree, is left to them.
    pub(crate) fn cut(&mut self, cpu: CpuId, now: Time) -> Option<CpuUse> {
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
        // Besides the chosen vCPU, those that stand by below it are real-time.
        let is_raised =
            of_turn.map_or(pcpu.is_awaited, |(.., entitlement)| entitlement != Entitlement::Spare);
        if is_raised && !pcpu.is_paying {
            pcpu.fair_server.had(now - from);
        }
        Some(CpuUse { vcpu, cpu, from, to: now, ran })
    }
}

impl Hardware for Pcpus {
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<CpuUse> {
        let (vcpu, _) = self.all[cpu.index()].running?;
        // The use of a vCPU that runs on another CPU now is counted when it is switched out there.
        if self.unreported[vcpu.slot()].is_zero() { None } else { self.cut(cpu, now) }
    }

    /// Accepts the order. The kernel's answer is known only after the step. If the kernel refuses,
    /// the vCPU is refused here when chosen again, until it has been tried once more.
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
