//! Text of ftrace, one line for each event. Three programs write it in slightly different forms:
//!
//! ```text
//! tracefs       bash-11497 [001] d..2. 29798.488730: sched_switch: prev_comm=bash prev_pid=...
//! trace-cmd     bash-11497 [001] 29798.488730: sched_switch: bash:11497 [120] S ==> sleep:7 [120]
//! perf script   bash 11497 [001] 29798.488730: sched:sched_switch: prev_comm=bash prev_pid=...
//! ```
//!
//! Lines of other events are left out.

use slackline_trace::WakeMark;

use crate::Kind;
use crate::bytes::printable;
use crate::error::ImportError;
use crate::foreign::{Foreign, ForeignEvent, ForeignEventKind, cpu, tid};
use crate::place::Place;
use crate::tracepoint::Tracepoint;

/// Number of lost events that is assumed if a line does not state the number.
const SOME: u64 = 1;

pub(crate) fn is_ftrace(begin: &[u8]) -> bool {
    let is_head = |head: &&str| begin.starts_with(head.as_bytes());
    // A text of ftrace begins with `# tracer:` or `cpus=`. Other texts may contain these words
    // elsewhere.
    ["# tracer:", "cpus="].iter().any(is_head)
        || begin.split(|&byte| byte == b'\n').any(|line| {
            let line = printable(line);
            event_of(&line).is_some_and(|(_, head, _)| head.contains('['))
        })
}

pub(crate) fn read(file: &[u8]) -> Result<Foreign, ImportError> {
    let mut foreign = Foreign::new(Kind::Ftrace);
    foreign.recorder = "ftrace".into();
    let is_whole = file.ends_with(b"\n");
    let count = file.split(|&byte| byte == b'\n').count() as u64;
    let mut latest = None;
    for (line, number) in file.split(|&byte| byte == b'\n').zip(1..) {
        let text = printable(line);
        let place = Place::Line(number);
        if let Some((number, events)) = lost(&text) {
            let cpu = cpu(number, place)?;
            if let Some(at) = latest {
                let what = ForeignEventKind::Lost { events };
                foreign.events.push(ForeignEvent { at, cpu, place, what });
            }
            continue;
        }
        let Some((tracepoint, head, tail)) = event_of(&text) else { continue };
        let parsed = event(&mut foreign, (tracepoint, place), head, tail);
        match parsed {
            Ok(at) => latest = Some(at),
            Err(ImportError::BadField { what, .. }) if !is_whole && number == count => {
                return Err(ImportError::CutLine { place, missing: what });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(foreign)
}

/// Splits a line about a relevant event into three parts: the tracepoint, the text before the
/// tracepoint's name, and the text after this name. `None` for any other line.
fn event_of(line: &str) -> Option<(Tracepoint, &str, &str)> {
    let (at, name) = line.match_indices(": ").find_map(|(at, _)| {
        let after = line[at + 2..].trim_start().trim_start_matches("sched:");
        let name = after.split(':').next()?;
        let tracepoint = Tracepoint::ALL.into_iter().find(|it| it.name() == name)?;
        Some((at, tracepoint))
    })?;
    let (head, rest) = line.split_at(at);
    let (_, tail) = rest.split_once(name.name())?;
    Some((name, head, tail.strip_prefix(':')?.trim()))
}

/// Reads one event and returns its time.
fn event(
    foreign: &mut Foreign,
    (tracepoint, place): (Tracepoint, Place),
    head: &str,
    tail: &str,
) -> Result<u64, ImportError> {
    let bad = |what: &'static str, found: &str| {
        let found = found.chars().take(60).collect();
        ImportError::BadField { place, what, found }
    };
    let at = head.split_whitespace().next_back().unwrap_or_default();
    let at = time(at).ok_or_else(|| bad("the time", at))?;
    let (task, number) = head
        .rsplit_once('[')
        .and_then(|(task, rest)| Some((task, rest.split_once(']')?.0)))
        .ok_or_else(|| bad("the CPU", head))?;
    let number = number.trim().parse().map_err(|_| bad("the CPU", number))?;
    let cpu_here = cpu(number, place)?;
    let what = match tracepoint {
        Tracepoint::Switch => {
            let (left, right) = halves(tail).ok_or_else(|| bad("the switch", tail))?;
            let (from, state) = switched(left, "prev").ok_or_else(|| bad("the switch", tail))?;
            let (to, _) = switched(right, "next").ok_or_else(|| bad("the switch", tail))?;
            let ids = (tid(from.tid, place)?, tid(to.tid, place)?);
            foreign.name(ids.0, from.name, Some(from.priority));
            foreign.name(ids.1, to.name, Some(to.priority));
            if let Some(process) = process(task) {
                foreign.has_processes = true;
                foreign.threads.entry(ids.0).or_default().process = Some(process);
            }
            foreign.threads.remove(&0);
            let is_ready = is_ready(state).ok_or_else(|| bad("the state", state))?;
            ForeignEventKind::Switch { from: ids.0, is_ready, to: ids.1 }
        }
        Tracepoint::Waking | Tracepoint::Wakeup | Tracepoint::WakeupNew => {
            let (woken, target) = woken(tail).ok_or_else(|| bad("the wake", tail))?;
            let (tid, target) = (tid(woken.tid, place)?, cpu(target, place)?);
            if tracepoint == Tracepoint::Waking {
                foreign.mark = WakeMark::Waking;
            }
            if !foreign.threads.contains_key(&tid) {
                foreign.name(tid, woken.name, Some(woken.priority));
            }
            ForeignEventKind::Woke { tid, target }
        }
    };
    foreign.events.push(ForeignEvent { at, cpu: cpu_here, place, what });
    Ok(at)
}

/// A thread as described in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LineThread<'a> {
    name: &'a str,
    tid: i64,
    priority: i32,
}

/// Splits the text of a switch into two parts: about the thread that leaves the CPU, and about the
/// thread that gets the CPU.
fn halves(tail: &str) -> Option<(&str, &str)> {
    tail.split_once(" ==> ").or_else(|| {
        // `trace-cmd report -R` writes no arrow.
        let at = tail.find(" next_comm=")?;
        Some((&tail[..at], &tail[at + 1..]))
    })
}

/// Reads one part of a switch: the thread, and its state if it leaves the CPU.
fn switched<'a>(half: &'a str, which: &str) -> Option<(LineThread<'a>, &'a str)> {
    let Some(rest) = half.strip_prefix(which) else {
        let (thread, state) = half.rsplit_once(']')?;
        return Some((short(thread)?, state.trim()));
    };
    let rest = rest.strip_prefix("_comm=")?;
    let (name, rest) = rest.rsplit_once(&format!(" {which}_pid="))?;
    let (tid, rest) = rest.split_once(' ')?;
    let rest = rest.trim_start().strip_prefix(&format!("{which}_prio="))?;
    let (priority, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let state = rest.trim().strip_prefix("prev_state=").unwrap_or("");
    Some((
        LineThread { name, tid: tid.parse().ok()?, priority: priority.parse().ok()? },
        state.trim(),
    ))
}

/// Reads a thread as trace-cmd writes it, without the closing bracket: `bash:11497 [120`.
fn short(text: &str) -> Option<LineThread<'_>> {
    let (thread, priority) = text.rsplit_once('[')?;
    let (name, tid) = thread.trim().rsplit_once(':')?;
    Some(LineThread { name, tid: tid.parse().ok()?, priority: priority.trim().parse().ok()? })
}

