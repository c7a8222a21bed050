//! Hosts with vCPUs that are placed by hand, and the results of their runs.

use std::fmt::Write as _;
use std::ops::Range;

use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{Span, Time};

pub(crate) const MS: u64 = 1_000_000;

/// Parameters of a host and its balancer. The default sets everything that a test does not name.
pub(crate) struct Host {
    pub(crate) cpus: usize,
    pub(crate) threads: usize,
    pub(crate) balancer: &'static str,
    /// Further keys of the scenario's policy, in TOML.
    pub(crate) fields: String,
    /// Further keys of the scenario's host, in TOML.
    pub(crate) keys: String,
    /// Length of the run in nanoseconds.
    pub(crate) length: u64,
    pub(crate) seed: u64,
}

impl Default for Host {
    fn default() -> Host {
        Host {
            cpus: 2,
            threads: 1,
            balancer: "none",
            fields: String::new(),
            keys: String::new(),
            length: 10_000 * MS,
            seed: 1,
        }
    }
}

/// Parameters of a vCPU.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    /// CPU on which the vCPU starts.
    pub(crate) cpu: usize,
    /// Affinity of the vCPU after the start. `None` if all CPUs are allowed.
    pub(crate) cpus: Option<Vec<usize>>,
    /// Keys of the vCPU's share under `sedf`, in TOML.
    pub(crate) share: String,
    /// Work of the vCPU, in TOML.
    pub(crate) work: String,
    /// Time at which the vCPU joins, in nanoseconds.
    pub(crate) joins: u64,
    /// Slice and period in nanoseconds. `None` if the vCPU has no reservation.
    pub(crate) slice: Option<(u64, u64)>,
}

impl Guest {
    /// Returns a best-effort vCPU that is always runnable.
    pub(crate) fn hog(cpu: usize, weight: u64) -> Guest {
        Guest {
            cpu,
            cpus: None,
            share: format!("extra-weight = {weight}"),
            work: "{ kind = 'spin' }".into(),
            joins: 0,
            slice: None,
        }
    }

    /// Returns a vCPU that starts on this CPU and has this slice in each period as a hard limit.
    pub(crate) fn promised(cpu: usize, slice: u64, period: u64) -> Guest {
        Guest {
            cpus: Some(vec![cpu]),
            share: format!("slice = '{slice}ns', period = '{period}ns', extra = false"),
            slice: Some((slice, period)),
            ..Guest::hog(cpu, 0)
        }
    }
}

pub(crate) fn text(host: &Host, guests: &[Guest]) -> String {
    let Host { cpus, threads, balancer, fields, keys, length, seed } = host;
    let mut text = format!(
        "title = 'balancers'\nlength = '{length}ns'\nseed = {seed}\n\
         policy = {{ name = 'sedf', balancer = '{balancer}', reserve = '0cpu' {fields} }}\n\
         [host]\ncpus = {cpus}\nthreads_per_core = {threads}\n{keys}\n"
    );
    let everywhere: Vec<usize> = (0..*cpus).collect();
    for (slot, guest) in guests.iter().enumerate() {
        let Guest { cpu, cpus, share, work, joins, .. } = guest;
        let cpus = cpus.as_ref().unwrap_or(&everywhere);
        let _ = write!(
            text,
            "[[domain]]\nname = 'g{slot}'\nwork = {work}\ncpus = [{cpu}]\njoins = '{joins}ns'\n\
             share.sedf = {{ {share} }}\n"
        );
        if cpus != &[*cpu] {
            let at = joins + 1;
            let _ =
                write!(text, "[[change]]\nat = '{at}ns'\ndomain = 'g{slot}'\ncpus = {cpus:?}\n");
        }
    }
    text
}

pub(crate) fn run(host: &Host, guests: &[Guest]) -> Got {
    run_text(&text(host, guests), guests)
}

pub(crate) fn run_text(text: &str, guests: &[Guest]) -> Got {
    let scenario = Scenario::read(text);
    let scenario = scenario.unwrap_or_else(|error| panic!("{}: {error}\n{text}", error.line));
    let mut trace: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut trace).expect("the run completes");
    Got::of(trace, guests)
}

/// Run interval of a vCPU on a CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) slot: usize,
    pub(crate) cpu: usize,
    pub(crate) from: Time,
    pub(crate) to: Time,
}

/// Results of a run, for queries by tests.
pub(crate) struct Got {
    pub(crate) trace: Vec<Record>,
    pub(crate) stretches: Vec<Stretch>,
    guests: Vec<Guest>,
}

fn at(ms: u64) -> Time {
    Time::from_ns(ms * MS)
}

