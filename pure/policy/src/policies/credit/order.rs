//! Order of the waiting vCPUs by claim, then by class, then by place in the queue. A claim is the
//! urgency that a guest reports for the work of a vCPU, or that is inferred for it.

use alloc::vec::Vec;

use slackline_units::{CpuId, Urgency, VcpuId};

use crate::queues::ordered::Queues;

/// Urgency that is claimed for a vCPU's work. A lower value is more urgent. `NONE` is the highest
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim(u16);

impl Claim {
    /// Urgency claim of a vCPU that has no report, or whose report does not count.
    pub(super) const NONE: Claim = Claim(256);
    /// The most urgent claim that a vCPU can have.
    pub(super) const HIGHEST: Claim = Claim(0);
    /// Urgency claim of a VM that usually answers I/O quickly, if claims are inferred. It equals
    /// the claim of the most urgent task of an ordinary (not real-time) class.
    pub(super) const INFERRED: Claim = Claim(100);
    /// Urgency claim of a task whose priority is the default of ordinary tasks.
    pub(super) const ORDINARY: Claim = Claim(Urgency::ORDINARY.0 as u16);

    #[inline]
    pub(super) fn of(urgency: u8) -> Claim {
        Claim(u16::from(urgency))
    }

    /// Returns the claim as an urgency on the scale of guest reports. `None` if there is no claim.
    pub(super) fn urgency(self) -> Option<u8> {
        u8::try_from(self.0).ok()
    }
}

/// End of a lane at which a vCPU enters. A lane is the list of the waiting vCPUs of one class on a
/// CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneEnd {
    First,
    Last,
}

/// Class of a vCPU whose urgency claim counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClaimClass {
    /// The vCPU has credit and is not boosted.
    Under,
    /// The vCPU has no credit.
    Over,
}

/// Order of the waiting vCPUs whose claims count, for each CPU.
///
/// A vCPU that enters a lane (the list of one class) gets a place number. At the head, this is the
/// lowest number so far; at the tail, the highest. So place numbers rise along a lane. The list of
/// a CPU that Xen's rules have not sorted yet is an exception, and is searched instead.
pub(super) struct ClaimOrder {
    queues: Queues<(Claim, ClaimClass, i64)>,
    /// Urgency claims of vCPUs and their places in the queue, by slot.
    rows: Vec<ClaimRow>,
    /// Number of the last place given at the head of a lane.
    first: i64,
    /// Number of the last place given at the tail of a lane.
    last: i64,
    /// Classes of vCPUs whose urgency claims count.
    pub(super) among: ClaimScope,
}

/// Classes of vCPUs whose urgency claims count. Boosted vCPUs precede all others in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimScope {
    /// Only vCPUs with credit.
    Under,
    /// All vCPUs that are not boosted.
    All,
}

/// Urgency claim of a vCPU and its place in the queue.
#[derive(Clone, Copy, Debug)]
struct ClaimRow {
    claim: Claim,
    place: i64,
}

impl ClaimOrder {
    pub(super) fn new(cpus: usize, among: ClaimScope) -> ClaimOrder {
        ClaimOrder { queues: Queues::new(cpus), rows: Vec::new(), first: 0, last: 0, among }
    }

    /// Adds the row of a vCPU that joins. The vCPU has no urgency claim yet.
    pub(super) fn join(&mut self, vcpu: VcpuId) {
        let row = ClaimRow { claim: Claim::NONE, place: 0 };
        if self.rows.len() <= vcpu.slot() {
            self.rows.resize(vcpu.slot() + 1, row);
        }
        self.rows[vcpu.slot()] = row;
    }

    /// Adds a vCPU at one end of its lane (the list of its class). `counts` is the vCPU's CPU and
    /// class; `None` if its urgency claim does not count.
    #[inline]
    pub(super) fn enter(
        &mut self,
        vcpu: VcpuId,
        end: LaneEnd,
        counts: Option<(CpuId, ClaimClass)>,
    ) {
        let row = &mut self.rows[vcpu.slot()];
        row.place = match end {
            LaneEnd::First => {
                self.first -= 1;
                self.first
            }
            LaneEnd::Last => {
                self.last += 1;
                self.last
            }
        };
        self.insert(vcpu, counts);
    }

    /// Removes a vCPU that leaves the list in which it waits.
    #[inline]
    pub(super) fn leave(&mut self, vcpu: VcpuId) {
        self.queues.remove(vcpu);
    }

