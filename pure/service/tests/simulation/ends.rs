//! Tests of reservations that end at a time of the wall clock.

use slackline_service::{Answer, EventKind, Input, Principal, Refusal, Request, State, Verb};
use slackline_units::{Span, WallTime};

use crate::requests::{self, ROOT};
use crate::run::Run;
use crate::world::Replied;

/// Returns the time `seconds` seconds after the start of the simulation.
fn at(seconds: u64) -> WallTime {
    WallTime::from_ns(seconds * 1_000_000_000)
}

fn reserve(name: &str, until: Option<WallTime>) -> Request {
    requests::reserve(name, &format!("qemu:{name}"), 6, until)
}

fn change(name: &str, until: Option<WallTime>) -> Request {
    Request::Change {
        name: name.parse().expect("a name"),
        amount: None,
        exact: None,
        phase: None,
        vcpus: None,
        until: Some(until),
        enforce: None,
        why: None,
        if_revision: None,
    }
}

/// Sends a request, and returns its answer after the commit.
fn ask(run: &mut Run, request: Request) -> Result<Answer, Refusal> {
    run.ask(ROOT, request, None).expect("no check fails");
    pass(run, 100);
    let replies: Vec<Replied> = run.replies();
    let [(_, reply)] = <[_; 1]>::try_from(replies).expect("a request has one answer");
    reply
}

fn pass(run: &mut Run, ms: u64) {
    run.pass(Span::from_ms(ms)).expect("no check fails");
}

/// Returns a run with a VM whose reservation ends after 2 seconds.
fn until_two() -> Run {
    let mut run = Run::new(1, None, true);
    run.model.kernel.start("a", 0, 1);
    ask(&mut run, reserve("a", Some(at(2)))).expect("there is room");
    assert_eq!(states(&run), [State::Active]);
    run
}

fn states(run: &Run) -> Vec<State> {
    run.service.listed().map(|(_, listed)| listed.state).collect()
}

/// Returns the kinds of all events in the ledger, each as one word.
fn words(run: &Run) -> Vec<&'static str> {
    run.model.disk.events.iter().map(|event| event.what.word()).collect()
}

#[test]
fn reservation_ends_at_its_end_time_and_frees_its_capacity() {
    let mut run = until_two();
    assert!(matches!(ask(&mut run, reserve("b", None)), Err(Refusal::NoRoom { .. })));
    pass(&mut run, 1_750);
    assert_eq!(states(&run), [State::Active], "1.95 s have passed");
    pass(&mut run, 100);
    assert_eq!((states(&run), words(&run)), (vec![], vec!["reserve", "expired"]));
    assert!(run.model.scheduler.domains.is_empty() && run.model.disk.rows.is_empty());
    let last = run.model.disk.events.last().expect("an event");
    assert_eq!((last.principal, &last.after), (Principal::Service, &None));
    ask(&mut run, reserve("b", None)).expect("there is room");
    run.finish().expect("no check fails");
}

#[test]
fn change_of_only_the_end_time_leaves_the_reservation_active() {
    let mut run = until_two();
    ask(&mut run, change("a", Some(at(4)))).expect("the end is ahead");
    pass(&mut run, 3_000);
    assert_eq!(states(&run), [State::Active]);
    ask(&mut run, change("a", None)).expect("an end can be removed");
    pass(&mut run, 60_000);
    assert_eq!(states(&run), [State::Active]);
    assert_eq!(words(&run), ["reserve", "change", "change"]);
    let trace = run.model.trace.take().expect("the run has a trace");
    assert!(!trace.iter().any(|line| line.contains("   change ")), "{trace:#?}");
}

#[test]
fn reservation_expired_while_service_was_down_ends_at_next_start() {
    let mut run = until_two();
    ask(&mut run, reserve("late", Some(at(900)))).expect_err("there is no room");
    run.model.now = run.model.now.after(Span::from_secs(10));
    run.die().expect("no check fails");
    assert_eq!(states(&run), []);
    pass(&mut run, 100);
    assert_eq!(words(&run), ["reserve", "expired"], "it was not adopted first");
    assert!(run.model.disk.rows.is_empty());
}

