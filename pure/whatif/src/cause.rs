//! Causes of a difference between a recording and the simulation of that recording.

use std::fmt;

use slackline_demand::{CpuTimes, Demand};
use slackline_units::Span;

use crate::measure::parts;
use crate::recording::Recording;
use crate::verdict::FormGate;

/// Cause of a difference between a recording and its simulation. `Others`, `Stolen`, `Dispatcher`
/// and `CostsChanged` contain a part of a CPU in millionths. `HalvesDiffer` contains shares. All
/// other causes contain a number of events, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Other programs, kernel threads and interrupts used CPUs.
    Others(u64),
    /// A hypervisor below the host gave CPU time to other VMs.
    Stolen(u64),
    /// The dispatcher used CPUs.
    Dispatcher(u64),
    /// Overhead differed between the first and the second half of the recording.
    CostsChanged(u64),
    /// A CPU-bound vCPU with a hard limit received different shares in the two halves of the
    /// recording, although no parameter was changed.
    HalvesDiffer(SharesOfHalves),
    /// As `HalvesDiffer`, but the user may not see the vCPU. The [gate](crate::Gate) never returns
    /// this cause. Its caller replaces `HalvesDiffer` by this cause.
    HalvesOfAnotherDiffer,
    /// vCPUs slowed each other through shared cores or memory.
    Slowed(u64),
    /// Guests gave hints about their tasks. The model contains no hints.
    Hints(u64),
    /// vCPUs spun for locks.
    Spins(u64),
    /// A driver domain served other VMs.
    Services(u64),
    /// vCPUs yielded what remained of their timeslices.
    Yields(u64),
    /// The host could not carry out orders of the scheduler.
    Refusals(u64),
    /// Another program controlled the threads of vCPUs for some time.
    Elsewhere(u64),
    /// The recording does not explain the difference.
    Unexplained,
}

/// Shares of one vCPU in the two halves of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharesOfHalves {
    /// Display name of the vCPU.
    pub name: String,
    /// Share in the first half, in millionths of a CPU.
    pub first_ppm: u64,
    /// Share in the second half, in millionths of a CPU.
    pub second_ppm: u64,
}

impl Cause {
    /// Returns the cause with the largest effect, which is the first of these causes that applies:
    ///
    /// - Changed overhead, if it is the largest measured part of a CPU.
    /// - Different shares of a vCPU in the two halves of the recording.
    /// - The largest measured part of a CPU.
    /// - The most frequent behaviour that the model does not contain.
    ///
    /// A measured part of a CPU applies only if it is at least half of the largest error of any
    /// vCPU's share. Each [form](crate::Form) of the simulation has such a largest error, and the
    /// smaller of the two is used. If no cause applies, returns [`Cause::Unexplained`].
    pub(crate) fn largest(recording: &Recording, forms: &[FormGate; 2]) -> Cause {
        let demand = &recording.demand;
        let parts = parts_of(demand, recording);
        let largest = parts.into_iter().max_by_key(Cause::size);
        let error = forms.iter().map(FormGate::worst_share_ppm).min().unwrap_or(0);
        let largest = largest.filter(|cause| cause.size() > 0 && cause.size() >= error / 2);
        if let Some(costs @ Cause::CostsChanged(_)) = largest {
            return costs;
        }
        let halves = forms.iter().find_map(|form| SharesOfHalves::find(recording, form));
        if let Some(cause) = halves.map(Cause::HalvesDiffer).or(largest) {
            return cause;
        }
        let beyond = &demand.beyond;
        let counts = [
            Cause::Services(beyond.services),
            Cause::Spins(beyond.spins),
            Cause::Slowed(beyond.slowed),
            Cause::Hints(beyond.hints),
            Cause::Elsewhere(beyond.elsewhere),
            Cause::Refusals(beyond.refused),
            Cause::Yields(beyond.yields),
        ];
        let most = counts.into_iter().rev().max_by_key(Cause::size);
        most.filter(|cause| cause.size() > 0).unwrap_or(Cause::Unexplained)
    }

    /// Returns the number that the cause contains: millionths of a CPU, or a number of events. Zero
    /// if the cause contains no number.
    fn size(&self) -> u64 {
        match *self {
            Cause::Others(size)
            | Cause::Stolen(size)
            | Cause::Dispatcher(size)
            | Cause::CostsChanged(size)
            | Cause::Slowed(size)
            | Cause::Hints(size)
            | Cause::Spins(size)
            | Cause::Services(size)
            | Cause::Yields(size)
            | Cause::Refusals(size)
            | Cause::Elsewhere(size) => size,
            Cause::HalvesDiffer(ref halves) => halves.difference(),
            Cause::HalvesOfAnotherDiffer | Cause::Unexplained => 0,
        }
    }
}

