//! `slackline manage`: simulates the workload manager and compares the manager with other rules, or
//! manages the reservations of a daemon.

mod daemon;
mod live;
mod rounds;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use slackline_experiments::manage::{
    BATCH, GoalList, ManageError, ManagePlan, ManagedRun, RuleKind, Score, Series, SeriesError,
    SeriesRun, score,
};
use slackline_policy::find;
use slackline_scenario::Scenario;
use slackline_units::CpuShare;

use crate::alert::show::packed;
use crate::input::{self, Source};
use crate::manage_args::Manage;
use crate::pending::Pending;
use crate::places::Places;
use crate::problem::Problem;
use crate::terminal;

/// Format of the JSON output.
const FORMAT: &str = "slackline-manage-1";

/// Results of all rules.
struct RuleComparison {
    title: String,
    policy: &'static str,
    rounds: usize,
    /// Run of each rule with the first seed.
    first: Vec<(RuleKind, ManagedRun)>,
    /// Score of each rule, summed over all seeds.
    scores: Vec<(RuleKind, Score)>,
}

pub(crate) fn manage(args: &Manage) -> Result<(), Problem> {
    match (&args.file, &args.replay) {
        (Some(file), _) => simulate(args, file),
        (None, Some(saved)) => rounds::replay(saved),
        (None, None) => live::live(args),
    }
}

