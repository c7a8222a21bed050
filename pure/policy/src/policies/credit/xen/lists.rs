//! Lists as Xen had them (reference, section 7.1): a change of class leaves a vCPU where it stands
//! until a tick sorts the list, and the idle vCPU stands in it where the mark does.

use alloc::vec::Vec;

use slackline_units::{CpuId, VcpuId};

use crate::policies::credit::runqueue::{Class, RunQueues, lane_of, mark_of};

impl RunQueues {
    /// Puts the mark of a CPU in, or leaves it where it is.
    pub(in crate::policies::credit) fn put_mark(&mut self, cpu: CpuId) {
        if !self.is_marked(cpu) {
            self.insert(cpu, Class::Idle, mark_of(cpu));
        }
    }

    /// Takes the mark of a CPU out.
    pub(in crate::policies::credit) fn take_mark(&mut self, cpu: CpuId) {
        self.unlink(mark_of(cpu));
    }

    /// The class of a vCPU changes; if it is in a list it stays where it is.
    pub(in crate::policies::credit) fn reclass(&mut self, vcpu: VcpuId, class: Class) {
        if let Some(cpu) = self.list_of(vcpu) {
            let index = self.index(vcpu);
            self.nodes[index].class = class;
            self.unsorted.insert(cpu);
            self.mixed.insert(cpu);
            self.reorder(vcpu);
        }
    }

    /// Moves everybody with credit ahead of everybody without, and changes no other order.
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
        // Nobody stands in a lane above somebody who was before it.
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
