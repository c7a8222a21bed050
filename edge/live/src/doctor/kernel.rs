//! The kernel: its version, and whether schedulers can be loaded into it.

use super::parse::Version;
use super::probe::{Host, ProbeError, Verdict, read_if_there};

/// The first kernel with descriptors of processes.
const OLDEST: Version = Version { major: 5, minor: 3 };
/// The first with descriptors of single threads.
const WANTED: Version = Version { major: 6, minor: 9 };

pub(super) fn version(host: &Host) -> Result<Verdict, ProbeError> {
    let (version, release) = (host.version.clone()?, host.release.clone()?);
    let found = format!("Linux {release}");
    Ok(if version >= WANTED {
        Verdict::good(found)
    } else if version >= OLDEST {
        Verdict::limited(format!("{found}, without descriptors of single threads (6.9)"))
            .hint("Linux 6.9 or later notices the end of a single thread at once")
    } else {
        Verdict::missing(format!("{found}, without descriptors of processes (5.3)"))
            .hint("install Linux 5.3 or later, better 6.9")
    })
}

pub(super) fn sched_ext(host: &Host) -> Result<Verdict, ProbeError> {
    if let Some(state) = read_if_there("/sys/kernel/sched_ext/state")? {
        let loaded = read_if_there("/sys/kernel/sched_ext/root/ops")?;
        return Ok(match loaded {
            Some(name) => Verdict::limited(format!("{state}: scheduler `{name}` is loaded"))
                .hint("another loaded scheduler decides about ordinary threads; unload it"),
            None => Verdict::good(format!("built in; {state}")),
        });
    }
    let version = host.version.clone()?;
    let since = Version { major: 6, minor: 12 };
    Ok(if version < since {
        Verdict::missing("not in kernels before 6.12")
    } else if host.is_built_with("CONFIG_SCHED_CLASS_EXT")? {
        Verdict::unknown("built in, but sysfs does not show it")
    } else {
        Verdict::missing("this kernel was built without CONFIG_SCHED_CLASS_EXT")
    })
}
