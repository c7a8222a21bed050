//! Command `slackline run`, which runs a scenario live on this host.

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use slackline_experiments::claims::expects_refusal;
use slackline_experiments::{Numbers, Outputs, header, with_seed};
use slackline_fence::KeeperCommand;
use slackline_linux::sys::online_cpus;
use slackline_live::agents::{AgentStatistics, Counts};
use slackline_live::relay::RelayStatistics;
use slackline_live::session::SessionError;
use slackline_live::topology;
use slackline_metrics::Summary;
use slackline_play::LostRequests;
use slackline_play::load_order::{LoadOrder, LoadRole};
use slackline_play::play::{self, Options, PlayResults};
use slackline_scenario::Scenario;
use slackline_terminal::over_runs;
use slackline_trace::{Header, Sink};
use slackline_units::frame::VERSION;
use slackline_units::{CpuId, Span};

use crate::args::{Keeping, RunArgs};
use crate::counted::counted;
use crate::enforce::Enforce;
use crate::load::words;
use crate::outputs::{Files, tables};
use crate::problem::Problem;
use crate::signals::{stay_running, stop_signal};
use crate::terminal::{self, Progress};
use crate::{claims, grid, input, json, report, seeds};

pub(crate) fn run(args: &RunArgs) -> Result<(), Problem> {
    let places = args.keeping.places()?;
    let mut scenario = grid::scenario(&args.file, args.length, &places)?;
    if let Some(policy) = &args.policy {
        scenario = input::under(&args.file, &scenario, policy)?;
    }
    check_mechanism(args.enforce, scenario.policy.spec.name)?;
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    if expects_refusal(&scenario) {
        return claims::check_refusal(&args.file, &scenario);
    }
    if args.seeds.is_some() {
        return over_seeds(args, &scenario);
    }
    let live = live(&args.file, &scenario, args.cpus.as_deref(), &args.keeping)?;
    if args.keeping.json {
        terminal::tell(&live.agents());
        terminal::print(&json::numbers(
            "live",
            &live.numbers,
            json::Completion::of(&live.was_whole()),
        ))?;
    } else {
        let text = tables(&live.numbers);
        terminal::say(&(text + &live.notes(&scenario)))?;
    }
    live.was_whole()?;
    claims::check(&args.file, &scenario, &[claims::CheckedRun::live(live.summary())])
}

/// Checks that the mechanism runs scheduler policies. Only the dispatcher does.
fn check_mechanism(enforce: Option<Enforce>, policy: &str) -> Result<(), Problem> {
    match enforce {
        Some(Enforce::Named(mechanism)) if mechanism.is_of_kernel() => Err(Problem::BadOption {
            message: format!(
                "cannot use --enforce {mechanism}: the scenario's policy `{policy}` chooses the \
                 vCPUs to run, but under `{mechanism}` the kernel chooses them"
            ),
            hint: Some(format!(
                "leave out --enforce, or let the kernel enforce a reservation with \
                 `slackline hold --enforce {mechanism}`"
            )),
        }),
        _ => Ok(()),
    }
}

/// Runs a scenario with several seeds, and prints statistics over all seeds.
fn over_seeds(args: &RunArgs, scenario: &Scenario) -> Result<(), Problem> {
    let seeds = seeds::seeds(scenario, args.seeds)?;
    let mut lives: Vec<Live> = Vec::new();
    for &seed in &seeds {
        let scenario = with_seed(scenario.clone(), seed);
        lives.push(live(&args.file, &scenario, args.cpus.as_deref(), &args.keeping)?);
        if lives.iter().any(|live| live.was_whole().is_err()) {
            break;
        }
    }
    let runs: Vec<Summary> = lives.iter().map(|live| live.summary().clone()).collect();
    let name = scenario.policy.spec.name;
    if args.keeping.json {
        lives.iter().for_each(|live| terminal::tell(&live.agents()));
        let end = json::Completion::of(&lives.iter().try_for_each(Live::was_whole));
        terminal::print(&json::cases(&[json::Case::new(name, runs.clone())], &seeds, end))?;
    } else {
        let mut text = format!("{}: {}, live\n\n", scenario.title, scenario.policy);
        text += &over_runs(&[(name, &runs)], terminal::width(), terminal::paint());
        lives.iter().for_each(|live| text += &live.notes(scenario));
        terminal::say(&text)?;
    }
    lives.iter().try_for_each(Live::was_whole)?;
    let checked: Vec<_> = runs.iter().map(claims::CheckedRun::live).collect();
    claims::check(&args.file, scenario, &checked)
}

