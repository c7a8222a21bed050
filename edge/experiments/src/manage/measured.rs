//! Demand and missed periods of the VMs in a recording: measured, or predicted by a simulation of
//! the recording. The simulated manager and the live manager share this code.

use std::collections::BTreeMap;

use slackline_demand::{Collector, Demand, DemandCounts, VcpuDemand, demand_per_period};
use slackline_manager::PredictedVm;
use slackline_scenario::Scenario;
use slackline_units::{Span, Time, VcpuId};
use slackline_whatif::{ForecastError, Form, Gate, Model, Recording};

/// Number of periods that make a wait long. An unfinished job counts as demand if it has been ready
/// for at least this number of periods. Otherwise, the job counts in the next round.
const LONG_WAIT: u64 = 10;

/// Name of a VM, with the period of its reservation.
pub type VmPeriod = (String, Span);

/// Demand and missed periods of a VM in an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeasuredPeriods {
    /// Number of periods for each amount of demanded CPU time.
    pub demand: DemandCounts,
    /// Number of periods at whose end a job of an earlier period was not done.
    pub misses: u64,
    /// Time for which the VM was runnable.
    pub runnable: Span,
}

/// A VM of a recording that a manager can change: it has a reservation, and was present until the
/// recording ended. All vCPUs of a reservation have equal slices, so each value is the largest
/// among the VM's vCPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedVm {
    /// Name of the VM.
    pub name: String,
    /// Period of the VM's reservation.
    pub period: Span,
    /// Demand and missed periods in the second half of the recording. For several vCPUs, the nth
    /// largest demand of the VM is the largest of the vCPUs' nth largest demands.
    pub measured: MeasuredPeriods,
    /// CPU time that the VM received in the second half of the recording. For a VM with several
    /// vCPUs, the time of the vCPU that received the most.
    pub received: Span,
}

/// Predictor of missed periods from a recording. The simulation of the recording must repeat the
/// recorded periods.
#[derive(Debug)]
pub struct PeriodPredictor {
    vms: Vec<VmPeriod>,
    /// Recorded demand. A job that took several periods is divided into one job for each period.
    demand: Demand,
    /// Form of the simulation (see [`Form`]): open if the open form repeats the recording, closed
    /// otherwise.
    form: Form,
}

/// Measures the VMs in the second half of a recording. Also returns the length of that half.
/// `whatif` compares the same half of the recording with its simulation.
#[must_use]
pub fn measure_recording(recording: &Recording) -> (Span, Vec<RecordedVm>) {
    let end = Time::START + recording.demand.length;
    let length = end.since(recording.split);
    let is_there = |stay: &&VcpuDemand| stay.left.is_none();
    let vm = |stay: &VcpuDemand| {
        let judged = recording.judged.iter().find(|judged| judged.name == stay.name)?;
        let period = judged.reserved?.period();
        let received = u128::from(judged.share_ppm) * u128::from(length.ns()) / 1_000_000;
        Some(RecordedVm {
            name: stay.domain.clone(),
            period,
            measured: measure_periods(stay, period, (recording.split, end)),
            received: Span::from_ns(u64::try_from(received).unwrap_or(u64::MAX)),
        })
    };
    let mut vms: Vec<RecordedVm> = Vec::new();
    for vcpu in recording.demand.vcpus.iter().filter(is_there).filter_map(vm) {
        match vms.iter_mut().find(|vm| vm.name == vcpu.name) {
            Some(vm) => vm.join(&vcpu),
            None => vms.push(vcpu),
        }
    }
    (length, vms)
}

impl RecordedVm {
    /// Combines the values of this VM with the values of one more of its vCPUs.
    fn join(&mut self, vcpu: &RecordedVm) {
        let of = &mut self.measured;
        of.demand = envelope(&of.demand, &vcpu.measured.demand);
        of.misses = of.misses.max(vcpu.measured.misses);
        of.runnable = of.runnable.max(vcpu.measured.runnable);
        self.received = self.received.max(vcpu.received);
    }
}

