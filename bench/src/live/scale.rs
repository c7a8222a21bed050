//! The live host at scale. Two things are measured: many busy processes on one CPU, and dispatcher
//! passes on a host with many CPUs and faked events.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, Result};
use slackline_host::policy::{RawValue, Topology, Values, find};
use slackline_live::fed::FedHost;
use slackline_live::watch::ThreadEventKind;
use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

use super::LiveSetting;
use crate::report::{median, table};

/// Numbers of processes that share 80 % of the managed CPU.
const SIZES: [u64; 4] = [10, 100, 400, 1000];
/// Periods of the reservations in milliseconds. A number of processes is left out for a period if
/// its slices would be too short, or if the dispatch overhead does not fit on the CPU.
const PERIODS: [u64; 2] = [100, 25];
/// Minimum length of a slice, in multiples of the duration of a dispatcher pass. With a shorter
/// slice, most of the CPU time would be overhead.
const MIN_SLICE_IN_PASSES: f64 = 2.5;

/// Sizes of the fake hosts, in CPUs.
const CPUS: [usize; 4] = [2, 16, 64, 128];
/// Number of vCPUs per CPU of a fake host.
const VCPUS: u32 = 8;
/// Number of rounds. The result is the median of the rounds.
const ROUNDS: usize = 9;
/// Number of dispatcher passes per round.
const SWITCHES: usize = 2_000;

/// Measures many processes on one CPU, and fake hosts with many CPUs. Returns Markdown.
pub(crate) fn run(seconds: u64) -> Result<String> {
    let setting = LiveSetting::new(seconds)?;
    let mut text = processes(&setting)?;
    text += "\n";
    text += &looks()?;
    Ok(text)
}

/// Results of one run.
struct ScaleRun {
    slices: f64,
    overhead_ns: f64,
    misses: f64,
    deadlines: f64,
    /// Error of each vCPU in each second, in millionths of the vCPU's reservation, in ascending
    /// order.
    errors_ppm: Vec<f64>,
}

impl ScaleRun {
    fn error_p99(&self) -> f64 {
        self.errors_ppm.get(self.errors_ppm.len() * 99 / 100).copied().unwrap_or(f64::MAX)
    }

    fn worst_error(&self) -> f64 {
        self.errors_ppm.last().copied().unwrap_or(f64::MAX)
    }

    fn per_slice(&self) -> f64 {
        self.overhead_ns / self.slices.max(1.0)
    }
}

fn processes(setting: &LiveSetting) -> Result<String> {
    let (mut rows, mut first) = (Vec::new(), HashMap::new());
    for period in PERIODS {
        for count in SIZES {
            let slice = period * 1_000_000 * 8 / 10 / count;
            let what = format!("{count} VMs, each with {} every {period} ms", Span::from_ns(slice));
            let look = first.get(&SIZES[0]).copied().unwrap_or(0.0);
            if (slice as f64) < MIN_SLICE_IN_PASSES * look {
                rows.push(vec![
                    what,
                    "left out: the slice is too short for a dispatcher pass".into(),
                ]);
                continue;
            }
            let run = match spin(setting, count, slice, period) {
                Ok(run) => run,
                Err(error) => {
                    rows.push(vec![what, format!("{error:#}").replace('\n', " ")]);
                    continue;
                }
            };
            let base = *first.entry(SIZES[0]).or_insert(run.per_slice());
            let times = run.per_slice() / base;
            let missed = 100.0 * run.misses / run.deadlines.max(1.0);
            let row = vec![
                what,
                format!("{:.1} us", run.per_slice() / 1e3),
                format!("{times:.2}"),
                format!("{} of {} deadlines = {missed:.3} %", run.misses, run.deadlines),
                format!("{:.3} % ({:.3} %)", run.error_p99() / 1e4, run.worst_error() / 1e4),
                verdict(times <= 1.5 && missed <= 0.5 && run.error_p99() <= 10_000.0),
            ];
            eprintln!("{}", row.join(" | "));
            rows.push(row);
        }
    }
    let heads = [
        "processes and their slices, which reserve 80 % of the CPU in total",
        "CPU time of the dispatcher per slice",
        "multiple of the first row (target: at most 1.5)",
        "deadlines missed (target: at most 0.5 %)",
        "error of the CPU time that a process received in a second, p99 (worst); target: p99 at \
         most 1 %",
        "holds",
    ];
    Ok(table(&heads, &rows))
}

fn verdict(holds: bool) -> String {
    if holds { "yes" } else { "NO" }.into()
}

