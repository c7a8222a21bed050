//! Slots and ids of a session's members. A slot can be used again by a later member, but an id is
//! never used again.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use slackline_units::{DomId, VcpuId};

/// Id of a member (a vCPU that a session schedules). It consists of the vCPU's id and the number of
/// its join among all joins of the session. A later member with the same vCPU id has a different
/// number. So the id of a member that has left refers to no member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JoinId {
    vcpu: VcpuId,
    join: u64,
}

impl JoinId {
    /// Returns the id of the vCPU, which names the member in records while the member is present.
    #[must_use]
    pub const fn vcpu(self) -> VcpuId {
        self.vcpu
    }

    /// Returns the number of the join among all joins of the session.
    pub(super) const fn join(self) -> u64 {
        self.join
    }
}

/// Table with a row for each member. The size of the table is the highest slot that was in use, so
/// the table does not grow with the number of joins.
#[derive(Debug)]
pub(super) struct Table<T> {
    /// Rows of the members with their ids, by slot.
    rows: Vec<Option<(JoinId, T)>>,
    /// Number of the VM (domain), number of the vCPU in the VM, and slot of each member.
    called: BTreeSet<(DomId, u16, usize)>,
    /// Slots that are not in use.
    free: BTreeSet<usize>,
    /// Number of joins so far.
    joins: u64,
    /// Number of removed rows, and of calls of [`note_change`](Table::note_change).
    revision: u64,
    /// Number at which the search for the number of a new VM (domain) begins.
    next_domain: u32,
}

/// Number of different domain numbers (numbers of VMs) that an id can have. After that many VMs,
/// the numbers start from zero again.
const DOMAINS: u32 = 1 << 23;

impl<T> Table<T> {
    pub(super) fn new() -> Table<T> {
        let (called, free) = (BTreeSet::new(), BTreeSet::new());
        Table { rows: Vec::new(), called, free, joins: 0, revision: 0, next_domain: 0 }
    }

    /// Returns a number for a new domain (VM). No VM of a present member has that number.
    pub(super) fn new_domain(&mut self) -> DomId {
        loop {
            let domain = DomId::new(self.next_domain);
            self.next_domain = (self.next_domain + 1) % DOMAINS;
            if self.of_domain(domain).next().is_none() {
                return domain;
            }
        }
    }

    /// Adds a row in the lowest free slot, for vCPU `number` of the VM `domain`.
    pub(super) fn add(&mut self, domain: DomId, number: u16, row: T) -> JoinId {
        let slot = self.free.first().copied().unwrap_or(self.rows.len());
        let slot = u32::try_from(slot).expect("slots are fewer than the kernel's thread ids");
        self.put(VcpuId::new(slot, domain, number), row)
    }

    /// Adds a row in the slot that the id `vcpu` contains. If the slot is in use, adds nothing and
    /// returns `None`.
    pub(super) fn add_as(&mut self, vcpu: VcpuId, row: T) -> Option<JoinId> {
        let is_free = self.rows.get(vcpu.slot()).is_none_or(Option::is_none);
        is_free.then(|| self.put(vcpu, row))
    }

    fn put(&mut self, vcpu: VcpuId, row: T) -> JoinId {
        while self.rows.len() <= vcpu.slot() {
            self.free.insert(self.rows.len());
            self.rows.push(None);
        }
        self.free.remove(&vcpu.slot());
        let id = JoinId { vcpu, join: self.joins };
        self.joins += 1;
        self.called.insert((vcpu.domain(), vcpu.number(), vcpu.slot()));
        self.rows[vcpu.slot()] = Some((id, row));
        id
    }

    pub(super) fn get(&self, id: JoinId) -> Option<&T> {
        let row = self.rows.get(id.vcpu.slot())?.as_ref();
        row.filter(|(there, _)| *there == id).map(|(_, row)| row)
    }

    pub(super) fn get_mut(&mut self, id: JoinId) -> Option<&mut T> {
        let row = self.rows.get_mut(id.vcpu.slot())?.as_mut();
        row.filter(|(there, _)| *there == id).map(|(_, row)| row)
    }

