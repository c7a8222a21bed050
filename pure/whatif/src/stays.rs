//! Stays of recorded vCPUs, and the VMs that get no prediction because of their stays. A stay lasts
//! from the time at which a vCPU joins until it leaves.
//!
//! A vCPU can leave and join again during a recording. This happens if its VM is released and
//! reserved again, or if its thread ends and another thread takes its place. In the model such a
//! vCPU has one domain for all its stays, because the policy remembers the CPU time that the vCPU
//! used before it left. The results of such a VM are not compared and not predicted. The other VMs
//! of the recording have predictions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use slackline_demand::{ChangeKind, Demand, Job, VcpuDemand};
use slackline_units::{Enforcement, Time};

use crate::other_names;

/// Reason why a VM of a recording has no prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOutReason {
    /// A mechanism of the kernel enforced the CPU time of the VM during some of the recording. The
    /// simulation supports only the dispatcher.
    OfKernel(Enforcement),
    /// A vCPU of the VM left and joined again.
    Rejoined,
    /// A vCPU of the VM never joined, although the VM has a vCPU with a higher number.
    MissingVcpu,
}

/// VM of a recording that has no prediction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOutVm {
    /// Name of the VM.
    pub name: String,
    /// Reason why the VM has no prediction.
    pub why: LeftOutReason,
}

impl fmt::Display for LeftOutReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeftOutReason::OfKernel(by) => write!(
                out,
                "`{by}` enforced its CPU time during the recording, and only the dispatcher is \
                 simulated"
            ),
            LeftOutReason::Rejoined => {
                out.write_str("a vCPU of the VM left and joined again during the recording")
            }
            LeftOutReason::MissingVcpu => {
                out.write_str("the recording does not contain all vCPUs of the VM")
            }
        }
    }
}

impl LeftOutReason {
    /// Returns a hint that says how the VM `name` gets a prediction.
    #[must_use]
    pub fn hint(self, name: &str) -> String {
        match self {
            LeftOutReason::OfKernel(_) => format!(
                "record again under the dispatcher; for a reservation, first run \
                 `slackline change {name} --enforce dispatcher`"
            ),
            LeftOutReason::Rejoined | LeftOutReason::MissingVcpu => {
                "use a recording that begins after all vCPUs of the VM have joined, for example \
                 with a shorter --since"
                    .into()
            }
        }
    }
}

/// Returns the VMs of a recording that have no prediction, each with the reason.
pub(crate) fn left_out(demand: &Demand) -> BTreeMap<String, LeftOutReason> {
    let mut vms: BTreeMap<&str, Vec<&VcpuDemand>> = BTreeMap::new();
    let is_of_vm = |stay: &&VcpuDemand| !other_names::is_of_service(stay.vcpu, named(stay));
    for stay in demand.vcpus.iter().filter(is_of_vm) {
        vms.entry(&stay.domain).or_default().push(stay);
    }
    let reasons = vms.into_iter().map(|(name, stays)| (name, reason(&stays)));
    reasons.filter_map(|(name, why)| Some((name.to_owned(), why?))).collect()
}

/// Returns the reason why the VM with these stays has no prediction. `None` if it has one.
fn reason(stays: &[&VcpuDemand]) -> Option<LeftOutReason> {
    if let Some(by) = stays.iter().find_map(|stay| kernel_mechanism(stay)) {
        return Some(LeftOutReason::OfKernel(by));
    }
    let numbers: BTreeSet<u16> = stays.iter().map(|stay| stay.vcpu.number()).collect();
    if numbers.len() < stays.len() {
        return Some(LeftOutReason::Rejoined);
    }
    let last = numbers.last().map_or(0, |&last| usize::from(last));
    (last >= numbers.len()).then_some(LeftOutReason::MissingVcpu)
}

/// Returns the name of the vCPU of a stay, and the name of its VM.
pub(crate) fn named(stay: &VcpuDemand) -> (&str, &str) {
    (&stay.name, &stay.domain)
}

/// Returns the mechanism of the kernel that enforced the CPU time of a vCPU at some time of the
/// stay. `None` if only the dispatcher enforced it.
fn kernel_mechanism(stay: &VcpuDemand) -> Option<Enforcement> {
    let changes = stay.changes.iter().filter_map(|change| match change.what {
        ChangeKind::Reserved(reserved) => Some(reserved),
        _ => None,
    });
    let mut all = stay.reserved.into_iter().chain(changes).map(|reserved| reserved.by);
    all.find(|by| by.is_of_kernel())
}

