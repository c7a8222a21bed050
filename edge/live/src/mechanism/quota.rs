//! CFS quota: a limit of CPU time in every period for a cgroup, enforced by the kernel. A quota
//! limits CPU time and never guarantees it.
//!
//! The process is moved into a cgroup of its own, with its descendants. In version 1 the new cgroup
//! is a child of the current cgroup. In version 2 it is a child of the nearest cgroup that enables
//! the controller for its children, which may be the root. While the process is in its own cgroup,
//! limits of cgroups that it has left do not apply to it. Only in version 1 can a single vCPU
//! thread have its own cgroup. The emulator's other threads are then not limited.
//!
//! The kernel does not allow less than 1 ms of CPU time in a period. Bursts are not enabled: with a
//! burst, a cgroup can exceed its quota by CPU time that it did not use before.

use slackline_fence::Fence;
use slackline_linux::cgroup::{CgroupError, Controller, Place, Step, Version, write};
use slackline_linux::thread::ThreadRef;
use slackline_units::{CpuShare, Enforcement, Reservation, Span};

use super::{
    Abilities, Bound, Demand, EnforceTarget, KernelEnforcement, KernelMechanism, Mechanism,
    MechanismError,
};

/// Minimum quota that the kernel accepts.
const LEAST: Span = Span::from_ms(1);
/// Minimum and maximum quota period that the kernel accepts.
const PERIODS: [Span; 2] = [Span::from_ms(1), Span::from_secs(1)];
/// Default quota period of the kernel.
const USUAL: Span = Span::from_ms(100);

/// Returns the default period of a quota for this share of a CPU. It is 100 ms, the kernel's
/// default, or more if the quota of a small share would fall below the kernel's minimum.
#[must_use]
pub fn usual_period(share: CpuShare) -> Span {
    let least = LEAST.ns() * 1_000_000 / u64::from(share.ppm().max(1));
    USUAL.max(Span::from_ns(least)).min(PERIODS[1])
}

/// The mechanism `quota`, with cgroups of one version. `None` means version 2 if the host's version
/// 2 has the controller `cpu`, or else version 1.
#[derive(Debug)]
pub(super) struct Quota(Option<Version>);

pub(super) static ANY: Quota = Quota(None);
pub(super) static V1: Quota = Quota(Some(Version::V1));
pub(super) static V2: Quota = Quota(Some(Version::V2));

impl Mechanism for Quota {
    fn enforcement(&self) -> Enforcement {
        Enforcement::Quota
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            guarantees: false,
            limits: true,
            least_slice: Some(LEAST),
            periods: Some(PERIODS),
            pins: false,
            trees: true,
            survives: "the whole limit, until the cgroup is removed",
            undone_by: "the keeper, or `slackline doctor --free`",
        }
    }

    fn check(&self, target: &EnforceTarget, demand: Demand) -> Result<(), MechanismError> {
        self.abilities().check(limit_of(demand)?)?;
        groups_for(target, self.0, Enforcement::Quota).map(drop)
    }
}

impl KernelMechanism for Quota {
    fn apply(
        &self,
        target: &EnforceTarget,
        demand: Demand,
        fence: &mut Fence,
    ) -> Result<KernelEnforcement, MechanismError> {
        self.check(target, demand)?;
        let each = limit_of(demand)?;
        let groups = groups_for(target, self.0, Enforcement::Quota)?;
        in_own_groups(&groups, fence, |place| limit(place, each))
    }
}

fn limit_of(demand: Demand) -> Result<Reservation, MechanismError> {
    let mechanism = Enforcement::Quota;
    match demand {
        Demand::Time(each, Bound::AtMost) => Ok(each),
        Demand::Time(..) => {
            let does = "sets a limit, and other threads can take the CPU";
            Err(MechanismError::NoFloor { mechanism, does })
        }
        Demand::Weight(_) => Err(MechanismError::NotByWeight { mechanism }),
    }
}

/// A thread, and the folder of the cgroup that is made for the thread or its process.
pub(super) struct OwnGroup {
    thread: ThreadRef,
    place: Place,
}

