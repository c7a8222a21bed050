//! Dispatchers: each managed CPU has a thread with a higher priority than all other threads on that
//! CPU. The thread sleeps until its CPU needs a decision, makes a scheduling pass, and sleeps
//! again.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackline_units::{CpuId, CpuSet, Span};

use crate::live_host::{LiveHost, LiveHostError};
use slackline_linux::step::FifoPriority;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, online_cpus, own_tid, set_affinity, set_scheduling,
    thread_cpu_time,
};

/// Longest sleep of the listener, the thread that reads events of unmanaged CPUs. A long sleep is
/// possible because vCPUs are pinned to managed CPUs, and because the kernel wakes the listener
/// when an event ring fills.
const NAP_ELSEWHERE: Span = Span::from_ms(50);

/// Pause of the listener after each pass over the unmanaged CPUs, so that it adds little load.
const BREATH: Span = Span::from_us(50);

/// Number of dispatcher passes over which the average CPU time of a pass is measured and reported.
const LOOKS: u64 = 64;

/// Reason why a CPU could not get a dispatcher, or why its dispatcher ended before the run ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DispatcherError {
    #[error("cannot use real-time scheduling: {source}")]
    NoRealTime { source: io::Error },
    #[error("cannot set up a dispatcher: {source}")]
    NotStarted { source: io::Error },
    #[error(transparent)]
    Host(#[from] LiveHostError),
    #[error("the dispatcher of {} panicked", whose(*cpu))]
    Panicked { cpu: Option<CpuId> },
}

/// Returns the name of a CPU for messages about its dispatcher. If `cpu` is `None`, the name stands
/// for the unmanaged CPUs.
pub(crate) fn whose(cpu: Option<CpuId>) -> String {
    cpu.map_or_else(|| "other CPUs".into(), |cpu| cpu.to_string())
}

/// Gives the calling thread the class `SCHED_FIFO` with a priority.
fn become_real_time(priority: FifoPriority) -> Result<(), DispatcherError> {
    let class = Scheduling::Fifo { priority: u32::from(priority.number()) };
    let wanted = SchedulingOf { class, reset_on_fork: true };
    set_scheduling(own_tid(), &wanted).map_err(|source| DispatcherError::NoRealTime { source })
}

/// A dispatcher thread, which schedules one managed CPU, or a listener thread, which reads the
/// events of all other CPUs.
pub(crate) struct Dispatcher {
    /// CPU that the dispatcher schedules. `None` for a listener or another thread that schedules no
    /// CPU.
    cpu: Option<CpuId>,
    /// Id of the thread. `None` if the preparation of the thread failed.
    tid: Option<Tid>,
    thread: DispatcherThread,
}

type DispatcherThread = JoinHandle<Result<(), DispatcherError>>;

impl Dispatcher {
    /// Starts the dispatcher of a managed CPU. `cpu` is the number of the CPU in the run, and
    /// `real` its number in the kernel.
    pub(crate) fn start(
        cpu: CpuId,
        real: CpuId,
        host: Arc<LiveHost>,
    ) -> Result<Dispatcher, DispatcherError> {
        let fds = host.fds_of(cpu).map_err(|source| DispatcherError::NotStarted { source })?;
        let body = move |ready: mpsc::Sender<Tid>| {
            let result = prepare(FifoPriority::DISPATCHER, CpuSet::one(real)).and_then(|()| {
                // Sending fails only if the run has been abandoned.
                let _ = ready.send(own_tid());
                dispatch(cpu, &host, &fds)
            });
            if result.is_err() {
                host.abandon();
            }
            result
        };
        let (thread, tid) = spawn(format!("dispatcher {cpu}"), body)?;
        Ok(Dispatcher { cpu: Some(cpu), tid, thread })
    }

    /// Starts the listener, which reads wake-ups on unmanaged CPUs. Returns `None` if all CPUs are
    /// managed, or if the kernel reports no events.
    pub(crate) fn start_elsewhere(
        host: Arc<LiveHost>,
    ) -> Result<Option<Dispatcher>, DispatcherError> {
        let fds = host.fds_elsewhere();
        let (cpus, fds) = fds.map_err(|source| DispatcherError::NotStarted { source })?;
        if cpus.is_empty() {
            return Ok(None);
        }
        let body = move |ready: mpsc::Sender<Tid>| {
            let result = prepare(FifoPriority::KEEPER, cpus).and_then(|()| {
                let _ = ready.send(own_tid());
                listen(&host, &fds)
            });
            if result.is_err() {
                host.abandon();
            }
            result
        };
        let (thread, tid) = spawn("listener".into(), body)?;
        Ok(Some(Dispatcher { cpu: None, tid, thread }))
    }

