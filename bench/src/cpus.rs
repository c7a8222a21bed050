//! The simulator with many CPUs under every policy: 8, 64 and 256 CPUs with 32 vCPUs each.
//!
//! Every CPU has the same kinds of events, however many CPUs there are. So the cost of an event
//! should not depend on the number of CPUs. The targets are numbers of instructions, as valgrind
//! counts them, because times depend on other load and on cache sizes. The cost of an event is the
//! difference between a long and a short run, divided by the difference in their numbers of events.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::time::{ClockId, clock_gettime};
use slackline_policy::{ALL, Spec};
use slackline_scenario::Scenario;

use crate::report::table;
use crate::scale::peak;

const SIZES: [usize; 3] = [8, 64, 256];
const A_CPU: usize = 32;

/// Difference in length between the long and the short run, in milliseconds on a host with one CPU.
/// On a host with more CPUs, the difference is divided by the number of CPUs.
const LONGER: u64 = 64_000;

/// Length of the initial phase of a run in milliseconds. All vCPUs start at the same time, and
/// their events spread out in this phase.
const BEGINNING: u64 = 150;

/// Workload of the vCPUs on each CPU.
#[derive(Clone, Copy)]
struct CpuWorkload {
    name: &'static str,
    loops: usize,
    says: &'static str,
}

const LOADS: [CpuWorkload; 2] = [
    CpuWorkload {
        name: "busy",
        loops: A_CPU / 4,
        says: "a quarter of the vCPUs always compute, the others are as in the load `asleep`",
    },
    CpuWorkload {
        name: "asleep",
        loops: 0,
        says: "all vCPUs compute for 1 ms and sleep for 40 ms on average, so CPUs are 22 % idle",
    },
];

/// Results of one run, as the child process prints them.
struct CpuRun {
    events: u64,
    ns: u64,
    kib: u64,
    /// Number of instructions. `None` if valgrind did not count them.
    instructions: Option<u64>,
}

/// Measures the policies in `policies`, or all policies if the list is empty. Returns Markdown.
pub(crate) fn run(rounds: u32, policies: &[String]) -> Result<String> {
    if let Some(unknown) = policies.iter().find(|name| ALL.iter().all(|spec| spec.name != *name)) {
        bail!("there is no policy `{unknown}`");
    }
    let counts = Command::new("valgrind").arg("--version").output().is_ok();
    let mut rows = Vec::new();
    for spec in
        ALL.iter().filter(|spec| policies.is_empty() || policies.contains(&spec.name.into()))
    {
        for load in LOADS {
            rows.push(row(spec, load, rounds, counts)?);
        }
    }
    let heads = [
        "policy",
        "load",
        "instructions per event, 8 CPUs",
        "64 CPUs",
        "256 CPUs",
        "instructions with 256 CPUs / with 8 CPUs",
        "ns per event, 8 CPUs",
        "64 CPUs",
        "256 CPUs",
        "thousand events per second, 256 CPUs",
        "peak MiB, 8 CPUs",
        "64 CPUs",
        "256 CPUs",
    ];
    let loads = LOADS.map(|load| format!("`{}`: {}", load.name, load.says)).join("; ");
    let how = if counts {
        ""
    } else {
        "\n\nThis host does not have valgrind, so no instructions were counted."
    };
    Ok(format!(
        "{A_CPU} vCPUs per CPU. Loads: {}. Times are CPU times of the fastest of {rounds} rounds. \
         They include waits for memory, which grow with the number of vCPUs.{how}\n\n{}",
        loads,
        table(&heads, &rows)
    ))
}

