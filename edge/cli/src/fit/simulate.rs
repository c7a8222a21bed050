//! Smallest slice of a VM of a scenario, by simulation with many seeds.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use slackline_experiments::SimulateError;
use slackline_experiments::claims::expects_refusal;
use slackline_experiments::fit::simulated::{SearchError, SimulatedFit, SliceRange, search};
use slackline_experiments::grid::GridProgress;
use slackline_experiments::header::of_simulation;
use slackline_scenario::{ClaimHosts, Scenario, ScenarioError};
use slackline_terminal::percent;
use slackline_trace::Writer;
use slackline_units::{Reservation, Span};
use toml::{Table, Value as Toml};

use crate::fit_args::FitArgs;
use crate::input::Source;
use crate::pending::Pending;
use crate::places::Places;
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::terminal::{self, Counter};
use crate::{bug, grid};

/// A VM of a scenario whose slice is searched.
struct SearchedVm<'a> {
    source: Source<'a>,
    /// The scenario as TOML.
    table: Table,
    /// Name of the VM in the file.
    name: String,
    /// Index of the VM's table among the tables `[[domain]]`.
    domain: usize,
    policy: &'static str,
    period: Span,
}

fn bad(message: String, hint: &str) -> Problem {
    Problem::BadOption { message, hint: Some(hint.into()) }
}

/// Finds the smallest slice with which the claims of a scenario hold.
pub(super) fn fit(args: &FitArgs, file: &Path, text: &str, places: &Places) -> Result<(), Problem> {
    let given =
        [("--share", args.share.is_some()), ("--most-vms", args.most_vms), ("--proof", args.proof)];
    if let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        return Err(bad(
            format!("cannot use {option} with a scenario: its claims are tested by simulation"),
            "use a task set: `slackline help tasks`",
        ));
    }
    let scenario = grid::scenario(file, None, places)?;
    let vm = SearchedVm::read(args, (file, text, places), &scenario)?;
    let step = args.step.unwrap_or(Span::from_ns((vm.period.ns() / 100).max(1)));
    if step > vm.period {
        return Err(bad(
            format!("cannot use --step {step}: it is longer than the period {}", vm.period),
            "use a shorter --step",
        ));
    }
    let range = SliceRange { period: vm.period, step, seed: scenario.seed, seeds: args.seeds };
    let found = vm.search(&range)?;
    if let Some(name) = [&args.save, &args.save_scenario].into_iter().flatten().next()
        && found.below.is_none()
    {
        let message = format!("cannot write {}: no slice breaks a claim", name.display());
        let hint = Some("use a smaller --step".into());
        return Err(Problem::NotAdmitted { message, hint });
    }
    vm.keep_failed(args, &found)?;
    if args.json {
        return terminal::print(&format!("{:#}\n", vm.as_json(&range, &found)));
    }
    terminal::say(&vm.shown(args, &range, &found, &scenario.title))
}

