//! Probes of real-time priorities, and of the CPU time that the kernel denies to real-time threads.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use slackline_units::{CpuShare, Span};

use super::State;
use super::parse::hierarchies;
use super::probe::{
    Host, ProbeError, Verdict, not_understood, on_own_thread, read, read_if_there, read_list,
    read_number,
};
use crate::mechanism::fair_server_share;
use crate::vcpus::recognise;
use slackline_fence::{BudgetLimit, room_of};
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, get_scheduling, own_tid, set_scheduling,
};
use slackline_linux::thread::{ThreadRef, threads_of};

/// Scheduling class and priority of a dispatcher.
pub(super) const DISPATCHER: SchedulingOf =
    SchedulingOf { class: Scheduling::Fifo { priority: 99 }, reset_on_fork: true };

pub(super) fn fifo(host: &Host) -> Result<Verdict, ProbeError> {
    let tried = on_own_thread(|| -> io::Result<bool> {
        let before = get_scheduling(own_tid())?;
        set_scheduling(own_tid(), &DISPATCHER)?;
        let became = get_scheduling(own_tid())?;
        set_scheduling(own_tid(), &before)?;
        Ok(became.class == DISPATCHER.class)
    })?;
    Ok(match tried {
        Ok(true) => Verdict::good("a thread can become SCHED_FIFO 99"),
        Ok(false) => Verdict::missing("the kernel accepts SCHED_FIFO 99 but does not set it")
            .hint("run outside of the sandbox that ignores calls for real-time scheduling"),
        Err(error) if host.root && error.kind() == io::ErrorKind::PermissionDenied => {
            Verdict::missing(format!("SCHED_FIFO 99 is refused to root: {error}"))
                .hint("see rt-group; in a container, add CAP_SYS_NICE")
        }
        Err(error) => Verdict::missing(format!("SCHED_FIFO 99 is refused: {error}"))
            .hint("run as root, or give the program CAP_SYS_NICE"),
    })
}

pub(super) fn rt_group(host: &Host) -> Result<Verdict, ProbeError> {
    let mounts = hierarchies(&read("/proc/self/mountinfo")?);
    let Some(mount) = mounts.iter().find(|mount| mount.kind.controls("cpu")) else {
        return rt_group_without_budget(host);
    };
    let cgroup = read("/proc/self/cgroup")?;
    let Some(group) = mount.own_directory(&cgroup) else {
        return Ok(Verdict::unknown(
            "the cgroup of this process is outside of the mounted hierarchy",
        ));
    };
    let file = group.join("cpu.rt_runtime_us");
    let Some(text) = read_if_there(&file)? else {
        return Ok(Verdict::good("cgroups have no real-time budgets on this kernel"));
    };
    let runtime: i64 = text.parse().map_err(|_| not_understood(&file, &text))?;
    let period: u64 = read_number(group.join("cpu.rt_period_us"))?;
    let name = group.display();
    let found = format!("cgroup {name} has {runtime} us of real-time budget every {period} us");
    let verdict = if runtime == 0 {
        Verdict::missing(format!("no real-time budget for {name}")).hint(format!(
            "move Slackline and its VMs to the root of the cgroup hierarchy, or write a budget to \
             {}",
            file.display()
        ))
    } else {
        Verdict::good(found)
    };
    Ok(with_machines(verdict, &budgets_of_machines()))
}

/// Process id of a VM, and the largest real-time budget that the cgroup of the VM's vCPUs could
/// get. The budget is replaced by an error text if it cannot be read.
type MachineRoom = (i32, Result<BudgetLimit, String>);

/// Returns the VMs on this host with their largest possible real-time budgets. If the largest
/// budgets of a VM's vCPUs differ, the smallest of them is returned. A VM is included only if its
/// vCPU threads have the names that emulators give to vCPU threads, and are in cgroups with
/// budgets.
fn budgets_of_machines() -> Vec<MachineRoom> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found = Vec::new();
    for pid in pids.filter_map(Tid::new) {
        let is_vcpu = |tid: &Tid| {
            let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
            recognise(name.trim_ascii_end()).is_some()
        };
        let threads = threads_of(pid).unwrap_or_default().into_iter().filter(is_vcpu);
        // A thread that has just exited is left out.
        let threads = threads.filter_map(|tid| ThreadRef::open(pid, tid).ok());
        let rooms = threads
            .filter_map(|thread| room_of(&thread).map_err(|error| error.to_string()).transpose());
        let least = rooms.min_by_key(|room| room.as_ref().map_or(0, |room| room.most));
        found.extend(least.map(|least| (pid.raw(), least)));
    }
    found
}

