//! Command `slackline why`, which shows what kept a VM from running.

use std::fmt::Write as _;

use slackline_control::Culprits;
use slackline_daemon::record::as_reply;
use slackline_metrics::{Answer, CulpritFinder};

use crate::problem::Problem;
use crate::service::args::WhyArgs;
use crate::{service, show, terminal};

pub(crate) fn why(args: &WhyArgs) -> Result<(), Problem> {
    let Some(file) = &args.file else {
        let (reply, json) = service::why(&args.at, &args.name, args.incident)?;
        return match args.at.json {
            true => terminal::print(&format!("{json}\n")),
            false => terminal::say(&text(&reply)),
        };
    };
    let (mut trace, _) = show::open(file)?;
    let mut question = CulpritFinder::new(&args.name);
    let bad = |error| Problem::BadTrace { file: file.clone(), error };
    trace.pass_to(&mut question).map_err(bad)?;
    let answer = question.answer();
    if answer.vcpus.is_empty() {
        return Err(no_such_vm(args, &answer));
    }
    let reply = as_reply(&args.name, &answer);
    if args.at.json {
        let text = serde_json::to_string_pretty(&reply).expect("keys are texts");
        return terminal::print(&format!("{text}\n"));
    }
    terminal::say(&text(&reply))
}

fn no_such_vm(args: &WhyArgs, answer: &Answer) -> Problem {
    let name = &args.name;
    let message =
        format!("cannot answer for `{name}`: the recording has no thread of a VM with that name");
    let hint = if answer.vms.is_empty() {
        "record the VM with `slackline record`".into()
    } else {
        format!("name one of the recorded VMs: {}", answer.vms.join(", "))
    };
    Problem::BadOption { message, hint: Some(hint) }
}

/// Formats the answer of `slackline why` for people.
fn text(reply: &Culprits) -> String {
    let mut text = String::new();
    for vcpu in &reply.vcpus {
        let (waited, length) = (vcpu.waited_ns, reply.length_ns);
        let _ = writeln!(
            text,
            "{vcpu}: waited {wait} ({percent} of {recorded}), ran {ran}",
            vcpu = vcpu.vcpu,
            wait = ms(waited),
            percent = percent(waited, length),
            recorded = ms(length),
            ran = ms(vcpu.ran_ns)
        );
        let mut line = |ns: u64, says: &str| {
            let _ = writeln!(text, "{:>15} {:>7}  {says}", ms(ns), percent(ns, waited));
        };
        vcpu.culprits.iter().for_each(|it| line(it.waited_ns, &it.says));
        // The line `unexplained` is always shown.
        if !vcpu.culprits.iter().any(|it| it.kind == "unexplained") {
            line(0, "unexplained");
        }
        if let Some(check) = vcpu.check {
            let _ = writeln!(
                text,
                "  check: the kernel counted {} of CPU ready time, the recording has {}; the \
                 kernel counted {} of CPU time, the recording has {}",
                ms(check.kernel_ready_ns),
                ms(check.ready_ns),
                ms(check.kernel_used_ns),
                ms(check.used_ns)
            );
        }
    }
    for gap in &reply.gaps {
        let length = ms(gap.to_ns.saturating_sub(gap.from_ns));
        let (events, cpu) = (gap.events, gap.cpu);
        let _ = writeln!(text, "warning: lost at least {events} events of CPU {cpu} in {length}");
    }
    text
}

fn ms(ns: u64) -> String {
    let us = ns / 1_000;
    format!("{}.{:03} ms", us / 1_000, us % 1_000)
}

fn percent(part: u64, whole: u64) -> String {
    let tenths = (u128::from(part) * 1_000).checked_div(u128::from(whole)).unwrap_or(0);
    format!("{}.{} %", tenths / 10, tenths % 10)
}
