//! `slackline alert`: measures how exactly CPU shares are delivered in each second.

mod live;
mod numbers;
mod published;
mod report;
pub(crate) mod show;

use std::io::Write as _;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use slackline_experiments::alert::{
    Case, CaseError, CaseResult, Form, PUBLISHED_LENGTH, TrialError, TrialFault, Trials,
    target_of_percent, usual_cases,
};
use slackline_experiments::grid::GridError;
use slackline_html::FigureOrigin;
use slackline_sim::RunError;
use slackline_units::{CpuShare, Span};

use crate::args::Alert;
use crate::counted::counted;
use crate::pending::Pending;
use crate::places::Places;
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::terminal::{self, Counter};

use live::LivePlan;
use report::Contents;

/// Target shares of a quick test, in percent of a CPU.
const QUICK_TARGETS: [u32; 7] = [1, 2, 5, 10, 30, 60, 90];

/// A test plan: the cases to test, and the trials (runs) of each case.
#[derive(Debug)]
pub(crate) struct Plan {
    cases: Vec<Case>,
    trials: Trials,
}

pub(crate) fn alert(args: &Alert) -> Result<(), Problem> {
    // An output file that cannot be written is reported before hours of testing.
    let files = [("--report", args.report.as_deref()), ("--csv", args.csv.as_deref())];
    Places::of(&files)?;
    if args.quick && !changes_with_quick(args) {
        let options = if args.live { "--targets and --length" } else { "--length and --seeds" };
        terminal::tell(&format!("note: --quick has no effect with {options}\n"));
    }
    let report = args.report.as_deref().map(Pending::new).transpose()?;
    let csv = args.csv.as_deref().map(Pending::new).transpose()?;
    let tested = if args.live { live(args) } else { simulated(args) };
    if args.json && matches!(tested, Err(Problem::Interrupted)) {
        terminal::print(&show::interrupted(&made(args, None)))?;
    }
    let tested = tested?;
    let TestReport { form, how, seeds, results, ablations } = &tested;
    let made = made(args, *seeds);
    let compared = published::compare(*form, results);
    let all: Vec<CaseResult> = tested.all().cloned().collect();
    if let Some((pending, mut out)) = csv {
        let written = out.write_all(show::csv(&made, &all).as_bytes()).and_then(|()| out.flush());
        pending.keep(written)?;
    }
    if let Some((pending, mut out)) = report {
        let contents = Contents { form: *form, how, results, compared: &compared, ablations };
        let page = report::page(&contents, &made);
        pending.keep(out.write_all(page.as_bytes()).and_then(|()| out.flush()))?;
    }
    if args.json {
        return terminal::print(&show::as_json(&made, &all, &compared));
    }
    let columns = terminal::width();
    let mut text = show::table(how, results, &compared, columns);
    for (base, ablated) in ablations {
        text += &show::ablation(base, ablated, columns);
    }
    terminal::say(&text)
}

/// Returns true if `--quick` has an effect: the user has left out at least one of the options for
/// which `--quick` sets values. These are `--length` and `--seeds` for a simulated test, and
/// `--length` and `--targets` for a live test.
fn changes_with_quick(args: &Alert) -> bool {
    let is_set = if args.live { !args.targets.is_empty() } else { args.seeds.is_some() };
    args.length.is_none() || !is_set
}

/// Results of all tests, with a description of how the tests were made.
struct TestReport {
    form: Form,
    /// Sentence that describes how the test was made.
    how: String,
    /// Number of seeds. If the test is live, `None`, because live tests use no random numbers.
    seeds: Option<u64>,
    results: Vec<CaseResult>,
    /// Results of `--ablate`: those of each case with unchanged rules, and then with one rule
    /// changed at a time. Empty without `--ablate`.
    ablations: Vec<(CaseResult, Vec<CaseResult>)>,
}

impl TestReport {
    fn all(&self) -> impl Iterator<Item = &CaseResult> {
        let more = self.ablations.iter().flat_map(|(_, ablated)| ablated);
        self.results.iter().chain(more)
    }
}

