//! Probes of the means to observe threads: perf events, tracepoints and BPF.

use std::io;

use slackline_units::CpuId;

use super::probe::{Host, ProbeError, Verdict, read_if_there, read_list};
use slackline_linux::sys::{TaskClock, open_holder, own_tid, tracepoint, try_bpf_map};
use slackline_linux::version::KernelVersion;

const WAKE: &str = "sched/sched_wakeup";

pub(super) fn perf(host: &Host) -> Result<Verdict, ProbeError> {
    let paranoid = read_if_there("/proc/sys/kernel/perf_event_paranoid")?;
    let Some(paranoid) = paranoid else {
        return Ok(Verdict::missing("this kernel has no perf events")
            .hint("boot a kernel with CONFIG_PERF_EVENTS"));
    };
    let level = format!("perf_event_paranoid is {paranoid}");
    if let Err(error) = TaskClock::open(own_tid()) {
        return Ok(Verdict::missing(format!(
            "perf events are refused even for a thread of this process: {error}; {level}"
        ))
        .hint("run outside of the sandbox, which forbids perf_event_open"));
    }
    let cpus = read_list("/sys/devices/system/cpu/online")?;
    let first = cpus.first().copied().filter(|&cpu| cpu < CpuId::LIMIT).unwrap_or(0);
    let id = tracepoint::<0>(WAKE, []).ok().map(|found| found.id);
    if host.version.clone()? < KernelVersion::TELLS_READINESS {
        return Ok(Verdict::missing(format!(
            "perf events before Linux 4.17 are not sufficient; {level}"
        ))
        .hint("install Linux 4.17 or later; till then only CPU time is observed"));
    }
    let what = if id.is_some() { "wake-ups on a CPU" } else { "context switches on a CPU" };
    Ok(match open_holder(CpuId::new(first), id) {
        Ok(_) => Verdict::good(format!("{what} can be observed; {level}")),
        Err(error) => Verdict::missing(format!(
            "only threads of this process can be observed; cannot observe {what}: {error}; {level}"
        ))
        .hint("run as root, or give the program CAP_PERFMON"),
    })
}

pub(super) fn tracefs(_: &Host) -> Result<Verdict, ProbeError> {
    Ok(match tracepoint::<0>(WAKE, []) {
        Ok(found) => Verdict::good(format!("{WAKE} is tracepoint {}", found.id)),
        Err(error) => Verdict::missing(error.to_string())
            .hint("run as root, and `mount -t tracefs none /sys/kernel/tracing`"),
    })
}

pub(super) fn bpf(_: &Host) -> Result<Verdict, ProbeError> {
    let types = if std::fs::exists("/sys/kernel/btf/vmlinux").unwrap_or(false) {
        "the kernel describes its types (BTF)"
    } else {
        "the kernel does not describe its types (BTF)"
    };
    let has_types = types.starts_with("the kernel describes");
    Ok(match try_bpf_map() {
        Ok(()) if has_types => Verdict::good(format!("permitted; {types}")),
        Ok(()) => Verdict::limited(format!("permitted; {types}"))
            .hint("boot a kernel with CONFIG_DEBUG_INFO_BTF"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Verdict::missing(format!("BPF is not permitted ({error}); {types}"))
                .hint("run as root, or give the program CAP_BPF and CAP_PERFMON")
        }
        Err(error) => Verdict::missing(format!("refused ({error}); {types}"))
            .hint("boot a kernel with CONFIG_BPF_SYSCALL"),
    })
}
