//! A thread on each managed CPU, more urgent than everything there: it sleeps until its CPU needs
//! it, looks, and sleeps again.

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

/// How long what hears of wakes on other CPUs sleeps at most: who is kept on a managed one does not
/// wait there, and a ring that fills is told of.
const NAP_ELSEWHERE: Span = Span::from_ms(50);

/// How long to leave be what happens on other CPUs, after each look at them.
const BREATH: Span = Span::from_us(50);

/// What looks cost is told after so many.
const LOOKS: u64 = 64;

/// Why a CPU is not looked after, or no longer.
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

pub(crate) fn whose(cpu: Option<CpuId>) -> String {
    cpu.map_or_else(|| "other CPUs".into(), |cpu| cpu.to_string())
}

/// Makes the calling thread real-time.
fn become_real_time(priority: FifoPriority) -> Result<(), DispatcherError> {
    let class = Scheduling::Fifo { priority: u32::from(priority.number()) };
    let wanted = SchedulingOf { class, reset_on_fork: true };
    set_scheduling(own_tid(), &wanted).map_err(|source| DispatcherError::NoRealTime { source })
}

/// A thread that looks after one CPU, or after all that are not managed.
pub(crate) struct Dispatcher {
    cpu: Option<CpuId>,
    /// None if it could not get ready.
    tid: Option<Tid>,
    thread: DispatcherThread,
}

type DispatcherThread = JoinHandle<Result<(), DispatcherError>>;

impl Dispatcher {
    /// Starts the dispatcher of a managed CPU, which is `real` on this machine.
    pub(crate) fn start(
        cpu: CpuId,
        real: CpuId,
        host: Arc<LiveHost>,
    ) -> Result<Dispatcher, DispatcherError> {
        let fds = host.fds_of(cpu).map_err(|source| DispatcherError::NotStarted { source })?;
        let body = move |ready: mpsc::Sender<Tid>| {
            let result = prepare(FifoPriority::DISPATCHER, CpuSet::one(real)).and_then(|()| {
                // Nobody listens only if the run has been given up.
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

    /// Starts what hears of wakes on all other CPUs, if there are any and it can be heard of.
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

    /// Starts what does something beside all that, away from the managed CPUs where that can be.
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

    /// The thread; none if it could not get ready.
    pub(crate) fn tid(&self) -> Option<Tid> {
        self.tid
    }
}

/// Starts a thread, and waits until it is ready or has failed.
fn spawn(
    name: String,
    body: impl FnOnce(mpsc::Sender<Tid>) -> Result<(), DispatcherError> + Send + 'static,
) -> Result<(DispatcherThread, Option<Tid>), DispatcherError> {
    let (ready, is_ready) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name).spawn(move || body(ready));
    let thread = thread.map_err(|source| DispatcherError::NotStarted { source })?;
    // If it could not get ready, joining it says why.
    let tid = is_ready.recv().ok();
    Ok((thread, tid))
}

/// Makes this thread urgent, and only then binds it to CPUs: whoever is there may be so too.
fn prepare(priority: FifoPriority, cpus: CpuSet) -> Result<(), DispatcherError> {
    become_real_time(priority)?;
    set_affinity(own_tid(), &cpus).map_err(|source| DispatcherError::NotStarted { source })
}

/// The loop of a dispatcher.
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
        let wait = host.look(cpu)?.map(|due| host.until(due));
        let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        wait_for(&mut polled, wait.unwrap_or(host.nap()).min(host.nap()));
        if !polled[0].revents().is_empty() {
            // Nothing to read means that another call was taken with an earlier one.
            let _ = rustix::io::read(&fds[0], &mut [0_u8; 8]);
        }
    }
    let used = thread_cpu_time(own_tid()).map_err(no_dispatcher)?;
    host.overhead(cpu, used);
    Ok(())
}

/// The loop of what hears of wakes on other CPUs. It sleeps a little after each: there a wake may
/// be anybody's, and it must not become the load of a busy machine.
fn listen(host: &LiveHost, fds: &[OwnedFd]) -> Result<(), DispatcherError> {
    while !host.is_over() {
        host.look_elsewhere()?;
        let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        if wait_for(&mut polled, NAP_ELSEWHERE) {
            std::thread::sleep(std::time::Duration::from_nanos(BREATH.ns()));
        }
    }
    Ok(())
}

/// Ends all of them; the run is over.
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

/// Waits for one of `fds`, at most this long; says whether there was one. An interrupted wait is a
/// short one.
pub(crate) fn wait_for(fds: &mut [PollFd<'_>], wait: Span) -> bool {
    let part = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let second = Span::from_secs(1);
    let timeout = Timespec { tv_sec: part(wait / second), tv_nsec: part((wait % second).ns()) };
    poll(fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
}
