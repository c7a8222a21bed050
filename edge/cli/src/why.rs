//! `slackline why`: who kept a VM from running.

use std::fmt::Write as _;

use serde_json::{Value, json};
use slackline_metrics::{Answer, Blame, Culprit, Why as Question};
use slackline_units::Span;

use crate::args::Why;
use crate::problem::Problem;
use crate::{show, terminal};

pub(crate) fn why(args: &Why) -> Result<(), Problem> {
    let (mut trace, _) = show::open(&args.file)?;
    let mut question = Question::new(&args.name);
    let bad = |error| Problem::BadTrace { file: args.file.clone(), error };
    trace.pass_to(&mut question).map_err(bad)?;
    let answer = question.answer();
    if answer.vcpus.is_empty() {
        return Err(no_such_vm(args, &answer));
    }
    if args.json {
        return terminal::print(&format!("{:#}\n", as_json(&answer)));
    }
    terminal::say(&text(&answer))
}

fn no_such_vm(args: &Why, answer: &Answer) -> Problem {
    let (name, file) = (&args.name, args.file.display());
    let message = format!("cannot answer for `{name}`: {file} has no host threads of such a VM");
    let hint = if answer.vms.is_empty() {
        "record it with `slackline record`".into()
    } else {
        format!("it has {}", answer.vms.join(", "))
    };
    Problem::BadOption { message, hint: Some(hint) }
}

/// The answer for people.
pub(crate) fn text(answer: &Answer) -> String {
    let mut text = String::new();
    for blame in &answer.vcpus {
        let Blame { name, ran, waited, .. } = blame;
        let length = answer.length;
        let _ = writeln!(
            text,
            "{name}: waited {} ({} of {}), ran {}",
            ms(*waited),
            percent(*waited, length),
            ms(length),
            ms(*ran)
        );
        for (culprit, span) in &blame.culprits {
            let (span, part) = (ms(*span), percent(*span, *waited));
            let _ = writeln!(text, "{span:>14} {part:>7}  {culprit}");
        }
        if blame.of(|culprit| *culprit == Culprit::Unexplained).is_zero() {
            let _ = writeln!(text, "{:>14} {:>7}  unexplained", ms(Span::ZERO), "0.0 %");
        }
        if let Some((used, ready)) = blame.counted {
            let _ = writeln!(
                text,
                "  check: the kernel counted {} of CPU ready, recorded {}; CPU time {}, recorded {}",
                ms(ready),
                ms(blame.ready),
                ms(used),
                ms(*ran)
            );
        }
    }
    for gap in &answer.gaps {
        let length = ms(gap.to.since(gap.from));
        let _ = writeln!(
            text,
            "warning: {} events or more of {} were lost within {length}",
            gap.events, gap.cpu
        );
    }
    text
}

/// The answer for programs.
pub(crate) fn as_json(answer: &Answer) -> Value {
    let vcpus = answer.vcpus.iter().map(|blame| {
        let culprits = blame.culprits.iter().map(|(culprit, span)| {
            let (vm, command, group, work) = match culprit {
                Culprit::OtherVm { vm, .. } => (Some(vm), None, None, None),
                Culprit::Process { command, group } => (None, Some(command), Some(group), None),
                Culprit::Kernel { name } => (None, None, None, Some(name)),
                _ => (None, None, None, None),
            };
            let (kind, ns) = (culprit.kind(), span.ns());
            let mut value = json!({ "kind": kind, "waited_ns": ns });
            let names = [("vm", vm), ("command", command), ("group", group), ("name", work)];
            for (key, name) in names {
                if let Some(name) = name.filter(|name| !name.is_empty()) {
                    value[key] = name.as_str().into();
                }
            }
            value
        });
        json!({
            "vcpu": blame.name,
            "ran_ns": blame.ran.ns(),
            "waited_ns": blame.waited.ns(),
            "culprits": culprits.collect::<Vec<_>>(),
            "ready_ns": blame.ready.ns(),
            "kernel_ready_ns": blame.counted.map(|(_, ready)| ready.ns()),
            "kernel_used_ns": blame.counted.map(|(used, _)| used.ns()),
        })
    });
    let gaps = answer.gaps.iter().map(|gap| {
        json!({
            "cpu": gap.cpu.index(),
            "from_ns": gap.from.ns(),
            "to_ns": gap.to.ns(),
            "events": gap.events,
        })
    });
    json!({
        "format": "slackline-why-1",
        "length_ns": answer.length.ns(),
        "vcpus": vcpus.collect::<Vec<_>>(),
        "gaps": gaps.collect::<Vec<_>>(),
    })
}

fn ms(span: Span) -> String {
    let us = span.ns() / 1_000;
    format!("{}.{:03} ms", us / 1_000, us % 1_000)
}

fn percent(part: Span, whole: Span) -> String {
    let tenths = u128::from(part.ns()) * 1_000;
    let tenths = tenths.checked_div(u128::from(whole.ns())).unwrap_or(0);
    format!("{}.{} %", tenths / 10, tenths % 10)
}
