//! What each policy costs by itself, under a machine that costs nothing and a host that checks.
//!
//! A pass is what happens when a limit or an alarm is reached: the occupant is charged, told that
//! its turn is over, and the next one is picked. In a pair the occupant blocks, somebody else is
//! picked, and it wakes again.

use std::time::Instant;

use anyhow::{Context, Result};
use slackline_host::{Fact, Hands, Host, Order, Outcome, Report, Used};
use slackline_policy::{ALL, Given, Spec, Values};
use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

use crate::report::table;

const SIZES: [usize; 6] = [2, 8, 64, 512, 10_000, 100_000];
const STEPS: u32 = 1_000_000;

/// How long the occupant runs before it blocks, and how long it sleeps.
const A_WHILE: Span = Span::from_us(1);

/// Measures every policy at every size; returns Markdown.
pub(crate) fn run() -> Result<String> {
    let mut rows = Vec::new();
    for spec in ALL {
        for size in SIZES {
            let pass = cost(spec, size, Machine::pass)?;
            let pair = cost(spec, size, Machine::pair)?;
            let name = spec.name.to_owned();
            rows.push(vec![name, size.to_string(), format!("{pass:.0}"), format!("{pair:.0}")]);
        }
    }
    let heads = ["policy", "vCPUs", "ns a pass", "ns a block and wake"];
    Ok(format!("One CPU, everybody awake at first.\n\n{}", table(&heads, &rows)))
}

type Step = fn(&mut Machine) -> Result<()>;

fn cost(spec: &'static Spec, size: usize, step: Step) -> Result<f64> {
    let mut machine = Machine::new(spec, size)?;
    for _ in 0..STEPS / 10 {
        step(&mut machine)?;
    }
    let start = Instant::now();
    for _ in 0..STEPS {
        step(&mut machine)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(STEPS))
}

/// One CPU that costs nothing.
struct Machine {
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
    /// When its limit or its alarm is reached.
    fn due(&self) -> Time {
        self.until.unwrap_or(Time::NEVER).min(self.alarm.unwrap_or(Time::NEVER))
    }
}

impl Hands for Cpu {
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<Used> {
        let vcpu = self.occupant?;
        let from = std::mem::replace(&mut self.since, now);
        (now > from).then(|| Used { vcpu, cpu, from, to: now, ran: now - from })
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

impl Machine {
    fn new(spec: &'static Spec, size: usize) -> Result<Machine> {
        let values = Values::defaults(spec.policy_fields)?;
        let host = Host::new(spec, &values, 1);
        let mut machine = Machine { host, cpu: Cpu::default(), now: Time::START };
        let share = share(spec, size)?;
        let vcpus = (0..u32::try_from(size)?).map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
        for vcpu in vcpus {
            machine.step(Fact::Joined(vcpu, &share))?;
            machine.step(Fact::Woke(vcpu))?;
        }
        Ok(machine)
    }

    fn step(&mut self, fact: Fact<'_>) -> Result<()> {
        self.cpu.now = self.now;
        let report = Report { now: self.now, used: &[], fact };
        self.host.step(report, &mut self.cpu, &mut ()).map_err(|fault| *fault)?;
        Ok(())
    }

    fn pass(&mut self) -> Result<()> {
        let limit = self.cpu.until.unwrap_or(Time::NEVER);
        let reached = if limit <= self.cpu.due() { Fact::LimitReached } else { Fact::AlarmRang };
        self.now = self.cpu.due();
        self.step(reached(CpuId::new(0)))
    }

    fn pair(&mut self) -> Result<()> {
        self.rest()?;
        let vcpu = self.cpu.occupant.context("everybody is awake, and nobody runs")?;
        self.step(Fact::Blocked(vcpu))?;
        self.rest()?;
        self.step(Fact::Woke(vcpu))
    }

    /// Lets a while pass, and what is due in it happen.
    fn rest(&mut self) -> Result<()> {
        let until = self.now + A_WHILE;
        while self.cpu.due() <= until {
            self.pass()?;
        }
        self.now = until;
        Ok(())
    }
}

/// A share that as many can have at once: a policy's defaults, and where it needs a slice in every
/// period, half a CPU for all together.
fn share(spec: &'static Spec, size: usize) -> Result<Values> {
    let period = format!("{}us", 100 * size);
    let given = [("slice", "50us"), ("period", period.as_str())];
    let has = |name: &str| spec.share_fields.iter().any(|field| field.name == name);
    let given = given.into_iter().filter(|(name, _)| has(name));
    let given = given.map(|(name, text)| (name, Given::Text(text)));
    Values::read(spec.share_fields, given).context("a share of the policy")
}
