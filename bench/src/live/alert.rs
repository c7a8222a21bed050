//! ALERT, the allocation error test, in a quick form [Cherkasova 2007 §5]: a CPU loop that is given
//! a share and no more, beside a load of 6 % as a driver domain has, sampled every second; under
//! Slackline and under the kernel's own ways, in turn for every share, so that a noisy minute is
//! everybody's.

use anyhow::Result;
use slackline_live::cgroup::Version;
use slackline_live::doctor::{Topic, examine};
use slackline_live::limit::Way;
use slackline_units::CpuShare;

use super::Setting;
use super::sample::{self, Errors};
use crate::report::table;

/// Percent of a CPU.
const TARGETS: [u32; 8] = [1, 2, 3, 5, 10, 20, 50, 90];
/// Up to this, Slackline's error is to be at most a third of the others'.
const SMALL: u32 = 10;
/// How often each way has its turn.
const ROUNDS: u64 = 3;

/// Measures everything, each way for so many seconds a share in all; returns Markdown.
pub(crate) fn run(seconds: u64) -> Result<String> {
    let setting = Setting::new(seconds.div_ceil(ROUNDS))?;
    let timers = examine().finding(Topic::Timers).found.clone();
    let ways = [
        Way::Slackline(setting.cpu),
        Way::Deadline,
        Way::Quota(Version::V1),
        Way::Quota(Version::V2),
    ];
    let mut rows = Vec::new();
    for percent in TARGETS {
        let measured = measure(&setting, &ways, percent)?;
        let ours = &measured[0].1;
        for (way, errors) in &measured {
            let mut row = vec![format!("{percent} %"), way.to_string()];
            row.extend([50, 90, 99].map(|part| format!("{:.3} %", errors.at(part) / 1e4)));
            row.push(match way {
                Way::Slackline(_) => String::new(),
                _ => verdict(ours.at(99), errors.at(99), percent),
            });
            eprintln!("{}", row.join(" | "));
            rows.push(row);
        }
    }
    let heads = ["target", "way", "p50", "p90", "p99", "holds at p99"];
    Ok(format!(
        "Error of a whole second, in percent of the share; {} seconds a share and way, in \
         {ROUNDS} turns.\nThis machine's timers: {timers}.\n\n{}",
        ROUNDS * setting.seconds,
        table(&heads, &rows)
    ))
}

fn verdict(ours: f64, theirs: f64, percent: u32) -> String {
    let allowed = if percent <= SMALL { theirs / 3.0 } else { theirs };
    let holds = if ours <= allowed { "yes" } else { "NO" };
    format!("{holds} ({:.2} of it)", ours / theirs)
}

/// Every way that this host has, with its errors.
fn measure<'a>(setting: &Setting, ways: &'a [Way], percent: u32) -> Result<Vec<(&'a Way, Errors)>> {
    let share = CpuShare::from_ppm(percent * 10_000);
    let _driver = setting.load(&["periodic", "--period", "10ms", "--work", "600us"])?;
    let mut parts: Vec<(&Way, Vec<Errors>)> = ways.iter().map(|way| (way, Vec::new())).collect();
    for _ in 0..ROUNDS {
        for (way, errors) in &mut parts {
            errors.extend(sample::under(setting, way, share)?);
        }
    }
    parts.retain(|(_, errors)| !errors.is_empty());
    Ok(parts.into_iter().map(|(way, errors)| (way, Errors::of(errors))).collect())
}
