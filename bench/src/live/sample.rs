//! Whole-second errors of a limited process, sampled from outside.

use anyhow::Result;
use slackline_live::limit::{Punctual, Sample, Sampler, Way};
use slackline_units::{CpuShare, Span};

use super::{Setting, peers};

/// Errors in millionths of the share.
pub(crate) struct Errors {
    pub(crate) p99: f64,
    pub(crate) worst: f64,
}

/// A spinning process under a limit, beside whatever else is on the CPU.
pub(crate) fn under(setting: &Setting, way: &Way, share: CpuShare) -> Result<Errors> {
    let load = setting.spin()?;
    let mut limited = peers::apply(setting, way, load.tid.raw(), share)?;
    let _punctual = Punctual::begin()?;
    let mut sampler = Sampler::start(load.tid.raw())?;
    let mut errors = Vec::new();
    // One more, because the first second has the beginning in it.
    for second in 0..=setting.seconds {
        let sample = sampler.after(Span::from_secs(1))?;
        limited.check()?;
        if second > 0 {
            errors.push(error(&sample, share));
        }
    }
    drop(limited);
    drop(load);
    errors.sort_by(f64::total_cmp);
    let place = (errors.len() * 99).div_ceil(100) - 1;
    Ok(Errors { p99: errors[place], worst: errors[errors.len() - 1] })
}

pub(super) fn error(sample: &Sample, share: CpuShare) -> f64 {
    let elapsed = (sample.to - sample.from).ns() as f64;
    let due = elapsed * f64::from(share.ppm()) / 1e6;
    (sample.used.ns() as f64 - due).abs() / due * 1e6
}
