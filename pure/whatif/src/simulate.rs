//! Simulation of a model in one form, open or closed.

use std::borrow::Cow;

use slackline_demand::{Collector, Demand};
use slackline_metrics::{Meter, StrayRecord, VcpuSummary};
use slackline_policy::{FieldError, Values};
use slackline_scenario::{DeclinedVcpu, Scenario, ScenarioError};
use slackline_sim::{RunError, SimResults, trace_header};
use slackline_trace::{Exchange, Header, Record, Sink, VcpuName};
use slackline_units::{CpuShare, Span, Time, VcpuId};
use thiserror::Error;

use crate::form::Form;
use crate::measure::Measures;
use crate::model::{ARRIVED, Model};
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
    /// The reservations of the VMs leave no capacity for other programs of the host, or for a
    /// reservation of the service.
    #[error("{policy} cannot admit the VMs beside the other programs of the host")]
    NoCapacity {
        /// Name of the policy.
        policy: &'static str,
    },
    /// The host cannot admit the reservations, or the policy broke its contract with the host.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The simulation recorded an unknown vCPU or CPU, which is a bug.
    #[error(transparent)]
    Stray(#[from] StrayRecord),
}

/// Results of a simulation.
pub(crate) struct SimulationResults {
    /// Results of all vCPUs, from the end of the warm-up on.
    pub(crate) measures: Vec<Measures>,
    pub(crate) declined: Vec<(Time, String, String)>,
}

/// Simulation of a model in one form.
#[derive(Debug)]
pub struct ModelRun<'a, S> {
    /// Model that was simulated. Its domains can have another order than those of the given model.
    model: Cow<'a, Model>,
    scenario: Scenario,
    results: SimResults,
    /// Sink that received the trace of the simulation.
    pub sink: S,
}

impl<S> ModelRun<'_, S> {
    /// Returns the length of the simulation.
    #[must_use]
    pub fn length(&self) -> Span {
        self.scenario.length
    }

    /// Returns the name of the VM of a simulated vCPU. `None` if no VM has the vCPU.
    #[must_use]
    pub fn vm_of(&self, vcpu: VcpuId) -> Option<&str> {
        self.model.vm_of(vcpu).map(|domain| domain.name.as_str())
    }

    /// Returns the error for the first change of parameters that admission refused during the run.
    /// Changes of VMs without a prediction do not count.
    #[must_use]
    pub fn refused_change(&self) -> Option<ForecastError> {
        let counts =
            |vcpu: VcpuId| self.model.vm_of(vcpu).is_some_and(|domain| domain.left_out.is_none());
        let (_, vcpu, error) = self.results.declined.iter().find(|(_, vcpu, _)| counts(*vcpu))?;
        Some(self.model.declined(self.scenario.declined(*vcpu, *error)))
    }
}

