//! Experiments with real processes. What plays them is handed in: this crate knows no machine.

use std::error::Error;
use std::ops::ControlFlow;

use slackline_experiments::grid::{Done, Watch};
use slackline_experiments::with_seed;
use slackline_metrics::Meter;
use slackline_scenario::Scenario;
use slackline_trace::{Header, Named, Record, Sink};

use crate::error::PaperError;
use crate::experiment::{Again, Experiment};
use crate::run::{Results, Windows, raw};

/// What plays a scenario with real processes.
pub trait LiveRunner {
    /// What a run of a scenario says of itself: what the machine can see is judged by.
    fn header(&self, scenario: &Scenario) -> Header;

    /// Plays a scenario to its end.
    ///
    /// # Errors
    /// When it was not played, or not to its end.
    fn play(&self, scenario: &Scenario, sink: &mut dyn Sink) -> Result<(), Unplayed>;
}

/// Why a scenario was not played to its end.
#[derive(Debug)]
pub enum Unplayed {
    /// It promises more than can be promised here; in words.
    Declined(String),
    /// Somebody wanted no more.
    Stopped,
    /// The machine could not go on.
    Failed(Box<dyn Error + Send + Sync>),
}

impl Experiment {
    /// Has a machine play all points with seeds from 1 on, one run after the other.
    ///
    /// # Errors
    /// When a point is no scenario, cannot be admitted, or is measured by what there is not; when
    /// the machine cannot go on, or `watch` breaks off.
    pub fn play(&self, machine: &dyn LiveRunner, watch: &Watch<'_>) -> Result<Results, PaperError> {
        let points = self.points();
        let none = toml::Table::new();
        // Mistakes in the last of hundreds of points are told before the first is played.
        let scenario = |point: &Vec<usize>| self.checked(point, &none);
        let scenarios = points.iter().map(scenario).collect::<Result<Vec<_>, _>>()?;
        let per_point = usize::try_from(self.seeds).unwrap_or(usize::MAX);
        let mut done = Done { runs: 0, of: points.len().saturating_mul(per_point) };
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

    /// One run, made again as often as the file allows while the machine was too busy elsewhere.
    fn played(
        &self,
        point: &[usize],
        scenario: &Scenario,
        machine: &dyn LiveRunner,
        done: Done,
    ) -> Result<Vec<Option<f64>>, PaperError> {
        let header = machine.header(scenario);
        let mut left = self.again.as_ref().map_or(0, |again| again.times);
        loop {
            let (mut came, mut is_calm) = (Ok(()), true);
            let numbers = self.measured(point, &header, scenario, |windows| {
                let mut sink = Both { windows, meter: Meter::new(&header) };
                came = machine.play(scenario, &mut sink);
                if let (Ok(()), Some(again)) = (&came, &self.again) {
                    is_calm = again.is_calm(&sink.meter);
                }
                Ok(())
            });
            match came {
                Ok(()) if is_calm || left == 0 => return numbers,
                Ok(()) => left -= 1,
                Err(Unplayed::Declined(_)) if self.may_decline => {
                    return Ok(vec![None; self.measures.len()]);
                }
                Err(Unplayed::Declined(why)) => return Err(self.bad(point, why, None)),
                Err(Unplayed::Stopped) => {
                    return Err(PaperError::Stopped { runs: done.runs, of: done.of });
                }
                Err(Unplayed::Failed(source)) => {
                    return Err(PaperError::Unplayable { point: self.title_of(point), source });
                }
            }
        }
    }
}

impl Again {
    /// Whether the run says something; it does where the machine cannot tell.
    fn is_calm(&self, meter: &Meter) -> bool {
        let Ok(summary) = meter.view() else { return true };
        raw(&summary, self.metric.get_ref()).is_none_or(|number| number <= self.above)
    }
}

/// What is measured, and what says whether to make the run again.
struct Both<'a, 'b> {
    windows: &'a mut Windows<'b>,
    meter: Meter,
}

impl Sink for Both<'_, '_> {
    fn named(&mut self, named: &Named) {
        self.windows.named(named);
        self.meter.named(named);
    }

    fn record(&mut self, record: &Record) {
        self.windows.record(record);
        self.meter.record(record);
    }
}