/// Simulates all cases with all seeds.
fn simulated(args: &Alert) -> Result<TestReport, Problem> {
    let Plan { cases, trials } = Plan::of(args)?;
    let changed: Vec<Vec<Case>> = match args.ablate {
        true => cases.iter().map(Case::ablations).collect(),
        false => Vec::new(),
    };
    let all: Vec<Case> = cases.iter().chain(changed.iter().flatten()).cloned().collect();
    let (counter, stop) = (Counter::new("simulated"), stop_flag()?);
    let results = trials.run(&all, &|done| {
        counter.at(done);
        match stop.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    drop(counter);
    let mut results = results.map_err(of_grid)?;
    let mut rest = results.split_off(cases.len()).into_iter();
    let ablated = |(result, cases): (&CaseResult, &Vec<Case>)| {
        (result.clone(), rest.by_ref().take(cases.len()).collect())
    };
    let ablations = results.iter().zip(&changed).map(ablated).collect();
    let (how, seeds) = (how(&trials), Some(trials.seeds));
    Ok(TestReport { form: trials.form, how, seeds, results, ablations })
}

/// Tests the limiters that the options name, each with a real process on this host.
fn live(args: &Alert) -> Result<TestReport, Problem> {
    let targets = match (&args.targets[..], args.quick) {
        ([], true) => shares(&QUICK_TARGETS),
        ([], false) => Trials::as_published(Form::One).targets,
        (texts, _) => texts.iter().map(|text| target(text)).collect::<Result<_, _>>()?,
    };
    let usual = if args.quick { Span::from_secs(3) } else { PUBLISHED_LENGTH };
    let plan = LivePlan::of(args, targets, length(args, usual)?)?;
    let (how, results) = (plan.how(), plan.run()?);
    Ok(TestReport { form: Form::One, how, seeds: None, results, ablations: Vec::new() })
}

/// Returns a sentence that describes the simulated test.
fn how(trials: &Trials) -> String {
    let what = match trials.form {
        Form::One => "a VM that never blocks, beside a Dom0 with a share of 6 % on the same CPU",
        Form::Smp => "three VMs that never block on two CPUs",
    };
    let (length, seeds) = (trials.length, trials.seeds);
    let seeds = counted(seeds, "seed");
    format!("Simulated: {what}, {length} at each target, {seeds}.{}", too_short(length))
}

/// Returns a warning that tests of this length are too short to be compared with the paper's tests.
/// Empty if the length is at least the paper's.
fn too_short(length: Span) -> &'static str {
    if length < PUBLISHED_LENGTH {
        " Such short tests cannot be compared with the paper, which tests for 3 minutes."
    } else {
        ""
    }
}

fn of_case(error: &CaseError) -> Problem {
    Problem::BadOption { message: error.to_string(), hint: Some(error.hint()) }
}

/// Converts an error of the trials to a problem. If policy and host have violated the contract
/// between them, the problem is a bug of this program.
fn of_grid(error: GridError<TrialError>) -> Problem {
    let GridError::Run { error, .. } = error else { return Problem::Interrupted };
    if let TrialFault::Run(RunError::Broken(_)) = &*error.why {
        let message = format!("{error} (seed {})", error.seed);
        return Problem::Bug { message, kept: None };
    }
    Problem::BadOption { message: error.to_string(), hint: Some(error.hint()) }
}

/// Returns the origin of the results: the command line that reproduces them, the version and commit
/// of the program, and the seeds.
fn made(args: &Alert, seeds: Option<u64>) -> FigureOrigin {
    // `--commit` is left out, because `FigureOrigin` has a separate field for the commit.
    let mut words = Vec::new();
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        if word == "--commit" {
            given.next();
        } else if !word.starts_with("--commit=") {
            words.push(quoted(&word));
        }
    }
    let command = format!("slackline {}", words.join(" "));
    let version = concat!("slackline ", env!("CARGO_PKG_VERSION"));
    let made = FigureOrigin::by(&command).commit(args.commit.as_deref()).with(version);
    match seeds {
        None => made,
        Some(1) => made.seeds("1"),
        Some(seeds) => made.seeds(&format!("1 to {seeds}")),
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=:,./%".contains(letter);
    if word.chars().all(is_plain) { word.into() } else { format!("'{word}'") }
}

impl Plan {
    fn of(args: &Alert) -> Result<Plan, Problem> {
        let form = if args.smp { Form::Smp } else { Form::One };
        let names: Vec<&str> = match &args.policy[..] {
            [] => usual_cases(form),
            names => names.iter().map(String::as_str).collect(),
        };
        let read = |name: &str| Case::read(name, &args.set).map_err(|error| of_case(&error));
        let cases = names.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        Ok(Plan { cases, trials: trials(args, form)? })
    }
}

/// Returns the trials that the options request, with the usual values for missing options.
fn trials(args: &Alert, form: Form) -> Result<Trials, Problem> {
    let usual = if args.quick { Trials::quick(form) } else { Trials::as_published(form) };
    let targets = match &args.targets[..] {
        [] => usual.targets,
        texts => texts.iter().map(|text| target(text)).collect::<Result<_, _>>()?,
    };
    let seeds = args.seeds.unwrap_or(usual.seeds);
    Ok(Trials { form, targets, length: length(args, usual.length)?, seeds })
}

/// Returns the time for which each target share is tested: the value of `--length`, or else
/// `usual`.
fn length(args: &Alert, usual: Span) -> Result<Span, Problem> {
    let length = args.length.unwrap_or(usual);
    if length < Span::from_secs(1) || length > Span::from_secs(24 * 3600) {
        return Err(Problem::BadOption {
            message: format!("cannot use --length {length}: it must be from 1s to 24h"),
            hint: Some("write --length 180s".into()),
        });
    }
    Ok(length)
}

fn shares(percent: &[u32]) -> Vec<CpuShare> {
    percent.iter().map(|percent| CpuShare::from_ppm(percent * 10_000)).collect()
}

/// Parses a target share in percent of a CPU.
fn target(text: &str) -> Result<CpuShare, Problem> {
    let percent: Option<f64> = text.trim().trim_end_matches('%').trim().parse().ok();
    percent.and_then(target_of_percent).ok_or_else(|| Problem::BadOption {
        message: format!(
            "cannot use --targets {text}: each target must be above 0 % and at most 100 %"
        ),
        hint: Some("write --targets 1,2,5,10,50".into()),
    })
}
