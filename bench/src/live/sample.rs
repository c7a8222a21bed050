//! Whole-second errors of a thread, sampled from outside.

use std::time::Duration;

use anyhow::Result;
use slackline_live::sys::{TaskClock, Tid, monotonic};
use slackline_units::Span;

use super::Setting;

/// The share that is asked for, in millionths of a CPU.
const SHARE_PPM: f64 = 10_000.0;

/// Errors in millionths of the share.
pub(crate) struct Errors {
    pub(crate) p99: f64,
    pub(crate) worst: f64,
}

/// Puts a limit of 1 % on a thread; what it returns holds the limit in place.
pub(crate) type Limit = fn(Tid) -> Result<Box<dyn std::any::Any>>;

/// A spinning process under a limit, beside whatever else is on the CPU.
pub(crate) fn under(setting: &Setting, limit: Limit) -> Result<Errors> {
    let load = setting.spin()?;
    let guard = limit(load.tid)?;
    let clock = TaskClock::open(load.tid)?;
    let mut errors = Vec::new();
    let mut before = (monotonic(), clock.read()?);
    // One more, because the first second has the beginning in it.
    for second in 0..=setting.seconds {
        let next = before.0 + Span::from_secs(1);
        std::thread::sleep(Duration::from_nanos(next.since(monotonic()).ns()));
        let now = (monotonic(), clock.read()?);
        let elapsed = (now.0 - before.0).ns() as f64;
        let used = (now.1 - before.1).ns() as f64;
        if second > 0 {
            errors.push((used / elapsed * 1e6 - SHARE_PPM).abs() / SHARE_PPM * 1e6);
        }
        before = now;
    }
    drop(load);
    drop(guard);
    errors.sort_by(f64::total_cmp);
    let place = (errors.len() * 99).div_ceil(100) - 1;
    Ok(Errors { p99: errors[place], worst: errors[errors.len() - 1] })
}
