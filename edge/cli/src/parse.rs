//! What single words on the command line mean.

use slackline_units::Span;

/// A length of time.
pub(crate) fn span(text: &str) -> Result<Span, String> {
    text.parse::<Span>().map_err(|why| format!("{why}; write it as `4ms`, `250us` or `2s`"))
}
