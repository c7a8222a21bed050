//! State of the managed CPUs: the latest order of the host layer for each CPU, and the run
//! intervals that the kernel's events show.

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
    /// Unused part of the current timeslice. Zero if the timeslice has no time limit or runs in
    /// slack.
    pub(crate) left: Span,
    /// Time for which the policy has set a timer on this CPU. `None` if there is no timer.
    pub(crate) alarm: Option<Time>,
    /// vCPU that runs on the CPU according to events, and the start of the part of its run interval
    /// that was not reported yet. `None` if no vCPU runs on the CPU.
    pub(crate) running: Option<(VcpuId, Time)>,
    /// Time of the run up to which CPU use was reported to the host layer.
    pub(crate) reported: Time,
    /// CPU time that the CPU owes to ordinary threads because real-time threads have used it.
    pub(crate) fair_server: FairServerDebt,
    /// True if the chosen vCPU runs as an ordinary thread to pay the CPU's debt to ordinary
    /// threads.
    pub(crate) is_paying: bool,
    /// Timer of the CPU's dispatcher.
    pub(crate) clock: AlarmClock,
    /// True if a vCPU has used CPU time on the CPU since the last dispatcher pass.
    pub(crate) has_run: bool,
    /// True if at least one more vCPU is entitled to the CPU besides the chosen vCPU.
    pub(crate) is_awaited: bool,
    /// Shortest time limit among the vCPUs in line after the chosen vCPU. `None` if none of these
    /// vCPUs has a time limit.
    pub(crate) ready: Option<Span>,
    /// True if something has changed on the CPU that may need new orders to the kernel.
    pub(crate) is_stale: bool,
    /// True if the CPU's dispatcher was woken and has not made a pass after that.
    pub(crate) is_called: bool,
    /// vCPUs that the last order for this CPU chose or put in line, and vCPUs whose class may have
    /// changed since.
    pub(crate) placed: Vec<VcpuId>,
}

/// The managed CPUs, as the hardware to which the host gives orders.
pub(crate) struct Pcpus {
    pub(crate) all: Vec<Pcpu>,
    /// CPU time that the kernel has counted for each vCPU and that was not reported to the host
    /// layer yet, by slot.
    pub(crate) unreported: Vec<Span>,
    /// Total length of each vCPU's run intervals that events have shown and that were not reported
    /// yet, by slot. The CPU time of these intervals is part of [`unreported`](Pcpus::unreported).
    pub(crate) ahead: Vec<Span>,
    /// vCPUs for which the kernel refused an order, each with a CPU and a time. The order is tried
    /// again on this CPU at this time.
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
    /// yet. The length of this part comes from the times of context switches, and its CPU time from
    /// the kernel's count. `None` if no vCPU runs on the CPU, or the whole interval was reported.
    ///
    /// The kernel charges the time of a context switch to the next thread, but records the switch
    /// only when it is done. So if the counted CPU time exceeds the length, the interval is
    /// extended backwards by the excess, but not into an interval that was reported before. Without
    /// this correction, a vCPU with a hard limit and many short timeslices would receive some
    /// microseconds too much in each of them. CPU time that belongs to later intervals, such as CPU
    /// time of other threads of a tree, is not included in this interval.
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

    /// Accepts an order. The order reaches the kernel only after the host layer's step. If the
    /// kernel refuses it, this function refuses later orders for the same vCPU immediately, until
    /// the vCPU has been tried again.
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
