//! The mechanism `deadline`, which uses the class `SCHED_DEADLINE`: the kernel guarantees a runtime
//! in every period, and limits the thread to it. The mechanism acts on a single thread.
//!
//! A thread cannot start other threads in this class, so the thread gets the flag reset-on-fork.
//! Threads that it starts are ordinary, and their CPU time is not limited. So the mechanism is for
//! vCPU threads and for processes of one thread. The kernel refuses this class to a thread with a
//! restricted affinity, so the affinity is widened to all CPUs. A cpuset can still restrict the
//! thread. In that case the kernel accepts the thread only if the cpuset is a root partition.
//!
//! The flag that lets a deadline thread reclaim unused bandwidth is never set. With the flag, a
//! thread with 5 % could receive most of a CPU.

use std::io;

use rustix::io::Errno;
use slackline_fence::{Fence, HeldThread};
use slackline_linux::cgroup::descendants;
use slackline_linux::step::{ActError, Hold};
use slackline_linux::sys::{Tid, get_affinity, online_cpus};
use slackline_linux::thread::{ThreadRef, threads_of};
use slackline_units::{CpuSet, Enforcement, Reservation, Span};

use super::bandwidth::DeadlineBandwidth;
use super::{
    Abilities, Bound, Demand, EnforceTarget, KernelEnforcement, KernelMechanism, Mechanism,
    MechanismError,
};

/// Minimum runtime that the kernel accepts: `1 << DL_SCALE` nanoseconds.
const LEAST: Span = Span::from_ns(1 << 10);

/// Minimum and maximum period that the kernel accepts by default.
const PERIODS: [Span; 2] = [Span::from_us(100), Span::from_us(1 << 22)];

/// The mechanism `deadline`: the scheduling class `SCHED_DEADLINE` of the kernel.
#[derive(Debug)]
pub(super) struct Deadline;

impl Mechanism for Deadline {
    fn enforcement(&self) -> Enforcement {
        Enforcement::Deadline
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            guarantees: true,
            limits: true,
            least_slice: Some(LEAST),
            periods: Some(PERIODS),
            pins: false,
            trees: false,
            survives: "the whole reservation, until the thread exits or its class is changed",
            undone_by: "the keeper, or `slackline doctor --free`",
        }
    }

    fn check(&self, target: &EnforceTarget, demand: Demand) -> Result<(), MechanismError> {
        self.abilities().check(time(demand)?)?;
        match target {
            EnforceTarget::Vcpus(_) => Ok(()),
            EnforceTarget::Tree(root) => is_one_thread(root),
            EnforceTarget::Command(_) => Err(MechanismError::Command),
            EnforceTarget::Group(place) => Err(MechanismError::ForeignGroup {
                group: place.group.clone(),
                mechanism: Enforcement::Deadline,
            }),
        }
    }
}

impl KernelMechanism for Deadline {
    fn apply(
        &self,
        target: &EnforceTarget,
        demand: Demand,
        fence: &mut Fence,
    ) -> Result<KernelEnforcement, MechanismError> {
        self.check(target, demand)?;
        let each = time(demand)?;
        let online = online_cpus().map_err(|source| MechanismError::NoCpus { source })?;
        let mut done = KernelEnforcement::default();
        for thread in target.threads() {
            let held = match fence.hold(thread, Hold::Nothing) {
                Ok(held) => held,
                Err(error) => {
                    // A thread that cannot be restored now stays on the fence's list.
                    let _ = done.end(fence);
                    return Err(error.into());
                }
            };
            done.tids.push(thread.tid());
            // The explanation of an error reads the affinity, so it comes before the affinity is
            // restored.
            if let Err(error) = reserve(&held, each, online) {
                let _ = done.end(fence);
                return Err(error);
            }
        }
        Ok(done)
    }
}

fn time(demand: Demand) -> Result<Reservation, MechanismError> {
    match demand {
        Demand::Time(_, Bound::AtLeast) => Err(MechanismError::NoSlack),
        Demand::Time(each, Bound::Exact | Bound::AtMost) => Ok(each),
        Demand::Weight(_) => Err(MechanismError::NotByWeight { mechanism: Enforcement::Deadline }),
    }
}

fn is_one_thread(root: &ThreadRef) -> Result<(), MechanismError> {
    let pid = root.pid();
    let count = threads_of(pid)?.len();
    if count != 1 {
        return Err(MechanismError::ManyThreads { pid, count });
    }
    match descendants(pid)?.len() {
        0 | 1 => Ok(()),
        all => Err(MechanismError::Children { pid, count: all - 1 }),
    }
}

/// Sets or changes slice and period of a thread under `SCHED_DEADLINE`. A thread that is already in
/// this class stays in it. For such a thread the kernel's admission counts only the difference
/// between new and old bandwidth.
pub(crate) fn reserve(
    held: &HeldThread,
    each: Reservation,
    online: CpuSet,
) -> Result<(), MechanismError> {
    let reserved = held.reserve(each.slice(), each.period(), online);
    reserved.map_err(|error| explained(error, held.thread().tid(), each, online))
}

/// Creates the error for a refusal by the kernel, with the numbers that explain the refusal.
fn explained(error: ActError, tid: Tid, each: Reservation, online: CpuSet) -> MechanismError {
    let errno = match &error {
        ActError::Refused { source, .. } => Errno::from_io_error(source),
        _ => None,
    };
    match errno {
        Some(Errno::PERM) => {
            let allowed = get_affinity(tid).unwrap_or(online).and(&online).iter().count();
            let online = online.iter().count();
            if allowed < online {
                return MechanismError::NotEverywhere { tid, allowed, online };
            }
            MechanismError::Refused { error }
        }
        Some(Errno::BUSY) => no_bandwidth(each, &DeadlineBandwidth::read(online)),
        _ => MechanismError::Refused { error },
    }
}

fn no_bandwidth(each: Reservation, found: &io::Result<DeadlineBandwidth>) -> MechanismError {
    let asked = each.share();
    match found {
        Ok(of) => {
            let (free, limit, why) = (of.free(), of.limit, of.to_string());
            MechanismError::NoBandwidth { asked, free, limit, why }
        }
        Err(_) => MechanismError::Busy { asked },
    }
}
