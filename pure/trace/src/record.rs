//! The records of a trace. Times are on the run's own clock, which starts at zero.

use slackline_units::{ClientId, CpuId, Reservation, Span, TaskId, Time, VcpuId};

use crate::host_thread::HostThreadId;

/// Event of a run, as recorded for users and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A vCPU joined, blocked.
    Joined {
        /// Time of the event.
        at: Time,
        /// vCPU that joined the host.
        vcpu: VcpuId,
    },
    /// Reservation of a vCPU from now on. Its periods follow from here, or lie on a grid.
    Promised {
        /// Time from which the reservation holds.
        at: Time,
        /// vCPU with the reservation.
        vcpu: VcpuId,
        /// Slice and period. `None` reserves nothing.
        reservation: Option<Reservation>,
        /// True if the slice is a hard limit.
        exact: bool,
        /// Phase of the grid on which the periods begin. `None` without a grid.
        phase: Option<Span>,
    },
    /// The clock to which phases refer is ahead of the run's own by this much from now on. Until
    /// the first such record the two are equal.
    ClockSet {
        /// Time from which the lead holds.
        at: Time,
        /// Lead over the run's clock.
        ahead: Span,
    },
    /// A vCPU left the host.
    Left {
        /// Time of the event.
        at: Time,
        /// vCPU that left the host.
        vcpu: VcpuId,
    },
    /// A vCPU became runnable.
    Woke {
        /// Time of the wake.
        at: Time,
        /// vCPU that became runnable.
        vcpu: VcpuId,
    },
    /// A vCPU blocked: it has no more work.
    Blocked {
        /// Time of the block.
        at: Time,
        /// vCPU that became blocked.
        vcpu: VcpuId,
    },
    /// A runnable vCPU was paused; it wakes when it is resumed.
    Paused {
        /// Time of the pause.
        at: Time,
        /// vCPU that was paused.
        vcpu: VcpuId,
    },
    /// A run interval of a vCPU.
    Ran {
        /// vCPU that had the CPU.
        vcpu: VcpuId,
        /// CPU that it ran on.
        cpu: CpuId,
        /// Start of the interval.
        from: Time,
        /// End of the interval.
        to: Time,
        /// CPU time used in the interval, as measured.
        used: Span,
        /// Timeslice granted at the start. `None` is without limit.
        granted: Option<Span>,
        /// CPU time used beyond the limit.
        late: Span,
        /// Reason why the vCPU stopped running.
        end: RanEnd,
        /// True if the time was reserved, false if it was slack.
        due: bool,
    },
    /// A vCPU ran while its last wake-up let it precede others, as in Credit.
    Boosted {
        /// vCPU with the boost.
        vcpu: VcpuId,
        /// Time at which it got the CPU.
        from: Time,
        /// Time at which the boost ended or it lost the CPU.
        to: Time,
        /// True if the boost ended while the vCPU ran on.
        used_up: bool,
    },
    /// A vCPU worked on a CPU that others slowed: the other threads of its core, or whoever shares
    /// the way to memory. Its CPU time is in [`Record::Ran`], this part of it too.
    Slowed {
        /// vCPU that was slowed.
        vcpu: VcpuId,
        /// Start of the interval.
        from: Time,
        /// End of the interval, within which the speed was constant.
        to: Time,
        /// CPU time that the same work takes at full speed.
        work: Span,
    },
    /// A live host kept a runnable vCPU from running: it has a hard limit and its budget was
    /// exhausted.
    Stopped {
        /// vCPU that was stopped.
        vcpu: VcpuId,
        /// Time of the stop.
        from: Time,
        /// Time when it was resumed or left, or when the run ended.
        to: Time,
    },
    /// CPU time that a vCPU received while its threads were left to another program. It is charged
    /// to no CPU of the run and to no slice.
    Elsewhere {
        /// vCPU that used the time.
        vcpu: VcpuId,
        /// Start of the interval.
        from: Time,
        /// End of the interval.
        to: Time,
        /// CPU time that the kernel counted in the interval, on all CPUs together.
        used: Span,
    },
    /// A timer of a CPU expired late.
    RangLate {
        /// Time when it expired.
        at: Time,
        /// CPU of the timer.
        cpu: CpuId,
        /// Delay after the time set.
        late: Span,
    },
    /// The hardware could not carry out an order.
    Refused {
        /// Time of the order.
        at: Time,
        /// vCPU that should have run.
        vcpu: VcpuId,
        /// CPU it should have run on.
        cpu: CpuId,
    },
    /// A change in the scenario was not admitted; the old reservation stands.
    Declined {
        /// Time of the refusal.
        at: Time,
        /// vCPU whose change was declined.
        vcpu: VcpuId,
    },
    /// A change in the scenario has taken effect on the host.
    Changed {
        /// Time when it was due.
        due: Time,
        /// Time when it took effect.
        at: Time,
        /// vCPU that was changed.
        vcpu: VcpuId,
    },
    /// A client on the network began to send requests or data.
    ClientStarted {
        /// Time of the start.
        at: Time,
        /// Client that started to send.
        client: ClientId,
        /// First vCPU of the domain that it talks to.
        vcpu: VcpuId,
    },
    /// A workload finished a piece of work that had a release, and perhaps a deadline.
    Job {
        /// vCPU of the job; in a domain with tasks, its first vCPU.
        vcpu: VcpuId,
        /// Task of the job. `None` if the domain does not distinguish tasks.
        task: Option<TaskId>,
        /// Client whose request the job answered. `None` for work of the domain's own.
        client: Option<ClientId>,
        /// Time at which the work was released.
        released: Time,
        /// Deadline of the work, or `NEVER`.
        deadline: Time,
        /// Time at which the work was complete.
        done: Time,
    },
    /// A piece of work whose deadline has passed was not finished when its vCPU left or the run
    /// ended.
    Unfinished {
        /// Time when the vCPU left or the run ended.
        at: Time,
        /// vCPU of the job; in a domain with tasks, its first vCPU.
        vcpu: VcpuId,
        /// Task of the job. `None` if the domain does not distinguish tasks.
        task: Option<TaskId>,
        /// Time at which the work was released.
        released: Time,
        /// Deadline, which has passed.
        deadline: Time,
    },
    /// A vCPU got the spin lock for which it had used CPU time, or gave up.
    Spun {
        /// Time when spinning ended.
        at: Time,
        /// vCPU that spun for the lock.
        vcpu: VcpuId,
        /// CPU time spent spinning, at full speed.
        used: Span,
    },
    /// A driver domain served the devices of another, since the last such record of the two.
    Served {
        /// Time of the record: end of the service.
        at: Time,
        /// vCPU of the driver domain.
        by: VcpuId,
        /// First vCPU of the domain that was served.
        of: VcpuId,
        /// Work that was done.
        service: Service,
    },
    /// Data of a workload reached its end: the domain, or the other side that the domain sent it.
    Moved {
        /// Time at which the data arrived.
        at: Time,
        /// First vCPU of the domain.
        vcpu: VcpuId,
        /// Number of bytes without headers.
        bytes: u64,
    },
    /// A simulated CPU spent time on something that is not a vCPU's program. What a vCPU paid is
    /// part of its CPU time in [`Record::Ran`].
    Spent {
        /// CPU that spent the time.
        cpu: CpuId,
        /// The vCPU that paid. `None` if no vCPU ran.
        vcpu: Option<VcpuId>,
        /// Kind of the overhead.
        kind: OverheadKind,
        /// Start of the time.
        from: Time,
        /// End of the time.
        to: Time,
    },
    /// CPU time that scheduling took on a live CPU over the whole run.
    Overhead {
        /// CPU that was scheduled.
        cpu: CpuId,
        /// CPU time used by scheduling.
        used: Span,
    },
    /// Kernel accounting of a CPU that other programs may use as well. The first record of a CPU
    /// has no length and marks when its accounting starts.
    Accounted {
        /// CPU that is accounted.
        cpu: CpuId,
        /// Start of the interval.
        from: Time,
        /// End of the interval.
        to: Time,
        /// Time in which the CPU was idle.
        idle: Span,
        /// Steal: time that a hypervisor below gave to others.
        stolen: Span,
        /// CPU time that scheduling took there.
        dispatching: Span,
    },
    /// A host thread was on a CPU.
    OnCpu {
        /// Thread that had the CPU.
        thread: HostThreadId,
        /// CPU that it had.
        cpu: CpuId,
        /// Start of the interval.
        from: Time,
        /// End of the interval.
        to: Time,
        /// State of the thread when it left the CPU.
        end: OffCpu,
    },
    /// A host thread became runnable.
    Awoken {
        /// Time of the event.
        at: Time,
        /// Thread that became runnable.
        thread: HostThreadId,
        /// CPU of the event: the last one of the thread for [`WakeMark::Waking`], the one where it
        /// waits for [`WakeMark::Wakeup`].
        cpu: CpuId,
        /// Event of the kernel that marks the wake.
        mark: WakeMark,
    },
    /// A signal kept a host thread from running.
    Halted {
        /// Thread that was stopped.
        thread: HostThreadId,
        /// Time when it left its CPU.
        from: Time,
        /// Time when it was continued, or the end of the recording.
        to: Time,
    },
    /// The recorder lost events of a CPU: what ran there in the interval is not known.
    Lost {
        /// CPU whose events were lost.
        cpu: CpuId,
        /// Last time before the gap.
        from: Time,
        /// First time after the gap.
        to: Time,
        /// Minimum number of events lost.
        events: u64,
    },
    /// Kernel accounting of a host thread, to check the recording by.
    Counted {
        /// Thread that is accounted.
        thread: HostThreadId,
        /// Start of the interval.
        from: Time,
        /// End of the interval.
        to: Time,
        /// CPU time that the kernel counted.
        used: Span,
        /// Time on run queues that the kernel counted: CPU ready.
        ready: Span,
    },
    /// The run is over. Always last.
    Ended {
        /// Time of the end.
        at: Time,
    },
}

