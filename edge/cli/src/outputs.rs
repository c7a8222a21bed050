//! Where the records of a run go: the meter always, files if somebody wants them.

use slackline_export::Perfetto;
use slackline_metrics::{Meter, Summary, XenMon, XenMonSummary};
use slackline_scenario::Scenario;
use slackline_trace::{Header, Knowledge, Record, Sink, VcpuName, Writer};
use slackline_units::Time;

use crate::args::Keeping;
use crate::pending::{Out, Pending};
use crate::problem::Problem;
use crate::terminal::{self, Progress};

/// The numbers of a run.
pub(crate) struct Numbers {
    pub(crate) summary: Summary,
    /// Where somebody wants them.
    pub(crate) xenmon: Option<XenMonSummary>,
}

/// What makes numbers of records.
pub(crate) struct Meters {
    meter: Meter,
    xenmon: Option<XenMon>,
}

/// The sink of a run.
pub(crate) struct Outputs {
    meters: Meters,
    trace: Option<(Pending, Writer<Out>)>,
    perfetto: Option<(Pending, Perfetto<Out>)>,
    progress: Option<Progress>,
    records: u64,
}

/// What a trace of this scenario says about itself.
pub(crate) fn header(scenario: &Scenario, machine: &str, knows: Knowledge) -> Header {
    Header {
        title: scenario.title.clone(),
        machine: machine.into(),
        policy: scenario.policy.to_string(),
        seed: scenario.seed,
        cpus: scenario.host.cpus,
        warmup: scenario.warmup,
        knows,
        scenario: scenario.text.clone(),
        vcpus: scenario.vcpus().map(|(id, name)| VcpuName { id, name }).collect(),
    }
}

impl Meters {
    pub(crate) fn new(header: &Header, xenmon: Option<XenMon>) -> Meters {
        Meters { meter: Meter::new(header), xenmon }
    }

    pub(crate) fn finish(self) -> Numbers {
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

impl Numbers {
    /// The tables.
    pub(crate) fn render(&self) -> String {
        let (width, color) = (terminal::width(), terminal::color());
        let mut text = self.summary.render(width, color);
        if let Some(xenmon) = &self.xenmon {
            text.push('\n');
            text += &xenmon.render(width, color);
        }
        text
    }
}

impl Outputs {
    pub(crate) fn new(
        header: &Header,
        keeping: &Keeping,
        progress: Option<Progress>,
    ) -> Result<Outputs, Problem> {
        let meters = Meters::new(header, keeping.xenmon.then(|| XenMon::new(header)));
        if keeping.save.is_some() && keeping.save == keeping.perfetto {
            return Err(Problem::BadOption {
                message: "--save and --perfetto name one file".into(),
                hint: Some("give each its own".into()),
            });
        }
        let trace = keeping.save.as_deref().map(Pending::new).transpose()?;
        let trace = trace.map(|(pending, out)| (pending, Writer::new(out, header)));
        let perfetto = keeping.perfetto.as_deref().map(Pending::new).transpose()?;
        let perfetto = perfetto.map(|(pending, out)| (pending, Perfetto::new(out, header)));
        Ok(Outputs { meters, trace, perfetto, progress, records: 0 })
    }

    /// Ends the files; returns the numbers.
    pub(crate) fn finish(self) -> Result<Numbers, Problem> {
        drop(self.progress);
        if let Some((pending, writer)) = self.trace {
            pending.keep(writer.finish().map(|_| ()))?;
        }
        if let Some((pending, perfetto)) = self.perfetto {
            pending.keep(perfetto.finish())?;
        }
        Ok(self.meters.finish())
    }

    fn show_progress(&mut self, record: &Record) {
        const OFTEN: u64 = 1 << 16;
        self.records += 1;
        if self.records.is_multiple_of(OFTEN)
            && let Record::Ran { to, .. } = record
        {
            self.progress_at(*to);
        }
    }

    pub(crate) fn progress_at(&mut self, now: Time) {
        if let Some(progress) = &mut self.progress {
            progress.at(now);
        }
    }
}

impl Sink for Outputs {
    fn record(&mut self, record: &Record) {
        self.meters.record(record);
        if let Some((_, writer)) = &mut self.trace {
            writer.record(record);
        }
        if let Some((_, perfetto)) = &mut self.perfetto {
            perfetto.record(record);
        }
        self.show_progress(record);
    }
}