impl Stretch {
    fn within(&self, from: Time, to: Time) -> Span {
        let (from, to) = (self.from.max(from), self.to.min(to));
        if from < to { to.since(from) } else { Span::ZERO }
    }
}

impl Got {
    fn of(trace: Vec<Record>, guests: &[Guest]) -> Got {
        let stretch = |record: &Record| match *record {
            Record::Ran { vcpu, cpu, from, to, .. } if from < to => {
                Some(Stretch { slot: vcpu.slot(), cpu: cpu.index(), from, to })
            }
            _ => None,
        };
        let mut stretches: Vec<Stretch> = trace.iter().filter_map(stretch).collect();
        stretches.sort_by_key(|stretch| (stretch.from, stretch.slot));
        Got { trace, stretches, guests: guests.to_vec() }
    }

    /// Returns the CPU time of a vCPU between two times in milliseconds.
    pub(crate) fn had(&self, slot: usize, window: Range<u64>) -> Span {
        let own = self.stretches.iter().filter(|stretch| stretch.slot == slot);
        own.map(|stretch| stretch.within(at(window.start), at(window.end))).sum()
    }

    /// Returns the work of a vCPU between two times in milliseconds, as CPU time at full speed.
    pub(crate) fn work(&self, slot: usize, window: Range<u64>) -> Span {
        let lost = |record: &Record| match *record {
            Record::Slowed { vcpu, from, to, work } if vcpu.slot() == slot => {
                let inside = Stretch { slot, cpu: 0, from, to };
                let inside = inside.within(at(window.start), at(window.end));
                let (whole, lost) = (to.since(from), to.since(from) - work);
                let ns =
                    u128::from(inside.ns()) * u128::from(lost.ns()) / u128::from(whole.ns().max(1));
                Span::from_ns(u64::try_from(ns).expect("a part is not more than the whole"))
            }
            _ => Span::ZERO,
        };
        self.had(slot, window.clone()) - self.trace.iter().map(lost).sum()
    }

    /// Returns the cumulative CPU time of each vCPU since the start of the window, at each multiple
    /// of `step` milliseconds.
    pub(crate) fn sums(&self, window: Range<u64>, step: u64) -> Vec<Vec<u64>> {
        let count = usize::try_from((window.end - window.start) / step)
            .expect("the steps of a short run fit in memory");
        let mut steps = vec![vec![0; self.guests.len()]; count];
        for stretch in &self.stretches {
            let first = (stretch.from.ns() / MS).saturating_sub(window.start) / step;
            let last =
                ((stretch.to.ns() / MS).saturating_sub(window.start) / step).min(count as u64);
            for index in first..=last {
                let from = window.start + index * step;
                let had = stretch.within(at(from), at(from + step)).ns();
                if let Some(row) = steps.get_mut(
                    usize::try_from(index).expect("the steps of a short run fit in memory"),
                ) {
                    row[stretch.slot] += had;
                }
            }
        }
        let mut sums = vec![0; self.guests.len()];
        for row in &mut steps {
            for (sum, had) in sums.iter_mut().zip(row.iter_mut()) {
                *sum += *had;
                *had = *sum;
            }
        }
        steps
    }

    /// Returns the number of migrations in a window.
    pub(crate) fn moves(&self, window: Range<u64>) -> usize {
        let moves = |slot: usize| {
            let own = self.stretches.iter().filter(|stretch| stretch.slot == slot);
            let own: Vec<&Stretch> = own.collect();
            let pairs = own.windows(2).filter(|pair| pair[0].cpu != pair[1].cpu);
            pairs.filter(|pair| (at(window.start)..at(window.end)).contains(&pair[1].from)).count()
        };
        (0..self.guests.len()).map(moves).sum()
    }

    /// Returns each vCPU that missed a slice, with the start of the period in which it did. The
    /// periods of a vCPU are counted from its join.
    pub(crate) fn missed(&self, end: u64) -> Vec<(usize, Time)> {
        let mut missed = Vec::new();
        for (slot, guest) in self.guests.iter().enumerate() {
            let Some((slice, period)) = guest.slice else { continue };
            let own: Vec<&Stretch> =
                self.stretches.iter().filter(|stretch| stretch.slot == slot).collect();
            let mut begin = guest.joins;
            let mut next = 0;
            while begin + period <= end {
                let (from, to) = (Time::from_ns(begin), Time::from_ns(begin + period));
                while own.get(next).is_some_and(|stretch| stretch.to <= from) {
                    next += 1;
                }
                let inside = own[next..].iter().take_while(|stretch| stretch.from < to);
                let had: Span = inside.map(|stretch| stretch.within(from, to)).sum();
                if had.ns() < slice {
                    missed.push((slot, from));
                }
                begin += period;
            }
        }
        missed
    }
}
