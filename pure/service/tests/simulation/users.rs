//! Tests of the effects that users of one daemon can have on each other.

use slackline_service::{
    Amount, Answer, Budget, Principal, Raise, Refusal, Request, Role, State, WantedMechanism,
};
use slackline_units::{CpuShare, Reservation, Span, WallTime};

use crate::kernel::DAEMON;
use crate::requests::{ROOT, Who};
use crate::run::Run;

pub(crate) const ALICE: Principal = Principal::User(5001);
pub(crate) const BOB: Principal = Principal::User(5002);

pub(crate) const fn tenant(who: Principal) -> Who {
    (who, Some(Role::Tenant))
}

pub(crate) const fn operator(who: Principal) -> Who {
    (who, Some(Role::Operator))
}

fn each(slice: Span, period: Span) -> Amount {
    Amount::Each(Reservation::new(slice, period).expect("less than a period"))
}

pub(crate) fn reserve(name: &str, amount: Amount, user: Option<u32>) -> Request {
    Request::Reserve {
        name: name.parse().expect("a name"),
        amount,
        exact: true,
        phase: None,
        vcpus: Some(1),
        binding: Some(format!("qemu:{name}").parse().expect("a binding")),
        user,
        until: None,
        enforce: WantedMechanism::default(),
    }
}

pub(crate) fn change(name: &str, amount: Amount) -> Request {
    Request::Change {
        name: name.parse().expect("a name"),
        amount: Some(amount),
        exact: None,
        phase: None,
        vcpus: None,
        until: None,
        enforce: None,
        why: None,
        if_revision: None,
    }
}

/// Sends a request, and waits for its answer.
pub(crate) fn ask(run: &mut Run, who: Who, request: Request) -> Result<(), Refusal> {
    run.ask(who, request, None).expect("no check fails");
    run.pass(Span::from_ms(100)).expect("no check fails");
    let (_, reply) = run.replies().pop().expect("a request has an answer");
    reply.map(drop)
}

pub(crate) fn ms(slice: u64, period: u64) -> Amount {
    each(Span::from_ms(slice), Span::from_ms(period))
}

#[test]
fn tenant_can_change_only_its_own_reservations() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, tenant(ALICE), reserve("a", ms(1, 10), None))
        .expect("a tenant may reserve for its own VM");
    let name = || "a".parse().expect("a name");
    let asked = [
        change("a", ms(1, 20)),
        Request::Pause { name: name(), if_revision: None },
        Request::Resume { name: name(), if_revision: None },
        Request::Release { name: name(), if_revision: None },
        Request::List { name: Some(name()) },
    ];
    for request in asked {
        let refused = ask(&mut run, tenant(BOB), request.clone());
        assert_eq!(refused, Err(Refusal::NoSuchReservation { name: name() }), "{request}");
    }
    let refused = ask(&mut run, tenant(BOB), reserve("a", ms(1, 10), None));
    assert_eq!(refused, Err(Refusal::NameTaken { name: name() }));
    // A tenant may reserve only for its own VMs, and an operator may change any reservation.
    let theirs = ask(&mut run, tenant(BOB), reserve("b", ms(1, 10), Some(5001)));
    assert!(matches!(theirs, Err(Refusal::NotYours { .. })), "{theirs:?}");
    ask(&mut run, operator(BOB), change("a", ms(1, 20))).expect("an operator may");
    ask(&mut run, tenant(ALICE), change("a", ms(2, 20)))
        .expect("a tenant may change its own reservation");
    ask(&mut run, tenant(ALICE), Request::Release { name: name(), if_revision: None })
        .expect("a tenant may change its own reservation");
}

/// Returns a request that applies a list of one reservation, for the VM that reservation `a` has.
fn applied(name: &str) -> Request {
    Request::Apply {
        targets: vec![for_vm_of_a(name, ms(1, 10))],
        prune: false,
        dry_run: false,
        revision: None,
    }
}

/// Returns a request for a reservation of the VM that reservation `a` already has.
fn for_vm_of_a(name: &str, amount: Amount) -> Request {
    let mut request = reserve(name, amount, None);
    if let Request::Reserve { binding, .. } = &mut request {
        *binding = Some("qemu:a".parse().expect("a binding"));
    }
    request
}

