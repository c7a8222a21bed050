//! Records of a trace. Times are on the run's own clock, which starts at zero.

use slackline_units::{ClientId, CpuId, Enforcement, Reservation, Span, TaskId, Time, VcpuId};

use crate::host_thread::HostThreadId;

/// Event of a run, as recorded for users and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A vCPU joined the host. It is blocked at first.
    Joined {
        /// Time at which the vCPU joined.
        at: Time,
        /// vCPU that joined the host.
        vcpu: VcpuId,
    },
    /// Reservation of a vCPU from now on. Its periods follow one another from this time, or begin
    /// at fixed times if there is a phase.
    Promised {
        /// Time from which the reservation holds.
        at: Time,
        /// vCPU with the reservation.
        vcpu: VcpuId,
        /// Slice and period. `None` if the vCPU reserves nothing.
        reservation: Option<Reservation>,
        /// True if the slice is a hard limit.
        exact: bool,
        /// Phase of the vCPU's periods. `None` if they do not begin at fixed times.
        phase: Option<Span>,
        /// Mechanism that enforces the reservation. On a simulated host it is the dispatcher.
        by: Enforcement,
    },
    /// The clock that aligns periods with a phase was set. From now on that clock is ahead of the
    /// run's own clock by `ahead`. Until the first such record the two clocks are equal.
    ClockSet {
        /// Time from which the difference of the clocks holds.
        at: Time,
        /// Time by which the clock that aligns periods with a phase is ahead of the run's own
        /// clock.
        ahead: Span,
    },
    /// A vCPU left the host.
    Left {
        /// Time at which the vCPU left.
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
        /// Time at which the vCPU blocked.
        at: Time,
        /// vCPU that became blocked.
        vcpu: VcpuId,
    },
    /// A runnable vCPU was paused. A record of its wake follows when it is resumed.
    Paused {
        /// Time at which the vCPU was paused.
        at: Time,
        /// vCPU that was paused.
        vcpu: VcpuId,
    },
    /// A run interval of a vCPU.
    Ran {
        /// vCPU that ran in the interval.
        vcpu: VcpuId,
        /// CPU on which the vCPU ran.
        cpu: CpuId,
        /// Start of the run interval.
        from: Time,
        /// End of the run interval.
        to: Time,
        /// CPU time used in the run interval, as measured.
        used: Span,
        /// Maximum length of the timeslice, as set when the timeslice was granted. `None` if it had
        /// no limit.
        granted: Option<Span>,
        /// CPU time used beyond the limit of the timeslice.
        late: Span,
        /// Reason why the vCPU stopped running.
        end: RanEnd,
        /// True if the CPU time was reserved, false if it was slack.
        due: bool,
    },
    /// A vCPU ran with a boost: because of its last wake-up it had precedence over other vCPUs, as
    /// in Xen's Credit scheduler.
    Boosted {
        /// vCPU with the boost.
        vcpu: VcpuId,
        /// Time at which the vCPU got the CPU.
        from: Time,
        /// Time at which the boost ended or the vCPU lost the CPU.
        to: Time,
        /// True if the boost ended while the vCPU kept running.
        used_up: bool,
    },
    /// A vCPU worked on a CPU that was slowed by other threads of its core or by other CPUs on the
    /// memory bus. Its CPU time, including this part, is in [`Record::Ran`].
    Slowed {
        /// vCPU that was slowed.
        vcpu: VcpuId,
        /// Start of the interval in which the vCPU was slowed.
        from: Time,
        /// End of the interval in which the vCPU was slowed. The speed was constant in the
        /// interval.
        to: Time,
        /// CPU time that the same work would have taken at full speed.
        work: Span,
    },
    /// A live host kept a runnable vCPU from running. Either the vCPU had a hard limit and its
    /// budget was exhausted, or the vCPU had escaped its limit. In the second case the vCPU is also
    /// paused, and this record comes before the record of its wake.
    Stopped {
        /// vCPU that was stopped.
        vcpu: VcpuId,
        /// Time at which the vCPU was stopped.
        from: Time,
        /// Time at which the vCPU was resumed or left the host, or the run ended.
        to: Time,
    },
    /// CPU time that a vCPU received while another program controlled its threads. The time is
    /// charged to no CPU of the run and to no slice.
    Elsewhere {
        /// vCPU that used the time.
        vcpu: VcpuId,
        /// Start of the interval in which the CPU time was counted.
        from: Time,
        /// End of the interval in which the CPU time was counted.
        to: Time,
        /// CPU time that the kernel counted in the interval, on all CPUs together.
        used: Span,
    },
    /// A timer of a CPU expired late.
    RangLate {
        /// Time at which the timer expired.
        at: Time,
        /// CPU of the timer.
        cpu: CpuId,
        /// Delay after the time for which the timer was set.
        late: Span,
    },
    /// The hardware could not carry out an order.
    Refused {
        /// Time at which the order was refused.
        at: Time,
        /// vCPU that should have run.
        vcpu: VcpuId,
        /// CPU on which the vCPU should have run.
        cpu: CpuId,
    },
    /// Admission refused a change that the scenario asked for. The old reservation stays in force.
    Declined {
        /// Time at which the change was refused.
        at: Time,
        /// vCPU whose change was declined.
        vcpu: VcpuId,
    },
    /// A change in the scenario has taken effect on the host.
    Changed {
        /// Time for which the scenario asked for the change.
        due: Time,
        /// Time at which the change took effect.
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
        /// First vCPU of the domain to which the client sends.
        vcpu: VcpuId,
    },
    /// A workload finished a piece of work that had a release time, and perhaps a deadline.
    Job {
        /// vCPU that did the work. In a domain with tasks, the first vCPU of the domain.
        vcpu: VcpuId,
        /// Task that did the work. `None` if the domain does not distinguish tasks.
        task: Option<TaskId>,
        /// Client whose request the job answered. `None` if no client asked for the work.
        client: Option<ClientId>,
        /// Time at which the work was released.
        released: Time,
        /// Deadline of the work. `NEVER` if it had none.
        deadline: Time,
        /// Time at which the work was complete.
        done: Time,
    },
    /// A piece of work was not finished when its vCPU left or the run ended, although its deadline
    /// had passed.
    Unfinished {
        /// Time when the vCPU left or the run ended.
        at: Time,
        /// vCPU that should have done the work. In a domain with tasks, the first vCPU of the
        /// domain.
        vcpu: VcpuId,
        /// Task that should have done the work. `None` if the domain does not distinguish tasks.
        task: Option<TaskId>,
        /// Time at which the work was released.
        released: Time,
        /// Deadline of the work, which has passed.
        deadline: Time,
    },
    /// A vCPU stopped spinning for a spin lock: it got the lock, or gave up. Spinning uses CPU
    /// time.
    Spun {
        /// Time when spinning ended.
        at: Time,
        /// vCPU that spun for the lock.
        vcpu: VcpuId,
        /// CPU time spent spinning, at full speed.
        used: Span,
    },
    /// A driver domain did I/O for another domain. Covers the work since the previous such record
    /// of this pair of domains.
    Served {
        /// Time of the record: the end of the work.
        at: Time,
        /// vCPU of the driver domain.
        by: VcpuId,
        /// First vCPU of the domain for which the I/O was done.
        of: VcpuId,
        /// Work that the driver domain did.
        service: Service,
    },
    /// Data of a workload arrived: in the domain, or at the network peer to which the domain sent
    /// it.
    Moved {
        /// Time at which the data arrived.
        at: Time,
        /// First vCPU of the domain that received or sent the data.
        vcpu: VcpuId,
        /// Number of bytes that arrived, without headers.
        bytes: u64,
    },
    /// A simulated CPU spent time on overhead, not on the program of a vCPU. Overhead that is
    /// charged to a vCPU is also part of its CPU time in [`Record::Ran`].
    Spent {
        /// CPU that spent the time on overhead.
        cpu: CpuId,
        /// vCPU to which the time is charged. `None` if no vCPU ran.
        vcpu: Option<VcpuId>,
        /// Kind of the overhead.
        kind: OverheadKind,
        /// Time at which the overhead began.
        from: Time,
        /// Time at which the overhead ended.
        to: Time,
    },
    /// Total CPU time that scheduling took on a live CPU over the whole run.
    Overhead {
        /// CPU that was scheduled.
        cpu: CpuId,
        /// CPU time used by scheduling on the CPU.
        used: Span,
    },
    /// Use of a live CPU in an interval of time, from the counters of the kernel. The record covers
    /// the time since the previous record about this CPU. The first record about a CPU covers no
    /// time.
    Accounted {
        /// CPU that the counters are about.
        cpu: CpuId,
        /// Time of the previous reading of the counters, from which `idle`, `stolen` and
        /// `dispatching` are counted.
        from: Time,
        /// Time of this reading of the counters.
        to: Time,
        /// Time between `from` and `to` in which the CPU was idle.
        idle: Span,
        /// Steal: time that a hypervisor below this host gave to other guests.
        stolen: Span,
        /// CPU time that scheduling took on the CPU.
        dispatching: Span,
    },
    /// A host thread was on a CPU.
    OnCpu {
        /// Thread that ran on the CPU.
        thread: HostThreadId,
        /// CPU on which the thread ran.
        cpu: CpuId,
        /// Time at which the thread got the CPU.
        from: Time,
        /// Time at which the thread left the CPU.
        to: Time,
        /// State of the thread when it left the CPU.
        end: OffCpu,
    },
    /// A host thread became runnable.
    Awoken {
        /// Time at which the thread became runnable.
        at: Time,
        /// Thread that became runnable.
        thread: HostThreadId,
        /// CPU of the event. For [`WakeMark::Waking`] this is the CPU on which the thread ran last.
        /// For [`WakeMark::Wakeup`] it is the CPU on which the thread waits after the wake.
        cpu: CpuId,
        /// Kernel event that marks the wake.
        mark: WakeMark,
    },
    /// A host thread was kept from running by a signal.
    Halted {
        /// Thread that was stopped.
        thread: HostThreadId,
        /// Time at which the thread left its CPU.
        from: Time,
        /// Time at which the thread was continued, or the recording ended.
        to: Time,
    },
    /// The recorder lost events of a CPU. The threads that ran on the CPU in that interval are
    /// unknown.
    Lost {
        /// CPU whose events were lost.
        cpu: CpuId,
        /// Time of the last event before the gap.
        from: Time,
        /// Time of the first event after the gap.
        to: Time,
        /// Number of lost events, as a lower bound.
        events: u64,
    },
    /// Kernel accounting of a host thread. The recording can be checked against it.
    Counted {
        /// Thread whose time the kernel counted.
        thread: HostThreadId,
        /// Start of the interval that the kernel counted.
        from: Time,
        /// End of the interval that the kernel counted.
        to: Time,
        /// CPU time of the thread, as the kernel counted it.
        used: Span,
        /// Time that the thread waited in run queues, as the kernel counted it.
        ready: Span,
    },
    /// The run is over. This is always the last record.
    Ended {
        /// Time at which the run ended.
        at: Time,
    },
}

