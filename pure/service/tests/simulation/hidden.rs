//! Tests that a tenant cannot find out which names the reservations and VMs of others have.

use slackline_service::gang::Gang;
use slackline_service::{
    ClientRequest, Key, ListedReservation, Name, Reason, Refusal, Request, Role, State, Ticket,
    WantedMechanism,
};
use slackline_units::{Span, Time};

use crate::requests::{ROOT, Who};
use crate::run::Run;
use crate::users::{ALICE, BOB, ask, change, ms, operator, rebind, reserve, tenant};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn release(text: &str) -> Request {
    Request::Release { name: name(text), if_revision: None }
}

/// Sends a request with an idempotency key, and waits for its answer.
fn ask_with_key(run: &mut Run, who: Who, request: Request) -> Result<(), Refusal> {
    let key: Key = "the-key".parse().expect("a key");
    run.ask(who, request, Some(key)).expect("no check fails");
    run.pass(Span::from_ms(100)).expect("no check fails");
    let (_, reply) = run.replies().pop().expect("a request has an answer");
    reply.map(drop)
}

/// Returns requests of all kinds that need an existing reservation.
fn requests_about(text: &str) -> Vec<Request> {
    let mut auto = change(text, ms(1, 20));
    if let Request::Change { enforce, .. } = &mut auto {
        *enforce = Some(WantedMechanism::AUTO);
    }
    let at = Time::START.after(Span::from_secs(5));
    vec![
        change(text, ms(1, 20)),
        auto,
        rebind(text, "qemu:x"),
        Request::Pause { name: name(text), if_revision: None },
        Request::Resume { name: name(text), if_revision: None },
        Request::Release { name: name(text), if_revision: Some(1) },
        Request::List { name: Some(name(text)) },
        Request::Begin { gang: Gang { name: name("g"), is_strict: true }, name: name(text), at },
        Request::Break { gang: name("g"), name: name(text), lost: "m".into() },
    ]
}

#[test]
fn tenant_gets_same_refusal_for_foreign_and_unknown_reservation_name() {
    let mut run = Run::new(1, None, false);
    // The reservation waits for its VM, so `resume` by its owner looks for the VM.
    ask(&mut run, tenant(ALICE), reserve("a", ms(1, 10), None)).expect("its own VM");
    for text in ["a", "unknown"] {
        for request in requests_about(text) {
            let asked = ClientRequest {
                ticket: Ticket(0),
                principal: BOB,
                role: Some(Role::Tenant),
                users: Vec::new(),
                key: None,
                request: request.clone(),
            };
            assert_eq!(run.service.sought(&asked), None, "{request}");
            let refused = ask(&mut run, tenant(BOB), request.clone());
            let unknown = Refusal::NoSuchReservation { name: name(text) };
            assert_eq!(refused, Err(unknown), "{request}");
        }
    }
}

#[test]
fn tenant_reserving_under_foreign_name_learns_only_that_name_exists() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, tenant(ALICE), reserve("a", ms(1, 10), None)).expect("its own VM");
    let new = || reserve("a", ms(2, 10), None);
    let hold = Request::Hold { gang: name("g"), member: Box::new(new()) };
    let list = |dry_run| {
        let targets = vec![new()];
        Request::Apply { targets, prune: false, dry_run, revision: None }
    };
    for request in [new(), hold, list(true), list(false)] {
        let refused = ask(&mut run, tenant(BOB), request.clone()).expect_err("it is taken");
        let text = refused.to_string();
        let text = text.strip_prefix("a: ").unwrap_or(&text);
        assert_eq!(text, "the name a is taken", "{request}");
    }
    let refused = ask(&mut run, operator(BOB), new()).expect_err("it exists");
    assert!(refused.to_string().starts_with("reservation a exists already: 1ms"), "{refused}");
}

