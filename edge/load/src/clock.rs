//! Reading of clocks, and sleeping until a time on a clock.

use std::num::NonZero;

use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime};
use slackline_units::{Span, Time};

use crate::LoadError;

/// Returns the time on `CLOCK_MONOTONIC`.
#[must_use]
pub fn monotonic() -> Time {
    Time::START + read(ClockId::Monotonic)
}

/// Returns the CPU time that the calling thread has used since its start.
pub(crate) fn thread_time() -> Span {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Span {
    let time = clock_gettime(clock);
    let part = |number: i64| u64::try_from(number).expect("both clocks start at zero");
    Span::from_secs(part(time.tv_sec)) + Span::from_ns(part(time.tv_nsec))
}

/// Sleeps until `wake` on `CLOCK_MONOTONIC`. Returns at once if that time has passed.
pub(crate) fn sleep_until(wake: Time) -> Result<(), LoadError> {
    const SECOND: u64 = 1_000_000_000;
    if wake <= monotonic() {
        return Ok(());
    }
    let part = |number: u64| i64::try_from(number).expect("584 years are few enough seconds");
    let until = Timespec { tv_sec: part(wake.ns() / SECOND), tv_nsec: part(wake.ns() % SECOND) };
    loop {
        match rustix::thread::clock_nanosleep_absolute(rustix::thread::ClockId::Monotonic, &until) {
            // An absolute time does not shift when a signal interrupts the sleep.
            Err(Errno::INTR) => {}
            result => return result.map_err(|error| LoadError::Sleep { source: error.into() }),
        }
    }
}

/// Sets the timer slack of the calling thread to the minimum, so that its sleeps end on time. With
/// the default for ordinary threads, sleeps end up to 50 us late. If the kernel refuses, the
/// default stays.
pub(crate) fn wake_exactly() {
    let _ = rustix::thread::set_current_timer_slack(Some(NonZero::<u64>::MIN));
}
