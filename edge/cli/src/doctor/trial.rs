//! `slackline doctor --trial`: tries each mechanism on this host with real processes, and ranks the
//! mechanisms for three needs.
//!
//! The target is a process that never blocks, beside [`HOGS`] busy processes on one CPU. Without a
//! guarantee the target would receive half of its share. The measurement runs on another CPU, if
//! there is one.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use slackline_fence::{Fence, KeeperCommand};
use slackline_linux::sys::{
    ThreadClock, Tid, get_affinity, monotonic, online_cpus, own_tid, set_affinity,
};
use slackline_linux::thread::ThreadRef;
use slackline_live::Punctual;
use slackline_live::mechanism::{
    CpuWeight, Demand, EnforceTarget, TrialResult, kernel_mechanism, mechanism,
};
use slackline_live::meter::{Sampler, own_cpu_time};
use slackline_live::session::{NotOwned, OwnedCpus, SessionError};
use slackline_play::limit::{LimitInterface, LimitedProcess, target};
use slackline_play::play::LiveError;
use slackline_units::{CpuId, CpuSet, CpuShare, Enforcement, Reservation, Span, Weight};

use crate::busy::BusyProcess;
use crate::hold::percent;
use crate::problem::Problem;
use crate::signals::{cannot_set_up, stay_running, stop_signal};
use crate::terminal;

/// Share of a CPU that each mechanism is to deliver to the target.
const SHARE: CpuShare = CpuShare::from_ppm(200_000);
const PERIOD: Span = Span::from_ms(10);

/// Number of busy processes beside the target. Equal shares would give the target 10 %.
const HOGS: u64 = 9;

/// Weight with which the target should receive its share beside the busy processes, which have 100
/// each: `w / (w + 900)` is 20 %.
const WEIGHT: u16 = 225;

/// Last line of the output if the results were stored.
const STORED: &str = "`--enforce auto` uses these numbers until this host boots again\n";

/// Number of whole seconds for which each mechanism is measured.
const SECONDS: u64 = 2;
const SECOND: Span = Span::from_secs(1);

/// Length of the warm-up after a mechanism begins. The results leave the warm-up out.
const WARMUP: Span = Span::from_ms(300);

/// Interval at which the CPU time of the target is read, to find its longest time without CPU time.
const LOOK: Duration = Duration::from_millis(1);

/// Result of the trial of one mechanism: the measured numbers, or the reason why there are none.
type Tried = (Enforcement, Result<TrialResult, String>);

/// Tries all mechanisms, prints the results, and stores them for `--enforce auto`.
pub(super) fn run(as_json: bool) -> Result<(), Problem> {
    let punctual = Punctual::begin().map_err(|source| SessionError::NoRealTime { source });
    drop(punctual.map_err(|error| Problem::Live(LiveError::Session(error)))?);
    let (stop, _raised) = stop_signal()?;
    stay_running()?;
    stop.set_nonblocking(true).map_err(cannot_set_up)?;
    let online = online_cpus().map_err(unreadable("the list of CPUs"))?;
    let cpu = online.iter().last().expect("a host has a CPU");
    let each = target(SHARE, PERIOD).expect("the share is valid");
    let _others = claim_cpus(online, cpu)?;
    if !as_json {
        terminal::say(&format!(
            "trial on CPU {}: {} in every {PERIOD} beside {HOGS} busy processes, {SECONDS} s for \
             each mechanism\n",
            cpu.index(),
            each.slice(),
        ))?;
    }
    let length = SECOND * (SECONDS + 1) * 4;
    let hogs: Vec<BusyProcess> =
        (0..HOGS).map(|_| BusyProcess::start(length)).collect::<Result<_, _>>()?;
    for hog in &hogs {
        pin(hog.pid(), CpuSet::one(cpu))?;
    }
    let crowd = as_siblings(&hogs);
    let place = MeterPlace::away_from(cpu, online);
    let mut tried: Vec<Tried> = Vec::new();
    for enforcement in Enforcement::ALL {
        if is_signalled(&stop) {
            return Err(Problem::Interrupted);
        }
        let target = BusyProcess::start(length)?;
        pin(target.pid(), CpuSet::one(cpu))?;
        tried.push((enforcement, measure(enforcement, &target, (each, cpu))));
    }
    drop(place);
    drop(crowd);
    drop(hogs);
    let measured: Vec<TrialResult> =
        tried.iter().filter_map(|(_, result)| result.as_ref().ok()).copied().collect();
    let file = Path::new(TrialResult::FILE);
    let is_stored = TrialResult::can_replace(&measured, &TrialResult::read_all(file));
    if is_stored {
        TrialResult::write_all(&measured, file).map_err(unreadable(TrialResult::FILE))?;
    } else {
        terminal::tell(
            "note:  the results of an earlier trial stay in force, because this trial lacks a \
             mechanism that the earlier one measured\n",
        );
    }
    if as_json {
        terminal::print(&to_json(&tried))
    } else {
        terminal::say(&(to_text(&tried) + if is_stored { STORED } else { "" }))
    }
}