impl<'a> SearchedVm<'a> {
    fn read(
        args: &FitArgs,
        (file, text, places): (&'a Path, &str, &'a Places),
        scenario: &Scenario,
    ) -> Result<SearchedVm<'a>, Problem> {
        let shown = file.display();
        let applies = |on: ClaimHosts| matches!(on, ClaimHosts::Both | ClaimHosts::Sim);
        let has_claims = scenario.claims.iter().any(|claim| applies(claim.on));
        if !has_claims || expects_refusal(scenario) {
            return Err(bad(
                format!("cannot fit {shown}: it has no claims about a run that could fail"),
                "write [[claim]] that = \"jobs late of NAME\", is = \"at most 0\"",
            ));
        }
        let table: Table = text.parse().expect("the scenario was parsed");
        let name_of = |domain: &Toml| domain.get("name").and_then(Toml::as_str).map(str::to_owned);
        let domains = table.get("domain").and_then(Toml::as_array);
        let names: Vec<String> = domains.into_iter().flatten().filter_map(name_of).collect();
        let domain = match &args.vm {
            None if names.len() == 1 => Some(0),
            None => None,
            Some(vm) => names.iter().position(|name| name == vm),
        };
        let Some(domain) = domain else {
            let list = names.join(", ");
            return Err(match &args.vm {
                Some(vm) => bad(
                    format!("cannot fit `{vm}`: {shown} has no such VM"),
                    &format!("use one of: {list}"),
                ),
                None => bad(
                    format!("cannot fit {shown}: it has {} VMs", names.len()),
                    &format!("name one with --vm: {list}"),
                ),
            });
        };
        let name = names[domain].clone();
        let spec = scenario.policy.spec;
        let has = |field: &str| spec.share_fields.iter().any(|known| known.name == field);
        if !has("slice") || !has("period") {
            return Err(bad(
                format!("cannot fit `{name}`: shares of `{}` have no slice", spec.name),
                "use a policy with slices, such as `edf`",
            ));
        }
        let share = share_of(&table, domain, spec.name);
        let own = share.and_then(|share| share.get("period")?.as_str()?.parse().ok());
        let Some(period) = args.period.or(own) else {
            return Err(bad(
                format!("cannot fit `{name}`: it has no share.{} with a period", spec.name),
                "use --period 10ms",
            ));
        };
        let source = Source { file, places, length: None, sums: None };
        Ok(SearchedVm { source, table, name, domain, policy: spec.name, period })
    }

    /// Returns the scenario as TOML, with another slice of the VM.
    fn with_slice(&self, slice: Span) -> Table {
        let mut table = self.table.clone();
        let domain = table
            .get_mut("domain")
            .and_then(|domains| domains.as_array_mut()?.get_mut(self.domain)?.as_table_mut())
            .expect("the domain was found before");
        let shares = domain.entry("share").or_insert(Toml::Table(Table::new()));
        let share = shares
            .as_table_mut()
            .map(|shares| shares.entry(self.policy).or_insert(Toml::Table(Table::new())));
        if let Some(share) = share.and_then(Toml::as_table_mut) {
            share.remove("cpu");
            share.insert("slice".into(), slice.to_string().into());
            share.insert("period".into(), self.period.to_string().into());
        }
        table
    }

    /// Returns the keys of the VM's share with another slice. Other keys stay, such as `exact`.
    fn share(&self, slice: Span) -> String {
        let table = self.with_slice(slice);
        let domain = table.get("domain").and_then(|domains| domains.as_array()?.get(self.domain));
        let share = domain.and_then(|domain| domain.get("share")?.get(self.policy)?.as_table());
        let share = share.expect("with_slice makes the share");
        let period = format!("period = \"{}\"", self.period);
        let mut keys = vec![format!("slice = \"{slice}\""), period];
        let others = share.iter().filter(|(key, _)| *key != "slice" && *key != "period");
        keys.extend(others.map(|(key, value)| format!("{key} = {value}")));
        keys.join(", ")
    }

    fn scenario(&self, slice: Span) -> Result<Scenario, Problem> {
        let text = self.with_slice(slice).to_string();
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
        search(range, |slice| self.scenario(slice), &watch).map_err(|error| match error {
            SearchError::Scenario(problem) => problem,
            SearchError::Stopped => Problem::Interrupted,
            SearchError::Refused => Problem::NotAdmitted {
                message: format!(
                    "cannot fit `{}`: admission refuses even a slice of {} in {}",
                    self.name, range.step, range.period
                ),
                hint: Some("reserve less for the other VMs".into()),
            },
            SearchError::Fails { slice, failed } => Problem::NotAdmitted {
                message: format!(
                    "cannot fit `{}`: with the largest slice that admission accepts, {slice} in \
                     {}, and seed {}, {}",
                    self.name, range.period, failed.seed, failed.claim
                ),
                hint: Some("use a shorter --period, or reserve less for the other VMs".into()),
            },
            SearchError::Run(failed) => {
                let (scenario, error) = *failed;
                match error {
                    SimulateError::Run(error) => bug::explain(self.source.file, &scenario, error),
                    SimulateError::Stray(stray) => Problem::of_stray(stray),
                }
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
            let mut table = self.with_slice(*slice);
            let seed = i64::try_from(failed.seed).unwrap_or(i64::MAX);
            table.insert("seed".into(), Toml::Integer(seed));
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
        let (slice, period) = (found.slice, self.period);
        let reservation = Reservation::new(slice, period).expect("a slice within the period");
        let share = percent(reservation.share().ppm().into());
        let most = found.failing_at_most * 100.0;
        let mut text = format!(
            "`{}` in {title}\n\n\
             \x20 reservation  {slice} every {period}, {share} % of a CPU\n\
             \x20 search       all claims hold with seeds {seed} to {}, and with fresh seeds {} to \
             {}\n\
             \x20 confidence   95 %: a claim fails with at most {most:.2} % of all seeds\n",
            self.name,
            seed.saturating_add(seeds - 1),
            found.fresh_from,
            found.fresh_from.saturating_add(seeds - 1),
        );
        text += &match &found.below {
            None => "  trace        none: this is the smallest step\n".to_owned(),
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
            self.policy,
            self.share(slice)
        )
    }

    fn as_json(&self, range: &SliceRange, found: &SimulatedFit) -> Value {
        let has_trace = found.below.is_some();
        let witnesses = if has_trace { json!(["seeds", "trace"]) } else { json!(["seeds"]) };
        json!({
            "vm": self.name,
            "policy": self.policy,
            "reservation": { "slice_ns": found.slice.ns(), "period_ns": self.period.ns() },
            "witnesses": witnesses,
            "seeds": range.seeds,
            "first_seed": range.seed,
            "first_fresh_seed": found.fresh_from,
            "failing_seeds_at_most": found.failing_at_most,
            "confidence": 0.95,
            "runs": found.runs,
            "trace": found.below.as_ref().map(|(slice, failed)| json!({
                "slice_ns": slice.ns(),
                "seed": failed.seed,
                "claim": failed.claim,
            })),
        })
    }
}

/// Returns the share of a domain under a policy.
fn share_of<'a>(table: &'a Table, domain: usize, policy: &str) -> Option<&'a Table> {
    let domain = table.get("domain")?.as_array()?.get(domain)?;
    domain.get("share")?.get(policy)?.as_table()
}
