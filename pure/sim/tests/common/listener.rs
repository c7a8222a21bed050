//! What a policy hears in a run, and what it shows of whom it lets run.

#![allow(dead_code)] // Each test uses what it needs.

use std::cell::RefCell;

use slackline_host::policy::{
    Account, AdmitError, Moment, Pick, Policy, Spec, Topology, TurnEnd, Values,
};
use slackline_scenario::{PolicyChoice, Scenario};
use slackline_trace::Record;
use slackline_units::{CpuId, CpuSet, Span, Time, Told, VcpuId};

/// Something that a policy was told.
pub(crate) enum Noted {
    /// By whom, and what.
    Told(Time, VcpuId, Told),
    /// Who has begun to run, and for what it went ahead of others, if it did.
    Began { vcpu: VcpuId, ahead_for: Option<u8> },
}

thread_local! {
    static NOTED: RefCell<Vec<Noted>> = const { RefCell::new(Vec::new()) };
}

fn note(noted: Noted) {
    NOTED.with_borrow_mut(|all| all.push(noted));
}

/// Another policy, and what it hears is written down.
pub(crate) struct Listener(pub(crate) Box<dyn Policy>);

impl Policy for Listener {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        self.0.admit(at, vcpu, share)
    }

    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        self.0.adjust(at, vcpu, share)
    }

    fn leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.0.leave(at, vcpu)
    }

    fn wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.0.wake(at, vcpu)
    }

    fn start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpus = self.0.start(at, vcpu);
        let account = self.0.account(vcpu);
        let row = account.iter().find(|(name, _)| *name == "ahead for");
        note(Noted::Began { vcpu, ahead_for: row.and_then(|(_, text)| text.parse().ok()) });
        cpus
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        self.0.charge(at, vcpu, ran)
    }

    fn turn_over(&mut self, at: &Moment, vcpu: VcpuId, why: TurnEnd) -> CpuSet {
        self.0.turn_over(at, vcpu, why)
    }

    fn block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.0.block(at, vcpu)
    }

    fn hear(&mut self, at: &Moment, vcpu: VcpuId, told: &Told) -> CpuSet {
        note(Noted::Told(at.now(), vcpu, *told));
        self.0.hear(at, vcpu, told)
    }

    fn pass(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        self.0.pass(at, cpu)
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        self.0.pick(at, cpu)
    }

    fn alarm(&self, cpu: CpuId) -> Option<Time> {
        self.0.alarm(cpu)
    }

    fn ring_needs(&self, at: &Moment, cpu: CpuId) -> CpuSet {
        self.0.ring_needs(at, cpu)
    }

    fn ring(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        self.0.ring(at, cpu)
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        self.0.account(vcpu)
    }
}

/// A run under the policy of a scenario, built so that it listens: what it hears, and the trace.
pub(crate) fn listened(
    mut scenario: Scenario,
    build: fn(&Values, &Topology) -> Box<dyn Policy>,
) -> (Vec<Noted>, Vec<Record>) {
    let PolicyChoice { spec, values } = scenario.policy;
    let spec = Spec { build, ..*spec };
    scenario.policy = PolicyChoice { spec: Box::leak(Box::new(spec)), values };
    NOTED.take();
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut records).expect("a run");
    (NOTED.take(), records)
}
