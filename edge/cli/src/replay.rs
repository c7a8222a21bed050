//! Command `slackline replay`, which replays the events of a trace and compares the policy's
//! decisions with the recorded decisions.

use std::fmt::Write as _;

use slackline_replay::{Difference, Replay, ReplayError};
use slackline_trace::{Exchange, Fact, KeptFact, Order, Outcome, WrittenTerms};
use slackline_units::Time;

use crate::names::Names;
use crate::problem::Problem;
use crate::show;
use crate::terminal;

pub(crate) fn replay(args: &crate::args::Replay) -> Result<(), Problem> {
    let (mut trace, names) = show::open(&args.file)?;
    let cannot = |error: ReplayError| Problem::NoReplay { file: args.file.clone(), error };
    let mut replay = Replay::new(trace.header()).map_err(cannot)?;
    let passed = trace.pass_to(&mut replay);
    passed.map_err(|error| Problem::BadTrace { file: args.file.clone(), error })?;
    let replayed = replay.finish().map_err(cannot)?;
    if let Some(difference) = &replayed.difference {
        terminal::say(&told(difference, &names))?;
        return Err(Problem::ReplayDiffers);
    }
    let mut text =
        format!("{} events and {} decisions, all as recorded\n", replayed.facts, replayed.orders);
    if let Some(broken) = &replayed.broken {
        let _ = writeln!(
            text,
            "the replay ends with the recorded violation of the contract between \
                 policy and host: {broken}"
        );
    }
    terminal::say(&text)
}

/// Describes the first difference between a replay and its trace, with the events before it.
fn told(difference: &Difference, names: &Names) -> String {
    let Difference { at, entry, expected, got, broken, facts } = difference;
    let mut text = format!("the first difference is at {}, entry {entry}:\n", exact(*at));
    let is = |exchange: &Option<Exchange>| match exchange {
        Some(exchange) => in_words(exchange, names),
        None => "nothing".into(),
    };
    let _ = writeln!(text, "  recorded: {}", is(expected));
    let _ = match broken {
        Some(broken) => writeln!(
            text,
            "  now:      violation of the contract between policy and host: {broken}"
        ),
        None => writeln!(text, "  now:      {}", is(got)),
    };
    text += "after these events:\n";
    for (entry, at, fact) in facts {
        let _ = writeln!(text, "  {}, entry {entry}: {}", exact(*at), happened(fact, names));
    }
    text
}

/// Describes an entry of a trace: an order, a timer, a measurement, an event or a refusal.
fn in_words(exchange: &Exchange, names: &Names) -> String {
    match exchange {
        Exchange::Ordered { order: Order::Run { cpu, vcpu, until, entitlement }, outcome } => {
            let until = until.map_or("without a limit".into(), |at| format!("until {}", exact(at)));
            let entitlement = format!("{entitlement:?}").to_lowercase();
            let (vcpu, refused) = (names.of(*vcpu), refused(*outcome));
            format!("run `{vcpu}` on {cpu} {until} (entitlement: {entitlement}){refused}")
        }
        Exchange::Ordered { order: Order::Idle { cpu }, outcome } => {
            format!("leave {cpu} idle{}", refused(*outcome))
        }
        Exchange::AlarmSet { cpu, alarm: Some(alarm) } => {
            format!("set the timer of {cpu} to {}", exact(*alarm))
        }
        Exchange::AlarmSet { cpu, alarm: None } => format!("clear the timer of {cpu}"),
        Exchange::Measured(used) | Exchange::Noticed(used) => {
            let (who, from, to) = (names.of(used.vcpu), exact(used.from), exact(used.to));
            format!("`{who}` used {} of CPU time on {} from {from} to {to}", used.ran, used.cpu)
        }
        Exchange::Declined => "admission refuses the share".into(),
        Exchange::Reported { fact, .. } => happened(fact, names),
    }
}

fn refused(outcome: Outcome) -> &'static str {
    if outcome == Outcome::Refused { " (refused)" } else { "" }
}

/// Describes an event that the hardware reported.
fn happened(fact: &KeptFact, names: &Names) -> String {
    let of = |vcpu| format!("`{}`", names.of(vcpu));
    match fact {
        Fact::Joined(vcpu, terms) => format!("{} joins, {}", of(*vcpu), on(terms)),
        Fact::TermsChanged(vcpu, terms) => format!("{} changes to {}", of(*vcpu), on(terms)),
        Fact::Left(vcpu) => format!("{} leaves", of(*vcpu)),
        Fact::Woke(vcpu) => format!("{} wakes", of(*vcpu)),
        Fact::Blocked(vcpu) => format!("{} blocks", of(*vcpu)),
        Fact::Paused(vcpu) => format!("{} is paused", of(*vcpu)),
        Fact::Yielded(cpu) => format!("the running vCPU of {cpu} yields"),
        Fact::LimitReached(cpu) => format!("the running vCPU of {cpu} reaches its limit"),
        Fact::AlarmRang(cpu) => format!("the timer of {cpu} expires"),
        Fact::Told(vcpu, told) => format!("{} reports {told:?}", of(*vcpu)),
        Fact::Allowed(vcpu) => format!("{} is resumed", of(*vcpu)),
        Fact::ClockSet(ahead) => format!("the wall clock is {ahead} ahead of the host's clock"),
        Fact::Passed => "time passes".into(),
        Fact::Settled => "all events of this time are reported".into(),
        Fact::Ended => "the run ends".into(),
    }
}

/// Describes the share of a vCPU, and the CPUs that its affinity allows.
fn on(terms: &WrittenTerms) -> String {
    let share = if terms.share.is_empty() { "a share" } else { &terms.share };
    match &terms.cpus {
        Some(cpus) => {
            let cpus: Vec<String> = cpus.iter().map(|cpu| cpu.to_string()).collect();
            format!("{share} on {}", cpus.join(", "))
        }
        None => share.into(),
    }
}

/// Formats a time in milliseconds, exact to the nanosecond.
fn exact(at: Time) -> String {
    format!("{}.{:06}ms", at.ns() / 1_000_000, at.ns() % 1_000_000)
}
