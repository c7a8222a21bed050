//! Smallest slice of a VM of a scenario, by simulation with many seeds.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use slackline_experiments::SimulateError;
use slackline_experiments::fit::simulated::{
    FailedSeed, SearchError, SimulatedFit, SliceRange, search,
};
use slackline_experiments::fit::{SearchedVm, SearchedVmError, USUAL_SEEDS};
use slackline_experiments::grid::GridProgress;
use slackline_experiments::header::of_simulation;
use slackline_scenario::{Scenario, ScenarioError};
use slackline_terminal::percent;
use slackline_trace::Writer;
use slackline_units::{Reservation, Span};

use super::{option, refused};
use crate::fit_args::FitArgs;
use crate::input::Source;
use crate::pending::Pending;
use crate::places::Places;
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::terminal::{self, Counter};
use crate::{bug, grid};

/// A VM whose smallest slice is searched for, and the file of its scenario.
struct FileVm<'a> {
    source: Source<'a>,
    vm: SearchedVm,
}

fn bad(message: String, hint: &str) -> Problem {
    Problem::BadOption { message, hint: Some(hint.into()) }
}

/// Finds the smallest slice with which the claims of a scenario hold.
pub(super) fn fit(args: &FitArgs, file: &Path, places: &Places) -> Result<(), Problem> {
    let given =
        [("--share", args.share.is_some()), ("--most-vms", args.most_vms), ("--proof", args.proof)];
    if let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        return Err(bad(
            format!("cannot use {option} with a scenario: its claims are tested by simulation"),
            "use a task set: `slackline help tasks`",
        ));
    }
    if args.reserve.is_some() {
        return Err(bad(
            "cannot use --reserve with a scenario: its policy states the part".into(),
            "write the key reserve = \"10%\" into `policy` of the scenario",
        ));
    }
    let scenario = grid::scenario(file, None, places)?;
    let unfit = |error: SearchedVmError| {
        bad(format!("cannot fit {}: {error}", file.display()), &error.hint(option))
    };
    let vm = SearchedVm::of(&scenario, args.vm.as_deref(), args.period).map_err(unfit)?;
    let range =
        vm.range(args.step, (scenario.seed, args.seeds.unwrap_or(USUAL_SEEDS))).map_err(unfit)?;
    let vm = FileVm { source: Source { file, places, length: None, sums: None }, vm };
    let found = vm.search(&range)?;
    if let Some(name) = [&args.save, &args.save_scenario].into_iter().flatten().next()
        && found.below.is_none()
    {
        let message = format!(
            "cannot save {}: all claims hold for every tested slice, so there is no failed run",
            name.display()
        );
        let hint = Some("use a smaller --step".into());
        return Err(Problem::NotAdmitted { message, hint });
    }
    vm.keep_failed(args, &found)?;
    let hint = vm.vm.warning(&scenario, &found);
    if args.json {
        return terminal::print(&format!("{:#}\n", vm.as_json(&range, &found, hint.as_deref())));
    }
    terminal::say(&vm.shown(args, &range, &found, &scenario.title))?;
    if let Some(hint) = hint {
        terminal::tell(&format!("hint:  {hint}\n"));
    }
    Ok(())
}

