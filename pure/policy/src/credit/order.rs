//! Who of those that wait claims most: in order of claims, then of classes, then of place in line.

use alloc::vec::Vec;

use slackline_units::{CpuId, Urgency, VcpuId};

use crate::queue::Queues;

/// How urgent what a vCPU has to do is said to be: less is more, and none is least of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim(u16);

impl Claim {
    /// Nothing was told, or nothing that counts.
    pub(super) const NONE: Claim = Claim(256);
    /// Nothing is more urgent.
    pub(super) const HIGHEST: Claim = Claim(0);
    /// What is taken to be urgent for what is seen of it: no more than the most urgent of what
    /// shares the CPU by time.
    pub(super) const INFERRED: Claim = Claim(100);
    /// What runs without a wish.
    pub(super) const ORDINARY: Claim = Claim(Urgency::ORDINARY.0 as u16);

    #[inline]
    pub(super) fn of(urgency: u8) -> Claim {
        Claim(u16::from(urgency))
    }

    /// On the scale of what was told.
    pub(super) fn urgency(self) -> Option<u8> {
        u8::try_from(self.0).ok()
    }
}

/// Where in its lane somebody comes to stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    First,
    Last,
}

/// Where a vCPU stands whose claim counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// Among those with credit left and no more.
    Under,
    /// Among those without.
    Over,
}

/// The vCPUs that wait and whose claims count, by CPU.
///
/// Places are numbered as they are taken, at both ends of a lane; so they are in order while lanes
/// are. A mixed list is not, and has to be looked through.
pub(super) struct Order {
    queues: Queues<(Claim, Standing, i64)>,
    /// By slot.
    rows: Vec<Row>,
    first: i64,
    last: i64,
    /// Among whom claims count.
    pub(super) among: Among,
}

/// Among whom claims count: those boosted are served before all others in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// Those with credit left.
    Under,
    /// Everybody else.
    All,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    claim: Claim,
    place: i64,
}

impl Order {
    pub(super) fn new(cpus: usize, among: Among) -> Order {
        Order { queues: Queues::new(cpus), rows: Vec::new(), first: 0, last: 0, among }
    }

    /// From now on `vcpu` may stand in lines; it claims nothing.
    pub(super) fn join(&mut self, vcpu: VcpuId) {
        let row = Row { claim: Claim::NONE, place: 0 };
        if self.rows.len() <= vcpu.slot() {
            self.rows.resize(vcpu.slot() + 1, row);
        }
        self.rows[vcpu.slot()] = row;
    }

    /// A vCPU comes to stand at one end of its lane; where, if its claim counts there.
    #[inline]
    pub(super) fn enter(&mut self, vcpu: VcpuId, end: End, counts: Option<(CpuId, Standing)>) {
        let row = &mut self.rows[vcpu.slot()];
        row.place = match end {
            End::First => {
                self.first -= 1;
                self.first
            }
            End::Last => {
                self.last += 1;
                self.last
            }
        };
        self.insert(vcpu, counts);
    }

    /// A vCPU stands in no line any more.
    #[inline]
    pub(super) fn leave(&mut self, vcpu: VcpuId) {
        self.queues.remove(vcpu);
    }

    /// A vCPU claims something else, or becomes of another class, and stays where it stands.
    pub(super) fn change(&mut self, vcpu: VcpuId, claim: Claim, counts: Option<(CpuId, Standing)>) {
        self.queues.remove(vcpu);
        self.rows[vcpu.slot()].claim = claim;
        self.insert(vcpu, counts);
    }

    #[inline]
    fn insert(&mut self, vcpu: VcpuId, counts: Option<(CpuId, Standing)>) {
        let Row { claim, place } = self.rows[vcpu.slot()];
        if let (Some((cpu, standing)), true) = (counts, claim != Claim::NONE) {
            self.queues.insert(cpu.index(), (claim, standing, place), vcpu);
        }
    }

    /// What a vCPU claims.
    #[inline]
    pub(super) fn claim(&self, vcpu: VcpuId) -> Claim {
        self.rows[vcpu.slot()].claim
    }

    /// Who claims most of those of whom something holds.
    #[inline]
    pub(super) fn first_that(
        &self,
        cpu: CpuId,
        holds: impl Fn(VcpuId) -> bool,
    ) -> Option<(Claim, VcpuId)> {
        let ((claim, ..), vcpu) = self.queues.first_that(cpu.index(), holds)?;
        Some((claim, vcpu))
    }
}