/// Adds the real-time budgets of the VMs to the verdict about this process's own cgroup. A good
/// verdict becomes limited if a VM's budget is zero or unknown. A VM with a zero budget cannot be
/// scheduled.
fn with_machines(own: Verdict, machines: &[MachineRoom]) -> Verdict {
    if machines.is_empty() {
        return own;
    }
    let mut found = own.found.clone();
    let mut is_short = false;
    for (pid, room) in machines {
        found += &match room {
            Ok(BudgetLimit { most, period, group }) => {
                is_short |= *most == 0;
                let group = group.display();
                format!("; process {pid} can have up to {most} us every {period} us, in {group}")
            }
            Err(error) => {
                is_short = true;
                format!("; the budget of process {pid} is unknown: {error}")
            }
        };
    }
    if !is_short || own.state != State::Good {
        return Verdict { found, ..own };
    }
    Verdict { state: State::Limited, ..Verdict::good(found) }.hint(
        "reduce real-time budgets of sibling cgroups: together they have at most the budget of \
         their parent",
    )
}

/// Returns the verdict about real-time budgets on a host without the version 1 controller `cpu`. On
/// such a host no cgroup's budget can be read or set.
fn rt_group_without_budget(host: &Host) -> Result<Verdict, ProbeError> {
    if !host.is_built_with("CONFIG_RT_GROUP_SCHED")? {
        return Ok(Verdict::good("cgroups have no real-time budgets on this kernel"));
    }
    if read("/proc/cmdline")?.split(' ').any(|option| option == "rt_group_sched=0") {
        return Ok(Verdict::good("real-time budgets of cgroups are switched off at boot"));
    }
    Ok(Verdict::limited(
        "the kernel has CONFIG_RT_GROUP_SCHED, but no version 1 `cpu` hierarchy to set budgets in",
    )
    .hint("keep all real-time threads in the root cgroup, or boot with rt_group_sched=0"))
}

/// Returns the maximum share of each CPU that the kernel gives to real-time threads. If the
/// kernel's limit of real-time classes cannot be read, its default of 95 % is assumed.
#[must_use]
pub fn real_time_limit() -> CpuShare {
    const DEFAULT: CpuShare = CpuShare::from_ppm(950_000);
    beside_fair_server(limit().unwrap_or(Some(DEFAULT)), fair_server_share())
}

/// Returns the maximum share of a CPU for real-time threads: the smaller of `limit` and one CPU
/// less `server`. `limit` is the kernel's limit of the real-time classes, `None` if the kernel has
/// no limit. `server` is the share of the fair server, which serves ordinary threads.
fn beside_fair_server(limit: Option<CpuShare>, server: CpuShare) -> CpuShare {
    limit.unwrap_or(CpuShare::ONE).min(CpuShare::ONE.less(server))
}

/// Returns the kernel's limit of real-time classes, as a share of each CPU. `None` if the kernel
/// has no limit.
pub(super) fn limit() -> Result<Option<CpuShare>, ProbeError> {
    let (runtime, period) = limit_us()?;
    Ok(runtime.map(|runtime| ratio(runtime, period)))
}

fn limit_us() -> Result<(Option<u64>, u64), ProbeError> {
    const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";
    const PERIOD: &str = "/proc/sys/kernel/sched_rt_period_us";
    let period: u64 = read_number(PERIOD)?;
    if period == 0 {
        return Err(not_understood(PERIOD, "0"));
    }
    let runtime: i64 = read_number(RUNTIME)?;
    // The kernel writes -1 for no limit, and allows no other negative number.
    Ok((u64::try_from(runtime).ok(), period))
}

/// Returns `part` / `whole` as a share, rounded down to a millionth.
fn ratio(part: u64, whole: u64) -> CpuShare {
    let ppm = u128::from(part) * 1_000_000 / u128::from(whole);
    CpuShare::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX))
}

pub(super) fn rt_limit(_: &Host) -> Result<Verdict, ProbeError> {
    const HINT: &str = "set the default by `sysctl kernel.sched_rt_runtime_us=950000`";
    let (Some(runtime), period) = limit_us()? else {
        return Ok(Verdict::good("no limit: a runaway real-time thread can take a whole CPU")
            .figure("rt_limit_ppm", 1_000_000));
    };
    let share = ratio(runtime, period);
    let found =
        format!("real-time threads get {runtime} us every {period} us: {share} of each CPU");
    let verdict = match share.ppm() {
        0 => Verdict::missing(found).hint(HINT),
        // The kernel's default is 0.95 of a CPU.
        1..950_000 => Verdict::limited(found).hint(HINT),
        _ => Verdict::good(found),
    };
    Ok(verdict.figure("rt_limit_ppm", share.ppm().into()))
}

