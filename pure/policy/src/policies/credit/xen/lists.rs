//! Lists of waiting vCPUs as Xen had them (section 7.1 of the reference on Credit). A vCPU keeps
//! its place after a change of class until a tick sorts the list. The *mark* stands for Xen's idle
//! vCPU.

use alloc::vec::Vec;

use slackline_units::{CpuId, VcpuId};

use crate::policies::credit::runqueue::{Class, RunQueues, lane_of, mark_of};

impl RunQueues {
    /// Puts the mark, which stands for Xen's idle vCPU, into the list of a CPU. If the mark is
    /// already in the list, it stays where it is.
    pub(in crate::policies::credit) fn put_mark(&mut self, cpu: CpuId) {
        if !self.is_marked(cpu) {
            self.insert(cpu, Class::Idle, mark_of(cpu));
        }
    }

    /// Takes the mark, which stands for Xen's idle vCPU, out of the list of a CPU.
    pub(in crate::policies::credit) fn take_mark(&mut self, cpu: CpuId) {
        self.unlink(mark_of(cpu));
    }

    /// Changes the class of a vCPU, which keeps its place in its list.
    pub(in crate::policies::credit) fn reclass(&mut self, vcpu: VcpuId, class: Class) {
        if let Some(cpu) = self.list_of(vcpu) {
            let index = self.index(vcpu);
            self.nodes[index].class = class;
            self.unsorted.insert(cpu);
            self.mixed.insert(cpu);
            self.reorder(vcpu);
        }
    }

    /// Moves all vCPUs with credit ahead of vCPUs without credit, and leaves the order within both
    /// parts unchanged.
    pub(in crate::policies::credit) fn sort(&mut self, cpu: CpuId) {
        if !self.unsorted.contains(cpu) {
            return;
        }
        let has_credit = |&index: &usize| self.nodes[index].class >= Class::Under;
        let (with, without): (Vec<_>, Vec<_>) = self.walk(cpu).partition(has_credit);
        for index in with.iter().chain(&without) {
            self.unlink(*index);
        }
        self.unsorted.remove(cpu);
        self.mixed.remove(cpu);
        // A node must not enter a higher lane than a node before it.
        let mut lane = Class::Boost;
        for index in with.into_iter().chain(without) {
            let class = self.nodes[index].class;
            lane = lane.min(class);
            if lane != class {
                self.mixed.insert(cpu);
            }
            self.link_last(index, lane_of(cpu, lane));
        }
    }
}