/// Finds the folders of new cgroups with the controller `cpu`: one for each vCPU, or one for a
/// process tree. Creates nothing.
pub(super) fn groups_for(
    target: &EnforceTarget,
    version: Option<Version>,
    mechanism: Enforcement,
) -> Result<Vec<OwnGroup>, MechanismError> {
    let (threads, controller) = match target {
        EnforceTarget::Vcpus(threads) => (&threads[..], Controller::CpuThread),
        EnforceTarget::Tree(root) | EnforceTarget::Command(root) => {
            (std::slice::from_ref(root), Controller::Cpu)
        }
        EnforceTarget::Group(place) => {
            return Err(MechanismError::ForeignGroup { group: place.group.clone(), mechanism });
        }
    };
    let place = |thread: &ThreadRef| match version {
        Some(version) => Place::find_in(version, thread, controller),
        None => Place::find_in(Version::V2, thread, controller).or_else(|error| match error {
            error @ CgroupError::AlreadyHeld { .. } => Err(error),
            _ => Place::find_in(Version::V1, thread, controller),
        }),
    };
    let group = |thread: &ThreadRef| match place(thread) {
        Ok(place) => Ok(OwnGroup { thread: thread.clone(), place }),
        Err(CgroupError::NotMounted { version: Version::V1, .. })
            if controller != Controller::Cpu =>
        {
            Err(MechanismError::NoThreads { mechanism, version: Version::V2 })
        }
        Err(error) => Err(error.into()),
    };
    threads.iter().map(group).collect()
}

/// Makes a cgroup for each thread or process, sets the cgroup up, and moves the thread or process
/// into it. Before that, the fence records the thread.
pub(super) fn in_own_groups(
    groups: &[OwnGroup],
    fence: &mut Fence,
    set_up: impl Fn(&Place) -> Result<(), CgroupError>,
) -> Result<KernelEnforcement, MechanismError> {
    let mut done = KernelEnforcement::default();
    for OwnGroup { thread, place } in groups {
        if let Err(error) = fence.hold_limited(thread, place) {
            // A thread that cannot be restored now stays on the fence's list.
            let _ = done.end(fence);
            return Err(error.into());
        }
        done.tids.push(thread.tid());
        done.groups.push(place.group.clone());
        let moved =
            place.make().and_then(|()| set_up(place)).and_then(|()| match place.controller {
                Controller::Cpu => place.gather(thread.pid()),
                _ => place.take_in(thread.tid()),
            });
        if let Err(error) = moved {
            let _ = done.end(fence);
            return Err(error.into());
        }
    }
    Ok(done)
}

/// Writes quota and period in whole microseconds, the kernel's unit.
fn limit(place: &Place, each: Reservation) -> Result<(), CgroupError> {
    let us = |span: Span| (span.ns() / 1_000).to_string();
    let (quota, period) = (us(each.slice()), us(each.period()));
    let set = |file: &str, text: &str| write(&place.group.join(file), text, Step::Limit);
    match place.version {
        Version::V2 => set("cpu.max", &format!("{quota} {period}")),
        Version::V1 => {
            set("cpu.cfs_period_us", &period)?;
            set("cpu.cfs_quota_us", &quota)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_quota_period_grows_if_quota_would_be_too_small() {
        let of = |ppm| usual_period(CpuShare::from_ppm(ppm));
        assert_eq!(of(500_000), USUAL);
        assert_eq!(of(10_000), USUAL);
        assert_eq!(of(5_000), Span::from_ms(200));
        assert_eq!(of(1), Span::from_secs(1));
    }

    /// A quota guarantees no CPU time, because other threads can take the CPU from the target.
    #[test]
    fn quota_mechanism_is_refused_if_cpu_time_must_be_guaranteed() {
        let each = Reservation::new(Span::from_ms(2), Span::from_ms(10)).unwrap();
        for bound in [Bound::Exact, Bound::AtLeast] {
            let refused = limit_of(Demand::Time(each, bound)).unwrap_err();
            assert!(matches!(refused, MechanismError::NoFloor { .. }), "{refused}");
            assert!(refused.hint().unwrap().contains("--at-most"), "{refused}");
        }
        assert_eq!(limit_of(Demand::Time(each, Bound::AtMost)).unwrap(), each);
    }
}
