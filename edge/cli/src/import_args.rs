//! Options of `import` and `diff`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use slackline_import::{Kind, Target};

use crate::input::file;

/// Turn a recording of perf or ftrace into a recording of Slackline.
///
/// All commands that read recordings read these files directly too. Import them to say which
/// processes are VMs, or to leave names out. What is assumed is printed, and stands in the head of
/// the recording.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Kind of the file.
    #[arg(value_enum)]
    pub(crate) kind: ImportKind,
    /// File to read; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// File to write, for `slackline show`, `why` and `whatif`.
    pub(crate) out: PathBuf,
    /// Process that is a VM, e.g. `web=pid:17`; repeatable [default: by names of threads].
    #[arg(long, value_name = "[NAME=]pid:NUMBER")]
    pub(crate) r#for: Vec<Target>,
    /// Leave out names of VMs and processes.
    #[arg(long)]
    pub(crate) anonymise: bool,
}

/// Compare how two runs or recordings were scheduled, and say what is more than noise.
///
/// Wake latency, preemption wait, slice lengths and CPU time are compared for each VM and for all.
/// Imbalance is compared for the CPUs. Each run is divided into 20 blocks of time. A difference is
/// more than noise if 99 % of 500 draws of blocks agree on its sign.
///
/// Examples:
///   slackline diff before.trace after.trace
///   slackline diff perf.data host.trace --json
///   slackline diff before.trace after.trace --check
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct DiffArgs {
    /// Trace or recording to compare with.
    #[arg(value_name = "A")]
    pub(crate) first: PathBuf,
    /// Trace or recording that is compared.
    #[arg(value_name = "B")]
    pub(crate) second: PathBuf,
    /// Print the differences as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// End with exit code 1 if a wait or imbalance of B is worse by more than noise.
    #[arg(long)]
    pub(crate) check: bool,
}

/// Kind of a recording of another program.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ImportKind {
    /// `perf.data` of `perf sched record`.
    Perf,
    /// Text of `trace-cmd report`, `perf script` or tracefs.
    #[value(alias = "ftrace")]
    TraceCmd,
}

impl ImportKind {
    pub(crate) fn kind(self) -> Kind {
        match self {
            ImportKind::Perf => Kind::Perf,
            ImportKind::TraceCmd => Kind::Ftrace,
        }
    }
}