#[test]
fn refusal_for_tenant_never_names_reservations_of_other_owners() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, reserve("a", ms(1, 10), Some(5001))).expect("root may");
    ask(&mut run, tenant(ALICE), reserve("b", ms(1, 10), None)).expect("it is its own VM");
    let binding = "qemu:a".parse().expect("a binding");
    let name = "b".parse().expect("a name");
    let rebind = Request::Rebind { name, binding, if_revision: None };
    let hold = {
        let gang = "g".parse().expect("a name");
        Request::Hold { gang, member: Box::new(for_vm_of_a("c", ms(1, 10))) }
    };
    let asked = [for_vm_of_a("c", ms(1, 10)), hold, rebind, applied("c")];
    for request in asked {
        for (who, names_it) in [(tenant(ALICE), false), (operator(ALICE), true)] {
            let refused = ask(&mut run, who, request.clone()).expect_err("`a` has the VM");
            let text = format!("{refused} {}", refused.hint().unwrap_or_default());
            assert_eq!(text.contains("reservation a already"), names_it, "{request}: {text}");
            assert_eq!(text.contains("a reservation already"), !names_it, "{request}: {text}");
            assert_eq!(text.contains("release a "), names_it, "{request}: {text}");
        }
    }
}

#[test]
fn increased_reservation_counts_against_limits_of_owner_and_caller() {
    let mut run = Run::new(1, None, false);
    let budget = Budget { cpu: Some(CpuShare::from_ppm(100_000)), machines: None };
    run.service.set_budgets([(ALICE, budget)].into());
    // Root reserves 1 % for the VM of alice, and 1 % for the VM of bob.
    ask(&mut run, ROOT, reserve("a", ms(1, 100), Some(5001))).expect("root may");
    ask(&mut run, ROOT, reserve("b", ms(1, 100), Some(5002))).expect("root may");
    ask(&mut run, ROOT, reserve("c", ms(1, 100), Some(5002))).expect("root may");
    let over = |asked: Result<(), Refusal>| {
        assert!(matches!(asked, Err(Refusal::OverBudgetCpu { owner: ALICE, .. })), "{asked:?}");
    };
    over(ask(&mut run, operator(ALICE), change("a", ms(8, 10))));
    ask(&mut run, operator(ALICE), change("a", ms(5, 100))).expect("within its budget");
    // Earlier raises count against the budget, and so do reservations for the caller's own VM.
    over(ask(&mut run, operator(ALICE), change("b", ms(6, 100))));
    ask(&mut run, operator(ALICE), change("b", ms(5, 100))).expect("within its budget");
    over(ask(&mut run, operator(ALICE), change("c", ms(2, 100))));
    ask(&mut run, operator(ALICE), change("b", ms(4, 100))).expect("less is always allowed");
    ask(&mut run, ROOT, change("a", ms(8, 10))).expect("root is not limited");
}

#[test]
fn slice_longer_than_a_second_needs_an_administrator() {
    let mut run = Run::new(1, None, false);
    let week = Span::from_secs(604_800);
    let days = each(Span::from_secs(508_000), week);
    let refused = ask(&mut run, operator(ALICE), reserve("a", days, None)).unwrap_err();
    assert!(matches!(refused, Refusal::LongRun { .. }), "{refused:?}");
    assert_eq!(
        refused.hint().as_deref(),
        Some("write the same share as --slice 839.947ms --period 1s")
    );
    let second = each(Span::from_secs(1), week);
    ask(&mut run, operator(ALICE), reserve("a", second, None))
        .expect("a slice of a second is allowed");
    let longer = each(Span::from_ms(1_001), week);
    assert!(ask(&mut run, operator(ALICE), change("a", longer)).is_err());
    ask(&mut run, ROOT, change("a", longer)).expect("an administrator may");
    // An operator may reduce a reservation that an administrator made.
    ask(&mut run, operator(ALICE), change("a", second)).expect("a shorter slice is allowed");
}

/// Returns a request with a list of reservations with tiny shares, for VMs that do not run.
fn absent(prefix: &str, count: usize, vcpus: u16) -> Request {
    let one = |nth: usize| {
        let week = Span::from_secs(7 * 24 * 3600);
        let mut request = reserve(&format!("{prefix}{nth}"), each(Span::from_us(50), week), None);
        if let Request::Reserve { vcpus: asked, .. } = &mut request {
            *asked = Some(vcpus);
        }
        request
    };
    Request::Apply {
        targets: (0..count).map(one).collect(),
        prune: false,
        dry_run: false,
        revision: None,
    }
}

