//! Shares that the live host delivers, compared with the kernel's own limits.
//!
//! All measurements run the built program as a user would. An ordinary process that always computes
//! competes on the managed CPU. The benchmark needs root, a second CPU and an otherwise idle test
//! machine.

pub(crate) mod alert;
mod busy;
mod gaps;
pub(crate) mod mechanisms;
mod sample;
pub(crate) mod scale;
mod stalls;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use slackline_fence::KeeperCommand;
use slackline_linux::cgroup::Version;
use slackline_linux::sys::{Tid, online_cpus, set_affinity};
use slackline_play::limit::LimitInterface;
use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, Span};

use crate::report::{self, Part, Row, median};

pub(crate) use busy::play as play_busy;

/// Number of runs for each row of the table. A row shows the median and the worst run. The worst
/// run must meet the target.
const ROUNDS: usize = 5;

/// Parts of the benchmark. Each part can be measured alone.
const PARTS: [(&str, Part<LiveSetting>); 7] = [
    ("three", three_spinners),
    ("busy", busy::rows),
    ("percent", one_percent),
    ("fine", fine_period),
    ("change", changes),
    ("mixed", mixed),
    ("gaps", gaps::rows),
];

/// Interfaces of the kernel with which Slackline is compared, with their names in tables. Each
/// interface limits a process to 1 % of a CPU.
const PEERS: [(&str, LimitInterface); 3] = [
    ("SCHED_DEADLINE, 0.1 ms of 10 ms", LimitInterface::Deadline),
    ("a CFS quota (version 1), 1 ms of 100 ms", LimitInterface::Quota(Some(Version::V1))),
    ("a CFS quota (version 2), 1 ms of 100 ms", LimitInterface::Quota(Some(Version::V2))),
];

/// Parameters of every measurement.
pub(crate) struct LiveSetting {
    slackline: PathBuf,
    folder: PathBuf,
    cpu: CpuId,
    seconds: u64,
}

/// Measures the parts in `parts`, or all parts if the list is empty. Returns Markdown with a
/// section for each part. Sections of parts that were not measured are taken from `before`, an
/// earlier result.
pub(crate) fn run(seconds: u64, parts: &[String], before: &str) -> Result<String> {
    report::sections(&PARTS, &LiveSetting::new(seconds)?, parts, before)
}

impl LiveSetting {
    fn new(seconds: u64) -> Result<LiveSetting> {
        let here = std::env::current_exe()?;
        let folder = here.parent().context("a program has a folder")?;
        let slackline = folder.join("slackline");
        ensure!(slackline.exists(), "cannot find `slackline`: run `cargo build --release` first");
        let online: Vec<CpuId> = online_cpus()?.iter().collect();
        ensure!(
            online.len() >= 2,
            "the bench needs two CPUs: one for Slackline, and one for other programs"
        );
        let cpu = online[online.len() - 1];
        let scratch = std::env::temp_dir().join(format!("slackline-bench-{}", std::process::id()));
        std::fs::create_dir_all(&scratch)?;
        Ok(LiveSetting { slackline, folder: scratch, cpu, seconds })
    }

    /// Returns the command that starts the keeper of the built program. The keeper restores the
    /// processes that this benchmark limits.
    fn keeper(&self) -> KeeperCommand {
        KeeperCommand {
            program: self.slackline.clone(),
            arguments: vec!["keep".into()],
            state_directory: KeeperCommand::STATE_DIRECTORY.into(),
            keep_for: None,
        }
    }

    /// Starts a load process that computes all the time on the managed CPU.
    fn spin(&self) -> Result<LoadProcess> {
        self.load(&["spin"])
    }

    /// Starts a load process with the arguments `kind` on the managed CPU.
    fn load(&self, kind: &[&str]) -> Result<LoadProcess> {
        let child = Command::new(&self.slackline)
            .arg("load")
            .args(kind)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let tid = Tid::new(i32::try_from(child.id())?).context("a process has an id")?;
        let load = LoadProcess { child, tid };
        set_affinity(tid, &CpuSet::one(self.cpu))?;
        Ok(load)
    }