impl FileVm<'_> {
    fn scenario(&self, slice: Span) -> Result<Scenario, Problem> {
        let text = self.vm.with_slice(slice).to_string();
        let file = self.source.file;
        let wrong = |error: ScenarioError| Problem::Scenario { file: file.into(), error };
        self.source.scenario(&text).map_err(wrong)?
    }

    fn search(&self, range: &SliceRange) -> Result<SimulatedFit, Problem> {
        let (counter, stop) = (Counter::with_done("fit", 0), stop_flag()?);
        let watch = |done: GridProgress| {
            counter.at(done);
            match stop.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        search(range, |slice| self.scenario(slice), &watch).map_err(|error| {
            match (self.vm.refusal(range, &error), error) {
                (Some(refusal), _) => refused(refusal),
                (None, SearchError::Scenario(problem)) => problem,
                (None, SearchError::Run(failed)) => {
                    let (scenario, error) = *failed;
                    match error {
                        SimulateError::Run(error) => {
                            bug::explain(self.source.file, &scenario, error)
                        }
                        SimulateError::Stray(stray) => Problem::of_stray(stray),
                    }
                }
                (None, _) => Problem::Interrupted,
            }
        })
    }

    /// Saves the trace and the scenario of the run that breaks a claim, if the user requested them.
    fn keep_failed(&self, args: &FitArgs, found: &SimulatedFit) -> Result<(), Problem> {
        let Some((slice, failed)) = &found.below else { return Ok(()) };
        if let Some(name) = &args.save {
            let mut scenario = self.scenario(*slice)?;
            scenario.seed = failed.seed;
            let (file, out) = Pending::new(name)?;
            let mut writer = Writer::new(out, &of_simulation(&scenario));
            slackline_sim::run(&scenario, &mut writer)
                .map_err(|error| bug::explain(self.source.file, &scenario, error))?;
            file.keep(writer.finish())?;
        }
        if let Some(name) = &args.save_scenario {
            let table = self.vm.with_seed(*slice, failed.seed);
            let (file, mut out) = Pending::new(name)?;
            file.keep(out.write_all(table.to_string().as_bytes()).and_then(|()| out.flush()))?;
        }
        Ok(())
    }

    fn shown(
        &self,
        args: &FitArgs,
        range: &SliceRange,
        found: &SimulatedFit,
        title: &str,
    ) -> String {
        let SliceRange { seed, seeds, .. } = *range;
        let (slice, period) = (found.slice, range.period);
        let reservation = Reservation::new(slice, period).expect("a slice within the period");
        let share = percent(reservation.share().ppm().into());
        let most = found.failing_at_most * 100.0;
        let mut text = format!(
            "{} in {title}\n\n\
             \x20 reservation  {slice} every {period}, {share} % of a CPU\n\
             \x20 search       all claims hold with seeds {seed} to {}, and with fresh seeds {} to \
             {}\n\
             \x20 confidence   95 %: a claim fails with at most {most:.2} % of all seeds\n",
            self.vm.title(),
            seed.saturating_add(seeds - 1),
            found.fresh_from,
            found.fresh_from.saturating_add(seeds - 1),
        );
        if let Some((slice, failed)) = &found.above {
            text += &format!(
                "  larger       with {slice}/{period} and seed {}, {}\n",
                failed.seed, failed.claim
            );
        }
        text += &match &found.below {
            None => "  trace        none: no smaller slice was tried, see --step\n".to_owned(),
            Some((slice, failed)) => format!(
                "  trace        with {slice}/{period} and seed {}, {}\n",
                failed.seed, failed.claim
            ),
        };
        if let (Some(file), Some(_)) = (&args.save, &found.below) {
            text += &format!("               saved in {}\n", file.display());
        }
        text + &format!(
            "  proof        none: this is a search by simulation\n\n\
             \x20 share.{} = {{ {} }}\n",
            self.vm.policy(),
            self.vm.share(slice)
        )
    }

    fn as_json(&self, range: &SliceRange, found: &SimulatedFit, hint: Option<&str>) -> Value {
        let has_trace = found.below.is_some();
        let witnesses = if has_trace { json!(["seeds", "trace"]) } else { json!(["seeds"]) };
        let run = |failing: &Option<(Span, FailedSeed)>| {
            failing.as_ref().map(|(slice, failed)| {
                json!({ "slice_ns": slice.ns(), "seed": failed.seed, "claim": failed.claim })
            })
        };
        json!({
            "vm": self.vm.name(),
            "policy": self.vm.policy(),
            "reservation": { "slice_ns": found.slice.ns(), "period_ns": range.period.ns() },
            "witnesses": witnesses,
            "seeds": range.seeds,
            "first_seed": range.seed,
            "first_fresh_seed": found.fresh_from,
            "failing_seeds_at_most": found.failing_at_most,
            "confidence": 0.95,
            "runs": found.runs,
            "trace": run(&found.below),
            "larger": run(&found.above),
            "hint": hint,
        })
    }
}
