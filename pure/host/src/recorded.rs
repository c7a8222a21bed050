//! What passes between a machine and its host, handed to whoever records it.

use slackline_trace::{Exchange, KeptFact, Order, Outcome, Sink, Used, WrittenTerms};
use slackline_units::{CpuId, Time};

use crate::check::Fault;
use crate::{Host, Machine, Report, Terms};

/// A machine, and what it was asked and told in a step.
struct Recorded<'a, M> {
    machine: &'a mut M,
    exchanges: Vec<Exchange>,
}

impl Host {
    /// A step whose exchanges somebody wants: the report before what the step does, the rest after
    /// its records.
    #[inline(never)]
    pub(crate) fn step_recorded<M: Machine, S: Sink>(
        &mut self,
        report: Report<'_>,
        machine: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        report.used.iter().for_each(|used| sink.exchange(&Exchange::Noticed(*used)));
        sink.exchange(&Exchange::Reported { now: report.now, fact: kept(&report) });
        let mut recorded = Recorded { machine, exchanges: Vec::new() };
        let result = self.take_in(report, &mut recorded, sink);
        recorded.exchanges.iter().for_each(|exchange| sink.exchange(exchange));
        if result.as_ref().is_err_and(|fault| matches!(**fault, Fault::Declined { .. })) {
            sink.exchange(&Exchange::Declined);
        }
        result
    }
}

/// The fact of a report, with terms as they are written down.
fn kept(report: &Report<'_>) -> KeptFact {
    let written = |Terms { share, cpus }: Terms<'_>| {
        Box::new(WrittenTerms { share: share.to_string(), cpus })
    };
    report.fact.map(written, |told| Box::new(*told))
}

impl<M: Machine> Machine for Recorded<'_, M> {
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<Used> {
        let used = self.machine.measure(cpu, now);
        self.exchanges.extend(used.map(Exchange::Measured));
        used
    }

    fn carry_out(&mut self, order: Order) -> Outcome {
        let outcome = self.machine.carry_out(order);
        self.exchanges.push(Exchange::Ordered { order, outcome });
        outcome
    }

    fn set_alarm(&mut self, cpu: CpuId, alarm: Option<Time>) {
        self.machine.set_alarm(cpu, alarm);
        self.exchanges.push(Exchange::AlarmSet { cpu, alarm });
    }
}
