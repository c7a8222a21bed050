//! Comparison of the CPU time of guests with their fair CPU time. Fair CPU time is the weighted
//! max-min fair share of all CPUs, among the guests that are runnable at each instant.

use slackline_trace::{Record, Sink, VcpuName};
use slackline_units::{Span, Time, VcpuId};

use super::{Plan, quantile};

const SECOND: u64 = 1_000_000_000;

/// Smallest fair CPU time in a second for which a deviation is computed, in nanoseconds.
const LEAST_NS: f64 = 1e6;

/// Returns the weighted max-min fair rate of each guest on CPUs with the capacities `room`. Both
/// arguments must be in descending order.
///
/// A vCPU runs on one CPU at a time, so the `j` largest rates must fit on the `j` CPUs with the
/// most capacity. For each `j`, draw a point with two coordinates: the summed weight of the `j`
/// heaviest guests, and the summed capacity of the `j` largest CPUs. The slopes of the greatest
/// convex function below these points are the fair rates per unit of weight.
#[must_use]
pub fn fair_rates(weights: &[f64], room: &[f64]) -> Vec<f64> {
    // Corners of the convex function, as number of guests, summed weight and summed capacity.
    let mut corners = vec![(0_usize, 0.0, 0.0)];
    let (mut weight, mut sum) = (0.0, 0.0);
    for (nth, each) in weights.iter().enumerate() {
        weight += each;
        sum += room.get(nth).copied().unwrap_or_default();
        // If the new point is on or below the line through the last two corners, the last corner is
        // not a corner of the convex function.
        let is_below = |corners: &[(usize, f64, f64)]| match corners {
            [.., (_, w0, s0), (_, w1, s1)] => (s1 - s0) * (weight - w1) >= (sum - s1) * (w1 - w0),
            _ => false,
        };
        while is_below(&corners) {
            corners.pop();
        }
        corners.push((nth + 1, weight, sum));
    }
    let mut rates = Vec::with_capacity(weights.len());
    for pair in corners.windows(2) {
        let ((from, w0, s0), (to, w1, s1)) = (pair[0], pair[1]);
        rates.extend(weights[from..to].iter().map(|each| each * (s1 - s0) / (w1 - w0)));
    }
    rates
}

/// Relative deviation of guests' CPU time from their fair CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fairness {
    /// Mean relative deviation over all guests.
    pub mean: f64,
    /// Largest relative deviation of a guest.
    pub worst: f64,
    /// 95th percentile of the relative deviation over all whole seconds of all guests.
    pub second_p95: f64,
}

/// Sink that compares the CPU time of guests with their fair CPU time, in a run of a random host.
/// The warm-up does not count.
#[derive(Clone, Debug)]
pub struct FairMeter<'a> {
    plan: &'a Plan,
    from: Time,
    now: Time,
    /// Indices of the guests by descending weight.
    order: Vec<usize>,
    awake: Vec<bool>,
    /// Capacity that guests can use on each CPU, in millionths of a CPU.
    room: Vec<u32>,
    /// Index of the next change in the plan's `room`.
    next: usize,
    /// Fair rate of each runnable guest. `None` if the rates must be computed again after a change.
    rates: Option<Vec<(usize, f64)>>,
    /// Fair CPU time in nanoseconds. The outer index is the second since `from`, the inner index is
    /// the guest.
    fair: Vec<Vec<f64>>,
    got: Vec<Vec<f64>>,
}

