//! Runs of an experiment's points with every seed, on all cores, and computation of their measures.

use std::collections::BTreeMap;

use slackline_experiments::grid::{self, GridError, GridProgress, Watch, to_the_end};
use slackline_experiments::{OverSeeds, header, of_nothing, with_seed};
use slackline_metrics::{Meter, OverTime, Summary};
use slackline_scenario::Scenario;
use slackline_trace::{Header, Record, Sink, VcpuName};
use slackline_units::{Span, Time};
use toml::Spanned;

use crate::error::{FileFault, PaperError};
use crate::experiment::{Experiment, Measure};

/// Results of an experiment.
#[derive(Clone, Debug)]
pub struct Results {
    /// Statistics by point and measure, both in the order of the experiment. `None` if the value is
    /// unknown.
    pub measured: Vec<Vec<Option<OverSeeds>>>,
    /// CPU time of each vCPU over time, for each plot over time and each of its points.
    pub over_time: Vec<Course>,
}

/// Selected points of an experiment, with scaled costs.
pub(crate) struct Batch<'a> {
    pub(crate) which: &'a [usize],
    pub(crate) seeds: u64,
    /// Percentages to which costs are scaled: 50% halves a cost. The key is the path of the cost.
    pub(crate) scale: &'a toml::Table,
}

/// CPU time of each vCPU in each window of time, in the run with the first seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// Index of the plot.
    pub plot: usize,
    /// Index of the point.
    pub point: usize,
    /// Length of a window in seconds.
    pub window: f64,
    /// Name of each vCPU, and its share of one CPU in each window.
    pub lines: Vec<(String, Vec<f64>)>,
}

impl Experiment {
    /// Simulates all points with seeds from 1 on.
    ///
    /// # Errors
    /// If a point is not a valid scenario, cannot be admitted, or lacks a metric. Also if `watch`
    /// stops the runs.
    pub fn run(&self, watch: &Watch<'_>) -> Result<Results, PaperError> {
        if self.is_live {
            return Err(PaperError::OnlyLive { experiment: self.name.clone() });
        }
        let points = self.points();
        let all: Vec<usize> = (0..points.len()).collect();
        let batch = Batch { which: &all, seeds: self.seeds, scale: &toml::Table::new() };
        let measured = self.run_batch(&batch, watch)?;
        Ok(Results { measured, over_time: self.courses(&points)? })
    }

    /// Runs some points. Returns the measures of each point, in the given order.
    pub(crate) fn run_batch(
        &self,
        batch: &Batch<'_>,
        watch: &Watch<'_>,
    ) -> Result<Vec<Vec<Option<OverSeeds>>>, PaperError> {
        let &Batch { which, seeds, scale } = batch;
        let points = self.points();
        let case = |&index: &usize| Ok((&points[index], self.checked(&points[index], scale)?));
        let cases = which.iter().map(case).collect::<Result<Vec<_>, PaperError>>()?;
        let seeds: Vec<u64> = (1..=seeds).collect();
        let one = |(point, scenario): &(&Vec<usize>, Scenario), seed| {
            self.once(point, &with_seed(scenario.clone(), seed))
        };
        let runs = all(&cases, &seeds, watch, one)?;
        Ok(runs.iter().map(|runs| self.over_seeds(runs)).collect())
    }

    /// Returns the statistics of each measure over the runs. `None` if a run has no value of the
    /// measure.
    pub(crate) fn over_seeds(&self, runs: &[Vec<Option<f64>>]) -> Vec<Option<OverSeeds>> {
        let of_measure = |measure: usize| {
            let numbers = runs.iter().map(|run| run[measure]).collect::<Option<Vec<f64>>>();
            numbers.and_then(OverSeeds::of)
        };
        (0..self.measures.len()).map(of_measure).collect()
    }

    /// Returns the scenario at a point, after checking that all metrics of the measures exist in
    /// it.
    pub(crate) fn checked(
        &self,
        point: &[usize],
        scale: &toml::Table,
    ) -> Result<Scenario, PaperError> {
        let scenario = self.scaled(point, scale)?;
        let nothing = of_nothing(&scenario);
        for measure in &self.measures {
            let metrics = [Some(&measure.metric), measure.minus.as_ref(), measure.per.as_ref()];
            for metric in metrics.into_iter().flatten().filter(|text| is_metric(text.get_ref())) {
                self.known(metric, &nothing)?;
            }
        }
        if let Some(again) = &self.again {
            self.known(&again.metric, &nothing)?;
        }
        Ok(scenario)
    }