    /// Changes the urgency claim or the class of a vCPU, which keeps its place.
    pub(super) fn change(
        &mut self,
        vcpu: VcpuId,
        claim: Claim,
        counts: Option<(CpuId, ClaimClass)>,
    ) {
        self.queues.remove(vcpu);
        self.rows[vcpu.slot()].claim = claim;
        self.insert(vcpu, counts);
    }

    /// Adds a vCPU to the order of its CPU if it has a claim that counts.
    #[inline]
    fn insert(&mut self, vcpu: VcpuId, counts: Option<(CpuId, ClaimClass)>) {
        let ClaimRow { claim, place } = self.rows[vcpu.slot()];
        if let (Some((cpu, standing)), true) = (counts, claim != Claim::NONE) {
            self.queues.insert(cpu.index(), (claim, standing, place), vcpu);
        }
    }

    /// Returns the urgency claim of a vCPU.
    #[inline]
    pub(super) fn claim(&self, vcpu: VcpuId) -> Claim {
        self.rows[vcpu.slot()].claim
    }

    /// Returns the most urgent claim and its vCPU, among the vCPUs for which `holds` is true.
    /// `None` if there is no such vCPU.
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

#[cfg(test)]
mod tests {
    use slackline_units::DomId;

    use super::*;

    const CPU: CpuId = CpuId::new(0);
    const OVER: Option<(CpuId, ClaimClass)> = Some((CPU, ClaimClass::Over));
    const UNDER: Option<(CpuId, ClaimClass)> = Some((CPU, ClaimClass::Under));

    fn vcpu(slot: u32) -> VcpuId {
        VcpuId::new(slot, DomId::new(slot), 0)
    }

    /// Returns the slots of all vCPUs that have an urgency claim, the most urgent first.
    fn all(order: &ClaimOrder) -> Vec<usize> {
        let mut all: Vec<VcpuId> = Vec::new();
        while let Some((_, next)) = order.first_that(CPU, |vcpu| !all.contains(&vcpu)) {
            all.push(next);
        }
        all.into_iter().map(VcpuId::slot).collect()
    }

    fn claiming(claims: &[Claim]) -> ClaimOrder {
        let mut order = ClaimOrder::new(1, ClaimScope::All);
        for (slot, &claim) in (0..).zip(claims) {
            order.join(vcpu(slot));
            order.change(vcpu(slot), claim, None);
        }
        order
    }

    /// A vCPU that enters at the head precedes all vCPUs of its class. A vCPU that enters at the
    /// tail follows all of them.
    #[test]
    fn vcpus_with_equal_claims_keep_run_queue_order_under_gaps() {
        let mut order = claiming(&[Claim::of(110); 6]);
        for (slot, end) in [
            (3, LaneEnd::Last),
            (1, LaneEnd::Last),
            (4, LaneEnd::First),
            (5, LaneEnd::First),
            (2, LaneEnd::Last),
            (0, LaneEnd::Last),
        ] {
            order.enter(vcpu(slot), end, UNDER);
        }
        assert_eq!(all(&order), [5, 4, 3, 1, 2, 0]);
        order.leave(vcpu(3));
        order.enter(vcpu(3), LaneEnd::Last, UNDER);
        assert_eq!(all(&order), [5, 4, 1, 2, 0, 3]);
    }

    /// A vCPU with a more urgent claim comes first, whatever its credit. Of equal claims, a vCPU
    /// with credit comes first, and then the place in the queue decides. A vCPU without a claim
    /// that counts is not in the order.
    #[test]
    fn vcpus_under_gaps_are_ordered_by_their_active_urgency_claims() {
        let mut order = claiming(&[Claim::of(120), Claim::of(120), Claim::of(9), Claim::NONE]);
        let counts = [OVER, UNDER, OVER, UNDER];
        for (slot, counts) in (0..).zip(counts) {
            order.enter(vcpu(slot), LaneEnd::Last, counts);
        }
        assert_eq!(all(&order), [2, 1, 0]);
        order.change(vcpu(2), Claim::NONE, OVER);
        order.change(vcpu(3), Claim::HIGHEST, UNDER);
        assert_eq!(all(&order), [3, 1, 0]);
        // With the same claim and credit a vCPU keeps its place.
        order.change(vcpu(0), Claim::of(120), UNDER);
        assert_eq!(all(&order), [3, 0, 1]);
        order.change(vcpu(1), Claim::of(120), None);
        assert_eq!(all(&order), [3, 0]);
        assert_eq!(
            [0, 2, 3].map(|slot| order.claim(vcpu(slot)).urgency()),
            [Some(120), None, Some(0)]
        );
    }
}
