//! Costs of a model's host, fitted to a recording.

use slackline_demand::{Demand, Samples, VcpuDemand};
use slackline_policy::{Spec, Values, find, is_simulated_only};
use slackline_scenario::{Draw, PERCENTILES};
use slackline_units::{Span, Time};

use crate::recording::Recording;

/// Period of the kernel tick that is assumed if the recording does not show ticks.
const USUAL_TICK: Span = Span::from_ms(4);

/// Shortest slice that Linux gives to ordinary threads: the slice on a host with one CPU.
const SHORTEST_SLICE: Span = Span::from_us(700);

/// Largest number of CPUs that lengthens the slice of an ordinary thread in Linux. More CPUs do not
/// lengthen the slice further.
const MOST_SCALED: usize = 8;

/// Minimum number of recorded stops or wakes of a VM's vCPUs from which a distribution is fitted.
const LEAST_SAMPLES: usize = 20;

/// Costs of the model's host, estimated from the recording: of context switches, migrations,
/// interrupts, ticks, late timers and dispatcher passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostCosts {
    pub(crate) switch: Span,
    pub(crate) migrate: Span,
    pub(crate) interrupt: Span,
    pub(crate) tick: Option<(Span, Span)>,
    /// Distribution of the lateness of timers.
    pub(crate) lateness: Option<Draw>,
    /// Period of the kernel's tick, and time of the first tick. `None` unless the recorded host was
    /// a live host on which ordinary scheduling distributed only slack.
    pub(crate) fair: Option<(Span, Span)>,
    /// Distributions of the dispatcher's CPU time: per timer, and per wake. An entry is `None` if
    /// the recording has no data for it.
    pub(crate) passes: [Option<Draw>; 2],
}

impl HostCosts {
    pub(crate) fn fitted(recording: &Recording) -> HostCosts {
        let costs = &recording.demand.costs;
        let ticks = costs.tick.count() as u64;
        let fitted = recording.split.since(recording.begin) * recording.header.cpus as u64;
        let tick = (ticks > 0).then(|| (fitted / ticks, costs.tick.mean()));
        HostCosts {
            switch: costs.switch.mean(),
            migrate: costs.migration.mean(),
            interrupt: costs.interrupt.mean(),
            tick,
            lateness: match recording.is_live() {
                true => distribution(&costs.lateness, costs.lateness.mean()),
                false => lateness(&costs.lateness),
            },
            fair: fair(recording).filter(|_| !is_ordinary(recording)),
            passes: passes(&recording.demand),
        }
    }
}

/// Returns true if Linux's ordinary scheduling scheduled the vCPUs of the recorded host. On other
/// hosts ordinary scheduling distributes only slack.
fn is_ordinary(recording: &Recording) -> bool {
    let name = recording.header.policy.split_whitespace().next().unwrap_or_default();
    find(name).is_some_and(is_simulated_only)
}

/// Returns the parameters of ordinary scheduling: the slice that Linux uses for this number of
/// CPUs, and the tick of the recording.
pub(crate) fn ordinary(recording: &Recording, spec: &'static Spec) -> Values {
    let doublings = u64::from(recording.header.cpus.clamp(1, MOST_SCALED).ilog2());
    let slice = SHORTEST_SLICE * (1 + doublings);
    let (tick, phase) = fair(recording).unwrap_or((USUAL_TICK, Span::ZERO));
    let text = format!("slice={slice} tick={tick} phase={phase}");
    let values = Values::read_written(spec.policy_fields, &text);
    values.expect("the policy has these parameters")
}

/// Returns the period of the kernel's tick on a live host, and the time of the first tick in the
/// model. `None` for a simulated host.
fn fair(recording: &Recording) -> Option<(Span, Span)> {
    let is_live = recording.is_live() && recording.header.knows.stretches;
    let (tick, phase) = recording.demand.others.tick.unwrap_or((USUAL_TICK, Span::ZERO));
    let begin = recording.begin.since(Time::START) % tick;
    is_live.then_some((tick, (tick + phase - begin) % tick))
}

