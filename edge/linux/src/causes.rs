//! Formatting of errors together with their causes.

use std::error::Error;

/// Returns the texts of an error and of its causes in one line. A text that occurs more than once
/// is included only once.
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