#[test]
fn reused_idempotency_key_shows_tenant_no_foreign_reservation() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, tenant(ALICE), reserve("a", ms(1, 10), None)).expect("its own VM");
    ask_with_key(&mut run, tenant(BOB), reserve("b", ms(1, 10), None)).expect("its own VM");
    for text in ["a", "unknown"] {
        let refused = ask_with_key(&mut run, tenant(BOB), release(text));
        assert!(matches!(refused, Err(Refusal::KeyReused { .. })), "{text}: {refused:?}");
    }
    // The principal was an operator when it sent the request for the first time.
    ask_with_key(&mut run, operator(ALICE), change("b", ms(2, 10))).expect("an operator may");
    let again = ask_with_key(&mut run, tenant(ALICE), change("b", ms(2, 10)));
    assert_eq!(again, Err(Refusal::NoSuchReservation { name: name("b") }));
}

#[test]
fn refused_undo_shows_tenant_no_state_of_foreign_reservation() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, tenant(BOB), reserve("b", ms(1, 10), None)).expect("its own VM");
    ask(&mut run, operator(ALICE), change("b", ms(2, 10))).expect("an operator may");
    let not_owner = Err(Refusal::NotOwner { name: name("b") });
    assert_eq!(ask(&mut run, tenant(ALICE), Request::Undo), not_owner);
    ask(&mut run, tenant(BOB), change("b", ms(3, 10))).expect("its own reservation");
    assert_eq!(ask(&mut run, tenant(ALICE), Request::Undo), not_owner);
    // Another owner's reservation under the name looks like no reservation.
    ask(&mut run, ROOT, release("b")).expect("root may");
    assert_eq!(ask(&mut run, tenant(ALICE), Request::Undo), not_owner);
    let undone = ask(&mut run, tenant(BOB), Request::Undo);
    assert!(matches!(undone, Err(Refusal::Moved { is: None, .. })), "{undone:?}");
    ask(&mut run, operator(ALICE), reserve("b", ms(1, 10), None)).expect("the name is free");
    assert_eq!(ask(&mut run, tenant(BOB), Request::Undo), undone);
}

/// Returns a request to reserve for the VM with this name.
fn of_vm(vm: &str, vcpus: Option<u16>, binding: Option<&str>) -> Request {
    let mut request = reserve(vm, ms(1, 10), None);
    if let Request::Reserve { vcpus: number, binding: to, .. } = &mut request {
        *number = vcpus;
        *to = binding.map(|text| text.parse().expect("a binding"));
    }
    request
}

#[test]
fn tenant_gets_same_answers_for_foreign_and_absent_vm() {
    let mut run = Run::new(1, None, false);
    run.model.kernel.start("other", 5001, 1);
    ask(&mut run, tenant(BOB), reserve("own", ms(1, 10), None)).expect("its own VM");
    for vm in ["other", "absent"] {
        let binding = format!("qemu:{vm}");
        let refused = ask(&mut run, tenant(BOB), of_vm(vm, Some(1), None));
        assert_eq!(refused, Err(Refusal::NoMachine { what: format!("a VM called {vm}") }));
        let refused = ask(&mut run, tenant(BOB), of_vm(vm, None, Some(&binding)));
        let what = binding.parse().expect("a binding");
        assert_eq!(refused, Err(Refusal::VcpusUnknown { what }));
        ask(&mut run, tenant(BOB), of_vm(vm, Some(1), Some(&binding))).expect("it waits");
        let is_made = |one: &ListedReservation| one.row.name == name(vm);
        let made = run.service.listed().map(|(_, one)| one).find(is_made).expect("it was made");
        let is_absent = matches!(made.reason, Some(Reason::Absent(_)));
        assert!(made.state == State::Waiting && is_absent, "{:?}", made.reason);
        ask(&mut run, tenant(BOB), release(vm)).expect("its own reservation");
        ask(&mut run, tenant(BOB), rebind("own", &binding)).expect("it waits");
    }
    // The number of a process is no name, and an operator may know the names of all VMs.
    let by_number = of_vm("n", Some(1), Some("pid:100"));
    let by_name = of_vm("n", Some(1), Some("qemu:other"));
    for (who, request) in [(tenant(BOB), by_number), (operator(BOB), by_name)] {
        let refused = ask(&mut run, who, request);
        assert!(matches!(refused, Err(Refusal::NotYours { user: 5001, .. })), "{refused:?}");
        let hint = refused.expect_err("a VM of another user").hint().expect("advice");
        assert!(hint.ends_with("`slackline access add UID --role ROLE --users 5001`"), "{hint}");
    }
}