    /// Runs a scenario live and returns its JSON summary.
    fn live(&self, scenario: &str) -> Result<Value> {
        let file = self.folder.join("scenario.toml");
        std::fs::write(&file, scenario)?;
        self.run(&["run", "--json"], &file)
    }

    /// Runs a scenario live. Returns its JSON summary, and the share of each domain in each second
    /// in millionths of a CPU.
    fn live_by_second(&self, scenario: &str) -> Result<(Value, Vec<f64>)> {
        let (file, csv) = (self.folder.join("scenario.toml"), self.folder.join("seconds.csv"));
        std::fs::write(&file, scenario)?;
        let name = csv.to_str().context("a folder with a readable name")?;
        let run = self.run(&["run", "--json", "--csv", name], &file)?;
        let share = |line: &str| line.split(',').nth(2)?.parse().ok();
        let text = std::fs::read_to_string(&csv)?;
        Ok((run, text.lines().skip(1).filter_map(share).collect()))
    }

    /// Runs a scenario live and returns its JSON summary. Adds the field [`MISSING`] to the
    /// summary: the CPU time that was missing from slices, and the stalls that explain it.
    /// `promises` has the reservation of each vCPU.
    fn judged(&self, scenario: &str, promises: &[Reservation]) -> Result<Value> {
        let (file, trace) = (self.folder.join("scenario.toml"), self.folder.join("trace"));
        std::fs::write(&file, scenario)?;
        let save = trace.to_str().context("the folder has an ordinary name")?;
        let mut run = self.run(&["run", "--json", "--save", save], &file)?;
        run[MISSING] = stalls::explain(&trace, promises)?.into();
        Ok(run)
    }

    /// Returns true if the scenario is admitted on this host.
    fn is_admitted(&self, scenario: &str) -> Result<bool> {
        let file = self.folder.join("scenario.toml");
        std::fs::write(&file, scenario)?;
        let cpu = self.cpu.index().to_string();
        let run =
            Command::new(&self.slackline).arg("run").arg(&file).args(["--cpus", &cpu]).output()?;
        Ok(run.status.success())
    }

    fn run(&self, arguments: &[&str], file: &Path) -> Result<Value> {
        let cpu = self.cpu.index().to_string();
        let mut command = Command::new(&self.slackline);
        command.args(arguments).arg(file);
        if arguments[0] != "sim" {
            command.args(["--cpus", &cpu]);
        }
        let before = stolen(self.cpu);
        let output = command.output()?;
        let after = stolen(self.cpu);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.is_empty() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        let mut run = serde_json::from_str::<Value>(&text)?["runs"][0].take();
        if let Some(((stolen, all), (stolen_after, all_after))) = before.zip(after) {
            run[STOLEN] = ((stolen_after - stolen) / (all_after - all)).into();
        }
        Ok(run)
    }
}

impl Drop for LiveSetting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A load process. It is ended when this value is dropped.
pub(crate) struct LoadProcess {
    child: Child,
    pub(crate) tid: Tid,
}

impl Drop for LoadProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a scenario of VMs that always compute. Each VM is given as name, slice and period, both
/// in us.
fn spinners(seconds: u64, reserve: &str, machines: &[(&str, u64, u64)]) -> String {
    let mut text = format!(
        "title = \"bench\"\nlength = \"{}s\"\nwarmup = \"1s\"\n\
         policy = {{ name = \"edf\", reserve = \"{reserve}\" }}\n",
        seconds + 1
    );
    for (name, slice, period) in machines {
        text += &format!(
            "[[domain]]\nname = \"{name}\"\nwork = {{ kind = \"spin\" }}\n\
             share.edf = {{ slice = \"{slice}us\", period = \"{period}us\", exact = true }}\n"
        );
    }
    text
}

