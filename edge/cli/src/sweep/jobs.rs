//! Runs of a sweep, numbered by host, then by policy, then by seed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::PoisonError;

use serde::Deserialize;
use slackline_experiments::axes::{Axis, as_it_became};
use slackline_experiments::claims::expects_refusal;
use slackline_experiments::family::{self, COLUMNS, Cpus, Family, Plan, RunResults};
use slackline_experiments::{SimulateError, with_seed};
use slackline_metrics::StrayRecord;
use slackline_scenario::{LONGEST, Scenario, ScenarioError};
use slackline_sim::RunError;
use slackline_units::Span;
use toml::{Spanned, Table, Value};

use crate::args::Sweep;
use crate::grid::{VariedPoint, VariedScenario, position};
use crate::input::{self, FNV_START, FileSums, Source, fnv};
use crate::metric::Metrics;
use crate::places::Places;
use crate::problem::Problem;

/// Maximum number of runs of a sweep.
pub(super) const MOST_RUNS: usize = 1_000_000;

/// All runs of a sweep: hosts, policies and seeds.
pub(super) struct Jobs<'a> {
    source: Source<'a>,
    pub(super) axes: Vec<Axis>,
    pub(super) hosts: Vec<HostCase>,
    pub(super) policies: Vec<String>,
    pub(super) seeds: Vec<u64>,
    /// Metrics that the command line names.
    pub(super) metrics: Metrics,
    /// Title of the scenario.
    pub(super) title: String,
    /// True if the hosts are random, generated from a family.
    pub(super) is_drawn: bool,
    /// Numbers of CPUs of the hosts to generate. Empty to use the sizes in the file of the family.
    sizes: Vec<usize>,
}

/// A host of the sweep at one point of the axes: a scenario, or a family with hosts of one size.
pub(super) struct HostCase {
    point: VariedPoint,
    /// Number of CPUs of the host.
    pub(super) cpus: usize,
    what: JobSource,
}

enum JobSource {
    Drawn(Box<Family>),
    /// A scenario without a family. Its host is not random.
    Plain(Box<Scenario>),
}

/// Results of a complete run.
pub(super) struct Came {
    pub(super) cells: Vec<String>,
    pub(super) events: u64,
}

/// Reason why a run has no result.
pub(super) enum JobError {
    Problem(Box<Problem>),
    Run(Box<(Scenario, RunError)>),
}

impl From<Problem> for JobError {
    fn from(problem: Problem) -> JobError {
        JobError::Problem(Box::new(problem))
    }
}

/// Tables of a scenario file that are checked before the sweep starts, with their positions in the
/// file.
#[derive(Deserialize)]
struct FileTables {
    family: Option<Spanned<Family>>,
    domain: Option<Spanned<Value>>,
    change: Option<Spanned<Value>>,
}

