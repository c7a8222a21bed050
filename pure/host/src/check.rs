//! What a policy or the hardware may not do, and the words for it when it does.

use slackline_policy::{AdmitError, Moment};
use slackline_units::{CpuId, CpuSet, Time, VcpuId};
use thiserror::Error;

use crate::Used;

/// Why a step did not go through.
#[derive(Debug, Error)]
pub enum Fault {
    /// A share cannot be honoured. Nothing has changed.
    #[error("cannot admit {vcpu}: {error}")]
    Declined {
        /// Whose.
        vcpu: VcpuId,
        /// Why.
        error: AdmitError,
    },
    /// The contract was broken, by the hardware or by the policy: a bug.
    #[error(transparent)]
    Broken(#[from] Broken),
}

impl Fault {
    /// Boxed, so that steps that go through, which are nearly all, return next to nothing.
    pub(crate) fn broken(broken: Broken) -> Box<Fault> {
        Box::new(Fault::Broken(broken))
    }
}

/// How the contract was broken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Broken {
    /// The hardware reported something earlier than what it had reported before.
    #[error("the hardware reported {now} after it had reported {before}")]
    TimeWentBack {
        /// Reported first.
        before: Time,
        /// Reported then.
        now: Time,
    },
    /// The hardware reported more time than there was.
    #[error(
        "{} used {} between {} and {}, which is longer",
        used.vcpu, used.ran, used.from, used.to
    )]
    UsedTooMuch {
        /// What was reported.
        used: Used,
    },
    /// The hardware reported time on a CPU that it had reported before.
    #[error(
        "{} used {} from {}, but that had been reported until {reported}",
        used.vcpu, used.cpu, used.from
    )]
    UsedTwice {
        /// What was reported.
        used: Used,
        /// Until when this CPU had been reported.
        reported: Time,
    },
    /// The hardware named a vCPU that has not joined.
    #[error("the hardware named {vcpu}, which has not joined")]
    Unknown {
        /// Who.
        vcpu: VcpuId,
    },
    /// The hardware let a vCPU join that had joined.
    #[error("the hardware let {vcpu} join twice")]
    JoinedTwice {
        /// Who.
        vcpu: VcpuId,
    },
    /// The hardware allowed a vCPU to run nowhere.
    #[error("the hardware allowed {vcpu} no CPU that there is")]
    Nowhere {
        /// Who.
        vcpu: VcpuId,
    },
    /// The hardware woke a vCPU that was awake.
    #[error("the hardware woke {vcpu}, which was awake")]
    WokeAwake {
        /// Who.
        vcpu: VcpuId,
    },
    /// The hardware blocked a vCPU that was asleep.
    #[error("the hardware blocked {vcpu}, which was asleep")]
    BlockedAsleep {
        /// Who.
        vcpu: VcpuId,
    },
    /// The hardware ended a turn where there was none.
    #[error("the hardware ended a turn on {cpu}, which nobody had")]
    NobodyThere {
        /// Where.
        cpu: CpuId,
    },
    /// The hardware named a CPU that the host has not.
    #[error("the hardware named {cpu}, but only the {cpus} CPUs below that are scheduled")]
    UnknownCpu {
        /// Which.
        cpu: CpuId,
        /// How many there are.
        cpus: usize,
    },
    /// The policy wants a CPU asked or charged that the host has not.
    #[error("the policy named {cpu}, but only the {cpus} CPUs below that are scheduled")]
    NoSuchCpu {
        /// Which.
        cpu: CpuId,
        /// How many there are.
        cpus: usize,
    },
    /// The policy picked a vCPU that cannot run there.
    #[error("the policy picked {vcpu} for {cpu} at {now}, but {why}")]
    NotEligible {
        /// Who.
        vcpu: VcpuId,
        /// Where.
        cpu: CpuId,
        /// When.
        now: Time,
        /// Why it cannot.
        why: NotEligible,
    },
    /// The policy is never done with an instant.
    #[error("at {now} one CPU after the other is asked, or one turn of no length follows another")]
    Endless {
        /// Which instant.
        now: Time,
    },
    /// The policy wants to be rung at a time that has passed.
    #[error("the alarm of {cpu} is set to {alarm}, which is not after {now}")]
    AlarmPassed {
        /// Where.
        cpu: CpuId,
        /// When it is to ring.
        alarm: Time,
        /// When it is now.
        now: Time,
    },
}

