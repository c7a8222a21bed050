//! Who of those that wait with credit claims most: in order of claims, and of place in line where
//! claims are the same.

use alloc::vec::Vec;

use slackline_units::{CpuId, VcpuId};

use crate::queue::Queues;

/// How urgent what a vCPU has to do is said to be: less is more, and none is least of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim(u16);

impl Claim {
    /// Nothing was told, or nothing that counts.
    pub(super) const NONE: Claim = Claim(256);
    /// Nothing is more urgent.
    pub(super) const HIGHEST: Claim = Claim(0);

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

/// The vCPUs that wait with credit and claim something, by CPU.
///
/// Places are numbered as they are taken, at both ends of a lane; so they are in order while lanes
/// are. A mixed list is not, and has to be looked through.
pub(super) struct Order {
    queues: Queues<(Claim, i64)>,
    /// By slot.
    rows: Vec<Row>,
    first: i64,
    last: i64,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    claim: Claim,
    place: i64,
}

impl Order {
    pub(super) fn new(cpus: usize) -> Order {
        Order { queues: Queues::new(cpus), rows: Vec::new(), first: 0, last: 0 }
    }

    /// From now on `vcpu` may stand in lines; it claims nothing.
    pub(super) fn join(&mut self, vcpu: VcpuId) {
        let row = Row { claim: Claim::NONE, place: 0 };
        if self.rows.len() <= vcpu.slot() {
            self.rows.resize(vcpu.slot() + 1, row);
        }
        self.rows[vcpu.slot()] = row;
    }

    /// A vCPU comes to stand at one end of its lane; of which CPU, if it has credit and no more.
    #[inline]
    pub(super) fn enter(&mut self, vcpu: VcpuId, end: End, counts_on: Option<CpuId>) {
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
        self.insert(vcpu, counts_on);
    }

    /// A vCPU stands in no line any more.
    #[inline]
    pub(super) fn leave(&mut self, vcpu: VcpuId) {
        self.queues.remove(vcpu);
    }

    /// A vCPU claims something else, or comes to have credit or not, and stays where it stands.
    pub(super) fn change(&mut self, vcpu: VcpuId, claim: Claim, counts_on: Option<CpuId>) {
        self.queues.remove(vcpu);
        self.rows[vcpu.slot()].claim = claim;
        self.insert(vcpu, counts_on);
    }

    #[inline]
    fn insert(&mut self, vcpu: VcpuId, counts_on: Option<CpuId>) {
        let Row { claim, place } = self.rows[vcpu.slot()];
        if let (Some(cpu), true) = (counts_on, claim != Claim::NONE) {
            self.queues.insert(cpu.index(), (claim, place), vcpu);
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
        let ((claim, _), vcpu) = self.queues.first_that(cpu.index(), holds)?;
        Some((claim, vcpu))
    }
}
