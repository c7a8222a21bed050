//! Options of `completions` and `man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell to print completions for.
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Manual {
    /// Command; write subcommands as `paper-run` [default: the program].
    pub(crate) command: Option<String>,
    /// Write all pages to this folder as `slackline.1`, `slackline-sim.1`, ...
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    pub(crate) to: Option<PathBuf>,
}
