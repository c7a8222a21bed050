//! Host for tests, with hardware and a policy that do what a test says. Neither checks anything, so
//! every refusal comes from the host.

#![allow(dead_code)] // No test file uses all of these items.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use slackline_host::policy::{
    Account, AdmitError, Entitlement, Field, Moment, Pick, Policy, RawValue, TimesliceEnd,
    Topology, Values, VcpuHint, find,
};
use slackline_host::{Broken, CpuUse, Fact, Fault, Hardware, Host, Order, Outcome, Report};
use slackline_trace::Record;
use slackline_units::{CpuId, CpuSet, DomId, ReservationError, Span, Time, VcpuId};

/// CPU with the lowest number, for tests.
pub(crate) const CPU0: CpuId = CpuId::new(0);
pub(crate) const CPU1: CpuId = CpuId::new(1);
pub(crate) const CPU2: CpuId = CpuId::new(2);

/// Returns the vCPU with slot `slot`, the only vCPU of its domain.
pub(crate) fn vcpu(slot: u32) -> VcpuId {
    VcpuId::new(slot, DomId::new(slot), 0)
}

/// Returns the time `ms` milliseconds after the start of the run.
pub(crate) fn at(ms: u64) -> Time {
    Time::START + Span::from_ms(ms)
}

/// Returns the vCPU parameters of a policy that defines no vCPU parameters.
pub(crate) fn no_share() -> Values {
    Values::defaults(&[]).expect("no field is required")
}

/// Returns a pick of vCPU `slot` on reserved time, limited to `ms` milliseconds.
pub(crate) fn run(slot: u32, ms: u64) -> Pick {
    let limit = Some(Span::from_ms(ms));
    Pick::Run { vcpu: vcpu(slot), limit, entitlement: Entitlement::Due }
}

/// Hardware that carries out orders, unless `refuses` is set for the next order.
pub(crate) struct TestHardware {
    pub(crate) now: Time,
    /// vCPU that occupies each CPU.
    pub(crate) on: Vec<Option<VcpuId>>,
    pub(crate) refuses: bool,
    /// CPU time, in milliseconds, that a running vCPU uses in every 2 ms.
    pub(crate) rate: u64,
    /// CPU time to report at the next measurement, in place of the time that was measured.
    pub(crate) says: Option<CpuUse>,
    /// Number of calls of `measure` so far.
    pub(crate) measures: usize,
    /// True if the hardware cannot measure CPU time.
    pub(crate) is_blind: bool,
    pub(crate) orders: Vec<Order>,
    pub(crate) alarms: Vec<Option<Time>>,
    measured: Vec<Time>,
}

impl Hardware for TestHardware {
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<CpuUse> {
        self.measures += 1;
        if self.is_blind {
            return None;
        }
        let vcpu = self.on[cpu.index()]?;
        let from = std::mem::replace(&mut self.measured[cpu.index()], now);
        let ran = (now - from) / 2 * self.rate;
        self.says.take().or(Some(CpuUse { vcpu, cpu, from, to: now, ran }))
    }

    fn carry_out(&mut self, order: Order) -> Outcome {
        self.orders.push(order);
        let (cpu, vcpu) = match order {
            Order::Run { cpu, vcpu, .. } => (cpu, Some(vcpu)),
            Order::Idle { cpu } => (cpu, None),
        };
        let refuses = std::mem::take(&mut self.refuses);
        if vcpu != self.on[cpu.index()] {
            self.measured[cpu.index()] = self.now;
        }
        self.on[cpu.index()] = vcpu.filter(|_| !refuses);
        if refuses { Outcome::Refused } else { Outcome::Done }
    }

    fn set_alarm(&mut self, cpu: CpuId, alarm: Option<Time>) {
        self.alarms[cpu.index()] = alarm;
    }
}

