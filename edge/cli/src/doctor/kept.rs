//! Timer that restores threads which a killed daemon left under the kernel's enforcement. The timer
//! is for hosts with systemd. On such hosts the keeper ends together with the daemon, so that
//! systemd can start the daemon again at once.

use std::process::Command;
use std::time::Duration;

use slackline_fence::Leftover;

use crate::problem::Problem;

/// Name of the transient timer and of the service that it starts.
const UNIT: &str = "slackline-kept";

/// Starts the timer if the daemon's systemd unit runs this process. When the longest `--keep-for`
/// time of the kept threads has passed, the timer runs `slackline doctor --free`. The timer
/// replaces the timer of an earlier killed daemon. Threads that a new daemon has adopted by then
/// stay as they are.
pub(super) fn start_timer(kept: &[Leftover]) -> Result<(), Problem> {
    let is_service = std::env::var_os("SLACKLINE_KEPT_BY_UNIT").is_some();
    let Some(time) = kept.iter().filter_map(Leftover::kept_for).max().filter(|_| is_service) else {
        return Ok(());
    };
    let failed = |why: String| Problem::HostCannot {
        message: format!(
            "cannot start the timer that ends the `deadline` reservations of a killed daemon's {} \
             threads after {} s: {why}",
            kept.len(),
            time.as_secs()
        ),
        hint: Some(
            "`slackline serve` adopts or restores the threads, `slackline doctor --free` restores \
             them"
                .into(),
        ),
    };
    // The command fails if there is no such timer, which is no error here.
    let _ = Command::new("systemctl").args(["--quiet", "stop", &format!("{UNIT}.timer")]).output();
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let started = Command::new("systemd-run")
        .args(["--quiet", "--collect", "--unit", UNIT, "--timer-property=AccuracySec=1s"])
        .arg(format!("--on-active={}ms", time.max(Duration::from_secs(1)).as_millis()))
        .arg(program)
        .args(["doctor", "--free"])
        .output()
        .map_err(|error| failed(format!("systemd-run: {error}")))?;
    if started.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&started.stderr).trim().to_owned()))
}
