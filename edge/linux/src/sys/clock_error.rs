//! Maximum error of the host's wall clock.

use slackline_units::Span;

/// Returns the maximum error of the wall clock, which the program that synchronises the clock has
/// reported to the kernel. `None` if no program synchronises the clock, or if this process is not
/// permitted to read the error.
#[must_use]
pub fn wall_clock_error() -> Option<Span> {
    // SAFETY: `timex` is a structure of numbers, for which all zeros is a valid value. No bit of
    // `modes` is set, so the call changes no setting of the clock.
    let (state, timex) = unsafe {
        let mut timex: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut timex), timex)
    };
    if state < 0 || state == libc::TIME_ERROR {
        return None;
    }
    u64::try_from(timex.maxerror).ok().map(Span::from_us)
}
