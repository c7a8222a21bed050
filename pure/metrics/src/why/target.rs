//! Thread of a vCPU whose waits are explained, with all that was recorded of it.

use slackline_trace::HostThreadId;
use slackline_units::{CpuId, Span, Time, VcpuId};

use super::answer::Check;
use super::intervals::Intervals;

/// Thread of a vCPU whose waits are explained.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) vcpu: VcpuId,
    pub(super) state: WaitState,
    pub(super) last_cpu: CpuId,
    pub(super) ran: Intervals,
    /// End of the thread's last run interval. `None` if it has not run yet.
    pub(super) ran_until: Option<Time>,
    pub(super) waits: Vec<Wait>,
    /// Intervals in which the dispatcher kept the vCPU from running, with the thread that had the
    /// CPU.
    pub(super) stops: Vec<Wait>,
    /// Waits that the kernel counts as ended, each as the time at which the thread got a CPU and
    /// the length of the wait.
    pub(super) closed: Vec<(Time, Span)>,
    pub(super) paused: Intervals,
    pub(super) exhausted: Intervals,
    pub(super) halted: Intervals,
    pub(super) stolen: Span,
    pub(super) counted: Option<KernelAccount>,
}

/// Kernel accounting of the vCPU: the interval, the CPU time and CPU ready (time on run queues).
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelAccount {
    pub(super) from: Time,
    pub(super) to: Time,
    pub(super) used: Span,
    pub(super) ready: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitState {
    Blocked,
    Ready(Time),
}

/// Part of a wait of a vCPU, with the thread that had the CPU in that part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) cpu: CpuId,
    pub(super) from: Time,
    pub(super) to: Time,
    pub(super) by: Option<HostThreadId>,
    /// Thread to which the kernel switched in this part. `None` if a thread had the CPU, if the
    /// part is too long for a context switch, or if the kernel switched to the waiting thread.
    pub(super) switch_to: Option<HostThreadId>,
    /// Start of the whole wait to which this part belongs.
    pub(super) since: Time,
}

impl Target {
    pub(super) fn new(vcpu: VcpuId) -> Target {
        Target {
            vcpu,
            state: WaitState::Blocked,
            last_cpu: CpuId::new(0),
            ran: Intervals::default(),
            ran_until: None,
            waits: Vec::new(),
            stops: Vec::new(),
            closed: Vec::new(),
            paused: Intervals::default(),
            exhausted: Intervals::default(),
            halted: Intervals::default(),
            stolen: Span::ZERO,
            counted: None,
        }
    }

    /// Compares the kernel's counts of CPU time and CPU ready with the recorded values, over the
    /// interval of the kernel's accounting. `None` if the recording has no such counts.
    pub(super) fn check(&self) -> Option<Check> {
        let KernelAccount { from, to, used: kernel_used, ready: kernel_ready } = self.counted?;
        let mut used = Span::ZERO;
        self.ran.cut((from, to), |from, to, is_in| {
            if is_in {
                used += to - from;
            }
        });
        let closed = self.closed.iter().filter(|(end, _)| *end > from && *end <= to);
        let ready = closed.map(|(_, wait)| *wait).sum();
        Some(Check { kernel_used, kernel_ready, used: used.left_after(self.stolen), ready })
    }

    pub(super) fn settle(&mut self) {
        self.ran.settle();
        self.paused.settle();
        self.exhausted.settle();
        self.halted.settle();
    }
}
