//! ALERT, the allocation error test, in a short form [Cherkasova 2007 §5]. A process that always
//! computes is limited to a share, and its CPU time is sampled every second. Another process uses 6
//! % of the CPU, like a driver domain. For every share, Slackline and the kernel's own limits are
//! measured one after another. So a disturbance that lasts a minute affects all of them.

use anyhow::Result;
use slackline_linux::cgroup::Version;
use slackline_live::doctor::{Topic, examine};
use slackline_play::limit::LimitInterface;
use slackline_units::CpuShare;

use super::sample::{self, Errors};
use super::{LiveSetting, stolen};
use crate::report::table;

/// Shares to which the process is limited, in percent of a CPU.
const TARGETS: [u32; 8] = [1, 2, 3, 5, 10, 20, 50, 90];
/// Largest share, in percent, at which Slackline's error must be at most a third of the error of
/// each other interface.
const SMALL: u32 = 10;
/// Number of times that each interface is measured at each share.
const ROUNDS: u64 = 3;

/// Measures every share with every interface. Each of these measurements lasts `seconds` seconds in
/// total. Returns Markdown.
pub(crate) fn run(seconds: u64) -> Result<String> {
    let setting = LiveSetting::new(seconds.div_ceil(ROUNDS))?;
    let timers = examine().finding(Topic::Timers).found.clone();
    let ways = [
        LimitInterface::Slackline(setting.cpu),
        LimitInterface::Deadline,
        LimitInterface::Quota(Some(Version::V1)),
        LimitInterface::Quota(Some(Version::V2)),
    ];
    let mut rows = Vec::new();
    let mut measured = Vec::new();
    for percent in TARGETS {
        for of in measure(&setting, &ways, percent)? {
            let row = of.row(format!("{percent} %"), of.way.to_string());
            eprintln!("{}", row.join(" | "));
            rows.push(row);
            measured.push(of);
        }
    }
    let heads = ["target", "limiter", "p50", "p90", "worst", "CPU time stolen by a hypervisor"];
    Ok(format!(
        "Error of the CPU time received in each second, in percent of the share. Each limiter was \
         measured for {} seconds at each share, in {ROUNDS} rounds.\nTimers of the test machine: \
         {timers}.\n\n{}\n{}",
        ROUNDS * setting.seconds,
        table(&heads, &rows),
        together(&ways, &measured)
    ))
}

/// Returns the table of results for groups of shares. Shares are grouped because percentiles need a
/// hundred seconds of samples. Targets apply only to seconds in which no hypervisor took CPU time.
/// A hypervisor takes CPU time at random moments, so chance decides which interface loses CPU time
/// to it.
fn together(ways: &[LimitInterface], measured: &[AlertResults<'_>]) -> String {
    let mut rows = Vec::new();
    for (name, is_small, at_most_a) in [("up to 10 %", true, 3.0), ("above 10 %", false, 1.0)] {
        let of_way = |way: &LimitInterface| {
            let those = measured
                .iter()
                .filter(|of| of.way == way && (of.percent <= SMALL) == is_small)
                .map(|of| of.errors.clone());
            Errors::of(those.collect())
        };
        let ours = of_way(&ways[0]).undisturbed();
        for (place, way) in ways.iter().enumerate() {
            let (all, undisturbed) = (of_way(way), of_way(way).undisturbed());
            if undisturbed.is_empty() || ours.is_empty() {
                continue;
            }
            let percent = |errors: &Errors, part| format!("{:.3} %", errors.at(part) / 1e4);
            let holds = ours.at(99) <= undisturbed.at(99) / at_most_a;
            let beside = format!(
                "{} (ratio {:.2})",
                if holds { "yes" } else { "NO" },
                ours.at(99) / undisturbed.at(99)
            );
            rows.push(vec![
                name.to_owned(),
                way.to_string(),
                format!("{}: {}", all.len(), percent(&all, 99)),
                undisturbed.len().to_string(),
                percent(&undisturbed, 50),
                percent(&undisturbed, 90),
                percent(&undisturbed, 99),
                if place == 0 { String::new() } else { beside },
            ]);
        }
    }
    let heads = [
        "targets",
        "limiter",
        "all seconds: number and p99",
        "number of seconds without stolen time",
        "p50 without stolen time",
        "p90 without stolen time",
        "p99 without stolen time",
        "p99 of Slackline / p99 of the limiter; goal: at most 1/3 for targets up to 10 %, at most \
         1 for larger targets",
    ];
    table(&heads, &rows)
}

/// Results of one interface for one share.
struct AlertResults<'a> {
    percent: u32,
    way: &'a LimitInterface,
    errors: Errors,
    /// CPU time that a hypervisor took from the CPU during the measurement, and the total time,
    /// both in kernel ticks. `None` if the two times are unknown.
    stolen: Option<(f64, f64)>,
}

impl AlertResults<'_> {
    fn row(&self, target: String, way: String) -> Vec<String> {
        let mut row = vec![target, way];
        row.extend([50, 90, 100].map(|part| format!("{:.3} %", self.errors.at(part) / 1e4)));
        let stolen = self.stolen.filter(|&(_, all)| all > 0.0);
        row.push(stolen.map_or("-".into(), |(taken, all)| format!("{:.2} %", taken / all * 100.0)));
        row
    }
}

/// Measures one share with every interface that exists on this host.
fn measure<'a>(
    setting: &LiveSetting,
    ways: &'a [LimitInterface],
    percent: u32,
) -> Result<Vec<AlertResults<'a>>> {
    let share = CpuShare::from_ppm(percent * 10_000);
    let _driver = setting.load(&["periodic", "--period", "10ms", "--work", "600us"])?;
    let nothing = |way| AlertResults {
        percent,
        way,
        errors: Errors::default(),
        stolen: stolen(setting.cpu).map(|_| (0.0, 0.0)),
    };
    let mut all: Vec<AlertResults<'_>> = ways.iter().map(nothing).collect();
    for _ in 0..ROUNDS {
        for of in &mut all {
            let before = stolen(setting.cpu);
            let Some(errors) = sample::under(setting, of.way, share)? else { continue };
            of.errors = Errors::of(vec![std::mem::take(&mut of.errors), errors]);
            let spent = before.zip(stolen(setting.cpu));
            let spent = spent.map(|(before, after)| (after.0 - before.0, after.1 - before.1));
            of.stolen = of.stolen.zip(spent).map(|(sum, one)| (sum.0 + one.0, sum.1 + one.1));
        }
    }
    all.retain(|of| !of.errors.is_empty());
    Ok(all)
}
