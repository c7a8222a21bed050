//! Probe of the free `SCHED_DEADLINE` bandwidth, by the kernel's own admission test.
//!
//! A thread can reserve at most one CPU, so the probe starts a thread for each CPU. One thread
//! after another asks for a whole CPU and, if that is refused, searches for the largest share that
//! is admitted. Each thread makes itself a deadline thread and stays in this class until it exits.
//! The kernel then frees the thread's bandwidth.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use slackline_units::{CpuShare, Span};

use super::probe::{Host, ProbeError, Verdict, read_list};
use super::realtime::limit;
use slackline_linux::sys::{Scheduling, SchedulingOf, own_tid, set_scheduling};

/// Period of the deadline reservations that the probe asks for. The kernel may keep the bandwidth
/// of a thread allocated for one period after the thread's exit, so this period is short. Kernels
/// allow periods down to 100 us.
const PERIOD: Span = Span::from_ms(10);
/// Resolution of the search for the largest share, in millionths of a CPU.
const STEP: u32 = 1_000;
/// Share of each CPU that the fair server reserves for ordinary threads by default, in kernels that
/// have a fair server.
const FAIR_SERVER: CpuShare = CpuShare::from_ppm(50_000);

pub(super) fn share(host: &Host) -> Result<Verdict, ProbeError> {
    let cpus = read_list("/sys/devices/system/cpu/online")?.len();
    let free = match free_share(cpus)? {
        Ok(free) => free,
        Err(error) => return Ok(refused(host, &error)),
    };
    let total = u32::try_from(cpus).unwrap_or(u32::MAX);
    let each = CpuShare::from_ppm(free.ppm() / total.max(1));
    let found = format!("{free} of {total}cpu is free, {each} on each CPU");
    let limit = limit()?.unwrap_or(CpuShare::ONE);
    if each > limit {
        // This happens if another program takes and releases deadline bandwidth during the search.
        return Ok(Verdict::unknown(format!("{found}, more than the limit of {limit}"))
            .hint("run `slackline doctor` again: another program changed deadline bandwidth"));
    }
    let server = if host.is_at_least(6, 12)? { FAIR_SERVER } else { CpuShare::NONE };
    // Smallest share that the search finds if no other thread uses deadline bandwidth: the limit
    // less the fair server's share and the resolution of the search.
    let explained = limit.less(server).less(CpuShare::from_ppm(STEP));
    let verdict = if each >= explained {
        Verdict::good(found)
    } else {
        Verdict::limited(format!(
            "{found}; without other SCHED_DEADLINE threads, {explained} would be free on each CPU"
        ))
        .hint("see the line other-realtime for threads that use SCHED_DEADLINE")
    };
    Ok(verdict.figure("deadline_free_ppm", free.ppm().into()))
}

fn refused(host: &Host, error: &io::Error) -> Verdict {
    match Errno::from_io_error(error) {
        Some(Errno::PERM) if host.root => {
            Verdict::missing(format!("SCHED_DEADLINE is refused to root: {error}"))
                .hint("let this process use all CPUs (see cpus), as the kernel requires")
        }
        Some(Errno::PERM) => Verdict::missing(format!("SCHED_DEADLINE is refused: {error}"))
            .hint("run as root, or give the program CAP_SYS_NICE"),
        _ => Verdict::unknown(format!("SCHED_DEADLINE is refused: {error}")),
    }
}

/// Starts `threads` threads, each of which takes the largest share that the kernel admits. Returns
/// the sum of these shares. The inner error is a refusal by the kernel for another reason than lack
/// of bandwidth.
fn free_share(threads: usize) -> Result<io::Result<CpuShare>, ProbeError> {
    /// Lock that allows one search at a time. Of two simultaneous searches, each would find only
    /// the bandwidth that the other has not taken.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let sum = take_all(threads);
    // After this wait the kernel has freed the bandwidth, so that the next search finds it.
    thread::sleep(Duration::from_nanos(PERIOD.ns()));
    sum
}

fn take_all(threads: usize) -> Result<io::Result<CpuShare>, ProbeError> {
    thread::scope(|scope| {
        // Each thread keeps its share until its sender is dropped, when this closure returns.
        let mut holds: Vec<Sender<()>> = Vec::new();
        let mut sum = 0_u32;
        for _ in 0..threads {
            let (hold, held) = channel();
            let (answer, answered) = channel();
            let work = move || {
                // If the receiver is gone, the answer is no longer needed.
                let _ = answer.send(take_most());
                let _ = held.recv();
            };
            thread::Builder::new()
                .name("doctor".into())
                .spawn_scoped(scope, work)
                .map_err(ProbeError::tried("start a thread"))?;
            holds.push(hold);
            match answered.recv().map_err(|_| ProbeError::NoAnswer)? {
                Ok(CpuShare::NONE) => break,
                Ok(share) => sum = sum.saturating_add(share.ppm()),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(CpuShare::from_ppm(sum)))
    })
}

/// Makes the calling thread a deadline thread with the largest share that the kernel admits,
/// rounded down to a thousandth of a CPU. If the kernel refuses even a thousandth, the thread stays
/// ordinary, and the result is zero.
fn take_most() -> io::Result<CpuShare> {
    if ask(CpuShare::ONE)? {
        return Ok(CpuShare::ONE);
    }
    let (mut admitted, mut refused) = (0, CpuShare::ONE.ppm() / STEP);
    while refused - admitted > 1 {
        let middle = admitted.midpoint(refused);
        if ask(CpuShare::from_ppm(middle * STEP))? {
            admitted = middle;
        } else {
            refused = middle;
        }
    }
    Ok(CpuShare::from_ppm(admitted * STEP))
}

/// Asks the kernel to admit this deadline share for the calling thread. Returns true if the kernel
/// admits it.
fn ask(share: CpuShare) -> io::Result<bool> {
    let runtime = PERIOD * u64::from(share.ppm()) / u64::from(CpuShare::ONE.ppm());
    let class = Scheduling::Deadline { runtime, deadline: PERIOD, period: PERIOD };
    // The kernel lets a deadline thread start other threads only with reset-on-fork.
    let to = SchedulingOf { class, reset_on_fork: true };
    match set_scheduling(own_tid(), &to) {
        Ok(()) => Ok(true),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Ok(false),
        Err(error) => Err(error),
    }
}
