//! Who goes to another CPU, where each CPU shares out by itself what guarantees leave of it.
//!
//! Sources: Diestelhorst, Scheduling in the Xen hypervisor, 2007, chapter 4, cited as
//! [Diestelhorst]; where it leaves something open or is at odds with its own examples, what the
//! reference on balancers (`smp-balancer`, cited as [balancer]) takes.
//!
//! Everything here is a function from books to moves: it knows no scheduler, no queue and no
//! clock. `books` samples what each vCPU and CPU had, `groups` finds the CPUs that can help
//! each other, and `pairs` is a run of the thesis's balancer, with `swap` for one pair of CPUs;
//! `planned` works out what each should have, and splits those who fit nowhere.
//! A *best-effort* vCPU has a weight and no guarantee: only those move.
//!
//! *Tau* is CPU time for weight: who has little of it is under-served. No floats: fractions are
//! compared as cross products.

pub(crate) mod books;
pub(crate) mod fields;
pub(crate) mod groups;
pub(crate) mod pairs;
pub(crate) mod planned;
mod swap;

use alloc::vec::Vec;
use core::cmp::Ordering;

use slackline_units::{CpuId, CpuSet, Span, VcpuId};

/// How many binary places a weight has here. [balancer §1.3] A weight below 2^15 fits in 31 bits,
/// and products of a CPU's time and two sums of such weights in 128.
const PLACES: u32 = 16;

/// How often a balancer is called, which takes a sample each second time. [Diestelhorst §4.4.3]
pub(crate) const CALL: Span = Span::from_ms(50);

/// How long a sample is, and what every sample is projected on. [Diestelhorst §4.4.3]
pub(crate) const SAMPLE: Span = Span::from_ms(100);

/// How far apart two runs are, and how long a plan's period is. [Diestelhorst §4.4.3]
pub(crate) const RUN: Span = Span::from_ms(500);

/// A weight, or the part of one that was awake; with binary places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Weight(u64);

impl Weight {
    /// `above / below`, rounded down.
    pub(crate) fn fraction(above: u64, below: u64) -> Weight {
        let quotient = (u128::from(above) << PLACES) / u128::from(below.max(1));
        Weight(u64::try_from(quotient).unwrap_or(u64::MAX))
    }

    /// With its binary places.
    pub(crate) fn units(self) -> u64 {
        self.0
    }

    /// How much of a sample it is of `full`, in ns.
    pub(crate) fn of_sample(self, full: Weight) -> u64 {
        SAMPLE.ns().min(Weight(SAMPLE.ns()).part(Span::from_ns(self.0), Span::from_ns(full.0)).0)
    }

    /// `part / whole` of it, rounded down.
    fn part(self, part: Span, whole: Span) -> Weight {
        if part == whole {
            return self; // Who never sleeps, and division is slow.
        }
        let part = u128::from(self.0) * u128::from(part.ns()) / u128::from(whole.ns().max(1));
        Weight(u64::try_from(part).unwrap_or(self.0))
    }
}

/// So much time in each sample, for such a weight: a fraction. Without weight it is infinite.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tau {
    pub(crate) time: u64,
    pub(crate) weight: u64,
}

impl Tau {
    fn compare(self, other: Tau) -> Ordering {
        let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
        product(self.time, other.weight).cmp(&product(other.time, self.weight))
    }

    /// Whether it is more than so many parts of `unit` above another one, which has weight.
    fn exceeds(self, other: Tau, unit: Tau, parts: Parts) -> bool {
        if self.weight == 0 {
            return true;
        }
        let wide = u128::from;
        let (ours, theirs) =
            (wide(self.time) * wide(other.weight), wide(other.time) * wide(self.weight));
        let Some(more) = ours.checked_sub(theirs) else { return false };
        // What is beyond 128 bits is beyond any host: weights are summed over those of one.
        let more = more.saturating_mul(wide(unit.weight)).saturating_mul(wide(parts.of));
        let least = wide(unit.time).saturating_mul(wide(self.weight));
        more > least.saturating_mul(wide(other.weight)).saturating_mul(wide(parts.some))
    }
}

/// `some` parts of a whole of `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) some: u64,
    pub(crate) of: u64,
}

/// A best-effort vCPU where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) vcpu: VcpuId,
    /// Its weight while it was awake.
    pub(crate) weight: Weight,
    /// What it got for that.
    pub(crate) served: Tau,
    pub(crate) allowed: CpuSet,
    /// For how much of a sample it was awake, in ns.
    pub(crate) runnable: u64,
    /// Work that it received beyond its fair part of what its group did, in ns. [balancer §1.8, 2]
    pub(crate) lead: i64,
}

/// A CPU, and who is there.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) cpu: CpuId,
    /// What guarantees left in a sample, in ns.
    pub(crate) available: u64,
    /// Of all who share that, also of those who stay: `Weight`s, summed up.
    pub(crate) weight: u64,
    /// Where those who may move may go, and the CPU itself. [balancer §1.8, 4]
    pub(crate) reach: CpuSet,
    /// Those who may move, by id.
    pub(crate) members: Vec<Member>,
}

impl Load {
    /// A CPU of which guarantees leave so much, and nobody there.
    pub(crate) fn empty(cpu: CpuId, available: Span) -> Load {
        let (reach, members) = (CpuSet::one(cpu), Vec::new());
        Load { cpu, available: available.ns(), weight: 0, reach, members }
    }

    /// Somebody is here who stays, whatever becomes of the others.
    pub(crate) fn add_staying(&mut self, weight: Weight) {
        self.weight = self.weight.saturating_add(weight.0);
    }

    /// Somebody is here who may move.
    pub(crate) fn add(&mut self, member: Member) {
        self.add_staying(member.weight);
        self.reach.add(&member.allowed);
        self.members.push(member);
    }

    fn tau(&self) -> Tau {
        Tau { time: self.available, weight: self.weight }
    }

    /// Whether there is anything to share, or anybody who would. [balancer A7]
    fn counts(&self) -> bool {
        self.weight > 0 || self.available > SAMPLE.ns() / 50
    }
}

/// Somebody goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) vcpu: VcpuId,
    pub(crate) from: CpuId,
    pub(crate) to: CpuId,
}