impl Model {
    /// Simulates the model in one form. `sink` creates the sink of the trace.
    ///
    /// Programs of the host and reservations of the service are domains too. If admission refuses
    /// such a domain, the reservations of the VMs are too large. The simulation then begins again
    /// with the service's reservations first, so that the error is about a VM. If admission still
    /// refuses a program, the VMs fill the capacity. Then the simulation begins once more, and the
    /// policy's `reserve` (CPU time that is never reserved) is reduced by a millionth of a CPU,
    /// which the program gets.
    ///
    /// # Errors
    /// If the model cannot be written as a scenario or simulated, or if admission refuses it.
    pub fn run<S: Sink>(
        &self,
        demand: &Demand,
        form: Form,
        sink: impl Fn(&Scenario) -> S,
    ) -> Result<ModelRun<'_, S>, ForecastError> {
        let run = run_once(Cow::Borrowed(self), demand, form, &sink);
        let Err(ForecastError::NoCapacity { .. }) = run else { return run };
        let model = self.with_service_first();
        let run = run_once(Cow::Owned(model.clone()), demand, form, &sink);
        let Err(ForecastError::NoCapacity { .. }) = run else { return run };
        run_once(Cow::Owned(model.with_less_reserve()), demand, form, &sink)
    }

    /// Returns this model with the reservations of the service before those of the VMs.
    fn with_service_first(&self) -> Model {
        let mut model = self.clone();
        model.domains.sort_by_key(|domain| !domain.is_service);
        let arrived = self.begin.after(ARRIVED);
        let of_service = model.domains.iter_mut().filter(|domain| domain.is_service);
        for domain in of_service.filter(|domain| domain.joined <= arrived) {
            domain.joined = self.begin;
        }
        model
    }

    /// Returns this model with the policy's parameter `reserve` (CPU time that is never reserved)
    /// reduced by a millionth of a CPU. If the policy has no such parameter, or the parameter is
    /// zero, returns this model.
    fn with_less_reserve(self) -> Model {
        let less = || {
            let (_, reserve) = self.policy.iter().find(|(field, _)| field.name == "reserve")?;
            let reserve: CpuShare = reserve.to_string().parse().ok()?;
            let less = CpuShare::from_ppm(reserve.ppm().checked_sub(1)?);
            let text = format!("{} reserve={less}", self.policy);
            Values::read_written(self.spec.policy_fields, &text).ok()
        };
        match less() {
            Some(policy) => Model { policy, ..self },
            None => self,
        }
    }

    /// Returns the error for a vCPU that admission refuses. The vCPU is named as in the recording.
    fn declined(&self, mut declined: DeclinedVcpu) -> ForecastError {
        let domain = self.domains.get(declined.domain).filter(|domain| !domain.is_service);
        let Some(domain) = domain else {
            return ForecastError::NoCapacity { policy: declined.policy };
        };
        let label = &self.labels()[declined.domain];
        if let Some(number) = declined.vcpu.strip_prefix(label.as_str()) {
            declined.vcpu = format!("{}{number}", domain.name);
        }
        RunError::Declined(declined).into()
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

fn run_once<'a, S: Sink>(
    model: Cow<'a, Model>,
    demand: &Demand,
    form: Form,
    sink: &impl Fn(&Scenario) -> S,
) -> Result<ModelRun<'a, S>, ForecastError> {
    let scenario = model.written(demand, form, "jobs")?.scenario()?;
    let mut sink = sink(&scenario);
    match slackline_sim::run(&scenario, &mut sink) {
        Ok(results) => Ok(ModelRun { model, scenario, results, sink }),
        Err(RunError::Declined(declined)) => Err(model.declined(declined)),
        Err(error) => Err(error.into()),
    }
}

/// Simulates the model in one form. The results do not include the time `warmup` at the start of
/// the simulation.
pub(crate) fn simulate(
    model: &Model,
    demand: &Demand,
    form: Form,
    warmup: Span,
) -> Result<SimulationResults, ForecastError> {
    let run = model.run(demand, form, |scenario| MeasuringSink {
        meter: Meter::new(&Header { warmup, ..trace_header(scenario) }),
        collector: Collector::new(Time::START),
    })?;
    let ModelRun { model, results, sink: MeasuringSink { meter, collector }, .. } = run;
    let shown = |vcpu: &VcpuSummary| {
        let has_prediction = model.vm_of(vcpu.id)?.left_out.is_none();
        model.name_of(vcpu.id, demand).filter(|_| has_prediction)
    };
    let played = collector.finish();
    let measures = Measures::all(&meter.view()?, &played, Time::START + warmup, shown);
    let declined = results.declined.iter().filter_map(|(at, vcpu, error)| {
        Some((*at, model.name_of(*vcpu, demand)?, error.to_string()))
    });
    Ok(SimulationResults { measures, declined: declined.collect() })
}

/// Sink from which [`Measures`] are computed.
struct MeasuringSink {
    meter: Meter,
    collector: Collector,
}

impl Sink for MeasuringSink {
    fn record(&mut self, record: &Record) {
        self.meter.record(record);
        // Measures need only the times at which jobs become ready and end, and not the work of
        // jobs.
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
        self.meter.named(named);
        self.collector.named(named);
    }

    fn exchange(&mut self, _: &Exchange) {}
}