fn spin(setting: &LiveSetting, count: u64, slice_ns: u64, period_ms: u64) -> Result<ScaleRun> {
    let mut scenario = format!(
        "title = \"bench\"\nlength = \"{}s\"\nwarmup = \"1s\"\n\
         policy = {{ name = \"edf\", reserve = \"0.05cpu\" }}\n",
        setting.seconds + 1
    );
    for index in 0..count {
        scenario += &format!(
            "[[domain]]\nname = \"s{index}\"\nwork = {{ kind = \"spin\" }}\n\
             share.edf = {{ slice = \"{slice_ns}ns\", period = \"{period_ms}ms\", exact = true }}\n"
        );
    }
    let (run, shares) = setting.live_by_second(&scenario)?;
    let vcpus = run["vcpus"].as_array().context("a run has vCPUs")?;
    let sum = |name: &str| vcpus.iter().map(|vcpu| vcpu[name].as_f64().unwrap_or(0.0)).sum::<f64>();
    let promised_ppm = slice_ns as f64 / period_ms as f64;
    let mut errors_ppm: Vec<f64> =
        shares.iter().map(|share| 1e6 * (share / promised_ppm - 1.0).abs()).collect();
    errors_ppm.sort_unstable_by(f64::total_cmp);
    let seconds = setting.seconds as f64 + 1.0;
    Ok(ScaleRun {
        slices: seconds * 1e3 / period_ms as f64 * count as f64,
        overhead_ns: run["cpus"][0]["overhead_ns"].as_f64().context("a run has CPUs")?,
        misses: sum("misses"),
        deadlines: sum("deadlines"),
        errors_ppm,
    })
}

/// Measures the time of dispatcher passes on fake hosts of different sizes.
fn looks() -> Result<String> {
    let (mut rows, mut base) = (Vec::new(), None);
    for cpus in CPUS {
        let mut costs = Vec::new();
        let mut orders = 0.0;
        for _ in 0..ROUNDS {
            let (cost, told) = FakeDrive::new(cpus)?.measure()?;
            costs.push(cost);
            orders = told;
        }
        let cost = median(&costs);
        let times = cost / *base.get_or_insert(cost);
        rows.push(vec![
            cpus.to_string(),
            format!("{cost:.0} ns"),
            format!("{orders:.2}"),
            format!("{times:.2}"),
            verdict(times <= 1.5),
        ]);
    }
    let heads = [
        "CPUs of a fake host, each with 8 vCPUs",
        "time of a dispatcher pass that switches vCPUs",
        "operations requested from the kernel per pass",
        "multiple of the time with 2 CPUs (target: at most 1.5)",
        "holds",
    ];
    Ok(table(&heads, &rows))
}

/// A fake host. Its vCPUs always compute, and the vCPUs of each CPU run one after another.
struct FakeDrive {
    host: FedHost,
    cpus: usize,
    now: Time,
}

const SLICE: Span = Span::from_ms(1);

impl FakeDrive {
    fn new(cpus: usize) -> Result<FakeDrive> {
        let spec = find("edf").context("there is such a policy")?;
        let values = Values::defaults(spec.policy_fields)?;
        let given = [
            ("slice", RawValue::Text("1ms")),
            ("period", RawValue::Text("10ms")),
            ("exact", RawValue::Flag(true)),
        ];
        let share = Values::read(spec.share_fields, given.into_iter())?;
        let mut host = FedHost::new(spec, &values, &Topology::flat(cpus))?;
        let now = Time::START + Span::from_us(1);
        for slot in 0..VCPUS * u32::try_from(cpus)? {
            let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
            let joined = host.join(vcpu, &share, true);
            joined.map_err(|error| anyhow::anyhow!("{error}"))?;
            host.note(CpuId::new(slot as usize % cpus), now, vcpu, ThreadEventKind::Woke);
        }
        host.at(now);
        for cpu in (0..cpus).map(CpuId::new) {
            host.reschedule(cpu)?;
        }
        Ok(FakeDrive { host, cpus, now })
    }

    /// Returns the mean duration of a dispatcher pass, and the mean number of orders to the kernel
    /// per pass.
    fn measure(mut self) -> Result<(f64, f64)> {
        let mut spent = 0.0;
        let mut looks = 0_u32;
        let before = self.host.orders();
        let _ = self.host.told();
        // All vCPUs have equal deadlines, so on each CPU they run in the order of their ids.
        for step in 0..SWITCHES / self.cpus {
            for cpu in (0..self.cpus).map(CpuId::new) {
                let turn = u32::try_from(step)? % VCPUS;
                let slot = turn * u32::try_from(self.cpus)? + u32::try_from(cpu.index())?;
                let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
                let end = self.now + SLICE;
                self.host.note(cpu, self.now, vcpu, ThreadEventKind::SwitchedIn);
                self.host.note(cpu, end, vcpu, ThreadEventKind::SwitchedOut { ready: true });
                self.host.count(vcpu, SLICE);
                self.host.at(end);
                let begun = Instant::now();
                self.host.reschedule(cpu)?;
                spent += begun.elapsed().as_nanos() as f64;
                looks += 1;
            }
            // A period has the length of ten slices. After eight slices, all vCPUs of a CPU have
            // exhausted their budgets, so the time of the last two slices is skipped.
            self.now += SLICE;
            if u32::try_from(step)? % VCPUS == VCPUS - 1 {
                self.now += SLICE * 2;
            }
            if step % 64 == 0 {
                let _ = (self.host.told(), self.host.records());
            }
        }
        let told = (self.host.orders() - before) as f64;
        Ok((spent / f64::from(looks), told / f64::from(looks)))
    }
}