#[test]
fn reservation_keeps_its_end_time_after_a_service_restart() {
    let mut run = until_two();
    run.die().expect("no check fails");
    assert_eq!(states(&run), [State::Active]);
    pass(&mut run, 2_000);
    assert_eq!((states(&run), words(&run)), (vec![], vec!["reserve", "adopted", "expired"]));
}

#[test]
fn reservation_ends_at_wall_clock_time_despite_clock_steps() {
    for (is_ahead, is_over) in [(true, true), (false, false)] {
        let mut run = Run::new(1, None, false);
        run.model.step_clock(Span::from_secs(1_000), true);
        ask(&mut run, reserve("a", Some(at(1_050)))).expect("there is room");
        let by = Span::from_secs(100);
        run.model.step_clock(by, is_ahead);
        run.step(Input::ClockStepped { by, is_ahead }).expect("no check fails");
        assert_eq!(states(&run).is_empty(), is_over);
        pass(&mut run, 60_000);
        assert_eq!(states(&run).is_empty(), is_over);
        pass(&mut run, 100_000);
        assert_eq!(states(&run), []);
    }
}

#[test]
fn end_time_in_the_past_is_refused_and_changes_nothing() {
    let mut run = until_two();
    pass(&mut run, 1_000);
    let refused = |reply: Result<Answer, Refusal>| reply.expect_err("it has passed").to_string();
    let says = "cannot end a reservation at 1970-01-01T00:00:01Z: the time is \
                1970-01-01T00:00:01Z already";
    assert_eq!(refused(ask(&mut run, reserve("b", Some(at(1))))), says);
    assert_eq!(refused(ask(&mut run, change("a", Some(at(1))))), says);
    let targets = vec![reserve("a", None), reserve("c", Some(at(1)))];
    let list = Request::Apply { targets, prune: true, dry_run: true, revision: None };
    assert_eq!(refused(ask(&mut run, list)), format!("c: {says}"));
    assert_eq!((states(&run), words(&run)), (vec![State::Active], vec!["reserve"]));
}

#[test]
fn undo_that_would_restore_a_passed_end_time_is_refused() {
    let mut run = until_two();
    let refused = |run: &mut Run, second| {
        let why = ask(run, Request::Undo).expect_err("the end has passed").to_string();
        let passed = format!("a: cannot end a reservation at 1970-01-01T00:00:0{second}Z: ");
        assert!(why.starts_with(&passed), "{why}");
    };
    ask(&mut run, change("a", Some(at(4)))).expect("the end is ahead");
    pass(&mut run, 2_000);
    refused(&mut run, 2);
    assert_eq!(states(&run), [State::Active]);
    let release = Request::Release { name: "a".parse().expect("a name"), if_revision: None };
    ask(&mut run, release).expect("it is there");
    pass(&mut run, 2_000);
    refused(&mut run, 4);
    assert_eq!((states(&run), words(&run)), (vec![], vec!["reserve", "change", "release"]));
}

#[test]
fn apply_request_sets_and_removes_end_times_of_reservations() {
    let mut run = until_two();
    let list = |until| Request::Apply {
        targets: vec![reserve("a", until)],
        prune: false,
        dry_run: false,
        revision: None,
    };
    ask(&mut run, list(Some(at(30)))).expect("the end is ahead");
    pass(&mut run, 10_000);
    assert_eq!(states(&run), [State::Active]);
    ask(&mut run, list(None)).expect("an end can be left out");
    pass(&mut run, 60_000);
    assert_eq!(states(&run), [State::Active]);
    let changes = run.model.disk.events.iter();
    let changes = changes.filter(|event| event.what == EventKind::Asked(Verb::Change));
    assert_eq!(changes.count(), 2);
}
