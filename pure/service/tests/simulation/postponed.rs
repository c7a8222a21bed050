//! Tests of lists that wait until VMs have repaid CPU time beyond their reservations. All vCPUs of
//! the model are always runnable, so a VM uses its slice early in each period.

use slackline_service::{
    Amount, Answer, Input, PlanStage, Principal, Refusal, Request, Role, VmPrediction,
    WantedMechanism,
};
use slackline_units::{Enforcement, Reservation, Span, Time};

use crate::requests::{self, ROOT, Who};
use crate::run::Run;

fn reserve(name: &str, slice_ms: u64) -> Request {
    requests::reserve(name, &format!("qemu:{name}"), slice_ms, None)
}

fn list(targets: &[(&str, u64)]) -> Request {
    let targets = targets.iter().map(|&(name, slice)| reserve(name, slice)).collect();
    Request::Apply { targets, prune: false, dry_run: false, revision: None }
}

/// Returns the name and the slice in milliseconds of each reservation that the service lists.
fn listed(run: &Run) -> Vec<(String, u64)> {
    let all = run.service.listed().map(|(_, listed)| listed.row);
    all.map(|row| (row.name.to_string(), row.terms.each().slice().ns() / 1_000_000)).collect()
}

fn named(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
    rows.iter().map(|&(name, slice)| (name.to_owned(), slice)).collect()
}

/// Sends a request and lets `time` pass. Returns the only reply of that time. `None` if no reply
/// came.
fn ask(run: &mut Run, who: Who, request: Request, time: Span) -> Option<Result<Answer, Refusal>> {
    run.ask(who, request, None).expect("no check fails");
    run.pass(time).expect("no check fails");
    let mut replies = run.replies();
    assert!(replies.len() <= 1, "{replies:?}");
    replies.pop().map(|(_, reply)| reply)
}

/// Starts VMs that compute all the time, on a host with one CPU, and makes a reservation for each.
fn running(vms: &[(&str, u64)]) -> Run {
    let mut run = Run::new(1, None, false);
    for (name, _) in vms {
        run.model.kernel.start(name, 0, 1);
    }
    ask(&mut run, ROOT, list(vms), Span::from_ms(100)).expect("answered").expect("there is room");
    run.tell().expect("no check fails");
    run.pass(Span::from_ms(100)).expect("no check fails");
    run
}

/// Tries several instants within a period of `a` to send the list, and returns a run in which the
/// list waits for capacity.
fn waiting(vms: &[(&str, u64)], who: Who, targets: &[(&str, u64)]) -> Run {
    for us in (0..10_000).step_by(500) {
        let mut run = running(vms);
        run.pass(Span::from_us(us)).expect("no check fails");
        run.ask(who, list(targets), None).expect("no check fails");
        if run.service.has_postponed_list() {
            return run;
        }
    }
    panic!("no VM is ever ahead of its fluid rate");
}

/// The two VMs exchange capacity 20 times, at each millisecond of their periods.
#[test]
fn apply_moves_capacity_between_vms_at_any_point_of_period() {
    let mut run = running(&[("a", 6), ("b", 2)]);
    let mut waited = 0;
    for step in 0..20 {
        run.pass(Span::from_ms(11)).expect("no check fails");
        let (a, b) = if step % 2 == 0 { (2, 6) } else { (6, 2) };
        run.ask(ROOT, list(&[("a", a), ("b", b)]), None).expect("no check fails");
        waited += u32::from(run.service.has_postponed_list());
        // The wait is at most a period, and the commit takes a millisecond.
        run.pass(Span::from_ms(12)).expect("no check fails");
        let [(_, reply)] = <[_; 1]>::try_from(run.replies()).expect("the list has one answer");
        reply.expect("the capacity moves");
        assert_eq!(listed(&run), named(&[("a", a), ("b", b)]));
    }
    assert!(waited > 5, "only {waited} lists waited");
    run.finish().expect("no check fails");
}

