//! State of the managed CPUs: the host's latest order for each CPU, and the run intervals that the
//! kernel's events show.

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
    /// Current timeslice: the chosen vCPU, the time limit, and the vCPU's entitlement. `None` if no
    /// vCPU is chosen.
    pub(crate) turn: Option<(VcpuId, Option<Time>, Entitlement)>,
    /// Unused part of the current timeslice.
    pub(crate) left: Span,
    /// Time for which the policy has set a timer on this CPU. `None` if there is no timer.
    pub(crate) alarm: Option<Time>,
    /// vCPU that runs on the CPU according to events, and the start of the part of its run interval
    /// that was not reported yet.
    pub(crate) running: Option<(VcpuId, Time)>,
    /// Time up to which CPU use was reported to the host.
    pub(crate) reported: Time,
    /// CPU time that the CPU owes to ordinary threads because real-time threads have used it.
    pub(crate) fair_server: FairServerDebt,
    /// True if the chosen vCPU runs as an ordinary thread, although it could be real-time, because
    /// the CPU owes CPU time to ordinary threads.
    pub(crate) is_paying: bool,
    /// Timer of the CPU's dispatcher.
    pub(crate) clock: AlarmClock,
    /// True if any CPU time was counted on the CPU since the last dispatcher pass.
    pub(crate) has_run: bool,
    /// True if other vCPUs besides the chosen vCPU are entitled to the CPU.
    pub(crate) is_awaited: bool,
    /// Shortest time limit among the vCPUs in line after the chosen vCPU. `None` if none of these
    /// vCPUs has a time limit.
    pub(crate) ready: Option<Span>,
    /// True if changes on the CPU have not been turned into orders to the kernel yet.
    pub(crate) is_stale: bool,
    /// True if the CPU's dispatcher was woken and has made no pass since.
    pub(crate) is_called: bool,
    /// vCPUs that the last order for this CPU chose or put in line, and vCPUs whose class may have
    /// changed since.
    pub(crate) placed: Vec<VcpuId>,
}

/// The managed CPUs, as the hardware to which the host gives orders.
pub(crate) struct Pcpus {
    pub(crate) all: Vec<Pcpu>,
    /// CPU time that the kernel has counted and that was not reported to the host yet, by slot of
    /// the vCPU.
    pub(crate) unreported: Vec<Span>,
    /// Total length of each vCPU's run intervals that events have shown and that were not reported
    /// yet, by slot. The CPU time of all these intervals together is in
    /// [`unreported`](Pcpus::unreported).
    pub(crate) ahead: Vec<Span>,
    /// vCPUs for which the kernel refused an order. Each has the CPU on which the order is tried
    /// again, and the time of the next attempt.
    pub(crate) refused: Vec<(VcpuId, CpuId, Time)>,
}

impl Pcpus {
    /// Creates the state of managed CPUs, without orders or events.
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

    /// Returns true if the kernel refused an order to run a vCPU and the vCPU has not been tried
    /// again since.
    pub(crate) fn is_refused(&self, vcpu: VcpuId) -> bool {
        self.refused.iter().any(|&(refused, ..)| refused == vcpu)
    }

    /// Returns the part of the current run interval on a CPU, up to `now`, that was not reported
    /// yet. Its length comes from the times of context switches, and its CPU time from the kernel's
    /// count. `None` if no vCPU runs on the CPU, or the whole interval was reported.
    ///
    /// The kernel charges a switch to the thread that comes in, and records the switch when it is
    /// done. So if the counted CPU time exceeds the length, the interval is extended backwards by
    /// the excess. It is not extended into an interval that was reported before. Without this
    /// correction, a vCPU with a hard limit and a hundred short timeslices a second would receive
    /// too much. The excess would be some microseconds in each timeslice, and no record would show
    /// it. CPU time that belongs to later intervals, such as CPU time of other threads of a tree,
    /// is not counted in this interval.
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
        // The vCPUs in line after the chosen vCPU are real-time too.
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
        // If the vCPU runs on another CPU now, its CPU time is counted at its next switch there.
        if self.unreported[vcpu.slot()].is_zero() { None } else { self.cut(cpu, now) }
    }

    /// Accepts an order. The kernel carries it out only after the host's step. If the kernel then
    /// refuses it, later orders for the same vCPU are refused at once, until the vCPU has been
    /// tried again.
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
