//! Limit by a CFS quota: CPU time in every period for a cgroup, enforced by the kernel. It acts on
//! a process.
//!
//! The process is moved into a cgroup of its own. In version 1 that is a child of its current
//! cgroup. In version 2 it is a child of the nearest cgroup that delegates the controller, which
//! may be the root. While it is there, limits on the cgroups in between do not apply to the
//! process.

use slackline_units::{CpuShare, Reservation, Span};

use super::LimitError;
use slackline_fence::Fence;
use slackline_linux::cgroup::{CgroupError, Controller, Place, Step, Version, write};
use slackline_linux::thread::ThreadRef;

/// Minimum quota that the kernel accepts.
const LEAST: Span = Span::from_ms(1);
/// Minimum and maximum quota period that the kernel accepts.
const PERIODS: [Span; 2] = [Span::from_ms(1), Span::from_secs(1)];
/// Default quota period of the kernel.
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

/// Writes quota and period in whole microseconds, the kernel's unit.
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
    fn default_period_of_a_quota_is_longer_if_the_quota_would_be_too_small() {
        let of = |ppm| usual_period(CpuShare::from_ppm(ppm));
        assert_eq!(of(500_000), USUAL);
        assert_eq!(of(10_000), USUAL);
        assert_eq!(of(5_000), Span::from_ms(200));
        assert_eq!(of(1), Span::from_secs(1));
    }
}
