//! Ten scenarios with each mechanism: the dispatcher, `SCHED_DEADLINE`, a CFS quota and a weight.
//! The target process always computes. Other processes compute on its CPU. Each process has its own
//! cgroup, so the kernel's autogroups have no effect.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use slackline_fence::Fence;
use slackline_linux::sys::{Scheduling, SchedulingOf, Tid, set_scheduling};
use slackline_linux::thread::ThreadRef;
use slackline_live::Punctual;
use slackline_live::mechanism::{
    CpuWeight, Demand, EnforceTarget, KernelEnforcement, TrialResult, better, kernel_mechanism,
    mechanism,
};
use slackline_live::meter::{Sampler, own_cpu_time};
use slackline_play::limit::{LimitInterface, LimitedProcess, target};
use slackline_units::{CpuShare, Enforcement, Reservation, Span, Weight};

use super::{LiveSetting, LoadProcess};
use crate::report::{median, spread, table};

/// Load on the CPU of the target.
#[derive(Clone, Copy, Debug)]
struct OtherLoad {
    /// Number of ordinary processes that always compute.
    hogs: u32,
    /// True if a process with `SCHED_FIFO` and priority 50 is busy too.
    has_fifo: bool,
}

const ONE: OtherLoad = OtherLoad { hogs: 1, has_fifo: false };
const MANY: OtherLoad = OtherLoad { hogs: 20, has_fifo: false };
const FIFO: OtherLoad = OtherLoad { hogs: 20, has_fifo: true };

/// Scenarios: the share of the target in percent, its period, and the other load.
const SCENARIOS: [(u32, Span, OtherLoad); 10] = [
    (1, Span::from_ms(10), ONE),
    (5, Span::from_ms(10), ONE),
    (20, Span::from_ms(10), ONE),
    (40, Span::from_ms(10), ONE),
    (85, Span::from_ms(10), ONE),
    (1, Span::from_ms(100), ONE),
    (20, Span::from_ms(100), ONE),
    (20, Span::from_ms(2), ONE),
    (20, Span::from_ms(10), MANY),
    (20, Span::from_ms(10), FIFO),
];

/// Part of the target's share, in percent. A second in which the target receives less than this
/// part counts as missed.
const MISSED_BELOW: u64 = 99;

/// Weight of each other process.
const USUAL: u32 = 100;

/// Measures all scenarios with all mechanisms, each for `seconds` whole seconds. Returns Markdown.
pub(crate) fn run(seconds: u64) -> Result<String> {
    let setting = LiveSetting::new(seconds)?;
    let mut rows = Vec::new();
    for (percent, period, beside) in SCENARIOS {
        let share = CpuShare::from_ppm(percent * 10_000);
        let each = target(share, period)?;
        for enforcement in Enforcement::ALL {
            let measured = measure(&setting, enforcement, (each, beside))?;
            let fifo = if beside.has_fifo { " and a SCHED_FIFO process (priority 50)" } else { "" };
            let mut row = vec![
                format!("{percent} % every {period}"),
                format!("{}{fifo}", beside.hogs),
                enforcement.to_string(),
            ];
            row.extend(measured.map_or_else(cannot, |measured| measured.cells(seconds)));
            eprintln!("{}", row.join(" | "));
            rows.push(row);
        }
    }
    let heads = [
        "share",
        "other busy processes",
        "mechanism",
        "delivered",
        "missed seconds",
        "worst second",
        "CPU cost",
        "not possible, because",
    ];
    Ok(format!(
        "Each row is measured for {seconds} whole seconds, after one second of warm-up. A second\n\
         is missed if the process received less than {MISSED_BELOW} % of its share in it. `worst\n\
         second` is the largest error of a second, in percent of a CPU. `CPU cost` is the CPU\n\
         time of all threads of Slackline, also in percent of a CPU.\n\n{}",
        table(&heads, &rows)
    ))
}

fn cannot(why: String) -> Vec<String> {
    let mut cells = vec!["-".to_owned(); 4];
    cells.push(why);
    cells
}

/// Shares of a CPU at which `auto` is compared with the best mechanism, in percent.
const AUTO_SHARES: [u32; 5] = [1, 5, 20, 40, 90];

/// Target: maximum amount by which the error of `auto` can exceed the error of the best mechanism,
/// in percentage points of a CPU. SPECIFICATION.md has this target under MECH-12.
const AUTO_BEYOND: f64 = 0.02;

