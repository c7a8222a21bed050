//! Test vectors of our reference on GAPS, sections 7.3 and 7.4: one CPU, no costs, ticks at 10, 20,
//! 30 ms, and so on. A credit is a hundredth of a tick. The reference is a set of notes that is not
//! in this repository.

use slackline_units::{DomId, Pending, Span, Task, TaskId, Tasks, Time, Urgency, VcpuHint, VcpuId};

use super::SPEC;
use crate::picture::{Dispatch, Hog, dispatches, dispatches_told};
use crate::{Moment, Policy, RawValue, Topology, Values};

const PAPER: &str = "gaps rules=paper";

/// Returns vCPUs that wake at the start, never block, and report these urgencies.
fn hogs(urgencies: &[u8]) -> Vec<Hog> {
    urgencies.iter().map(|&urgency| Hog { wakes: Span::ZERO, urgency: Some(urgency) }).collect()
}

/// Returns the time of a dispatch in milliseconds.
fn ms(dispatch: &Dispatch) -> u64 {
    let at = dispatch.at - Time::START;
    assert!((at % Span::from_ms(1)).is_zero(), "{at}");
    at / Span::from_ms(1)
}

/// Returns the vCPUs of the first `turns` timeslices, which must last 30 ms each. vCPUs are
/// numbered from 1.
fn order(dispatches: &[Dispatch], turns: usize) -> Vec<usize> {
    let first = &dispatches[..turns];
    let starts = (0..).step_by(30).take(turns);
    assert!(first.iter().map(ms).eq(starts), "a timeslice is not 30 ms");
    first.iter().map(|dispatch| dispatch.who + 1).collect()
}

/// Returns the credit of the vCPU that is dispatched, at the start of its timeslice.
fn credit(dispatch: &Dispatch) -> i64 {
    let text = &dispatch.account.iter().find(|(name, _)| *name == "credit").unwrap().1;
    let (sign, text) = text.strip_prefix('-').map_or((1, text.as_str()), |text| (-1, text));
    let span: Span = if text == "0s" { Span::ZERO } else { text.parse().unwrap() };
    sign * i64::try_from(span / Span::from_us(100)).unwrap()
}

fn credits(dispatches: &[Dispatch]) -> Vec<i64> {
    dispatches.iter().map(credit).collect()
}

/// If the urgency claims of all vCPUs are equal, GAPS gives the same schedule as Credit.
#[test]
fn gaps_schedule_equals_credit_schedule_if_all_claims_are_equal() {
    for policy in ["credit rules=xen-3.0.4", PAPER, "gaps rules=paper-ro"] {
        let three = dispatches(policy, &hogs(&[120; 3]), Span::from_secs(1));
        assert_eq!(order(&three, 15), [1, 2, 3, 1, 2, 1, 3, 2, 1, 3, 2, 1, 3, 2, 1], "{policy}");
        let repeating = [150, 100, 50].repeat(2);
        assert_eq!(credits(&three[3..6]), [250, 50, 150], "{policy}");
        assert_eq!(credits(&three[6..8]), repeating[1..3], "{policy}");
        assert_eq!(credits(&three[8..14]), repeating, "{policy}");
        let four = dispatches(policy, &hogs(&[120; 4]), Span::from_secs(1));
        assert_eq!(order(&four, 16), [1, 2, 3, 4].repeat(4), "{policy}");
        assert_eq!(credits(&four[5..13]), [182, 107, 82, 82].repeat(2), "{policy}");
    }
}

/// A vCPU that is boosted at its wake runs in the order of wake-ups. So at first the third vCPU
/// runs third, although it claims more urgency than the others.
#[test]
fn most_urgent_vcpu_precedes_vcpus_with_credit_under_gaps() {
    for policy in [PAPER, "gaps rules=paper-ro"] {
        let three = dispatches(policy, &hogs(&[120, 120, 110]), Span::from_secs(1));
        assert_eq!(order(&three, 12), [1, 2, 3].repeat(4));
        assert_eq!(credits(&three[3..12]), [250, 50, 0].repeat(3));
        let four = dispatches(policy, &hogs(&[110, 120, 120, 120]), Span::from_secs(1));
        assert_eq!(order(&four, 15), [1, 2, 3, 4, 1, 2, 3, 1, 4, 2, 3, 1, 4, 2, 3]);
    }
}

