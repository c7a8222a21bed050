//! Recording of steps: passes all exchanges between the hardware and the host to a sink.

use slackline_trace::{CpuUse, Exchange, KeptFact, Order, Outcome, Sink, WrittenTerms};
use slackline_units::{CpuId, Time};

use crate::check::Fault;
use crate::{Hardware, Host, Report, VcpuTerms};

/// Hardware that stores the exchanges of the current step.
struct ExchangeRecorder<'a, M> {
    hardware: &'a mut M,
    exchanges: Vec<Exchange>,
}

impl Host {
    /// Performs a step and passes its exchanges to the sink: first the reported CPU time and event,
    /// then the records of the step, then all other exchanges of the step.
    #[inline(never)]
    pub(crate) fn step_recorded<M: Hardware, S: Sink>(
        &mut self,
        report: Report<'_>,
        hardware: &mut M,
        sink: &mut S,
    ) -> Result<(), Box<Fault>> {
        report.used.iter().for_each(|used| sink.exchange(&Exchange::Noticed(*used)));
        sink.exchange(&Exchange::Reported { now: report.now, fact: kept(&report) });
        let mut recorded = ExchangeRecorder { hardware, exchanges: Vec::new() };
        let result = self.take_in(report, &mut recorded, sink);
        recorded.exchanges.iter().for_each(|exchange| sink.exchange(exchange));
        if result.as_ref().is_err_and(|fault| matches!(**fault, Fault::Declined { .. })) {
            sink.exchange(&Exchange::Declined);
        }
        result
    }
}

/// Converts the event of a report to the form that is recorded.
fn kept(report: &Report<'_>) -> KeptFact {
    let written = |VcpuTerms { share, cpus }: VcpuTerms<'_>| {
        Box::new(WrittenTerms { share: share.to_string(), cpus })
    };
    report.fact.map(written, |told| Box::new(*told))
}

impl<M: Hardware> Hardware for ExchangeRecorder<'_, M> {
    fn measure(&mut self, cpu: CpuId, now: Time) -> Option<CpuUse> {
        let used = self.hardware.measure(cpu, now);
        self.exchanges.extend(used.map(Exchange::Measured));
        used
    }

    fn carry_out(&mut self, order: Order) -> Outcome {
        let outcome = self.hardware.carry_out(order);
        self.exchanges.push(Exchange::Ordered { order, outcome });
        outcome
    }

    fn set_alarm(&mut self, cpu: CpuId, alarm: Option<Time>) {
        self.hardware.set_alarm(cpu, alarm);
        self.exchanges.push(Exchange::AlarmSet { cpu, alarm });
    }
}
