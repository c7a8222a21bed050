//! Computation of a run's results from its records.

use slackline_metrics::{
    CpuSecond, CpuSeconds, Cumulative, Meter, StrayRecord, Summary, XenMon, XenMonSummary,
};
use slackline_scenario::Scenario;
use slackline_trace::{Header, Record, Sink, VcpuName};
use slackline_units::{ClientId, Time};

use crate::header;

/// Results of a run that are computed from its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Reservations and measurements of all vCPUs and CPUs.
    pub summary: Summary,
    /// XenMon's metrics. `None` if they were not requested.
    pub xenmon: Option<XenMonSummary>,
    /// Use of each CPU in each second. `None` if it was not requested.
    pub cpu_seconds: Option<Vec<Vec<CpuSecond>>>,
    /// Cumulative distributions. `None` if they were not requested.
    pub cumulative: Option<Vec<Cumulative>>,
}

/// Sink that computes the results of a run from its records.
#[derive(Debug)]
pub struct Meters {
    meter: Meter,
    xenmon: Option<XenMon>,
    cpu_seconds: Option<CpuSeconds>,
    wants_cumulative: bool,
}

impl Meters {
    /// Creates the sink for a run with this trace header.
    #[must_use]
    pub fn new(header: &Header) -> Meters {
        Meters {
            meter: Meter::new(header),
            xenmon: None,
            cpu_seconds: None,
            wants_cumulative: false,
        }
    }

    /// Creates a sink that also computes XenMon's metrics of each domain, and the use of each CPU
    /// in each second.
    #[must_use]
    pub fn with_xenmon(header: &Header) -> Meters {
        let xenmon = Some(XenMon::new(header));
        let cpu_seconds = Some(CpuSeconds::new(header));
        Meters { xenmon, cpu_seconds, ..Meters::new(header) }
    }

    /// Creates a sink that also computes cumulative distributions.
    #[must_use]
    pub fn with_cumulative(header: &Header) -> Meters {
        Meters { wants_cumulative: true, ..Meters::new(header) }
    }

    /// Returns the results of the run.
    ///
    /// # Errors
    ///
    /// If a record is about an unknown vCPU or CPU.
    pub fn finish(self) -> Result<Numbers, StrayRecord> {
        let xenmon = self.xenmon.map(XenMon::finish).transpose()?;
        let cpu_seconds = self.cpu_seconds.map(CpuSeconds::finish).transpose()?;
        let cumulative = self.wants_cumulative.then(|| self.meter.cumulative());
        Ok(Numbers { summary: self.meter.view()?, xenmon, cpu_seconds, cumulative })
    }
}

impl Sink for Meters {
    fn record(&mut self, record: &Record) {
        self.meter.record(record);
        self.xenmon.record(record);
        self.cpu_seconds.record(record);
    }

    fn named(&mut self, named: &VcpuName) {
        self.meter.named(named);
        self.xenmon.named(named);
    }
}

/// Returns the summary of a scenario that was not run. The summary has a row for every vCPU, CPU,
/// client and named task. So metrics and names can be checked before a run.
#[must_use]
pub fn of_nothing(scenario: &Scenario) -> Summary {
    let mut meter = Meter::new(&header::of_simulation(scenario));
    let at = Time::START;
    for domain in &scenario.simulated().domains {
        for &vcpu in &domain.vcpus {
            let (name, domain) = (domain.vcpu_name(vcpu), domain.name.clone());
            meter.named(&VcpuName { at, vcpu, name, domain });
            meter.record(&Record::Joined { at, vcpu });
        }
    }
    let at = Time::START.after(scenario.warmup);
    let clients = scenario.io.iter().flat_map(|io| &io.clients);
    for (number, client) in (0_u16..).zip(clients) {
        let (client, vcpu) = (ClientId::new(number), scenario.domains[client.to].vcpus[0]);
        meter.record(&Record::ClientStarted { at, client, vcpu });
    }
    for domain in &scenario.domains {
        let vcpu = domain.vcpus[0];
        for task in domain.system.iter().flat_map(|system| &system.names) {
            let (task, client, deadline) = (Some(task.id), None, Time::NEVER);
            meter.record(&Record::Job { vcpu, task, client, released: at, deadline, done: at });
        }
    }
    meter.view().expect("every vCPU is named")
}
