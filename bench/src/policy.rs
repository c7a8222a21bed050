//! Cost of each policy alone. The benchmark's fake hardware costs no time. The measured times
//! include the host layer with its checks of the contract between policy and host.
//!
//! Two operations are measured. In a *pass*, a time limit is reached or a timer expires. The
//! running vCPU is then charged, its timeslice ends, and the next vCPU is picked. In a *pair*, the
//! running vCPU blocks, another vCPU is picked, and the blocked vCPU wakes.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use slackline_host::{CpuUse, Fact, Hardware, Host, Order, Outcome, Report};
use slackline_policy::{ALL, Moment, Policy, RawValue, Spec, Topology, Values};
use slackline_units::{CpuId, DomId, Span, Task, TaskId, Tasks, Time, Urgency, VcpuHint, VcpuId};

use crate::report::{median, spread, table};

const SIZES: [usize; 7] = [2, 8, 64, 512, 1_000, 10_000, 100_000];
const STEPS: u32 = 200_000;

/// Time for which a vCPU runs before it blocks, and also the time for which it then stays blocked.
const A_WHILE: Span = Span::from_us(1);

/// Costs of the original schedulers as CSV: policy, number of vCPUs, nanoseconds per pass, and
/// nanoseconds per pair of block and wake.
const ORIGINALS: &str = include_str!("../data/originals.csv");

/// A case of the benchmark: a policy, and the kind of shares that its vCPUs have.
struct PolicyCase {
    name: String,
    spec: &'static Spec,
    share: Share,
}

/// Kind of shares of the vCPUs in a case.
#[derive(Clone, Copy)]
enum Share {
    /// Default shares of the policy. If the shares need slices, the slices of all vCPUs together
    /// are half a CPU.
    Guaranteed,
    /// Shares without a slice, so that vCPUs receive slack only.
    BestEffort,
    /// Default shares of the policy. Each vCPU also reports a task that wants the CPU. Forty
    /// different urgencies are given to the tasks in rotation.
    Telling,
}

/// Headings of the table.
const HEADS: [&str; 6] = [
    "policy",
    "vCPUs",
    "ns per scheduling pass",
    "ns per pass of the original scheduler (ratio)",
    "ns per block and wake-up",
    "ns per block and wake-up of the original scheduler (ratio)",
];

/// Measures the policies in `policies`, or all policies if the list is empty, with each number of
/// vCPUs in `vcpus`. Policies and numbers of vCPUs are measured in turn in each of `rounds` rounds.
/// Returns Markdown.
pub(crate) fn run(rounds: u32, policies: &[String], vcpus: &[usize]) -> Result<String> {
    let mut cases = Vec::new();
    if let Some(unknown) = policies.iter().find(|name| ALL.iter().all(|spec| spec.name != *name)) {
        bail!("there is no policy `{unknown}`");
    }
    let sizes = if vcpus.is_empty() { &SIZES } else { vcpus };
    for spec in ALL {
        if !policies.is_empty() && !policies.iter().any(|name| spec.name == name) {
            continue;
        }
        cases.push(PolicyCase { name: spec.name.to_owned(), spec, share: Share::Guaranteed });
        if spec.name == "sedf" {
            let name = format!("{} best effort", spec.name);
            cases.push(PolicyCase { name, spec, share: Share::BestEffort });
        }
        if spec.name == "gaps" {
            let name = format!("{} with claims", spec.name);
            cases.push(PolicyCase { name, spec, share: Share::Telling });
        }
    }
    let mut rows = Vec::new();
    for case in &cases {
        let mut costs = Vec::new();
        for &size in sizes {
            let (mut passes, mut pairs) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                passes.push(cost(case, size, BenchHardware::pass)?);
                pairs.push(cost(case, size, BenchHardware::pair)?);
            }
            let (pass, pair) = (median(&passes), median(&pairs));
            let original = original(&case.name, size)?;
            let beside = |ours: f64, theirs: Option<f64>| match theirs {
                Some(theirs) => format!("{theirs:.0} ({:.2})", ours / theirs),
                None => "-".to_owned(),
            };
            let name = case.name.clone();
            rows.push(vec![
                name,
                size.to_string(),
                spread(&passes, 0),
                beside(pass, original.0),
                spread(&pairs, 0),
                beside(pair, original.1),
            ]);
            costs.push((size, pass));
        }
        let at = |size| costs.iter().find(|(of, _)| *of == size).map_or(f64::NAN, |cost| cost.1);
        let growth = at(100_000) / at(1_000);
        if growth.is_finite() {
            let mut row = vec![case.name.clone(), "1,000 to 100,000".to_owned()];
            row.extend([format!("{growth:.1} times"), String::new(), String::new(), String::new()]);
            rows.push(row);
        }
    }
    Ok(format!(
        "One CPU, all vCPUs runnable at the start. Times are the median (range) of {rounds} rounds \
         and include the host layer with its checks. The original schedulers were measured on \
         another machine.\n\n{}\n\
         Time in which `gaps`, called without the host layer, handles a hint that changes nothing: \
         {} ns.\n",
        table(&HEADS, &rows),
        spread(&heard(rounds)?, 1)
    ))
}

