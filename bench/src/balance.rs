//! Cost of each balancer of the policy `sedf`. In each call, the timer of CPU 0 expires and the
//! policy starts its balancer. Every tenth call is a *run*: the balancer samples the load, decides,
//! and migrates vCPUs. In the other calls the balancer only samples the load. The results show the
//! time of a run and, for comparison, the time of a sample.
//!
//! There are four vCPUs per CPU, which are always runnable. They get the weights 1, 1, 1, 2 and 4
//! in turn, so the CPUs have different total weights. Each vCPU is charged the CPU time that it
//! would have received on its CPU. For the balancer `planned`, the affinity of one vCPU changes
//! before each run, so that the balancer has to make a new plan.

use std::time::Instant;

use anyhow::{Context, Result};
use slackline_policy::{Moment, Policy, RawValue, Topology, Values, find};
use slackline_units::{CpuId, CpuSet, DomId, Span, Time, VcpuId};

use crate::report::{median, spread, table};

const SIZES: [usize; 3] = [8, 64, 256];
const VCPUS_A_CPU: usize = 4;
const WEIGHTS: [u64; 5] = [1, 1, 1, 2, 4];
const CALL: Span = Span::from_ms(50);
const RUNS: usize = 40;

/// Measures each balancer at each number of CPUs for `rounds` rounds. Returns Markdown.
pub(crate) fn run(rounds: u32) -> Result<String> {
    let mut rows = Vec::new();
    for balancer in ["thesis", "repaired", "planned"] {
        for cpus in SIZES {
            let (mut runs, mut samples, mut moves) = (Vec::new(), Vec::new(), 0);
            for _ in 0..rounds {
                let measured = measure(balancer, cpus)?;
                runs.push(median(&measured.runs));
                samples.push(median(&measured.samples));
                moves = measured.moves;
            }
            rows.push(vec![
                balancer.to_owned(),
                cpus.to_string(),
                (cpus * VCPUS_A_CPU).to_string(),
                spread(&runs, 1),
                spread(&samples, 1),
                format!("{:.1}", moves as f64 / RUNS as f64),
            ]);
        }
    }
    let heads = ["balancer", "CPUs", "vCPUs", "us per run", "us per sample", "moves per run"];
    let what = format!("Medians of {rounds} rounds, each with {RUNS} runs of the balancer.");
    Ok(format!("{what}\n\n{}", table(&heads, &rows)))
}

struct BalanceResults {
    runs: Vec<f64>,
    samples: Vec<f64>,
    moves: usize,
}

/// A policy with its vCPUs and CPUs. The benchmark calls the policy directly, without a host.
struct Driven {
    policy: Box<dyn Policy>,
    at: Moment,
    vcpus: Vec<(VcpuId, u64)>,
    cpus: usize,
}

impl Driven {
    fn new(balancer: &str, cpus: usize) -> Result<Driven> {
        let spec = find("sedf").context("sedf is a policy")?;
        let fields = [("balancer", RawValue::Text(balancer))];
        let values = Values::read(spec.policy_fields, fields.into_iter())?;
        let policy = (spec.build)(&values, &Topology::flat(cpus));
        let mut driven = Driven { policy, at: Moment::at_start(cpus), vcpus: Vec::new(), cpus };
        for index in 0..cpus * VCPUS_A_CPU {
            let number = u32::try_from(index)?;
            let vcpu = VcpuId::new(number, DomId::new(number), 0);
            let weight = WEIGHTS[index % WEIGHTS.len()];
            let text = weight.to_string();
            let given = [("extra-weight", RawValue::Number(&text))];
            let share = Values::read(spec.share_fields, given.into_iter())?;
            driven.at.join(vcpu);
            driven.policy.admit(&driven.at, vcpu, &share)?;
            driven.at.set_awake(vcpu, true);
            driven.policy.on_wake(&driven.at, vcpu);
            driven.vcpus.push((vcpu, weight));
        }
        Ok(driven)
    }

    /// Returns the CPU on which the policy has placed each vCPU.
    fn places(&self) -> Result<Vec<usize>> {
        let place = |&(vcpu, _): &(VcpuId, u64)| {
            let account = self.policy.account(vcpu);
            let row =
                account.iter().find(|(name, _)| *name == "cpu").context("a row for the CPU")?;
            Ok(row.1.trim_start_matches("cpu").parse()?)
        };
        self.vcpus.iter().map(place).collect()
    }

    /// Charges each vCPU the CPU time of one interval [`CALL`], and then lets the timer of CPU 0
    /// expire. Returns the time in microseconds that the policy took to handle the timer.
    fn call(&mut self, places: &[usize]) -> f64 {
        let mut weights = vec![0; self.cpus];
        for (&(_, weight), &cpu) in self.vcpus.iter().zip(places) {
            weights[cpu] += weight;
        }
        self.at.advance(self.at.now().after(CALL));
        for (&(vcpu, weight), &cpu) in self.vcpus.iter().zip(places) {
            let had = Span::from_ns(CALL.ns() * weight / weights[cpu]);
            self.policy.charge(&self.at, vcpu, had);
        }
        let begin = Instant::now();
        let asked = self.policy.on_timer(&self.at, CpuId::new(0));
        let took = begin.elapsed();
        for cpu in asked.iter() {
            self.policy.prepare_pick(&self.at, cpu);
        }
        took.as_secs_f64() * 1e6
    }
}

fn measure(balancer: &str, cpus: usize) -> Result<BalanceResults> {
    let mut driven = Driven::new(balancer, cpus)?;
    debug_assert_eq!(driven.at.now(), Time::START);
    let mut measured = BalanceResults { runs: Vec::new(), samples: Vec::new(), moves: 0 };
    let mut places = driven.places()?;
    let (one, _) = driven.vcpus[0];
    for run in 0..RUNS {
        for call in 1..=10 {
            if call == 10 {
                let all = CpuSet::first_n(cpus);
                let most = all.without(&CpuSet::one(CpuId::new(cpus - 1)));
                driven.at.allow(one, if run % 2 == 0 { most } else { all });
            }
            let took = driven.call(&places);
            let now = driven.places()?;
            if call == 10 {
                measured.runs.push(took);
                measured.moves += places.iter().zip(&now).filter(|(a, b)| a != b).count();
            } else if call % 2 == 0 {
                measured.samples.push(took);
            }
            places = now;
        }
    }
    Ok(measured)
}
