//! Tests of lists of reservations, which are applied completely or not at all.

use slackline_service::{Action, Answer, Principal, Refusal, Request, Role, State};
use slackline_units::Span;

use crate::requests::{self, ROOT, Who};
use crate::run::Run;
use crate::world::Replied;

fn reserve(name: &str, slice_ms: u64) -> Request {
    requests::reserve(name, &format!("qemu:{name}"), slice_ms, None)
}

fn list(targets: &[(&str, u64)]) -> Request {
    let targets = targets.iter().map(|&(name, slice)| reserve(name, slice)).collect();
    Request::Apply { targets, prune: false, dry_run: false, revision: None }
}

/// Sends a request, and returns its answer after the commit.
fn ask(run: &mut Run, who: Who, request: Request) -> Result<Answer, Refusal> {
    run.ask(who, request, None).expect("no check fails");
    run.pass(Span::from_ms(100)).expect("no check fails");
    let replies: Vec<Replied> = run.replies();
    let [(_, reply)] = <[_; 1]>::try_from(replies).expect("a request has one answer");
    reply
}

/// Returns the name and the slice in milliseconds of each reservation that the service lists.
fn listed(run: &Run) -> Vec<(String, u64)> {
    let each = |row: slackline_service::Row| (row.name.to_string(), row.terms.each().slice());
    let all = run.service.listed().map(|(_, listed)| each(listed.row));
    all.map(|(name, slice)| (name, slice.ns() / 1_000_000)).collect()
}

fn actions(answer: Result<Answer, Refusal>) -> Vec<(String, Action)> {
    let Ok(Answer::Applied { changes }) = answer else { panic!("{answer:?}") };
    changes.iter().map(|change| (change.name().to_string(), change.action)).collect()
}

fn named(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
    rows.iter().map(|&(name, slice)| (name.to_owned(), slice)).collect()
}

#[test]
fn apply_request_can_swap_the_capacity_of_two_reservations() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 6), ("b", 2)])).expect("there is room");
    assert!(
        ask(&mut run, ROOT, reserve_change("b", 6)).is_err(),
        "the change alone exceeds the capacity"
    );
    let answer = ask(&mut run, ROOT, list(&[("b", 6), ("a", 2)]));
    let changed = [("a", Action::Change), ("b", Action::Change)];
    assert_eq!(actions(answer), changed.map(|(name, action)| (name.to_owned(), action)));
    assert_eq!(listed(&run), named(&[("a", 2), ("b", 6)]));
    // One commit contains all changes of the list.
    let revisions: Vec<u64> = run.model.disk.rows.values().map(|row| row.revision).collect();
    assert_eq!(run.model.disk.events.last().map(|event| event.seq), revisions.into_iter().max());
}

fn reserve_change(name: &str, slice_ms: u64) -> Request {
    let Request::Reserve { name, amount, .. } = reserve(name, slice_ms) else { unreachable!() };
    let (exact, phase, vcpus) = (None, None, None);
    let (until, enforce, if_revision) = (None, None, None);
    let amount = Some(amount);
    Request::Change { name, amount, exact, phase, vcpus, until, enforce, why: None, if_revision }
}

#[test]
fn apply_request_with_one_refused_reservation_changes_no_reservation() {
    let mut run = Run::new(1, None, false);
    run.model.kernel.start("a", 0, 1);
    ask(&mut run, ROOT, list(&[("a", 3), ("b", 2), ("c", 1)])).expect("there is room");
    run.tell().expect("no check fails");
    run.pass(Span::from_ms(100)).expect("all holds");
    let before = (listed(&run), run.model.disk.rows.clone());
    // Ending `c` and shrinking `a` frees enough capacity for `d`, but not for `b`.
    let targets = vec![reserve("a", 1), reserve("b", 9), reserve("d", 1)];
    let refused = ask(
        &mut run,
        ROOT,
        Request::Apply { targets, prune: true, dry_run: false, revision: None },
    );
    let Err(Refusal::InList { name, why }) = refused else { panic!("{refused:?}") };
    assert!(name.as_str() == "b" && matches!(*why, Refusal::NoRoom { .. }), "{name}: {why}");
    assert_eq!((listed(&run), run.model.disk.rows.clone()), before);
    let states: Vec<State> = run.service.listed().map(|(_, listed)| listed.state).collect();
    assert_eq!(states, [State::Active, State::Waiting, State::Waiting]);
    run.finish().expect("no check fails");
}

