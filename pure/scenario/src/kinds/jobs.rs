//! Work of kind `jobs`: a list of jobs. Each job has the time at which it is ready, or the time to
//! sleep before it.

use slackline_units::Span;

use super::{HEADED_READY, HEADED_THINK};
use crate::error::ErrorKind;
use crate::keys;
use crate::recording::{number, whole_text};
use crate::run::RunContext;
use crate::table::{Item, Mistake, Table, shown};
use crate::{Draw, Program, Step};

const FOREVER: &str = "forever";

/// Meaning of the time that a list gives for each job.
#[derive(Clone, Copy)]
enum Times {
    /// Time at which the job is ready, counted from joining.
    Ready,
    /// Time to sleep before the job, counted from the end of the previous job.
    Think,
}

/// A job: its time, and its work as CPU time. A work of `None` means that the job never ends.
type Job = (Span, Option<Span>);

pub(super) fn read(run: &RunContext<'_>, table: &Table<'_>) -> Result<Program, Mistake> {
    let table = table.taught(&keys::JOBS)?;
    let repeat = table.get("repeat");
    let is_repeated = repeat.as_ref().map(Item::flag).transpose()?.unwrap_or(false);
    let (item, times, jobs) = list(run, table)?;
    match (repeat.filter(|_| is_repeated), times) {
        (Some(repeat), Times::Ready) => Err(repeat.fault(ErrorKind::RepeatedReady)),
        (repeat, _) => program(&item, times, jobs, repeat.is_some()),
    }
}

/// Reads jobs with ready times that are counted from the start of the run. Each job must have an
/// end.
pub(crate) fn ready(run: &RunContext<'_>, table: &Table<'_>) -> Result<Vec<(Span, Span)>, Mistake> {
    let (item, _, jobs) = list(run, table.taught(&keys::INTERFERENCE)?)?;
    let mut last = Span::ZERO;
    let one = |(index, (time, work)): (usize, Job)| {
        let work = work.ok_or_else(|| item.fault(ErrorKind::EndlessJob { job: index + 1 }))?;
        if time < last {
            return Err(item.fault(ErrorKind::UnorderedJobs { job: index + 1, time, last }));
        }
        last = time;
        Ok((time, work))
    };
    jobs.into_iter().enumerate().map(one).collect()
}

fn list<'a>(
    run: &RunContext<'_>,
    table: Table<'a>,
) -> Result<(Item<'a>, Times, Vec<Job>), Mistake> {
    if let Some(item) = table.get("file") {
        if let Some(other) = ["work", "ready", "think"].into_iter().find_map(|key| table.get(key)) {
            let kind = ErrorKind::SaidTwice { one: "file", other: name_of(&other) };
            return Err(Mistake::new(other.key_at, kind));
        }
        let path = item.text()?;
        let text = (run.load)(path).and_then(|file| whole_text(file.as_ref()));
        let text =
            text.map_err(|reason| item.fault(ErrorKind::NoFile { path: shown(path), reason }))?;
        let (times, jobs) = of_file(&item, path, &text)?;
        return Ok((item, times, jobs));
    }
    let item = table.need("work", "work = [\"3ms\", \"2ms\"]")?;
    let works = item.elements("an array of durations")?;
    let works = works.iter().map(work).collect::<Result<Vec<_>, Mistake>>()?;
    let of = table.either("ready", "think")?;
    let times = if of.key == "ready" { Times::Ready } else { Times::Think };
    let spans = of.elements("an array of durations")?;
    let spans = spans.iter().map(Item::span).collect::<Result<Vec<Span>, Mistake>>()?;
    if spans.len() != works.len() {
        let (times, jobs) = (spans.len(), works.len());
        return Err(of.fault(ErrorKind::UnevenJobs { times, jobs }));
    }
    Ok((of, times, spans.into_iter().zip(works).collect()))
}

fn name_of(item: &Item<'_>) -> &'static str {
    match item.key {
        "work" => "work",
        "ready" => "ready",
        _ => "think",
    }
}

fn work(item: &Item<'_>) -> Result<Option<Span>, Mistake> {
    if item.value().as_str() == Some(FOREVER) { Ok(None) } else { item.span().map(Some) }
}

/// Creates the program of a list of jobs. A job without work is left out, and its sleep is added to
/// the sleep of the next job. In a repeated list, the first job follows the last job.
fn program(
    item: &Item<'_>,
    times: Times,
    jobs: Vec<Job>,
    is_repeated: bool,
) -> Result<Program, Mistake> {
    let mut steps = Vec::with_capacity(jobs.len() * 2);
    let mut before: Option<Span> = None;
    let mut slept = Span::ZERO;
    let last = jobs.len().saturating_sub(1);
    for (index, (time, work)) in jobs.into_iter().enumerate() {
        if work.is_none() && (index < last || is_repeated) {
            return Err(item.fault(ErrorKind::EndlessJob { job: index + 1 }));
        }
        if let (Times::Ready, Some(last)) = (times, before.filter(|&last| time < last)) {
            return Err(item.fault(ErrorKind::UnorderedJobs { job: index + 1, time, last }));
        }
        slept += time;
        if work.is_some_and(Span::is_zero) {
            continue;
        }
        match times {
            Times::Ready => steps.extend(release(before, time)),
            Times::Think if slept.is_zero() => {}
            Times::Think => steps.push(Step::Sleep(Draw::Fixed(slept))),
        }
        slept = Span::ZERO;
        before = Some(time);
        steps.push(work.map_or(Step::ComputeForever, |work| Step::Compute(Draw::Fixed(work))));
    }
    if !is_repeated || steps.is_empty() {
        return Ok(Program::once(steps));
    }
    if !slept.is_zero() {
        steps.push(Step::Sleep(Draw::Fixed(slept)));
    }
    Ok(Program::repeated(steps))
}

/// Returns the step that waits until a job is ready. `None` if the previous job is ready at the
/// same time.
fn release(before: Option<Span>, ready: Span) -> Option<Step> {
    let none = Draw::Fixed(Span::ZERO);
    let period = before.map_or(Span::from_ns(1), |before| ready - before);
    let (offset, gap, jitter) = (ready, none, none);
    (!period.is_zero()).then_some(Step::Release { period, deadline: None, offset, gap, jitter })
}

/// Reads a file of jobs: a header, then lines with a time and an amount of work in nanoseconds.
/// Skips empty lines and lines that begin with `#`.
fn of_file(item: &Item<'_>, path: &str, text: &str) -> Result<(Times, Vec<Job>), Mistake> {
    let mut times = None;
    let mut jobs = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim().trim_start_matches('\u{feff}');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fault = |kind: fn(String, usize, String) -> ErrorKind| {
            item.fault(kind(shown(path), index + 1, shown(line)))
        };
        if times.is_none() {
            times = Some(match line {
                HEADED_READY => Times::Ready,
                HEADED_THINK => Times::Think,
                _ => {
                    let kind =
                        |path, line, written| ErrorKind::BadJobsTitle { path, line, written };
                    return Err(fault(kind));
                }
            });
            continue;
        }
        jobs.push(job(line).ok_or_else(|| {
            fault(|path, line, written| ErrorKind::BadJob { path, line, written })
        })?);
    }
    Ok((times.unwrap_or(Times::Ready), jobs))
}

fn job(line: &str) -> Option<Job> {
    let (time, work) = line.split_once(',')?;
    let work = if work.trim() == FOREVER { None } else { Some(number(work)?) };
    Some((number(time)?, work))
}