/// Simulates all rules, and prints their results.
fn simulate(args: &Manage, file: &Path) -> Result<(), Problem> {
    let places = Places::of(&[("--csv", args.csv.as_deref())])?;
    places.read("the series", file)?;
    args.goals.as_ref().map_or(Ok(()), |goals| places.read("--goals", goals))?;
    let csv = args.csv.as_deref().map(Pending::new).transpose()?;
    let compared = compare(args, file, &places)?;
    let shown = compared.first.iter().find(|(rule, _)| rule.name() == args.rule);
    let (_, shown) = shown.expect("every rule was run");
    if let Some((pending, mut out)) = csv {
        let text = as_csv(shown);
        pending.keep(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
    }
    if args.at.daemon.json {
        return terminal::print(&as_json(args, &compared));
    }
    terminal::say(&as_text(args, &compared, shown))
}

fn compare(args: &Manage, file: &Path, places: &Places) -> Result<RuleComparison, Problem> {
    let goals = goals(args.goals.as_deref())?;
    let is_series = file.extension().is_some_and(|extension| extension == "csv");
    let series = is_series.then(|| series(file)).transpose()?;
    let goals = if is_series { goals.leaving(BATCH) } else { goals };
    let window = usize::try_from(args.window).expect("the range was checked");
    let plan = ManagePlan { goals, round: args.round, window, pace: Default::default() };
    let mut compared: Option<RuleComparison> = None;
    for seed in 1..=args.seeds {
        let scenario = match &series {
            Some(series) => of_series((args, file), series, seed)?,
            None => of_file((args, file), places, seed)?,
        };
        check_names(&plan.goals, &scenario)?;
        let runs = plan.compare(&scenario).map_err(|error| of_run(file, &scenario, error))?;
        let scores = runs.iter().map(|(rule, run)| (*rule, score(run, args.round))).collect();
        compared = Some(match compared {
            None => RuleComparison {
                title: scenario.title.clone(),
                policy: scenario.policy.spec.name,
                rounds: runs.first().map_or(0, |(_, run)| run.rounds.len()),
                first: runs,
                scores,
            },
            Some(before) => {
                let both = before.scores.into_iter().zip(scores);
                let scores = both.map(|((rule, one), (_, other))| (rule, one.and(&other)));
                RuleComparison { scores: scores.collect(), ..before }
            }
        });
    }
    Ok(compared.expect("there is a seed"))
}

fn goals(file: Option<&Path>) -> Result<GoalList, Problem> {
    let Some(file) = file else { return Ok(GoalList::default()) };
    let text = input::text(file)?;
    GoalList::read(&text).map_err(|error| Problem::BadOption {
        message: format!("{}: {error}", file.display()),
        hint: Some("write `[vm.web]` and below it `misses = \"0.1%\"`".into()),
    })
}

fn check_names(goals: &GoalList, scenario: &Scenario) -> Result<(), Problem> {
    let is_known = |name: &str| name == BATCH || scenario.domains.iter().any(|it| it.name == name);
    let Some(unknown) = goals.names().find(|name| !is_known(name)) else { return Ok(()) };
    let names: Vec<&str> = scenario.domains.iter().map(|domain| domain.name.as_str()).collect();
    Err(Problem::BadOption {
        message: format!("cannot use the goals of `{unknown}`: there is no such VM"),
        hint: Some(format!("write one of {}", names.join(", "))),
    })
}

fn series(file: &Path) -> Result<Series, Problem> {
    Series::read(&input::text(file)?).map_err(|error| Problem::BadOption {
        message: format!("{}: {error}", file.display()),
        hint: Some(match error {
            SeriesError::EqualNames { .. } => "give each VM another name".into(),
            _ => "write a line `web,db` and below it lines such as `20.0,12.5`".into(),
        }),
    })
}

/// Makes a scenario from a series of demand. The scenario has the seed `seed`.
fn of_series(
    (args, file): (&Manage, &Path),
    series: &Series,
    seed: u64,
) -> Result<Scenario, Problem> {
    let policy = find(&args.policy).expect("the option was checked").name;
    let (round, noise_ppm) = (args.round, args.noise.ppm());
    let made = SeriesRun { round, seed, noise_ppm, is_limited: args.limited, policy };
    let wrong = |error| Problem::Scenario { file: file.into(), error };
    series.scenario(&made).map_err(wrong)
}

/// Returns the scenario of a file. With several seeds, `seed` replaces the seed in the file.
fn of_file(
    (args, file): (&Manage, &Path),
    places: &Places,
    seed: u64,
) -> Result<Scenario, Problem> {
    let source = Source { file, places, length: None, sums: None };
    let wrong = |error| Problem::Scenario { file: file.into(), error };
    let mut scenario = source.scenario(&input::text(file)?).map_err(wrong)??;
    if args.seeds > 1 {
        scenario.seed = seed;
    }
    Ok(scenario)
}

fn of_run(file: &Path, scenario: &Scenario, error: ManageError) -> Problem {
    let hint = match &error {
        ManageError::Run(_) | ManageError::Scenario(_) => None,
        ManageError::NoVms { .. } => Some("give a VM `share.edf`, and no `leave` in the goals"),
        ManageError::BadName { .. } => Some("use lower-case letters, digits, `.`, `_` and `-`"),
        ManageError::Closed { .. } => {
            Some("use work of kind `periodic` or `jobs`, or write `leave = true` in the goals")
        }
        ManageError::Short { .. } => Some("write --round 1s, or a longer scenario"),
    };
    match error {
        ManageError::Run(error) => crate::bug::explain(file, scenario, error),
        ManageError::Scenario(error) => Problem::Scenario { file: file.into(), error },
        error => Problem::BadOption { message: error.to_string(), hint: hint.map(str::to_owned) },
    }
}

fn as_text(args: &Manage, compared: &RuleComparison, shown: &ManagedRun) -> String {
    let RuleComparison { title, policy, rounds, scores, .. } = compared;
    let mut text = format!("{title}: {policy}, {rounds} rounds of {}\n\n", args.round);
    for (at, says) in &shown.decisions {
        let seconds = at.ns() / 1_000_000_000;
        let _ = writeln!(text, "{seconds:>6} s  {says}");
    }
    if shown.decisions.is_empty() {
        let _ = match score(shown, args.round).changes {
            0 => writeln!(text, "The rule `{}` changed nothing.", args.rule),
            _ => writeln!(text, "The rule `{}` gives no reasons for its changes.", args.rule),
        };
    }
    text.push('\n');
    let misses = |kind: RuleKind| {
        scores.iter().find(|(rule, _)| *rule == kind).map_or(0, |(_, score)| score.misses)
    };
    let removable = misses(RuleKind::Fixed).saturating_sub(misses(RuleKind::Oracle));
    let row = |(rule, score): &(RuleKind, Score)| {
        let removed = misses(RuleKind::Fixed).saturating_sub(score.misses);
        let part = match (rule, removable) {
            (RuleKind::Fixed | RuleKind::Oracle, _) | (_, 0) => "-".into(),
            (_, removable) => format!("{}", removed * 100 / removable),
        };
        let settled = match (score.settled.is_empty(), score.slowest()) {
            // Fixed shares never change, so the time until they settle has no meaning.
            _ if score.changes == 0 => "-".into(),
            (true, _) => "-".into(),
            (false, Some(slowest)) => slowest.to_string(),
            (false, None) => "never".into(),
        };
        let reversals = hundredths(score.reversals * 10_000, score.vm_rounds);
        let cells = vec![
            score.misses.to_string(),
            hundredths(score.misses * 10_000, score.jobs),
            part,
            hundredths(score.over_ppm, 100),
            score.changes.to_string(),
            reversals,
            settled,
        ];
        (rule.name().to_owned(), cells)
    };
    let rows: Vec<_> = scores.iter().map(row).collect();
    let headings = ["missed", "missed %", "removed %", "over %", "changes", "reversals", "settled"];
    text += &packed("rule", &headings, &rows, terminal::width());
    text += "\nmissed: periods at whose end work was not done. removed: misses of `fixed` that the \
             rule avoids,\nin % of those that `oracle` avoids. over: part of the reserved time \
             that was not used. reversals:\nchanges opposite to the previous change while the \
             demand was steady, per 100 rounds of a VM.\nsettled: largest number of rounds from a \
             step of the demand until the share has settled.\n";
    text
}

/// Formats `part / whole` with two decimals. `part` is in hundredths. The result is 0.00 if `whole`
/// is zero.
fn hundredths(part: u64, whole: u64) -> String {
    let value = part.checked_div(whole).unwrap_or(0);
    format!("{}.{:02}", value / 100, value % 100)
}

fn as_csv(run: &ManagedRun) -> String {
    let mut text = String::from("round,vm,share_ppm,need_ppm,used_ns,jobs,misses\n");
    for (number, round) in run.rounds.iter().enumerate() {
        for (vm, name) in run.names.iter().enumerate() {
            let (share, need) = (round.shares[vm].ppm(), round.needs[vm].ppm());
            let (used, jobs, misses) = (round.used[vm].ns(), round.jobs[vm], round.misses[vm]);
            let _ = writeln!(text, "{number},{name},{share},{need},{used},{jobs},{misses}");
        }
    }
    text
}

fn as_json(args: &Manage, compared: &RuleComparison) -> String {
    let rules = compared.first.iter().zip(&compared.scores).map(|((rule, run), (_, score))| {
        let decisions = run.decisions.iter();
        let decisions = decisions.map(|(at, says)| json!({ "at_ns": at.ns(), "says": says }));
        let rounds = run.rounds.iter().map(|round| {
            let ppm =
                |shares: &[CpuShare]| -> Vec<u32> { shares.iter().map(|it| it.ppm()).collect() };
            let used: Vec<u64> = round.used.iter().map(|it| it.ns()).collect();
            json!({
                "share_ppm": ppm(&round.shares),
                "need_ppm": ppm(&round.needs),
                "used_ns": used,
                "jobs": round.jobs,
                "misses": round.misses,
            })
        });
        json!({
            "rule": rule.name(),
            "decisions": decisions.collect::<Vec<Value>>(),
            "declined": run.declined,
            "score": {
                "jobs": score.jobs,
                "misses": score.misses,
                "over_ppm": score.over_ppm,
                "changes": score.changes,
                "reversals": score.reversals,
                "vm_rounds": score.vm_rounds,
                "settled": score.settled,
            },
            "rounds": rounds.collect::<Vec<Value>>(),
        })
    });
    let names = compared.first.first().map(|(_, run)| run.names.iter().map(ToString::to_string));
    let all = json!({
        "format": FORMAT,
        "title": compared.title,
        "policy": compared.policy,
        "round_ns": args.round.ns(),
        "seeds": args.seeds,
        "vms": names.map(Iterator::collect::<Vec<String>>),
        "rules": rules.collect::<Vec<Value>>(),
    });
    format!("{all:#}\n")
}
