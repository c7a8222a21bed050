//! Checks of the contract between host, policy and hardware, and the error for each breach.

use slackline_policy::{AdmitError, Moment};
use slackline_units::{CpuId, CpuSet, Time, VcpuId};
use thiserror::Error;

use crate::CpuUse;

/// Reason why [`Host::step`](crate::Host::step) failed.
#[derive(Debug, Error)]
pub enum Fault {
    /// The policy declined the parameters of a vCPU because it cannot honour them. A vCPU that
    /// wanted to join has not joined. A vCPU that wanted to change its parameters keeps the old
    /// ones.
    #[error("cannot admit {vcpu}: {error}")]
    Declined {
        /// vCPU whose parameters were declined.
        vcpu: VcpuId,
        /// Reason given by the policy.
        error: AdmitError,
    },
    /// The hardware or the policy broke the contract. This is a bug.
    #[error(transparent)]
    Broken(#[from] Broken),
}

impl Fault {
    /// Builds a boxed fault. The box keeps the result of a successful step small, which is the
    /// common case.
    pub(crate) fn broken(broken: Broken) -> Box<Fault> {
        Box::new(Fault::Broken(broken))
    }
}

/// Breach of the contract by the hardware or the policy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Broken {
    /// The hardware reported an instant earlier than its previous report.
    #[error("the hardware reported time {now} after the later time {before}")]
    TimeWentBack {
        /// Time of the previous report.
        before: Time,
        /// Time of the new report, which is earlier.
        now: Time,
    },
    /// The hardware reported more CPU time than the length of the reported interval, or an interval
    /// that ends in the future.
    #[error(
        "the hardware reported that {} used {} of CPU time between {} and {}, which is longer than \
         that interval or in the future",
        used.vcpu, used.ran, used.from, used.to
    )]
    UsedTooMuch {
        /// Report of CPU time that exceeds its interval or ends in the future.
        used: CpuUse,
    },
    /// The hardware reported CPU time that overlaps time already reported for the CPU.
    #[error(
        "the hardware reported CPU time of {} on {} from {} on, but it had already reported CPU \
         time until {reported}",
        used.vcpu, used.cpu, used.from
    )]
    UsedTwice {
        /// Report of CPU time that overlaps an earlier report.
        used: CpuUse,
        /// End of the time already reported for this CPU.
        reported: Time,
    },
    /// The hardware reported an event of a vCPU that has not joined.
    #[error("the hardware named {vcpu}, which has not joined")]
    Unknown {
        /// vCPU that the hardware named.
        vcpu: VcpuId,
    },
    /// The hardware reported a join of a vCPU that is already present.
    #[error("the hardware let {vcpu} join twice")]
    JoinedTwice {
        /// vCPU that was reported as joining.
        vcpu: VcpuId,
    },
    /// The affinity of a vCPU is empty, or contains a CPU that the host does not have.
    #[error("the affinity of {vcpu} is empty or contains a CPU that is not scheduled")]
    Nowhere {
        /// vCPU with the invalid affinity.
        vcpu: VcpuId,
    },
    /// The hardware reported a wake of a vCPU that is already runnable.
    #[error("the hardware woke {vcpu}, which was runnable already")]
    WokeAwake {
        /// vCPU that was reported as waking.
        vcpu: VcpuId,
    },
    /// The hardware reported a block of a vCPU that is already blocked.
    #[error("the hardware blocked {vcpu}, which was blocked already")]
    BlockedAsleep {
        /// vCPU that was reported as blocking.
        vcpu: VcpuId,
    },
    /// The hardware reported the end of a timeslice on a CPU on which no vCPU runs.
    #[error("the hardware ended a timeslice on {cpu}, which runs no vCPU")]
    NobodyThere {
        /// Idle CPU for which the end of a timeslice was reported.
        cpu: CpuId,
    },
    /// The hardware reported an event of a CPU that the host does not have.
    #[error("the hardware named {cpu}, but only {cpus} CPUs are scheduled, numbered from 0")]
    UnknownCpu {
        /// CPU that the hardware reported.
        cpu: CpuId,
        /// Number of CPUs of the host.
        cpus: usize,
    },
    /// The policy named a CPU that the host does not have, among the CPUs to reschedule or to
    /// charge.
    #[error("the policy named {cpu}, but only {cpus} CPUs are scheduled, numbered from 0")]
    NoSuchCpu {
        /// CPU that the policy returned.
        cpu: CpuId,
        /// Number of CPUs of the host.
        cpus: usize,
    },
    /// The policy picked a vCPU that is not eligible for the CPU.
    #[error("the policy picked {vcpu} for {cpu} at {now}, but {why}")]
    NotEligible {
        /// vCPU that was picked.
        vcpu: VcpuId,
        /// CPU for which the vCPU was picked.
        cpu: CpuId,
        /// Time of the pick.
        now: Time,
        /// Reason why the vCPU is not eligible.
        why: NotEligible,
    },
    /// Livelock of the policy: it keeps rescheduling CPUs or picking zero-length timeslices.
    #[error(
        "policy livelock at {now}: it keeps rescheduling CPUs or picking zero-length timeslices"
    )]
    Endless {
        /// Time at which the livelock occurs.
        now: Time,
    },
    /// After the timer of a CPU expired, the policy set this timer to a time that is not in the
    /// future.
    #[error("the policy set the timer of {cpu} to {alarm}, which is not after {now}")]
    AlarmPassed {
        /// CPU of the timer.
        cpu: CpuId,
        /// Time to which the timer was set.
        alarm: Time,
        /// Current time, which is not before `alarm`.
        now: Time,
    },
}