pub(super) fn fair_server(host: &Host) -> Result<Verdict, ProbeError> {
    let why = match fair_servers() {
        Ok(Some(servers)) => return Ok(fair_server_read(&servers)),
        Ok(None) => "not visible in debugfs".to_owned(),
        Err(error) => error.to_string(),
    };
    if !host.is_at_least(6, 12)? {
        return Ok(Verdict::good("kernels before 6.12 have no fair server"));
    }
    Ok(Verdict::limited(format!(
        "probably 50 ms per second on each CPU, the default since Linux 6.12 ({why})"
    ))
    .hint("plan for 0.90cpu to 0.95cpu of each CPU; see deadline-share"))
}

fn fair_server_read(servers: &[(Span, Span)]) -> Verdict {
    let share = |&(runtime, period): &(Span, Span)| ratio(runtime.ns(), period.ns());
    let most = servers.iter().max_by_key(|server| share(server));
    let Some(most @ &(runtime, period)) = most else {
        return Verdict::unknown("debugfs shows no fair server");
    };
    let ppm = share(most).ppm();
    let verdict = if ppm == 0 {
        Verdict::good("the fair server is switched off on every CPU")
    } else {
        Verdict::limited(format!("{runtime} every {period}: up to {} of a CPU", share(most))).hint(
            "write 0 to each sched/fair_server/cpu*/runtime of debugfs to switch the fair server \
             off; ordinary threads can then starve",
        )
    };
    verdict.figure("fair_server_ppm", ppm.into())
}

/// Returns the runtime and period of each CPU's fair server. `None` if debugfs shows no fair
/// servers.
fn fair_servers() -> Result<Option<Vec<(Span, Span)>>, ProbeError> {
    let mount;
    let mut base = PathBuf::from("/sys/kernel/debug/sched");
    if !fs::exists(&base).unwrap_or(false) {
        mount = own_debugfs().map_err(ProbeError::tried("mount debugfs"))?;
        base = format!("/proc/self/fd/{}/sched", mount.as_raw_fd()).into();
    }
    let servers = base.join("fair_server");
    if !fs::exists(&servers).map_err(ProbeError::tried("read debugfs"))? {
        return Ok(None);
    }
    let mut found = Vec::new();
    for cpu in read_list("/sys/devices/system/cpu/online")? {
        let cpu = servers.join(format!("cpu{cpu}"));
        found.push((server_span(&cpu, "runtime")?, server_span(&cpu, "period")?));
    }
    Ok(Some(found))
}

fn server_span(cpu: &Path, name: &'static str) -> Result<Span, ProbeError> {
    let what = match name {
        "runtime" => "read the fair server's runtime in debugfs",
        _ => "read the fair server's period in debugfs",
    };
    // The error names no path, since a path below a private mount has only a descriptor's number.
    let text = fs::read_to_string(cpu.join(name)).map_err(ProbeError::tried(what))?;
    let number = text.trim().parse().map_err(|_| not_understood(cpu.join(name), &text))?;
    Ok(Span::from_ns(number))
}

/// Mounts debugfs for this process only, without a mount point, so that the host is not changed.
fn own_debugfs() -> Result<OwnedFd, Errno> {
    let filesystem = fsopen("debugfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&filesystem)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(most: u64) -> Result<BudgetLimit, String> {
        Ok(BudgetLimit { group: "/cpu/machine/web/vcpu0".into(), most, period: 1_000_000 })
    }

    #[test]
    fn real_time_limit_leaves_the_fair_server_its_share() {
        let share = CpuShare::from_ppm;
        assert_eq!(beside_fair_server(None, share(50_000)), share(950_000));
        assert_eq!(beside_fair_server(None, share(0)), CpuShare::ONE);
        assert_eq!(beside_fair_server(Some(share(800_000)), share(50_000)), share(800_000));
        assert_eq!(beside_fair_server(Some(share(950_000)), share(100_000)), share(900_000));
    }

    #[test]
    fn doctor_verdict_is_limited_if_vm_gets_no_realtime_budget() {
        let own = || Verdict::good("950000 us every 1000000 us for /cpu");
        let alone = with_machines(own(), &[]);
        assert_eq!((alone.state, alone.found), (State::Good, own().found));
        let fine = with_machines(own(), &[(7, room(400_000))]);
        assert_eq!(fine.state, State::Good);
        assert!(fine.found.contains("; process 7 can have up to 400000 us"), "{}", fine.found);
        for bad in [room(0), Err("cannot read".into())] {
            let verdict = with_machines(own(), &[(7, room(400_000)), (8, bad)]);
            assert_eq!(verdict.state, State::Limited, "{}", verdict.found);
            assert!(verdict.hint.is_some() && verdict.found.contains("process 8"));
        }
        let none = Verdict::missing("no real-time budget for /cpu").hint("move");
        let none = with_machines(none, &[(7, room(0))]);
        assert_eq!((none.state, none.hint.as_deref()), (State::Missing, Some("move")));
    }
}