#[test]
fn apply_request_with_too_many_vcpus_per_owner_is_refused() {
    let mut run = Run::new(1, None, false);
    let Err(Refusal::InList { name, why }) = ask(&mut run, tenant(ALICE), absent("a", 10, 500))
    else {
        panic!("5,000 vCPUs")
    };
    let (owner, asked, most) = (Some(ALICE), 2_500, 2_000);
    assert_eq!((name.as_str(), *why), ("a4", Refusal::TooManyVcpus { owner, asked, most }));
    assert_eq!(run.service.listed().count(), 0, "nothing of the list was made");
    ask(&mut run, tenant(ALICE), absent("a", 4, 500)).expect("2,000 vCPUs");
    ask(&mut run, ROOT, absent("r", 10, 500)).expect("an administrator may");
}

fn budget_of_alice(ppm: u32) -> slackline_service::Budgets {
    let budget = Budget { cpu: Some(CpuShare::from_ppm(ppm)), machines: None };
    [(ALICE, budget)].into()
}

fn is_over(asked: &Result<(), Refusal>) -> bool {
    matches!(asked, Err(Refusal::OverBudgetCpu { owner: ALICE, .. }))
}

#[test]
fn increase_counts_against_operator_limits_across_restarts_until_undone() {
    let mut run = Run::new(1, None, false);
    run.service.set_budgets(budget_of_alice(100_000));
    for name in ["a", "b", "c"] {
        ask(&mut run, ROOT, reserve(name, ms(1, 100), Some(5002))).expect("root may");
    }
    ask(&mut run, operator(ALICE), change("a", ms(9, 100))).expect("within its budget");
    run.die().expect("no check fails");
    run.service.set_budgets(budget_of_alice(100_000));
    let more = || change("b", ms(2, 100));
    assert!(is_over(&ask(&mut run, operator(ALICE), more())), "a restart forgets nothing");
    // A raise by another operator, or a smaller reservation, does not free the first one.
    ask(&mut run, operator(BOB), change("a", ms(10, 100))).expect("bob has no budget");
    ask(&mut run, ROOT, change("a", ms(9, 100))).expect("root may");
    assert!(is_over(&ask(&mut run, operator(ALICE), more())));
    // A raise ends with the reservation, and once the reservation is as small as before.
    ask(&mut run, ROOT, change("a", ms(1, 100))).expect("root may");
    ask(&mut run, operator(ALICE), change("b", ms(9, 100))).expect("nothing else is raised");
    let release = Request::Release { name: "b".parse().expect("a name"), if_revision: None };
    ask(&mut run, ROOT, release).expect("root may");
    ask(&mut run, ROOT, reserve("b", ms(9, 100), Some(5002))).expect("root may");
    ask(&mut run, operator(ALICE), change("c", ms(9, 100))).expect("`b` is another one");
}

pub(crate) fn rebind(name: &str, to: &str) -> Request {
    let binding = to.parse().expect("a binding");
    Request::Rebind { name: name.parse().expect("a name"), binding, if_revision: None }
}

#[test]
fn operator_cannot_rebind_reservation_of_root_to_own_vm() {
    let mut run = Run::new(1, None, false);
    run.service.set_budgets(budget_of_alice(100_000));
    ask(&mut run, ROOT, reserve("big", ms(60, 100), Some(0))).expect("root may");
    ask(&mut run, ROOT, reserve("of-bob", ms(5, 100), Some(5002))).expect("root may");
    let moved = ask(&mut run, operator(ALICE), rebind("big", "qemu:of-alice"));
    assert!(matches!(moved, Err(Refusal::NotYours { .. })), "{moved:?}");
    ask(&mut run, ROOT, rebind("big", "qemu:other")).expect("root may");
    // A reservation that an operator moves counts against its budget.
    ask(&mut run, operator(ALICE), rebind("of-bob", "qemu:c")).expect("within its budget");
    ask(&mut run, operator(ALICE), reserve("own", ms(5, 100), None)).expect("its own");
    assert!(is_over(&ask(&mut run, operator(ALICE), change("of-bob", ms(6, 100)))));
    run.service.set_budgets(budget_of_alice(40_000));
    ask(&mut run, ROOT, reserve("x", ms(5, 100), Some(5002))).expect("root may");
    assert!(is_over(&ask(&mut run, operator(ALICE), rebind("x", "qemu:y"))));
}