fn row(spec: &Spec, load: CpuWorkload, rounds: u32, counts: bool) -> Result<Vec<String>> {
    let (mut instructions, mut times, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    for cpus in SIZES {
        let longer = LONGER / cpus as u64;
        let of = |ms: u64, counted: bool| child(spec.name, load.name, cpus, ms, counted);
        if counts {
            // Counts are exact, so a quarter of the length is enough. Counted runs take fifty times
            // as long.
            let (short, long) = (of(BEGINNING, true)?, of(BEGINNING + longer / 4, true)?);
            let counted = |run: &CpuRun| {
                run.instructions.context("valgrind printed no number of instructions")
            };
            instructions.push(per_event(&short, &long, counted(&short)?, counted(&long)?));
        }
        // The fastest of all rounds is used, because disturbances only make a run longer.
        let (mut short, mut long) = (of(BEGINNING, false)?, of(BEGINNING + longer, false)?);
        for _ in 1..rounds {
            short.ns = short.ns.min(of(BEGINNING, false)?.ns);
            long.ns = long.ns.min(of(BEGINNING + longer, false)?.ns);
        }
        times.push(per_event(&short, &long, short.ns, long.ns));
        peaks.push(long.kib as f64 / 1024.0);
    }
    let mut row = vec![spec.name.to_owned(), load.name.to_owned()];
    let places = |values: &[f64], digits: usize| match values {
        [] => vec!["-".to_owned(); SIZES.len()],
        values => values.iter().map(|value| format!("{value:.digits$}")).collect(),
    };
    row.extend(places(&instructions, 0));
    let growth = instructions.last().zip(instructions.first());
    row.push(growth.map_or("-".into(), |(last, first)| format!("{:.2}", last / first)));
    row.extend(places(&times, 0));
    row.push(format!("{:.0}", 1e6 / times[SIZES.len() - 1]));
    row.extend(places(&peaks, 1));
    Ok(row)
}

fn per_event(short: &CpuRun, long: &CpuRun, before: u64, after: u64) -> f64 {
    (after as f64 - before as f64) / (long.events - short.events) as f64
}

/// Runs a scenario in a child process, because peak memory and instructions are counted per
/// process.
fn child(policy: &str, load: &str, cpus: usize, ms: u64, counted: bool) -> Result<CpuRun> {
    let itself = std::env::current_exe().context("cannot read the path of this program")?;
    let words = [policy.to_owned(), load.to_owned(), cpus.to_string(), ms.to_string()];
    let mut command = if counted {
        let mut valgrind = Command::new("valgrind");
        let options = ["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"];
        valgrind.args(options).arg(itself);
        valgrind
    } else {
        Command::new(itself)
    };
    let output =
        command.arg("cpus-run").args(words).output().context("cannot start this program again")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{policy} on {cpus} CPUs: {said}");
    let text = String::from_utf8(output.stdout).context("not a text")?;
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [events, ns, kib] = numbers[..] else {
        bail!("the child process must print three numbers, but it printed `{text}`")
    };
    let refs =
        said.lines().find_map(|line| line.split_once("I   refs:").or(line.split_once("I refs:")));
    let instructions = refs.and_then(|(_, count)| count.replace(',', "").trim().parse().ok());
    Ok(CpuRun { events, ns, kib, instructions })
}

/// Runs a scenario and returns three numbers: events, CPU time in nanoseconds, and peak memory of
/// this process in KiB.
pub(crate) fn tell(policy: &str, load: &str, cpus: usize, ms: u64) -> Result<String> {
    let load = LOADS.into_iter().find(|one| one.name == load).context("no such load")?;
    let scenario = scenario(policy, load, cpus, ms)?;
    let before = cpu_time();
    let finished = slackline_sim::run(&scenario, &mut ())?;
    Ok(format!("{} {} {}", finished.events, (cpu_time() - before).as_nanos(), peak()?))
}

/// Returns the CPU time of this process. Elapsed time would also include CPU time of other
/// processes.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::from_secs(time.tv_sec.unsigned_abs())
        + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// Returns a scenario for a policy. If the policy reserves CPU time, the shares are so small that
/// all vCPUs of a CPU are admitted.
fn scenario(policy: &str, load: CpuWorkload, cpus: usize, ms: u64) -> Result<Scenario> {
    let spec = slackline_policy::find(policy).context("no such policy")?;
    let has = |name: &str| spec.share_fields.iter().any(|field| field.name == name);
    let slice = ["slice", "budget"].into_iter().find(|name| has(name));
    let share = slice.map_or(String::new(), |slice| {
        format!("share.{policy} = {{ {slice} = \"1ms\", period = \"40ms\" }}\n")
    });
    let mut text = format!(
        "title = \"many CPUs\"\nlength = \"{ms}ms\"\npolicy = {{ name = \"{policy}\" }}\n\
         [host]\ncpus = {cpus}\n"
    );
    let sleeps =
        "kind = \"interactive\", compute = \"exponential 1ms\", sleep = \"exponential 40ms\"";
    for (name, count, work) in
        [("loops", load.loops, "kind = \"spin\""), ("sleepers", A_CPU - load.loops, sleeps)]
    {
        if count > 0 {
            text += &format!(
                "[[domain]]\nname = \"{name}\"\nvcpus = {}\nwork = {{ {work} }}\n{share}",
                count * cpus
            );
        }
    }
    Ok(Scenario::read(&text)?)
}
