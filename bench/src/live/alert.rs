//! ALERT, the allocation error test, in a quick form [Cherkasova 2007 §5]: a CPU loop that is given
//! a share and no more, beside a load of 6 % as a driver domain has, sampled every second; under
//! Slackline and under the kernel's own ways, one after the other for every share.

use anyhow::{Context, Result};
use slackline_live::cgroup::Version;
use slackline_live::limit::{LimitError, Limited, Punctual, Sampler, Way, target};
use slackline_units::{CpuShare, Span};

use super::Setting;

/// Percent of a CPU.
const TARGETS: [u32; 8] = [1, 2, 3, 5, 10, 20, 50, 90];
/// Up to this, Slackline's error is to be at most a third of the others'.
const SMALL: u32 = 10;

/// Errors of one way at one target, in millionths of the target.
struct Errors {
    p50: f64,
    p99: f64,
    worst: f64,
}

/// Measures everything; returns Markdown.
pub(crate) fn run(seconds: u64) -> Result<String> {
    let setting = Setting::new(seconds)?;
    let ways = [
        Way::Slackline(setting.cpu),
        Way::Deadline,
        Way::Quota(Version::V1),
        Way::Quota(Version::V2),
    ];
    let mut text =
        String::from("| target | way | p50 | p99 | worst | holds |\n|---|---|---|---|---|---|\n");
    for percent in TARGETS {
        let mut ours = None;
        for way in &ways {
            let Some(errors) = measure(&setting, way, percent)? else { continue };
            let Errors { p50, p99, worst } = errors;
            let own = *ours.get_or_insert(p99);
            let holds = match (way, percent <= SMALL) {
                (Way::Slackline(_), _) => "",
                (_, true) if own * 3.0 <= p99 => "yes",
                (_, false) if own <= p99 => "yes",
                _ => "NO",
            };
            let show = |ppm: f64| format!("{:.3} %", ppm / 1e4);
            text += &format!(
                "| {percent} % | {way} | {} | {} | {} | {holds} |\n",
                show(p50),
                show(p99),
                show(worst)
            );
            eprintln!("{percent} % {way}: p99 {}", show(p99));
        }
    }
    Ok(text)
}

/// None where this host does not have the way.
fn measure(setting: &Setting, way: &Way, percent: u32) -> Result<Option<Errors>> {
    let share = CpuShare::from_ppm(percent * 10_000);
    let _driver = setting.load(&["periodic", "--period", "10ms", "--work", "600us"])?;
    let hog = setting.spin()?;
    let target = target(share, way.usual_period(share))?;
    let limited = Limited::apply(way, hog.tid.raw(), target, setting.keeper());
    if let Err(LimitError::Group { .. }) = limited {
        return Ok(None);
    }
    let mut limited = limited.with_context(|| format!("{way}"))?;
    let _punctual = Punctual::begin()?;
    let mut sampler = Sampler::start(hog.tid.raw())?;
    let mut errors = Vec::new();
    // One more, because the first second has the beginning in it.
    for second in 0..=setting.seconds {
        let sample = sampler.after(Span::from_secs(1))?;
        limited.check()?;
        if second > 0 {
            errors.push(super::sample::error(&sample, share));
        }
    }
    errors.sort_by(f64::total_cmp);
    let place = |percent: usize| (errors.len() * percent).div_ceil(100) - 1;
    let at = |percent| errors[place(percent)];
    Ok(Some(Errors { p50: at(50), p99: at(99), worst: at(100) }))
}