/// Combines the demands of two vCPUs. The nth largest demand of the result is the larger of the two
/// vCPUs' nth largest demands.
fn envelope(one: &DemandCounts, other: &DemandCounts) -> DemandCounts {
    let mut levels = [one, other].map(|demand| demand.iter().rev().map(|(a, n)| (*a, *n)));
    let mut next = levels.each_mut().map(Iterator::next);
    let mut all = DemandCounts::new();
    loop {
        let (amount, count) = match next {
            [Some((a, n)), Some((b, m))] => (a.max(b), n.min(m)),
            [Some(rest), None] | [None, Some(rest)] => rest,
            [None, None] => return all,
        };
        *all.entry(amount).or_default() += count;
        for (next, levels) in next.iter_mut().zip(&mut levels) {
            if let Some((_, left)) = next {
                *left -= count;
                if *left == 0 {
                    *next = levels.next();
                }
            }
        }
    }
}

/// Counts demand and missed periods of a VM from `from` until the recording ends.
#[must_use]
pub(super) fn measure_periods(
    stay: &VcpuDemand,
    period: Span,
    (from, end): (Time, Time),
) -> MeasuredPeriods {
    let stay = without_unfinished_job(stay, period, end);
    let misses = stay.missed_periods(period, (from, end));
    let runnable = |(ready, blocked): (Time, Time)| blocked.min(end).since(ready.max(from));
    let jobs = stay.jobs.iter().map(|job| (job.ready, job.blocked));
    let runnable = jobs.filter(|(_, blocked)| *blocked > from).map(runnable).sum();
    let mut stay = if stay.is_endless() { stay } else { stay.spread(period, end) };
    let is_endless = stay.is_endless();
    if let Some(last) = stay.jobs.last_mut().filter(|_| is_endless) {
        last.ready = last.ready.max(from);
    }
    stay.jobs.retain(|job| job.ready >= from);
    stay.joined = stay.joined.max(from);
    MeasuredPeriods { demand: demand_per_period(&stay, period, end), misses, runnable }
}

/// Returns the demand without the last job, if that job has not ended and was ready for less than
/// [`LONG_WAIT`] periods. The job then counts in the next round.
fn without_unfinished_job(stay: &VcpuDemand, period: Span, end: Time) -> VcpuDemand {
    let mut stay = stay.clone();
    let is_short = |ready: Time| end.since(ready) < period * LONG_WAIT;
    if stay.jobs.last().is_some_and(|job| !job.has_ended() && is_short(job.ready)) {
        stay.jobs.pop();
    }
    stay
}

impl PeriodPredictor {
    /// Prepares predictions for the given VMs. `None` if the simulation of the recording does not
    /// [repeat its periods](slackline_whatif::FormGate::repeats_periods).
    #[must_use]
    pub fn new(recording: &Recording, gate: &Gate, vms: Vec<VmPeriod>) -> Option<PeriodPredictor> {
        let form = gate.forms.iter().find(|form| form.repeats_periods())?.form;
        let mut demand = recording.demand.clone();
        let end = Time::START + demand.length;
        for vcpu in &mut demand.vcpus {
            let of = vms.iter().find(|(name, _)| *name == vcpu.domain);
            if let Some((_, period)) = of.filter(|_| !vcpu.is_endless()) {
                *vcpu = vcpu.spread(*period, end);
            }
        }
        Some(PeriodPredictor { vms, demand, form })
    }

