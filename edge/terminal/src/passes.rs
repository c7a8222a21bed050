//! Scheduling passes of a trace, and timeslices of zero length. Each pass gives one order to the
//! hardware: run a vCPU on the CPU, or leave the CPU idle.

use std::collections::BTreeMap;

use slackline_trace::{Exchange, Order, Outcome, Record};
use slackline_units::{CpuId, Entitlement, Span, Time, VcpuId};

/// A scheduling pass and the order that it gave to the hardware. A pass that leaves an idle CPU
/// idle gives no order, so a trace does not contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulingPass {
    /// Time of the pass.
    pub at: Time,
    /// CPU on which the scheduling pass ran.
    pub cpu: CpuId,
    /// vCPU that the pass ordered to run, with its entitlement (reservation or slack). `None` if
    /// the pass left the CPU idle.
    pub picked: Option<(VcpuId, Entitlement)>,
    /// Timeslice that was granted, beginning at the time of the pass. `None` if it has no limit.
    pub granted: Option<Span>,
    /// True if the hardware could not carry out the order.
    pub is_refused: bool,
    /// vCPU whose timeslice on this CPU began at the time of the pass and was ended by this pass.
    /// The length of that timeslice is zero. `None` if there is no such vCPU.
    pub empty: Option<VcpuId>,
}

/// Finder of the scheduling passes among the entries of a trace.
#[derive(Clone, Debug, Default)]
pub struct Passes {
    now: Time,
    /// Running vCPU of each CPU, with the start of its timeslice. Idle CPUs have no entry.
    last: BTreeMap<CpuId, (Time, VcpuId)>,
}

impl Passes {
    /// Notes the time of a record. The orders that follow the record in the trace have this time.
    pub fn record(&mut self, record: &Record) {
        self.now = self.now.max(record.when().1);
    }

    /// Returns the scheduling pass that gave a recorded order. `None` if the entry is not an order.
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
        // A vCPU that is picked again continues its timeslice.
        let began = before.filter(|&(_, other)| Some(other) == vcpu).map_or(at, |(began, _)| began);
        if let Some(vcpu) = vcpu.filter(|_| outcome == Outcome::Done) {
            self.last.insert(cpu, (began, vcpu));
        }
        let (is_refused, empty) = (outcome == Outcome::Refused, empty.map(|(_, vcpu)| vcpu));
        Some(SchedulingPass { at, cpu, picked, granted, is_refused, empty })
    }
}

/// Returns the word for an entitlement (reservation or slack).
#[must_use]
pub fn entitled(entitlement: Entitlement) -> &'static str {
    match entitlement {
        Entitlement::Due => "due",
        Entitlement::Arrears => "arrears",
        Entitlement::Spare => "spare",
    }
}