/// Runs a scenario [`ROUNDS`] times while another process always computes. `promises` has the
/// reservation of each vCPU of the scenario.
fn rounds(setting: &LiveSetting, scenario: &str, promises: &[Reservation]) -> Result<Vec<Value>> {
    let run = |_| {
        let _hog = setting.spin()?;
        setting.judged(scenario, promises)
    };
    (0..ROUNDS).map(run).collect()
}

/// Returns the reservation of a slice in a period, both in microseconds.
fn promise((slice, period): (u64, u64)) -> Result<Reservation> {
    Ok(Reservation::new(Span::from_us(slice), Span::from_us(period))?)
}

fn promises(machines: &[(&str, u64, u64)]) -> Result<Vec<Reservation>> {
    machines.iter().map(|&(_, slice, period)| promise((slice, period))).collect()
}

/// Returns the median and the largest value of a number over several runs.
fn spread(runs: &[Value], of: impl Fn(&Value) -> f64) -> (f64, f64) {
    let values: Vec<f64> = runs.iter().map(of).collect();
    (median(&values), values.iter().copied().fold(0.0, f64::max))
}

/// Returns the sum of the field `name` over all vCPUs of a run.
fn sum(run: &Value, name: &str) -> f64 {
    run["vcpus"].as_array().into_iter().flatten().filter_map(|vcpu| vcpu[name].as_f64()).sum()
}

/// Returns the largest value of the field `name` over all vCPUs of a run.
fn largest(run: &Value, name: &str) -> f64 {
    let vcpus = run["vcpus"].as_array().into_iter().flatten();
    vcpus.filter_map(|vcpu| vcpu[name].as_f64()).fold(0.0, f64::max)
}

/// Returns the run with the most deadline misses.
fn worst_round(runs: &[Value]) -> &Value {
    let misses = |run: &&Value| sum(run, "misses");
    runs.iter().max_by(|a, b| misses(a).total_cmp(&misses(b))).expect("there is at least one round")
}

fn percent(ppm: f64) -> String {
    format!("{:.3} %", ppm / 1e4)
}

fn us(ns: f64) -> String {
    format!("{:.1} us", ns / 1e3)
}

/// Describes the disturbances of a run: the lateness of timers, and the CPU time that a hypervisor
/// below this host took.
fn lateness(run: &Value) -> String {
    let part = |name: &str| us(run[format!("timer_lateness_{name}_ns")].as_f64().unwrap_or(0.0));
    let (p50, p99, worst) = (part("p50"), part("p99"), part("worst"));
    let stolen = run[STOLEN]
        .as_f64()
        .map_or(String::new(), |part| format!(", {:.1} % of the CPU stolen", part * 100.0));
    let missing = run[MISSING].as_str().map_or(String::new(), |text| format!("; {text}"));
    format!("timers late by p50 {p50}, p99 {p99}, worst {worst}{stolen}{missing}")
}

/// Field that is added to the summary of a run: the part of the managed CPU that a hypervisor took.
const STOLEN: &str = "stolen";
/// Field that is added to the summary of a run: the CPU time that was missing from slices, and the
/// stalls that explain it.
const MISSING: &str = "missing";

/// Returns the time that a hypervisor took from a CPU and the total time of that CPU, both in
/// kernel ticks. `None` if the kernel does not report them.
fn stolen(cpu: CpuId) -> Option<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let name = format!("cpu{} ", cpu.index());
    let line = text.lines().find_map(|line| line.strip_prefix(&name))?;
    let ticks: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    // The last two fields, the time of guests, are also contained in the first two fields.
    Some((*ticks.get(7)?, ticks.iter().take(8).sum()))
}