/// Measures the time that `gaps` takes for a hint that changes nothing. Returns one time in
/// nanoseconds for each round.
fn heard(rounds: u32) -> Result<Vec<f64>> {
    (0..rounds).map(|_| heard_once()).collect()
}

fn heard_once() -> Result<f64> {
    let spec = slackline_policy::find("gaps").context("gaps is a policy")?;
    let mut policy = (spec.build)(&Values::defaults(spec.policy_fields)?, &Topology::flat(1));
    let share = Values::defaults(spec.share_fields)?;
    let mut moment = Moment::at_start(1);
    let vcpus = (0..8).map(|slot| VcpuId::new(slot, DomId::new(slot), 0)).collect::<Vec<_>>();
    for &vcpu in &vcpus {
        moment.join(vcpu);
        policy.admit(&moment, vcpu, &share).map_err(|error| anyhow!("{error}"))?;
    }
    let task = |id: u8| Task { id: TaskId::new(u16::from(id)), urgency: Urgency(120 + id) };
    let runnable = [0, 1, 2, 3, 4].map(|id| Some(task(id)));
    let blocked = [5, 6, 7, 8, 9].map(|id| Some(task(id)));
    let woken = [7, 8, 9, 10, 11].map(|id| Some(TaskId::new(id)));
    let told = VcpuHint::Tasks(Tasks { runnable, blocked, woken });
    let hear = |policy: &mut dyn Policy, steps: u32| {
        for step in 0..steps {
            black_box(policy.on_hint(
                &moment,
                vcpus[step as usize % vcpus.len()],
                black_box(&told),
            ));
        }
    };
    hear(&mut *policy, STEPS / 4);
    let start = Instant::now();
    hear(&mut *policy, STEPS);
    Ok(start.elapsed().as_nanos() as f64 / f64::from(STEPS))
}

/// Returns two costs of the original scheduler in nanoseconds: of a pass, and of a block with a
/// wake. A cost is `None` if the cost is not stored.
fn original(name: &str, size: usize) -> Result<(Option<f64>, Option<f64>)> {
    let rows = ORIGINALS.lines().filter(|line| !line.starts_with('#')).skip(1);
    for row in rows {
        let cells: Vec<&str> = row.split(',').collect();
        let [policy, vcpus, pass, pair] = cells[..] else {
            bail!("a row must have four cells: `{row}`")
        };
        if policy == name && vcpus.parse() == Ok(size) {
            return Ok((pass.parse().ok(), pair.parse().ok()));
        }
    }
    Ok((None, None))
}

type Step = fn(&mut BenchHardware) -> Result<()>;

fn cost(case: &PolicyCase, size: usize, step: Step) -> Result<f64> {
    let mut hardware = BenchHardware::new(case, size)?;
    for _ in 0..STEPS / 4 {
        step(&mut hardware)?;
    }
    let start = Instant::now();
    for _ in 0..STEPS {
        step(&mut hardware)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(STEPS))
}

/// Fake hardware with one CPU, which costs no time.
struct BenchHardware {
    host: Host,
    cpu: Cpu,
    now: Time,
}

#[derive(Default)]
struct Cpu {
    occupant: Option<VcpuId>,
    since: Time,
    now: Time,
    until: Option<Time>,
    alarm: Option<Time>,
}

