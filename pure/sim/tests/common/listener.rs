//! A policy that wraps another policy. It records the events and hints of a run, and the vCPUs that
//! the wrapped policy lets run ahead of others.

#![allow(dead_code)] // Not every test uses all of it.

use std::cell::RefCell;

use slackline_host::policy::{
    Account, AdmitError, Moment, Pick, Policy, Spec, TimesliceEnd, Topology, Values,
};
use slackline_scenario::{PolicyChoice, Scenario};
use slackline_trace::Record;
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuHint, VcpuId};

/// Event that the recording policy received.
pub(crate) enum Noted {
    /// Hint, with three values: time, vCPU that gave the hint, and content.
    Told(Time, VcpuId, VcpuHint),
    /// Start of a run interval. `ahead_for` is the urgency for which the vCPU runs ahead of others.
    /// `None` if it does not run ahead of others.
    Began { vcpu: VcpuId, ahead_for: Option<u8> },
}

thread_local! {
    static NOTED: RefCell<Vec<Noted>> = const { RefCell::new(Vec::new()) };
}

fn note(noted: Noted) {
    NOTED.with_borrow_mut(|all| all.push(noted));
}

/// Policy that forwards every call to another policy and records what it receives.
pub(crate) struct Listener(pub(crate) Box<dyn Policy>);

impl Policy for Listener {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        self.0.admit(at, vcpu, share)
    }

    fn on_join(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.0.on_join(at, vcpu)
    }

    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        self.0.adjust(at, vcpu, share)
    }

    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.0.on_leave(at, vcpu)
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.0.on_wake(at, vcpu)
    }

    fn on_start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpus = self.0.on_start(at, vcpu);
        let account = self.0.account(vcpu);
        let row = account.iter().find(|(name, _)| *name == "ahead for");
        note(Noted::Began { vcpu, ahead_for: row.and_then(|(_, text)| text.parse().ok()) });
        cpus
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        self.0.charge(at, vcpu, ran)
    }

    fn on_timeslice_end(&mut self, at: &Moment, vcpu: VcpuId, why: TimesliceEnd) -> CpuSet {
        self.0.on_timeslice_end(at, vcpu, why)
    }

    fn on_block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.0.on_block(at, vcpu)
    }

    fn on_hint(&mut self, at: &Moment, vcpu: VcpuId, told: &VcpuHint) -> CpuSet {
        note(Noted::Told(at.now(), vcpu, *told));
        self.0.on_hint(at, vcpu, told)
    }

    fn prepare_pick(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        self.0.prepare_pick(at, cpu)
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        self.0.pick(at, cpu)
    }

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        self.0.next_timer(cpu)
    }

    fn timer_charges(&self, at: &Moment, cpu: CpuId) -> CpuSet {
        self.0.timer_charges(at, cpu)
    }

    fn on_timer(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        self.0.on_timer(at, cpu)
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        self.0.account(vcpu)
    }
}

/// Runs a scenario under its policy, wrapped in a recording policy. Returns the recorded events and
/// the trace.
pub(crate) fn listened(
    mut scenario: Scenario,
    build: fn(&Values, &Topology) -> Box<dyn Policy>,
) -> (Vec<Noted>, Vec<Record>) {
    let PolicyChoice { spec, values } = scenario.policy;
    let spec = Spec { build, ..*spec };
    scenario.policy = PolicyChoice { spec: Box::leak(Box::new(spec)), values };
    NOTED.take();
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut records).expect("the run completes");
    (NOTED.take(), records)
}
