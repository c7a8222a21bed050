//! Probe for real-time threads of other programs, which can delay vCPUs.

use std::collections::BTreeMap;
use std::fs;

use super::parse::thread_stat;
use super::probe::{Host, ProbeError, Verdict};
use slackline_linux::step::priority::Ladder;

const FIFO: u32 = 1;
const ROUND_ROBIN: u32 = 2;
const DEADLINE: u32 = 6;

/// Difference between the dispatchers' real-time priority, 99, and the lowest priority that
/// Slackline gives to a vCPU.
const LEAST_RAISED: u32 = 99 - Ladder::LEAST.number() as u32;

/// Number of real-time threads that have the same urgency and the same name, for each pair of
/// urgency and name.
type Kinds = BTreeMap<(Urgency, String), u64>;

/// Urgency of a real-time thread. The most urgent class comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    Deadline,
    /// Thread with a real-time priority. The number is 99 less that priority.
    Below99(u32),
}

pub(super) fn real_time(_: &Host) -> Result<Verdict, ProbeError> {
    let (kinds, kernel_threads) = scan()?;
    let count: u64 = kinds.values().sum();
    let list = kinds.iter().take(4).map(|((urgency, name), number)| {
        let times = if *number > 1 { format!(", {number} times") } else { String::new() };
        match urgency {
            Urgency::Deadline => format!("`{name}` by deadline{times}"),
            Urgency::Below99(below) => format!("`{name}` at {}{times}", 99 - below),
        }
    });
    let list = list.collect::<Vec<_>>().join("; ");
    let kernel = format!("{kernel_threads} threads of the kernel");
    let verdict = match kinds.keys().next() {
        None => Verdict::good(format!("none except {kernel}")),
        // The first thread is at least as urgent as a vCPU at the lowest priority of Slackline.
        Some((urgency, _)) if *urgency <= Urgency::Below99(LEAST_RAISED) => {
            Verdict::limited(format!("{kernel}, {count} of other programs: {list}"))
                .hint("end these threads, or move them to CPUs that Slackline does not schedule")
        }
        Some(_) => Verdict::good(format!("{kernel}, {count} of other programs: {list}")),
    };
    Ok(verdict.figure("other_realtime_threads", count))
}

/// Returns the real-time threads of other programs, and the number of real-time threads of the
/// kernel itself.
fn scan() -> Result<(Kinds, u64), ProbeError> {
    let (mut kinds, mut kernel_threads) = (Kinds::new(), 0);
    let own = std::process::id().to_string();
    let all = fs::read_dir("/proc").map_err(ProbeError::tried("list /proc"))?;
    // Errors are ignored below: a process or thread that exits during the scan is left out.
    let processes = all.flatten().filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit) && name != own.as_str()
    });
    for thread in processes.flat_map(|process| fs::read_dir(process.path().join("task"))).flatten()
    {
        let Ok(thread) = thread else { continue };
        let Ok(text) = fs::read(thread.path().join("stat")) else { continue };
        let Some(stat) = thread_stat(&String::from_utf8_lossy(&text)) else { continue };
        let urgency = match stat.policy {
            DEADLINE => Urgency::Deadline,
            FIFO | ROUND_ROBIN => Urgency::Below99(99_u32.saturating_sub(stat.priority)),
            _ => continue,
        };
        if stat.kernel {
            kernel_threads += 1;
        } else {
            *kinds.entry((urgency, stat.name)).or_default() += 1;
        }
    }
    Ok((kinds, kernel_threads))
}