#[test]
fn former_operator_cannot_undo_or_see_changes_of_others() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, tenant(BOB), reserve("b", ms(1, 10), None)).expect("its own VM");
    ask(&mut run, operator(ALICE), change("b", ms(2, 10))).expect("an operator may");
    let undone = ask(&mut run, tenant(ALICE), Request::Undo);
    assert!(matches!(undone, Err(Refusal::NotOwner { .. })), "{undone:?}");
    let shown = |run: &mut Run, who| {
        run.ask(who, Request::Plan, None).expect("no check fails");
        match run.replies().pop() {
            Some((_, Ok(Answer::Plan(Some(plan))))) => plan.steps.len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([tenant(ALICE), operator(ALICE)].map(|who| shown(&mut run, who)), [0, 1]);
    ask(&mut run, operator(ALICE), Request::Undo).expect("an operator may");
}

/// Returns a request with a list of many reservations for VMs that do not exist.
fn long_list(prefix: &str) -> Request {
    let target = |number| {
        let amount = each(Span::from_us(50), Span::from_secs(604_800));
        reserve(&format!("{prefix}{number}"), amount, None)
    };
    Request::Apply {
        targets: (0..1_000).map(target).collect(),
        prune: true,
        dry_run: false,
        revision: None,
    }
}

#[test]
fn administrator_can_reserve_while_long_request_of_tenant_is_written() {
    let mut run = Run::new(1, None, false);
    run.ask(tenant(BOB), reserve("b", ms(1, 10), None), None).expect("no check fails");
    // The first commit is under way, so this list waits.
    run.ask(tenant(ALICE), long_list("x"), None).expect("no check fails");
    let refused = |run: &mut Run, who, request| {
        run.ask(who, request, None).expect("no check fails");
        let reply = run.replies().pop().map(|(_, reply)| reply);
        matches!(reply, Some(Err(Refusal::NotNow { .. })))
    };
    assert!(refused(&mut run, tenant(BOB), reserve("c", ms(1, 10), None)), "the queue is full");
    assert!(!refused(&mut run, ROOT, reserve("d", ms(1, 10), Some(0))), "root may");
    run.pass(Span::from_ms(100)).expect("no check fails");
    run.replies();
    let number = run.service.listed().count();
    assert_eq!(number, 1_002);
}

#[test]
fn increase_still_counts_if_a_later_change_cannot_be_written() {
    let mut run = Run::new(1, None, false);
    run.service.set_budgets(budget_of_alice(100_000));
    for name in ["a", "b"] {
        ask(&mut run, ROOT, reserve(name, ms(1, 100), Some(5002))).expect("root may");
    }
    ask(&mut run, operator(ALICE), change("a", ms(9, 100))).expect("within its budget");
    let is_over_again = |run: &mut Run| {
        run.model.disk.fails = false;
        run.pass(Span::from_ms(1_500)).expect("no check fails");
        is_over(&ask(run, operator(ALICE), change("b", ms(2, 100))))
    };
    // Root approves the increase by a further increase, and releases the reservation by a list.
    let more = change("a", ms(10, 100));
    let release = Request::Apply {
        targets: vec![reserve("b", ms(2, 100), Some(5002))],
        prune: true,
        dry_run: false,
        revision: None,
    };
    for request in [more, release] {
        run.model.disk.fails = true;
        let refused = ask(&mut run, ROOT, request);
        assert!(matches!(refused, Err(Refusal::NotDurable { .. })), "{refused:?}");
        assert!(is_over_again(&mut run), "the increase of `a` is still in force");
    }
    // A reduction stays in force, so the increase has ended.
    run.model.disk.fails = true;
    ask(&mut run, ROOT, change("a", ms(1, 100))).expect("less is possible without the ledger");
    assert!(!is_over_again(&mut run));
}

#[test]
fn only_administrators_can_increase_foreign_reservations_after_10000_recorded_increases() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, reserve("a", ms(1, 100), Some(5002))).expect("root may");
    ask(&mut run, ROOT, reserve("b", ms(1, 100), Some(5002))).expect("root may");
    let (name, row) = run.model.disk.rows.first_key_value().expect("a reservation");
    let raise = |number| Raise { by: Principal::User(number), since: row.since, from: None };
    let raises = (10_000..20_000).map(raise).collect();
    run.model.disk.raises.insert(name.clone(), raises);
    run.die().expect("no check fails");
    let refused = ask(&mut run, operator(ALICE), change("b", ms(2, 100)));
    let name = "b".parse().expect("a name");
    let full = Refusal::TooManyRaises { name, is: 10_000, most: 10_000 };
    assert_eq!(refused, Err(full.clone()));
    assert_eq!(ask(&mut run, operator(ALICE), rebind("b", "qemu:c")), Err(full));
    ask(&mut run, ROOT, change("b", ms(2, 100))).expect("root is not limited");
    ask(&mut run, operator(ALICE), change("b", ms(1, 100))).expect("less is always allowed");
}