impl<'a> FairMeter<'a> {
    /// Creates the sink for a run of a random host. `plan` belongs to the host, and `warmup` is not
    /// counted.
    #[must_use]
    pub fn new(plan: &'a Plan, warmup: Span) -> FairMeter<'a> {
        let mut order: Vec<usize> = (0..plan.weights.len()).collect();
        order.sort_by_key(|&guest| std::cmp::Reverse(plan.weights[guest]));
        FairMeter {
            plan,
            from: Time::START + warmup,
            now: Time::START,
            order,
            awake: vec![false; plan.weights.len()],
            room: vec![1_000_000; plan.cpus],
            next: 0,
            rates: None,
            fair: Vec::new(),
            got: Vec::new(),
        }
    }

    /// Returns the deviations. `None` if no guest had fair CPU time.
    #[must_use]
    pub fn finish(self) -> Option<Fairness> {
        let guests = 0..self.plan.weights.len();
        let total = |table: &[Vec<f64>], guest: usize| table.iter().map(|row| row[guest]).sum();
        let off = |got: f64, fair: f64| (got / fair - 1.0).abs();
        let each = guests.clone().filter_map(|guest| {
            let (got, fair): (f64, f64) = (total(&self.got, guest), total(&self.fair, guest));
            (fair > 0.0).then(|| off(got, fair))
        });
        let each: Vec<f64> = each.collect();
        // The last second may be incomplete.
        let whole = (self.now.since(self.from).ns() / SECOND).try_into().unwrap_or(usize::MAX);
        let seconds = self.fair.iter().zip(&self.got).take(whole);
        let pairs = seconds.flat_map(|(fair, got)| fair.iter().zip(got));
        let counted = pairs.filter(|(fair, _)| **fair >= LEAST_NS);
        let mut seconds: Vec<f64> = counted.map(|(fair, got)| off(*got, *fair)).collect();
        let worst = each.iter().copied().max_by(f64::total_cmp)?;
        let mean = each.iter().sum::<f64>() / each.len() as f64;
        Some(Fairness { mean, worst, second_p95: quantile(&mut seconds, 0.95).unwrap_or(0.0) })
    }

    fn guest(&self, vcpu: VcpuId) -> Option<usize> {
        let domain = vcpu.domain().number() as usize;
        (domain < self.awake.len()).then_some(domain)
    }

    fn set_awake(&mut self, at: Time, vcpu: VcpuId, awake: bool) {
        if let Some(guest) = self.guest(vcpu) {
            self.advance(at);
            self.awake[guest] = awake;
            self.rates = None;
        }
    }

    /// Adds the fair CPU time of each guest up to the given time.
    fn advance(&mut self, to: Time) {
        while self.now < to {
            while let Some(&(at, cpu, room)) = self.plan.room.get(self.next)
                && at <= self.now
            {
                self.room[cpu] = room;
                self.next += 1;
                self.rates = None;
            }
            let jumps = self.plan.room.get(self.next).map_or(Time::NEVER, |&(at, ..)| at);
            let end = to.min(jumps);
            if end > self.from {
                self.add_fair(self.now.max(self.from), end);
            }
            self.now = end;
        }
    }

    fn add_fair(&mut self, from: Time, to: Time) {
        let rates = self.rates.take().unwrap_or_else(|| self.rates_now());
        for (second, ns) in seconds(self.from, from, to) {
            let row = row(&mut self.fair, second, self.awake.len());
            rates.iter().for_each(|&(guest, rate)| row[guest] += rate * ns);
        }
        self.rates = Some(rates);
    }

    fn rates_now(&self) -> Vec<(usize, f64)> {
        let guests: Vec<usize> =
            self.order.iter().copied().filter(|&guest| self.awake[guest]).collect();
        let weight = |&guest: &usize| f64::from(self.plan.weights[guest]);
        let weights: Vec<f64> = guests.iter().map(weight).collect();
        let mut room: Vec<f64> = self.room.iter().map(|&ppm| f64::from(ppm) / 1e6).collect();
        room.sort_by(|a, b| b.total_cmp(a));
        guests.into_iter().zip(fair_rates(&weights, &room)).collect()
    }
}

/// Returns, for each second since `start`, the part of a run interval in that second, in
/// nanoseconds.
fn seconds(start: Time, from: Time, to: Time) -> impl Iterator<Item = (usize, f64)> {
    let (mut at, end) = (from.since(start).ns(), to.since(start).ns());
    std::iter::from_fn(move || {
        let second = at / SECOND;
        let until = end.min((second + 1) * SECOND);
        let ns = until.checked_sub(at).filter(|&ns| ns > 0)?;
        at = until;
        Some((usize::try_from(second).ok()?, ns as f64))
    })
}

fn row(table: &mut Vec<Vec<f64>>, second: usize, guests: usize) -> &mut Vec<f64> {
    if table.len() <= second {
        table.resize_with(second + 1, || vec![0.0; guests]);
    }
    &mut table[second]
}

impl Sink for FairMeter<'_> {
    fn record(&mut self, record: &Record) {
        match *record {
            Record::Woke { at, vcpu } => self.set_awake(at, vcpu, true),
            Record::Blocked { at, vcpu } => self.set_awake(at, vcpu, false),
            Record::Ran { vcpu, from, to, used, .. } => {
                let Some(guest) = self.guest(vcpu).filter(|_| to > self.from) else { return };
                let rate = used.ns() as f64 / to.since(from).ns().max(1) as f64;
                for (second, ns) in seconds(self.from, from.max(self.from), to) {
                    row(&mut self.got, second, self.awake.len())[guest] += rate * ns;
                }
            }
            Record::Ended { at } => {
                self.advance(at);
                // If no guest ran in a second, one of the two lists has no row for it.
                let seconds = self.fair.len().max(self.got.len());
                for table in [&mut self.fair, &mut self.got] {
                    if seconds > 0 {
                        row(table, seconds - 1, self.awake.len());
                    }
                }
            }
            _ => {}
        }
    }

