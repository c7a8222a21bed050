//! The allocation error test on this host: each mechanism in turn limits a process that never
//! blocks.

use std::io::Read as _;
use std::os::unix::net::UnixStream;

use slackline_experiments::alert::{CaseResult, DomainErrors, Limiter};
use slackline_fence::KeeperCommand;
use slackline_linux::cgroup::Version;
use slackline_linux::sys::online_cpus;
use slackline_live::Punctual;
use slackline_live::mechanism::MechanismError;
use slackline_live::meter::{Sample, SampleError, Sampler};
use slackline_live::session::SessionError;
use slackline_metrics::allocation_error;
use slackline_play::limit::{CommandLine, LimitError, LimitInterface, LimitedProcess, target};
use slackline_play::play::LiveError;
use slackline_policy::nearest;
use slackline_units::{CpuId, CpuShare, Span, Time};

use crate::args::Alert;
use crate::busy::BusyProcess;
use crate::problem::Problem;
use crate::signals::{cannot_set_up, stay_running, stop_signal};
use crate::terminal::{self, Progress};

/// Length of the warm-up after a limit is applied. The results leave the warm-up out.
const WARMUP: Span = Span::from_secs(1);

/// Interval at which the CPU time of the tested process is sampled.
const SECOND: Span = Span::from_secs(1);

/// Mechanisms, target shares and length of a live test.
#[derive(Debug)]
pub(super) struct LivePlan {
    ways: Vec<LimitInterface>,
    /// Choice of the mechanisms in `ways`: those that the user named, or all that are known.
    demand: Demand,
    targets: Vec<CpuShare>,
    length: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    /// The user named the mechanisms. A mechanism that is not available is an error.
    Asked,
    /// All known mechanisms are tried. Those that are not available are left out with a note.
    AllThereAre,
}

impl LivePlan {
    pub(super) fn of(
        args: &Alert,
        targets: Vec<CpuShare>,
        length: Span,
    ) -> Result<LivePlan, Problem> {
        let cpu = cpu(args.cpu)?;
        let all = [
            LimitInterface::Slackline(cpu),
            LimitInterface::Deadline,
            LimitInterface::Quota(Some(Version::V1)),
            LimitInterface::Quota(Some(Version::V2)),
        ];
        let any_quota = LimitInterface::Quota(None);
        let named = |name: &String| {
            let mut ways = all.iter().chain([&any_quota]);
            ways.find(|way| way.is_named(name)).cloned().ok_or_else(|| no_way(name))
        };
        let mut ways = args.limiter.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        for command in &args.limiter_command {
            let parsed: CommandLine = command.parse().map_err(of_limit)?;
            ways.push(LimitInterface::Command(parsed));
        }
        let demand = if ways.is_empty() { Demand::AllThereAre } else { Demand::Asked };
        if demand == Demand::AllThereAre {
            ways = all.to_vec();
        }
        Ok(LivePlan { ways, demand, targets, length })
    }

    /// Returns a sentence that describes how the live test was made.
    pub(super) fn how(&self) -> String {
        let length = self.length;
        format!(
            "On this host: a process that never blocks, {length} at each target.{}",
            super::too_short(length)
        )
    }

