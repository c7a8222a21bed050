//! Scheduling passes of a trace: what each ordered, and timeslices that ended as they began.

use std::collections::BTreeMap;

use slackline_trace::{Exchange, Order, Outcome, Record};
use slackline_units::{CpuId, Entitlement, Span, Time, VcpuId};

/// Order of a scheduling pass. A pass that leaves an idle CPU idle orders nothing, and is not in a
/// trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulingPass {
    /// Time of the pass.
    pub at: Time,
    /// CPU on which the scheduling pass ran.
    pub cpu: CpuId,
    /// vCPU that the pass ordered to run, with its entitlement (reservation or slack). `None`
    /// leaves the CPU idle.
    pub picked: Option<(VcpuId, Entitlement)>,
    /// Timeslice granted from the time of the pass on. `None` is a timeslice without limit.
    pub granted: Option<Span>,
    /// True if the hardware could not carry the order out.
    pub is_refused: bool,
    /// vCPU whose timeslice on this CPU began at the instant of the pass, so that it ends with zero
    /// length.
    pub empty: Option<VcpuId>,
}

/// Finds the passes among the entries of a trace.
#[derive(Clone, Debug, Default)]
pub struct Passes {
    now: Time,
    /// Time and vCPU of the last order of each CPU.
    last: BTreeMap<CpuId, (Time, VcpuId)>,
}

impl Passes {
    /// Takes the time of a record. Recorded orders follow the event that caused them.
    pub fn record(&mut self, record: &Record) {
        self.now = self.now.max(record.when().1);
    }

    /// Returns the scheduling pass that gave this recorded order. `None` if the exchange is not an
    /// order.
    pub fn exchange(&mut self, exchange: &Exchange) -> Option<SchedulingPass> {
        let (order, outcome) = match *exchange {
            Exchange::Reported { now, .. } => {
                self.now = self.now.max(now);
                return None;
            }
            Exchange::Ordered { order, outcome } => (order, outcome),
            _ => return None,
        };
        let at = self.now;
        let (cpu, picked, granted) = match order {
            Order::Run { cpu, vcpu, until, entitlement } => {
                (cpu, Some((vcpu, entitlement)), until.map(|until| until.since(at)))
            }
            Order::Idle { cpu } => (cpu, None, None),
        };
        let vcpu = picked.map(|(vcpu, _)| vcpu);
        let before = self.last.remove(&cpu);
        let empty = before.filter(|&(began, other)| began == at && Some(other) != vcpu);
        // Picked again, a vCPU goes on with its timeslice.
        let began = before.filter(|&(_, other)| Some(other) == vcpu).map_or(at, |(began, _)| began);
        if let Some(vcpu) = vcpu.filter(|_| outcome == Outcome::Done) {
            self.last.insert(cpu, (began, vcpu));
        }
        let (is_refused, empty) = (outcome == Outcome::Refused, empty.map(|(_, vcpu)| vcpu));
        Some(SchedulingPass { at, cpu, picked, granted, is_refused, empty })
    }
}

/// Returns the entitlement (reservation or slack) as a word.
#[must_use]
pub fn entitled(entitlement: Entitlement) -> &'static str {
    match entitlement {
        Entitlement::Due => "due",
        Entitlement::Arrears => "arrears",
        Entitlement::Spare => "spare",
    }
}
