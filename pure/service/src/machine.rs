//! VMs and CPUs, as the host of the service reports them.

use slackline_policy::AdmitError;
use slackline_units::{CpuId, CpuShare, Span};

use crate::binding::Binding;

/// Identity of a VM while the kernel runs. Two VMs always have different identities, even if a VM
/// gets the process number or the name of an earlier VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// Identity of a process.
    Process {
        /// Process number, which the kernel reuses after the end.
        pid: u32,
        /// Start time in ticks since boot, as in `/proc/PID/stat`.
        started: u64,
        /// Inode of the process's pidfd, which is unique since boot. Zero before Linux 6.9, where
        /// pidfds have no unique inode.
        inode: u64,
    },
    /// Identity of a cgroup: the inode of its directory.
    Group {
        /// Inode of the directory.
        inode: u64,
    },
}

/// A VM that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Identity of the VM.
    pub identity: Identity,
    /// User who owns the VM.
    pub user: u32,
    /// True if only programs of root can have given the VM its name, as with libvirt domains and
    /// system units. Any other VM chooses its own name.
    pub is_vouched: bool,
    /// Binding of a libvirt domain by its UUID, which it keeps when it is renamed. `None` for any
    /// other VM.
    pub by_uuid: Option<Binding>,
    /// Numbers of the VM's vCPUs, ascending, possibly with gaps. A cgroup or a process that is
    /// scheduled as one vCPU has only number 0.
    pub vcpus: Vec<u16>,
}

/// Assignment of the vCPUs of a VM to the places of its reservation. There is one place for each
/// reserved vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seats {
    /// Identity of the VM. Threads of no other VM may be touched.
    pub identity: Identity,
    /// For each place (reserved vCPU), the number of the vCPU that occupies it. `None` if the place
    /// is empty. The length is the number of vCPUs in the terms.
    pub vcpus: Vec<Option<u16>>,
}

impl Seats {
    /// Assigns vCPUs of a VM to this number of places (reserved vCPUs). A vCPU keeps the place that
    /// it had before, since the policy accounts CPU time by place. The other vCPUs get the free
    /// places, lowest number first.
    #[must_use]
    pub fn fill(machine: &Machine, places: u16, before: &[Option<u16>]) -> Seats {
        let places = usize::from(places);
        let is_there = |vcpu: &u16| machine.vcpus.contains(vcpu);
        let before = before.iter().copied().chain(std::iter::repeat(None)).take(places);
        let mut seats: Vec<Option<u16>> = before.map(|vcpu| vcpu.filter(is_there)).collect();
        let mut others = machine.vcpus.iter().copied();
        for place in 0..places {
            if seats[place].is_none() {
                seats[place] = others.by_ref().find(|vcpu| !seats.contains(&Some(*vcpu)));
            }
        }
        Seats { identity: machine.identity, vcpus: seats }
    }
}

/// Reason why a VM cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// The VM does not exist on this host.
    #[error("it does not exist on this host")]
    Absent,
    /// The VM must never be scheduled: process 1, a kernel thread, or a process of Slackline.
    #[error("{0}")]
    Forbidden(String),
    /// The VM cannot be identified: several match, or a file could not be read.
    #[error("{says}")]
    Unclear {
        /// Description of the problem.
        says: String,
        /// Advice on how to fix the problem.
        hint: Option<String>,
    },
}

/// Reason why the world declined a call, which then had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// The policy has too little capacity, or cannot keep such terms.
    #[error("{0}")]
    Admission(AdmitError),
    /// Threads that the kernel schedules could make reservations of the dispatcher miss deadlines.
    #[error("{says}")]
    Interference {
        /// Share reserved already on the CPU.
        promised: CpuShare,
        /// Share that can be reserved on the CPU.
        capacity: CpuShare,
        /// Longest slice with the requested period that fits now. Zero if no slice fits.
        largest: Span,
        /// Description with both numbers.
        says: String,
    },
    /// The VM has ended, or another VM has taken its process number or name.
    #[error("the VM is gone")]
    Gone,
    /// The host or its kernel rejected an operation.
    #[error("{says}")]
    Host {
        /// Description of the failure.
        says: String,
        /// Advice on how to fix the failure.
        hint: Option<String>,
    },
}

/// Available capacity of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuCapacity {
    /// Number of the CPU on this host.
    pub cpu: CpuId,
    /// Longest slice of the requested period that would be admitted now. Zero if none would.
    pub slice: Span,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(vcpus: &[u16], places: u16, before: &[Option<u16>]) -> Vec<Option<u16>> {
        let identity = Identity::Group { inode: 1 };
        let vcpus = vcpus.to_vec();
        let machine = Machine { identity, user: 0, is_vouched: false, by_uuid: None, vcpus };
        Seats::fill(&machine, places, before).vcpus
    }

    #[test]
    fn vcpu_thread_keeps_its_vcpu_number_while_other_threads_start_and_end() {
        assert_eq!(seats(&[0, 1, 2], 2, &[]), [Some(0), Some(1)]);
        assert_eq!(seats(&[0], 2, &[]), [Some(0), None]);
        assert_eq!(seats(&[0, 2], 2, &[Some(0), Some(1)]), [Some(0), Some(2)]);
        assert_eq!(seats(&[0, 1, 2], 2, &[Some(0), Some(2)]), [Some(0), Some(2)]);
        assert_eq!(seats(&[0, 1], 2, &[None, Some(0)]), [Some(1), Some(0)]);
        assert_eq!(seats(&[0, 1], 1, &[Some(1), Some(0)]), [Some(1)]);
    }
}
