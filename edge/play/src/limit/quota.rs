//! A CFS quota: so much in every period for a cgroup, kept by the kernel. Acts on a process.
//!
//! The process is moved into a group of its own. In version 1 that is made below the one it is in;
//! in version 2 below the nearest group that hands the controller on, which may be the root: then
//! limits that the user set on groups in between do not act on it meanwhile.

use slackline_units::{CpuShare, Reservation, Span};

use super::LimitError;
use slackline_fence::Fence;
use slackline_linux::cgroup::{CgroupError, Controller, Place, Step, Version, write};
use slackline_linux::thread::ThreadRef;

/// The kernel's least quota.
const LEAST: Span = Span::from_ms(1);
/// The kernel's shortest and longest periods.
const PERIODS: [Span; 2] = [Span::from_ms(1), Span::from_secs(1)];
/// The kernel's default period.
const USUAL: Span = Span::from_ms(100);

pub(super) fn usual_period(share: CpuShare) -> Span {
    let least = LEAST.ns() * 1_000_000 / u64::from(share.ppm().max(1));
    USUAL.max(Span::from_ns(least)).min(PERIODS[1])
}

pub(super) fn apply(
    version: Version,
    thread: &ThreadRef,
    target: Reservation,
    fence: &mut Fence,
) -> Result<(), LimitError> {
    let (slice, period) = (target.slice(), target.period());
    let [shortest, longest] = PERIODS;
    if period < shortest || period > longest {
        return Err(LimitError::BadPeriod { period, shortest, longest });
    }
    if slice < LEAST {
        return Err(LimitError::TooFine { share: target.share(), period, slice, least: LEAST });
    }
    let failed = |error| LimitError::Group { error };
    let place = Place::find_in(version, thread, Controller::Cpu).map_err(failed)?;
    fence.hold_limited(thread, &place)?;
    place.make().map_err(failed)?;
    limit(&place, target).map_err(failed)?;
    place.take_in(thread.pid()).map_err(failed)
}

/// Whole microseconds, as the kernel takes them.
fn limit(place: &Place, target: Reservation) -> Result<(), CgroupError> {
    let us = |span: Span| (span.ns() / 1_000).to_string();
    let (quota, period) = (us(target.slice()), us(target.period()));
    let set = |file: &str, text: &str| write(&place.group.join(file), text, Step::Limit);
    match place.version {
        Version::V2 => set("cpu.max", &format!("{quota} {period}")),
        Version::V1 => {
            set("cpu.cfs_period_us", &period)?;
            set("cpu.cfs_quota_us", &quota)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_is_as_long_as_the_least_quota_needs() {
        let of = |ppm| usual_period(CpuShare::from_ppm(ppm));
        assert_eq!(of(500_000), USUAL);
        assert_eq!(of(10_000), USUAL);
        assert_eq!(of(5_000), Span::from_ms(200));
        assert_eq!(of(1), Span::from_secs(1));
    }
}
