//! What is known of machines and of the CPUs: what the world answers.

use slackline_policy::AdmitError;
use slackline_units::{CpuId, Span};

/// Which machine it is, for as long as the kernel runs: two machines that were never there at the
/// same time differ in this even where they have the same number or the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// A process.
    Process {
        /// Its number; given again to others once it has ended.
        pid: u32,
        /// When it was started, in ticks since boot, as `/proc/PID/stat` has it.
        started: u64,
        /// The inode of its pidfd, unique since boot; 0 where the kernel has none (before 6.9).
        inode: u64,
    },
    /// A cgroup, by the inode of its directory.
    Group {
        /// The inode.
        inode: u64,
    },
}

/// A machine that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Which one.
    pub identity: Identity,
    /// The user whose it is.
    pub user: u32,
    /// Whether only root's own programs could have given it the name that it goes by, as they give
    /// domains of libvirt and units of the system theirs. All others say themselves who they are.
    pub is_vouched: bool,
    /// The numbers of its vCPUs, ascending; there may be gaps. What is scheduled as one, such as a
    /// cgroup, has number 0 alone.
    pub vcpus: Vec<u16>,
}

/// Which threads of a machine are to be scheduled, by the places that were promised to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seats {
    /// Of which machine: threads of no other may be touched.
    pub identity: Identity,
    /// For each place the number of the vCPU that has it, or none: then nobody runs for it. As many
    /// as the terms have vCPUs.
    pub vcpus: Vec<Option<u16>>,
}

impl Seats {
    /// Seats for so many of a machine's vCPUs. Whoever sat before stays where it was, since what a
    /// place has had is counted by place; the others come to what is free, lowest number first.
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

/// Why a machine cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// There is none.
    #[error("it is not on this host")]
    Absent,
    /// There is one that nobody may have: the first process, a kernel thread, one of ours.
    #[error("{0}")]
    Forbidden(String),
    /// It cannot be known: several go by that name, or what must be read cannot be.
    #[error("{says}")]
    Unclear {
        /// What is wrong.
        says: String,
        /// What to do about it.
        hint: Option<String>,
    },
}

/// Why the world did not do it. Then everything is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// The policy has no room for it, or cannot keep such terms.
    #[error("{0}")]
    Admission(AdmitError),
    /// The machine is not there any more, or it is another one now.
    #[error("the VM is gone")]
    Gone,
    /// This host does not let us.
    #[error("{says}")]
    Host {
        /// What is wrong.
        says: String,
        /// What to do about it.
        hint: Option<String>,
    },
}

/// What one CPU could still promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The CPU, by its number on this machine.
    pub cpu: CpuId,
    /// The longest slice in every such period that would be admitted there now; zero is none.
    pub slice: Span,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(vcpus: &[u16], places: u16, before: &[Option<u16>]) -> Vec<Option<u16>> {
        let identity = Identity::Group { inode: 1 };
        let vcpus = vcpus.to_vec();
        let machine = Machine { identity, user: 0, is_vouched: false, vcpus };
        Seats::fill(&machine, places, before).vcpus
    }

    #[test]
    fn a_vcpu_keeps_its_place_whoever_comes_and_goes() {
        assert_eq!(seats(&[0, 1, 2], 2, &[]), [Some(0), Some(1)]);
        assert_eq!(seats(&[0], 2, &[]), [Some(0), None]);
        assert_eq!(seats(&[0, 2], 2, &[Some(0), Some(1)]), [Some(0), Some(2)]);
        assert_eq!(seats(&[0, 1, 2], 2, &[Some(0), Some(2)]), [Some(0), Some(2)]);
        assert_eq!(seats(&[0, 1], 2, &[None, Some(0)]), [Some(1), Some(0)]);
        assert_eq!(seats(&[0, 1], 1, &[Some(1), Some(0)]), [Some(1)]);
    }
}
