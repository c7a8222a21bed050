//! Conversion of programs, tasks and clients to words of a command line, and back. The words are
//! passed to load processes.

use std::path::Path;

use slackline_experiments::file_bytes;
use slackline_load::system::SystemClients;
use slackline_scenario::io::{ClientKind, DeviceStep, Direction, PingEnds};
use slackline_scenario::{Draw, Program, Recording, Step, Task};
use slackline_units::Span;

use crate::problem::Problem;

/// Writes a program as words, which [`program`] parses.
pub(crate) fn of_program(program: &Program) -> Vec<String> {
    let mut words: Vec<String> = program.steps.iter().map(of_step).collect();
    let path = program.recording.as_ref().and_then(Recording::path);
    words.extend(path.map(|path| format!("recording {path}")));
    words.extend(program.repeat.then(|| "repeat".into()));
    words
}

fn of_step(step: &Step) -> String {
    match step {
        Step::Compute(draw) => format!("compute {draw}"),
        Step::ComputeForever => "compute".into(),
        Step::Sleep(draw) => format!("sleep {draw}"),
        Step::Release { period, deadline, offset, gap, jitter } => {
            let deadline = deadline.map_or("none".into(), |span| span.to_string());
            format!("release {period} {deadline} {offset} {gap}, {jitter}")
        }
        Step::Instant { period, offset } => format!("clock {period} {offset}"),
        Step::ComputeUntil { period: None, offset } => format!("until {offset}"),
        Step::ComputeUntil { period: Some(period), offset } => format!("until {offset} {period}"),
        Step::Yield => "yield".into(),
        Step::Done => "done".into(),
        Step::Lock => "lock".into(),
        Step::Unlock => "unlock".into(),
        Step::Barrier { latency } => format!("barrier {latency}"),
        Step::Device(step) => of_device_step(step),
    }
}

fn of_device_step(step: &DeviceStep) -> String {
    match step {
        DeviceStep::Accept => "accept".into(),
        DeviceStep::Answer { bytes } => format!("answer {bytes}"),
        DeviceStep::Read { bytes } => format!("read {bytes}"),
        DeviceStep::Ask { bytes, wait } => format!("ask {bytes} {wait}"),
        DeviceStep::Send { bytes } => format!("send {bytes}"),
    }
}

/// Writes tasks as words, which [`tasks`] parses. Priorities are left out, because the policy sets
/// the priorities of a process's threads.
pub(crate) fn of_tasks(tasks: &[Task]) -> Vec<String> {
    let mut words = Vec::new();
    for task in tasks {
        words.push(task.total.map_or("task".into(), |total| format!("task {total}")));
        words.extend(of_program(&task.program));
    }
    words
}

/// Writes the kinds of clients of a system as words, which [`callers`] parses.
pub(crate) fn of_callers(from: SystemClients) -> Vec<&'static str> {
    let said = CALLERS.into_iter().zip([from.requests, from.inward, from.outward]);
    said.filter(|&(_, does)| does).map(|(word, _)| word).collect()
}

const CALLERS: [&str; 3] = ["requests", "inward", "outward"];

/// Writes a client as a word, which [`client`] parses.
pub(crate) fn of_client(kind: &ClientKind) -> String {
    match kind {
        ClientKind::Open { every, timeout, retry } => format!("open {timeout} {retry} {every}"),
        ClientKind::Closed { at_once, think } => format!("closed {at_once} {think}"),
        ClientKind::Ping { every } => format!("ping {every}"),
        ClientKind::Pings { every, .. } => format!("pings {every}"),
        ClientKind::Stream { way, window, gap } => {
            let way = if *way == Direction::In { "in" } else { "out" };
            format!("stream {way} {window} {gap}")
        }
    }
}

pub(crate) fn program(words: &[String]) -> Result<Program, Problem> {
    let mut program = Program::default();
    for word in words {
        if word == "repeat" {
            program.repeat = true;
        } else if let Some(path) = word.strip_prefix(RECORDING) {
            program.recording = Some(recording(path)?);
        } else {
            program.steps.push(step(word).ok_or_else(|| unknown(word))?);
        }
    }
    Ok(program)
}

const RECORDING: &str = "recording ";

/// Opens a recording that is passed by its file name, because it is too long for a command line.
fn recording(path: &str) -> Result<Recording, Problem> {
    let file = file_bytes(Path::new(path)).map_err(|reason| Problem::BadOption {
        message: format!("cannot read `{path}`: {reason}"),
        hint: None,
    })?;
    Ok(Recording::new(path.to_owned(), file))
}

/// Returns the error for an unknown word. This program never writes an unknown word, so the user
/// has typed it.
fn unknown(word: &str) -> Problem {
    Problem::BadOption { message: format!("there is no program step called `{word}`"), hint: None }
}