/// Compares `auto` with each mechanism that guarantees CPU time, while one other process computes.
/// Measures each share `rounds` times. In each round, the mechanisms are measured one after
/// another, each for `seconds` whole seconds. Returns Markdown.
pub(crate) fn compare_auto(seconds: u64, rounds: u32) -> Result<String> {
    let setting = LiveSetting::new(seconds)?;
    let (by, why) = better(&TrialResult::read_all(Path::new(TrialResult::FILE)));
    let guaranteed = |one: &Enforcement| mechanism(*one).abilities().guarantees;
    let mechanisms: Vec<Enforcement> = Enforcement::ALL.into_iter().filter(guaranteed).collect();
    let mut rows = Vec::new();
    for percent in AUTO_SHARES {
        let each = target(CpuShare::from_ppm(percent * 10_000), Span::from_ms(10))?;
        let mut errors: Vec<Result<Vec<f64>, String>> = vec![Ok(Vec::new()); mechanisms.len()];
        for round in 1..=rounds {
            for (&one, errors) in mechanisms.iter().zip(&mut errors) {
                let Ok(all) = errors else { continue };
                match measure(&setting, one, (each, ONE))? {
                    Ok(measured) => all.push(measured.worst as f64 / 1e4),
                    Err(why) => *errors = Err(why),
                }
            }
            eprintln!("{percent} %: round {round} of {rounds}");
        }
        let medians = errors.iter().map(|all| all.as_ref().ok().map(|all| median(all)));
        let medians: Vec<Option<f64>> = medians.collect();
        let best = medians.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        // The dispatcher is used if the better mechanism does not support the reservation.
        let is_possible = |at: &usize| medians[*at].is_some();
        let auto = mechanisms.iter().position(|&one| one == by).filter(is_possible).unwrap_or(0);
        for (at, (one, errors)) in mechanisms.iter().zip(&errors).enumerate() {
            let mut row = vec![format!("{percent} %"), one.to_string()];
            row.push(errors.as_ref().map_or_else(String::clone, |all| spread(all, 3)));
            let beyond = medians[at].filter(|_| at == auto).map(|median| median - best);
            row.push(beyond.map_or_else(String::new, |beyond| {
                let is_held = if beyond <= AUTO_BEYOND { "held" } else { "missed" };
                format!(
                    "error {beyond:.3} percentage points above that of the best mechanism; target \
                     of at most {AUTO_BEYOND:.2} {is_held}"
                )
            }));
            rows.push(row);
        }
    }
    Ok(format!(
        "Largest error of a second in each of {rounds} interleaved runs of {seconds} seconds, in\n\
         percent of a CPU, beside a busy process and with a period of 10 ms. `auto` uses the\n\
         mechanism that was better in the last trial: {by} ({why}). So the errors of `auto` are\n\
         the errors of {by}. They may exceed the errors of the best mechanism by at most\n\
         {AUTO_BEYOND:.2} percentage points.\n\n{}",
        table(&["share", "mechanism", "error (range)", "auto"], &rows)
    ))
}

/// Measurements of one scenario with one mechanism. Shares are in millionths of a CPU.
struct MeasuredRun {
    /// Mean of the shares that the target received in the seconds of the run.
    delivered: u64,
    /// Number of seconds in which the target received less than [`MISSED_BELOW`] percent of its
    /// share.
    missed: u64,
    /// Largest difference between the share received in a second and the requested share, in
    /// millionths of a CPU.
    worst: u64,
    /// CPU time of all threads of Slackline, in millionths of a CPU.
    cost: u64,
}

impl MeasuredRun {
    fn cells(&self, seconds: u64) -> Vec<String> {
        let percent = |ppm: u64| format!("{:.2} %", ppm as f64 / 1e4);
        vec![
            percent(self.delivered),
            format!("{} of {seconds}", self.missed),
            percent(self.worst),
            percent(self.cost),
            String::new(),
        ]
    }
}

