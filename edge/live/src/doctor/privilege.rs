//! Probes of this process's privileges over threads, and of the amount of memory that it may lock
//! in RAM.

use rustix::process::{Resource, Rlimit, getrlimit};

use super::parse::effective_capabilities;
use super::probe::{Host, ProbeError, Verdict, not_understood, read};

/// A capability: the number of its bit, its name, and the action for which Slackline needs it.
struct Capability(u32, &'static str, &'static str);

const KILL: Capability = Capability(5, "CAP_KILL", "stop threads of other users");
const IPC_LOCK: Capability = Capability(14, "CAP_IPC_LOCK", "lock memory without a limit");
const SYS_NICE: Capability = Capability(23, "CAP_SYS_NICE", "schedule threads of other users");

/// Real-time priority that a dispatcher needs.
const TOP_PRIORITY: u64 = 99;

fn has(wanted: &Capability) -> Result<bool, ProbeError> {
    let path = "/proc/thread-self/status";
    let status = read(path)?;
    let held = effective_capabilities(&status)
        .ok_or_else(|| not_understood(path, "a status without CapEff"))?;
    Ok(held & 1 << wanted.0 != 0)
}

pub(super) fn privilege(host: &Host) -> Result<Verdict, ProbeError> {
    let mut lacking = Vec::new();
    for wanted in [&SYS_NICE, &KILL] {
        if !has(wanted)? {
            lacking.push(wanted);
        }
    }
    let user = if host.root { "root" } else { "not root" };
    let lacks =
        lacking.iter().map(|lack| format!("no {} to {}", lack.1, lack.2)).collect::<Vec<_>>();
    let limit = getrlimit(Resource::Rtprio).current;
    let limit_text = limit.map_or("unlimited".into(), |limit| limit.to_string());
    if lacking.is_empty() {
        return Ok(Verdict::good(format!("{user}, with {} and {}", SYS_NICE.1, KILL.1)));
    }
    let found = format!("{user}; {}; real-time priority limit {limit_text}", lacks.join("; "));
    let enough = limit.is_none_or(|limit| limit >= TOP_PRIORITY);
    let hint = "run as root, or give the program CAP_SYS_NICE, CAP_KILL, CAP_IPC_LOCK and \
                CAP_PERFMON by `setcap`";
    // A sufficient priority limit allows real-time priorities for threads of the same user.
    let allowed = has(&SYS_NICE)? || enough;
    let verdict = if allowed { Verdict::limited(found) } else { Verdict::missing(found) };
    Ok(verdict.hint(hint))
}

pub(super) fn memory_lock(_: &Host) -> Result<Verdict, ProbeError> {
    /// Amount of memory in bytes that a process with some tens of threads locks. Each thread has a
    /// stack of 2 MiB, and the program's own memory comes in addition.
    const TYPICAL_LOCKED_MEMORY: u64 = 256 << 20;
    if has(&IPC_LOCK)? {
        return Ok(Verdict::good(format!("unlimited, by {}", IPC_LOCK.1)));
    }
    let Rlimit { current, .. } = getrlimit(Resource::Memlock);
    Ok(match current {
        None => Verdict::good("unlimited"),
        Some(bytes) => {
            let found = format!("up to {} KiB", bytes >> 10);
            let verdict = match bytes {
                0 => Verdict::missing(found),
                1..TYPICAL_LOCKED_MEMORY => Verdict::limited(found),
                _ => Verdict::good(found),
            };
            let verdict = verdict.figure("memory_lock_bytes", bytes);
            if bytes >= TYPICAL_LOCKED_MEMORY {
                return Ok(verdict);
            }
            verdict.hint(
                "raise `ulimit -l` (LimitMEMLOCK= in systemd), or give the program CAP_IPC_LOCK",
            )
        }
    })
}