impl SharesOfHalves {
    /// Finds the vCPU whose share has the largest error in this form, and returns its shares in the
    /// two halves. Returns `None` in two cases:
    ///
    /// - The vCPU is not CPU-bound, has no hard limit or did not keep its parameters. The share of
    ///   a vCPU without a hard limit can also change because the demand of other vCPUs changes.
    /// - The shares in the two halves differ by less than half of the error.
    fn find(recording: &Recording, form: &FormGate) -> Option<SharesOfHalves> {
        let failed = form.rows.iter().filter(|row| !row.has_share());
        let row = failed.max_by_key(|row| row.share_error_ppm())?;
        let name = &row.recorded.name;
        let demand = recording.demand.vcpus.iter().find(|vcpu| vcpu.name == *name)?;
        let whole = recording.whole.iter().find(|it| it.name == *name)?;
        let (all, second) = (recording.summary.length, recording.judged_length());
        let first = all.left_after(second);
        let is_limited = demand.reserved.is_some_and(|reserved| reserved.exact);
        let is_steady = demand.is_endless() && demand.changes.is_empty();
        if !is_limited || !is_steady || first.is_zero() {
            return None;
        }
        let received = |ppm: u64, length: Span| u128::from(ppm) * u128::from(length.ns());
        let in_first = received(whole.share_ppm, all)
            .saturating_sub(received(row.recorded.share_ppm, second))
            / u128::from(first.ns());
        let halves = SharesOfHalves {
            name: name.clone(),
            first_ppm: u64::try_from(in_first).unwrap_or(u64::MAX),
            second_ppm: row.recorded.share_ppm,
        };
        Some(halves).filter(|halves| halves.difference() >= row.share_error_ppm() / 2)
    }

    fn difference(&self) -> u64 {
        self.first_ppm.abs_diff(self.second_ppm)
    }
}

/// Returns the four causes that are measured as a part of a CPU. For each of the first three
/// causes, the part is measured on every CPU, and the largest part is used.
fn parts_of(demand: &Demand, recording: &Recording) -> [Cause; 4] {
    let part = |of: fn(&CpuTimes) -> Span| {
        demand.cpus.iter().map(|cpu| parts(of(cpu), cpu.accounted)).max().unwrap_or(0)
    };
    let [first, second] = [&demand.costs, &demand.later].map(|costs| costs.total());
    let half = recording.length() / 2;
    let changed = parts(Span::from_ns(first.ns().abs_diff(second.ns())), half);
    [
        Cause::Others(part(CpuTimes::others)),
        Cause::Stolen(part(|cpu| cpu.stolen)),
        Cause::Dispatcher(part(|cpu| cpu.dispatching)),
        Cause::CostsChanged(changed),
    ]
}

impl fmt::Display for Cause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ppm: u64| {
            let hundredths = ppm.saturating_add(50) / 100;
            format!("{}.{:02} %", hundredths / 100, hundredths % 100)
        };
        match *self {
            Cause::Others(ppm) => {
                write!(out, "other programs and the kernel used {} of a CPU", percent(ppm))
            }
            Cause::Stolen(ppm) => {
                write!(out, "the hypervisor of this host took {} of a CPU", percent(ppm))
            }
            Cause::Dispatcher(ppm) => {
                write!(out, "the dispatcher used {} of a CPU", percent(ppm))
            }
            Cause::CostsChanged(ppm) => {
                let percent = percent(ppm);
                write!(
                    out,
                    "overhead changed by {percent} of a CPU between the halves of the recording"
                )
            }
            Cause::HalvesDiffer(ref halves) => write!(
                out,
                "{} received {} of a CPU in the first half of the recording and {} in the second",
                halves.name,
                percent(halves.first_ppm),
                percent(halves.second_ppm)
            ),
            Cause::HalvesOfAnotherDiffer => out
                .write_str("the share of another VM differed between the halves of the recording"),
            Cause::Slowed(count) => {
                write!(out, "vCPUs slowed each other through shared cores or memory, {count} times")
            }
            Cause::Hints(count) => write!(out, "guests gave {count} hints about their tasks"),
            Cause::Spins(count) => write!(out, "vCPUs spun for locks {count} times"),
            Cause::Services(count) => {
                write!(out, "a driver domain served other VMs {count} times")
            }
            Cause::Yields(count) => {
                write!(out, "vCPUs gave up the rest of their timeslices {count} times")
            }
            Cause::Refusals(count) => write!(out, "the host refused {count} scheduling decisions"),
            Cause::Elsewhere(count) => {
                write!(
                    out,
                    "vCPUs were not scheduled {count} times because another program interfered"
                )
            }
            Cause::Unexplained => out.write_str("nothing in the recording explains the difference"),
        }
    }
}
