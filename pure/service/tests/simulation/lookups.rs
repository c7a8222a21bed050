//! Tests of VMs that run but cannot be scheduled, because their look-up on the host fails.

use slackline_service::{
    Binding, ClientRequest, Input, LookError, Principal, Reason, Request, Role, State, Ticket,
};
use slackline_units::Span;

use crate::requests::{self, ROOT};
use crate::run::Run;

fn binding(text: &str) -> Binding {
    text.parse().expect("a binding")
}

/// Returns a run with a reservation for the VM `a`. The VM runs if `is_there` is true.
fn reserved(is_there: bool) -> Run {
    let mut run = Run::new(1, None, true);
    if is_there {
        run.model.kernel.start("a", 0, 1);
    }
    let request = requests::reserve("a", "qemu:a", 2, None);
    run.ask(ROOT, request, None).expect("no check fails");
    run.pass(Span::from_ms(100)).expect("no check fails");
    run
}

fn shown(run: &Run) -> (State, Option<Reason>) {
    let (_, listed) = run.service.listed().next().expect("a reservation");
    (listed.state, listed.reason)
}

#[test]
fn waiting_reservation_shows_the_result_of_latest_vm_lookup() {
    let mut run = reserved(false);
    let absent = (State::Waiting, Some(Reason::Absent(binding("qemu:a"))));
    assert_eq!(shown(&run), absent);
    let says = "processes 7 and 8 both match".to_owned();
    let several = LookError::Unclear { says: says.clone(), hint: None };
    let says_starting = "it has no vCPU threads".to_owned();
    let starting = LookError::Starting { says: says_starting.clone() };
    for (error, expected) in [
        (starting, (State::Waiting, Some(Reason::Unavailable(says_starting)))),
        (several.clone(), (State::Waiting, Some(Reason::Unavailable(says)))),
        (LookError::Absent, absent),
    ] {
        run.step(Input::NotFound { binding: binding("qemu:a"), user: 0, error })
            .expect("no check fails");
        assert_eq!(shown(&run), expected);
    }
    // The result of a look-up for another user is about another VM.
    let (of_other, user) = (several.clone(), 5001);
    run.step(Input::NotFound { binding: binding("qemu:a"), user, error: of_other })
        .expect("no check fails");
    assert!(matches!(shown(&run), (State::Waiting, Some(Reason::Absent(_)))));
    // A report about a VM that was scheduled meanwhile is too late.
    let mut run = reserved(true);
    run.step(Input::NotFound { binding: binding("qemu:a"), user: 0, error: several })
        .expect("no check");
    assert_eq!(shown(&run), (State::Active, None));
}

#[test]
fn reservation_is_partial_while_two_threads_share_a_vcpu_name() {
    let mut run = reserved(true);
    assert_eq!(shown(&run), (State::Active, None));
    let (domain, machine) = {
        let (domain, _) = run.service.listed().next().expect("a reservation");
        let machine = run.model.kernel.meant(&binding("qemu:a")).expect("it runs").machine.clone();
        (domain, machine)
    };
    let identity = machine.identity;
    let why = "threads 7 and 8 both have the name of vCPU 0".to_owned();
    let unclear = |why| Input::Unclear { domain, identity, why };
    run.step(unclear(Some(why.clone()))).expect("no check fails");
    assert_eq!(shown(&run), (State::Partial, Some(Reason::Unavailable(why.clone()))));
    assert_eq!(run.service.unclear().collect::<Vec<_>>(), [(domain, &*why)]);
    run.step(unclear(None)).expect("no check fails");
    assert_eq!(shown(&run), (State::Active, None));
    run.step(unclear(Some(why))).expect("no check fails");
    run.step(Input::Vcpus { domain, machine }).expect("no check fails");
    assert_eq!(shown(&run), (State::Active, None));
}

#[test]
fn vm_lookup_queries_only_qemu_monitors_of_permitted_users() {
    let run = reserved(true);
    let asked = |uid, role, name: &str| ClientRequest {
        ticket: Ticket(9),
        principal: Principal::User(uid),
        role: Some(role),
        users: vec![70],
        key: None,
        request: Request::Resume { name: name.parse().expect("a name"), if_revision: None },
    };
    let users = |uid, role, name| run.service.users_to_ask(&asked(uid, role, name));
    assert_eq!(users(0, Role::Administrator, "b"), None);
    assert_eq!(users(1000, Role::Tenant, "b"), Some(vec![70, 1000]));
    // The reservation `a` is root's. An operator may change it, and a tenant may not.
    assert_eq!(users(1000, Role::Operator, "a"), Some(vec![70, 1000, 0]));
    assert_eq!(users(1000, Role::Tenant, "a"), Some(vec![70, 1000]));
}
