//! Experiments with real processes. The caller provides the live host that runs them.

use std::error::Error;
use std::ops::ControlFlow;

use slackline_experiments::grid::{GridProgress, Watch};
use slackline_experiments::with_seed;
use slackline_metrics::Meter;
use slackline_scenario::Scenario;
use slackline_trace::{Header, Record, Sink, VcpuName};

use crate::error::PaperError;
use crate::experiment::{Experiment, RepeatRule};
use crate::run::{Results, Windows, raw};

/// A live host that runs scenarios with real processes.
pub trait LiveRunner {
    /// Returns the trace header for a run. The header states what the host can observe.
    fn header(&self, scenario: &Scenario) -> Header;

    /// Runs a scenario live to its end.
    ///
    /// # Errors
    /// If the scenario was not run, or not to its end.
    fn play(&self, scenario: &Scenario, sink: &mut dyn Sink) -> Result<(), PlayError>;
}

/// Reason why a scenario was not run to its end.
#[derive(Debug)]
pub enum PlayError {
    /// Admission on this host refuses a domain. Contains the reason in words.
    Declined(String),
    /// The user stopped the run.
    Stopped,
    /// The host failed, for the given reason.
    Failed(Box<dyn Error + Send + Sync>),
}

impl Experiment {
    /// Runs all points live with seeds from 1 on, one run after the other.
    ///
    /// # Errors
    /// If a point is not a valid scenario, cannot be admitted, or lacks a metric. Also if the host
    /// fails, or `watch` stops the runs.
    pub fn play(&self, machine: &dyn LiveRunner, watch: &Watch<'_>) -> Result<Results, PaperError> {
        let points = self.points();
        let none = toml::Table::new();
        // All points are checked before the first of hundreds is played.
        let scenario = |point: &Vec<usize>| self.checked(point, &none);
        let scenarios = points.iter().map(scenario).collect::<Result<Vec<_>, _>>()?;
        let per_point = usize::try_from(self.seeds).unwrap_or(usize::MAX);
        let mut done = GridProgress { runs: 0, of: points.len().saturating_mul(per_point) };
        let mut measured = Vec::new();
        for (point, scenario) in points.iter().zip(scenarios) {
            let mut runs = Vec::new();
            for seed in 1..=self.seeds {
                let scenario = with_seed(scenario.clone(), seed);
                runs.push(self.played(point, &scenario, machine, done)?);
                done.runs += 1;
                if watch(done) == ControlFlow::Break(()) {
                    return Err(PaperError::Stopped { runs: done.runs, of: done.of });
                }
            }
            measured.push(self.over_seeds(&runs));
        }
        Ok(Results { measured, over_time: Vec::new() })
    }

    /// Runs a point live with one seed. If other work on the host disturbs the run, the run is
    /// repeated. The experiment's file sets the maximum number of repetitions.
    fn played(
        &self,
        point: &[usize],
        scenario: &Scenario,
        machine: &dyn LiveRunner,
        done: GridProgress,
    ) -> Result<Vec<Option<f64>>, PaperError> {
        let header = machine.header(scenario);
        let mut left = self.again.as_ref().map_or(0, |again| again.times);
        loop {
            let (mut came, mut is_calm) = (Ok(()), true);
            let numbers = self.measured(point, &header, scenario, |windows| {
                let mut sink = MeasureSink { windows, meter: Meter::new(&header) };
                came = machine.play(scenario, &mut sink);
                if let (Ok(()), Some(again)) = (&came, &self.again) {
                    is_calm = again.is_calm(&sink.meter);
                }
                Ok(())
            });
            match came {
                Ok(()) if is_calm || left == 0 => return numbers,
                Ok(()) => left -= 1,
                Err(PlayError::Declined(_)) if self.may_decline => {
                    return Ok(vec![None; self.measures.len()]);
                }
                Err(PlayError::Declined(why)) => return Err(self.bad(point, why, None)),
                Err(PlayError::Stopped) => {
                    return Err(PaperError::Stopped { runs: done.runs, of: done.of });
                }
                Err(PlayError::Failed(source)) => {
                    return Err(PaperError::Unplayable { point: self.title_of(point), source });
                }
            }
        }
    }
}

impl RepeatRule {
    /// Returns true if the run is valid: no other work on the host disturbed it. A run also counts
    /// as valid if the host cannot measure a disturbance.
    fn is_calm(&self, meter: &Meter) -> bool {
        let Ok(summary) = meter.view() else { return true };
        raw(&summary, self.metric.get_ref()).is_none_or(|number| number <= self.above)
    }
}

/// Sink for the measures, and for the metric that decides if a run is repeated.
struct MeasureSink<'a, 'b> {
    windows: &'a mut Windows<'b>,
    meter: Meter,
}

impl Sink for MeasureSink<'_, '_> {
    fn named(&mut self, named: &VcpuName) {
        self.windows.named(named);
        self.meter.named(named);
    }

    fn record(&mut self, record: &Record) {
        self.windows.record(record);
        self.meter.record(record);
    }
}
