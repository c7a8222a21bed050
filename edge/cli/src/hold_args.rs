//! Options of `slackline hold`.

use clap::{ArgGroup, Args};
use slackline_live::mechanism::CpuWeight;
use slackline_units::{CpuShare, Span};

use crate::amounts::{CpuList, cpu_list};
use crate::enforce::Enforce;
use crate::parse::{share, span};

/// Options of `hold` that name its target. The user must give exactly one of them.
const TARGETS: [&str; 4] = ["pid", "unit", "cgroup", "command"];

/// Reserve CPU time for a process, unit, cgroup or command until Ctrl-C. Needs root.
///
/// The reservation covers all child processes. `hold` ends with Ctrl-C or when the target ends, and
/// restores the former scheduling of every thread. With a command, `hold` returns the command's
/// exit code.
///
/// If --cpu is more than one CPU, a process and its children run on several CPUs at the same time.
/// With --vcpus and --cpu, each vCPU has an equal share, and may use budget that the VM's other
/// vCPUs leave unused.
///
/// --enforce can name a mechanism of the kernel that enforces the request: `deadline` for single
/// threads, `quota` for a limit without a guarantee (--at-most), `weight` for a share relative to
/// sibling cgroups and threads. A mechanism refuses a request that it cannot express. `auto`
/// chooses a mechanism and prints the reason. The default `dispatcher` is Slackline itself.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("target").required(true).args(TARGETS)))]
pub(crate) struct HoldArgs {
    /// Id of the process. The reservation includes all its descendants.
    #[arg(long)]
    pub(crate) pid: Option<i32>,
    /// Full name of a systemd unit, e.g. `web.service`.
    #[arg(long, value_name = "NAME")]
    pub(crate) unit: Option<String>,
    /// Cgroup v2: its folder, or its path as in `/proc/PID/cgroup`.
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<String>,
    /// Total CPU of the target: `30%` of a CPU, or `1.5` CPUs.
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "slice")]
    pub(crate) cpu: Option<CpuShare>,
    /// CPU time per period, e.g. `2ms`; with --vcpus, for each vCPU.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) slice: Option<Span>,
    /// Period of the slice or of --cpu [default: 10ms].
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) period: Option<Span>,
    /// Set a hard limit: no CPU time beyond the reservation. This is the default.
    #[arg(long)]
    pub(crate) exact: bool,
    /// Also allow slack beyond the reservation [default: hard limit].
    #[arg(long, conflicts_with = "exact")]
    pub(crate) at_least: bool,
    /// Set a limit without a guarantee: no CPU time beyond the slice.
    #[arg(long, conflicts_with_all = ["exact", "at_least"])]
    pub(crate) at_most: bool,
    /// Mechanism: auto, dispatcher, deadline, quota or weight [default: dispatcher].
    #[arg(long, value_name = "NAME")]
    pub(crate) enforce: Option<Enforce>,
    /// Weight relative to sibling cgroups and threads: 1 to 10000, or `idle`. An ordinary thread
    /// has 100.
    #[arg(long, value_name = "WEIGHT")]
    #[arg(conflicts_with_all = ["cpu", "slice", "period", "exact", "at_least", "at_most"])]
    pub(crate) weight: Option<CpuWeight>,
    /// Schedule each vCPU thread of a VM monitor separately.
    #[arg(long, conflicts_with_all = ["unit", "cgroup"])]
    pub(crate) vcpus: bool,
    /// CPUs to use [default: the last free CPUs, as many as needed].
    #[arg(long, value_name = "N-N,N", value_parser = cpu_list)]
    pub(crate) cpus: Option<CpuList>,
    /// Print one line of JSON per second.
    #[arg(long)]
    pub(crate) json: bool,
    /// Command to start, after `--`.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}