    fn named(&mut self, _: &VcpuName) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: &[f64], wanted: &[f64]) {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
        assert!(found.len() == wanted.len() && found.iter().zip(wanted).all(near), "{found:?}");
    }

    /// The test cases have known solutions. They include three equal guests on two CPUs, one heavy
    /// guest, and guests on CPUs with different capacities.
    #[test]
    fn fair_rates_equal_known_solutions_of_weighted_max_min_fairness() {
        close(&fair_rates(&[1.0; 3], &[1.0, 1.0]), &[2.0 / 3.0; 3]);
        close(
            &fair_rates(&[4.0, 1.0, 1.0, 1.0], &[1.0, 1.0]),
            &[1.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0],
        );
        close(&fair_rates(&[3.0, 2.0, 2.0], &[1.0, 1.0]), &[6.0 / 7.0, 4.0 / 7.0, 4.0 / 7.0]);
        close(&fair_rates(&[1.0, 1.0], &[1.0, 0.5]), &[0.75, 0.75]);
        close(&fair_rates(&[1.0, 1.0, 1.0], &[1.0, 0.75]), &[7.0 / 12.0; 3]);
        close(&fair_rates(&[8.0, 1.0], &[1.0, 0.5]), &[1.0, 0.5]);
        close(&fair_rates(&[1.0], &[1.0, 1.0]), &[1.0]);
        close(&fair_rates(&[], &[1.0]), &[]);
    }

    #[test]
    fn fair_cpu_time_accounts_for_blocked_vcpus_and_capacity_changes() {
        let at = |ms| Time::START + Span::from_ms(ms);
        let vcpu = |n: u32| VcpuId::new(n, slackline_units::DomId::new(n), 0);
        let room = vec![(Time::START, 0, 1_000_000), (at(2_000), 0, 500_000)];
        let plan = Plan { weights: vec![1, 3], cpus: 1, room };
        let mut meter = FairMeter::new(&plan, Span::from_ms(1_000));
        meter.record(&Record::Woke { at: at(0), vcpu: vcpu(0) });
        meter.record(&Record::Woke { at: at(1_500), vcpu: vcpu(1) });
        meter.record(&Record::Blocked { at: at(2_500), vcpu: vcpu(0) });
        let ran = |n, from, to| Record::Ran {
            vcpu: vcpu(n),
            cpu: slackline_units::CpuId::new(0),
            from: at(from),
            to: at(to),
            used: Span::from_ms(to - from),
            granted: None,
            late: Span::ZERO,
            end: slackline_trace::RanEnd::Over,
            due: true,
        };
        meter.record(&ran(0, 0, 1_500));
        meter.record(&ran(1, 1_500, 2_500));
        meter.record(&Record::Ended { at: at(3_000) });
        // The first guest runs alone for 500 ms, gets a quarter for 500 ms, and then an eighth for
        // 500 ms.
        close(&[meter.fair[0][0], meter.fair[1][0]], &[0.625e9, 0.0625e9]);
        close(&[meter.fair[0][1], meter.fair[1][1]], &[0.375e9, 0.1875e9 + 0.25e9]);
        close(&[meter.got[0][0], meter.got[0][1], meter.got[1][1]], &[0.5e9, 0.5e9, 0.5e9]);
        let found = meter.finish().unwrap();
        let off = [1.0 - 0.5 / 0.6875, 1.0 / 0.8125 - 1.0];
        close(&[found.mean, found.worst], &[(off[0] + off[1]) / 2.0, off[0]]);
    }
}