/// Takes ownership of all CPUs except the CPU of the trial. The session of the dispatcher takes
/// that CPU later.
///
/// # Errors
/// If another Slackline process schedules a CPU. The trial has a deadline thread, which can run on
/// every CPU and before all vCPUs of that process.
fn claim_cpus(online: CpuSet, cpu: CpuId) -> Result<OwnedCpus, Problem> {
    let others: Vec<CpuId> = online.iter().filter(|one| *one != cpu).collect();
    let claimed =
        OwnedCpus::take(&others).and_then(|others| OwnedCpus::take(&[cpu]).map(|_free| others));
    claimed.map_err(|error| match error {
        NotOwned::Taken { .. } => Problem::HostCannot {
            message: format!("cannot try mechanisms: {error}"),
            hint: Some(
                "stop that process first, and run the trial before `slackline serve`".into(),
            ),
        },
        error => Problem::Live(LiveError::Session(error.into())),
    })
}

fn unreadable(file: &str) -> impl Fn(std::io::Error) -> Problem {
    move |source| Problem::Unreadable { file: file.into(), source }
}

fn is_signalled(mut stop: &std::os::unix::net::UnixStream) -> bool {
    matches!(std::io::Read::read(&mut stop, &mut [0]), Ok(1..))
}

fn pin(pid: i32, cpus: CpuSet) -> Result<(), Problem> {
    let Some(tid) = Tid::new(pid) else { return Ok(()) };
    set_affinity(tid, &cpus).map_err(unreadable("the affinity of a busy process"))
}

/// Gives each busy process a cgroup of its own with the weight 100. Otherwise the kernel's
/// autogroups can count all busy processes as one sibling of the target. If the host has no cgroup
/// weights, `None`: then no mechanism of the trial uses cgroups.
fn as_siblings(hogs: &[BusyProcess]) -> Option<Fence> {
    let mut fence = Fence::start(KeeperCommand::ourselves(["keep"])).ok()?;
    let by = kernel_mechanism(Enforcement::Weight)?;
    let usual = Demand::Weight(CpuWeight::Of(Weight::new(100)?));
    for hog in hogs {
        let tid = Tid::new(hog.pid())?;
        let root = ThreadRef::open(tid, tid).ok()?;
        by.apply(&EnforceTarget::Tree(root), usual, &mut fence).ok()?;
    }
    Some(fence)
}

/// Affinity of this thread before the trial. During the trial the thread runs on any CPU except the
/// CPU of the target, so that the measurement takes no CPU time from the target. Dropping this
/// value restores the affinity.
struct MeterPlace(Option<CpuSet>);

impl MeterPlace {
    fn away_from(cpu: CpuId, online: CpuSet) -> MeterPlace {
        let others: CpuSet = online.iter().filter(|one| *one != cpu).collect();
        let before = get_affinity(own_tid()).ok().filter(|_| !others.is_empty());
        // If the thread cannot be moved, it measures from its present CPUs.
        let moved = before.filter(|_| set_affinity(own_tid(), &others).is_ok());
        MeterPlace(moved)
    }
}

impl Drop for MeterPlace {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = set_affinity(own_tid(), before);
        }
    }
}

/// Enforcement of the trial. Dropping this value restores the target.
#[expect(clippy::large_enum_variant, reason = "there is only one value")]
enum Trial {
    Time(LimitedProcess),
    Weight(Fence),
}