    fn known(&self, metric: &Spanned<String>, summary: &Summary) -> Result<(), PaperError> {
        let (name, of) = split(metric.get_ref());
        let fault = |unknown: slackline_metrics::UnknownMetric| {
            let known = unknown.nearest.map_or(unknown.known, |nearest| vec![nearest]);
            let (what, name) = ("metric", unknown.metric);
            self.source.fault(&metric.span(), FileFault::Unknown { what, name, known })
        };
        summary.lookup(name, of).map(|_| ()).map_err(fault)
    }

    /// Runs one simulation. Returns the value of each measure, or `None` if the value is unknown.
    fn once(&self, point: &[usize], scenario: &Scenario) -> Result<Vec<Option<f64>>, PaperError> {
        if self.may_decline && scenario.admit().is_err() {
            return Ok(vec![None; self.measures.len()]);
        }
        self.measured(point, &header::of_simulation(scenario), scenario, |sink| {
            let outcome = slackline_sim::run(scenario, sink);
            let outcome = outcome.map_err(|error| self.bad(point, error.to_string(), None))?;
            match outcome.declined.first() {
                Some((at, vcpu, error)) => {
                    let message = format!("admission declined {vcpu} at {at}: {error}");
                    Err(self.bad(point, message, None))
                }
                None => Ok(()),
            }
        })
    }

    /// Executes a run by a call of `run`, and returns the value of each measure. A value is `None`
    /// if it is unknown. `header` is the trace header of the host.
    pub(crate) fn measured(
        &self,
        point: &[usize],
        header: &Header,
        scenario: &Scenario,
        run: impl FnOnce(&mut Windows<'_>) -> Result<(), PaperError>,
    ) -> Result<Vec<Option<f64>>, PaperError> {
        let end = Time::START + scenario.length;
        let mut windows = BTreeMap::new();
        let mut of_measure = Vec::new();
        for measure in &self.measures {
            let (from, to) = measure.window(&self.source)?;
            let from = from.unwrap_or(scenario.warmup);
            let window = (from, to.map_or(end, |to| end.min(Time::START + to)));
            windows.entry(window).or_insert_with(|| Window::new(header, end, window));
            of_measure.push(window);
        }
        let mut sink: Vec<Window> = windows.into_values().collect();
        run(&mut Windows(&mut sink))?;
        let finish = |window: Window| {
            let key = (window.from, window.to);
            let summary = window.meter.view();
            Ok((key, summary.map_err(|error| self.bad(point, error.to_string(), None))?))
        };
        let summaries = sink.into_iter().map(finish);
        let summaries: BTreeMap<(Span, Time), Summary> = summaries.collect::<Result<_, _>>()?;
        let measures = self.measures.iter().zip(of_measure);
        Ok(measures.map(|(measure, window)| measure.take(&summaries[&window])).collect())
    }

    /// Runs the simulations for plots over time.
    fn courses(&self, points: &[Vec<usize>]) -> Result<Vec<Course>, PaperError> {
        let mut jobs = Vec::new();
        for (plot, spec) in self.plots.iter().enumerate() {
            let Some(window) = spec.over_time_window(&self.source)? else { continue };
            let at = match &spec.at {
                Some(at) => self.points_of(at)?,
                None => (0..points.len()).collect(),
            };
            jobs.extend(at.into_iter().map(|point| (plot, point, window)));
        }
        let one = |&(plot, point, window): &(usize, usize, Span), seed| {
            let scenario = with_seed(self.scenario(&points[point])?, seed);
            let mut sink = OverTime::new(window);
            slackline_sim::run(&scenario, &mut sink)
                .map_err(|error| self.bad(&points[point], error.to_string(), None))?;
            let part = |ran: &Span| ran.ns() as f64 / window.ns() as f64;
            let line = |(name, ran): (String, Vec<Span>)| (name, ran.iter().map(part).collect());
            let lines = sink.finish();
            let lines = lines.map_err(|error| self.bad(&points[point], error.to_string(), None))?;
            let lines = lines.into_iter().map(line).collect();
            Ok(Course { plot, point, window: seconds(window), lines })
        };
        Ok(all(&jobs, &[1], &to_the_end, one)?.concat())
    }
}

/// Runs every case with every seed.
fn all<C: Sync, T: Send>(
    cases: &[C],
    seeds: &[u64],
    watch: &Watch<'_>,
    one: impl Fn(&C, u64) -> Result<T, PaperError> + Sync,
) -> Result<Vec<Vec<T>>, PaperError> {
    grid::run(cases, seeds, watch, one).map_err(|error| match error {
        GridError::Run { error, .. } => error,
        GridError::Stopped(GridProgress { runs, of }) => PaperError::Stopped { runs, of },
    })
}

impl Measure {
    /// Returns the value of the measure in a run. `None` if a metric of the formula is unknown, or
    /// if the result is not a finite number.
    fn take(&self, summary: &Summary) -> Option<f64> {
        let mut number = raw(summary, self.metric.get_ref())?;
        if let Some(minus) = &self.minus {
            number -= raw(summary, minus.get_ref())? * self.each;
        }
        if let Some(per) = &self.per {
            number /= match per.get_ref().as_str() {
                "second" => seconds(summary.length),
                metric => raw(summary, metric)?,
            };
        }
        let scale = match self.unit.as_str() {
            "%" => 100.0,
            "ms" => 1e3,
            "us" => 1e6,
            _ => 1.0,
        };
        let number = (number + self.plus) * self.times * scale;
        number.is_finite().then_some(number)
    }
}

/// Returns a metric of a run as a number: a duration in seconds, a percentage as a fraction, or a
/// count. If the text `metric` is a number, returns that number.
pub(crate) fn raw(summary: &Summary, metric: &str) -> Option<f64> {
    if let Ok(number) = metric.parse() {
        return Some(number);
    }
    let (name, of) = split(metric);
    match summary.lookup(name, of).ok()? {
        slackline_metrics::Measure::Span(span) => Some(seconds(span)),
        slackline_metrics::Measure::Ppm(ppm) => Some(ppm as f64 / 1e6),
        slackline_metrics::Measure::Count(count) => Some(count as f64),
        slackline_metrics::Measure::Unknown => None,
    }
}

/// Returns true if the text is neither a number nor `second`.
fn is_metric(text: &str) -> bool {
    text != "second" && text.parse::<f64>().is_err()
}

/// Splits a metric such as `misses of web` into metric and name. With the name `total`, the metric
/// is for all domains.
fn split(metric: &str) -> (&str, Option<&str>) {
    match metric.rsplit_once(" of ") {
        Some((name, "total")) => (name.trim(), None),
        Some((name, of)) => (name.trim(), Some(of.trim())),
        None => (metric.trim(), None),
    }
}

fn seconds(span: Span) -> f64 {
    span.ns() as f64 / 1e9
}

/// A meter for a part of a run. It measures the run as if the run ended at a given time.
struct Window {
    from: Span,
    to: Time,
    /// True if the window ends at the end of the run. The meter then takes every record.
    is_last: bool,
    meter: Meter,
    has_ended: bool,
}

pub(crate) struct Windows<'a>(&'a mut [Window]);

