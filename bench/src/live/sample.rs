//! Whole-second errors of a limited process, sampled from outside.

use anyhow::{Context, Result};
use slackline_live::Punctual;
use slackline_play::limit::{LimitError, Limited, Sample, Sampler, Way, target};
use slackline_units::{CpuShare, Span};

use super::{Setting, stolen};

/// Errors in millionths of the share, smallest first, each with whether a hypervisor took any of
/// the CPU in that second.
#[derive(Clone, Default)]
pub(crate) struct Errors(Vec<(f64, bool)>);

impl Errors {
    /// Those of several measurements together.
    pub(crate) fn of(parts: Vec<Errors>) -> Errors {
        let mut all: Vec<(f64, bool)> = parts.into_iter().flat_map(|part| part.0).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        Errors(all)
    }

    /// Those of the seconds in which nothing was taken.
    pub(crate) fn undisturbed(&self) -> Errors {
        Errors(self.0.iter().copied().filter(|&(_, is_disturbed)| !is_disturbed).collect())
    }

    /// Of how many seconds.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// So many percent of the seconds were no further off; there must be one.
    pub(crate) fn at(&self, percent: usize) -> f64 {
        self.0[(self.0.len() * percent).div_ceil(100) - 1].0
    }
}

/// A spinning process under a limit, beside whatever else is on the CPU; none where this host does
/// not have the way.
pub(crate) fn under(setting: &Setting, way: &Way, share: CpuShare) -> Result<Option<Errors>> {
    let load = setting.spin()?;
    let target = target(share, way.usual_period(share))?;
    let limited = Limited::apply(way, load.tid.raw(), target, setting.keeper());
    if let Err(LimitError::Group { .. }) = limited {
        return Ok(None);
    }
    let mut limited = limited.with_context(|| format!("{way}"))?;
    let _punctual = Punctual::begin()?;
    let mut sampler = Sampler::start(load.tid.raw())?;
    let mut errors = Vec::new();
    // One more, because the first second has the beginning in it.
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