/// Returns a request for a reservation of a tiny share for the VM `binding`.
fn tiny(name: &str, binding: &str) -> Request {
    let week = Span::from_secs(7 * 24 * 3600);
    let mut request = reserve(name, each(Span::from_us(50), week), None);
    if let Request::Reserve { binding: of, .. } = &mut request {
        *of = Some(binding.parse().expect("a binding"));
    }
    request
}

#[test]
fn waiting_reservation_of_one_user_never_blocks_vms_of_others() {
    let mut run = Run::new(1, None, false);
    let targets = vec![tiny("x", "libvirt:db"), tiny("y", "qemu:b")];
    let list = Request::Apply { targets, prune: false, dry_run: false, revision: None };
    ask(&mut run, tenant(ALICE), list).expect("the VMs are not looked up");
    run.model.kernel.start("b", 5002, 1);
    ask(&mut run, tenant(BOB), tiny("b", "qemu:b")).expect("it is the VM of bob");
    ask(&mut run, ROOT, tiny("db", "libvirt:db")).expect("root may");
    run.model.kernel.start("db", DAEMON, 1);
    run.tell().expect("no check fails");
    let is_active = |run: &Run, name: &str| {
        let mut all = run.service.listed().map(|(_, one)| one);
        all.any(|one| one.row.name.as_str() == name && one.state == State::Active)
    };
    let active = |run: &Run| ["b", "db", "x", "y"].map(|name| is_active(run, name));
    assert_eq!(active(&run), [true, true, false, false]);
    run.die().expect("no check fails");
    assert_eq!(active(&run), [true, true, false, false]);
    // An owner can still have only one reservation for a VM, even while the VM does not run.
    run.model.kernel.end("b");
    run.model.kernel.end("db");
    run.tell().expect("no check fails");
    for (who, binding) in
        [(tenant(ALICE), "libvirt:db"), (tenant(BOB), "qemu:b"), (ROOT, "libvirt:db")]
    {
        let refused = ask(&mut run, who, tiny("z", binding));
        assert!(matches!(refused, Err(Refusal::Taken { .. })), "{refused:?}");
    }
}

#[test]
fn reservation_name_with_libvirt_suffix_needs_an_administrator() {
    let mut run = Run::new(1, None, false);
    let list = |name| {
        let targets = vec![tiny(name, "qemu:a")];
        Request::Apply { targets, prune: false, dry_run: false, revision: None }
    };
    for who in [tenant(ALICE), operator(ALICE)] {
        let refused = ask(&mut run, who, tiny("db.libvirt", "qemu:a")).unwrap_err();
        assert!(matches!(refused, Refusal::KeptName { .. }), "{refused}");
        let refused = ask(&mut run, who, list("db.libvirt")).unwrap_err();
        assert!(refused.to_string().ends_with("names that end with .libvirt"), "{refused}");
    }
    ask(&mut run, ROOT, tiny("db.libvirt", "qemu:a")).expect("root may");
}

/// Returns a request to change the end time or the hard limit of a reservation.
fn lengthen(name: &str, until: Option<Option<WallTime>>, exact: Option<bool>) -> Request {
    let mut request = change(name, ms(1, 10));
    if let Request::Change { amount, until: end, exact: limit, .. } = &mut request {
        (*amount, *end, *limit) = (None, until, exact);
    }
    request
}

