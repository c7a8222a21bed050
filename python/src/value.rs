//! Values of arguments: times and shares as texts with a unit.

use pyo3::prelude::*;
use slackline_units::{CpuShare, Span};

use crate::error;

/// Reads a time above zero, such as `10ms`.
pub(crate) fn span(name: &str, text: &str) -> PyResult<Span> {
    let bad = |why: &dyn ToString| {
        let message = format!("{name} `{}`: {}", shown(text), why.to_string());
        error::of_value(message, "write it as \"250us\", \"10ms\" or \"1.5s\"")
    };
    match text.parse::<Span>() {
        Ok(span) if span.is_zero() => Err(bad(&"must be above zero")),
        Ok(span) => Ok(span),
        Err(why) => Err(bad(&why)),
    }
}

/// Reads a share of one CPU, such as `30%` or `0.3cpu`. The share must be at least `least`.
pub(crate) fn share(name: &str, text: &str, least: CpuShare) -> PyResult<CpuShare> {
    let bad = |why: String| {
        let message = format!("{name} `{}`: {why}", shown(text));
        error::of_value(message, "write it as \"30%\" or \"0.3cpu\"")
    };
    let share = text.parse::<CpuShare>().map_err(|why| bad(why.to_string()))?;
    if share < least || share > CpuShare::ONE {
        return Err(bad(format!("must be from {least} to {}", CpuShare::ONE)));
    }
    Ok(share)
}

/// Shortens a text to its start, so that a message with a long input stays short.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 120;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
