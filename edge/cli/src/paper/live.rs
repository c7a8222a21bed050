//! Live runs of the papers' experiments on this host.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use slackline_experiments::header;
use slackline_fence::KeeperCommand;
use slackline_live::doctor::{Topic, examine};
use slackline_live::{session, topology};
use slackline_papers::{LiveRunner, PlayError};
use slackline_play::load_order::LoadOrder;
use slackline_play::play::{self, LiveError, Options};
use slackline_scenario::Scenario;
use slackline_trace::{Header, Record, Sink, VcpuName};
use slackline_units::{CpuId, Span};

use crate::problem::Problem;
use crate::run::{choose_cpus, dispatch_cost, load_command};
use crate::signals::{stay_running, stop_signal};

/// This host, on which experiments of papers run live.
pub(super) struct PaperHost {
    program: PathBuf,
    /// Measured dispatch overhead of this host.
    dispatch: Span,
    /// Socket that becomes readable when a signal asks the program to stop.
    stop: UnixStream,
    _raised: UnixStream,
    /// Error of the last run. `None` unless that run failed before its start.
    problem: RefCell<Option<Problem>>,
}

impl PaperHost {
    pub(super) fn new() -> Result<PaperHost, Problem> {
        let program = std::env::current_exe()
            .map_err(|source| Problem::Unreadable { file: "/proc/self/exe".into(), source })?;
        let dispatch = dispatch_cost(&choose_cpus(1, None)?)?;
        let (stop, raised) = stop_signal()?;
        stay_running()?;
        Ok(PaperHost { program, dispatch, stop, _raised: raised, problem: RefCell::default() })
    }

    /// Returns a sentence about this host, for results that depend on it.
    pub(super) fn described() -> String {
        let report = examine();
        let found = |topic: Topic| {
            let finding = report.finding(topic);
            let text = finding.found.split_whitespace().collect::<Vec<_>>().join(" ");
            format!("{}: {text}", topic.id())
        };
        let topics = [Topic::Kernel, Topic::Cpus, Topic::RtLimit, Topic::FairServer, Topic::Steal];
        topics.map(found).join("; ")
    }

    /// Returns the error of the last run. `None` unless that run failed before its start.
    pub(super) fn problem(&self) -> Option<Problem> {
        self.problem.take()
    }

    fn cpus(&self, scenario: &Scenario) -> Result<Vec<CpuId>, Problem> {
        choose_cpus(scenario.host.cpus, None)
    }

    fn failed(&self, problem: Problem) -> PlayError {
        let why = problem.to_string();
        *self.problem.borrow_mut() = Some(problem);
        PlayError::Failed(why.into())
    }
}

impl LiveRunner for PaperHost {
    fn header(&self, scenario: &Scenario) -> Header {
        // If the host has too few CPUs, the run fails before its start and the header is not used.
        let levels = self.cpus(scenario).map(|cpus| topology::of(&cpus).levels());
        header::of_live(scenario, session::knowledge(), levels.unwrap_or_default(), self.dispatch)
    }

    fn play(&self, scenario: &Scenario, sink: &mut dyn Sink) -> Result<(), PlayError> {
        scenario.admit().map_err(|error| PlayError::Declined(error.to_string()))?;
        let options = Options {
            cpus: self.cpus(scenario).map_err(|problem| self.failed(problem))?,
            keeper: KeeperCommand::ourselves(["keep"]),
            dispatch: self.dispatch,
            load: &|order: &LoadOrder<'_>| load_command(&self.program, order),
            stop: Some(self.stop.as_fd()),
            progress: &mut |_| {},
        };
        let finished =
            play::run(scenario, options, &mut SinkRef(sink)).map_err(|error| match error {
                LiveError::Declined { .. } => PlayError::Declined(error.to_string()),
                error => self.failed(Problem::of_live(&PathBuf::from(&scenario.title), error)),
            })?;
        if finished.stopped.is_some() {
            return Err(PlayError::Stopped);
        }
        if let Some((at, name, how)) = finished.ended.first() {
            let message = format!("`{name}` ended by itself at {at}: {how}");
            return Err(self.failed(Problem::HostCannot { message, hint: None }));
        }
        Ok(())
    }
}

/// Wrapper of a reference to a sink of any type, for functions that need a sink of a concrete type.
struct SinkRef<'a>(&'a mut dyn Sink);

impl Sink for SinkRef<'_> {
    fn named(&mut self, named: &VcpuName) {
        self.0.named(named);
    }

    fn record(&mut self, record: &Record) {
        self.0.record(record);
    }
}