pub(crate) fn tasks(words: &[String]) -> Result<Vec<Task>, Problem> {
    let mut tasks: Vec<Task> = Vec::new();
    for word in words {
        let task = tasks.last_mut();
        match (word.split_once(' ').unwrap_or((word, "")), task) {
            (("task", total), _) => {
                let total = (!total.is_empty()).then(|| total.parse().map_err(|_| unknown(word)));
                let program = Program::default();
                let total = total.transpose()?;
                tasks.push(Task { priority: 0, program, total, id: None });
            }
            (("repeat", ""), Some(task)) => task.program.repeat = true,
            (("recording", path), Some(task)) => task.program.recording = Some(recording(path)?),
            (_, Some(task)) => {
                task.program.steps.push(task_step(word).ok_or_else(|| unknown(word))?);
            }
            (_, None) => return Err(unknown(word)),
        }
    }
    Ok(tasks)
}

fn task_step(word: &str) -> Option<Step> {
    let (name, rest) = word.split_once(' ').unwrap_or((word, ""));
    let bytes = || rest.parse::<u64>().ok();
    let step = match name {
        "accept" => DeviceStep::Accept,
        "answer" => DeviceStep::Answer { bytes: bytes()? },
        "read" => DeviceStep::Read { bytes: bytes()? },
        "ask" => {
            let (bytes, wait) = rest.split_once(' ')?;
            DeviceStep::Ask { bytes: bytes.parse().ok()?, wait: wait.parse().ok()? }
        }
        "send" => DeviceStep::Send { bytes: bytes()? },
        _ => return step(word),
    };
    Some(Step::Device(step))
}

pub(crate) fn callers(words: &[String]) -> Result<SystemClients, Problem> {
    let is_unknown = |word: &&String| !CALLERS.contains(&word.as_str());
    if let Some(word) = words.iter().find(is_unknown) {
        return Err(unknown(word));
    }
    let [requests, inward, outward] = CALLERS.map(|word| words.iter().any(|it| it == word));
    Ok(SystemClients { requests, inward, outward })
}

pub(crate) fn client(word: &str) -> Result<ClientKind, Problem> {
    let read = || {
        let (name, rest) = word.split_once(' ')?;
        let parts: Vec<&str> = rest.splitn(3, ' ').collect();
        let span = |at: usize| parts.get(at)?.parse::<Span>().ok();
        Some(match name {
            "open" => {
                let every = parts.get(2)?.parse().ok()?;
                ClientKind::Open { every, timeout: span(0)?, retry: span(1)? }
            }
            "closed" => {
                let (at_once, think) = rest.split_once(' ')?;
                ClientKind::Closed { at_once: at_once.parse().ok()?, think: think.parse().ok()? }
            }
            "ping" => ClientKind::Ping { every: span(0)? },
            "pings" => {
                let ends = PingEnds::Answered; // A live ping is always answered.
                ClientKind::Pings { every: rest.parse().ok()?, ends }
            }
            "stream" => {
                let way = if *parts.first()? == "in" { Direction::In } else { Direction::Out };
                let window = parts.get(1)?.parse().ok()?;
                ClientKind::Stream { way, window, gap: span(2)? }
            }
            _ => return None,
        })
    };
    read().ok_or_else(|| unknown(word))
}