/// By the paper's rule the vCPU with the least urgent of four claims misses four timeslices in the
/// first second, and none later.
#[test]
fn least_urgent_of_four_vcpus_misses_four_timeslices_under_gaps() {
    let four = dispatches(PAPER, &hogs(&[120, 120, 120, 130]), Span::from_secs(60));
    let first = [&[1, 2, 3, 4][..], &[1, 2, 3, 1, 2, 3, 4].repeat(4)].concat();
    assert_eq!(order(&four, 32), first);
    assert_eq!(order(&four, 2000)[32..], [1, 2, 3, 4].repeat(492));
    let turns = |who| four.iter().filter(|turn| turn.who + 1 == who).count();
    assert_eq!([1, 2, 3, 4].map(turns), [501, 501, 501, 497]);
}

/// Returns four vCPUs that never block. The last vCPU wakes 20 ms after the others, and claims less
/// urgency than they do.
fn starving() -> Vec<Hog> {
    let wakes = |(index, mut hog): (usize, Hog)| {
        hog.wakes = Span::from_ms(if index == 3 { 20 } else { 0 });
        hog
    };
    hogs(&[120, 120, 120, 130]).into_iter().enumerate().map(wakes).collect()
}

/// The fourth vCPU claims less urgency than the three others, and starves: its last timeslice
/// begins at 80 ms. While it waits, its credit grows beyond the credit of one period and is then
/// taken away. The three others share that credit, so at least one of them always has credit and
/// precedes the fourth vCPU.
#[test]
fn least_urgent_vcpu_can_starve_under_paper_rules_of_gaps() {
    for policy in [PAPER, "gaps rules=paper-ro"] {
        let all = dispatches(policy, &starving(), Span::from_secs(60));
        let begins = [(0, 1), (20, 2), (50, 3), (80, 4), (110, 1), (140, 2), (170, 3), (200, 1)];
        let goes_on = [(230, 2), (260, 2), (290, 3), (320, 1), (350, 1)];
        let starts: Vec<(u64, usize)> = all.iter().map(|turn| (ms(turn), turn.who + 1)).collect();
        assert_eq!(starts[..13], [&begins[..], &goes_on].concat());
        let then = (380..60_000).step_by(30).zip([3, 2, 2, 3, 1, 1].into_iter().cycle());
        assert!(starts[13..].iter().copied().eq(then));
        assert_eq!(credits(&all[13..19]), [84, 84, -116, 84, 134, -66]);
    }
}

/// With the same four vCPUs as `starving`, each receives a quarter of the CPU. The vCPU with the
/// least urgent claim never waits for 400 ms.
#[test]
fn every_vcpu_gets_its_share_under_gaps_with_bounded_boosts() {
    let wide = "gaps boost-cap=100% boost-depth=1s";
    for policy in ["gaps", "gaps base=xen-3.0.4", "gaps base=xen-3.0.4 among=under", wide] {
        let all = dispatches(policy, &starving(), Span::from_secs(60));
        let (mut ran, mut longest) = ([Span::ZERO; 4], Span::ZERO);
        let mut waits_from = Time::START + Span::from_ms(20);
        for pair in all.windows(2) {
            ran[pair[0].who] += pair[1].at - pair[0].at;
            if pair[0].who == 3 {
                longest = longest.max(pair[0].at - waits_from);
                waits_from = pair[1].at;
            }
        }
        assert!(longest < Span::from_ms(400), "{policy}: {longest}");
        for ran in ran {
            let (least, most) = (Span::from_ms(14_850), Span::from_ms(15_150));
            assert!((least..=most).contains(&ran), "{policy}: {ran}");
        }
    }
}

/// By the paper's rule the first of four vCPUs precedes the fourth vCPU at 210 ms, for a whole
/// timeslice. With a boost depth of 400 us the first vCPU precedes the fourth for 400 us. Then the
/// first vCPU returns to its old place behind the fourth or, with `place=tail`, to the tail. In its
/// old place, the first vCPU also runs for 400 us by its claim before its own timeslices at 90 and
/// 240 ms, and pays for those claims too.
#[test]
fn boosted_vcpu_returns_to_configured_queue_place_after_its_boost() {
    let begins = |policy: &str| {
        let all = dispatches(policy, &hogs(&[110, 120, 120, 120]), Span::from_ms(340));
        let later = all.iter().filter(|turn| turn.at >= Time::START + Span::from_ms(180));
        later.map(|turn| format!("{} {}", turn.who + 1, turn.at - Time::START)).collect::<Vec<_>>()
    };
    let credit = "3 180ms, 4 210ms, 1 240ms, 2 270ms, 3 300ms, 4 330ms";
    assert_eq!(begins("credit rules=xen-3.0.4").join(", "), credit);
    let paper = "3 180ms, 1 210ms, 4 240ms, 2 270ms, 3 300ms, 1 330ms";
    assert_eq!(begins(PAPER).join(", "), paper);
    let kept = "3 180.4ms, 1 210.4ms, 4 210.8ms, 1 240.8ms, 1 241.2ms, 2 271.2ms, 3 301.2ms, \
                1 331.2ms, 4 331.6ms";
    assert_eq!(begins("gaps base=xen-3.0.4 among=under boost-depth=400us").join(", "), kept);
    let tail = "3 180ms, 1 210ms, 4 210.4ms, 1 240.4ms, 2 240.8ms, 1 270.8ms, 3 300.8ms, \
                1 330.8ms, 4 331.2ms";
    let rules = "gaps base=xen-3.0.4 among=under boost-depth=400us place=tail";
    assert_eq!(begins(rules).join(", "), tail);
}