impl<'a> Jobs<'a> {
    /// Reads the jobs of a sweep. For a sweep in parts, checksums of all files are computed.
    pub(super) fn read(
        args: &'a Sweep,
        text: &str,
        (places, is_in_parts): (&'a Places, bool),
    ) -> Result<Jobs<'a>, Problem> {
        let file = args.file.as_path();
        let is_drawn = check_family(file, text)?;
        if !is_drawn && !args.cpus.is_empty() {
            return Err(Problem::BadOption {
                message: "cannot use --cpus: it sets the host sizes of a family, and this file \
                          has no [family]"
                    .into(),
                hint: Some("drop --cpus, or write `[host] cpus` in the file".into()),
            });
        }
        input::without_repeats(&args.policies)?;
        let sums = is_in_parts.then(FileSums::default);
        let source = Source { file, places, length: args.length, sums };
        let (axes, points) = match VariedScenario::read(file, text)? {
            Some(VariedScenario { axes, points }) => (axes, points),
            None => (Vec::new(), vec![whole(file, text, &source)?]),
        };
        let mut jobs = Jobs {
            source,
            axes,
            hosts: Vec::new(),
            policies: args.policies.clone(),
            seeds: Vec::new(),
            metrics: Metrics::default(),
            title: String::new(),
            is_drawn,
            sizes: args.cpus.iter().copied().map(usize::from).collect(),
        };
        for point in points {
            jobs.add_hosts(point)?;
        }
        let first = &jobs.hosts[0];
        let (scenario, _) = jobs.scenario(first, None, seed_of(&first.point.table))?;
        jobs.title = scenario.title;
        if jobs.policies.is_empty() {
            jobs.policies.push(scenario.policy.spec.name.to_owned());
        }
        let cases = (jobs.hosts.len() * jobs.policies.len()) as u64;
        let runs = cases.saturating_mul(args.seeds);
        if runs > MOST_RUNS as u64 {
            return Err(Problem::BadOption {
                message: format!("cannot make {runs} runs: the maximum is {MOST_RUNS}"),
                hint: Some("use fewer policies, seeds, points or sizes".into()),
            });
        }
        let first = args.seed.unwrap_or(scenario.seed);
        let last = first.checked_add(args.seeds - 1).ok_or_else(|| Problem::BadOption {
            message: format!(
                "cannot use {} seeds from {first} on: the largest seed is {}",
                args.seeds,
                u64::MAX
            ),
            hint: Some("write --seed 1".into()),
        })?;
        jobs.seeds = (first..=last).collect();
        let scenarios = jobs.try_each()?;
        jobs.metrics = Metrics::read(&args.metric, &scenarios)?;
        Ok(jobs)
    }

    /// Adds the hosts at a point of the axes, one for each size.
    fn add_hosts(&mut self, point: VariedPoint) -> Result<(), Problem> {
        let VariedPoint { name, place, at, table } = point;
        let again =
            || VariedPoint { name: name.clone(), place: place.clone(), at, table: table.clone() };
        let Some(family) = table.get("family") else {
            let host = HostCase {
                point: again(),
                cpus: 0,
                what: JobSource::Plain(Box::new(self.plain(&again())?)),
            };
            let JobSource::Plain(scenario) = &host.what else { unreachable!("made above") };
            let cpus = scenario.host.topology.cpus();
            self.hosts.push(HostCase { cpus, ..host });
            return Ok(());
        };
        let family: Family = family.clone().try_into().map_err(|error: toml::de::Error| {
            let what = format!("`family`: {}", error.message().trim());
            again().wrong(self.source.file, &what, Some(HINT.into()))
        })?;
        let own = || family.cpus.all().iter().map(|&Cpus(cpus)| cpus).collect();
        let sizes = if self.sizes.is_empty() { own() } else { self.sizes.clone() };
        for cpus in sizes {
            let what = JobSource::Drawn(Box::new(family.clone()));
            self.hosts.push(HostCase { point: again(), cpus, what });
        }
        Ok(())
    }

    /// Returns the scenario of a point without a family.
    fn plain(&self, point: &VariedPoint) -> Result<Scenario, Problem> {
        let scenario = self.checked(point, &point.table.to_string())?;
        if expects_refusal(&scenario) {
            let hint = "remove the claim `refused`";
            let what =
                "cannot sweep a scenario with the claim `refused`: a refused run has no metrics";
            return Err(point.wrong(self.source.file, what, Some(hint.into())));
        }
        Ok(scenario)
    }

    /// Parses the scenario of a point, and checks its claims.
    fn checked(&self, point: &VariedPoint, text: &str) -> Result<Scenario, Problem> {
        let wrong = |error: ScenarioError| {
            point.wrong(self.source.file, &as_it_became(text, &error), error.hint())
        };
        let scenario = self.source.scenario(text).map_err(wrong)??;
        self.source.checked(scenario)
    }

    /// Builds the scenario of each host under each policy with the first seed, to find errors
    /// before a long sweep begins.
    fn try_each(&self) -> Result<Vec<Scenario>, Problem> {
        let mut scenarios = Vec::new();
        for host in &self.hosts {
            for policy in &self.policies {
                scenarios.push(self.scenario(host, Some(policy), self.seeds[0])?.0);
            }
        }
        Ok(scenarios)
    }