/// Results of a live run, with notes about it.
pub(crate) struct Live {
    numbers: Numbers,
    outcome: PlayResults,
}

impl Live {
    pub(crate) fn summary(&self) -> &Summary {
        &self.numbers.summary
    }

    /// Returns notes about events of the run that the table does not show.
    pub(crate) fn notes(&self, scenario: &Scenario) -> String {
        let mut text = String::new();
        for (at, name, how) in &self.outcome.ended {
            let _ = writeln!(text, "note: `{name}` ended by itself at {at}: {how}");
        }
        for (at, vcpu, error) in &self.outcome.declined {
            let name = scenario.domains[vcpu.domain().number() as usize].vcpu_name(*vcpu);
            let _ = writeln!(
                text,
                "note: admission refused a join or change of `{name}` at {at}: {error}"
            );
        }
        for (at, vcpu, found) in &self.outcome.contested {
            let name = scenario.domains[vcpu.domain().number() as usize].vcpu_name(*vcpu);
            let _ =
                writeln!(text, "note: another program interfered with `{name}` at {at}: {found}");
        }
        if self.outcome.undone > 0 {
            let _ = writeln!(
                text,
                "note: {} changes by other programs to scheduled threads were undone",
                self.outcome.undone
            );
        }
        for LostRequests { name, answered, lost } in &self.outcome.lost {
            let _ =
                writeln!(text, "note: {name}: {lost} requests timed out, {answered} were answered");
        }
        text += &self.agents();
        if self.outcome.keepers_lost > 0 {
            let _ = writeln!(
                text,
                "note: the keeper, which restores threads after a kill, died and was replaced"
            );
        }
        if let Some(at) = self.outcome.stopped {
            let _ = writeln!(text, "note: stopped at {at}, before the end of the run");
        }
        text
    }

    /// Returns notes about the agents in guests.
    pub(crate) fn agents(&self) -> String {
        let mut text = String::new();
        self.outcome.heard.iter().for_each(|heard| agent(&mut text, heard));
        self.outcome.relayed.iter().for_each(|relayed| relay(&mut text, relayed));
        text
    }

    /// Returns an error if a signal stopped the run before its planned end.
    pub(crate) fn was_whole(&self) -> Result<(), Problem> {
        if self.outcome.stopped.is_some() { Err(Problem::Interrupted) } else { Ok(()) }
    }
}

/// Appends a note about the traffic of a relay.
fn relay(text: &mut String, relayed: &RelayStatistics) {
    let RelayStatistics { name, guest, connected, inward, outward, unanswered } = relayed;
    let _ = match connected {
        None => writeln!(text, "note: relay of {name}: no process listened at {}", guest.display()),
        Some(_) => {
            let note = format!(
                "data forwarded {inward} times to the guest, {outward} times from the guest"
            );
            writeln!(
                text,
                "note: relay of {name}: {note}; times without an answer in 100 ms: {unanswered}"
            )
        }
    };
}