/// A driver VM that does I/O for others is most urgent, and reports for which VM I/O is pending.
/// That VM claims the urgency of its task that waits for the I/O; no other VM does. The claim ends
/// when the VM takes the pending I/O. I/O pending for an unknown VM changes nothing.
#[test]
fn pending_io_makes_only_its_receiving_vm_urgent_under_gaps() {
    let policy = Values::defaults(SPEC.policy_fields).unwrap();
    let share = Values::defaults(SPEC.share_fields).unwrap();
    let mut policy = (SPEC.build)(&policy, &Topology::flat(1));
    let mut at = Moment::at_start(1);
    let [driver, web, batch] = [0, 1, 2].map(|slot| VcpuId::new(slot, DomId::new(slot + 7), 0));
    for vcpu in [driver, web, batch] {
        at.join(vcpu);
        policy.admit(&at, vcpu, &share).unwrap();
    }
    for (vcpu, urgency) in [(web, 5), (batch, 6)] {
        let mut tasks = Tasks::default();
        let task = Task { id: TaskId::new(1), urgency: Urgency(urgency) };
        (tasks.blocked[0], tasks.woken[0]) = (Some(task), Some(task.id));
        policy.on_hint(&at, vcpu, &VcpuHint::Tasks(tasks));
    }
    for (domain, items, claims) in [
        (99, 1, ["0", "none", "none"]),
        (8, 1, ["0", "5", "none"]),
        (9, 3, ["0", "5", "6"]),
        (8, 0, ["0", "none", "6"]),
    ] {
        let pending = Pending { items, ..Pending::nothing(DomId::new(domain)) };
        policy.on_hint(&at, driver, &VcpuHint::Pending(pending));
        let found = [driver, web, batch].map(|vcpu| claim(&*policy, vcpu));
        assert_eq!(found, claims, "{items} for {domain}");
    }
}

/// A VM that has answered requests in time eight times precedes others from the arrival of a
/// request until the VM has answered or blocks. A VM that blocks has done all work of the request.
#[test]
fn vm_inferred_as_server_has_precedence_until_answer_or_block() {
    let given = [("tell", RawValue::Text("inferred"))];
    let policy = Values::read(SPEC.policy_fields, given.into_iter()).unwrap();
    let share = Values::defaults(SPEC.share_fields).unwrap();
    let mut policy = (SPEC.build)(&policy, &Topology::flat(1));
    let mut at = Moment::at_start(1);
    let [driver, server] = [0, 1].map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
    for vcpu in [driver, server] {
        at.join(vcpu);
        policy.admit(&at, vcpu, &share).unwrap();
    }
    at.set_awake(server, true);
    policy.on_wake(&at, server);
    let tell = |policy: &mut Box<dyn Policy>, items, asked| {
        let pending = Pending { items, asked, ..Pending::nothing(server.domain()) };
        policy.on_hint(&at, driver, &VcpuHint::Pending(pending));
        claim(&**policy, server)
    };
    for asked in 0..8 {
        let claims = [(1, asked), (0, asked), (0, asked + 1)];
        assert_eq!(claims.map(|(items, asked)| tell(&mut policy, items, asked)), ["none"; 3]);
    }
    assert_eq!(tell(&mut policy, 1, 8), "100");
    assert_eq!(tell(&mut policy, 0, 8), "100", "the request is taken but not answered");
    assert_eq!(tell(&mut policy, 0, 9), "none");
    tell(&mut policy, 1, 9);
    assert_eq!(tell(&mut policy, 0, 9), "100");
    at.set_awake(server, false);
    policy.on_block(&at, server);
    assert_eq!(claim(&*policy, server), "none");
}

fn claim(policy: &dyn Policy, vcpu: VcpuId) -> String {
    policy.account(vcpu).into_iter().find(|(name, _)| *name == "claim").unwrap().1
}

