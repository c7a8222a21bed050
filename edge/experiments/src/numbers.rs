//! What makes numbers of records.

use slackline_metrics::{
    CpuSecond, CpuSeconds, Meter, StrayRecord, Summary, XenMon, XenMonSummary,
};
use slackline_scenario::Scenario;
use slackline_trace::{Header, Named, Record, Sink};
use slackline_units::Time;

use crate::header;

/// The numbers of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// What everybody was promised and got.
    pub summary: Summary,
    /// XenMon's metrics, where somebody wants them.
    pub xenmon: Option<XenMonSummary>,
    /// What became of each CPU's time in each second, where somebody wants XenMon's metrics.
    pub cpu_seconds: Option<Vec<Vec<CpuSecond>>>,
}

/// Takes the records of a run and makes its numbers.
#[derive(Debug)]
pub struct Meters {
    meter: Meter,
    xenmon: Option<XenMon>,
    cpu_seconds: Option<CpuSeconds>,
}

impl Meters {
    /// For the run that this header is of.
    #[must_use]
    pub fn new(header: &Header) -> Meters {
        Meters { meter: Meter::new(header), xenmon: None, cpu_seconds: None }
    }

    /// The same with XenMon's metrics of each domain, and what became of each CPU by the second.
    #[must_use]
    pub fn with_xenmon(header: &Header) -> Meters {
        let xenmon = Some(XenMon::new(header));
        Meters { meter: Meter::new(header), xenmon, cpu_seconds: Some(CpuSeconds::new(header)) }
    }

    /// What the run amounted to.
    ///
    /// # Errors
    /// When there was a record of somebody who is not known.
    pub fn finish(self) -> Result<Numbers, StrayRecord> {
        let xenmon = self.xenmon.map(XenMon::finish).transpose()?;
        let cpu_seconds = self.cpu_seconds.map(CpuSeconds::finish).transpose()?;
        Ok(Numbers { summary: self.meter.view()?, xenmon, cpu_seconds })
    }
}

impl Sink for Meters {
    fn record(&mut self, record: &Record) {
        self.meter.record(record);
        self.xenmon.record(record);
        self.cpu_seconds.record(record);
    }

    fn named(&mut self, named: &Named) {
        self.meter.named(named);
        self.xenmon.named(named);
    }
}

/// What a scenario amounts to in which nothing has happened yet: everybody has a row, so that it is
/// known which metrics there are, and of whom.
#[must_use]
pub fn of_nothing(scenario: &Scenario) -> Summary {
    let mut meter = Meter::new(&header::of_simulation(scenario));
    let at = Time::START;
    for domain in &scenario.simulated().domains {
        for &vcpu in &domain.vcpus {
            let (name, domain) = (domain.vcpu_name(vcpu), domain.name.clone());
            meter.named(&Named { at, vcpu, name, domain });
            meter.record(&Record::Joined { at, vcpu });
        }
    }
    meter.view().expect("everybody has been named")
}
