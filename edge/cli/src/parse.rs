//! What single words on the command line mean.

use slackline_units::{CpuShare, Span};

/// A length of time.
pub(crate) fn span(text: &str) -> Result<Span, String> {
    text.parse::<Span>().map_err(|why| format!("{why}; write it as `4ms`, `250us` or `2s`"))
}

/// A share of CPUs: `30%` of one, or so many.
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
