//! Limit by `SCHED_DEADLINE`: a runtime in every period, enforced by the kernel. It limits a single
//! thread.
//!
//! The kernel refuses this class to a thread with a restricted affinity, so the affinity is widened
//! to all CPUs. It also requires a runtime slightly above a microsecond.

use slackline_units::{Reservation, Span};

use super::LimitError;
use slackline_fence::Fence;
use slackline_linux::step::Hold;
use slackline_linux::sys::online_cpus;
use slackline_linux::thread::{ThreadRef, threads_of};

/// Minimum runtime that the kernel accepts: `1 << DL_SCALE` nanoseconds.
const LEAST: Span = Span::from_ns(1 << 10);

pub(super) fn apply(
    thread: &ThreadRef,
    target: Reservation,
    fence: &mut Fence,
) -> Result<(), LimitError> {
    let count = threads_of(thread.pid())?.len();
    if count != 1 {
        return Err(LimitError::ManyThreads { pid: thread.pid(), count });
    }
    let (slice, period) = (target.slice(), target.period());
    if slice < LEAST {
        return Err(LimitError::TooFine { share: target.share(), period, slice, least: LEAST });
    }
    let online = online_cpus().map_err(|source| LimitError::NoCpus { source })?;
    let held = fence.hold(thread, Hold::Nothing)?;
    held.reserve(slice, period, online).map_err(|error| LimitError::Refused { error })
}
