//! Errors of a limited process: the deviation of its CPU time from its share in each second.

use anyhow::{Context, Result};
use slackline_live::Punctual;
use slackline_live::mechanism::MechanismError;
use slackline_live::meter::{Sample, Sampler};
use slackline_play::limit::{LimitError, LimitInterface, LimitedProcess, target};
use slackline_units::{CpuShare, Span};

use super::{LiveSetting, stolen};

/// Errors of all seconds in millionths of the share, in ascending order. The flag of an error is
/// true if a hypervisor took CPU time in that second.
#[derive(Clone, Default)]
pub(crate) struct Errors(Vec<(f64, bool)>);

impl Errors {
    /// Merges the errors of several measurements into one sorted list.
    pub(crate) fn of(parts: Vec<Errors>) -> Errors {
        let mut all: Vec<(f64, bool)> = parts.into_iter().flat_map(|part| part.0).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        Errors(all)
    }

    /// Returns the errors of seconds in which no hypervisor took CPU time.
    pub(crate) fn undisturbed(&self) -> Errors {
        Errors(self.0.iter().copied().filter(|&(_, is_disturbed)| !is_disturbed).collect())
    }

    /// Returns the number of measured seconds.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a percentile of the errors. The list of errors must not be empty.
    pub(crate) fn at(&self, percent: usize) -> f64 {
        self.0[(self.0.len() * percent).div_ceil(100) - 1].0
    }
}

/// Measures the errors of a process that always computes under the limit `share`. All other load on
/// the CPU runs at the same time. `None` if this host does not have the interface `way`.
pub(crate) fn under(
    setting: &LiveSetting,
    way: &LimitInterface,
    share: CpuShare,
) -> Result<Option<Errors>> {
    let load = setting.spin()?;
    let target = target(share, way.usual_period(share))?;
    let limited = LimitedProcess::apply(way, load.tid.raw(), target, setting.keeper());
    if let Err(LimitError::Mechanism(MechanismError::Group { .. })) = limited {
        return Ok(None);
    }
    let mut limited = limited.with_context(|| format!("{way}"))?;
    let _punctual = Punctual::begin()?;
    let mut sampler = Sampler::start(load.tid.raw())?;
    let mut errors = Vec::new();
    // The first second contains the start of the process, so it is not counted.
    for second in 0..=setting.seconds {
        let before = stolen(setting.cpu);
        let sample = sampler.after(Span::from_secs(1))?;
        limited.check()?;
        if second > 0 {
            let is_disturbed =
                stolen(setting.cpu).zip(before).is_some_and(|(now, then)| now.0 > then.0);
            errors.push((error(&sample, share), is_disturbed));
        }
    }
    drop(limited);
    drop(load);
    Ok(Some(Errors::of(vec![Errors(errors)])))
}

fn error(sample: &Sample, share: CpuShare) -> f64 {
    let elapsed = (sample.to - sample.from).ns() as f64;
    let due = elapsed * f64::from(share.ppm()) / 1e6;
    (sample.used.ns() as f64 - due).abs() / due * 1e6
}
