//! Programs, tasks and clients as words for a command line, and back.

use slackline_load::system::Callers;
use slackline_scenario::io::{ClientKind, Task, TaskStep, Way};
use slackline_scenario::{Draw, Program, Step};
use slackline_units::Span;

use crate::problem::Problem;

/// A program as words for a command line, to be read back by [`program`].
pub(crate) fn of_program(program: &Program) -> Vec<String> {
    let mut words: Vec<String> = program.steps.iter().map(of_step).collect();
    words.extend(program.repeat.then(|| "repeat".into()));
    words
}

fn of_step(step: &Step) -> String {
    match step {
        Step::Compute(draw) => format!("compute {draw}"),
        Step::ComputeForever => "compute".into(),
        Step::Sleep(draw) => format!("sleep {draw}"),
        Step::Release { period, deadline, offset } => {
            let deadline = deadline.map_or("none".into(), |span| span.to_string());
            format!("release {period} {deadline} {offset}")
        }
        Step::Done => "done".into(),
    }
}

/// Tasks as words, to be read back by [`tasks`]. Threads of a process have no priorities that a
/// policy would not override, so these are left out.
pub(crate) fn of_tasks(tasks: &[Task]) -> Vec<String> {
    let word = |step: &TaskStep| match step {
        TaskStep::Plain(step) => of_step(step),
        TaskStep::Accept => "accept".into(),
        TaskStep::Answer { bytes } => format!("answer {bytes}"),
        TaskStep::Read { bytes } => format!("read {bytes}"),
        TaskStep::Ask { bytes, wait } => format!("ask {bytes} {wait}"),
        TaskStep::Send { bytes } => format!("send {bytes}"),
    };
    let mut words = Vec::new();
    for task in tasks {
        words.push(task.total.map_or("task".into(), |total| format!("task {total}")));
        words.extend(task.steps.iter().map(word));
        words.extend(task.repeat.then(|| "repeat".into()));
    }
    words
}

/// Who talks to a system, as words, to be read back by [`callers`].
pub(crate) fn of_callers(from: Callers) -> Vec<&'static str> {
    let said = CALLERS.into_iter().zip([from.requests, from.inward, from.outward]);
    said.filter(|&(_, does)| does).map(|(word, _)| word).collect()
}

const CALLERS: [&str; 3] = ["requests", "inward", "outward"];

/// A client as a word, to be read back by [`client`].
pub(crate) fn of_client(kind: &ClientKind) -> String {
    match kind {
        ClientKind::Open { every, timeout, retry } => format!("open {timeout} {retry} {every}"),
        ClientKind::Closed { at_once } => format!("closed {at_once}"),
        ClientKind::Ping { every } => format!("ping {every}"),
        ClientKind::Stream { way, window, gap } => {
            let way = if *way == Way::In { "in" } else { "out" };
            format!("stream {way} {window} {gap}")
        }
    }
}

pub(crate) fn program(words: &[String]) -> Result<Program, Problem> {
    let mut program = Program { steps: Vec::new(), repeat: false };
    for word in words {
        if word == "repeat" {
            program.repeat = true;
        } else {
            program.steps.push(step(word).ok_or_else(|| unknown(word))?);
        }
    }
    Ok(program)
}

/// What only a hand can have written.
fn unknown(word: &str) -> Problem {
    Problem::BadOption { message: format!("there is no step `{word}`"), hint: None }
}

pub(crate) fn tasks(words: &[String]) -> Result<Vec<Task>, Problem> {
    let mut tasks: Vec<Task> = Vec::new();
    for word in words {
        let task = tasks.last_mut();
        match (word.split_once(' ').unwrap_or((word, "")), task) {
            (("task", total), _) => {
                let total = (!total.is_empty()).then(|| total.parse().map_err(|_| unknown(word)));
                let (priority, steps) = (0, Vec::new());
                tasks.push(Task { priority, steps, repeat: false, total: total.transpose()? });
            }
            (("repeat", ""), Some(task)) => task.repeat = true,
            (_, Some(task)) => task.steps.push(task_step(word).ok_or_else(|| unknown(word))?),
            (_, None) => return Err(unknown(word)),
        }
    }
    Ok(tasks)
}

fn task_step(word: &str) -> Option<TaskStep> {
    let (name, rest) = word.split_once(' ').unwrap_or((word, ""));
    let bytes = || rest.parse::<u64>().ok();
    Some(match name {
        "accept" => TaskStep::Accept,
        "answer" => TaskStep::Answer { bytes: bytes()? },
        "read" => TaskStep::Read { bytes: bytes()? },
        "ask" => {
            let (bytes, wait) = rest.split_once(' ')?;
            TaskStep::Ask { bytes: bytes.parse().ok()?, wait: wait.parse().ok()? }
        }
        "send" => TaskStep::Send { bytes: bytes()? },
        _ => TaskStep::Plain(step(word)?),
    })
}

