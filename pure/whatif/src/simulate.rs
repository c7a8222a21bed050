//! Simulation of a model in one form, open or closed.

use slackline_demand::{Collector, Demand};
use slackline_metrics::{Meter, StrayRecord};
use slackline_policy::FieldError;
use slackline_scenario::ScenarioError;
use slackline_sim::{RunError, trace_header};
use slackline_trace::{Exchange, Header, Record, Sink, VcpuName};
use slackline_units::{Span, Time};
use thiserror::Error;

use crate::form::Form;
use crate::measure::Measures;
use crate::model::Model;
use crate::other_names;
use crate::write::{WriteError, WrittenScenario};

/// Reason why a model cannot be simulated.
#[derive(Debug, Error)]
pub enum ForecastError {
    /// The policy does not accept the parameters of a vCPU.
    #[error("cannot set parameters of policy {policy} for VM `{name}`: {error}")]
    Share {
        /// Name of the vCPU.
        name: String,
        /// Name of the policy.
        policy: &'static str,
        /// Error in the parameters of the vCPU.
        error: FieldError,
    },
    /// The scenario of the model is invalid.
    #[error("cannot simulate the edited recording: {0}")]
    Scenario(#[from] ScenarioError),
    /// The host cannot admit the reservations, or the policy broke its contract with the host.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The simulation recorded an unknown vCPU or CPU, which is a bug.
    #[error(transparent)]
    Stray(#[from] StrayRecord),
}

/// Results of a simulation.
pub(crate) struct SimulatedWindows {
    /// Results of all vCPUs in each window.
    pub(crate) windows: Vec<Vec<Measures>>,
    pub(crate) declined: Vec<(Time, String, String)>,
}

impl Model {
    /// Gives the results of a simulated vCPU the name of that vCPU in the recording. `None` if the
    /// vCPU represents other programs.
    fn named(&self, simulated: Measures, demand: &Demand) -> Option<Measures> {
        if other_names::is_other(&simulated.name) {
            return None;
        }
        let single = self.domains.iter().find(|it| it.name == simulated.name);
        let source = single.and_then(|it| it.vcpus.first()).filter(|vcpu| !vcpu.is_rotated);
        let name = source.map(|vcpu| demand.vcpus[vcpu.source].name.clone());
        Some(Measures { name: name.unwrap_or(simulated.name), ..simulated })
    }

    /// Writes the scenario of the model in one form. The names of its files begin with `stem`.
    ///
    /// # Errors
    /// If the policy does not accept the parameters of a vCPU.
    pub fn written(
        &self,
        demand: &Demand,
        form: Form,
        stem: &str,
    ) -> Result<WrittenScenario, ForecastError> {
        self.write(demand, form, stem).map_err(|WriteError::Share { name, error }| {
            ForecastError::Share { name, policy: self.spec.name, error }
        })
    }
}

/// Simulates the model in one form. The results are in windows, each of which begins at one of the
/// given times.
pub(crate) fn simulate(
    model: &Model,
    demand: &Demand,
    form: Form,
    windows: &[Span],
) -> Result<SimulatedWindows, ForecastError> {
    let scenario = model.written(demand, form, "jobs")?.scenario()?;
    let header = trace_header(&scenario);
    let meters = windows.iter().map(|&warmup| Meter::new(&Header { warmup, ..header.clone() }));
    let mut sink =
        WindowMeters { meters: meters.collect(), collector: Collector::new(Time::START) };
    let finished = slackline_sim::run(&scenario, &mut sink)?;
    let WindowMeters { meters, collector } = sink;
    let played = collector.finish();
    let windows = meters.iter().zip(windows).map(|(meter, &warmup)| {
        let all = Measures::all(&meter.view()?, &played, Time::START + warmup);
        Ok(all.into_iter().filter_map(|it| model.named(it, demand)).collect())
    });
    let declined = finished.declined.iter().map(|(at, vcpu, error)| {
        let domain = &scenario.domains[vcpu.domain().number() as usize];
        (*at, domain.vcpu_name(*vcpu), error.to_string())
    });
    let declined = declined.collect();
    Ok(SimulatedWindows { windows: windows.collect::<Result<_, StrayRecord>>()?, declined })
}

struct WindowMeters {
    meters: Vec<Meter>,
    collector: Collector,
}

impl Sink for WindowMeters {
    fn record(&mut self, record: &Record) {
        self.meters.iter_mut().for_each(|meter| meter.record(record));
        // Of the demand, only the times are used at which jobs become ready and end.
        if let Record::Joined { .. }
        | Record::Left { .. }
        | Record::Woke { .. }
        | Record::Blocked { .. }
        | Record::Paused { .. } = record
        {
            self.collector.record(record);
        }
    }

    fn named(&mut self, named: &VcpuName) {
        self.meters.iter_mut().for_each(|meter| meter.named(named));
        self.collector.named(named);
    }

    fn exchange(&mut self, _: &Exchange) {}
}
