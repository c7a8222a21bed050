//! Processes that never block, as a load of tests and trials.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use slackline_linux::sys::die_with_us;
use slackline_units::Span;

use crate::problem::Problem;

/// A process with one thread that never blocks. It is killed when this value is dropped.
pub(crate) struct BusyProcess(Child);

impl BusyProcess {
    /// Starts the process. If it is not killed, it ends after `2 × length + 60 s`.
    pub(crate) fn start(length: Span) -> Result<BusyProcess, Problem> {
        let program = std::env::current_exe()
            .map_err(|source| Problem::Unreadable { file: "/proc/self/exe".into(), source })?;
        let longest = length * 2 + Span::from_secs(60);
        let mut command = Command::new(&program);
        command.args(["load", "spin", "--length", &longest.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        die_with_us(&mut command);
        let child = command
            .spawn()
            .map_err(|source| Problem::Unreadable { file: program.clone(), source })?;
        // The process needs some time to start its loop.
        std::thread::sleep(Duration::from_millis(100));
        Ok(BusyProcess(child))
    }

    /// Returns the id of the process.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("process ids are small")
    }
}

impl Drop for BusyProcess {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
