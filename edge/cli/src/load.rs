//! `slackline load`: a workload program as a real process.

use std::fs;

use slackline_load::{Options, jobs_on};
use slackline_scenario::{Draw, Program, Purpose, Scenario, Step, Stream};
use slackline_units::{DomId, Span, Time, VcpuId};

use crate::args::{Kind, Load};
use crate::problem::Problem;
use crate::terminal;

/// The descriptor on which jobs are reported.
const STANDARD_OUTPUT: u32 = 1;

pub(crate) fn load(args: &Load) -> Result<(), Problem> {
    let program = program(&args.kind)?;
    let (domain, number) = args.who;
    let vcpu = VcpuId::new(0, DomId::new(domain), number);
    let jobs = args.report_jobs.then(|| jobs_on(STANDARD_OUTPUT)).transpose()?;
    let options = Options { start: args.start.map(Time::from_ns), limit: args.length, jobs };
    let draws = Stream::of_vcpu(args.seed, vcpu, Purpose::Work);
    let report = slackline_load::run(&program, draws, options)?;
    if !args.report_jobs {
        let (used, elapsed) = (report.used, report.elapsed);
        let jobs = report.jobs;
        terminal::tell(&format!("used {used} of CPU time in {elapsed}, finished {jobs} jobs\n"));
    }
    Ok(())
}

/// What a scenario would make of it, so that both mean the same and complain in the same words.
fn program(kind: &Kind) -> Result<Program, Problem> {
    let text = |name: &str, value: &str| format!(", {name} = {value:?}");
    let (work, file) = match kind {
        Kind::Steps { steps } => return from_words(steps),
        Kind::Spin => ("kind = \"spin\"".into(), None),
        Kind::Periodic { period, work, deadline } => {
            let deadline = deadline.as_ref().map_or(String::new(), |it| text("deadline", it));
            let work = text("period", period) + &text("work", work) + &deadline;
            (format!("kind = \"periodic\"{work}"), None)
        }
        Kind::Interactive { compute, sleep } => {
            let work = text("compute", compute) + &text("sleep", sleep);
            (format!("kind = \"interactive\"{work}"), None)
        }
        Kind::Batch { total } => (format!("kind = \"batch\"{}", text("total", total)), None),
        Kind::Replay { file } => {
            let recording = fs::read_to_string(file)
                .map_err(|source| Problem::Unreadable { file: file.clone(), source })?;
            let name = file.display().to_string();
            (format!("kind = \"replay\"{}", text("file", &name)), Some(recording))
        }
    };
    let scenario = format!(
        "title = \"load\"\nlength = \"1s\"\npolicy = {{ name = \"round-robin\" }}\n\
         [[domain]]\nname = \"load\"\nwork = {{ {work} }}\n"
    );
    let scenario = Scenario::with_files(&scenario, &|_| file.clone());
    let mut scenario = scenario.map_err(|error| Problem::BadOption {
        message: error.kind.to_string(),
        hint: error.hint(),
    })?;
    Ok(scenario.domains.remove(0).program)
}

/// A program as words for a command line, to be read back by [`from_words`].
pub(crate) fn to_words(program: &Program) -> Vec<String> {
    let word = |step: &Step| match step {
        Step::Compute(draw) => format!("compute {draw}"),
        Step::ComputeForever => "compute".into(),
        Step::Sleep(draw) => format!("sleep {draw}"),
        Step::Release { period, deadline, offset } => {
            let deadline = deadline.map_or("none".into(), |span| span.to_string());
            format!("release {period} {deadline} {offset}")
        }
        Step::Done => "done".into(),
    };
    let mut words: Vec<String> = program.steps.iter().map(word).collect();
    words.extend(program.repeat.then(|| "repeat".into()));
    words
}

fn from_words(words: &[String]) -> Result<Program, Problem> {
    let mut program = Program { steps: Vec::new(), repeat: false };
    for word in words {
        if word == "repeat" {
            program.repeat = true;
        } else {
            let unknown =
                || Problem::BadOption { message: format!("there is no step `{word}`"), hint: None };
            program.steps.push(from_word(word).ok_or_else(unknown)?);
        }
    }
    Ok(program)
}

fn from_word(word: &str) -> Option<Step> {
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
            assert_eq!(from_words(&to_words(&program)).ok(), Some(program));
        }
    }
}