pub(crate) fn callers(words: &[String]) -> Result<Callers, Problem> {
    let is_unknown = |word: &&String| !CALLERS.contains(&word.as_str());
    if let Some(word) = words.iter().find(is_unknown) {
        return Err(unknown(word));
    }
    let [requests, inward, outward] = CALLERS.map(|word| words.iter().any(|it| it == word));
    Ok(Callers { requests, inward, outward })
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
            "closed" => ClientKind::Closed { at_once: rest.parse().ok()? },
            "ping" => ClientKind::Ping { every: span(0)? },
            "stream" => {
                let way = if *parts.first()? == "in" { Way::In } else { Way::Out };
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
        "done" => Some(Step::Done),
        "release" => {
            let mut spans = rest.split(' ').map(|text| text.parse::<Span>().ok());
            let (period, deadline, offset) = (spans.next()??, spans.next()?, spans.next()??);
            Some(Step::Release { period, deadline, offset })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_survives_the_command_line() {
        let fixed = |ms| Draw::Fixed(Span::from_ms(ms));
        let release = Step::Release {
            period: Span::from_us(10_500),
            deadline: Some(Span::from_ms(7)),
            offset: Span::ZERO,
        };
        let endless =
            Step::Release { period: Span::from_ms(3), deadline: None, offset: Span::from_ns(1) };
        let uniform = Draw::Uniform { least: Span::from_ms(1), most: Span::from_ms(2) };
        for program in [
            Program::spin(),
            Program::batch(Span::from_secs(3)),
            Program::interactive(Draw::Exponential { mean: Span::from_ms(2) }, fixed(20)),
            Program::periodic(release, uniform),
            Program::periodic(endless, fixed(1)),
        ] {
            assert_eq!(super::program(&of_program(&program)).ok(), Some(program));
        }
    }

    #[test]
    fn tasks_survive_the_command_line() {
        let draw = Draw::Uniform { least: Span::from_us(216), most: Span::from_us(401) };
        let compute = TaskStep::Plain(Step::Compute(draw));
        let answer = TaskStep::Answer { bytes: 10_240 };
        let read = TaskStep::Read { bytes: 4_096 };
        let wait = Draw::Exponential { mean: Span::from_ms(2) };
        let ask = TaskStep::Ask { bytes: 8_192, wait };
        let task = |steps: &[TaskStep], total| Task {
            priority: 0,
            steps: steps.to_vec(),
            repeat: true,
            total,
        };
        let tasks = vec![
            task(&[TaskStep::Accept, compute, read, answer], None),
            task(&[compute, ask], Some(Span::from_secs(3))),
            Task { repeat: false, ..task(&[compute, TaskStep::Send { bytes: 1 }], None) },
            task(&[], None),
        ];
        let read = super::tasks(&of_tasks(&tasks)).expect("what we wrote ourselves");
        assert_eq!(read.len(), tasks.len());
        for (read, task) in read.iter().zip(&tasks) {
            assert_eq!((&read.steps, read.repeat), (&task.steps, task.repeat));
            assert_eq!(read.total, task.total);
        }
        for bad in ["accept", "task|answer", "task|ask 8192", "task|answer many", "task four"] {
            let words: Vec<String> = bad.split('|').map(str::to_owned).collect();
            assert!(super::tasks(&words).is_err(), "{bad}");
        }
    }

    #[test]
    fn clients_survive_the_command_line() {
        let (every, gap) = (Draw::Exponential { mean: Span::from_us(1052) }, Span::from_us(3));
        let (timeout, retry) = (Span::from_secs(5), Span::from_secs(3));
        for kind in [
            ClientKind::Open { every, timeout, retry },
            ClientKind::Closed { at_once: 100 },
            ClientKind::Ping { every: Span::ZERO },
            ClientKind::Stream { way: Way::In, window: 65_536, gap },
            ClientKind::Stream { way: Way::Out, window: 1, gap: Span::ZERO },
        ] {
            assert_eq!(super::client(&of_client(&kind)).ok(), Some(kind));
        }
        let from = Callers { requests: true, inward: false, outward: true };
        let words: Vec<String> = of_callers(from).into_iter().map(str::to_owned).collect();
        assert_eq!(super::callers(&words).ok(), Some(from));
    }
}