/// An operator changes a reservation of another owner. The operator's CPU limit must cover the
/// whole reservation if the operator postpones or removes its end, or drops its hard limit.
#[test]
fn postponing_end_or_dropping_hard_limit_counts_whole_reservation() {
    let mut run = Run::new(1, None, false);
    run.service.set_budgets(budget_of_alice(100_000));
    let hour = |hours: u64| {
        let end = run.model.now.after(run.model.wall_ahead);
        Some(WallTime::from_ns(end.ns() + hours * 3_600_000_000_000))
    };
    let (first, second, third) = (hour(1), hour(2), hour(3));
    let mut request = reserve("a", ms(60, 100), Some(5002));
    if let Request::Reserve { until, .. } = &mut request {
        *until = second;
    }
    ask(&mut run, ROOT, request).expect("root may");
    for raised in [
        lengthen("a", Some(None), None),
        lengthen("a", Some(third), None),
        lengthen("a", None, Some(false)),
    ] {
        assert!(is_over(&ask(&mut run, operator(ALICE), raised.clone())), "{raised}");
    }
    ask(&mut run, operator(ALICE), lengthen("a", Some(first), None)).expect("it ends earlier");
    ask(&mut run, operator(BOB), lengthen("a", Some(second), None)).expect("bob has no budget");
    run.service.set_budgets(budget_of_alice(650_000));
    ask(&mut run, operator(ALICE), lengthen("a", Some(None), None)).expect("within its budget");
    run.die().expect("no check fails");
    run.service.set_budgets(budget_of_alice(650_000));
    ask(&mut run, ROOT, reserve("b", ms(1, 100), Some(5002))).expect("root may");
    assert!(is_over(&ask(&mut run, operator(ALICE), change("b", ms(6, 100)))));
}

#[test]
fn removed_end_time_or_limit_counts_against_operator_until_restored() {
    let mut run = Run::new(1, None, false);
    let end = run.model.now.after(run.model.wall_ahead);
    let hour = Some(WallTime::from_ns(end.ns() + 3_600_000_000_000));
    let mut request = reserve("a", ms(60, 100), Some(5002));
    if let Request::Reserve { until, .. } = &mut request {
        *until = hour;
    }
    ask(&mut run, ROOT, request).expect("root may");
    ask(&mut run, ROOT, reserve("b", ms(1, 100), Some(5002))).expect("root may");
    for (longer, back) in [
        (lengthen("a", Some(None), None), Request::Undo),
        (lengthen("a", Some(None), None), lengthen("a", Some(hour), None)),
        (lengthen("a", None, Some(false)), lengthen("a", None, Some(true))),
    ] {
        run.service.set_budgets(budget_of_alice(650_000));
        ask(&mut run, operator(ALICE), longer.clone()).expect("within its budget");
        run.die().expect("no check fails");
        run.service.set_budgets(budget_of_alice(650_000));
        let more = || change("b", ms(6, 100));
        assert!(is_over(&ask(&mut run, operator(ALICE), more())), "{longer}");
        ask(&mut run, operator(ALICE), back).expect("less is always allowed");
        run.die().expect("no check fails");
        run.service.set_budgets(budget_of_alice(650_000));
        ask(&mut run, operator(ALICE), more()).expect("`a` is as before");
        ask(&mut run, operator(ALICE), change("b", ms(1, 100))).expect("less is always allowed");
    }
}

/// Without the ledger, a change that takes no CPU time from others stays in force.
#[test]
fn hard_limit_removal_counts_against_operator_if_ledger_write_fails() {
    let mut run = Run::new(1, None, false);
    run.service.set_budgets(budget_of_alice(650_000));
    ask(&mut run, ROOT, reserve("a", ms(60, 100), Some(5002))).expect("root may");
    ask(&mut run, ROOT, reserve("b", ms(1, 100), Some(5002))).expect("root may");
    run.model.disk.fails = true;
    ask(&mut run, operator(ALICE), lengthen("a", None, Some(false))).expect("within its budget");
    run.model.disk.fails = false;
    run.pass(Span::from_ms(1_500)).expect("no check fails");
    assert!(is_over(&ask(&mut run, operator(ALICE), change("b", ms(6, 100)))));
    ask(&mut run, operator(ALICE), lengthen("a", None, Some(true))).expect("less is allowed");
    ask(&mut run, operator(ALICE), change("b", ms(6, 100))).expect("`a` is as before");
}

