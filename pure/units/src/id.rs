//! Identifiers of CPUs, domains and their vCPUs, and sets of CPUs.

use core::fmt;
use core::num::NonZeroU64;

/// A CPU of the host. CPUs are numbered from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(u8);

impl CpuId {
    /// Maximum number of CPUs of a host.
    pub const LIMIT: usize = 256;

    /// Creates the id of the CPU with this number.
    ///
    /// # Panics
    /// If `number` is not below [`CpuId::LIMIT`].
    #[must_use]
    #[inline]
    pub const fn new(number: usize) -> CpuId {
        assert!(number < CpuId::LIMIT, "a host has at most 256 CPUs");
        #[allow(clippy::cast_possible_truncation)] // Checked right above.
        CpuId(number as u8)
    }

    /// Returns the number of the CPU, for indexing.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cpu{}", self.0)
    }
}

/// A domain: one VM, or one group of vCPUs that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomId(u32);

impl DomId {
    /// Domain id that no VM ever has. The daemon schedules its own front process under this id.
    pub const OF_SERVICE: DomId = DomId((1 << 23) - 1);

    /// Creates the id of the domain with this number.
    #[must_use]
    #[inline]
    pub const fn new(number: u32) -> DomId {
        DomId(number)
    }

    /// Returns the number of the domain.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for DomId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "d{}", self.0)
    }
}

/// A task of a domain's guest, by a number that is unique within the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(u16);

impl TaskId {
    /// Creates the id of the task with this number.
    #[must_use]
    #[inline]
    pub const fn new(number: u16) -> TaskId {
        TaskId(number)
    }

    /// Returns the number of the task.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "t{}", self.0)
    }
}

/// A client on the network, by its number in the scenario, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u16);

impl ClientId {
    /// Creates the id of the client with this number.
    #[must_use]
    #[inline]
    pub const fn new(number: u16) -> ClientId {
        ClientId(number)
    }

    /// Returns the number of the client.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "client{}", self.0)
    }
}

/// A virtual CPU.
///
/// `slot` is the row of the vCPU in all tables of vCPUs. Slots are small, dense and unique, and ids
/// are ordered by slot. `domain` is the VM, and `number` counts the vCPUs of that VM from zero.
///
/// Tables and queues contain many ids, so an id and an `Option` of an id each fit in one 64-bit
/// word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VcpuId(NonZeroU64);

/// Bit offset of the vCPU's number in an id. The lowest bit of an id is always one, so that the id
/// is never zero.
const NUMBER: u32 = 1;
/// Bit offset of the domain's number in an id.
const DOMAIN: u32 = NUMBER + u16::BITS;
/// Bit offset of the slot in an id.
const SLOT: u32 = DOMAIN + 23;

impl VcpuId {
    /// Creates the id of vCPU `number` of `domain`. `slot` is its row in all tables of vCPUs.
    ///
    /// # Panics
    /// If `slot` is 2^24 or more, or if the number of `domain` is 2^23 or more.
    #[must_use]
    #[inline]
    pub const fn new(slot: u32, domain: DomId, number: u16) -> VcpuId {
        VcpuId::checked(slot, domain, number).expect("slot below 2^24 and domain below 2^23")
    }

    /// Returns the same id as [`VcpuId::new`], or `None` if `slot` or `domain` is too large.
    #[must_use]
    #[inline]
    pub const fn checked(slot: u32, domain: DomId, number: u16) -> Option<VcpuId> {
        if slot >> (u64::BITS - SLOT) != 0 || domain.0 >> (SLOT - DOMAIN) != 0 {
            return None;
        }
        let (slot, domain, number) = (slot as u64, domain.0 as u64, number as u64);
        match NonZeroU64::new(slot << SLOT | domain << DOMAIN | number << NUMBER | 1) {
            Some(word) => Some(VcpuId(word)),
            None => None,
        }
    }

    /// Returns the row of the vCPU in all tables of vCPUs.
    #[must_use]
    #[inline]
    pub const fn slot(self) -> usize {
        (self.0.get() >> SLOT) as usize
    }

