//! What makes numbers of records.

use slackline_metrics::{Meter, StrayRecord, Summary, XenMon, XenMonSummary};
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
}

/// Takes the records of a run and makes its numbers.
#[derive(Debug)]
pub struct Meters {
    meter: Meter,
    xenmon: Option<XenMon>,
}

impl Meters {
    /// For the run that this header is of.
    #[must_use]
    pub fn new(header: &Header) -> Meters {
        Meters { meter: Meter::new(header), xenmon: None }
    }

    /// The same with XenMon's metrics of each domain.
    #[must_use]
    pub fn with_xenmon(header: &Header) -> Meters {
        Meters { meter: Meter::new(header), xenmon: Some(XenMon::new(header)) }
    }

    /// What the run amounted to.
    ///
    /// # Errors
    /// When there was a record of somebody who is not known.
    pub fn finish(self) -> Result<Numbers, StrayRecord> {
        let xenmon = self.xenmon.map(XenMon::finish).transpose()?;
        Ok(Numbers { summary: self.meter.view()?, xenmon })
    }
}

impl Sink for Meters {
    fn record(&mut self, record: &Record) {
        self.meter.record(record);
        self.xenmon.record(record);
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
    for domain in &scenario.domains {
        for &vcpu in &domain.vcpus {
            let (name, domain) = (domain.vcpu_name(vcpu), domain.name.clone());
            meter.named(&Named { at, vcpu, name, domain });
            meter.record(&Record::Joined { at, vcpu });
        }
    }
    meter.view().expect("everybody has been named")
}
