//! Probes of the kernel: its version, and its support for loadable schedulers (`sched_ext`).

use super::probe::{Host, ProbeError, Verdict, read_if_there};
use slackline_linux::sys::{own_tid, pidfd_of_process, pidfd_of_thread, process_of};
use slackline_linux::thread::is_missing;
use slackline_linux::version::KernelVersion;

pub(super) fn version(host: &Host) -> Result<Verdict, ProbeError> {
    let (version, release) = (host.version.clone()?, host.release.clone()?);
    let found = format!("Linux {release}");
    Ok(if version >= KernelVersion::OLDEST {
        Verdict::good(found)
    } else {
        let KernelVersion { major, minor } = KernelVersion::OLDEST;
        Verdict::missing(format!("{found}, older than {major}.{minor}"))
            .hint("install Linux 4.17 or later; 6.9 or later is best")
    })
}

pub(super) fn pidfd(_: &Host) -> Result<Verdict, ProbeError> {
    let Err(no_thread) = pidfd_of_thread(own_tid()) else {
        return Ok(Verdict::good("the kernel has pidfds for single threads"));
    };
    let process =
        process_of(own_tid()).map_err(ProbeError::tried("read the id of this process"))?;
    Ok(match pidfd_of_process(process) {
        Ok(_) => Verdict::limited(
            "the kernel has pidfds for processes only; for threads /proc descriptors are used",
        )
        .hint("install Linux 6.9 or later for descriptors of single threads"),
        Err(error) if is_missing(&error) => {
            Verdict::missing("the kernel has no pidfds; /proc descriptors are used")
                .hint("install Linux 5.3 or later, or leave a sandbox that forbids `pidfd_open`")
        }
        Err(error) => {
            Verdict::unknown(format!("pidfds for threads: {no_thread}; for processes: {error}"))
        }
    })
}

pub(super) fn sched_ext(host: &Host) -> Result<Verdict, ProbeError> {
    if let Some(state) = read_if_there("/sys/kernel/sched_ext/state")? {
        let loaded = read_if_there("/sys/kernel/sched_ext/root/ops")?;
        return Ok(match loaded {
            Some(name) => Verdict::limited(format!("{state}: scheduler `{name}` is loaded"))
                .hint("unload the sched_ext scheduler: it schedules all ordinary threads"),
            None => Verdict::good(format!("built in; {state}")),
        });
    }
    let version = host.version.clone()?;
    let since = KernelVersion { major: 6, minor: 12 };
    Ok(if version < since {
        Verdict::missing("kernels before 6.12 have no sched_ext")
    } else if host.is_built_with("CONFIG_SCHED_CLASS_EXT")? {
        Verdict::unknown("built in, but not visible in sysfs")
    } else {
        Verdict::missing("this kernel was built without CONFIG_SCHED_CLASS_EXT")
    })
}