    pub(super) fn remove(&mut self, id: JoinId) -> Option<T> {
        self.get(id)?;
        self.note_change();
        self.called.remove(&(id.vcpu.domain(), id.vcpu.number(), id.vcpu.slot()));
        self.free.insert(id.vcpu.slot());
        self.rows[id.vcpu.slot()].take().map(|(_, row)| row)
    }

    /// Returns a number that grows each time a row is removed or a change is noted.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Notes a change on which the results of computations over all rows depend.
    pub(super) fn note_change(&mut self) {
        self.revision += 1;
    }

    /// Returns the rows of a VM in order of vCPU number.
    pub(super) fn of_domain(&self, domain: DomId) -> impl Iterator<Item = (JoinId, &T)> {
        self.in_range((domain, 0, 0)..=(domain, u16::MAX, usize::MAX))
    }

    /// Returns the rows of one vCPU of a VM. Usually there is one row. While the vCPU's thread is
    /// replaced, there are two.
    pub(super) fn of_vcpu(&self, domain: DomId, number: u16) -> impl Iterator<Item = (JoinId, &T)> {
        self.in_range((domain, number, 0)..=(domain, number, usize::MAX))
    }

    fn in_range(
        &self,
        range: RangeInclusive<(DomId, u16, usize)>,
    ) -> impl Iterator<Item = (JoinId, &T)> {
        let rows = self.called.range(range);
        rows.filter_map(|&(_, _, slot)| self.rows[slot].as_ref()).map(|(id, row)| (*id, row))
    }

    /// Returns all rows in order of slot.
    pub(super) fn iter(&self) -> impl Iterator<Item = (JoinId, &T)> {
        self.rows.iter().flatten().map(|(id, row)| (*id, row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpu_slots_are_reused_over_a_million_joins_and_leaves() {
        let mut table = Table::new();
        let mut there = std::collections::VecDeque::new();
        for join in 0..1_000_000_u64 {
            let domain = table.new_domain();
            there.push_back(table.add(domain, 0, join));
            if there.len() > 50 {
                let first = there.pop_front().expect("more than 50 are there");
                assert_eq!(table.remove(first), Some(join - 50));
                assert_eq!(table.get(first), None);
                assert_eq!(table.remove(first), None);
            }
        }
        assert_eq!((table.rows.len(), table.iter().count()), (51, 50));
        assert!(table.rows.capacity() <= 128 && table.free.len() == 1);
    }

    #[test]
    fn vcpus_of_a_domain_are_found_among_many_members() {
        let mut table = Table::new();
        let began = std::time::Instant::now();
        for join in 0..100_000_u32 {
            let (domain, number) = (DomId::new(join / 500), u16::try_from(join % 500).unwrap());
            assert!(table.of_vcpu(domain, number).next().is_none());
            table.add(domain, number, join);
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
        let domain = DomId::new(7);
        let rows: Vec<u32> = table.of_domain(domain).map(|(_, row)| *row).collect();
        assert_eq!(rows, (3_500..4_000).collect::<Vec<_>>());
        let (id, row) = table.of_vcpu(domain, 3).next().expect("vCPU 3 is there");
        assert_eq!(*row, 3_503);
        let another = table.add(domain, 3, 0);
        assert_eq!(table.of_vcpu(domain, 3).count(), 2);
        assert_eq!((table.remove(id), table.remove(another)), (Some(3_503), Some(0)));
        assert_eq!(table.of_vcpu(domain, 3).count(), 0);
        assert_eq!(table.new_domain(), DomId::new(200));
    }

    #[test]
    fn vcpu_joining_in_reused_slot_gets_new_join_id() {
        let mut table = Table::new();
        let vcpu = VcpuId::new(3, DomId::new(7), 0);
        let first = table.add_as(vcpu, "first").expect("slot 3 is free");
        assert_eq!(table.add_as(vcpu, "second"), None);
        assert_eq!(table.remove(first), Some("first"));
        let second = table.add_as(vcpu, "second").expect("slot 3 is free again");
        assert_ne!(first, second);
        assert_eq!((table.get(first), table.get(second)), (None, Some(&"second")));
        assert_eq!(table.remove(first), None);
        let domain = table.new_domain();
        assert_eq!(table.add(domain, 0, "third").vcpu().slot(), 0);
    }
}
