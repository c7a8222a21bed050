//! Who of those that wait claims most: in order of claims, then of classes, then of place in line.

use alloc::vec::Vec;

use slackline_units::{CpuId, Urgency, VcpuId};

use crate::queues::ordered::Queues;

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

#[cfg(test)]
mod tests {
    use slackline_units::DomId;

    use super::*;

    const CPU: CpuId = CpuId::new(0);
    const OVER: Option<(CpuId, Standing)> = Some((CPU, Standing::Over));
    const UNDER: Option<(CpuId, Standing)> = Some((CPU, Standing::Under));

    fn vcpu(slot: u32) -> VcpuId {
        VcpuId::new(slot, DomId::new(slot), 0)
    }

    /// All that claim something, those that claim most first.
    fn all(order: &Order) -> Vec<usize> {
        let mut all: Vec<VcpuId> = Vec::new();
        while let Some((_, next)) = order.first_that(CPU, |vcpu| !all.contains(&vcpu)) {
            all.push(next);
        }
        all.into_iter().map(VcpuId::slot).collect()
    }

    fn claiming(claims: &[Claim]) -> Order {
        let mut order = Order::new(1, Among::All);
        for (slot, &claim) in (0..).zip(claims) {
            order.join(vcpu(slot));
            order.change(vcpu(slot), claim, None);
        }
        order
    }

    /// One of two that come to the head stands before all, the other one before that; who comes to
    /// the tail stands behind all.
    #[test]
    fn equal_claims_are_in_order_of_places() {
        let mut order = claiming(&[Claim::of(110); 6]);
        for (slot, end) in [
            (3, End::Last),
            (1, End::Last),
            (4, End::First),
            (5, End::First),
            (2, End::Last),
            (0, End::Last),
        ] {
            order.enter(vcpu(slot), end, UNDER);
        }
        assert_eq!(all(&order), [5, 4, 3, 1, 2, 0]);
        order.leave(vcpu(3));
        order.enter(vcpu(3), End::Last, UNDER);
        assert_eq!(all(&order), [5, 4, 1, 2, 0, 3]);
    }

    /// A claim comes before credit, and credit before place; who claims nothing, and whose claim
    /// does not count where it stands, is not in it.
    #[test]
    fn more_urgent_claims_come_first_and_none_not_at_all() {
        let mut order = claiming(&[Claim::of(120), Claim::of(120), Claim::of(9), Claim::NONE]);
        let counts = [OVER, UNDER, OVER, UNDER];
        for (slot, counts) in (0..).zip(counts) {
            order.enter(vcpu(slot), End::Last, counts);
        }
        assert_eq!(all(&order), [2, 1, 0]);
        order.change(vcpu(2), Claim::NONE, OVER);
        order.change(vcpu(3), Claim::HIGHEST, UNDER);
        assert_eq!(all(&order), [3, 1, 0]);
        // Of the same claim and credit it keeps the place that it had.
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
