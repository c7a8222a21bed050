//! Bandwidth of `SCHED_DEADLINE` on this host: the kernel's limit, and the shares that are reserved
//! already.
//!
//! The kernel admits reservations up to `sched_rt_runtime_us` in every `sched_rt_period_us` of each
//! CPU. The kernel's fair server and ext server reserve a share of this time for threads of other
//! classes. Deadline threads can reserve the rest.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use slackline_linux::version::KernelVersion;
use slackline_units::{CpuSet, CpuShare};

use super::deadline_threads::DeadlineThread;

/// Names of two servers of the kernel, which are also the names of their folders in debugfs. The
/// servers reserve deadline bandwidth for other classes on each CPU.
const SERVERS: [&str; 2] = ["fair_server", "ext_server"];

/// Share of each CPU that the fair server reserves by default, in millionths.
const FAIR_SERVER: u64 = 50_000;

/// First version of the kernel that has a fair server.
const FIRST_WITH_SERVER: KernelVersion = KernelVersion { major: 6, minor: 12 };

/// Bandwidth of `SCHED_DEADLINE` on all CPUs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineBandwidth {
    /// Largest sum of shares that the kernel admits.
    pub limit: CpuShare,
    /// Sum of the shares that the fair servers and ext servers of all CPUs reserve.
    pub servers: CpuShare,
    /// Sum of the shares that deadline threads of all programs reserve.
    pub threads: CpuShare,
    /// Number of deadline threads.
    pub count: usize,
}

impl DeadlineBandwidth {
    /// Reads the bandwidth of this host. `online` has the CPUs that are online.
    ///
    /// # Errors
    /// If procfs cannot be read.
    pub fn read(online: CpuSet) -> io::Result<DeadlineBandwidth> {
        let cpus = online.iter().count() as u64;
        let each = limit_ppm(&number_at("sched_rt_runtime_us")?, &number_at("sched_rt_period_us")?);
        let servers = online.iter().map(|cpu| servers_ppm(cpu.index(), &SERVERS)).sum();
        let all = DeadlineThread::all();
        let threads: u64 = all.iter().map(|thread| u64::from(thread.each.share().ppm())).sum();
        let share = |ppm: u64| CpuShare::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX));
        Ok(DeadlineBandwidth {
            limit: share(each * cpus),
            servers: share(servers),
            threads: share(threads),
            count: all.len(),
        })
    }

    /// Returns the share that deadline threads can still reserve: limit − servers − threads.
    #[must_use]
    pub fn free(&self) -> CpuShare {
        self.limit.less(self.servers).less(self.threads)
    }
}

impl fmt::Display for DeadlineBandwidth {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.count == 1 { "" } else { "s" };
        write!(
            out,
            "{} are reserved by {} deadline thread{plural} and {} by the kernel's servers",
            self.threads, self.count, self.servers
        )
    }
}

fn number_at(name: &str) -> io::Result<String> {
    fs::read_to_string(Path::new("/proc/sys/kernel").join(name))
}

/// Returns the share of each CPU that the kernel admits, in millionths. `runtime` and `period` are
/// the texts of the kernel's settings. A runtime of -1 means that the kernel admits every share.
fn limit_ppm(runtime: &str, period: &str) -> u64 {
    let period: u64 = period.trim().parse().unwrap_or(1_000_000);
    let runtime: u64 = runtime.trim().parse().unwrap_or(period);
    runtime * 1_000_000 / period.max(1)
}

/// Returns the share of each CPU that the kernel's fair server gives to ordinary threads, even
/// while real-time threads are runnable. Zero if the kernel has no fair server.
#[must_use]
pub fn fair_server_share() -> CpuShare {
    CpuShare::from_ppm(u32::try_from(servers_ppm(0, &SERVERS[..1])).unwrap_or(u32::MAX))
}

/// Returns the share of one CPU that the kernel's servers with the names `servers` reserve, in
/// millionths. If debugfs cannot be read, returns the kernel's default.
fn servers_ppm(cpu: usize, servers: &[&str]) -> u64 {
    let debugfs = Path::new("/sys/kernel/debug/sched");
    let of = |server: &&str| {
        let folder = debugfs.join(server).join(format!("cpu{cpu}"));
        let number = |file| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
        Some(number("runtime")? * 1_000_000 / number("period")?.max(1))
    };
    let found: Vec<u64> = servers.iter().filter_map(of).collect();
    let has_server = KernelVersion::of_host().is_ok_and(|version| version >= FIRST_WITH_SERVER);
    if found.is_empty() && has_server { FAIR_SERVER } else { found.iter().sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_bandwidth_limit_is_runtime_over_period_or_whole_cpu() {
        assert_eq!(limit_ppm("950000\n", "1000000\n"), 950_000);
        assert_eq!(limit_ppm("1000000", "1000000"), 1_000_000);
        assert_eq!(limit_ppm("-1", "1000000"), 1_000_000);
    }

    #[test]
    fn free_deadline_bandwidth_excludes_kernel_servers_and_deadline_threads() {
        let share = CpuShare::from_ppm;
        let of = DeadlineBandwidth {
            limit: share(1_900_000),
            servers: share(100_000),
            threads: share(300_000),
            count: 1,
        };
        assert_eq!(of.free(), share(1_500_000));
        assert_eq!(
            of.to_string(),
            "0.3cpu are reserved by 1 deadline thread and 0.1cpu by the kernel's servers"
        );
    }
}