/// Fits the CPU time that the dispatcher uses at each timer and at each wake. The total equals the
/// CPU time of all recorded dispatcher passes. `None` if the recording has no passes.
fn passes(demand: &Demand) -> [Option<Draw>; 2] {
    let others = &demand.others;
    let wakes = Samples::joined(others.wake_latency.values());
    let of_timers = others.passes.sum().left_after(wakes.sum());
    let mean = of_timers.ns().checked_div(demand.timers).map(Span::from_ns);
    let timer = mean.and_then(|mean| distribution(&others.passes, mean));
    [timer, distribution(&wakes, wakes.mean())]
}

/// Returns the distribution of the samples, scaled so that its mean is `mean`. `None` if `mean` is
/// zero, or if all samples are zero or there are none.
fn distribution(samples: &Samples, mean: Span) -> Option<Draw> {
    let quantiles = samples.percentiles(PERCENTILES)?;
    let between = PERCENTILES.windows(2).zip(quantiles.windows(2));
    // The mean between two quantiles is their midpoint. The sum is in units of 1/200 ns.
    let sum: u128 = between
        .map(|(percents, spans)| {
            u128::from(percents[1] - percents[0]) * u128::from((spans[0] + spans[1]).ns())
        })
        .sum();
    let scaled = |span: Span| {
        let ns = u128::from(span.ns()) * 200 * u128::from(mean.ns()) / sum.max(1);
        Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
    };
    (sum > 0 && !mean.is_zero()).then(|| Draw::Quantiles(quantiles.map(scaled)))
}

/// Fits the lateness of timers. Of several distributions with the recorded median, returns the
/// distribution whose 99th percentile is nearest to the recorded 99th percentile. `None` if at
/// least half of the timers were on time.
fn lateness(samples: &Samples) -> Option<Draw> {
    let p50 = samples.percentile(50).filter(|p50| !p50.is_zero())?;
    let p99 = samples.percentile(99)?;
    // The ratio p99 / p50 is 6.64 for an exponential distribution, 1.98 for a uniform distribution
    // from zero, and 1 for a fixed value. The median of an exponential distribution is 0.693 of its
    // mean.
    let hundredths = p99.ns().saturating_mul(100) / p50.ns();
    Some(match hundredths {
        0..150 => Draw::Fixed(p50),
        150..430 => Draw::Uniform { least: Span::ZERO, most: p50 * 2 },
        _ => Draw::Exponential { mean: Span::from_ns(p50.ns().saturating_mul(1000) / 693) },
    })
}

/// Fits the time by which the vCPUs of a VM stop later than their timeslices end. The CPU time that
/// a vCPU receives while it is being stopped depends on what the vCPU does, so it differs between
/// VMs. `None` if the recording has few such stops of these vCPUs.
pub(crate) fn stop_lateness<'a>(vcpus: impl Iterator<Item = &'a VcpuDemand>) -> Option<Draw> {
    let overruns = Samples::joined(vcpus.map(|vcpu| &vcpu.overruns));
    let is_enough = overruns.count() >= LEAST_SAMPLES;
    is_enough.then(|| distribution(&overruns, overruns.mean())).flatten()
}

/// Fits the dispatcher's CPU time at each wake of a VM's vCPUs. The time differs between VMs: a
/// vCPU in line behind the chosen vCPU needs no pass when it wakes, because the kernel runs it when
/// the chosen vCPU blocks. `None` if the recording has few wakes of these vCPUs.
pub(crate) fn wake_pass<'a>(
    vcpus: impl Iterator<Item = &'a VcpuDemand>,
    demand: &Demand,
) -> Option<Draw> {
    let known = vcpus.filter_map(|stay| demand.others.wake_latency.get(&stay.vcpu));
    let wakes = Samples::joined(known);
    let is_enough = wakes.count() >= LEAST_SAMPLES;
    is_enough.then(|| distribution(&wakes, wakes.mean())).flatten()
}
