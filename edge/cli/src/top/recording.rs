//! Source of the numbers on the screen of `slackline top`: a saved trace, which is played.

use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use slackline_daemon::record::as_reply;
use slackline_metrics::{CulpritFinder, MovingWindow, Summary, VcpuSummary};
use slackline_top::{CpuLine, Snapshot, Steering, VmRow};
use slackline_units::{Span, Time};

use super::daemon::lines;
use crate::problem::Problem;
use crate::show::{self, Trace};

/// Maximum time until a key that changes the speed or ends the program takes effect.
const STEP: Duration = Duration::from_millis(50);

/// Plays a trace on a thread that ends when the user quits. At the end of the trace the last
/// numbers stay on the screen.
pub(super) fn play(
    file: &Path,
    interval: Span,
    steering: Steering,
    updates: SyncSender<Snapshot>,
) -> Result<JoinHandle<Result<(), Problem>>, Problem> {
    let (trace, names) = show::open(file)?;
    let header = trace.header();
    let player = Player {
        file: file.to_owned(),
        title: format!("{}, policy {}", header.title, header.policy),
        span: (names.began.unwrap_or(Time::START), names.last),
        window: MovingWindow::new(header, interval),
        details: None,
        interval,
    };
    Ok(thread::spawn(move || player.run(trace, &steering, &updates)))
}

struct Player {
    file: PathBuf,
    title: String,
    /// Start of the first record and end of the last record.
    span: (Time, Time),
    window: MovingWindow,
    interval: Span,
    /// Name of the selected row, and the culprits of its waiting time in the whole recording.
    details: Option<(String, Vec<String>)>,
}

impl Player {
    fn run(
        mut self,
        mut trace: Trace,
        steering: &Steering,
        updates: &SyncSender<Snapshot>,
    ) -> Result<(), Problem> {
        let (mut until, end) = self.span;
        while until < end {
            until = (until + self.interval).min(end);
            while self.window.now() < until {
                let bad = |error| Problem::BadTrace { file: self.file.clone(), error };
                let Some(entry) = trace.next_entry().map_err(bad)? else { break };
                entry.pass_to(&mut self.window);
            }
            if !self.pace(steering) || !self.show(until, steering, updates)? {
                return Ok(());
            }
        }
        // The last numbers stay, and culprits can still be asked for.
        let mut selected = steering.view().selected;
        while !steering.view().is_over {
            thread::sleep(STEP);
            let view = steering.view();
            if view.has_details && (view.selected != selected || self.details.is_none()) {
                selected = view.selected;
                if !self.show(end, steering, updates)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Waits until the next interval of the recording is to be shown. Returns false if the user has
    /// quit.
    fn pace(&self, steering: &Steering) -> bool {
        let start = Instant::now();
        loop {
            let view = steering.view();
            if view.is_over {
                return false;
            }
            let interval = Duration::from_nanos(self.interval.ns());
            let wanted = match view.speed {
                slower @ ..0 => interval * (1 << slower.unsigned_abs()),
                faster => interval / (1 << faster),
            };
            let left = wanted.saturating_sub(start.elapsed());
            if left.is_zero() && !view.is_paused {
                return true;
            }
            thread::sleep(if view.is_paused { STEP } else { left.min(STEP) });
        }
    }

    /// Sends the numbers of the last interval to the screen. Returns false if the screen has ended.
    fn show(
        &mut self,
        at: Time,
        steering: &Steering,
        updates: &SyncSender<Snapshot>,
    ) -> Result<bool, Problem> {
        let stray = |error| Problem::StrayRecord { file: self.file.clone(), error };
        let summary = self.window.view().map_err(stray)?;
        let view = steering.view();
        let details = match view.selected.filter(|_| view.has_details) {
            Some(name) => self.culprits(&name)?,
            None => Vec::new(),
        };
        let snapshot = Snapshot {
            title: self.title.clone(),
            time: format!(
                "{} of {}",
                tenths(at.since(self.span.0)),
                tenths(self.span.1.since(self.span.0))
            ),
            cpus: cpus(&summary),
            rows: summary.vcpus.iter().map(|vcpu| row(vcpu, summary.length)).collect(),
            details,
            problem: None,
        };
        Ok(updates.send(snapshot).is_ok())
    }

    /// Returns the culprits of a vCPU's waiting time in the whole recording. They are determined
    /// once per selection.
    fn culprits(&mut self, name: &str) -> Result<Vec<String>, Problem> {
        if let Some((asked, lines)) = &self.details
            && asked == name
        {
            return Ok(lines.clone());
        }
        let (mut trace, _) = show::open_again(&self.file)?;
        let mut finder = CulpritFinder::new(name);
        let bad = |error| Problem::BadTrace { file: self.file.clone(), error };
        trace.pass_to(&mut finder).map_err(bad)?;
        let answer = finder.answer();
        let found = match &answer.vcpus[..] {
            [] => vec!["the trace does not say which threads ran: it is not a recording".into()],
            _ => lines(&as_reply(name, &answer)),
        };
        self.details = Some((name.to_owned(), found.clone()));
        Ok(found)
    }
}

/// Rounds a time to a tenth of a second.
fn tenths(span: Span) -> Span {
    Span::from_ms((span.ns() + 50_000_000) / 100_000_000 * 100)
}

fn ppm(part: Span, whole: Span) -> Option<u64> {
    u64::try_from((u128::from(part.ns()) * 1_000_000).checked_div(u128::from(whole.ns()))?).ok()
}

fn cpus(summary: &Summary) -> Vec<CpuLine> {
    let line = |cpu: &slackline_metrics::CpuSummary| CpuLine {
        cpu: u32::try_from(cpu.cpu.index()).unwrap_or(u32::MAX),
        used_ppm: ppm(cpu.busy, summary.length),
        reserved_ppm: None,
        capacity_ppm: None,
        overhead_ppm: cpu.overhead.and_then(|overhead| ppm(overhead, summary.length)),
    };
    summary.cpus.iter().map(line).collect()
}

fn row(vcpu: &VcpuSummary, length: Span) -> VmRow {
    let reservation = vcpu.promised.as_ref();
    VmRow {
        name: vcpu.name.clone(),
        state: String::new(),
        slice: reservation.map(|it| it.slice()),
        period: reservation.map(|it| it.period()),
        is_exact: vcpu.exact,
        reserved_ppm: vcpu.promised_share_ppm,
        used_ppm: Some(vcpu.delivered_ppm),
        ready_ppm: vcpu.waiting.and_then(|waiting| ppm(waiting, length)),
        blocked_ppm: vcpu.asleep.and_then(|blocked| ppm(blocked, length)),
        dispatches_milli: (vcpu.switches * 1_000_000_000).checked_div(length.ns() / 1_000),
        missed: vcpu.misses,
        deadlines: vcpu.deadlines,
        culprit: None,
    }
}