/// Results that the scripted policy returns, correct or not, and a record of its calls.
#[derive(Default)]
pub(crate) struct Answers {
    /// Pick for each CPU. A CPU without an entry idles.
    pub(crate) picks: BTreeMap<CpuId, Pick>,
    pub(crate) alarms: BTreeMap<CpuId, Time>,
    /// CPUs that the policy returns for rescheduling from every event handler except the handlers
    /// of a charge and of a start.
    pub(crate) ask: CpuSet,
    pub(crate) ask_when_charged: CpuSet,
    pub(crate) ask_when_started: CpuSet,
    pub(crate) ring_needs: CpuSet,
    /// Pick that replaces the pick in `picks` at every start on a CPU. The replaced pick is stored
    /// in this field until the next start.
    pub(crate) swaps: Option<Pick>,
    /// CPUs that the policy returns for rescheduling after each scheduling pass.
    pub(crate) ask_on_pass: CpuSet,
    pub(crate) declines: bool,
    pub(crate) charged: Vec<(VcpuId, Span)>,
    /// CPUs for which `pick` was called.
    pub(crate) asked: CpuSet,
}

/// Policy whose results a test sets.
struct Scripted(Arc<Mutex<Answers>>);

impl Scripted {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().expect("the answers are used by one thread only")
    }

    fn judge(&self) -> Result<(), AdmitError> {
        let error = AdmitError::Reservation(ReservationError::NoSlice);
        if self.answers().declines { Err(error) } else { Ok(()) }
    }
}

impl Policy for Scripted {
    fn admit(&mut self, _: &Moment, _: VcpuId, _: &Values) -> Result<(), AdmitError> {
        self.judge()
    }

    fn adjust(&mut self, _: &Moment, _: VcpuId, _: &Values) -> Result<CpuSet, AdmitError> {
        self.judge().map(|()| self.answers().ask)
    }

    fn on_leave(&mut self, _: &Moment, _: VcpuId) -> CpuSet {
        self.answers().ask
    }

    fn on_wake(&mut self, _: &Moment, _: VcpuId) -> CpuSet {
        self.answers().ask
    }

    fn charge(&mut self, _: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        let mut answers = self.answers();
        answers.charged.push((vcpu, ran));
        answers.ask_when_charged
    }

    fn on_start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let mut answers = self.answers();
        let cpu = at.cpu_of(vcpu).expect("a started vCPU has a CPU");
        if let Some(next) = answers.swaps {
            answers.swaps = answers.picks.insert(cpu, next);
        }
        answers.ask_when_started
    }

    fn on_hint(&mut self, _: &Moment, _: VcpuId, _: &VcpuHint) -> CpuSet {
        self.answers().ask
    }

    fn timer_charges(&self, _: &Moment, _: CpuId) -> CpuSet {
        self.answers().ring_needs
    }

    fn on_block(&mut self, _: &Moment, _: VcpuId) -> CpuSet {
        self.answers().ask
    }

    fn on_timeslice_end(&mut self, _: &Moment, _: VcpuId, _: TimesliceEnd) -> CpuSet {
        self.answers().ask
    }

    fn prepare_pick(&mut self, _: &Moment, _: CpuId) -> CpuSet {
        self.answers().ask_on_pass
    }

    fn pick(&self, _: &Moment, cpu: CpuId) -> Pick {
        let mut answers = self.answers();
        answers.asked.insert(cpu);
        answers.picks.get(&cpu).copied().unwrap_or(Pick::Idle)
    }

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        self.answers().alarms.get(&cpu).copied()
    }

    fn on_timer(&mut self, _: &Moment, _: CpuId) -> CpuSet {
        self.answers().ask
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        vec![("who", vcpu.to_string())]
    }
}

/// A host with its hardware, policy and trace, driven step by step by a test.
pub(crate) struct Story {
    pub(crate) host: Host,
    pub(crate) hardware: TestHardware,
    pub(crate) trace: Vec<Record>,
    answers: Arc<Mutex<Answers>>,
    fields: &'static [Field],
}

impl Story {
    /// Creates a host with a real policy. A running vCPU gets only half of the CPU's time.
    pub(crate) fn new(policy: &str, cpus: usize) -> Story {
        Story::under(policy, &[], cpus)
    }

    /// Creates a host with a real policy that has these parameters.
    pub(crate) fn under(policy: &str, given: &[(&str, &str)], cpus: usize) -> Story {
        let spec = find(policy).expect("the policy is on the list");
        let given = given.iter().map(|&(name, text)| (name, RawValue::Text(text)));
        let values = Values::read(spec.policy_fields, given).expect("the parameters are valid");
        let host = Host::new(spec, &values, &Topology::flat(cpus));
        Story { fields: spec.share_fields, ..Story::with(host, Arc::default(), 1) }
    }