impl Window {
    fn new(header: &Header, end: Time, (from, to): (Span, Time)) -> Window {
        let header = Header { warmup: from, ..header.clone() };
        let is_last = to >= end;
        Window { from, to, is_last, meter: Meter::new(&header), has_ended: false }
    }

    #[inline]
    fn record(&mut self, record: &Record) {
        if self.is_last {
            self.meter.record(record);
        } else {
            self.record_until(record);
        }
    }

    fn record_until(&mut self, record: &Record) {
        if self.has_ended {
            return;
        }
        let (from, at) = record.when();
        if at <= self.to {
            self.meter.record(record);
            self.has_ended = matches!(record, Record::Ended { .. });
            return;
        }
        // A run interval beyond the end counts up to the end. Later records do not count.
        if let Record::Ran { used, .. } = record
            && from < self.to
        {
            let kept = (self.to - from).ns() as f64 / (at - from).ns() as f64;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let used = Span::from_ns((used.ns() as f64 * kept) as u64);
            let mut record = *record;
            if let Record::Ran { to, used: all, .. } = &mut record {
                (*to, *all) = (self.to, used);
            }
            self.meter.record(&record);
        }
        // A run interval of another CPU may be recorded later and still begin before the end. So
        // the meter is ended only when the run ends.
        if matches!(record, Record::Ended { .. }) {
            self.meter.record(&Record::Ended { at: self.to });
            self.has_ended = true;
        }
    }
}

impl Sink for Windows<'_> {
    fn named(&mut self, named: &VcpuName) {
        self.0.iter_mut().for_each(|window| window.meter.named(named));
    }

    fn record(&mut self, record: &Record) {
        self.0.iter_mut().for_each(|window| window.record(record));
    }
}