    /// Tests every mechanism with every target share, one after the other.
    pub(super) fn run(&self) -> Result<Vec<CaseResult>, Problem> {
        let is_command = |way: &LimitInterface| matches!(way, LimitInterface::Command(_));
        if !self.ways.iter().all(is_command) {
            // Without permission for real-time priorities, no mechanism works except commands of
            // the user. One error reports this instead of one for each mechanism.
            let may = Punctual::begin().map_err(|source| SessionError::NoRealTime { source });
            drop(may.map_err(|error| Problem::Live(LiveError::Session(error)))?);
        }
        let (stop, _raised) = stop_signal()?;
        stay_running()?;
        stop.set_nonblocking(true).map_err(cannot_set_up)?;
        let each = u64::try_from(self.targets.len() * self.ways.len()).unwrap_or(u64::MAX);
        let mut watch = Watch {
            stop,
            progress: Progress::new("tested", (self.length + WARMUP) * each),
            done: Time::START,
        };
        let mut results = Vec::new();
        let mut cannot: Vec<(String, String)> = Vec::new();
        for way in &self.ways {
            let mut runs = Vec::new();
            for &share in &self.targets {
                match self.test(way, share, &mut watch) {
                    Ok(run) => runs.push(run),
                    Err(Stop::Limit(error)) if is_too_fine(&error) => {
                        terminal::tell(&format!(
                            "note:  cannot limit the process to {share} by {way}: {error}\n"
                        ));
                        watch.skip(self.length + WARMUP);
                    }
                    // The first share has failed for a reason other than its size, so all other
                    // shares would fail too.
                    Err(Stop::Limit(error)) if self.skips(&error) && runs.is_empty() => {
                        cannot.push((way.to_string(), error.to_string()));
                        watch.skip((self.length + WARMUP) * self.targets.len() as u64);
                        break;
                    }
                    Err(Stop::Limit(error)) if self.skips(&error) => {
                        terminal::tell(&format!(
                            "note:  cannot limit the process to {share} by {way}: {error}\n"
                        ));
                        watch.skip(self.length + WARMUP);
                    }
                    Err(Stop::Limit(error)) => return Err(of_limit(error)),
                    Err(Stop::Other(problem)) => return Err(problem),
                }
            }
            if !runs.is_empty() {
                results.push(CaseResult { name: way.to_string(), limiter: Limiter::Host, runs });
            }
        }
        if results.is_empty() {
            let why: Vec<String> =
                cannot.iter().map(|(way, error)| format!("{way}: {error}")).collect();
            return Err(Problem::HostCannot {
                message: format!("cannot limit a process on this host: {}", why.join("; ")),
                hint: Some("run as root, and check this host with `slackline doctor`".into()),
            });
        }
        for (way, error) in cannot {
            terminal::tell(&format!("note:  {way}: {error}\n"));
        }
        Ok(results)
    }

    /// Returns true if the test goes on after this error, without the result of the failed
    /// mechanism and share. The test goes on if the share is too small for the mechanism. If the
    /// user named no mechanisms, the test goes on after every error.
    fn skips(&self, error: &LimitError) -> bool {
        is_too_fine(error) || self.demand == Demand::AllThereAre
    }

    fn test(
        &self,
        way: &LimitInterface,
        share: CpuShare,
        watch: &mut Watch,
    ) -> Result<DomainErrors, Stop> {
        let reservation = target(share, way.usual_period(share))?;
        let load = BusyProcess::start(self.length)?;
        let mut limited = LimitedProcess::apply(
            way,
            load.pid(),
            reservation,
            KeeperCommand::ourselves(["keep"]),
        )?;
        let mut sampler = Sampler::start(load.pid()).map_err(|error| gone(&error))?;
        let mut sample = |limited: &mut LimitedProcess| -> Result<Sample, Stop> {
            let sample = sampler.after(SECOND).map_err(|error| gone(&error))?;
            limited.check()?;
            watch.second()?;
            Ok(sample)
        };
        for _ in 0..WARMUP / SECOND {
            sample(&mut limited)?;
        }
        let mut samples = Vec::new();
        for _ in 0..self.length / SECOND {
            samples.push(sample(&mut limited)?);
        }
        limited.end()?;
        Ok(summed(share, &samples))
    }
}

/// Computes the allocation errors of one run from its samples: one error for each sample, and one
/// for the whole run.
fn summed(share: CpuShare, samples: &[Sample]) -> DomainErrors {
    let error = |sample: &Sample| allocation_error(sample.used, sample.to - sample.from, share);
    let used = samples.iter().fold(Span::ZERO, |sum, sample| sum + sample.used);
    let over = samples.iter().fold(Span::ZERO, |sum, sample| sum + (sample.to - sample.from));
    DomainErrors {
        target: share,
        seed: 0,
        seconds: samples.iter().map(error).collect(),
        average: allocation_error(used, over, share),
    }
}

/// Reason why a test ended early.
enum Stop {
    Limit(LimitError),
    Other(Problem),
}

