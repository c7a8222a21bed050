//! Measurement of the CPU time of a dispatcher pass under load. Admission adds this time to each
//! reservation, so that all admitted reservations can be delivered.
//!
//! A measuring thread makes the system calls of a dispatcher pass, at the priority of a dispatcher.
//! The measuring thread sleeps on a timer, reads the CPU time of another thread, makes that thread
//! ordinary and then real-time again. The other thread runs at a lower priority, as the chosen vCPU
//! would. The other thread writes to more memory than the inner caches of a CPU can contain, so
//! that each pass finds cold caches. The CPU time of a pass is measured by the kernel and includes
//! both context switches. The result is the 95th percentile over all passes.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use slackline_units::{CpuId, CpuSet, Span};

use crate::dispatcher::wait_for;
use slackline_linux::step::FifoPriority;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, monotonic, own_tid, set_affinity, set_scheduling,
    thread_cpu_time,
};

/// Number of measured passes.
const PASSES: usize = 100;
/// Index of the pass whose time is the result. The passes are sorted by time, shortest first. The
/// five longest passes are ignored, because the host may have stalled in them.
const COUNTS: usize = PASSES * 95 / 100 - 1;

/// Time for which the measuring thread sleeps before each pass, while the other thread fills the
/// caches.
const SLEEP: Span = Span::from_us(200);

/// Size of the memory that the other thread of the measurement writes to, in 64-bit words.
const MEMORY: usize = 1 << 18;

const ORDINARY: SchedulingOf =
    SchedulingOf { class: Scheduling::Other { nice: 0 }, reset_on_fork: false };

/// Number of CPUs that are measured at the same time.
const AT_ONCE: usize = 8;

/// Measures the CPU time of a dispatcher pass on each of the CPUs, as the 95th percentile of 100
/// passes. Returns the value of the slowest CPU.
///
/// Takes at least 20 ms for every group of up to eight CPUs, which are measured at the same time.
/// While a CPU is measured, it runs nothing else.
///
/// # Errors
/// If the kernel refuses a thread, real-time priority or the affinity.
pub fn measure(cpus: &[CpuId]) -> io::Result<Span> {
    let mut most = Span::ZERO;
    for cpus in cpus.chunks(AT_ONCE) {
        let found: io::Result<Vec<Span>> = thread::scope(|scope| {
            let trials: Vec<_> =
                cpus.iter().map(|&cpu| scope.spawn(move || measure_on(cpu))).collect();
            trials.into_iter().map(|trial| trial.join().unwrap_or_else(|_| ended())).collect()
        });
        most = found?.into_iter().fold(most, Span::max);
    }
    Ok(most)
}

fn ended<T>() -> io::Result<T> {
    Err(io::Error::other("the thread that measures dispatch overhead ended without a result"))
}

fn measure_on(cpu: CpuId) -> io::Result<Span> {
    set_scheduling(own_tid(), &fifo(FifoPriority::DISPATCHER))?;
    set_affinity(own_tid(), &CpuSet::one(cpu))?;
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        // Ends the other thread, even if this thread returns early with an error.
        let _end = End(is_over);
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            let _ = tell.send(own_tid());
            let mut memory = vec![0_u64; MEMORY];
            while !is_over.load(Ordering::Relaxed) {
                memory.iter_mut().for_each(|word| *word = std::hint::black_box(*word + 1));
            }
        });
        let Ok(chosen) = told.recv() else { return ended() };
        let mut passes = [Span::ZERO; PASSES];
        let mut before = thread_cpu_time(own_tid())?;
        for took in &mut passes {
            pass(chosen)?;
            let now = thread_cpu_time(own_tid())?;
            *took = now - std::mem::replace(&mut before, now);
        }
        Ok(percentile_95(passes))
    })
}

/// Returns the 95th percentile of the times of the passes.
fn percentile_95(mut passes: [Span; PASSES]) -> Span {
    passes.sort_unstable();
    passes[COUNTS]
}

/// Makes the system calls of one dispatcher pass for the thread `chosen`.
fn pass(chosen: Tid) -> io::Result<()> {
    wait_for(&mut [], SLEEP);
    std::hint::black_box((monotonic(), thread_cpu_time(chosen)?));
    set_scheduling(chosen, &ORDINARY)?;
    set_scheduling(chosen, &fifo(FifoPriority::CHOSEN))?;
    std::hint::black_box(monotonic());
    Ok(())
}

fn fifo(priority: FifoPriority) -> SchedulingOf {
    let class = Scheduling::Fifo { priority: u32::from(priority.number()) };
    SchedulingOf { class, reset_on_fork: true }
}

/// Guard that ends the other thread of the measurement when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_linux::sys::get_affinity;

    /// Five of a hundred passes take longer than the 95th percentile.
    #[test]
    fn dispatch_overhead_is_the_95th_percentile_of_100_passes() {
        let passes = std::array::from_fn(|pass| Span::from_us(1 + pass as u64 * 37 % 100));
        assert_eq!(percentile_95(passes), Span::from_us(95));
    }

    #[test]
    fn measured_dispatch_overhead_is_between_1_us_and_5_ms() {
        let cpus: Vec<CpuId> = get_affinity(own_tid()).unwrap().iter().collect();
        match measure(&cpus) {
            // On any host, two context switches take more than a microsecond.
            Ok(look) => assert!(look > Span::from_us(1) && look < Span::from_ms(5), "{look}"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}"),
        }
    }
}