#[test]
fn refused_apply_request_does_not_count_against_operator_limits() {
    let mut run = Run::new(1, None, false);
    run.service.set_budgets(budget_of_alice(100_000));
    ask(&mut run, tenant(BOB), reserve("a", ms(1, 100), None)).expect("its own VM");
    ask(&mut run, ROOT, reserve("b", ms(1, 100), Some(5002))).expect("root may");
    // The list drops the hard limit of `a`, and `z` exceeds the budget.
    let list = |slice_ms| {
        let mut listed = reserve("a", ms(slice_ms, 100), None);
        if let Request::Reserve { exact, .. } = &mut listed {
            *exact = false;
        }
        let targets = vec![listed, reserve("z", ms(50, 100), None)];
        Request::Apply { targets, prune: false, dry_run: false, revision: None }
    };
    ask(&mut run, operator(ALICE), list(1)).expect_err("`z` is too large");
    ask(&mut run, operator(ALICE), change("b", ms(10, 100))).expect("`a` has not changed");
    ask(&mut run, operator(ALICE), change("b", ms(1, 100))).expect("less is always allowed");
    // An earlier increase of `a` counts until it is taken back, and nothing else of `a` counts.
    ask(&mut run, operator(ALICE), change("a", ms(2, 100))).expect("within its budget");
    ask(&mut run, operator(ALICE), list(2)).expect_err("`z` is too large");
    ask(&mut run, tenant(BOB), lengthen("a", None, Some(false))).expect("its own reservation");
    assert!(is_over(&ask(&mut run, operator(ALICE), change("b", ms(10, 100)))));
    ask(&mut run, operator(ALICE), change("a", ms(1, 100))).expect("less is always allowed");
    ask(&mut run, operator(ALICE), change("b", ms(10, 100))).expect("the increase has ended");
}

#[test]
fn undone_release_counts_against_limits_of_the_reservation_owner() {
    let mut run = Run::new(1, None, false);
    run.users = vec![5002];
    run.service.set_budgets(budget_of_alice(100_000));
    let release = |name: &str| {
        let name = name.parse().expect("a name");
        Request::Release { name, if_revision: None }
    };
    let refused_undo = |run: &mut Run| match ask(run, operator(ALICE), Request::Undo) {
        Err(Refusal::InList { why, .. }) => *why,
        other => panic!("{other:?}"),
    };
    ask(&mut run, operator(ALICE), reserve("own", ms(10, 100), None)).expect("its whole budget");
    ask(&mut run, tenant(BOB), reserve("web", ms(20, 100), None)).expect("its own VM");
    ask(&mut run, operator(ALICE), release("web")).expect("an operator may");
    ask(&mut run, operator(ALICE), Request::Undo).expect("it is the reservation of bob");
    // The owner has meanwhile reserved as much as its budget allows.
    let budget = Budget { cpu: Some(CpuShare::from_ppm(200_000)), machines: None };
    run.service.set_budgets([(BOB, budget)].into());
    ask(&mut run, operator(ALICE), release("web")).expect("an operator may");
    ask(&mut run, tenant(BOB), reserve("db", ms(20, 100), None)).expect("within its budget");
    let why = refused_undo(&mut run);
    assert!(matches!(why, Refusal::OverBudgetCpu { owner: BOB, .. }), "{why}");
    run.service.set_budgets(slackline_service::Budgets::new());
    ask(&mut run, tenant(BOB), absent("v", 3, 500)).expect("1,501 vCPUs");
    ask(&mut run, operator(ALICE), release("v0")).expect("an operator may");
    ask(&mut run, tenant(BOB), absent("w", 1, 500)).expect("1,501 vCPUs");
    let (owner, asked, most) = (Some(BOB), 2_001, 2_000);
    assert_eq!(refused_undo(&mut run), Refusal::TooManyVcpus { owner, asked, most });
}

/// The reservation that `undo` restores would count against the budget of its owner only.
#[test]
fn operator_cannot_undo_release_of_reservation_that_operator_increased() {
    let mut run = Run::new(1, None, false);
    run.users = vec![5002];
    run.service.set_budgets(budget_of_alice(100_000));
    let release = || Request::Release { name: "a".parse().expect("a name"), if_revision: None };
    ask(&mut run, tenant(BOB), reserve("a", ms(1, 100), None)).expect("its own VM");
    for who in [operator(ALICE), ROOT, tenant(BOB)] {
        ask(&mut run, operator(ALICE), change("a", ms(9, 100))).expect("within its budget");
        ask(&mut run, who, release()).expect("the caller may release it");
        let undone = ask(&mut run, who, Request::Undo);
        if who == operator(ALICE) {
            assert_eq!(undone, Err(Refusal::NothingToUndo));
            ask(&mut run, tenant(BOB), reserve("a", ms(1, 100), None)).expect("its own VM");
        } else {
            assert_eq!(undone, Ok(()), "{who:?}");
            ask(&mut run, who, change("a", ms(1, 100))).expect("less is always allowed");
        }
    }
}