/// Reads a wake: the woken thread, and the target CPU.
fn woken(tail: &str) -> Option<(LineThread<'_>, u64)> {
    let Some(rest) = tail.strip_prefix("comm=") else {
        let (thread, rest) = tail.rsplit_once(']')?;
        let cpu = rest.split_once("CPU:")?.1.split_whitespace().next()?;
        return Some((short(thread)?, cpu.parse().ok()?));
    };
    let (name, rest) = rest.rsplit_once(" pid=")?;
    let (tid, rest) = rest.split_once(' ')?;
    let number = |key: &str| {
        let value = rest.split_whitespace().find_map(|word| word.strip_prefix(key))?;
        value.parse::<i64>().ok()
    };
    let priority = i32::try_from(number("prio=")?).ok()?;
    let cpu = u64::try_from(number("target_cpu=")?).ok()?;
    Some((LineThread { name, tid: tid.parse().ok()?, priority }, cpu))
}

/// Returns true if a thread that leaves a CPU in this state is still runnable. The state consists
/// of letters, or is a number in raw output.
fn is_ready(state: &str) -> Option<bool> {
    if let Ok(number) = state.parse::<u64>() {
        return Some(number & 0xff == 0);
    }
    if let Some(number) = state.strip_prefix("0x") {
        return u64::from_str_radix(number, 16).ok().map(|number| number & 0xff == 0);
    }
    let letter = state.chars().next().filter(char::is_ascii_alphabetic)?;
    Some(letter == 'R')
}

/// Parses a time in seconds to nanoseconds: `29798.488730`.
fn time(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(seconds) || !is_number(fraction) || !matches!(fraction.len(), 1..=9) {
        return None;
    }
    let scale = 10_u64.pow(9 - u32::try_from(fraction.len()).ok()?);
    let seconds = seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
    seconds.checked_add(fraction.parse::<u64>().ok()?.checked_mul(scale)?)
}

/// Returns the process id in the text before the CPU. `None` if the text has none. Tracefs writes
/// it with the option `record-tgid`: `bash-11497 (  11490)`.
fn process(task: &str) -> Option<i32> {
    let (_, inner) = task.trim_end().strip_suffix(')')?.rsplit_once('(')?;
    inner.trim().parse().ok()
}

/// Reads a line about lost events: the CPU, and the number of lost events.
fn lost(line: &str) -> Option<(u64, u64)> {
    let (cpu, rest) = line.trim().strip_prefix("CPU:")?.split_once(' ')?;
    if !rest.contains("LOST") && !rest.contains("DROPPED") {
        return None;
    }
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).filter(|text| !text.is_empty());
    let events = numbers.next_back().and_then(|text| text.parse().ok()).unwrap_or(SOME);
    Some((cpu.parse().ok()?, events))
}