fn three_spinners(setting: &LiveSetting) -> Result<Vec<Row>> {
    let machines = [("a", 2000, 10_000), ("b", 3000, 10_000), ("c", 4000, 10_000)];
    let vms = "VMs with 20, 30 and 40 % of a CPU every 10 ms, beside a CPU hog";
    let scenario = spinners(setting.seconds, "0.05cpu", &machines);
    let runs = rounds(setting, &scenario, &promises(&machines)?)?;
    let (misses, most) = spread(&runs, |run| sum(run, "misses"));
    let worst = worst_round(&runs);
    let (deadlines, miss) = (sum(worst, "deadlines"), largest(worst, "miss_time_worst_ns"));
    let (error, worst_error) = spread(&runs, |run| largest(run, "second_error_p99_ppm"));
    let length = (setting.seconds + 1) as f64 * 1e9;
    let used = |run: &Value| run["cpus"][0]["overhead_ns"].as_f64().unwrap_or(0.0);
    let (overhead, most_overhead) = spread(&runs, |run| used(run) / length / 3.0 * 1e6);
    Ok(vec![
        Row {
            what: format!("{vms}: missed deadlines, median (worst) of {ROUNDS} runs"),
            got: format!(
                "{misses} (worst: {most} of {deadlines} deadlines, late by at most {}; {})",
                us(miss),
                lateness(worst)
            ),
            promised: "none",
            holds: Some(most == 0.0),
        },
        Row {
            what: format!(
                "{vms}: p99 of the error of the CPU time received in a second, largest of the \
                 three VMs, median (worst) of {ROUNDS} runs"
            ),
            got: format!("{} ({})", percent(error), percent(worst_error)),
            promised: "0.5 % of the share",
            holds: Some(worst_error <= 5_000.0),
        },
        Row {
            what: format!(
                "{vms}: CPU time of the dispatcher per VM, median (worst) of {ROUNDS} runs"
            ),
            got: format!("{} ({})", percent(overhead), percent(most_overhead)),
            promised: "0.7 % of a CPU",
            holds: Some(most_overhead <= 7_000.0),
        },
    ])
}

fn one_percent(setting: &LiveSetting) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let machines = [("a", 100, 10_000)];
    let usual = spinners(setting.seconds, "0.05cpu", &machines);
    // If timers are late, a policy can keep either the share or the slices. The policy
    // forgives at most a quarter of a slice.
    let ways = [
        (
            "with overrun `repay`, which keeps the share",
            "overrun = \"repay\"",
            "5 % of the share",
            50_000.0,
        ),
        (
            "with overrun `forgive`, which keeps slices whole",
            "overrun = \"forgive\"",
            "30 % of the share",
            300_000.0,
        ),
    ];
    for (kept, overrun, promised, most) in ways {
        let scenario = usual.replace("exact = true", &format!("exact = true, {overrun}"));
        let runs = rounds(setting, &scenario, &promises(&machines)?)?;
        let (error, worst) = spread(&runs, |run| largest(run, "second_error_p99_ppm"));
        rows.push(Row {
            what: format!(
                "1 % of a CPU as 0.1 ms every 10 ms beside a CPU hog, {kept}: p99 of the error of \
                 the CPU time received in a second, median (worst) of {ROUNDS} runs"
            ),
            got: format!(
                "{} ({}); {}",
                percent(error),
                percent(worst),
                lateness(worst_round(&runs))
            ),
            promised,
            holds: Some(worst <= most),
        });
    }
    let _hog = setting.spin()?;
    for (name, way) in PEERS {
        let what = format!(
            "1 % of a CPU by {name}: p99 of the error of the CPU time received in a second, median \
             (worst) of {ROUNDS} runs"
        );
        let mut errors = Vec::new();
        let sample = || sample::under(setting, &way, CpuShare::from_ppm(10_000));
        let got = loop {
            match sample() {
                Ok(Some(seconds)) => errors.push(seconds.at(99)),
                Ok(None) => break "this host does not have this interface".into(),
                Err(error) => break format!("not possible on this host: {error:#}"),
            }
            if errors.len() == ROUNDS {
                let worst = errors.iter().copied().fold(0.0, f64::max);
                break format!("{} ({})", percent(median(&errors)), percent(worst));
            }
        };
        rows.push(Row { what, got, promised: "(peer)", holds: None });
    }
    Ok(rows)
}

