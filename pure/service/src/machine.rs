//! VMs and CPUs, as the host reports them to the service.

use slackline_policy::AdmitError;
use slackline_units::{CpuId, CpuShare, Span};

use crate::binding::Binding;

/// Identity of a VM until the host reboots. Two VMs never have equal identities, even if a VM gets
/// the process id or the name of an earlier VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// Identity of a process.
    Process {
        /// Process id. The kernel can reuse the process id after the process has ended.
        pid: u32,
        /// Start time in ticks since the host booted, as in `/proc/PID/stat`.
        started: u64,
        /// Inode of the process's pidfd, which is unique until the host reboots. Zero before Linux
        /// 6.9, where pidfds have no unique inode.
        inode: u64,
    },
    /// Identity of a cgroup: the inode of its directory.
    Group {
        /// Inode of the directory.
        inode: u64,
    },
}

/// A VM that exists on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Identity of the VM.
    pub identity: Identity,
    /// Id of the user who owns the VM.
    pub user: u32,
    /// True if only root can have given the VM its name, as for libvirt domains and system units.
    /// False if the owner of the VM can choose the name.
    pub is_vouched: bool,
    /// Binding of a libvirt domain by its UUID, which does not change when the domain is renamed.
    /// `None` for other kinds of VMs.
    pub by_uuid: Option<Binding>,
    /// Numbers of the VM's vCPUs, in increasing order, possibly with gaps. If a cgroup or a process
    /// is scheduled as one vCPU, the only number is 0.
    pub vcpus: Vec<u16>,
}

/// Assignment of the vCPUs of a VM to the places of its reservation. Each reserved vCPU is a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seats {
    /// Identity of the VM. The scheduler must change no thread of another VM.
    pub identity: Identity,
    /// Number of the vCPU in each place. `None` if the place is empty. The number of places is the
    /// number of vCPUs in the terms.
    pub vcpus: Vec<Option<u16>>,
}

impl Seats {
    /// Assigns the vCPUs of a VM to `places` places (reserved vCPUs). A vCPU keeps the place that
    /// it had before, because the policy accounts CPU time by place. The other vCPUs get the free
    /// places in the order of their numbers.
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

/// Reason why a look-up of a VM found no VM that can be scheduled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// The VM does not exist on this host.
    #[error("the VM does not exist on this host")]
    Absent,
    /// The process of the VM runs, but its vCPU threads have not started yet.
    #[error("{says}")]
    Starting {
        /// Description of the problem.
        says: String,
    },
    /// The VM must never be scheduled: process 1, a kernel thread, or a process of Slackline.
    #[error("{0}")]
    Forbidden(String),
    /// The VM belongs to the user with this id, for whom the caller may not reserve.
    #[error("the VM belongs to uid {0}")]
    NotYours(u32),
    /// The VM cannot be identified: several VMs match, or a file could not be read.
    #[error("{says}")]
    Unclear {
        /// Description of the problem.
        says: String,
        /// Advice on how to fix the problem.
        hint: Option<String>,
    },
}

/// Reason why the [`World`](crate::World), the service's interface to the host, declined a call. A
/// declined call has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// The policy has too little capacity for the terms, or does not support them.
    #[error("{0}")]
    Admission(AdmitError),
    /// With these terms, reservations that the dispatcher enforces could miss their deadlines,
    /// because `SCHED_DEADLINE` threads run before them.
    #[error("{says}")]
    Interference {
        /// Share of the CPU that is already reserved.
        promised: CpuShare,
        /// Share of the CPU that can be reserved in total.
        capacity: CpuShare,
        /// Longest slice that is now admitted with the requested period. Zero if no slice fits.
        largest: Span,
        /// Message with the reserved share and the capacity.
        says: String,
    },
    /// The VM has ended, or another VM now has its process id or name.
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
    /// Longest slice that would be admitted now with the requested period. Zero if no slice fits.
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
    fn vcpu_keeps_its_place_in_reservation_while_other_vcpus_end() {
        assert_eq!(seats(&[0, 1, 2], 2, &[]), [Some(0), Some(1)]);
        assert_eq!(seats(&[0], 2, &[]), [Some(0), None]);
        assert_eq!(seats(&[0, 2], 2, &[Some(0), Some(1)]), [Some(0), Some(2)]);
        assert_eq!(seats(&[0, 1, 2], 2, &[Some(0), Some(2)]), [Some(0), Some(2)]);
        assert_eq!(seats(&[0, 1], 2, &[None, Some(0)]), [Some(1), Some(0)]);
        assert_eq!(seats(&[0, 1], 1, &[Some(1), Some(0)]), [Some(1)]);
    }
}
