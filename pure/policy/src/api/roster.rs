//! A map from vCPU to value, ordered by vCPU id.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use slackline_units::VcpuId;

/// Map from each vCPU that has joined to a value. A look-up by slot takes constant time.
#[derive(Clone, Debug)]
pub struct Roster<T> {
    rows: Vec<Option<T>>,
}

impl<T> Default for Roster<T> {
    fn default() -> Roster<T> {
        Roster { rows: Vec::new() }
    }
}

impl<T> Roster<T> {
    /// Adds or replaces the value of a vCPU.
    pub fn insert(&mut self, vcpu: VcpuId, value: T) {
        while self.rows.len() <= vcpu.slot() {
            self.rows.push(None);
        }
        self.rows[vcpu.slot()] = Some(value);
    }

    /// Removes and returns the value of a vCPU. `None` if the roster has no value for it.
    pub fn remove(&mut self, vcpu: VcpuId) -> Option<T> {
        self.rows.get_mut(vcpu.slot())?.take()
    }

    /// Returns all values in order of vCPU id.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.rows.iter().flatten()
    }

    /// Returns all values except the value of `vcpu`, in order of vCPU id.
    pub(crate) fn others(&self, vcpu: Option<VcpuId>) -> impl Iterator<Item = &T> {
        let but = vcpu.map(VcpuId::slot);
        let rows = self.rows.iter().enumerate().filter(move |(slot, _)| but != Some(*slot));
        rows.filter_map(|(_, row)| row.as_ref())
    }

    /// Returns the value of a vCPU. `None` if the roster has no value for it.
    #[must_use]
    #[inline]
    pub fn get(&self, vcpu: VcpuId) -> Option<&T> {
        self.rows.get(vcpu.slot())?.as_ref()
    }
}

impl<T> Index<VcpuId> for Roster<T> {
    type Output = T;
    #[inline]
    fn index(&self, vcpu: VcpuId) -> &T {
        self.rows[vcpu.slot()].as_ref().expect("a joined vCPU has a value")
    }
}

impl<T> IndexMut<VcpuId> for Roster<T> {
    #[inline]
    fn index_mut(&mut self, vcpu: VcpuId) -> &mut T {
        self.rows[vcpu.slot()].as_mut().expect("a joined vCPU has a value")
    }
}