/// Groups the stays of a VM by vCPU, in order of the number of the vCPU. A group contains the
/// indexes of stays that follow each other in time. If stays of one number overlap, they are in
/// different groups.
pub(crate) fn by_vcpu(demand: &Demand, mut stays: Vec<usize>) -> Vec<Vec<usize>> {
    let of = |index: usize| &demand.vcpus[index];
    stays.sort_by_key(|&index| (of(index).vcpu.number(), of(index).joined));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in stays {
        let stay = of(index);
        let follows = |last: &VcpuDemand| {
            let is_before = last.left.is_some_and(|left| left <= stay.joined);
            is_before && last.vcpu.number() == stay.vcpu.number()
        };
        match groups.last_mut() {
            Some(group) if group.last().is_some_and(|&last| follows(of(last))) => group.push(index),
            _ => groups.push(vec![index]),
        }
    }
    groups
}

/// Returns the demand of a vCPU with the jobs of all its stays, which follow each other in time. A
/// job that has not ended at the end of its stay ends there, except in the last stay. A stay under
/// a mechanism of the kernel has no jobs, because its CPU time is interference.
pub(crate) fn all_jobs(stays: &[&VcpuDemand]) -> VcpuDemand {
    let mut jobs: Vec<Job> = Vec::new();
    for (index, stay) in stays.iter().enumerate() {
        if kernel_mechanism(stay).is_some() {
            continue;
        }
        let is_last = index + 1 == stays.len();
        let end = stay.left.filter(|_| !is_last).unwrap_or(Time::NEVER);
        let within = stay.jobs.iter().filter(|job| job.ready < end);
        jobs.extend(within.map(|job| Job { blocked: job.blocked.min(end), ..*job }));
    }
    VcpuDemand { jobs, ..stays[0].clone() }
}

#[cfg(test)]
mod tests {
    use slackline_demand::{RecordedReservation, Samples};
    use slackline_units::{DomId, Span, VcpuId};

    use super::*;

    fn ms(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    /// Returns a stay of vCPU `number` of the VM `web`.
    fn stay((slot, number): (u32, u16), joined: u64, left: Option<u64>) -> VcpuDemand {
        VcpuDemand {
            vcpu: VcpuId::new(slot, DomId::new(0), number),
            name: format!("web.{number}"),
            domain: "web".into(),
            joined: ms(joined),
            left: left.map(ms),
            terms: None,
            reserved: None,
            starts_on: None,
            changes: Vec::new(),
            jobs: Vec::new(),
            overruns: Samples::default(),
        }
    }

    fn demand(vcpus: &[VcpuDemand]) -> Demand {
        Demand { vcpus: vcpus.to_vec(), ..Demand::default() }
    }

    #[test]
    fn whatif_model_omits_vm_with_a_rejoined_or_missing_vcpu() {
        let why = |vcpus: &[VcpuDemand]| left_out(&demand(vcpus)).get("web").copied();
        assert_eq!(why(&[stay((1, 1), 0, None), stay((5, 0), 0, None)]), None);
        let again = [stay((0, 0), 0, Some(5)), stay((1, 1), 0, None), stay((2, 0), 7, None)];
        assert_eq!(why(&again), Some(LeftOutReason::Rejoined));
        assert_eq!(why(&[stay((0, 1), 0, None)]), Some(LeftOutReason::MissingVcpu));
        let (reservation, exact, phase, by) = (None, true, None, Enforcement::Deadline);
        let reserved = Some(RecordedReservation { reservation, exact, phase, by });
        let by_kernel = VcpuDemand { reserved, ..stay((0, 0), 0, None) };
        assert_eq!(why(&[by_kernel]), Some(LeftOutReason::OfKernel(Enforcement::Deadline)));
    }

    /// The daemon reserves CPU time for a thread under `deadline` on further CPUs too.
    #[test]
    fn capacity_kept_for_sched_deadline_is_not_treated_as_vm() {
        let kept_free = VcpuDemand { domain: "deadline".into(), ..stay((0, 1), 0, None) };
        assert!(left_out(&demand(&[kept_free])).is_empty());
    }

    #[test]
    fn recorded_vcpus_present_at_overlapping_times_get_separate_model_vcpus() {
        let vcpus = [
            stay((3, 0), 8, None),
            stay((0, 0), 0, Some(5)),
            stay((1, 1), 0, None),
            stay((2, 0), 5, Some(9)),
        ];
        assert_eq!(by_vcpu(&demand(&vcpus), vec![0, 1, 2, 3]), [vec![1, 3], vec![0], vec![2]]);
    }

    #[test]
    fn unfinished_job_ends_when_its_vcpu_leaves_and_rejoins_later() {
        let job = |ready, blocked| Job { ready: ms(ready), work: Span::from_ms(1), blocked };
        let mut first = stay((0, 0), 0, Some(5));
        first.jobs = vec![job(0, ms(2)), job(3, Time::NEVER)];
        let mut second = stay((1, 0), 7, None);
        second.jobs = vec![job(8, Time::NEVER)];
        let jobs = all_jobs(&[&first, &second]).jobs;
        assert_eq!(jobs, [job(0, ms(2)), job(3, ms(5)), job(8, Time::NEVER)]);
    }
}
