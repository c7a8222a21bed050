//! Numbers of the test as people read them.

use slackline_experiments::OverSeeds;
use slackline_units::CpuShare;

/// A target in percent, as short as it can be.
pub(super) fn share(target: CpuShare) -> String {
    format!("{}", f64::from(target.ppm()) / 1e4)
}

/// Two decimals, with a sign unless it is rounded to nothing.
pub(super) fn fixed(value: f64) -> String {
    let text = format!("{value:+.2}");
    if matches!(&*text, "+0.00" | "-0.00") { "0.00".into() } else { text }
}

/// The middle, and the range where there is one.
pub(super) fn ranged(of: OverSeeds) -> String {
    let OverSeeds { lowest, median, highest } = of;
    let [least, median, most] = [lowest, median, highest].map(fixed);
    if least == most { median } else { format!("{median} ({least} to {most})") }
}
