//! Choice between coloured and plain output.

/// Colours in a timeline or a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// No colours: for files, and for terminals without colours.
    Plain,
    /// With colours. A timeline uses some of the terminal's 256 colours that colour-blind people
    /// can distinguish. A table shows values within their target in green, and values that miss
    /// their target in red.
    Colour,
}