/// Two VMs exchange capacity 20 times. Each exchange is undone, at various times of their periods.
#[test]
fn undo_moves_exchanged_capacity_back_at_any_point_of_period() {
    let mut run = running(&[("a", 6), ("b", 2)]);
    let mut waited = 0;
    for ms in 20..40 {
        let change = list(&[("a", 2), ("b", 6)]);
        ask(&mut run, ROOT, change, Span::from_ms(ms)).expect("answered").expect("it moves");
        run.ask(ROOT, Request::Undo, None).expect("no check fails");
        waited += u32::from(run.service.has_postponed_list());
        run.pass(Span::from_ms(14)).expect("no check fails");
        let [(_, reply)] = <[_; 1]>::try_from(run.replies()).expect("one answer");
        reply.expect("the capacity moves back");
        assert_eq!(listed(&run), named(&[("a", 6), ("b", 2)]));
    }
    assert!(waited > 0, "no request waited");
    run.finish().expect("no check fails");
}

/// After the canary of a plan, the other two VMs of the plan exchange capacity. The plan starts at
/// each millisecond of the VMs' periods.
#[test]
fn canary_plan_moves_capacity_at_any_point_of_a_period() {
    let mut waited = 0;
    for ms in 0..10 {
        let mut run = running(&[("a", 1), ("b", 5), ("c", 2)]);
        run.model.measured_ppm = 200_000;
        run.pass(Span::from_ms(ms)).expect("no check fails");
        let targets = vec![reserve("a", 2), reserve("b", 2), reserve("c", 5)];
        let prediction = VmPrediction {
            name: "a".parse().expect("a name"),
            share_ppm: (200_000, 200_000),
            missed: None,
            length: Span::from_secs(2),
        };
        let (watch, predictions) = (Span::from_secs(2), vec![prediction]);
        let canary = Request::Canary { targets, prune: false, watch, revision: None, predictions };
        run.ask(ROOT, canary, None).expect("no check fails");
        for _ in 0..1_270 {
            run.pass(Span::from_ms(2)).expect("no check fails");
            waited += u32::from(run.service.has_postponed_list());
        }
        let stage = run.service.plan_of(ROOT.0).map(|plan| plan.stage.clone());
        assert_eq!(stage, Some(PlanStage::Done), "{ms}");
        assert_eq!(listed(&run), named(&[("a", 2), ("b", 2), ("c", 5)]));
        run.finish().expect("no check fails");
    }
    assert!(waited > 3, "only {waited} plans waited");
}

/// In separate runs, the service dies before each of its calls and after each millisecond of the
/// wait.
#[test]
fn capacity_exchange_interrupted_by_a_crash_is_all_or_nothing() {
    let (old, new) = (named(&[("a", 6), ("b", 2)]), named(&[("a", 2), ("b", 6)]));
    let (mut deaths, mut is_new) = (0, 0);
    for is_there in [false, true] {
        for dies_at in 1.. {
            let mut run = waiting(&[("a", 6), ("b", 2)], ROOT, &[("a", 2), ("b", 6)]);
            run.is_there = is_there;
            run.model.dies_after = Some(run.model.calls + dies_at);
            run.pass(Span::from_ms(20)).expect("no check fails");
            assert!([&old, &new].contains(&&listed(&run)), "{:?}", listed(&run));
            is_new += u32::from(listed(&run) == new);
            deaths += run.deaths;
            let died = run.deaths > 0;
            run.finish().expect("no check fails");
            if !died {
                break;
            }
        }
    }
    assert!(deaths > 6 && is_new > 2, "{deaths} deaths, {is_new} times the new parameters");
    for ms in 0..4 {
        let mut run = waiting(&[("a", 6), ("b", 2)], ROOT, &[("a", 2), ("b", 6)]);
        run.pass(Span::from_ms(ms)).expect("no check fails");
        let expected = if run.service.has_postponed_list() { &old } else { &new };
        run.is_there = true;
        run.die().expect("no check fails");
        assert_eq!(listed(&run), *expected, "{ms}");
    }
}

