//! CPU time of the daemon's recorder: daemons with and without `--no-recorder` run in turn, while
//! programs cause context switches on the managed CPU.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use slackline_units::Span;

use super::daemon::{Daemon, Processes, ServiceSetting, allowed, cpu_time, wanted};
use crate::report::{Row, median, spread};

/// Number of measurements with the recorder, and without it.
const ROUNDS: usize = 5;

/// Length of a measurement, and the time before it.
const LENGTH: Duration = Duration::from_secs(10);
const WARM_UP: Duration = Duration::from_secs(3);

/// Number of programs that cause context switches. Each wakes up every 165 us, if it has the CPU at
/// those times. A wake causes two switches, so there are at most 24,200 switches a second.
const WAKING: usize = 2;

/// Number of context switches per second for which the target holds.
const SWITCHES: f64 = 20_000.0;

/// Measurements of one daemon.
struct DaemonUse {
    /// CPU time of the daemon's processes, in percent of a CPU.
    used: f64,
    /// Context switches per second of the programs that cause them.
    switches: f64,
    /// Number of intervals in which the recorder lost events.
    gaps: usize,
}

/// Measures daemons with and without a recorder.
pub(super) fn rows(setting: &ServiceSetting) -> Result<Vec<Row>> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with.push(measure(setting, true)?);
        without.push(measure(setting, false)?);
    }
    let used = |all: &[DaemonUse]| all.iter().map(|one| one.used).collect::<Vec<f64>>();
    let (of_with, of_without) = (used(&with), used(&without));
    let cost = median(&of_with) - median(&of_without);
    let switches: Vec<f64> = with.iter().map(|one| one.switches).collect();
    let gaps: usize = with.iter().map(|one| one.gaps).sum();
    Ok(vec![
        Row {
            what: format!(
                "CPU time of the recorder: that of the daemon with a recorder, less that of the \
                 daemon without one, at {:.0} switches a second",
                median(&switches)
            ),
            got: format!(
                "{cost:.2} % of a CPU (with: {} %, without: {} %)",
                spread(&of_with, 2),
                spread(&of_without, 2)
            ),
            promised: "at most 1 % of a CPU at 20,000 switches a second",
            holds: Some(cost <= 1.0 && median(&switches) >= SWITCHES),
        },
        Row {
            what: "intervals in which the recorder lost events".into(),
            got: gaps.to_string(),
            promised: "0",
            holds: Some(gaps == 0),
        },
    ])
}

fn measure(setting: &ServiceSetting, is_recorded: bool) -> Result<DaemonUse> {
    let options = if is_recorded { Vec::new() } else { vec!["--no-recorder".to_owned()] };
    let daemon = setting.daemon(&[setting.last_cpu()], &options)?;
    let mut client = daemon.client()?;
    let vm = Processes::that_spin(1)?;
    let terms =
        wanted(vm.pids().next().context("a process")?, Span::from_ms(10), Span::from_ms(100));
    allowed(|| client.reserve("vm", &terms))?;
    let (cpu, program) =
        (setting.last_cpu().to_string(), setting.slackline().display().to_string());
    let words = ["-c", &cpu, &program, "load", "clock", "--period", "165us", "--compute", "5us"];
    let waking = Processes::of(WAKING, Path::new("taskset"), &words)?;
    sleep(WARM_UP);
    let count = || waking.pids().map(switches).sum::<Result<u64>>();
    let (began, used, counted) = (Instant::now(), all_cpu_time(&daemon)?, count()?);
    sleep(LENGTH);
    let (used, counted) = (all_cpu_time(&daemon)? - used, count()? - counted);
    let seconds = began.elapsed().as_secs_f64();
    let gaps = if is_recorded { allowed(|| client.why("vm"))?.gaps.len() } else { 0 };
    let switches = 2.0 * counted as f64 / seconds;
    Ok(DaemonUse { used: used.as_secs_f64() / seconds * 100.0, switches, gaps })
}

fn all_cpu_time(daemon: &Daemon<'_>) -> Result<Duration> {
    daemon.processes()?.into_iter().map(cpu_time).sum()
}

/// Returns the number of times that a process gave up its CPU to wait.
fn switches(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).context("the status has no count")
}