impl From<LimitError> for Stop {
    fn from(error: LimitError) -> Stop {
        Stop::Limit(error)
    }
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Stop {
        Stop::Other(problem)
    }
}

/// Receives signals during a live test, and reports the progress of the test.
struct Watch {
    stop: UnixStream,
    progress: Progress,
    done: Time,
}

impl Watch {
    /// Notes that a second of a test has passed. Fails if a signal asked to stop.
    fn second(&mut self) -> Result<(), Problem> {
        self.skip(SECOND);
        let mut byte = [0];
        match self.stop.read(&mut byte) {
            Ok(1..) => Err(Problem::Interrupted),
            // No signal has arrived.
            _ => Ok(()),
        }
    }

    /// Advances the displayed progress by `length`: the length of a finished part of a test, or of
    /// a test that is skipped.
    fn skip(&mut self, length: Span) {
        self.done += length;
        self.progress.at(self.done);
    }
}

/// Returns the CPU on which to test: the CPU that the user chose, or the last CPU of this host.
fn cpu(asked: Option<usize>) -> Result<CpuId, Problem> {
    let online = online_cpus()
        .map_err(|source| Problem::Unreadable { file: "the list of CPUs".into(), source })?;
    let found = match asked {
        None => online.iter().last(),
        Some(number) => online.iter().find(|cpu| cpu.index() == number),
    };
    found.ok_or_else(|| Problem::BadOption {
        message: format!("this host has no CPU {}", asked.unwrap_or(0)),
        hint: Some("drop --cpu to use the last CPU".into()),
    })
}

/// Names of limiters that users can type.
const NAMES: [&str; 6] = ["dispatcher", "deadline", "quota", "slackline", "quota-v1", "quota-v2"];

fn no_way(name: &str) -> Problem {
    let why = match name {
        "weight" => Some("a weight limits nothing"),
        "auto" => Some("it can be any of several limiters"),
        _ => None,
    };
    if let Some(why) = why {
        return Problem::BadOption {
            message: format!("cannot test `{name}` as a limiter: {why}"),
            hint: Some(format!("use one of {}", NAMES.join(", "))),
        };
    }
    let hint = match nearest(name, NAMES.into_iter()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("use one of {}", NAMES.join(", ")),
    };
    let message = format!("there is no limiter `{name}`");
    Problem::BadOption { message, hint: Some(hint) }
}

/// Returns true if the share is too small for the mechanism.
fn is_too_fine(error: &LimitError) -> bool {
    matches!(error, LimitError::Mechanism(MechanismError::TooFine { .. }))
}

/// Returns the error for a tested process whose CPU time can no longer be read.
fn gone(error: &SampleError) -> Problem {
    Problem::HostCannot {
        message: format!("cannot measure the CPU time of the tested process: {error}"),
        hint: Some("check whether another program ended the tested process".into()),
    }
}

fn of_limit(error: LimitError) -> Problem {
    let hint = error.hint();
    match error {
        LimitError::BadCommand { .. } => Problem::BadOption { message: error.to_string(), hint },
        LimitError::Session(error) => Problem::Live(error.into()),
        error => Problem::HostCannot { message: error.to_string(), hint },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alert_command_refuses_weight_auto_and_unknown_names_as_limiters() {
        let says = |name| no_way(name).to_string();
        assert_eq!(says("weight"), "cannot test `weight` as a limiter: a weight limits nothing");
        assert!(says("auto").starts_with("cannot test `auto` as a limiter: "));
        assert_eq!(says("magic"), "there is no limiter `magic`");
    }

    #[test]
    fn live_alert_average_is_weighted_by_sample_duration() {
        let at = |ms| Time::START + Span::from_ms(ms);
        let sample =
            |from, to, used| Sample { from: at(from), to: at(to), used: Span::from_ms(used) };
        let share = CpuShare::from_ppm(100_000);
        let run = summed(share, &[sample(0, 1000, 110), sample(1000, 3000, 190)]);
        assert_eq!(run.seconds, [100_000, -50_000]);
        assert_eq!(run.average, 0);
    }
}