#[test]
fn other_requests_are_executed_after_a_waiting_apply_request() {
    let mut run = waiting(&[("a", 6), ("b", 2)], ROOT, &[("a", 2), ("b", 6)]);
    assert_eq!(ask(&mut run, ROOT, reserve("c", 1), Span::ZERO), None);
    assert_eq!(listed(&run), named(&[("a", 2), ("b", 2)]));
    // An unrelated VM starts. This does not end the wait.
    let binding = "qemu:z".parse().expect("a binding");
    run.step(Input::Appeared { binding, user: 5002 }).expect("holds");
    run.pass(Span::from_ms(12)).expect("no check fails");
    let replies = run.replies();
    assert!(replies.len() == 2 && replies.iter().all(|(_, reply)| reply.is_ok()), "{replies:?}");
    assert_eq!(listed(&run), named(&[("a", 2), ("b", 6), ("c", 1)]));
    run.finish().expect("no check fails");
}

#[test]
fn apply_request_that_waits_is_undone_if_vm_ends() {
    let mut run = waiting(&[("a", 6), ("b", 2)], ROOT, &[("a", 2), ("b", 6)]);
    run.model.kernel.end("b");
    run.tell().expect("no check fails");
    let [(_, reply)] = <[_; 1]>::try_from(run.replies()).expect("the list is refused");
    assert!(matches!(reply, Err(Refusal::NotNow { .. })), "{reply:?}");
    assert_eq!(listed(&run), named(&[("a", 6), ("b", 2)]));
    run.finish().expect("no check fails");
}

/// After the wait, the capacity is enough for `b` but not for `d`.
#[test]
fn apply_request_that_waited_in_vain_is_refused_and_undone() {
    let targets = [("a", 1), ("b", 6), ("d", 3)];
    let mut run = waiting(&[("a", 6), ("b", 2)], ROOT, &targets);
    run.pass(Span::from_ms(12)).expect("no check fails");
    let [(_, reply)] = <[_; 1]>::try_from(run.replies()).expect("the list is refused");
    let Err(Refusal::InList { name, why }) = reply else { panic!("{reply:?}") };
    assert!(name.as_str() == "d" && matches!(*why, Refusal::NoRoom { .. }), "{name}: {why}");
    assert_eq!(listed(&run), named(&[("a", 6), ("b", 2)]));
    run.finish().expect("no check fails");
}

/// The model world prefers the mechanism `deadline` in each odd millisecond. The kernel refuses
/// that mechanism after the wait.
#[test]
fn waiting_request_uses_dispatcher_if_kernel_refuses_sched_deadline() {
    let mut waited = 0;
    for us in (0..20_000).step_by(500) {
        let mut run = running(&[("a", 6), ("b", 2)]);
        run.pass(Span::from_us(us)).expect("no check fails");
        let is_odd = run.model.now.since(Time::START).ns() / 1_000_000 % 2 == 1;
        let mut targets = vec![reserve("a", 1), reserve("c", 6)];
        let Request::Reserve { enforce, .. } = &mut targets[1] else { unreachable!() };
        *enforce = WantedMechanism::AUTO;
        let list = Request::Apply { targets, prune: false, dry_run: false, revision: None };
        run.ask(ROOT, list, None).expect("no check fails");
        if !is_odd || !run.service.has_postponed_list() {
            continue;
        }
        waited += 1;
        run.model.refuses_deadline = true;
        run.pass(Span::from_ms(30)).expect("no check fails");
        let [(_, reply)] = <[_; 1]>::try_from(run.replies()).expect("the list has one answer");
        reply.expect("the dispatcher can enforce the reservation");
        assert_eq!(listed(&run), named(&[("a", 1), ("b", 2), ("c", 6)]));
        let is_dispatched = run
            .service
            .listed()
            .all(|(_, listed)| listed.row.terms.enforcement() == Enforcement::Dispatcher);
        assert!(is_dispatched);
        run.finish().expect("no check fails");
    }
    assert!(waited > 3, "only {waited} lists waited");
}

