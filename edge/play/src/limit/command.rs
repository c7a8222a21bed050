//! Limits on a process by a program that the user names, such as `cpulimit`.
//!
//! The program runs in a process group of its own and is ended when the limit is removed. The
//! program first receives a signal, so that it can clean up. If it has not ended after a second, it
//! is killed. Many such programs stop and continue the limited process, and may leave the process
//! stopped when they are killed. So after the program has ended, Slackline continues the limited
//! process and restores its scheduling and affinity.

use std::fmt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use slackline_units::Reservation;

use super::LimitError;
use slackline_fence::Fence;
use slackline_linux::step::Hold;
use slackline_linux::sys::{Tid, signal_group};
use slackline_linux::thread::ThreadRef;

const PID: &str = "{pid}";
const PERCENT: &str = "{percent}";

/// Time that the limiting program may take to clean up before it is killed.
const END_WITHIN: Duration = Duration::from_secs(1);

/// Command line of a limiting program, split into words. `{pid}` is replaced by the process id, and
/// `{percent}` by the share in percent of one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    words: Vec<String>,
}

impl FromStr for CommandLine {
    type Err = LimitError;

    /// Splits the text into words at white space. No shell interprets the text.
    fn from_str(text: &str) -> Result<CommandLine, LimitError> {
        for missing in [PID, PERCENT] {
            if !text.contains(missing) {
                return Err(LimitError::BadCommand { command: text.into(), missing });
            }
        }
        Ok(CommandLine { words: text.split_whitespace().map(str::to_owned).collect() })
    }
}

impl fmt::Display for CommandLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.words.join(" "))
    }
}

impl CommandLine {
    fn filled(&self, pid: Tid, target: Reservation) -> Vec<String> {
        let percent = percent(target);
        let fill = |word: &String| word.replace(PID, &pid.to_string()).replace(PERCENT, &percent);
        self.words.iter().map(fill).collect()
    }
}

/// Returns the share of one CPU in percent, with at most four decimals and no trailing zeros.
fn percent(target: Reservation) -> String {
    let ppm = target.share().ppm();
    let text = format!("{}.{:04}", ppm / 10_000, ppm % 10_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The limiting program while it runs.
#[derive(Debug)]
pub(super) struct LimitCommand {
    child: Child,
    command: String,
    /// Fence (keeper process and journal) that restores the limited process. The fence restores the
    /// process only after the program has ended.
    pub(super) fence: Fence,
}

pub(super) fn apply(
    command: &CommandLine,
    thread: &ThreadRef,
    target: Reservation,
    mut fence: Fence,
) -> Result<LimitCommand, LimitError> {
    let words = command.filled(thread.pid(), target);
    let text = words.join(" ");
    fence.hold(thread, Hold::Process)?;
    let child = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|source| LimitError::NotStarted { command: text.clone(), source })?;
    let mut running = LimitCommand { child, command: text, fence };
    if let Some(helper) = running.id() {
        running.fence.add_helper(thread.tid(), helper)?;
    }
    Ok(running)
}

impl LimitCommand {
    fn id(&self) -> Option<Tid> {
        i32::try_from(self.child.id()).ok().and_then(Tid::new)
    }

    pub(super) fn check(&mut self) -> Result<(), LimitError> {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                Err(LimitError::Ended { command: self.command.clone(), how: how(status) })
            }
            Ok(None) => Ok(()),
            Err(source) => Err(LimitError::NotStarted { command: self.command.clone(), source }),
        }
    }

    /// Ends the limiting program, and so removes the limit.
    pub(super) fn end(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        self.signal(Signal::TERM);
        let deadline = Instant::now() + END_WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                self.signal(Signal::KILL);
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends a signal to the program's process group. Must not be called after the program has been
    /// waited for, since the id of its group is no longer valid then.
    fn signal(&self, signal: Signal) {
        if let Some(id) = self.id() {
            let _ = signal_group(id, signal);
        }
    }
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "neither an exit code nor a signal is known".into(),
    }
}

impl Drop for LimitCommand {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use slackline_units::{CpuShare, Span};

    use super::*;

    fn percent_of(ppm: u32) -> String {
        percent(super::super::target(CpuShare::from_ppm(ppm), Span::from_secs(1)).unwrap())
    }

    #[test]
    fn limiter_command_variables_are_replaced_by_process_id_and_share() {
        let line: CommandLine = "limit  --pid={pid} -l {percent}".parse().unwrap();
        let target = super::super::target(CpuShare::from_ppm(25_000), Span::from_ms(10)).unwrap();
        let words = line.filled(Tid::new(7).unwrap(), target);
        assert_eq!(words, ["limit", "--pid=7", "-l", "2.5"]);
        assert_eq!([1, 500_000, 1_000_000].map(percent_of), ["0.0001", "50", "100"]);
    }

    #[test]
    fn limiter_command_that_lacks_a_variable_is_refused() {
        for text in ["", "limit {pid}", "limit {percent}"] {
            let refused = text.parse::<CommandLine>();
            assert!(matches!(refused, Err(LimitError::BadCommand { .. })), "{text}");
        }
    }
}
