//! Faults that there were, each as the shortest story that shows it.

use slackline_host::policy::{Given, Topology, Values, find};
use slackline_host::{Fact, Host, Machine, Order, Outcome, Report, Used};
use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

/// A machine of two CPUs at most that does what it is told, or refuses the next order.
#[derive(Default)]
struct TestMachine {
    now: Time,
    on: [Option<VcpuId>; 2],
    measured: [Time; 2],
    refuses: bool,
}

impl Machine for TestMachine {
    /// Half of every CPU's time goes elsewhere.
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<Used> {
        let vcpu = self.on[cpu.index()]?;
        let from = std::mem::replace(&mut self.measured[cpu.index()], now);
        Some(Used { vcpu, cpu, from, to: now, ran: (now - from) / 2 })
    }

    fn carry_out(&mut self, order: Order) -> Outcome {
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

    fn set_alarm(&mut self, _: CpuId, _: Option<Time>) {}
}

/// A host and its machine.
struct Story {
    host: Host,
    machine: TestMachine,
    fields: &'static [slackline_host::policy::Field],
}

fn vcpu(slot: u32) -> VcpuId {
    VcpuId::new(slot, DomId::new(slot), 0)
}

impl Story {
    fn new(policy: &str, cpus: usize) -> Story {
        let spec = find(policy).expect("a policy of the list");
        let values = Values::defaults(spec.policy_fields).expect("defaults");
        let host = Host::new(spec, &values, Topology::flat(cpus));
        Story { host, machine: TestMachine::default(), fields: spec.share_fields }
    }

    fn share(&self, words: &[(&'static str, &'static str)]) -> Values {
        let given = words.iter().map(|&(name, text)| (name, Given::Text(text)));
        Values::read(self.fields, given).expect("a share")
    }

    fn step(&mut self, fact: Fact<'_>) {
        let report = Report { now: self.machine.now, used: &[], fact };
        self.host.step(report, &mut self.machine, &mut ()).expect("the contract is kept");
    }

    fn join(&mut self, slot: u32, share: &[(&'static str, &'static str)]) {
        let share = self.share(share);
        self.step(Fact::Joined(vcpu(slot), (&share).into()));
    }

    fn change(&mut self, slot: u32, share: &[(&'static str, &'static str)]) {
        let share = self.share(share);
        self.step(Fact::TermsChanged(vcpu(slot), (&share).into()));
    }
}

/// Its turn had to be ordered anew, because less of it had been used than time had passed.
#[test]
fn who_is_refused_in_mid_turn_has_not_had_its_last_turn() {
    let mut story = Story::new("round-robin", 1);
    story.join(0, &[]);
    story.step(Fact::Woke(vcpu(0)));
    story.machine.now = Time::START + Span::from_ms(1);
    story.machine.refuses = true;
    story.change(0, &[]);
    assert_eq!(story.machine.on[0], None);
    story.step(Fact::Allowed(vcpu(0)));
    assert_eq!(story.machine.on[0], Some(vcpu(0)));
}

#[test]
fn who_is_allowed_again_runs_wherever_there_is_room() {
    let mut story = Story::new("round-robin", 2);
    story.join(0, &[]);
    story.join(1, &[]);
    story.machine.refuses = true;
    story.step(Fact::Woke(vcpu(0)));
    story.step(Fact::Woke(vcpu(1)));
    assert_eq!(story.machine.on, [Some(vcpu(1)), None]);
    story.step(Fact::Allowed(vcpu(0)));
    assert_eq!(story.machine.on, [Some(vcpu(1)), Some(vcpu(0))]);
}

/// The CPU it moved to was asked while it still had the other one, and not again.
#[test]
fn who_is_moved_by_a_change_runs_at_once() {
    let mut story = Story::new("edf", 2);
    story.join(0, &[("slice", "6ms"), ("period", "10ms")]);
    story.join(1, &[("slice", "5ms"), ("period", "10ms")]);
    story.join(2, &[("slice", "4ms"), ("period", "10ms")]);
    story.change(0, &[("slice", "1ms"), ("period", "10ms")]);
    story.step(Fact::Woke(vcpu(1)));
    story.step(Fact::Woke(vcpu(2)));
    assert_eq!(story.machine.on, [None, Some(vcpu(1))]);
    story.change(1, &[("slice", "8ms"), ("period", "10ms")]);
    assert_eq!(story.machine.on, [Some(vcpu(1)), Some(vcpu(2))]);
}