/// Measures one scenario with one mechanism. Returns the measurements, or the reason why the
/// mechanism does not support the scenario.
fn measure(
    setting: &LiveSetting,
    enforcement: Enforcement,
    (each, beside): (Reservation, OtherLoad),
) -> Result<Result<MeasuredRun, String>> {
    let load = setting.spin()?;
    let crowd = Crowd::start(setting, beside)?;
    let mut limited = match Limit::begin(setting, enforcement, &load, (each, beside))? {
        Ok(limited) => limited,
        Err(why) => return Ok(Err(why)),
    };
    let _punctual = Punctual::begin()?;
    let mut sampler = Sampler::start(load.tid.raw())?;
    sampler.after(Span::from_secs(1))?;
    let asked = u64::from(each.share().ppm());
    let (mut worst, mut missed, mut sum, spent) = (0, 0, 0, own_cpu_time()?);
    for _ in 0..setting.seconds {
        let ppm = sampler.after(Span::from_secs(1))?.share_ppm();
        limited.check()?;
        worst = worst.max(ppm.abs_diff(asked));
        missed += u64::from(ppm * 100 < asked * MISSED_BELOW);
        sum += ppm;
    }
    let spent = own_cpu_time()?.left_after(spent);
    let cost = spent.ns() * 1_000_000 / Span::from_secs(setting.seconds).ns();
    drop(limited);
    drop(crowd);
    Ok(Ok(MeasuredRun { delivered: sum / setting.seconds, missed, worst, cost }))
}

/// Other processes on the CPU of the target.
struct Crowd {
    /// Busy processes. They are ended when this value is dropped.
    _hogs: Vec<LoadProcess>,
    /// Fence that gives each busy process its own cgroup.
    _fence: Option<Fence>,
    fifo: Option<Child>,
}

impl Crowd {
    fn start(setting: &LiveSetting, beside: OtherLoad) -> Result<Crowd> {
        let hogs = (0..beside.hogs).map(|_| setting.spin()).collect::<Result<Vec<_>>>()?;
        let mut fence = Fence::start(setting.keeper())?;
        let usual = weight(USUAL);
        let is_apart = hogs.iter().all(|hog| by_weight(hog.tid, usual, &mut fence).is_ok());
        let mut crowd = Crowd { _hogs: hogs, _fence: is_apart.then_some(fence), fifo: None };
        if beside.has_fifo {
            let mut command = Command::new("taskset");
            command.args(["-c", &setting.cpu.index().to_string()]).arg(&setting.slackline);
            let child = command.args(["load", "spin"]).stdout(Stdio::null()).spawn()?;
            let tid = Tid::new(i32::try_from(child.id())?).context("a process has an id")?;
            crowd.fifo = Some(child);
            let class = Scheduling::Fifo { priority: 50 };
            set_scheduling(tid, &SchedulingOf { class, reset_on_fork: true })?;
        }
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        if let Some(child) = &mut self.fifo {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Enforcement of the target. Dropping it restores the target.
enum Limit {
    Time(Box<LimitedProcess>),
    Weight(#[allow(dead_code)] Box<Fence>),
}

impl Limit {
    fn begin(
        setting: &LiveSetting,
        enforcement: Enforcement,
        load: &LoadProcess,
        (each, beside): (Reservation, OtherLoad),
    ) -> Result<Result<Limit, String>> {
        let interface = match enforcement {
            Enforcement::Dispatcher => LimitInterface::Slackline(setting.cpu),
            Enforcement::Deadline => LimitInterface::Deadline,
            Enforcement::Quota => LimitInterface::Quota(None),
            Enforcement::Weight => {
                let ppm = each.share().ppm();
                let own = beside.hogs * USUAL * (ppm / 1_000) / (1_000 - ppm / 1_000);
                let mut fence = Fence::start(setting.keeper())?;
                let begun = by_weight(load.tid, weight(own.max(1)), &mut fence);
                return Ok(begun.map(|_| Limit::Weight(Box::new(fence))));
            }
        };
        let limited = LimitedProcess::apply(&interface, load.tid.raw(), each, setting.keeper());
        Ok(limited.map(|limited| Limit::Time(Box::new(limited))).map_err(|error| error.to_string()))
    }

    /// Checks that the limit is still in force.
    fn check(&mut self) -> Result<()> {
        match self {
            Limit::Time(limited) => Ok(limited.check()?),
            Limit::Weight(_) => Ok(()),
        }
    }
}

fn weight(weight: u32) -> Demand {
    let weight = u16::try_from(weight).ok().and_then(Weight::new).unwrap_or(Weight::ONE);
    Demand::Weight(CpuWeight::Of(weight))
}

fn by_weight(tid: Tid, demand: Demand, fence: &mut Fence) -> Result<KernelEnforcement, String> {
    let root = ThreadRef::open(tid, tid).map_err(|error| error.to_string())?;
    let by = kernel_mechanism(Enforcement::Weight).expect("the kernel has weights");
    by.apply(&EnforceTarget::Tree(root), demand, fence).map_err(|error| error.to_string())
}