/// Why a vCPU cannot run on a CPU.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NotEligible {
    /// It has not joined, or has left.
    #[error("it has not joined")]
    Unknown,
    /// It has no work.
    #[error("it is asleep")]
    Asleep,
    /// Another CPU has it.
    #[error("{0} has it")]
    Elsewhere(CpuId),
    /// It may not run there.
    #[error("it is confined to other CPUs")]
    Confined,
    /// The hardware refused it.
    #[error("the hardware refused it")]
    Barred,
}

#[inline]
pub(crate) fn used(used: &Used, moment: &Moment) -> Result<(), Box<Fault>> {
    member(used.vcpu, moment)?;
    named_by_hardware(used.cpu, moment)?;
    if used.ran > used.to.since(used.from) || used.to > moment.now() {
        return Err(Fault::broken(Broken::UsedTooMuch { used: *used }));
    }
    Ok(())
}

#[inline]
pub(crate) fn member(vcpu: VcpuId, moment: &Moment) -> Result<(), Box<Fault>> {
    if moment.is_member(vcpu) { Ok(()) } else { Err(Fault::broken(Broken::Unknown { vcpu })) }
}

#[inline]
pub(crate) fn named_by_hardware(cpu: CpuId, moment: &Moment) -> Result<(), Box<Fault>> {
    let cpus = moment.cpus();
    if cpu.index() < cpus { Ok(()) } else { Err(Fault::broken(Broken::UnknownCpu { cpu, cpus })) }
}

#[inline]
pub(crate) fn named_by_policy(cpu: CpuId, moment: &Moment) -> Result<(), Box<Fault>> {
    let cpus = moment.cpus();
    if cpu.index() < cpus { Ok(()) } else { Err(Fault::broken(Broken::NoSuchCpu { cpu, cpus })) }
}

pub(crate) fn somewhere(vcpu: VcpuId, cpus: CpuSet, moment: &Moment) -> Result<(), Box<Fault>> {
    let exists = |cpu: CpuId| cpu.index() < moment.cpus();
    if !cpus.is_empty() && cpus.iter().all(exists) {
        Ok(())
    } else {
        Err(Fault::broken(Broken::Nowhere { vcpu }))
    }
}

#[inline]
pub(crate) fn asleep(vcpu: VcpuId, moment: &Moment) -> Result<(), Box<Fault>> {
    member(vcpu, moment)?;
    if moment.is_awake(vcpu) { Err(Fault::broken(Broken::WokeAwake { vcpu })) } else { Ok(()) }
}

#[inline]
pub(crate) fn awake(vcpu: VcpuId, moment: &Moment) -> Result<(), Box<Fault>> {
    member(vcpu, moment)?;
    if moment.is_awake(vcpu) { Ok(()) } else { Err(Fault::broken(Broken::BlockedAsleep { vcpu })) }
}

#[inline]
pub(crate) fn pick(vcpu: VcpuId, cpu: CpuId, moment: &Moment) -> Result<(), Box<Fault>> {
    if moment.is_eligible(vcpu, cpu) { Ok(()) } else { Err(not_eligible(vcpu, cpu, moment)) }
}

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

#[inline]
pub(crate) fn alarm(alarm: Option<Time>, cpu: CpuId, now: Time) -> Result<(), Box<Fault>> {
    match alarm {
        Some(alarm) if alarm <= now => Err(Fault::broken(Broken::AlarmPassed { cpu, alarm, now })),
        _ => Ok(()),
    }
}