/// Appends a note about the agent in a guest.
fn agent(text: &mut String, heard: &AgentStatistics) {
    let AgentStatistics { name, path, connected, lost, counts } = heard;
    if connected.is_none() {
        let _ = writeln!(text, "note: agent of {name}: no process listened at {}", path.display());
        return;
    }
    let Counts { frames, dropped, overtaken, lapsed, silenced, other_version, hung_up } = counts;
    let _ = write!(text, "note: agent of {name}: {frames} frames received");
    let told = [
        ("dropped", dropped, " (damaged, for an unknown vCPU, or out of order)"),
        ("superseded", overtaken, " (too many at once)"),
        ("claims expired", lapsed, " (not repeated for 100 ms)"),
        ("claims ended", silenced, " (eight frames dropped in a row)"),
        ("disconnected", hung_up, ""),
    ];
    for (what, count, why) in told.into_iter().filter(|(_, count, _)| **count > 0) {
        let _ = write!(text, "; {what}: {count}{why}");
    }
    let _ = match lost {
        Some(at) => writeln!(text, "; connection last lost at {at}"),
        None => writeln!(text),
    };
    if let Some(version) = other_version {
        let _ = writeln!(
            text,
            "warning: agent of {name}: it sends frames of version {version}, this host reads \
             {VERSION}: install the slackline-agent that was built with this slackline"
        );
    }
}

/// Note about the keys of a scenario that a live run ignores.
const ONLY_SIMULATED: &str = "note:  a live run ignores [driver], [nic], [disk], `kernel`, \
    `dispatch`, `cache` and `priority`, and `delay` and `retry` of clients: it uses Linux's own \
    network, disk and scheduling\n";

/// Runs a scenario live on this host, and writes the requested files.
pub(crate) fn live(
    file: &Path,
    scenario: &Scenario,
    cpus: Option<&[usize]>,
    keeping: &Keeping,
) -> Result<Live, Problem> {
    live_into(file, scenario, cpus, keeping, |_| ()).map(|(live, ())| live)
}

/// Runs a scenario live on this host, and also passes the records to the sink that `sink` makes
/// from the trace header.
pub(crate) fn live_into<S: Sink>(
    file: &Path,
    scenario: &Scenario,
    cpus: Option<&[usize]>,
    keeping: &Keeping,
    sink: impl FnOnce(&Header) -> S,
) -> Result<(Live, S), Problem> {
    scenario.admit().map_err(|error| Problem::of_sim(file, scenario, error.into()))?;
    let cpus = choose_cpus(scenario.host.cpus, cpus)?;
    play::check(scenario).map_err(|error| Problem::of_live(file, error))?;
    let levels = topology::of(&cpus).levels();
    let dispatch = dispatch_cost(&cpus)?;
    let knows = slackline_live::session::knowledge();
    let header = header::of_live(scenario, knows, levels, dispatch);
    let (files, wanted) = Files::begin(keeping)?;
    let mut outputs = (Outputs::new(&header, wanted), sink(&header));
    let mut progress = Progress::new("ran", scenario.length);
    let program = std::env::current_exe()
        .map_err(|source| Problem::Unreadable { file: "/proc/self/exe".into(), source })?;
    let keeper = KeeperCommand::ourselves(["keep"]);
    let load = |order: &LoadOrder<'_>| load_command(&program, order);
    let (stop, _raised) = stop_signal()?;
    stay_running()?;
    let options = Options {
        cpus,
        keeper,
        dispatch,
        load: &load,
        stop: Some(stop.as_fd()),
        progress: &mut |now| progress.at(now),
    };
    if scenario.domains.iter().any(|domain| domain.system.is_some()) {
        terminal::tell(ONLY_SIMULATED);
    }
    let outcome = play::run(scenario, options, &mut outputs);
    let outcome = outcome.map_err(|error| Problem::of_live(file, error))?;
    let (outputs, sink) = outputs;
    let checked = (scenario, outcome.stopped.is_none());
    let report = |trace: &Path, to: &Path| report::write(trace, to, checked);
    let numbers = files.keep(outputs.finish(), report)?;
    Ok((Live { numbers, outcome }, sink))
}

/// Measures the dispatch overhead on these CPUs, and prints it.
pub(crate) fn dispatch_cost(cpus: &[CpuId]) -> Result<Span, Problem> {
    let dispatch = slackline_live::dispatch_cost::measure(cpus);
    let refused = |source| Problem::Live(SessionError::NoRealTime { source }.into());
    let dispatch = dispatch.map_err(refused)?;
    terminal::tell(&format!(
        "note:  dispatch overhead is {dispatch}; admission counts it twice per reserved period\n"
    ));
    Ok(dispatch)
}

