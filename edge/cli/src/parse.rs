//! Parsers of option values.

use slackline_units::{CpuShare, Span};

/// Parses a length of time such as `4ms`.
pub(crate) fn span(text: &str) -> Result<Span, String> {
    text.parse::<Span>().map_err(|why| format!("{why}; write it as `4ms`, `250us` or `2s`"))
}

/// Parses a share of CPUs: a percentage of one CPU such as `30%`, or a number of CPUs.
pub(crate) fn share(text: &str) -> Result<CpuShare, String> {
    let has_unit = text.trim_end().ends_with(['%', 'u']);
    let whole = if has_unit { text.to_owned() } else { format!("{text}cpu") };
    let share = whole.parse::<CpuShare>();
    let share = share.map_err(|why| format!("{why}; write it as `30%` or `1.5`"))?;
    if share.ppm() == 0 {
        Err("share must be greater than zero; write it as `30%` or `1.5`".into())
    } else {
        Ok(share)
    }
}
