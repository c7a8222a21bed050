//! Results of one vCPU that predictions compare.

use slackline_demand::{Demand, VcpuDemand};
use slackline_metrics::{Summary, VcpuSummary};
use slackline_units::{Reservation, Span, Time};

/// Largest accepted difference between the recorded and the simulated share, in millionths of a
/// CPU.
pub const SHARE_PPM: u64 = 1_000;

/// Results of one vCPU in a window of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measures {
    /// Display name of the vCPU.
    pub name: String,
    /// Reservation at the end of the window. `None` if the vCPU had no reservation.
    pub reserved: Option<Reservation>,
    /// CPU time received, in millionths of one CPU over the window.
    pub share_ppm: u64,
    /// True if the vCPU's share exceeded its reserved share by more than 0.1 percentage points, and
    /// the reservation was no hard limit.
    pub uses_slack: bool,
    /// Number of deadlines (ends of periods) in the window. The deadline of a period does not count
    /// if the vCPU blocked in this period before it had received its budget. `None` if the vCPU had
    /// no reservation.
    pub deadlines: Option<u64>,
    /// Number of deadlines counted in `deadlines` that the vCPU missed. `None` if the vCPU had no
    /// reservation.
    pub misses: Option<u64>,
    /// Number of wakes in the window.
    pub wakes: u64,
    /// Median time from a wake of the vCPU until it ran. `None` if there were fewer than two wakes.
    pub wait_p50: Option<Span>,
    /// 99th percentile of the time from a wake of the vCPU until it ran. `None` if there were fewer
    /// than two wakes.
    pub wait_p99: Option<Span>,
    /// Interval in which `wait_p99` lies with about 95 % confidence, given the number of wakes.
    /// `None` if there were fewer than two wakes.
    pub wait_p99_interval: Option<(Span, Span)>,
    /// Median time from a wake of the vCPU until it blocked. `None` if no job ended.
    pub response_p50: Option<Span>,
    /// 99th percentile of the time from a wake of the vCPU until it blocked. `None` if no job
    /// ended.
    pub response_p99: Option<Span>,
}

impl Measures {
    /// Returns the results of the vCPUs from the time `from` on, in the order of the summary.
    /// `shown` returns the display name of a vCPU, or `None` if its results are left out.
    pub(crate) fn all(
        summary: &Summary,
        demand: &Demand,
        from: Time,
        shown: impl Fn(&VcpuSummary) -> Option<String>,
    ) -> Vec<Measures> {
        let of = |vcpu: &VcpuSummary| {
            let stays = demand.vcpus.iter().filter(|stay| stay.vcpu == vcpu.id);
            Some(Measures::new(vcpu, shown(vcpu)?, summary.length, (stays, from)))
        };
        summary.vcpus.iter().filter_map(of).collect()
    }

    fn new<'a>(
        vcpu: &VcpuSummary,
        name: String,
        length: Span,
        (stays, from): (impl Iterator<Item = &'a VcpuDemand>, Time),
    ) -> Measures {
        let jobs = stays.flat_map(|stay| &stay.jobs);
        let jobs = jobs.filter(|job| job.ready >= from && job.has_ended());
        let mut responses: Vec<Span> = jobs.map(|job| job.blocked - job.ready).collect();
        responses.sort_unstable();
        let rank = |percent: usize| (responses.len() * percent).div_ceil(100).max(1) - 1;
        let response = |percent| responses.get(rank(percent)).copied();
        let wait = vcpu.wake_to_run;
        let share_ppm = parts(vcpu.delivered, length);
        let reserved_ppm = vcpu.promised_share_ppm.map(|reserved| reserved + SHARE_PPM);
        Measures {
            name,
            reserved: vcpu.promised,
            share_ppm,
            uses_slack: !vcpu.exact && reserved_ppm.is_some_and(|most| share_ppm > most),
            deadlines: vcpu.promised.and(vcpu.deadlines),
            misses: vcpu.promised.and(vcpu.misses),
            wakes: wait.map_or(0, |wait| wait.count),
            wait_p50: wait.and_then(|wait| wait.p50),
            wait_p99: wait.and_then(|wait| wait.p99),
            wait_p99_interval: vcpu.wake_to_run_p99,
            response_p50: response(50),
            response_p99: response(99),
        }
    }
}

/// Returns `part` in millionths of `whole`, rounded to the nearest. Zero if `whole` is zero.
pub(crate) fn parts(part: Span, whole: Span) -> u64 {
    let whole = u128::from(whole.ns());
    let ppm = (u128::from(part.ns()) * 1_000_000 + whole / 2).checked_div(whole);
    u64::try_from(ppm.unwrap_or(0)).unwrap_or(u64::MAX)
}
