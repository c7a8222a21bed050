//! What makes numbers of records.

use slackline_metrics::{Meter, Summary, XenMon, XenMonSummary};
use slackline_scenario::Scenario;
use slackline_trace::{Header, Record, Sink};
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
    #[must_use]
    pub fn finish(self) -> Numbers {
        let xenmon = self.xenmon.map(XenMon::finish);
        Numbers { summary: self.meter.finish(), xenmon }
    }
}

impl Sink for Meters {
    fn record(&mut self, record: &Record) {
        self.meter.record(record);
        self.xenmon.record(record);
    }
}

/// What a scenario amounts to in which nothing has happened yet: everybody has a row, so that it is
/// known which metrics there are, and of whom.
#[must_use]
pub fn of_nothing(scenario: &Scenario) -> Summary {
    let mut meter = Meter::new(&header::of_simulation(scenario));
    for (vcpu, _) in scenario.vcpus() {
        meter.record(&Record::Joined { at: Time::START, vcpu });
    }
    meter.finish()
}
