//! Formatting of the numbers of `slackline alert`.

use slackline_experiments::OverSeeds;
use slackline_units::CpuShare;

/// Formats a target share in percent, with as few decimals as possible.
pub(super) fn share(target: CpuShare) -> String {
    format!("{}", f64::from(target.ppm()) / 1e4)
}

/// Formats a number with two decimals, and with a sign unless it rounds to zero.
pub(super) fn fixed(value: f64) -> String {
    let text = format!("{value:+.2}");
    if matches!(&*text, "+0.00" | "-0.00") { "0.00".into() } else { text }
}

/// Formats the median of a value over the seeds, with the range if the values differ.
pub(super) fn ranged(of: OverSeeds) -> String {
    let OverSeeds { lowest, median, highest } = of;
    let [least, median, most] = [lowest, median, highest].map(fixed);
    if least == most { median } else { format!("{median} ({least} to {most})") }
}