#[test]
fn apply_request_that_cannot_be_written_changes_no_reservation() {
    let mut run = Run::new(1, None, false);
    run.model.kernel.start("a", 0, 1);
    run.model.kernel.start("c", 0, 1);
    ask(&mut run, ROOT, list(&[("a", 3), ("b", 2), ("c", 4)])).expect("there is room");
    run.tell().expect("no check fails");
    run.pass(Span::from_ms(100)).expect("all holds");
    let before = (listed(&run), run.model.disk.rows.clone());
    run.model.disk.fails = true;
    let targets = vec![reserve("a", 1), reserve("d", 2)];
    let refused = ask(
        &mut run,
        ROOT,
        Request::Apply { targets, prune: true, dry_run: false, revision: None },
    );
    assert!(matches!(refused, Err(Refusal::NotDurable { .. })), "{refused:?}");
    assert_eq!((listed(&run), run.model.disk.rows.clone()), before);
    run.model.disk.fails = false;
    run.finish().expect("no check fails");
    let states: Vec<State> = run.service.listed().map(|(_, listed)| listed.state).collect();
    assert_eq!(states, [State::Active, State::Waiting, State::Active]);
    assert_eq!(listed(&run), before.0);
}

#[test]
fn apply_request_binding_a_reservation_to_another_vm_is_refused() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 3), ("b", 2)])).expect("there is room");
    let mut targets = vec![reserve("a", 4), reserve("b", 2)];
    if let Request::Reserve { binding, .. } = &mut targets[1] {
        *binding = Some("qemu:c".parse().expect("a binding"));
    }
    let refused = ask(
        &mut run,
        ROOT,
        Request::Apply { targets, prune: false, dry_run: false, revision: None },
    );
    let hint = refused.expect_err("another VM").hint().expect("a hint");
    assert!(hint.ends_with("first run `slackline change b --for BINDING`"), "{hint}");
    assert_eq!(listed(&run), named(&[("a", 3), ("b", 2)]));
}

#[test]
fn apply_dry_run_returns_the_changes_without_making_any() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 3), ("b", 2)])).expect("there is room");
    let targets = vec![reserve("a", 4), reserve("c", 1)];
    let answer =
        ask(&mut run, ROOT, Request::Apply { targets, prune: true, dry_run: true, revision: None });
    let planned = [("a", Action::Change), ("b", Action::Release), ("c", Action::Create)];
    assert_eq!(actions(answer), planned.map(|(name, action)| (name.to_owned(), action)));
    assert_eq!(listed(&run), named(&[("a", 3), ("b", 2)]));
}

#[test]
fn apply_request_that_changes_nothing_keeps_every_reservation() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 3), ("b", 2)])).expect("there is room");
    let events = run.model.disk.events.len();
    let answer = ask(&mut run, ROOT, list(&[("a", 3), ("b", 2)]));
    assert!(actions(answer).iter().all(|(_, action)| *action == Action::Keep));
    assert_eq!(run.model.disk.events.len(), events);
}

#[test]
fn prune_by_an_operator_releases_only_reservations_of_that_operator() {
    let mut run = Run::new(1, None, false);
    let alice = (Principal::User(5001), Some(Role::Operator));
    ask(&mut run, ROOT, reserve("root", 1)).expect("there is room");
    ask(&mut run, alice, reserve("mine", 1)).expect("there is room");
    let nothing =
        || Request::Apply { targets: Vec::new(), prune: true, dry_run: false, revision: None };
    ask(&mut run, alice, nothing()).expect("alice may release her own reservation");
    assert_eq!(listed(&run), named(&[("root", 1)]));
    ask(&mut run, ROOT, nothing()).expect("root may release all reservations");
    assert_eq!(listed(&run), []);
}

#[test]
fn apply_request_interrupted_by_a_crash_is_all_or_nothing() {
    for (is_there, expected) in [(false, [3, 2]), (true, [1, 6])] {
        let mut run = Run::new(1, None, false);
        ask(&mut run, ROOT, list(&[("a", 3), ("b", 2)])).expect("there is room");
        run.ask(ROOT, list(&[("a", 1), ("b", 6)]), None).expect("no check fails");
        run.is_there = is_there;
        run.die().expect("no check fails");
        assert_eq!(listed(&run), named(&[("a", expected[0]), ("b", expected[1])]));
    }
}

#[test]
fn apply_request_for_more_than_1000_reservations_is_refused() {
    let mut run = Run::new(1, None, false);
    let names: Vec<String> = (0..1_001).map(|number| format!("vm{number}")).collect();
    let targets = names.iter().map(|name| reserve(name, 1)).collect();
    let refused = ask(
        &mut run,
        ROOT,
        Request::Apply { targets, prune: false, dry_run: false, revision: None },
    );
    assert_eq!(refused, Err(Refusal::TooManyTargets { is: 1_001, most: 1_000 }));
}
