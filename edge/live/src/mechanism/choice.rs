//! Choice of a mechanism for a request (`--enforce auto`), and the results of a trial on which the
//! choice is based.
//!
//! A mechanism that cannot express the request is never chosen. Among the others, the mechanism is
//! chosen that delivers the reserved CPU time of each second with the smaller error. `slackline
//! doctor --trial` measures these errors on this host. The results of such a trial are valid until
//! the host boots again.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;
use slackline_units::{Enforcement, Span};
use thiserror::Error;

use super::{Bound, Demand, EnforceTarget, MechanismError, mechanism};

/// First line of a file with the results of a trial.
const FORMAT: &str = "slackline-trial-1";

/// Maximum number of bytes that are read from a file with the results of a trial.
const LONGEST: u64 = 4096;

/// Largest difference between the errors of two mechanisms that counts as noise, in millionths of a
/// CPU.
const NOISE: u64 = 200;

/// Results of one mechanism in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialResult {
    /// Mechanism that was tried.
    pub enforcement: Enforcement,
    /// Largest error of the CPU time received in a whole second, in millionths of a CPU.
    pub error_ppm: u64,
    /// Longest time in which the target received no CPU time.
    pub gap: Span,
    /// CPU time that all processes of Slackline used, in millionths of a CPU.
    pub cost_ppm: u64,
}

impl TrialResult {
    /// Path of the file with the results of the last trial. The file's folder is emptied when the
    /// host boots.
    pub const FILE: &str = "/run/slackline/trial";

    /// Writes the results of a trial to a file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_all(all: &[TrialResult], file: &Path) -> io::Result<()> {
        let mut text = format!("{FORMAT}\n");
        for one in all {
            let (name, error, gap) = (one.enforcement, one.error_ppm, one.gap.ns());
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name} {error} {gap} {}", one.cost_ppm);
        }
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        let new = file.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(new, file)
    }

    /// Reads the results of a trial. The list is empty if there was no trial since the host booted,
    /// or the file has another format. A pipe or a device is not read, since that could block a
    /// daemon.
    #[must_use]
    pub fn read_all(file: &Path) -> Vec<TrialResult> {
        let text = short_text(file).unwrap_or_default();
        match text.split_once('\n') {
            Some((FORMAT, rest)) => rest.lines().map_while(TrialResult::parse).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns true if the results of a new trial may replace those of an older trial. They may if
    /// every mechanism of the older trial was tried in the new trial too.
    #[must_use]
    pub fn can_replace(new: &[TrialResult], old: &[TrialResult]) -> bool {
        let is_in_new = |it: &TrialResult| new.iter().any(|one| one.enforcement == it.enforcement);
        old.iter().all(is_in_new)
    }

    fn parse(line: &str) -> Option<TrialResult> {
        let fields: Vec<&str> = line.split(' ').collect();
        let &[name, error, gap, cost] = &fields[..] else { return None };
        Some(TrialResult {
            enforcement: name.parse().ok()?,
            error_ppm: error.parse().ok()?,
            gap: Span::from_ns(gap.parse().ok()?),
            cost_ppm: cost.parse().ok()?,
        })
    }
}

/// Returns the text of a regular file, at most [`LONGEST`] bytes of it.
fn short_text(file: &Path) -> io::Result<String> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let opened = File::options().read(true).custom_flags(flags).open(file)?;
    let mut text = String::new();
    if opened.metadata()?.is_file() {
        opened.take(LONGEST).read_to_string(&mut text)?;
    }
    Ok(text)
}

/// Mechanism that was chosen, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Mechanism that was chosen.
    pub enforcement: Enforcement,
    /// Reason for the choice in words, which `list`, `log` and `hold` show.
    pub why: String,
}

/// Error of a choice: no mechanism can express the request.
#[derive(Debug, Error)]
#[error("no mechanism can express this request: {last}")]
pub struct ChoiceError {
    /// Reason why the mechanism that was tried last cannot express the request.
    #[source]
    pub last: MechanismError,
}

/// Chooses a mechanism for a request. `pinned` is true if the request names CPUs. Not every
/// mechanism can restrict the target to these CPUs.
///
/// # Errors
/// If no mechanism can express the request.
pub fn choose(
    target: &EnforceTarget,
    demand: Demand,
    pinned: bool,
    trial: &[TrialResult],
) -> Result<Choice, ChoiceError> {
    let can = |one: Enforcement| {
        let is_pinned = !pinned || mechanism(one).abilities().pins;
        is_pinned && mechanism(one).check(target, demand).is_ok()
    };
    let chosen = |enforcement, why: String| Ok(Choice { enforcement, why });
    match demand {
        Demand::Weight(_) => match mechanism(Enforcement::Weight).check(target, demand) {
            Ok(()) => chosen(Enforcement::Weight, "only cgroups have weights".into()),
            Err(last) => Err(ChoiceError { last }),
        },
        Demand::Time(_, Bound::AtMost) if can(Enforcement::Quota) => {
            let why = "a quota enforces a limit without a guarantee, and costs no CPU time";
            chosen(Enforcement::Quota, why.into())
        }
        Demand::Time(_, Bound::AtMost) => {
            let why = "a quota cannot express this limit; the dispatcher can, and also guarantees \
                       the CPU time";
            chosen(Enforcement::Dispatcher, why.into())
        }
        Demand::Time(..) if can(Enforcement::Deadline) => {
            let (enforcement, why) = better(trial);
            chosen(enforcement, why)
        }
        Demand::Time(..) => {
            chosen(Enforcement::Dispatcher, "no other mechanism guarantees this share".into())
        }
    }
}