/// Reason why a vCPU cannot run on a CPU.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NotEligible {
    /// The vCPU has not joined, or has left.
    #[error("the vCPU has not joined")]
    Unknown,
    /// The vCPU is blocked or paused.
    #[error("the vCPU is blocked or paused")]
    Asleep,
    /// The vCPU is running on this other CPU.
    #[error("the vCPU runs on {0}")]
    Elsewhere(CpuId),
    /// The affinity of the vCPU excludes the CPU.
    #[error("the affinity of the vCPU excludes that CPU")]
    Confined,
    /// The hardware refused to run the vCPU, and has not allowed the vCPU to run again since then.
    #[error("the hardware refused to run the vCPU")]
    Barred,
}

/// Checks that a report of CPU time names a known vCPU and CPU. The CPU time must not exceed the
/// length of its interval, and the interval must not end in the future.
#[inline]
pub(crate) fn used(used: &CpuUse, moment: &Moment) -> Result<(), Box<Fault>> {
    member(used.vcpu, moment)?;
    named_by_hardware(used.cpu, moment)?;
    if used.ran > used.to.since(used.from) || used.to > moment.now() {
        return Err(Fault::broken(Broken::UsedTooMuch { used: *used }));
    }
    Ok(())
}

/// Checks that a vCPU has joined.
#[inline]
pub(crate) fn member(vcpu: VcpuId, moment: &Moment) -> Result<(), Box<Fault>> {
    if moment.is_member(vcpu) { Ok(()) } else { Err(Fault::broken(Broken::Unknown { vcpu })) }
}

/// Checks that a CPU in a report of the hardware exists.
#[inline]
pub(crate) fn named_by_hardware(cpu: CpuId, moment: &Moment) -> Result<(), Box<Fault>> {
    let cpus = moment.cpus();
    if cpu.index() < cpus { Ok(()) } else { Err(Fault::broken(Broken::UnknownCpu { cpu, cpus })) }
}

/// Checks that a CPU in a result of the policy exists.
#[inline]
pub(crate) fn named_by_policy(cpu: CpuId, moment: &Moment) -> Result<(), Box<Fault>> {
    let cpus = moment.cpus();
    if cpu.index() < cpus { Ok(()) } else { Err(Fault::broken(Broken::NoSuchCpu { cpu, cpus })) }
}

/// Checks that an affinity is not empty and contains only CPUs of the host.
pub(crate) fn somewhere(vcpu: VcpuId, cpus: CpuSet, moment: &Moment) -> Result<(), Box<Fault>> {
    let exists = |cpu: CpuId| cpu.index() < moment.cpus();
    if !cpus.is_empty() && cpus.iter().all(exists) {
        Ok(())
    } else {
        Err(Fault::broken(Broken::Nowhere { vcpu }))
    }
}

/// Checks that a vCPU has joined and is not runnable.
#[inline]
pub(crate) fn asleep(vcpu: VcpuId, moment: &Moment) -> Result<(), Box<Fault>> {
    member(vcpu, moment)?;
    if moment.is_awake(vcpu) { Err(Fault::broken(Broken::WokeAwake { vcpu })) } else { Ok(()) }
}

/// Checks that a vCPU has joined and is runnable.
#[inline]
pub(crate) fn awake(vcpu: VcpuId, moment: &Moment) -> Result<(), Box<Fault>> {
    member(vcpu, moment)?;
    if moment.is_awake(vcpu) { Ok(()) } else { Err(Fault::broken(Broken::BlockedAsleep { vcpu })) }
}

/// Checks that the policy may pick a vCPU for a CPU.
#[inline]
pub(crate) fn pick(vcpu: VcpuId, cpu: CpuId, moment: &Moment) -> Result<(), Box<Fault>> {
    if moment.is_eligible(vcpu, cpu) { Ok(()) } else { Err(not_eligible(vcpu, cpu, moment)) }
}

/// Returns the error for a pick of a vCPU that is not eligible, with the reason.
fn not_eligible(vcpu: VcpuId, cpu: CpuId, moment: &Moment) -> Box<Fault> {
    let why = if !moment.is_member(vcpu) {
        NotEligible::Unknown
    } else if !moment.is_awake(vcpu) {
        NotEligible::Asleep
    } else if !moment.is_allowed(vcpu, cpu) {
        NotEligible::Confined
    } else {
        let elsewhere = moment.cpu_of(vcpu).filter(|&other| other != cpu);
        elsewhere.map_or(NotEligible::Barred, NotEligible::Elsewhere)
    };
    Fault::broken(Broken::NotEligible { vcpu, cpu, now: moment.now(), why })
}

/// Checks that a timer is unset or set to a time after `now`.
#[inline]
pub(crate) fn alarm(alarm: Option<Time>, cpu: CpuId, now: Time) -> Result<(), Box<Fault>> {
    match alarm {
        Some(alarm) if alarm <= now => Err(Fault::broken(Broken::AlarmPassed { cpu, alarm, now })),
        _ => Ok(()),
    }
}
