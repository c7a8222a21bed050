//! The records of a trace. Times are on the run's own clock, which starts at zero.

use slackline_units::{CpuId, Reservation, Span, TaskId, Time, VcpuId};

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A vCPU joined, asleep.
    Joined {
        /// When.
        at: Time,
        /// Who.
        vcpu: VcpuId,
    },
    /// What a vCPU is promised from now on; its periods are counted from here, or are on a grid.
    Promised {
        /// When.
        at: Time,
        /// Who.
        vcpu: VcpuId,
        /// A slice in every period, or nothing.
        reservation: Option<Reservation>,
        /// Whether it gets this and no more.
        exact: bool,
        /// Where the grid is on which its periods begin, if there is one.
        phase: Option<Span>,
    },
    /// The clock by which phases are told is so far ahead of the run's own from now on; before the
    /// first of these the two are the same.
    ClockSet {
        /// When.
        at: Time,
        /// How far.
        ahead: Span,
    },
    /// A vCPU left.
    Left {
        /// When.
        at: Time,
        /// Who.
        vcpu: VcpuId,
    },
    /// A vCPU has work again.
    Woke {
        /// When.
        at: Time,
        /// Who.
        vcpu: VcpuId,
    },
    /// A vCPU has no more work.
    Blocked {
        /// When.
        at: Time,
        /// Who.
        vcpu: VcpuId,
    },
    /// A vCPU with work is held: it wakes when it is let go.
    Paused {
        /// When.
        at: Time,
        /// Who.
        vcpu: VcpuId,
    },
    /// A vCPU ran.
    Ran {
        /// Who.
        vcpu: VcpuId,
        /// Where.
        cpu: CpuId,
        /// From when.
        from: Time,
        /// Until when.
        to: Time,
        /// CPU time it used between the two, as measured.
        used: Span,
        /// The turn it was given when it began; none without a limit.
        granted: Option<Span>,
        /// How much of it lay beyond the limit it had been given.
        late: Span,
        /// Why it stopped.
        end: RanEnd,
        /// Whether it was owed this time, or had what nobody was owed.
        due: bool,
    },
    /// A vCPU worked on a CPU that others slowed: the other threads of its core, or whoever shares
    /// the way to memory. Its CPU time is in [`Record::Ran`], this part of it too.
    Slowed {
        /// Who.
        vcpu: VcpuId,
        /// From when.
        from: Time,
        /// Until when: its speed was the same all the time.
        to: Time,
        /// CPU time at full speed in which it would have done as much.
        work: Span,
    },
    /// A live host kept a vCPU that had work from running: it is exact, and had its slice.
    Stopped {
        /// Which vCPU.
        vcpu: VcpuId,
        /// When it was stopped.
        from: Time,
        /// When it was let go, or left, or the run ended.
        to: Time,
    },
    /// CPU time that a vCPU received while its threads were left to another program. It is charged
    /// to no CPU of the run and to no slice.
    Elsewhere {
        /// The vCPU.
        vcpu: VcpuId,
        /// Start of the interval.
        from: Time,
        /// End of the interval.
        to: Time,
        /// CPU time that the kernel counted in the interval, on all CPUs together.
        used: Span,
    },
    /// A timer of a CPU rang later than it was set for.
    RangLate {
        /// When it rang.
        at: Time,
        /// For which CPU.
        cpu: CpuId,
        /// How late.
        late: Span,
    },
    /// The machine could not carry out an order.
    Refused {
        /// When.
        at: Time,
        /// Who should have run.
        vcpu: VcpuId,
        /// Where.
        cpu: CpuId,
    },
    /// A change that the scenario asked for could not be admitted; the old promise stands.
    Declined {
        /// When.
        at: Time,
        /// Whose.
        vcpu: VcpuId,
    },
    /// A change that the scenario asked for has taken effect on the machine.
    Changed {
        /// When it was to take effect.
        due: Time,
        /// When it had.
        at: Time,
        /// Whose.
        vcpu: VcpuId,
    },
    /// A workload finished a piece of work that had a release, and perhaps a deadline.
    Job {
        /// Whose; of a domain with tasks, its first vCPU.
        vcpu: VcpuId,
        /// Which task's; none if the domain tells its tasks not apart.
        task: Option<TaskId>,
        /// When it was released.
        released: Time,
        /// When it was to be done, or `NEVER`.
        deadline: Time,
        /// When it was done.
        done: Time,
    },
    /// A piece of work whose deadline has passed was not finished when its vCPU left or the run
    /// ended.
    Unfinished {
        /// When the vCPU left or the run ended.
        at: Time,
        /// Whose; of a domain with tasks, its first vCPU.
        vcpu: VcpuId,
        /// Which task's; none if the domain tells its tasks not apart.
        task: Option<TaskId>,
        /// When it was released.
        released: Time,
        /// When it was to be done.
        deadline: Time,
    },
    /// A vCPU got the spin lock for which it had used CPU time, or gave up.
    Spun {
        /// When.
        at: Time,
        /// Who.
        vcpu: VcpuId,
        /// How much CPU time it used for that, at full speed.
        used: Span,
    },
    /// A driver domain served the devices of another, since the last such record of the two.
    Served {
        /// When it had.
        at: Time,
        /// Who served.
        by: VcpuId,
        /// Whom: the first vCPU of the domain.
        of: VcpuId,
        /// What it did.
        service: Service,
    },
    /// Data of a workload reached its end: the domain, or the other side that the domain sent it.
    Moved {
        /// When.
        at: Time,
        /// Whose: the first vCPU of the domain.
        vcpu: VcpuId,
        /// How many bytes, headers not counted.
        bytes: u64,
    },
    /// A simulated CPU spent time on something that is not a vCPU's program. What a vCPU paid is
    /// part of its CPU time in [`Record::Ran`].
    Spent {
        /// The CPU.
        cpu: CpuId,
        /// The vCPU that paid. `None` if no vCPU ran.
        vcpu: Option<VcpuId>,
        /// What the time was spent on.
        kind: OverheadKind,
        /// Start of the time.
        from: Time,
        /// End of the time.
        to: Time,
    },
    /// CPU time that scheduling took on a live CPU over the whole run.
    Overhead {
        /// Where.
        cpu: CpuId,
        /// How much.
        used: Span,
    },
    /// What the kernel has in its books of a CPU that others may use as well. The first of a CPU is
    /// of no time, and says from when on there are books.
    Accounted {
        /// Where.
        cpu: CpuId,
        /// From when.
        from: Time,
        /// Until when.
        to: Time,
        /// How long nobody at all ran there.
        idle: Span,
        /// How long a hypervisor below had the CPU for other machines.
        stolen: Span,
        /// CPU time that scheduling took there.
        dispatching: Span,
    },
    /// The run is over. Always last.
    Ended {
        /// When.
        at: Time,
    },
}