    /// Returns the scenario of a host with a seed, and the fair shares of its VMs. The policy is
    /// `policy`, or the policy of the scenario.
    fn scenario(
        &self,
        host: &HostCase,
        policy: Option<&str>,
        seed: u64,
    ) -> Result<(Scenario, Option<Plan>), Problem> {
        let (scenario, plan) = match &host.what {
            JobSource::Plain(scenario) => ((**scenario).clone(), None),
            JobSource::Drawn(family) => {
                let table = &host.point.table;
                let length = self.source.length.or_else(|| length_of(table)).unwrap_or(LONGEST);
                let (table, plan) = family::drawn(family, table, Cpus(host.cpus), (seed, length));
                (self.checked(&host.point, &table.to_string())?, Some(plan))
            }
        };
        let scenario = match (policy, &host.what) {
            (Some(policy), JobSource::Plain(_)) => {
                input::under(self.source.file, &scenario, policy)?
            }
            // A drawn scenario is not in the file, so line numbers would mean nothing.
            (Some(policy), JobSource::Drawn(_)) => {
                scenario.with_policy(policy).map_err(|error| {
                    let (file, kind) = (self.source.file, error.kind.to_string());
                    host.point.wrong(file, &format!("{policy}: {kind}"), error.hint())
                })?
            }
            (None, _) => scenario,
        };
        Ok((with_seed(scenario, seed), plan))
    }

    /// Returns the checksums of the files that the scenario names. Empty unless the sweep is in
    /// parts.
    pub(super) fn file_sums(&self) -> BTreeMap<String, u64> {
        let sums = self.source.sums.as_ref();
        let sums = sums.map(|sums| sums.lock().unwrap_or_else(PoisonError::into_inner).clone());
        sums.unwrap_or_default()
    }

    pub(super) fn count(&self) -> usize {
        self.hosts.len() * self.policies.len() * self.seeds.len()
    }

    /// Returns the host, the policy and the seed of run number `job`.
    pub(super) fn of(&self, job: usize) -> (&HostCase, &str, u64) {
        let (seeds, policies) = (self.seeds.len(), self.policies.len());
        let (case, seed) = (job / seeds, self.seeds[job % seeds]);
        (&self.hosts[case / policies], &self.policies[case % policies], seed)
    }

    /// Returns the position of a host on the axes: the name of its point on each axis, in the order
    /// of the axes.
    pub(super) fn names(&self, host: &HostCase) -> Vec<String> {
        let places = self.axes.iter().zip(&host.point.place);
        places.map(|(axis, &place)| axis.points[place].name().to_owned()).collect()
    }

