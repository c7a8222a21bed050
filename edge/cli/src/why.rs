//! Command `slackline why`, which shows what kept a VM from running.

use std::fmt::Write as _;

use slackline_control::Culprits;
use slackline_daemon::record::as_reply;
use slackline_metrics::{Answer, CulpritFinder};

use crate::problem::Problem;
use crate::service::args::WhyArgs;
use crate::{service, show, terminal};

/// Tolerance in nanoseconds. If a vCPU was recorded for less than the whole recording by more than
/// this time, the text says so. Smaller differences are usual, because a recording begins with the
/// current period of each vCPU.
const PART_OF_RECORDING: u64 = 200_000_000;

pub(crate) fn why(args: &WhyArgs) -> Result<(), Problem> {
    let Some(file) = &args.file else {
        let (reply, json) = service::why(&args.at, &args.name, args.incident)?;
        return match args.at.json {
            true => terminal::print(&format!("{json}\n")),
            false => terminal::say(&text(&reply)),
        };
    };
    let (mut trace, _) = show::open(file)?;
    if trace.header().machine == "sim" {
        return Err(no_threads(args));
    }
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

/// Returns the error for a trace of a simulated run. Its vCPUs are not threads of a host.
fn no_threads(args: &WhyArgs) -> Problem {
    Problem::BadOption {
        message: format!(
            "cannot answer for `{}`: the trace is of a simulation, which has no threads",
            args.name
        ),
        hint: Some("see its waits with `slackline show TRACE --table`".into()),
    }
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
        let (waited, length) = (vcpu.waited_ns, reply.recorded_ns(vcpu));
        let is_part = reply.length_ns.saturating_sub(length) > PART_OF_RECORDING;
        let _ = writeln!(
            text,
            "{vcpu}: waited {wait} ({percent} of {recorded}{part}), ran {ran}",
            vcpu = vcpu.vcpu,
            wait = ms(waited),
            percent = percent(waited, length),
            recorded = ms(length),
            part = if is_part { " in which it was recorded" } else { "" },
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

#[cfg(test)]
mod tests {
    use slackline_control::{CulpritTime, VcpuCulprits};

    use super::*;

    #[test]
    fn why_text_gives_wait_as_percent_of_recorded_vcpu_time() {
        let shown = |length_ns: Option<u64>| {
            let culprit = CulpritTime {
                kind: "process".into(),
                says: "process hog".into(),
                waited_ns: 100_000_000,
                vm: None,
                command: Some("hog".into()),
                group: None,
                name: None,
            };
            let vcpu = VcpuCulprits {
                vcpu: "web.0".into(),
                length_ns,
                ran_ns: 90_000_000,
                waited_ns: 100_000_000,
                culprits: vec![culprit],
                check: None,
            };
            text(&Culprits {
                format: "slackline-why-1".into(),
                name: "web".into(),
                length_ns: 2_000_000_000,
                vcpus: vec![vcpu],
                gaps: Vec::new(),
            })
        };
        let whole = "web.0: waited 100.000 ms (5.0 % of 2000.000 ms), ran 90.000 ms\n";
        for length_ns in [None, Some(2_000_000_000)] {
            assert!(shown(length_ns).starts_with(whole), "{}", shown(length_ns));
        }
        let part = "web.0: waited 100.000 ms (50.0 % of 200.000 ms in which it was recorded), ran ";
        assert!(shown(Some(200_000_000)).starts_with(part), "{}", shown(Some(200_000_000)));
    }
}
