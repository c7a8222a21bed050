//! Who there is in a trace, and when it ends.

use slackline_trace::{Effort, Named, Record, Sink};
use slackline_units::{Time, VcpuId};

/// Everybody there is in a trace.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) all: Vec<Named>,
    /// Time of the first record. `None` without records.
    pub(crate) began: Option<Time>,
    /// When the run ended, if the trace has its end.
    pub(crate) ended: Option<Time>,
    /// How much work the trace asks for.
    pub(crate) effort: Effort,
}

impl Names {
    /// What people called a vCPU last.
    pub(crate) fn of(&self, vcpu: VcpuId) -> String {
        let named = self.all.iter().rev().find(|named| named.vcpu == vcpu);
        named.map_or_else(|| vcpu.to_string(), |named| named.name.clone())
    }
}

impl Sink for Names {
    fn record(&mut self, record: &Record) {
        self.effort.record(record);
        self.began = self.began.or(Some(record.when().0));
        if let Record::Ended { at } = *record {
            self.ended = Some(at);
        }
    }

    fn named(&mut self, named: &Named) {
        self.effort.named(named);
        self.all.push(named.clone());
    }
}