/// Compares the dispatcher with `deadline`, the two mechanisms that guarantee CPU time. Returns the
/// mechanism with the smaller error in this trial, and the reason as text. If the errors differ
/// only by noise, returns the mechanism with the lower CPU cost. If the trial did not measure both
/// mechanisms, returns the dispatcher.
#[must_use]
pub fn better(trial: &[TrialResult]) -> (Enforcement, String) {
    let of = |one| trial.iter().find(|measured| measured.enforcement == one);
    let (ours, kernels) = (of(Enforcement::Dispatcher), of(Enforcement::Deadline));
    let (Some(ours), Some(kernels)) = (ours, kernels) else {
        let why = "not compared with `deadline`: run `slackline doctor --trial` to compare";
        return (Enforcement::Dispatcher, why.into());
    };
    let percent = |ppm: u64| format!("{}.{:02} %", ppm / 10_000, ppm % 10_000 / 100);
    let (our, their) = (percent(ours.error_ppm), percent(kernels.error_ppm));
    let is_smaller = |one: u64, other: u64| one < other && other - one > NOISE;
    if is_smaller(kernels.error_ppm, ours.error_ppm) {
        let why = format!("errors in the trial: deadline {their}, dispatcher {our}");
        (Enforcement::Deadline, why)
    } else if is_smaller(ours.error_ppm, kernels.error_ppm) || ours.cost_ppm <= kernels.cost_ppm {
        let why = format!("errors in the trial: dispatcher {our}, deadline {their}");
        (Enforcement::Dispatcher, why)
    } else {
        let (our, their) = (percent(ours.cost_ppm), percent(kernels.cost_ppm));
        let why =
            format!("equal errors in the trial; CPU cost: deadline {their}, dispatcher {our}");
        (Enforcement::Deadline, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(enforcement: Enforcement, error_ppm: u64, cost_ppm: u64) -> TrialResult {
        TrialResult { enforcement, error_ppm, gap: Span::from_ms(16), cost_ppm }
    }

    #[test]
    fn more_accurate_enforcement_mechanism_is_chosen_unless_difference_is_noise() {
        let of = |ours, kernels| {
            let (ours, kernels): ((u64, u64), (u64, u64)) = (ours, kernels);
            better(&[
                measured(Enforcement::Dispatcher, ours.0, ours.1),
                measured(Enforcement::Deadline, kernels.0, kernels.1),
            ])
        };
        let (deadline, dispatcher) = (Enforcement::Deadline, Enforcement::Dispatcher);
        assert_eq!(of((4_000, 0), (500, 0)).0, deadline);
        assert_eq!(of((500, 50_000), (4_000, 0)).0, dispatcher);
        // Within the noise the cheaper mechanism is chosen.
        assert_eq!(of((500, 50_000), (600, 10)).0, deadline);
        assert_eq!(of((500, 10), (400, 10)).0, dispatcher);
        assert_eq!(of((u64::MAX, u64::MAX), (u64::MAX - 1, 0)).0, deadline);
        assert!(of((4_000, 0), (500, 0)).1.contains("deadline 0.05 %, dispatcher 0.40 %"));
    }

    #[test]
    fn dispatcher_is_chosen_unless_every_mechanism_has_trial_results() {
        let half = [measured(Enforcement::Deadline, 1, 1)];
        for trial in [&[][..], &half] {
            let (chosen, why) = better(trial);
            assert_eq!(chosen, Enforcement::Dispatcher);
            assert!(why.contains("doctor --trial"), "{why}");
        }
    }

    #[test]
    fn incomplete_mechanism_trial_never_replaces_complete_results() {
        let all = Enforcement::ALL.map(|one| measured(one, 123, 4_567));
        assert!(TrialResult::can_replace(&all, &all) && TrialResult::can_replace(&all, &[]));
        assert!(TrialResult::can_replace(&all, &all[1..]));
        assert!(!TrialResult::can_replace(&all[1..], &all));
    }

    #[test]
    fn mechanism_trial_results_are_unchanged_if_written_and_read() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("state/trial");
        let all = Enforcement::ALL.map(|one| measured(one, 123, 4_567));
        TrialResult::write_all(&all, &file).unwrap();
        assert_eq!(TrialResult::read_all(&file), all);
        std::fs::write(&file, "slackline-trial-2\ndispatcher 1 1 1\n").unwrap();
        assert_eq!(TrialResult::read_all(&file), []);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(TrialResult::read_all(&pipe), []);
        assert_eq!(TrialResult::read_all(Path::new("/dev/zero")), []);
        assert_eq!(TrialResult::read_all(&folder.path().join("none")), []);
    }
}