#[test]
fn apply_request_that_can_never_fit_is_refused_without_wait() {
    let mut run = running(&[("a", 6), ("b", 2)]);
    for _ in 0..20 {
        let refused = ask(&mut run, ROOT, list(&[("a", 3), ("b", 7)]), Span::ZERO);
        assert!(matches!(refused, Some(Err(Refusal::InList { .. }))), "{refused:?}");
        run.pass(Span::from_us(10_500)).expect("no check fails");
    }
    run.finish().expect("no check fails");
}

/// A VM has given up capacity that is not free yet. A reservation that needs this capacity is
/// refused, and the refusal states the time until it is free. After that time, it is admitted.
#[test]
fn refusal_of_change_includes_time_at_which_capacity_is_free() {
    let mut stated = 0;
    for us in (0..10_000).step_by(1_000) {
        let mut run = running(&[("a", 6), ("b", 2)]);
        run.pass(Span::from_us(us)).expect("no check fails");
        let (smaller, larger) = (list(&[("a", 2)]), list(&[("b", 6)]));
        ask(&mut run, ROOT, smaller, Span::from_us(1_000)).expect("answered").expect("it shrinks");
        let reserve = reserve("c", 5);
        let answer = ask(&mut run, ROOT, reserve.clone(), Span::from_us(1_000)).expect("answered");
        if let Err(refusal) = answer {
            let Refusal::NoRoom { free_after: Some(wait), .. } = refusal else {
                panic!("{refusal}")
            };
            stated += 1;
            run.pass(wait).expect("no check fails");
            ask(&mut run, ROOT, reserve, Span::from_ms(2)).expect("answered").expect("it is free");
        }
        ask(&mut run, ROOT, larger, Span::from_ms(12)).expect("answered").expect_err("it is full");
    }
    assert!(stated > 3, "only {stated} refusals state a time");
}

/// The periods are 400 ms long, but a waiting list of an operator must not delay other users for
/// that long.
#[test]
fn apply_request_of_an_operator_waits_at_most_100_ms() {
    let operator = (Principal::User(1), Some(Role::Operator));
    let list = |slices: [u64; 2]| {
        let targets = ["a", "b"].into_iter().zip(slices).map(|(name, slice_ms)| {
            let mut request = reserve(name, 1);
            let Request::Reserve { amount, .. } = &mut request else { unreachable!() };
            let each = Reservation::new(Span::from_ms(slice_ms), Span::from_ms(400));
            *amount = Amount::Each(each.expect("less than a period"));
            request
        });
        Request::Apply { targets: targets.collect(), prune: false, dry_run: false, revision: None }
    };
    for (who, longest) in [(operator, Span::from_ms(100)), (ROOT, Span::from_ms(400))] {
        let (mut is_refused, mut has_waited) = (false, false);
        for ms in (0..400).step_by(40) {
            let mut run = Run::new(1, None, false);
            for name in ["a", "b"] {
                run.model.kernel.start(name, who.0.user(), 1);
            }
            ask(&mut run, who, list([220, 10]), Span::from_ms(9)).expect("answered").expect("room");
            run.tell().expect("no check fails");
            run.pass(Span::from_ms(600 + ms)).expect("no check fails");
            run.ask(who, list([10, 220]), None).expect("no check fails");
            has_waited |= run.service.has_postponed_list();
            run.pass(longest).expect("no check fails");
            assert!(!run.service.has_postponed_list());
            run.pass(Span::from_ms(2)).expect("no check fails");
            is_refused |= run.replies().iter().any(|(_, reply)| reply.is_err());
        }
        assert_eq!((is_refused, has_waited), (who != ROOT, true), "{who:?}");
    }
}