/// Returns the CPUs that the user chose. By default these are the CPUs with the highest numbers,
/// because interrupts and other programs tend to use the first CPUs.
pub(crate) fn choose_cpus(count: usize, asked: Option<&[usize]>) -> Result<Vec<CpuId>, Problem> {
    let online = online_cpus()
        .map_err(|source| Problem::Unreadable { file: "the list of CPUs".into(), source })?;
    let online: Vec<CpuId> = online.iter().collect();
    let numbers: Vec<_> = online.iter().map(|cpu| cpu.index().to_string()).collect();
    let hint = format!("use --cpus to name {count} of these CPUs: {}", numbers.join(", "));
    let has = |count: usize| counted(count, "CPU");
    let Some(asked) = asked else {
        if online.len() < count {
            return Err(Problem::HostCannot {
                message: format!(
                    "the scenario needs {}, this host has {}",
                    has(count),
                    online.len()
                ),
                hint: Some(
                    "simulate the scenario with `slackline sim`, or use a larger host".into(),
                ),
            });
        }
        return Ok(online[online.len() - count..].to_vec());
    };
    if asked.len() != count {
        return Err(Problem::BadOption {
            message: format!("--cpus names {}, the scenario needs {count}", has(asked.len())),
            hint: Some(hint),
        });
    }
    let find = |number: &usize| {
        online.iter().copied().find(|cpu| cpu.index() == *number).ok_or_else(|| {
            let message = format!("this host has no CPU {number}");
            Problem::BadOption { message, hint: Some(hint.clone()) }
        })
    };
    let chosen = asked.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let twice = (1..chosen.len()).find(|&at| chosen[..at].contains(&chosen[at]));
    match twice {
        Some(at) => Err(Problem::BadOption {
            message: format!("--cpus names CPU {} twice", chosen[at].index()),
            hint: Some(hint),
        }),
        None => Ok(chosen),
    }
}

/// Returns the command that starts a load process.
pub(crate) fn load_command(program: &Path, order: &LoadOrder<'_>) -> Command {
    let mut command = Command::new(program);
    command.args(["load", "--report-jobs", "--seed", &order.seed.to_string()]);
    command.args(["--start", &order.start.ns().to_string()]);
    match &order.part {
        LoadRole::Program { program, vcpu, others } => {
            let who = format!("{}.{}", vcpu.domain().number(), vcpu.number());
            command.args(["--who", &who, "steps"]);
            for other in *others {
                command.args(["--peer", &other.to_string()]);
            }
            command.args(words::of_program(program));
        }
        LoadRole::System { system, domain, from, files } => {
            let connections = system.connections.to_string();
            command.args(["--who", &format!("{}.0", domain.number()), "tasks"]);
            command.args(["--connections", &connections]);
            for from in words::of_callers(*from) {
                command.args(["--from", from]);
            }
            if let Some(files) = files {
                command.args(["--files", &files.to_string()]);
            }
            command.args(words::of_tasks(&system.tasks));
        }
        LoadRole::Client { client, number, port, begins } => {
            command.args(["caller", "--number", &number.to_string(), "--to", &port.to_string()]);
            if let Some(until) = client.until {
                command.args(["--until", &until.since(*begins).to_string()]);
            }
            command.arg(words::of_client(&client.kind));
        }
        LoadRole::Files => {
            command.arg("files");
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_agent_with_another_version_than_host_causes_a_warning() {
        let counts =
            Counts { dropped: 8, silenced: 1, other_version: Some(1), ..Counts::default() };
        let connected = Some(slackline_units::Time::START);
        let (name, path) = ("web".into(), "/run/web.gaps".into());
        let mut text = String::new();
        agent(&mut text, &AgentStatistics { name, path, connected, lost: None, counts });
        let (note, warning) = text.split_once('\n').expect("the text has two lines");
        assert!(note.starts_with("note: agent of web: 0 frames received; dropped: 8 "), "{note}");
        let expected = "warning: agent of web: it sends frames of version 1, this host reads 2:";
        assert!(warning.starts_with(expected), "{warning}");
    }
}