fn step(word: &str) -> Option<Step> {
    let (name, rest) = word.split_once(' ').unwrap_or((word, ""));
    let draw = || rest.parse::<Draw>().ok();
    match name {
        "compute" if rest.is_empty() => Some(Step::ComputeForever),
        "compute" => draw().map(Step::Compute),
        "sleep" => draw().map(Step::Sleep),
        "clock" => {
            let (period, offset) = rest.split_once(' ')?;
            Some(Step::Instant { period: period.parse().ok()?, offset: offset.parse().ok()? })
        }
        "until" => {
            let (offset, period) = rest
                .split_once(' ')
                .map_or((rest, None), |(offset, period)| (offset, Some(period)));
            let period = period.map(|period| period.parse().ok());
            let offset = offset.parse().ok()?;
            match period {
                Some(None) => None,
                period => Some(Step::ComputeUntil { period: period.flatten(), offset }),
            }
        }
        "yield" => Some(Step::Yield),
        "done" => Some(Step::Done),
        "barrier" => Some(Step::Barrier { latency: rest.parse().ok()? }),
        "release" => {
            let mut parts = rest.splitn(4, ' ');
            let mut span = || parts.next().map(|text| text.parse::<Span>().ok());
            let (period, deadline, offset) = (span()??, span()?, span()??);
            let (gap, jitter) = parts.next()?.split_once(", ")?;
            let (gap, jitter) = (gap.parse().ok()?, jitter.parse().ok()?);
            Some(Step::Release { period, deadline, offset, gap, jitter })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_steps_survive_conversion_to_command_line_and_back() {
        let fixed = |ms| Draw::Fixed(Span::from_ms(ms));
        let release = Step::Release {
            period: Span::from_us(10_500),
            deadline: Some(Span::from_ms(7)),
            offset: Span::ZERO,
            gap: Draw::Exponential { mean: Span::from_ms(9) },
            jitter: fixed(0),
        };
        let uniform = Draw::Uniform { least: Span::from_ms(1), most: Span::from_ms(2) };
        let endless = Step::Release {
            period: Span::from_ms(3),
            deadline: None,
            offset: Span::from_ns(1),
            gap: fixed(1),
            jitter: uniform,
        };
        let instant = Step::Instant { period: Span::from_ms(10), offset: Span::from_us(100) };
        for program in [
            Program::spin(),
            Program::batch(Span::from_secs(3)),
            Program::interactive(Draw::Exponential { mean: Span::from_ms(2) }, fixed(20)),
            Program::periodic(release, uniform),
            Program::periodic(endless, fixed(1)),
            Program::yielding(uniform),
            Program::by_the_clock(instant, Step::Compute(uniform)),
            Program::until(Span::from_secs(3)),
            Program::by_the_clock(
                instant,
                Step::ComputeUntil { period: Some(Span::from_ms(7)), offset: Span::from_ms(2) },
            ),
            Program::superstep(uniform, fixed(5), Span::from_us(50)),
        ] {
            assert_eq!(super::program(&of_program(&program)).ok(), Some(program));
        }
    }

    #[test]
    fn recording_is_passed_to_load_process_as_a_file_path() {
        let path = std::env::temp_dir().join(format!("words-{}.csv", std::process::id()));
        std::fs::write(&path, "1,2\n".repeat(5_000)).expect("a file");
        let words = [format!("recording {}", path.display())];
        let program = super::program(&words).expect("the file can be read");
        assert_eq!(of_program(&program), words);
        let task = |words: &[String]| super::tasks(&[&["task".to_owned()], words].concat());
        let tasks = task(&words).expect("the file can be read");
        assert_eq!(of_tasks(&tasks)[1..], words);
        std::fs::remove_file(&path).expect("the file is there");
        assert!(super::program(&words).is_err() && task(&words).is_err());
    }

    #[test]
    fn guest_tasks_survive_conversion_to_command_line_and_back() {
        let draw = Draw::Uniform { least: Span::from_us(216), most: Span::from_us(401) };
        let compute = Step::Compute(draw);
        let answer = Step::Device(DeviceStep::Answer { bytes: 10_240 });
        let read = Step::Device(DeviceStep::Read { bytes: 4_096 });
        let wait = Draw::Exponential { mean: Span::from_ms(2) };
        let ask = Step::Device(DeviceStep::Ask { bytes: 8_192, wait });
        let accept = Step::Device(DeviceStep::Accept);
        let send = Step::Device(DeviceStep::Send { bytes: 1 });
        let task = |steps: &[Step], repeat, total| Task {
            priority: 0,
            program: Program { steps: steps.to_vec(), repeat, recording: None },
            total,
            id: None,
        };
        let tasks = vec![
            task(&[accept, compute, read, answer], true, None),
            task(&[compute, ask], true, Some(Span::from_secs(3))),
            task(&[compute, send], false, None),
            task(&[], true, None),
        ];
        let read = super::tasks(&of_tasks(&tasks)).expect("words that were written are valid");
        assert_eq!(read.len(), tasks.len());
        for (read, task) in read.iter().zip(&tasks) {
            assert_eq!((&read.program, read.total), (&task.program, task.total));
        }
        for bad in ["accept", "task|answer", "task|ask 8192", "task|answer many", "task four"] {
            let words: Vec<String> = bad.split('|').map(str::to_owned).collect();
            assert!(super::tasks(&words).is_err(), "{bad}");
        }
    }

    #[test]
    fn client_settings_survive_conversion_to_command_line_and_back() {
        let (every, gap) = (Draw::Exponential { mean: Span::from_us(1052) }, Span::from_us(3));
        let (timeout, retry) = (Span::from_secs(5), Span::from_secs(3));
        for kind in [
            ClientKind::Open { every, timeout, retry },
            ClientKind::Closed { at_once: 100, think: Draw::Fixed(Span::ZERO) },
            ClientKind::Closed { at_once: 1, think: every },
            ClientKind::Ping { every: Span::ZERO },
            ClientKind::Pings {
                every: Draw::Exponential { mean: Span::from_ms(5) },
                ends: PingEnds::Answered,
            },
            ClientKind::Stream { way: Direction::In, window: 65_536, gap },
            ClientKind::Stream { way: Direction::Out, window: 1, gap: Span::ZERO },
        ] {
            assert_eq!(super::client(&of_client(&kind)).ok(), Some(kind));
        }
        let from = SystemClients { requests: true, inward: false, outward: true };
        let words: Vec<String> = of_callers(from).into_iter().map(str::to_owned).collect();
        assert_eq!(super::callers(&words).ok(), Some(from));
    }
}
