//! The simulator with many vCPUs, compared with a bare event heap of equal size. Every simulator
//! needs at least such a heap.
//!
//! There is one CPU with `n` vCPUs. Each vCPU computes 0.1 ms and then sleeps for about `n` ms. So
//! the work per simulated second does not depend on `n`. The cost of an event is the difference
//! between a long and a short run, divided by the difference in their numbers of events. The long
//! and the short run both contain the set-up and the first wakes of all vCPUs, so the difference
//! contains neither.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use slackline_scenario::Scenario;

use crate::report::table;

const SIZES: [usize; 5] = [10, 64, 1_000, 10_000, 100_000];

/// Number of events per simulated second. Some vCPU wakes every millisecond, and each wake causes
/// about two events.
const EVENTS_A_SECOND: u64 = 2_000;

/// Difference between the numbers of events of the long and the short run.
const EVENTS: u64 = 2_000_000;

/// Measures the simulator with every number of vCPUs, `rounds` times. Returns Markdown.
pub(crate) fn run(rounds: u32) -> Result<String> {
    let mut costs = Vec::new();
    for size in SIZES {
        let (mut event, mut heap) = (f64::MAX, f64::MAX);
        for _ in 0..rounds {
            event = event.min(cost_of_event(size)?);
            heap = heap.min(cost_of_heap(size));
        }
        costs.push((size, event, heap));
    }
    let (_, first_event, first_heap) = costs[0];
    let mut rows = Vec::new();
    for (size, event, heap) in costs {
        let (short, long) = (memory_of(size, EVENTS)?, memory_of(size, 10 * EVENTS)?);
        rows.push(vec![
            size.to_string(),
            format!("{event:.0}"),
            format!("{:.1}", event / first_event),
            format!("{heap:.0}"),
            format!("{:.1}", heap / first_heap),
            format!("{short}"),
            format!("{long}"),
        ]);
    }
    let heads = [
        "vCPUs",
        "ns per event",
        "multiple of the value with 10 vCPUs",
        "ns per event of a bare heap",
        "multiple of the value with 10 entries",
        "peak KiB",
        "peak KiB of a run with 10 times the events",
    ];
    Ok(format!("EDF on one CPU; the fastest of {rounds} rounds.\n\n{}", table(&heads, &rows)))
}

/// Runs a scenario with the given numbers of vCPUs and events. Returns the peak memory of this
/// process in KiB.
pub(crate) fn peak_memory(vcpus: usize, events: u64) -> Result<u64> {
    slackline_sim::run(&scenario(vcpus, events)?, &mut ())?;
    peak()
}

/// Returns the peak memory of this process so far, in KiB.
pub(crate) fn peak() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("no /proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.split_whitespace().next()).context("no VmHWM")?;
    peak.parse().context("VmHWM is not a number")
}

/// Returns the peak memory of a run in KiB. The run is in a child process, because peak memory is
/// counted per process.
fn memory_of(vcpus: usize, events: u64) -> Result<u64> {
    let itself = std::env::current_exe().context("cannot read the path of this program")?;
    let words = ["memory".to_owned(), vcpus.to_string(), events.to_string()];
    let output =
        Command::new(itself).args(words).output().context("cannot start this program again")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).context("not a text")?;
    text.trim().parse().with_context(|| format!("not a number: {text}"))
}

fn scenario(vcpus: usize, events: u64) -> Result<Scenario> {
    // The second term is the longest first sleep. With it every vCPU wakes at least once.
    let seconds = (events / EVENTS_A_SECOND) + vcpus as u64 * 3 / 2_000;
    let (least, most) = (vcpus * 500, vcpus * 1_500);
    let mut text = format!(
        "title = \"many\"\nlength = \"{seconds}s\"\npolicy = {{ name = \"edf\" }}\n\
         [host]\ncpus = 1\n"
    );
    // There are two domains, because a domain has at most 65,536 vCPUs.
    for half in ["a", "b"] {
        text += &format!(
            "[[domain]]\nname = \"{half}\"\nvcpus = {}\n\
             work = {{ kind = \"interactive\", compute = \"100us\", \
             sleep = \"uniform {least}us {most}us\" }}\n\
             share.edf = {{ slice = \"900us\", period = \"{vcpus}ms\", exact = true }}\n",
            vcpus / 2
        );
    }
    Ok(Scenario::read(&text)?)
}

fn cost_of_event(vcpus: usize) -> Result<f64> {
    let time = |events: u64| -> Result<(f64, u64)> {
        let scenario = scenario(vcpus, events)?;
        let start = Instant::now();
        let outcome = slackline_sim::run(&scenario, &mut ())?;
        Ok((start.elapsed().as_nanos() as f64, outcome.events))
    };
    let ((short, few), (long, many)) = (time(EVENTS / 10)?, time(EVENTS / 10 + EVENTS)?);
    Ok((long - short) / (many - few) as f64)
}

/// Returns the cost of a pop and a push in a heap of `size` small events. An event has a time, a
/// rank, a serial number and an id.
fn cost_of_heap(size: usize) -> f64 {
    let mut heap = BinaryHeap::new();
    let mut word = 1_u64;
    let mut later = move || {
        // Marsaglia's xorshift is used because any cheap generator is good enough here.
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word % (size as u64 * 1_000_000)
    };
    for id in 0..u32::try_from(size).expect("a size fits in 32 bits") {
        heap.push(Reverse((later(), 0_u8, u64::from(id), id)));
    }
    let mut sequence = size as u64;
    let mut turn = |times: u64| {
        for _ in 0..times {
            let Reverse((time, rank, _, id)) = heap.pop().expect("the heap keeps its size");
            sequence += 1;
            heap.push(Reverse((time + size as u64 * 500_000 + later(), rank, sequence, id)));
        }
    };
    turn(EVENTS / 10);
    let start = Instant::now();
    turn(EVENTS);
    let took = start.elapsed().as_nanos() as f64;
    black_box(heap);
    took / EVENTS as f64
}
