//! What a dispatch takes on this host, found out by trying: admission counts it, so that what is
//! admitted can be delivered.
//!
//! A thread does what a dispatcher does at each look, as urgently, while another one spins below it
//! as the chosen one would: it sleeps on a timer, reads what the other has used, and gives it
//! another priority and the old one again. What counts is the CPU time of the first as the kernel
//! tells it, which has the switches there and back in it.

use std::hint::spin_loop;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use slackline_units::{CpuId, CpuSet, Span};

use crate::dispatcher::wait_for;
use crate::step::FifoPriority;
use crate::sys::{
    Scheduling, SchedulingOf, Tid, monotonic, own_tid, set_affinity, set_scheduling,
    thread_cpu_time,
};

/// How many looks make a trial, and how many trials there are: the one in the middle counts, which
/// no stall of the machine moves.
const LOOKS: u64 = 12;
const TRIALS: usize = 7;

/// How long is slept before each look.
const SLEEP: Span = Span::from_us(100);

const ORDINARY: SchedulingOf =
    SchedulingOf { class: Scheduling::Other { nice: 0 }, reset_on_fork: false };

/// So many CPUs are tried at a time.
const AT_ONCE: usize = 8;

/// What a look takes on these CPUs: on the one where it takes longest.
///
/// Takes some ten milliseconds, in which each of the CPUs runs nothing else.
///
/// # Errors
/// When a thread, real-time priority or affinity is refused.
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
    Err(io::Error::other("a thread that measured ended without an answer"))
}

fn measure_on(cpu: CpuId) -> io::Result<Span> {
    set_scheduling(own_tid(), &fifo(FifoPriority::DISPATCHER))?;
    set_affinity(own_tid(), &CpuSet::one(cpu))?;
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        // However this ends, the other one does.
        let _end = End(is_over);
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            let _ = tell.send(own_tid());
            while !is_over.load(Ordering::Relaxed) {
                spin_loop();
            }
        });
        let Ok(chosen) = told.recv() else { return ended() };
        let mut trials = Vec::with_capacity(TRIALS);
        for _ in 0..TRIALS {
            trials.push(trial(chosen)?);
        }
        trials.sort_unstable();
        Ok(trials[TRIALS / 2])
    })
}

/// What each of some looks took.
fn trial(chosen: Tid) -> io::Result<Span> {
    let before = thread_cpu_time(own_tid())?;
    for _ in 0..LOOKS {
        wait_for(&mut [], SLEEP);
        std::hint::black_box((monotonic(), thread_cpu_time(chosen)?));
        set_scheduling(chosen, &ORDINARY)?;
        set_scheduling(chosen, &fifo(FifoPriority::CHOSEN))?;
        std::hint::black_box(monotonic());
    }
    Ok((thread_cpu_time(own_tid())? - before) / LOOKS)
}

fn fifo(priority: FifoPriority) -> SchedulingOf {
    let class = Scheduling::Fifo { priority: u32::from(priority.number()) };
    SchedulingOf { class, reset_on_fork: true }
}

/// Ends what is waited for.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::get_affinity;

    #[test]
    fn a_look_takes_something_and_its_price_is_found_on_every_cpu() {
        let cpus: Vec<CpuId> = get_affinity(own_tid()).unwrap().iter().collect();
        match measure(&cpus) {
            // What every look has in it, a switch there and back, takes a microsecond anywhere.
            Ok(look) => assert!(look > Span::from_us(1) && look < Span::from_ms(5), "{look}"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}"),
        }
    }
}
