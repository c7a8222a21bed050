//! Whether there is colour.

/// The colours of a picture or a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// None: for files, and for terminals without.
    Plain,
    /// Of a picture those of the terminal's 256 that people tell apart whatever colours they see;
    /// of a table green for a promise that was kept, and red for one that was not.
    Colour,
}