/// At 100.5 ms the devices of the first of three VMs report that I/O is pending for this VM, and
/// 200 us later that none is. In between, the first VM precedes the second VM. The report does not
/// make the first VM a driver VM, which would precede all others from then on. If instead the third
/// VM reports this I/O, the third VM becomes a driver VM. The report then counts from the next
/// pass, which a driver VM causes when it blocks.
#[test]
fn report_of_own_pending_io_takes_effect_immediately_under_gaps() {
    let server = Some(Task { id: TaskId::new(1), urgency: Urgency(100) });
    let mut tasks = Tasks::default();
    (tasks.blocked[0], tasks.woken[0]) = (server, server.map(|task| task.id));
    let waits = |items| VcpuHint::Pending(Pending { items, ..Pending::nothing(DomId::new(0)) });
    let run = |teller| {
        let hogs = [(); 3].map(|()| Hog { wakes: Span::ZERO, urgency: None });
        let told = [(0, 0, VcpuHint::Tasks(tasks)), (100_500, teller, waits(1))];
        let later = told.into_iter().chain([(100_700, teller, waits(0))]);
        let later: Vec<_> = later.map(|(us, who, told)| (Span::from_us(us), who, told)).collect();
        dispatches_told("gaps", &hogs, &later, Span::from_secs(1))
    };
    let starts = |all: &[Dispatch]| {
        let these = all.iter().filter(|turn| turn.at >= Time::START + Span::from_ms(90));
        let these = these.map(|turn| format!("{} {}", turn.who + 1, turn.at - Time::START));
        these.take(7).collect::<Vec<_>>().join(", ")
    };
    let claims = |all: &[Dispatch], who| -> Vec<String> {
        let its = all.iter().filter(|turn| turn.who == who && turn.at > Time::START);
        let rows = its.flat_map(|turn| turn.account.iter().filter(|(name, _)| *name == "claim"));
        rows.map(|(_, claim)| claim.clone()).collect()
    };
    let own = run(0);
    let expected = "1 90ms, 2 100ms, 1 100.5ms, 3 100.7ms, 2 110.7ms, 3 120.2ms, 2 130.2ms";
    assert_eq!(starts(&own), expected);
    let its = claims(&own, 0);
    assert!(its.iter().filter(|claim| *claim == "100").count() == 1, "{its:?}");
    assert!(its.iter().all(|claim| claim == "100" || claim == "none"), "{its:?}");
    let drivers = run(2);
    assert!(starts(&drivers).starts_with("1 90ms, 2 100ms, 3 110ms"), "{}", starts(&drivers));
    assert!(claims(&drivers, 0).iter().all(|claim| claim == "none"));
    assert_eq!(claims(&drivers, 2).last().map(String::as_str), Some("0"));
}

/// I/O was completed for a VM. Each task of the VM that I/O has woken can be the receiver of this
/// I/O. So all vCPUs of the VM claim the urgency of the most urgent of these tasks. A report of one
/// vCPU changes the claims of all vCPUs of the VM.
#[test]
fn urgency_claim_reported_by_one_vcpu_holds_for_whole_vm() {
    let values = Values::defaults(SPEC.policy_fields).unwrap();
    let share = Values::defaults(SPEC.share_fields).unwrap();
    let mut policy = (SPEC.build)(&values, &Topology::flat(1));
    let mut at = Moment::at_start(1);
    let guest = DomId::new(0);
    let vcpus = [0, 1].map(|number| VcpuId::new(u32::from(number), guest, number));
    let driver = VcpuId::new(2, DomId::new(1), 0);
    for vcpu in [vcpus[0], vcpus[1], driver] {
        at.join(vcpu);
        policy.admit(&at, vcpu, &share).unwrap();
    }
    let mut tell = |vcpu, told| {
        policy.on_hint(&at, vcpu, &told);
        vcpus.map(|vcpu| claim(&*policy, vcpu))
    };
    let waits = |urgencies: &[u8]| {
        let mut tasks = Tasks::default();
        for (place, &urgency) in urgencies.iter().enumerate() {
            let id = TaskId::new(urgency.into());
            tasks.blocked[place] = Some(Task { id, urgency: Urgency(urgency) });
            tasks.woken[place] = Some(id);
        }
        VcpuHint::Tasks(tasks)
    };
    assert_eq!(tell(vcpus[0], waits(&[100])), ["none"; 2], "no I/O is pending");
    let done = VcpuHint::Pending(Pending { items: 1, ..Pending::nothing(guest) });
    assert_eq!(tell(driver, done), ["100"; 2]);
    assert_eq!(tell(vcpus[0], waits(&[50, 100])), ["50"; 2]);
    assert_eq!(tell(vcpus[0], waits(&[100])), ["100"; 2]);
}