impl Cpu {
    /// Returns the time of the next event: the running vCPU reaches its limit, or the timer
    /// expires.
    fn due(&self) -> Time {
        self.until.unwrap_or(Time::NEVER).min(self.alarm.unwrap_or(Time::NEVER))
    }
}

impl Hardware for Cpu {
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<CpuUse> {
        let vcpu = self.occupant?;
        let from = std::mem::replace(&mut self.since, now);
        (now > from).then(|| CpuUse { vcpu, cpu, from, to: now, ran: now - from })
    }

    fn carry_out(&mut self, order: Order) -> Outcome {
        self.since = self.now;
        (self.occupant, self.until) = match order {
            Order::Run { vcpu, until, .. } => (Some(vcpu), until),
            Order::Idle { .. } => (None, None),
        };
        Outcome::Done
    }

    fn set_alarm(&mut self, _: CpuId, alarm: Option<Time>) {
        self.alarm = alarm;
    }
}

impl BenchHardware {
    fn new(case: &PolicyCase, size: usize) -> Result<BenchHardware> {
        let spec = case.spec;
        let values = Values::defaults(spec.policy_fields)?;
        let host = Host::new(spec, &values, &Topology::flat(1));
        let mut hardware = BenchHardware { host, cpu: Cpu::default(), now: Time::START };
        let share = share(case, size)?;
        let vcpus = (0..u32::try_from(size)?).map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
        for vcpu in vcpus {
            hardware.step(Fact::Joined(vcpu, (&share).into()))?;
            if let Share::Telling = case.share {
                let urgency = Urgency(100 + (vcpu.slot() % 40).to_le_bytes()[0]);
                let mut told = Tasks::default();
                told.runnable[0] = Some(Task { id: TaskId::new(0), urgency });
                hardware.step(Fact::Told(vcpu, &VcpuHint::Tasks(told)))?;
            }
            hardware.step(Fact::Woke(vcpu))?;
        }
        Ok(hardware)
    }

    #[inline(always)] // Keeps the bench's own part small.
    fn step(&mut self, fact: Fact<'_>) -> Result<()> {
        self.cpu.now = self.now;
        let report = Report { now: self.now, used: &[], fact };
        self.host.step(report, &mut self.cpu, &mut ()).map_err(|fault| *fault)?;
        if !self.host.is_settled() {
            let report = Report { now: self.now, used: &[], fact: Fact::Settled };
            self.host.step(report, &mut self.cpu, &mut ()).map_err(|fault| *fault)?;
        }
        Ok(())
    }

    fn pass(&mut self) -> Result<()> {
        let limit = self.cpu.until.unwrap_or(Time::NEVER);
        self.now = self.cpu.due();
        let cpu = CpuId::new(0);
        if limit <= self.now {
            self.step(Fact::LimitReached(cpu))
        } else {
            self.step(Fact::AlarmRang(cpu))
        }
    }

    fn pair(&mut self) -> Result<()> {
        self.rest()?;
        // If all vCPUs with a hard limit are throttled, the CPU is idle until the next period.
        while self.cpu.occupant.is_none() && self.cpu.due() < Time::NEVER {
            self.pass()?;
        }
        let vcpu = self.cpu.occupant.context("all vCPUs are runnable, but none runs")?;
        self.step(Fact::Blocked(vcpu))?;
        self.rest()?;
        self.step(Fact::Woke(vcpu))
    }

    /// Lets [`A_WHILE`] pass, and handles all events that are due in this time.
    fn rest(&mut self) -> Result<()> {
        let until = self.now + A_WHILE;
        while self.cpu.due() <= until {
            self.pass()?;
        }
        self.now = until;
        Ok(())
    }
}

/// Returns a share that is small enough for each of `size` vCPUs to have it at the same time.
fn share(case: &PolicyCase, size: usize) -> Result<Values> {
    let fields = case.spec.share_fields;
    let period = format!("{}us", 100 * size);
    let slices = [("slice", "50us"), ("budget", "50us"), ("period", period.as_str())];
    let given: &[(&str, &str)] = match case.share {
        Share::Guaranteed => &slices,
        Share::BestEffort | Share::Telling => &[],
    };
    let has = |name: &str| fields.iter().any(|field| field.name == name);
    let given = given.iter().filter(|(name, _)| has(name));
    let given = given.map(|&(name, text)| (name, RawValue::Text(text)));
    Values::read(fields, given).context("a share of the policy")
}
