//! A thread on each managed CPU, more urgent than everything there: it sleeps until its CPU needs
//! it, looks, and sleeps again.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use slackline_units::{CpuId, CpuSet, Span};

use crate::machine::{LiveHost, MachineError};
use crate::sys::{
    Scheduling, SchedulingOf, own_tid, set_affinity, set_scheduling, thread_cpu_time,
};
use crate::way::FifoPriority;

/// How long a dispatcher sleeps at most: on an idle CPU some kernels do not tell of a wake.
const NAP: Span = Span::from_ms(20);

/// What looks cost is told after so many.
const LOOKS: u64 = 64;

/// Why a CPU is not looked after, or no longer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DispatcherError {
    #[error("cannot schedule in real time here: {source}")]
    NoRealTime { source: io::Error },
    #[error("cannot set up a dispatcher: {source}")]
    NotStarted { source: io::Error },
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error("the dispatcher of {cpu} panicked")]
    Panicked { cpu: CpuId },
}

/// Makes the calling thread real-time.
fn become_real_time(priority: FifoPriority) -> Result<(), DispatcherError> {
    let class = Scheduling::Fifo { priority: u32::from(priority.number()) };
    let wanted = SchedulingOf { class, reset_on_fork: true };
    set_scheduling(own_tid(), &wanted).map_err(|source| DispatcherError::NoRealTime { source })
}

/// A thread that looks after one CPU.
pub(crate) struct Dispatcher {
    cpu: CpuId,
    thread: JoinHandle<Result<(), DispatcherError>>,
    poke: OwnedFd,
}

impl Dispatcher {
    pub(crate) fn start(
        cpu: CpuId,
        real: CpuId,
        machine: Arc<LiveHost>,
        watched: Option<OwnedFd>,
    ) -> Result<Dispatcher, DispatcherError> {
        let not_started = |source| DispatcherError::NotStarted { source };
        let poke = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| not_started(errno.into()))?;
        let poked = poke.try_clone().map_err(not_started)?;
        let (ready, is_ready) = mpsc::channel();
        let body = move || {
            let result = prepare(real).and_then(|()| {
                // Nobody listens only if the run has been given up.
                let _ = ready.send(());
                dispatch(cpu, &machine, &poked, watched.as_ref())
            });
            drop(ready);
            if result.is_err() {
                machine.abandon();
            }
            result
        };
        let thread = std::thread::Builder::new().name(format!("dispatcher {cpu}"));
        let thread = thread.spawn(body).map_err(not_started)?;
        // If it could not get ready, joining it says why.
        let _ = is_ready.recv();
        Ok(Dispatcher { cpu, thread, poke })
    }
}

/// Makes this thread a dispatcher: more urgent than everything, and only then bound to its CPU.
fn prepare(real: CpuId) -> Result<(), DispatcherError> {
    become_real_time(FifoPriority::DISPATCHER)?;
    set_affinity(own_tid(), &CpuSet::one(real))
        .map_err(|source| DispatcherError::NotStarted { source })
}

/// The loop of a dispatcher.
fn dispatch(
    cpu: CpuId,
    machine: &LiveHost,
    poked: &OwnedFd,
    watched: Option<&OwnedFd>,
) -> Result<(), DispatcherError> {
    let not_started = |source| DispatcherError::NotStarted { source };
    let mut counted = thread_cpu_time(own_tid()).map_err(not_started)?;
    let mut looks = 0;
    loop {
        if looks == LOOKS {
            looks = 0;
            let used = thread_cpu_time(own_tid()).map_err(not_started)?;
            let look = (used - std::mem::replace(&mut counted, used)) / LOOKS;
            machine.costs(cpu, look);
        }
        looks += 1;
        if machine.is_over() {
            break;
        }
        let wait = machine.look(cpu)?.map(|due| machine.until(due));
        let mut fds = [poked, watched.unwrap_or(poked)].map(|fd| PollFd::new(fd, PollFlags::IN));
        wait_for(&mut fds, wait.unwrap_or(NAP).min(NAP));
        if !fds[0].revents().is_empty() {
            // Nothing to read means somebody else's poke was taken with an earlier one.
            let _ = rustix::io::read(poked, &mut [0_u8; 8]);
        }
    }
    let used = thread_cpu_time(own_tid()).map_err(not_started)?;
    machine.overhead(cpu, used);
    Ok(())
}

pub(crate) fn poke(dispatchers: &[Dispatcher]) {
    for dispatcher in dispatchers {
        // A counter that is full wakes it as well.
        let _ = rustix::io::write(&dispatcher.poke, &1_u64.to_ne_bytes());
    }
}

pub(crate) fn stop_dispatchers(
    dispatchers: Vec<Dispatcher>,
    machine: &LiveHost,
) -> Result<(), DispatcherError> {
    poke(&dispatchers);
    let mut result = Ok(());
    for dispatcher in dispatchers {
        let cpu = dispatcher.cpu;
        let joined = dispatcher.thread.join();
        let joined = joined.unwrap_or(Err(DispatcherError::Panicked { cpu }));
        result = result.and(joined);
    }
    debug_assert!(machine.is_over());
    result
}

/// Waits for one of `fds`, at most this long. An interrupted wait is a short one.
pub(crate) fn wait_for(fds: &mut [PollFd<'_>], wait: Span) {
    let part = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let second = Span::from_secs(1);
    let timeout = Timespec { tv_sec: part(wait / second), tv_nsec: part((wait % second).ns()) };
    let _ = poll(fds, Some(&timeout));
}