/// Kind of overhead: CPU time that a simulated CPU does not spend on the programs of vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverheadKind {
    /// Switch to another vCPU.
    Switch,
    /// A vCPU's migration to another CPU.
    Migration,
    /// Refilling of caches at a dispatch, after other vCPUs used the CPU.
    Refill,
    /// Timer tick of the CPU.
    Tick,
    /// Interrupts of devices and of other CPUs.
    Interrupt,
    /// Calls of the policy's balancer. They are charged to a service vCPU, which does nothing else.
    Balancing,
}

impl OverheadKind {
    /// All kinds, in the order of the numbers by which traces store them.
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
    /// CPU time that the work took.
    pub used: Span,
    /// Number of packets handed over to the domain, one page each.
    pub received: u32,
    /// Number of packets sent for the domain, one page each.
    pub sent: u32,
    /// Number of completed requests to a disk.
    pub requests: u32,
    /// Number of event notifications between the driver domain and the other domain, in either
    /// direction.
    pub events: u32,
}

impl Record {
    /// Returns the times at which the event began and ended. For a job, both are the time of its
    /// completion. For a record about the whole run, both are the start of the run.
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
    /// The thread is still runnable.
    Ready,
    /// Unknown, since the recording ended or events were lost.
    Unknown,
}

/// Kernel event that marks a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMark {
    /// `sched_waking`: recorded on the CPU of the waker.
    Waking,
    /// `sched_wakeup`: recorded on the CPU that carries out the wake.
    Wakeup,
}

/// Reason why a vCPU stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RanEnd {
    /// The vCPU had no more work.
    Blocked,
    /// The vCPU reached the limit of its timeslice.
    Limit,
    /// The policy picked another vCPU for the CPU.
    Preempted,
    /// The vCPU gave up the rest of its timeslice.
    Yielded,
    /// The vCPU left the host, or the run ended.
    Over,
}

/// Facts about a run that the host can observe. A fact that the host cannot observe is not in the
/// trace and is shown as a dash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knowledge {
    /// True if blocks and wakes are known.
    pub sleep: bool,
    /// True if exact run intervals are known. If false, only the CPU time between two measurements
    /// is known.
    pub stretches: bool,
    /// Maximum difference between the CPU time that the host counts and the time in the run
    /// intervals. Zero if both are exact.
    pub resolution: Span,
    /// True if all overhead is recorded by [`Record::Spent`]. False for simulated traces of version
    /// 4, which have no such records.
    pub overhead: bool,
}

impl Knowledge {
    /// Facts that a simulated host can observe: all of them.
    pub const ALL: Knowledge =
        Knowledge { sleep: true, stretches: true, resolution: Span::ZERO, overhead: true };
}