    /// Returns the domain (VM) to which the vCPU belongs.
    #[must_use]
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // 23 bits.
    pub const fn domain(self) -> DomId {
        DomId((self.0.get() >> DOMAIN) as u32 & ((1 << (SLOT - DOMAIN)) - 1))
    }

    /// Returns the number of the vCPU within its domain.
    #[must_use]
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // The bits above are cut off on purpose.
    pub const fn number(self) -> u16 {
        (self.0.get() >> NUMBER) as u16
    }
}

impl fmt::Debug for VcpuId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self} in slot {}", self.slot())
    }
}

impl fmt::Display for VcpuId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}v{}", self.domain(), self.number())
    }
}

/// Number of 64-bit words in a set of CPUs.
const WORDS: usize = CpuId::LIMIT / 64;

/// A set of CPUs. Sets have an order so that they can be keys of maps. The order has no other
/// meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuSet([u64; WORDS]);

impl CpuSet {
    /// Set without any CPU.
    pub const NONE: CpuSet = CpuSet([0; WORDS]);

    /// Creates a set that contains only this CPU.
    #[inline]
    #[must_use]
    pub fn one(cpu: CpuId) -> CpuSet {
        let mut set = CpuSet::NONE;
        set.insert(cpu);
        set
    }

    /// Creates the set of all CPUs with numbers below `count`.
    #[must_use]
    #[inline]
    pub fn first_n(count: usize) -> CpuSet {
        let bits = |word: usize| match count.saturating_sub(64 * word) {
            0 => 0,
            left @ 1..64 => (1 << left) - 1,
            _ => u64::MAX,
        };
        CpuSet(core::array::from_fn(bits))
    }

    /// Adds a CPU to the set.
    #[inline]
    pub fn insert(&mut self, cpu: CpuId) {
        self.0[cpu.index() / 64] |= 1 << (cpu.index() % 64);
    }

    /// Removes a CPU from the set.
    #[inline]
    pub fn remove(&mut self, cpu: CpuId) {
        self.0[cpu.index() / 64] &= !(1 << (cpu.index() % 64));
    }

    /// Adds all CPUs of another set.
    #[inline]
    pub fn add(&mut self, others: &CpuSet) {
        *self = CpuSet(core::array::from_fn(|word| self.0[word] | others.0[word]));
    }

    /// Returns true if the CPU is in the set.
    #[inline]
    #[must_use]
    pub const fn contains(&self, cpu: CpuId) -> bool {
        self.0[cpu.index() / 64] & (1 << (cpu.index() % 64)) != 0
    }