/// What a simulated CPU spends time on that is not a vCPU's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverheadKind {
    /// Switching to another vCPU.
    Switch,
    /// A vCPU's migration to another CPU.
    Migration,
    /// The cold caches of a vCPU after others: what its domain loses at each dispatch, and what it
    /// fills again.
    Refill,
    /// The CPU's tick.
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

/// What a driver domain did for another.
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
    /// When what it tells began, and when it was over; of what is of the whole run, its start.
    #[must_use]
    pub fn when(&self) -> (Time, Time) {
        match *self {
            Record::Ran { from, to, .. }
            | Record::Spent { from, to, .. }
            | Record::Slowed { from, to, .. }
            | Record::Stopped { from, to, .. }
            | Record::Elsewhere { from, to, .. }
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
            | Record::Unfinished { at, .. }
            | Record::Spun { at, .. }
            | Record::Served { at, .. }
            | Record::Moved { at, .. }
            | Record::Ended { at } => (at, at),
        }
    }
}

/// Why a vCPU stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RanEnd {
    /// It had no more work.
    Blocked,
    /// Its limit was reached.
    Limit,
    /// Another vCPU was put in its place.
    Preempted,
    /// It gave the rest of its turn away.
    Yielded,
    /// It left, or the run ended.
    Over,
}

/// What the machine that made a trace could see. What it could not see is not in the trace, and is
/// shown as a dash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knowledge {
    /// Who sleeps, and when who wakes.
    pub sleep: bool,
    /// The exact stretches in which each vCPU ran; without this, only how much it used between two
    /// looks.
    pub stretches: bool,
    /// How far its count of CPU time may be off what its stretches say; zero where both are exact.
    pub resolution: Span,
    /// True if all overhead is told by [`Record::Spent`]. Simulated traces of version 4 have none.
    pub overhead: bool,
}

impl Knowledge {
    /// What a simulated host knows.
    pub const ALL: Knowledge =
        Knowledge { sleep: true, stretches: true, resolution: Span::ZERO, overhead: true };
}