    /// Starts a real-time thread that does other work than dispatching. It runs on unmanaged CPUs
    /// if there are any.
    pub(crate) fn start_beside(
        host: Arc<LiveHost>,
        work: impl FnOnce(&LiveHost) -> Result<(), DispatcherError> + Send + 'static,
    ) -> Result<Dispatcher, DispatcherError> {
        let no_dispatcher = |source| DispatcherError::NotStarted { source };
        let mut cpus = online_cpus().map_err(no_dispatcher)?;
        host.real_cpus().for_each(|cpu| cpus.remove(cpu));
        let body = move |ready: mpsc::Sender<Tid>| {
            let prepared = match cpus.is_empty() {
                true => become_real_time(FifoPriority::KEEPER),
                false => prepare(FifoPriority::KEEPER, cpus),
            };
            let result = prepared.and_then(|()| {
                let _ = ready.send(own_tid());
                work(&host)
            });
            if result.is_err() {
                host.abandon();
            }
            result
        };
        let (thread, tid) = spawn("hears".into(), body)?;
        Ok(Dispatcher { cpu: None, tid, thread })
    }

    /// Returns the id of the thread. `None` if the preparation of the thread failed.
    pub(crate) fn tid(&self) -> Option<Tid> {
        self.tid
    }
}

/// Starts a thread and waits until its preparation has succeeded or failed.
fn spawn(
    name: String,
    body: impl FnOnce(mpsc::Sender<Tid>) -> Result<(), DispatcherError> + Send + 'static,
) -> Result<(DispatcherThread, Option<Tid>), DispatcherError> {
    let (ready, is_ready) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name).spawn(move || body(ready));
    let thread = thread.map_err(|source| DispatcherError::NotStarted { source })?;
    // If the preparation failed, joining the thread returns the error.
    let tid = is_ready.recv().ok();
    Ok((thread, tid))
}

/// Gives the calling thread a real-time priority, and then binds it to CPUs. In the reverse order,
/// real-time threads on those CPUs could delay the thread before it has its priority.
fn prepare(priority: FifoPriority, cpus: CpuSet) -> Result<(), DispatcherError> {
    become_real_time(priority)?;
    set_affinity(own_tid(), &cpus).map_err(|source| DispatcherError::NotStarted { source })
}

/// Runs the main loop of a dispatcher: waits until its CPU has events or its timer expires, makes a
/// dispatcher pass, and repeats.
fn dispatch(cpu: CpuId, host: &LiveHost, fds: &[OwnedFd]) -> Result<(), DispatcherError> {
    let no_dispatcher = |source| DispatcherError::NotStarted { source };
    let mut counted = thread_cpu_time(own_tid()).map_err(no_dispatcher)?;
    let mut looks = 0;
    loop {
        if looks == LOOKS {
            looks = 0;
            let used = thread_cpu_time(own_tid()).map_err(no_dispatcher)?;
            let look = (used - std::mem::replace(&mut counted, used)) / LOOKS;
            host.costs(cpu, look);
        }
        looks += 1;
        if host.is_over() {
            break;
        }
        let wait = host.reschedule(cpu)?.map(|due| host.until(due));
        let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        wait_for(&mut polled, wait.unwrap_or(host.nap()).min(host.nap()));
        if !polled[0].revents().is_empty() {
            // The read fails if an earlier read has already cleared the counter. That is no error.
            let _ = rustix::io::read(&fds[0], &mut [0_u8; 8]);
        }
    }
    let used = thread_cpu_time(own_tid()).map_err(no_dispatcher)?;
    host.overhead(cpu, used);
    Ok(())
}

/// Runs the main loop of the listener. The listener pauses after each pass over the unmanaged CPUs.
/// Without the pause, the listener would add much load to a busy host, on which many threads wake.
fn listen(host: &LiveHost, fds: &[OwnedFd]) -> Result<(), DispatcherError> {
    while !host.is_over() {
        host.apply_unmanaged_events()?;
        let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        if wait_for(&mut polled, NAP_ELSEWHERE) {
            std::thread::sleep(std::time::Duration::from_nanos(BREATH.ns()));
        }
    }
    Ok(())
}

/// Waits until all dispatchers have ended after the run. Returns the first error.
pub(crate) fn stop_dispatchers(
    dispatchers: Vec<Dispatcher>,
    host: &LiveHost,
) -> Result<(), DispatcherError> {
    host.call_all();
    let mut result = Ok(());
    for dispatcher in dispatchers {
        let cpu = dispatcher.cpu;
        let joined = dispatcher.thread.join();
        let joined = joined.unwrap_or(Err(DispatcherError::Panicked { cpu }));
        result = result.and(joined);
    }
    debug_assert!(host.is_over());
    result
}

/// Waits until one of `fds` is ready, for at most `wait`. Returns true if one is ready. Returns
/// early if a signal interrupts the wait.
pub(crate) fn wait_for(fds: &mut [PollFd<'_>], wait: Span) -> bool {
    let part = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let second = Span::from_secs(1);
    let timeout = Timespec { tv_sec: part(wait / second), tv_nsec: part((wait % second).ns()) };
    poll(fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
}