/// Kind of time that a simulated CPU spends outside the programs of vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverheadKind {
    /// Switching to another vCPU.
    Switch,
    /// A vCPU's migration to another CPU.
    Migration,
    /// The cold caches of a vCPU after others: what its domain loses at each dispatch, and what it
    /// fills again.
    Refill,
    /// Timer tick of the CPU.
    Tick,
    /// Interrupts of devices and of other CPUs.
    Interrupt,
    /// The calls of the policy's balancer, which a vCPU of their own makes.
    Balancing,
}

impl OverheadKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [OverheadKind; 6] = [
        OverheadKind::Switch,
        OverheadKind::Migration,
        OverheadKind::Refill,
        OverheadKind::Tick,
        OverheadKind::Interrupt,
        OverheadKind::Balancing,
    ];
}

/// Work that a driver domain did for another domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// CPU time that it took.
    pub used: Span,
    /// Packets handed over to the domain: a page each.
    pub received: u32,
    /// Packets sent for it: a page each.
    pub sent: u32,
    /// Requests to a disk, done.
    pub requests: u32,
    /// Events: times that one of the two told the other to look.
    pub events: u32,
}

impl Record {
    /// Returns when the event began and when it was over. A record of the whole run has its start
    /// for both.
    #[must_use]
    pub fn when(&self) -> (Time, Time) {
        match *self {
            Record::Ran { from, to, .. }
            | Record::Spent { from, to, .. }
            | Record::Boosted { from, to, .. }
            | Record::Slowed { from, to, .. }
            | Record::Stopped { from, to, .. }
            | Record::Elsewhere { from, to, .. }
            | Record::OnCpu { from, to, .. }
            | Record::Halted { from, to, .. }
            | Record::Lost { from, to, .. }
            | Record::Counted { from, to, .. }
            | Record::Accounted { from, to, .. } => (from, to),
            Record::Job { done, .. } => (done, done),
            Record::Overhead { .. } => (Time::START, Time::START),
            Record::Joined { at, .. }
            | Record::Promised { at, .. }
            | Record::ClockSet { at, .. }
            | Record::Left { at, .. }
            | Record::Woke { at, .. }
            | Record::Blocked { at, .. }
            | Record::Paused { at, .. }
            | Record::RangLate { at, .. }
            | Record::Refused { at, .. }
            | Record::Declined { at, .. }
            | Record::Changed { at, .. }
            | Record::ClientStarted { at, .. }
            | Record::Unfinished { at, .. }
            | Record::Spun { at, .. }
            | Record::Served { at, .. }
            | Record::Moved { at, .. }
            | Record::Awoken { at, .. }
            | Record::Ended { at } => (at, at),
        }
    }
}