impl Trial {
    fn begin(
        enforcement: Enforcement,
        pid: i32,
        (each, cpu): (Reservation, CpuId),
    ) -> Result<Trial, String> {
        let keeper = KeeperCommand::ourselves(["keep"]);
        let interface = match enforcement {
            Enforcement::Dispatcher => LimitInterface::Slackline(cpu),
            Enforcement::Deadline => LimitInterface::Deadline,
            Enforcement::Quota => LimitInterface::Quota(None),
            Enforcement::Weight => {
                let tid = Tid::new(pid).ok_or("the busy process has ended")?;
                let root = ThreadRef::open(tid, tid).map_err(|error| error.to_string())?;
                let mut fence = Fence::start(keeper).map_err(|error| error.to_string())?;
                let weight = CpuWeight::Of(Weight::new(WEIGHT).expect("the weight is not zero"));
                let by = kernel_mechanism(enforcement).expect("the kernel has weights");
                by.apply(&EnforceTarget::Tree(root), Demand::Weight(weight), &mut fence)
                    .map_err(|error| error.to_string())?;
                return Ok(Trial::Weight(fence));
            }
        };
        let limited = LimitedProcess::apply(&interface, pid, each, keeper);
        limited.map(Trial::Time).map_err(|error| error.to_string())
    }

    /// Checks that the mechanism still limits the target.
    fn check(&mut self) -> Result<(), String> {
        match self {
            Trial::Time(limited) => limited.check().map_err(|error| error.to_string()),
            Trial::Weight(_) => Ok(()),
        }
    }

    fn end(self) -> Result<(), String> {
        match self {
            Trial::Time(limited) => limited.end().map_err(|error| error.to_string()),
            Trial::Weight(mut fence) => fence.release_all().map_err(|errors| {
                errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
            }),
        }
    }
}

/// Measures one mechanism, which enforces `what.0` for the target on the CPU `what.1`.
fn measure(
    enforcement: Enforcement,
    target: &BusyProcess,
    what: (Reservation, CpuId),
) -> Result<TrialResult, String> {
    let tid = Tid::new(target.pid()).ok_or("the busy process has ended")?;
    let mut trial = Trial::begin(enforcement, target.pid(), what)?;
    std::thread::sleep(Duration::from_nanos(WARMUP.ns()));
    let numbers = watch(tid, &mut trial);
    trial.end()?;
    let (error_ppm, gap, cost_ppm) = numbers?;
    Ok(TrialResult { enforcement, error_ppm, gap, cost_ppm })
}

/// Measures the target for whole seconds. Returns the largest error of a second, the longest time
/// without CPU time, and the CPU time of this program. The CPU time of the measurement itself is
/// not included.
fn watch(tid: Tid, trial: &mut Trial) -> Result<(u64, Span, u64), String> {
    let says = |error: &dyn std::error::Error| error.to_string();
    let _urgent = Punctual::begin().map_err(|error| says(&error))?;
    let clock = ThreadClock::open(tid).map_err(|error| says(&error))?;
    let mut sampler = Sampler::of_thread(tid).map_err(|error| says(&error))?;
    let cost = || own_cpu_time().map_err(|error| says(&error));
    let (began, spent) = (monotonic(), cost()?);
    let (mut error, mut gap) = (0_u64, Span::ZERO);
    let (mut last, mut used) = (began, clock.read().map_err(|error| says(&error))?);
    for second in 1..=SECONDS {
        while monotonic() < began + SECOND * second {
            std::thread::sleep(LOOK);
            let now = clock.read().map_err(|error| says(&error))?;
            if now > used {
                gap = gap.max(monotonic().since(last));
                (last, used) = (monotonic(), now);
            }
        }
        let sample = sampler.sample().map_err(|error| says(&error))?;
        error = error.max(sample.share_ppm().abs_diff(SHARE.ppm().into()));
        trial.check()?;
    }
    let gap = gap.max(monotonic().since(last));
    let spent = cost()?.left_after(spent);
    Ok((error, gap, spent.ns() * 1_000_000 / monotonic().since(began).ns().max(1)))
}

/// Needs for which the mechanisms are ranked, with the heading of each.
const NEEDS: [(&str, &str); 3] = [
    ("fine", "fine and exact shares"),
    ("many", "many VMs"),
    ("survives", "enforcement after Slackline has died"),
];

