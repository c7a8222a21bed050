//! Tests that run every sequence of up to three commands and let the service die before each call.

use slackline_service::{Amount, Key, Name, Principal, Request, Role, Ticket, WantedMechanism};
use slackline_units::{Reservation, Span};

use crate::checks::Checked;
use crate::run::Run;

const WHO: (Principal, Option<Role>) = (Principal::User(1), Some(Role::Operator));

/// Behaviour of the ledger during one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ledger {
    /// Each commit completes before the next command.
    Quick,
    /// Commits take longer than all commands together.
    Slow,
    /// Commits are slow, and finally fail.
    Fails,
}

/// Parameters of one run.
#[derive(Clone, Copy, Debug)]
struct Way {
    ledger: Ledger,
    /// Number of the call before which the service dies.
    dies_at: u32,
    /// True if the commit that is in progress when the service dies is on the disk.
    is_there: bool,
}

/// Returns the commands that are possible at position `number` of a sequence. Commands at different
/// positions set different slices, so that an effect can be traced to its command.
fn alphabet(number: usize) -> Vec<Request> {
    let name = |text: &str| -> Name { text.parse().expect("a name") };
    let own = Span::from_ns(number as u64);
    let amount = |ms| {
        let each = Reservation::new(Span::from_ms(ms) + own, Span::from_ms(10));
        Amount::Each(each.expect("less than a period"))
    };
    let reserve = |text: &str, machine: &str, ms| Request::Reserve {
        name: name(text),
        amount: amount(ms),
        exact: true,
        phase: None,
        vcpus: None,
        binding: Some(machine.parse().expect("a binding")),
        user: None,
        until: None,
        enforce: WantedMechanism::default(),
    };
    let change = |ms| Request::Change {
        name: name("web"),
        amount: Some(amount(ms)),
        exact: None,
        phase: None,
        vcpus: None,
        until: None,
        enforce: None,
        why: None,
        if_revision: None,
    };
    vec![
        reserve("web", "qemu:m0", 3),
        reserve("db", "pid:101", 4),
        change(5),
        change(1),
        Request::Pause { name: name("web"), if_revision: None },
        Request::Resume { name: name("web"), if_revision: None },
        Request::Release { name: name("web"), if_revision: None },
    ]
}

/// Runs all commands. If the service dies, repeats the commands that got no reply. Returns true if
/// the service died.
fn run(commands: &[Request], way: Way, with_trace: bool) -> Result<bool, (String, Vec<String>)> {
    let mut run = Run::new(1, None, with_trace);
    let went = play(&mut run, commands, way);
    went.map_err(|error| (error, run.model.trace.unwrap_or_default())).map(|()| run.deaths > 0)
}

fn play(run: &mut Run, commands: &[Request], way: Way) -> Checked {
    run.model.kernel.start("m0", 1, 1);
    run.model.kernel.start("m1", 1, 1);
    run.model.disk.fails = way.ledger == Ledger::Fails;
    run.model.dies_after = Some(run.model.calls + way.dies_at);
    run.is_there = way.is_there;
    let mut open: Vec<(usize, Vec<Ticket>)> = Vec::new();
    for (index, command) in commands.iter().enumerate() {
        let ticket = run.ask(WHO, command.clone(), Some(key(index)))?;
        open.push((index, vec![ticket]));
        if way.ledger == Ledger::Quick {
            run.pass(Span::from_ms(2))?;
        }
    }
    run.pass(Span::from_ms(2))?;
    let answered: Vec<Ticket> = run.replies().into_iter().map(|(ticket, _)| ticket).collect();
    open.retain(|(_, tickets)| !tickets.iter().any(|ticket| answered.contains(ticket)));
    run.model.disk.fails = false;
    run.tell()?;
    for (index, _) in open {
        let ticket = run.ask(WHO, commands[index].clone(), Some(key(index)))?;
        run.pass(Span::from_ms(1500))?;
        if !run.replies().iter().any(|(one, _)| *one == ticket) {
            return Err(format!("{} got no answer when it was repeated", commands[index]));
        }
    }
    run.finish()
}

fn key(index: usize) -> Key {
    format!("k{index}").parse().expect("a key")
}

/// Returns all possible sequences of `length` commands.
fn sequences(length: usize) -> Vec<Vec<Request>> {
    (0..length).fold(vec![Vec::new()], |shorter, number| {
        let longer = |before: Vec<Request>| {
            alphabet(number).into_iter().map(move |next| [before.clone(), vec![next]].concat())
        };
        shorter.into_iter().flat_map(longer).collect()
    })
}

#[test]
fn service_crash_leaves_each_command_complete_or_without_effect() {
    let mut deaths = 0;
    for commands in (1..=3).flat_map(sequences) {
        for ledger in [Ledger::Quick, Ledger::Slow, Ledger::Fails] {
            for is_there in [false, true] {
                for dies_at in 1.. {
                    let way = Way { ledger, dies_at, is_there };
                    match run(&commands, way, false) {
                        Ok(true) => deaths += 1,
                        Ok(false) => break,
                        Err(_) => {
                            let (error, trace) =
                                run(&commands, way, true).expect_err("it fails again");
                            let commands: Vec<String> =
                                commands.iter().map(ToString::to_string).collect();
                            let trace = trace.join("\n");
                            panic!("{commands:?}, {way:?}: {error}\n{trace}");
                        }
                    }
                }
            }
        }
    }
    assert!(deaths > 10_000, "the service died only {deaths} times");
}
