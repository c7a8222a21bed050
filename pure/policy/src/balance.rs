//! Balancing of best-effort vCPUs over CPUs. Each CPU has a scheduler of its own, which divides the
//! time that the reservations on the CPU leave.
//!
//! Sources: Diestelhorst, Scheduling in the Xen hypervisor, 2007, chapter 4, cited as
//! [Diestelhorst]. Where the thesis leaves something open or contradicts its own examples, the
//! source is our reference on balancers, cited as [balancer]. The reference is a set of notes and
//! test cases that is not in this repository.
//!
//! The modules map samples to migrations, without schedulers, queues or clocks. `books` samples the
//! CPU time of vCPUs and CPUs. `groups` finds the CPUs between which vCPUs can migrate. `pairs` is
//! a run of the thesis's balancer, and `swap` handles one pair of CPUs. `planned` computes the rate
//! of each vCPU and splits those that fit on no CPU. A *best-effort* vCPU has a weight and no
//! reservation. Only best-effort vCPUs migrate.
//!
//! *Tau* is CPU time per weight. A low tau means that vCPUs get little time for their weight. There
//! are no floats: fractions are compared by cross products.

pub(crate) mod books;
pub(crate) mod fields;
pub(crate) mod groups;
pub(crate) mod pairs;
pub(crate) mod planned;
mod swap;

use alloc::vec::Vec;
use core::cmp::Ordering;

use slackline_units::{CpuId, CpuSet, Span, VcpuId};

/// Number of binary places of a weight. [balancer §1.3] A weight below 2^15 fits in 31 bits. The
/// product of a CPU's time and two sums of such weights fits in 128 bits.
const PLACES: u32 = 16;

/// Interval at which the balancer is called. Every second call takes a sample. [Diestelhorst
/// §4.4.3]
pub(crate) const CALL: Span = Span::from_ms(50);

/// Nominal length of a sample. The values of a longer or shorter sample are scaled to this length.
/// [Diestelhorst §4.4.3]
pub(crate) const SAMPLE: Span = Span::from_ms(100);

/// Interval between runs of the balancer, the calls that decide migrations. Also the period of a
/// plan. [Diestelhorst §4.4.3]
pub(crate) const RUN: Span = Span::from_ms(500);

/// Weight of a vCPU, or that weight times the fraction of time for which the vCPU was runnable.
/// Fixed point with `PLACES` binary places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Weight(u64);

impl Weight {
    /// Returns `above / below`, rounded down.
    pub(crate) fn fraction(above: u64, below: u64) -> Weight {
        let quotient = (u128::from(above) << PLACES) / u128::from(below.max(1));
        Weight(u64::try_from(quotient).unwrap_or(u64::MAX))
    }

    /// Returns the fixed-point representation of the weight: the weight times 2^`PLACES`.
    pub(crate) fn units(self) -> u64 {
        self.0
    }

    /// Converts a weight to CPU time: returns `SAMPLE × self / full` in ns, at most `SAMPLE`.
    pub(crate) fn of_sample(self, full: Weight) -> u64 {
        SAMPLE.ns().min(Weight(SAMPLE.ns()).part(Span::from_ns(self.0), Span::from_ns(full.0)).0)
    }

    /// Returns the weight times `part / whole`, rounded down.
    fn part(self, part: Span, whole: Span) -> Weight {
        if part == whole {
            return self; // Fast path for vCPUs that never block.
        }
        let part = u128::from(self.0) * u128::from(part.ns()) / u128::from(whole.ns().max(1));
        Weight(u64::try_from(part).unwrap_or(self.0))
    }
}

/// CPU time per weight in a sample, as a fraction. Infinite if the weight is zero.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tau {
    /// CPU time in ns: the numerator of the fraction.
    pub(crate) time: u64,
    pub(crate) weight: u64,
}

impl Tau {
    fn compare(self, other: Tau) -> Ordering {
        let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
        product(self.time, other.weight).cmp(&product(other.time, self.weight))
    }

    /// Returns true if this CPU time per weight exceeds `other` by more than `parts` times `unit`.
    /// The weight of `other` must not be zero.
    fn exceeds(self, other: Tau, unit: Tau, parts: Ratio) -> bool {
        if self.weight == 0 {
            return true;
        }
        let wide = u128::from;
        let (ours, theirs) =
            (wide(self.time) * wide(other.weight), wide(other.time) * wide(self.weight));
        let Some(more) = ours.checked_sub(theirs) else { return false };
        // No host reaches 128 bits, since weights are summed over one host only.
        let more = more.saturating_mul(wide(unit.weight)).saturating_mul(wide(parts.of));
        let least = wide(unit.time).saturating_mul(wide(self.weight));
        more > least.saturating_mul(wide(other.weight)).saturating_mul(wide(parts.some))
    }
}

/// Fraction `some / of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ratio {
    pub(crate) some: u64,
    pub(crate) of: u64,
}

/// A best-effort vCPU that may migrate, as the balancer sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) vcpu: VcpuId,
    /// Weight of the vCPU times the fraction of time for which it was runnable.
    pub(crate) weight: Weight,
    /// CPU time that the vCPU received, per unit of weight.
    pub(crate) served: Tau,
    /// Affinity of the vCPU.
    pub(crate) allowed: CpuSet,
    /// Part of a sample in which the vCPU was runnable, in ns.
    pub(crate) runnable: u64,
    /// CPU time received minus the vCPU's share, by weight, of the CPU time that all vCPUs of its
    /// group of CPUs received, in ns. Summed over runs of the balancer. [balancer §1.8, 2]
    pub(crate) lead: i64,
}

/// Load of a CPU in a sample, and the best-effort vCPUs on it.
#[derive(Clone, Debug)]
pub(crate) struct BalancerCpu {
    pub(crate) cpu: CpuId,
    /// Part of the sample that reservations left to best-effort vCPUs, in ns.
    pub(crate) available: u64,
    /// Total weight of all vCPUs that share the available time, including those that may not
    /// migrate. Fixed point with `PLACES` binary places.
    pub(crate) weight: u64,
    /// CPUs to which at least one vCPU of this CPU may migrate, and this CPU. [balancer §1.8, 4]
    pub(crate) reach: CpuSet,
    /// vCPUs of this CPU that may migrate, in order of id.
    pub(crate) members: Vec<Member>,
}

impl BalancerCpu {
    /// Creates the load of a CPU without vCPUs. `available` is the part of a sample that
    /// reservations left.
    pub(crate) fn empty(cpu: CpuId, available: Span) -> BalancerCpu {
        let (reach, members) = (CpuSet::one(cpu), Vec::new());
        BalancerCpu { cpu, available: available.ns(), weight: 0, reach, members }
    }

    /// Adds the weight of a vCPU that may not migrate.
    pub(crate) fn add_staying(&mut self, weight: Weight) {
        self.weight = self.weight.saturating_add(weight.0);
    }

    /// Adds a vCPU that may migrate.
    pub(crate) fn add(&mut self, member: Member) {
        self.add_staying(member.weight);
        self.reach.add(&member.allowed);
        self.members.push(member);
    }

    /// Returns the available time of the CPU per weight.
    fn tau(&self) -> Tau {
        Tau { time: self.available, weight: self.weight }
    }

    /// Returns true if the CPU takes part in balancing: it has vCPUs with weight, or more than 1/50
    /// of the sample available. [balancer A7]
    fn counts(&self) -> bool {
        self.weight > 0 || self.available > SAMPLE.ns() / 50
    }
}

/// Migration of a vCPU from one CPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) vcpu: VcpuId,
    pub(crate) from: CpuId,
    pub(crate) to: CpuId,
}