/// Returns the mechanisms that serve a need, best first. Mechanisms that guarantee CPU time come
/// before weight and quota, which do not. For exact shares only mechanisms that guarantee CPU time
/// are ranked. After the death of Slackline, the keeper undoes every mechanism but `deadline`.
fn ranked(need: &str, tried: &[Tried]) -> Vec<Enforcement> {
    let of = |enforcement: Enforcement| mechanism(enforcement).abilities();
    let there = tried.iter().filter_map(|(_, result)| result.as_ref().ok());
    let mut there: Vec<&TrialResult> = match need {
        "fine" => there.filter(|one| of(one.enforcement).guarantees).collect(),
        // With `serve --on-death keep`, `deadline` stays in force after the death of Slackline.
        "survives" => there.filter(|one| one.enforcement == Enforcement::Deadline).collect(),
        _ => there.collect(),
    };
    there.sort_by_key(|one| {
        let without = !of(one.enforcement).guarantees;
        let (first, second) = match need {
            "many" => (one.cost_ppm, one.error_ppm),
            _ => (one.error_ppm, one.cost_ppm),
        };
        (without, first, second, one.enforcement)
    });
    there.into_iter().map(|one| one.enforcement).collect()
}

fn to_text(tried: &[Tried]) -> String {
    let mut text =
        "\nmechanism   worst second  longest gap   CPU cost  guarantees  limits\n".to_owned();
    let mut missing = String::new();
    for (enforcement, result) in tried {
        match result {
            Ok(one) => {
                let can = mechanism(*enforcement).abilities();
                let yes = |is: bool| if is { "yes" } else { "no" };
                let name = enforcement.name();
                let gap = format!("{} us", one.gap.ns() / 1_000);
                let (error, cost) = (percent(one.error_ppm), percent(one.cost_ppm));
                let (guarantees, limits) = (yes(can.guarantees), yes(can.limits));
                text += &format!(
                    "{name:<10} {error:>13} {gap:>12} {cost:>10}  {guarantees:<10}  {limits}\n"
                );
            }
            Err(why) => missing += &format!("{enforcement}: not on this host: {why}\n"),
        }
    }
    text += &missing;
    text += "\n";
    for (need, title) in NEEDS {
        let names: Vec<&str> = ranked(need, tried).into_iter().map(Enforcement::name).collect();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        text += &format!("best for {title}: {names}\n");
    }
    text
}

fn to_json(tried: &[Tried]) -> String {
    let one = |(enforcement, result): &Tried| {
        let can = mechanism(*enforcement).abilities();
        let measured = result.as_ref().ok();
        json!({
            "mechanism": enforcement.name(),
            "error_ppm": measured.map(|one| one.error_ppm),
            "gap_ns": measured.map(|one| one.gap.ns()),
            "cost_ppm": measured.map(|one| one.cost_ppm),
            "why_not": result.as_ref().err(),
            "guarantees": can.guarantees,
            "limits": can.limits,
            "survives": can.survives,
        })
    };
    let best: serde_json::Map<String, Value> = NEEDS
        .iter()
        .map(|(need, _)| {
            let names = ranked(need, tried).into_iter().map(Enforcement::name);
            ((*need).to_owned(), names.collect::<Vec<_>>().into())
        })
        .collect();
    let whole = json!({
        "format": "slackline-trial-1",
        "share_ppm": SHARE.ppm(),
        "period_ns": PERIOD.ns(),
        "seconds": SECONDS,
        "mechanisms": tried.iter().map(one).collect::<Vec<Value>>(),
        "best": best,
    });
    format!("{whole:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(enforcement: Enforcement, error_ppm: u64, cost_ppm: u64) -> Tried {
        (enforcement, Ok(TrialResult { enforcement, error_ppm, gap: PERIOD, cost_ppm }))
    }

    #[test]
    fn enforcement_mechanisms_with_guarantee_rank_before_weight_and_quota() {
        let (dispatcher, deadline) = (Enforcement::Dispatcher, Enforcement::Deadline);
        let (quota, weight) = (Enforcement::Quota, Enforcement::Weight);
        let all = [
            tried(dispatcher, 100, 40_000),
            tried(deadline, 300, 0),
            tried(quota, 50, 0),
            tried(weight, 20, 0),
        ];
        assert_eq!(ranked("fine", &all), [dispatcher, deadline]);
        assert_eq!(ranked("many", &all), [deadline, dispatcher, weight, quota]);
        assert_eq!(ranked("survives", &all), [deadline]);
        let without = [(deadline, Err("no".to_owned())), tried(dispatcher, 100, 40_000)];
        assert_eq!(ranked("fine", &without), [dispatcher]);
        assert!(to_text(&without).contains("deadline: not on this host: no\n"));
    }
}