    /// Returns the CPUs that are in both sets.
    #[inline]
    #[must_use]
    pub fn and(&self, other: &CpuSet) -> CpuSet {
        CpuSet(core::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Returns the CPUs that are in this set and not in the other.
    #[inline]
    #[must_use]
    pub fn without(&self, other: &CpuSet) -> CpuSet {
        CpuSet(core::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// Returns the number of CPUs in the set.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns true if the set is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Returns the only CPU of the set. `None` if the set is empty or has several CPUs.
    #[inline]
    #[must_use]
    pub fn only(&self) -> Option<CpuId> {
        let [first, beyond @ ..] = &self.0;
        // Most hosts have at most 64 CPUs and need one word only.
        if beyond.iter().fold(0, |all, bits| all | bits) == 0 {
            return first.is_power_of_two().then(|| CpuId::new(first.trailing_zeros() as usize));
        }
        let mut cpus = self.iter();
        cpus.next().filter(|_| cpus.next().is_none())
    }

    /// Returns the CPU with the lowest number. `None` if the set is empty.
    #[inline]
    #[must_use]
    pub fn first(&self) -> Option<CpuId> {
        let word = self.0.iter().position(|&bits| bits != 0)?;
        Some(CpuId::new(word * 64 + self.0[word].trailing_zeros() as usize))
    }

    /// Iterates over the CPUs in order of number. Starts after `cpu` and wraps around, so `cpu`
    /// itself comes last.
    #[inline]
    pub fn iter_after(&self, cpu: CpuId) -> impl Iterator<Item = CpuId> + use<> {
        let before = CpuSet::first_n(cpu.index() + 1);
        self.without(&before).iter().chain(self.and(&before).iter())
    }

    /// Iterates over the CPUs in order of their number.
    #[inline]
    #[must_use]
    pub fn iter(&self) -> CpuSetIter {
        let [_, beyond @ ..] = self.0;
        // Most hosts have at most 64 CPUs and need one word only.
        let words = if beyond == [0; WORDS - 1] { 1 } else { WORDS };
        CpuSetIter { left: *self, word: 0, words }
    }
}

/// Iterator over the CPUs of a set.
#[derive(Clone, Debug)]
pub struct CpuSetIter {
    left: CpuSet,
    /// Index of the current word. All CPUs of earlier words have been returned.
    word: usize,
    words: usize,
}

impl Iterator for CpuSetIter {
    type Item = CpuId;

    #[inline]
    fn next(&mut self) -> Option<CpuId> {
        while self.word < self.words {
            let bits = &mut self.left.0[self.word];
            if *bits != 0 {
                let lowest = bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                return Some(CpuId::new(64 * self.word + lowest));
            }
            self.word += 1;
        }
        None
    }
}

impl Extend<CpuId> for CpuSet {
    fn extend<I: IntoIterator<Item = CpuId>>(&mut self, cpus: I) {
        cpus.into_iter().for_each(|cpu| self.insert(cpu));
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> CpuSet {
        let mut set = CpuSet::NONE;
        set.extend(cpus);
        set
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn cpu_set_returns_its_cpus_in_ascending_order() {
        let cpus = [200, 3, 64, 0].map(CpuId::new);
        let set: CpuSet = cpus.into_iter().collect();
        assert_eq!(set.iter().map(CpuId::index).collect::<Vec<_>>(), [0, 3, 64, 200]);
        assert!(set.contains(CpuId::new(64)) && !set.contains(CpuId::new(65)));
        assert_eq!(set.first(), Some(CpuId::new(0)));
        assert!(CpuSet::NONE.is_empty() && CpuSet::NONE.first().is_none());
        assert!(set.only().is_none() && CpuSet::NONE.only().is_none());
        for cpu in cpus {
            assert_eq!(CpuSet::one(cpu).only(), Some(cpu));
        }
        assert_eq!(
            set.and(&CpuSet::first_n(64)).iter().map(CpuId::index).collect::<Vec<_>>(),
            [0, 3]
        );
        assert_eq!(
            set.without(&CpuSet::first_n(64)).iter().map(CpuId::index).collect::<Vec<_>>(),
            [64, 200]
        );
        let after = |cpu| set.iter_after(CpuId::new(cpu)).map(CpuId::index).collect::<Vec<_>>();
        assert_eq!(after(3), [64, 200, 0, 3]);
        assert_eq!(after(63), [64, 200, 0, 3]);
        assert_eq!(after(255), [0, 3, 64, 200]);
        for count in [0, 1, 63, 64, 65, 256] {
            assert_eq!(CpuSet::first_n(count).len(), count);
        }
    }

    #[test]
    fn vcpu_and_cpu_ids_are_printed_in_short_form() {
        assert_eq!(VcpuId::new(7, DomId::new(2), 0).to_string(), "d2v0");
        let least = VcpuId::new(0, DomId::new(0), 0);
        let most = VcpuId::new((1 << 24) - 1, DomId::new((1 << 23) - 1), u16::MAX);
        for (id, slot, domain, number) in
            [(least, 0, 0, 0), (most, (1 << 24) - 1, (1 << 23) - 1, u16::MAX)]
        {
            assert_eq!((id.slot(), id.domain(), id.number()), (slot, DomId::new(domain), number));
        }
        assert_eq!(VcpuId::checked(1 << 24, DomId::new(0), 0), None);
        assert_eq!(VcpuId::checked(0, DomId::new(1 << 23), 0), None);
        assert_eq!(CpuId::new(1).to_string(), "cpu1");
    }
}