    /// Returns the name of the point of the sweep for which a host was built. A point of the sweep
    /// combines one point of each axis.
    pub(super) fn point<'b>(&self, host: &'b HostCase) -> &'b str {
        &host.point.name
    }

    /// Returns the headings of the columns with results: the usual columns, and then the metrics
    /// that the command line names.
    pub(super) fn columns(&self) -> Vec<String> {
        COLUMNS.iter().map(|&column| column.to_owned()).chain(self.metrics.columns()).collect()
    }

    /// Makes a run. Returns `None` if a signal interrupts it.
    pub(super) fn run(
        &self,
        job: usize,
        goes_on: impl Fn() -> ControlFlow<()>,
    ) -> Result<Option<Came>, JobError> {
        let (host, policy, seed) = self.of(job);
        let (scenario, plan) = self.scenario(host, Some(policy), seed)?;
        let vcpus = scenario.domains.iter().map(|domain| domain.vcpus.len()).sum();
        match family::measure(&scenario, plan.as_ref(), |_| goes_on()) {
            Ok(measured) => Ok(measured.map(|(measured, summary)| {
                let cells = measured.cells().into_iter().chain(self.metrics.cells(&summary));
                Came { events: measured.events, cells: cells.collect() }
            })),
            Err(SimulateError::Run(RunError::Declined(_))) => {
                let mut cells = Vec::from(RunResults::refused(vcpus));
                cells.resize(self.columns().len(), String::new());
                Ok(Some(Came { events: 0, cells }))
            }
            Err(SimulateError::Run(error)) => Err(JobError::Run(Box::new((scenario, error)))),
            Err(SimulateError::Stray(stray)) => Err(stray_record(stray).into()),
        }
    }

    /// Returns a line that identifies the sweep. A sweep continues a journal only if the journal
    /// begins with this line.
    pub(super) fn fingerprint(&self, args: &Sweep, text: &str) -> String {
        let (length, sizes) = (format!("{:?}", args.length), format!("{:?}", self.sizes));
        let metrics = self.metrics.columns().join("\n");
        let mut words = vec![text.to_owned(), self.policies.join("\n"), length, sizes];
        // If no metrics are named, the line equals that of older versions, so their journals stay
        // valid.
        words.extend((!metrics.is_empty()).then_some(metrics));
        words.extend(self.file_sums().iter().map(|(name, sum)| format!("{name} {sum:016x}")));
        let add = |hash: u64, word: &String| fnv(fnv(hash, word.as_bytes()), &[0]);
        let hash = words.iter().fold(FNV_START, add);
        let (version, runs) = (env!("CARGO_PKG_VERSION"), self.count());
        let (first, last) = (self.seeds[0], self.seeds[self.seeds.len() - 1]);
        format!("slackline {version} sweep {hash:016x} seeds {first} to {last}, {runs} runs")
    }
}

fn stray_record(stray: StrayRecord) -> Problem {
    Problem::of_stray(stray)
}

const HINT: &str = "see the example in `slackline help family`";

/// Returns true if a scenario text contains a valid family. Fails if the family is not valid: the
/// error has a position in the text. If the text is not TOML, returns false, because the parser of
/// scenarios reports that error.
fn check_family(file: &Path, text: &str) -> Result<bool, Problem> {
    if !text.parse::<Table>().is_ok_and(|table| table.contains_key("family")) {
        return Ok(false);
    }
    let wrong = |at: usize, message: String| {
        let (line, column) = position(text, at);
        Problem::BadAxis { file: file.into(), line, column, message, hint: Some(HINT.into()) }
    };
    let written: FileTables = toml::from_str(text).map_err(|error| {
        let message = error
            .message()
            .lines()
            .next()
            .unwrap_or("the file does not describe a family of hosts")
            .to_owned();
        wrong(error.span().map_or(0, |span| span.start), message)
    })?;
    for (written, what) in [(written.domain, "domains"), (written.change, "changes")] {
        if let Some(written) = written {
            let message =
                format!("cannot set {what} in a family of hosts: its {what} are chosen at random");
            return Err(wrong(written.span().start, message));
        }
    }
    Ok(written.family.is_some())
}

/// Returns the single point of a scenario without axes.
fn whole(file: &Path, text: &str, source: &Source<'_>) -> Result<VariedPoint, Problem> {
    let table = match text.parse::<Table>() {
        Ok(table) => table,
        Err(_) => {
            let error = |error| Problem::Scenario { file: file.into(), error };
            source.scenario(text).map_err(error)??;
            Table::new()
        }
    };
    if !table.contains_key("family") {
        // Errors have the positions in the file.
        let error = |error| Problem::Scenario { file: file.into(), error };
        source.scenario(text).map_err(error)??;
    }
    Ok(VariedPoint { name: "the family".into(), place: Vec::new(), at: (1, 1), table })
}

fn seed_of(table: &Table) -> u64 {
    let seed = table.get("seed").and_then(Value::as_integer);
    seed.and_then(|seed| seed.try_into().ok()).unwrap_or(1)
}

fn length_of(table: &Table) -> Option<Span> {
    table.get("length")?.as_str()?.parse().ok()
}