/// State of a host thread that leaves its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffCpu {
    /// The thread has blocked.
    Blocked,
    /// The thread still wants a CPU.
    Ready,
    /// The recording ended, or events were lost: the state is not known.
    Unknown,
}

/// Event of the kernel that marks a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMark {
    /// `sched_waking`, on the CPU of the waker.
    Waking,
    /// `sched_wakeup`, on the CPU that carries the wake out.
    Wakeup,
}

/// Reason why a vCPU stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RanEnd {
    /// The vCPU had no more work.
    Blocked,
    /// The limit of its timeslice was reached.
    Limit,
    /// Another vCPU was picked.
    Preempted,
    /// The vCPU gave up the rest of its timeslice.
    Yielded,
    /// The vCPU left, or the run ended.
    Over,
}

/// Capabilities of the host to observe a run. Whatever it cannot observe is not in the trace and is
/// shown as a dash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knowledge {
    /// True if blocks and wakes are known.
    pub sleep: bool,
    /// True if exact run intervals are known. Otherwise only the CPU time between two measurements
    /// is.
    pub stretches: bool,
    /// Maximum difference between counted CPU time and the run intervals. Zero if both are exact.
    pub resolution: Span,
    /// True if all overhead is told by [`Record::Spent`]. Simulated traces of version 4 have none.
    pub overhead: bool,
}

impl Knowledge {
    /// Capabilities of a simulated host.
    pub const ALL: Knowledge =
        Knowledge { sleep: true, stretches: true, resolution: Span::ZERO, overhead: true };
}