    /// Creates a host with a scripted policy. A running vCPU gets all of the CPU's time.
    pub(crate) fn scripted(cpus: usize) -> Story {
        let answers = Arc::default();
        let policy = Box::new(Scripted(Arc::clone(&answers)));
        Story::with(Host::with(policy, |_| Ok(None), cpus), answers, 2)
    }

    fn with(host: Host, answers: Arc<Mutex<Answers>>, rate: u64) -> Story {
        let cpus = host.moment().cpus();
        let hardware = TestHardware {
            now: Time::START,
            on: vec![None; cpus],
            refuses: false,
            rate,
            says: None,
            measures: 0,
            is_blind: false,
            orders: Vec::new(),
            alarms: vec![None; cpus],
            measured: vec![Time::START; cpus],
        };
        Story { host, hardware, trace: Vec::new(), answers, fields: &[] }
    }

    pub(crate) fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().expect("the answers are used by one thread only")
    }

    /// Sets the pick for a CPU, and lets the policy request rescheduling of that CPU at the next
    /// event.
    pub(crate) fn wants(&mut self, cpu: CpuId, pick: Pick) {
        let mut answers = self.answers();
        answers.picks.insert(cpu, pick);
        answers.ask.insert(cpu);
    }

    /// Reports an event and returns the CPUs for which `pick` was called.
    #[track_caller]
    pub(crate) fn asked_by(&mut self, fact: Fact<'_>) -> Vec<CpuId> {
        self.answers().asked = CpuSet::NONE;
        self.step(fact);
        self.answers().asked.iter().collect()
    }

    /// Reports an event as the only event of its instant. Together with the event, the hardware
    /// reports the CPU time `used` without a request from the host.
    pub(crate) fn report(&mut self, used: &[CpuUse], fact: Fact<'_>) -> Result<(), Box<Fault>> {
        let report = Report { now: self.hardware.now, used, fact };
        self.host.step(report, &mut self.hardware, &mut self.trace)?;
        if self.host.is_settled() {
            return Ok(());
        }
        let report = Report { now: self.hardware.now, used: &[], fact: Fact::Settled };
        self.host.step(report, &mut self.hardware, &mut self.trace)
    }

    /// Reports an event that keeps the contract.
    #[track_caller]
    pub(crate) fn step(&mut self, fact: Fact<'_>) {
        self.report(&[], fact).expect("the contract is kept");
    }

    /// Reports an event that keeps the contract, at the later time `now`.
    #[track_caller]
    pub(crate) fn step_at(&mut self, now: Time, fact: Fact<'_>) {
        self.hardware.now = now;
        self.step(fact);
    }

    /// Reports an event that breaks the contract. Returns the violation and its message.
    #[track_caller]
    pub(crate) fn broken(&mut self, fact: Fact<'_>) -> (Broken, String) {
        self.broken_by(&[], fact)
    }

    /// Reports an event that breaks the contract, together with CPU time `used`. The host did not
    /// ask for the CPU time. Returns the violation and its message.
    #[track_caller]
    pub(crate) fn broken_by(&mut self, used: &[CpuUse], fact: Fact<'_>) -> (Broken, String) {
        let fault = self.report(used, fact).expect_err("the contract is broken");
        let text = fault.to_string();
        match *fault {
            Fault::Broken(broken) => (broken, text),
            Fault::Declined { .. } => panic!("the parameters were declined: {text}"),
        }
    }

    pub(crate) fn share(&self, words: &[(&'static str, &'static str)]) -> Values {
        let given = words.iter().map(|&(name, text)| (name, RawValue::Text(text)));
        Values::read(self.fields, given).expect("the parameters of the share are valid")
    }

    #[track_caller]
    pub(crate) fn join(&mut self, slot: u32, share: &[(&'static str, &'static str)]) {
        let share = self.share(share);
        self.step(Fact::Joined(vcpu(slot), (&share).into()));
    }

    #[track_caller]
    pub(crate) fn change(&mut self, slot: u32, share: &[(&'static str, &'static str)]) {
        let share = self.share(share);
        self.step(Fact::TermsChanged(vcpu(slot), (&share).into()));
    }

    /// Lets a vCPU join and wake.
    #[track_caller]
    pub(crate) fn wake_new(&mut self, slot: u32) {
        self.join(slot, &[]);
        self.step(Fact::Woke(vcpu(slot)));
    }
}