fn fine_period(setting: &LiveSetting) -> Result<Vec<Row>> {
    // If this slice is not admitted because of the dispatch overhead, the largest admitted slice is
    // used.
    let admitted = |slice: &&u64| {
        let machines = [("a", **slice, 1000)];
        setting.is_admitted(&spinners(1, "0.05cpu", &machines)).unwrap_or(false)
    };
    let most = (400..=900).rev().step_by(10).find(|slice| admitted(&slice));
    let most = most.context("admission refuses even a slice of 400us every 1ms on this host")?;
    // Each run measures the dispatch overhead again. So the slice is a little smaller than the
    // largest admitted one.
    let slice = if most == 900 { most } else { most - 20 };
    let machines = [("a", slice, 1000)];
    let scenario = spinners(setting.seconds, "0.05cpu", &machines);
    let runs = rounds(setting, &scenario, &promises(&machines)?)?;
    let rate = |run: &Value| sum(run, "misses") / sum(run, "deadlines").max(1.0) * 1e6;
    let (missed, most) = spread(&runs, rate);
    Ok(vec![Row {
        what: format!(
            "{:.2} ms every 1 ms beside a CPU hog: missed deadlines, median (worst) of {ROUNDS} \
             runs",
            slice as f64 / 1e3
        ),
        got: format!("{} ({}; {})", percent(missed), percent(most), lateness(worst_round(&runs))),
        promised: "0.5 %",
        holds: Some(most <= 5_000.0),
    }])
}

fn changes(setting: &LiveSetting) -> Result<Vec<Row>> {
    let machines = [("a", 2000, 10_000), ("b", 3000, 10_000)];
    let mut text = spinners(setting.seconds, "0.05cpu", &machines);
    // A change is made every 37 ms, so that changes fall at different points of a period.
    for step in 1..setting.seconds * 1000 / 37 {
        let slice = if step % 2 == 0 { 2 } else { 4 };
        text += &format!(
            "[[change]]\nat = \"{}ms\"\ndomain = \"a\"\n\
             share.edf = {{ slice = \"{slice}ms\", period = \"10ms\", exact = true }}\n",
            1000 + step * 37
        );
    }
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        let _hog = setting.spin()?;
        runs.push(setting.live(&text)?);
    }
    let part = |name: &str| {
        spread(&runs, |run| run[format!("change_delay_{name}_ns")].as_f64().unwrap_or(f64::NAN))
    };
    let (p50, p99, worst) = (part("p50"), part("p99"), part("worst"));
    let shown = |(median, most): (f64, f64)| format!("{} ({})", us(median), us(most));
    Ok(vec![Row {
        what: format!(
            "time from when a [[change]] of a share is due until it takes effect, median (worst) \
             of {ROUNDS} runs"
        ),
        got: format!("p50 {}, p99 {}, worst {}", shown(p50), shown(p99), shown(worst)),
        promised: "5 ms at the 99th percentile",
        holds: Some(p99.1 <= 5e6),
    }])
}

fn mixed(setting: &LiveSetting) -> Result<Vec<Row>> {
    let file = Path::new("scenarios/mixed.toml");
    let sim = setting.run(&["sim", "--json"], file)?;
    let share = |run: &Value, index: usize| run["vcpus"][index]["delivered_ppm"].as_f64();
    let count = sim["vcpus"].as_array().map_or(0, Vec::len);
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        runs.push(setting.run(&["run", "--json"], file)?);
    }
    let (apart, most) = spread(&runs, |live| {
        (0..count)
            .filter_map(|index| Some((share(&sim, index)? - share(live, index)?).abs()))
            .fold(0.0_f64, f64::max)
    });
    Ok(vec![Row {
        what: format!(
            "scenarios/mixed.toml: largest difference between the simulated and the live share of \
             a vCPU, median (worst) of {ROUNDS} runs"
        ),
        got: format!("{:.3} ({:.3}) percentage points", apart / 1e4, most / 1e4),
        promised: "1 point",
        holds: Some(most <= 10_000.0),
    }])
}
