//! Slackline's own dispatcher: an exact reservation under `edf`. Acts on the whole process.
//!
//! It runs as any live scenario does, on a thread of its own, until it is told to stop.

use std::io::PipeWriter;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;

use slackline_scenario::Scenario;
use slackline_units::{CpuId, CpuShare, Reservation, Time};

use super::LimitError;
use crate::cast::LoadOrder;
use crate::drive::{self, Finished, LiveError, Options};
use crate::fence::KeeperCommand;

/// What stays for everybody else, unless the target itself is so large that less is left.
const RESERVE: CpuShare = CpuShare::from_ppm(50_000);

/// The dispatcher at work.
#[derive(Debug)]
pub(super) struct Running {
    /// None once it has been waited for.
    thread: Option<JoinHandle<Result<Finished, LiveError>>>,
    /// Closed to stop it, which makes the other end readable.
    stop: Option<PipeWriter>,
}

fn scenario(pid: i32, target: Reservation) -> String {
    let reserve = RESERVE.min(CpuShare::ONE.less(target.share()));
    format!(
        "title = \"limit\"\nlength = \"24h\"\n\
         policy = {{ name = \"edf\", reserve = \"{reserve}\" }}\n\
         [host]\ncpus = 1\n[[domain]]\nname = \"limited\"\nlive = {{ pid = {pid} }}\n\
         share.edf = {{ slice = \"{}\", period = \"{}\", exact = true }}\n",
        target.slice(),
        target.period()
    )
}

pub(super) fn apply(
    cpu: CpuId,
    pid: i32,
    target: Reservation,
    keeper: KeeperCommand,
) -> Result<Running, LimitError> {
    let wrong = |error| LimitError::Live(Box::new(LiveError::Scenario(error)));
    let scenario = Scenario::read(&scenario(pid, target)).map_err(wrong)?;
    let no_pipe = |source| LimitError::Live(Box::new(LiveError::NoDispatcher { source }));
    let (stopped, stop) = std::io::pipe().map_err(no_pipe)?;
    let (begun, has_begun) = mpsc::channel();
    let body = move || {
        let mut tell = |_: Time| {
            // Only the first is waited for.
            let _ = begun.send(());
        };
        let load = |_: &LoadOrder<'_>| Command::new("false");
        let options = Options {
            cpus: vec![cpu],
            keeper,
            load: &load,
            stop: Some(stopped.as_fd()),
            progress: &mut tell,
        };
        drive::run(&scenario, options, &mut ())
    };
    let thread = std::thread::Builder::new().name("limit".into()).spawn(body).map_err(no_pipe)?;
    let mut running = Running { thread: Some(thread), stop: Some(stop) };
    // Nothing comes if it has ended before it began: then there is a reason.
    if has_begun.recv().is_err() {
        running.check()?;
    }
    Ok(running)
}

impl Running {
    /// # Errors
    /// Why it has ended.
    pub(super) fn check(&mut self) -> Result<(), LimitError> {
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(());
        }
        self.end()?;
        Err(LimitError::Ended { command: "slackline".into(), how: "its run is over".into() })
    }

    /// Takes the limit off.
    ///
    /// # Errors
    /// Why it had ended, or what could not be given back.
    pub(super) fn end(&mut self) -> Result<(), LimitError> {
        self.stop = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => Err(LimitError::Live(Box::new(error))),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            Some(Ok(Ok(_))) | None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop = None;
        // What it says nobody hears; the keeper tries again what could not be given back.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
