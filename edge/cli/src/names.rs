//! Index of a trace: its vCPUs, and the start and end of its run.

use std::collections::BTreeMap;

use slackline_trace::{Effort, Record, Sink, VcpuName};
use slackline_units::{Time, VcpuId};

/// All vCPUs of a trace.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) all: Vec<VcpuName>,
    /// Position in `all` of the last name of each vCPU.
    latest: BTreeMap<VcpuId, usize>,
    /// Time of the first record. `None` if the trace has no records.
    pub(crate) began: Option<Time>,
    /// Latest end of a record. Zero if the trace has no records.
    pub(crate) last: Time,
    /// End of the run. `None` if the trace does not record an end.
    pub(crate) ended: Option<Time>,
    /// Estimate of the work that processing the trace takes.
    pub(crate) effort: Effort,
}

impl Names {
    /// Creates the index of a trace of a host with this number of CPUs.
    pub(crate) fn with_cpus(cpus: usize) -> Names {
        Names { effort: Effort::with_cpus(cpus), ..Names::default() }
    }

    /// Creates an index with these names.
    pub(crate) fn of_all(all: Vec<VcpuName>) -> Names {
        let latest = all.iter().zip(0..).map(|(named, at)| (named.vcpu, at)).collect();
        Names { all, latest, ..Names::default() }
    }

    /// Returns the last name that a vCPU has in the trace.
    pub(crate) fn of(&self, vcpu: VcpuId) -> String {
        let named = self.latest.get(&vcpu).map(|&at| &self.all[at]);
        named.map_or_else(|| vcpu.to_string(), |named| named.name.clone())
    }
}

impl Sink for Names {
    fn record(&mut self, record: &Record) {
        self.effort.record(record);
        self.last = self.last.max(record.when().1);
        self.began = self.began.or(Some(record.when().0));
        if let Record::Ended { at } = *record {
            self.ended = Some(at);
        }
    }

    fn named(&mut self, named: &VcpuName) {
        self.effort.named(named);
        self.latest.insert(named.vcpu, self.all.len());
        self.all.push(named.clone());
    }
}