    /// Predicts the missed periods of each VM under an edited model of the recording.
    ///
    /// # Errors
    /// If the model cannot be simulated or admission refuses it.
    pub fn predict(&self, model: &Model) -> Result<Vec<PredictedVm>, ForecastError> {
        let sink = |_: &Scenario| Collector::new(Time::START);
        let mut run = model.run(&self.demand, self.form, sink)?;
        if let Some(refused) = run.refused_change() {
            return Err(refused);
        }
        let played = std::mem::replace(&mut run.sink, Collector::new(Time::START)).finish();
        let (length, end) = (run.length(), Time::START + run.length());
        let predicted = |(name, period): &VmPeriod| {
            // If a vCPU joins again, it counts as a separate stay.
            let mut vcpus: BTreeMap<VcpuId, (u64, Span)> = BTreeMap::new();
            let is_of_vm = |stay: &&VcpuDemand| run.vm_of(stay.vcpu) == Some(name.as_str());
            for stay in played.vcpus.iter().filter(is_of_vm) {
                let (misses, used) = vcpus.entry(stay.vcpu).or_default();
                *misses += stay.missed_periods(*period, (Time::START, end));
                *used += stay.work();
            }
            let misses = vcpus.values().map(|(misses, _)| *misses).max().unwrap_or(0);
            let used = vcpus.values().map(|(_, used)| *used).max().unwrap_or(Span::ZERO);
            let share = u128::from(used.ns()) * 1_000_000 / u128::from(length.ns().max(1));
            let share = u64::try_from(share).unwrap_or(u64::MAX);
            let periods = length.ns() / period.ns().max(1);
            PredictedVm { misses, periods, share_ppm: (share, share), length }
        };
        Ok(self.vms.iter().map(predicted).collect())
    }
}

#[cfg(test)]
mod tests {
    use slackline_demand::{Job, Samples};
    use slackline_units::DomId;

    use super::*;

    const PERIOD: Span = Span::from_ms(10);

    fn ms(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    fn stay(jobs: &[(u64, u64, Option<u64>)]) -> VcpuDemand {
        let job = |&(ready, work, blocked): &(u64, u64, Option<u64>)| Job {
            ready: ms(ready),
            work: Span::from_ms(work),
            blocked: blocked.map_or(Time::NEVER, ms),
        };
        VcpuDemand {
            vcpu: VcpuId::new(0, DomId::new(0), 0),
            name: "web".into(),
            domain: "web".into(),
            joined: Time::START,
            left: None,
            terms: None,
            reserved: None,
            starts_on: None,
            changes: Vec::new(),
            jobs: jobs.iter().map(job).collect(),
            overruns: Samples::default(),
        }
    }

    #[test]
    fn measured_demand_counts_only_periods_within_the_interval() {
        let jobs = [(0, 3, Some(3)), (10, 6, Some(25)), (40, 2, Some(42)), (50, 2, Some(52))];
        let measured = measure_periods(&stay(&jobs), PERIOD, (ms(40), ms(70)));
        assert_eq!(measured.demand, DemandCounts::from([(Span::ZERO, 1), (Span::from_ms(2), 2)]));
        assert_eq!((measured.misses, measured.runnable), (0, Span::from_ms(4)));
        let all = measure_periods(&stay(&jobs), PERIOD, (ms(0), ms(70)));
        assert_eq!((all.misses, all.demand.values().sum::<u64>()), (1, 7));
    }

    #[test]
    fn combined_demand_at_each_quantile_is_maximum_over_vcpus() {
        let demand = |levels: &[(u64, u64)]| {
            let levels = levels.iter().map(|&(ms, count)| (Span::from_ms(ms), count));
            levels.collect::<DemandCounts>()
        };
        let one = demand(&[(1, 90), (2, 8), (9, 2)]);
        let other = demand(&[(0, 70), (5, 29)]);
        let both = demand(&[(1, 71), (5, 27), (9, 2)]);
        assert_eq!(envelope(&one, &other), both);
        assert_eq!(envelope(&other, &one), both);
        assert_eq!(envelope(&one, &DemandCounts::new()), one);
        for allowed in 0..100 {
            let of = |demand| slackline_manager::quantile(demand, allowed);
            assert_eq!(of(&both), of(&one).max(of(&other)), "{allowed}");
        }
    }

    #[test]
    fn vm_with_endless_job_demands_all_of_each_measured_period() {
        let endless = stay(&[(0, 20, None)]);
        let measured = measure_periods(&endless, PERIOD, (ms(500), ms(1_000)));
        assert_eq!(measured.demand, DemandCounts::from([(PERIOD, 50)]));
        assert!(measured.misses >= 49, "{measured:?}");
    }
}
