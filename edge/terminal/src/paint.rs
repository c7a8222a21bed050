//! Choice of coloured or plain output.

/// Colours of a timeline or a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// No colours: for files, and for terminals without colours.
    Plain,
    /// With colours. A timeline uses those of the terminal's 256 that colour-blind people can
    /// distinguish. A table shows kept promises in green, and missed ones in red.
    Colour,
}
