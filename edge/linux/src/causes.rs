//! What an error says, with what it comes from.

use std::error::Error;

/// An error and what caused it, in one line, each said once.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let says = error.to_string();
        if !text.contains(&says) {
            text = format!("{text}: {says}");
        }
        cause = error.source();
    }
    text
}
