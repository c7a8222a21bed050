//! Tests of EDF: drawn timelines, and sequences of calls.

use slackline_units::DomId;

use super::*;
use crate::RawValue;
use crate::picture::picture;

#[test]
fn edf_runs_the_vcpu_with_the_earliest_deadline_first() {
    picture(
        "edf",
        "
        a slice=2ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        b slice=2ms period=5ms exact    rrrrrrrrrrrrrrrrrrrr
        cpu0                            bbaa.bb...bbaa.bb...
    ",
    );
}

/// Textbook example over its whole hyperperiod, computed by hand. Of equal deadlines the vCPU with
/// the lower id runs first.
#[test]
fn edf_three_textbook_tasks_meet_all_deadlines_over_a_hyperperiod() {
    picture(
        "edf",
        "
        a slice=1ms period=8ms exact    rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b slice=2ms period=5ms exact    rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        c slice=4ms period=10ms exact   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                            bbaccbbccabbcccbbca.bbcccbbca.bbaccbbcc.
    ",
    );
}

#[test]
fn edf_slack_is_divided_among_work_conserving_vcpus_only() {
    picture(
        "edf quantum=1ms",
        "
        a slice=2ms period=10ms         rrrrrrrrrrrrrrrrrrrr
        b slice=4ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        c slice=1ms period=10ms         rrrrrrrrrrrrrrrrrrrr
        cpu0                            aabbbbcacaaabbbbccac
    ",
    );
}

/// With `phase=5ms`, the periods of `a` begin at 5 and 15 ms. Its first period, from 0 to 5 ms, is
/// cut short to half a period, with half a slice. The periods of `b` begin at 3, 8, 13 and 18 ms,
/// although `b` is blocked until 13 ms.
#[test]
fn edf_periods_with_phase_begin_at_fixed_clock_times() {
    picture(
        "edf",
        "
        a slice=2ms period=10ms phase=5ms exact   rrrrrrrrrrrrrrrrrrrr
        b slice=1ms period=5ms phase=3ms exact    zzzzzzzzzzzzzrrrrrrr
        cpu0                                      a....aa......b.aa.b.
    ",
    );
}

/// Two vCPUs of a VM may together use 0.6 of a CPU. vCPU `b` is blocked on CPU 1, and leaves 3 ms
/// of budget unused in each period. In the following period, `a` borrows these 3 ms on CPU 0, so
/// its timeslice is 6 ms instead of 3 ms.
#[test]
fn busy_vcpu_borrows_budget_that_a_blocked_sibling_left_unused() {
    picture(
        "edf",
        "
        a of=w slice=3ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b of=w slice=3ms period=10ms exact spread=use   zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        cpu0                                            aaa.......aaaaaa....aaaaaa....
        cpu1                                            ..............................
    ",
    );
}

/// vCPU `b` has its equal share at once when it wakes. Budget that `b` left unused before stays
/// lent to `a`.
#[test]
fn vcpu_that_lent_budget_gets_its_whole_slice_on_waking() {
    picture(
        "edf",
        "
        a of=w slice=3ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b of=w slice=3ms period=10ms exact spread=use   zzzzzzzzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrr
        cpu0                                            aaa.......aaaaaa....aaaaaa....aaa.......
        cpu1                                            ....................bbb.......bbb.......
    ",
    );
}

/// vCPUs `a` and `b` reserve 0.3 of the CPU each and `c` 0.2, so the loan is limited to the
/// remaining 0.2. No vCPU misses a deadline because of a loan.
#[test]
fn borrowed_budget_never_exceeds_the_unreserved_share_of_the_cpu() {
    picture(
        "edf reserve=0cpu",
        "
        a of=w slice=3ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b of=w slice=3ms period=10ms exact spread=use   zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        c slice=2ms period=10ms exact                   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                                            aaacc.....aaaaacc...aaaaacc...
    ",
    );
}

/// Two borrowers divide equally what the third vCPU left unused.
#[test]
fn unused_budget_is_lent_to_two_siblings_in_equal_shares() {
    picture(
        "edf",
        "
        a of=w slice=2ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b of=w slice=2ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        c of=w slice=2ms period=10ms exact spread=use   zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        cpu0                                            aa........aaa.......aaa.......
        cpu1                                            bb........bbb.......bbb.......
        cpu2                                            ..............................
    ",
    );
}

/// A vCPU that exhausts its budget for the first time borrows at once, within its period.
#[test]
fn vcpu_that_exhausts_its_budget_borrows_within_the_same_period() {
    picture(
        "edf",
        "
        a of=w slice=2ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrrzzzzzzzzzzzzzzzzzzzzrrrr
        b of=w slice=2ms period=10ms exact spread=use   zzzzzzzzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrzzzz
        c of=w slice=2ms period=10ms exact spread=use   zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        cpu0                                            aa........aaaaaa........................aaaa
        cpu1                                            ....................bbbb......bbbbbb........
        cpu2                                            ............................................
    ",
    );
}

/// Other VMs, and vCPUs of the same VM with `spread = "even"`, lend nothing.
#[test]
fn vcpu_borrows_only_from_siblings_with_parameter_spread_use() {
    picture(
        "edf",
        "
        a of=w slice=3ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrr
        b of=w slice=3ms period=10ms exact              zzzzzzzzzzzzzzzzzzzz
        c slice=3ms period=10ms exact spread=use        zzzzzzzzzzzzzzzzzzzz
        cpu0                                            aaa.......aaa.......
        cpu1                                            ....................
        cpu2                                            ....................
    ",
    );
}

#[test]
fn edf_vcpu_waking_at_period_begin_receives_the_slice() {
    picture(
        "edf",
        "
        a slice=3ms period=10ms         zzzzzzzzzzrrrzzzzzzz
        b slice=6ms period=20ms         rrrrrrrrrrrrrrrrrrrr
        cpu0                            bbbbbbbbbbaaabbbbbbb
    ",
    );
}

#[test]
fn edf_vcpu_waking_late_in_period_causes_no_deadline_miss() {
    picture(
        "edf reserve=0cpu",
        "
        a slice=5ms period=10ms exact   zzzzzzzzrrrrrrrrrrrr
        b slice=5ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        cpu0                            bbbbb...a.aaaaabbbbb
    ",
    );
}

#[test]
fn edf_short_block_costs_vcpu_at_most_the_blocked_time() {
    picture(
        "edf reserve=0cpu",
        "
        a slice=5ms period=20ms exact   rrrrrrrrrzrrrrrrrrrr
        b slice=6ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        cpu0                            bbbbbbaaa.aabbbbbb..
    ",
    );
}

#[test]
fn edf_admission_places_vcpus_on_the_least_reserved_cpus() {
    picture(
        "edf",
        "
        a slice=6ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        b slice=5ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        c slice=4ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        cpu0                            aaaaaa....aaaaaa....
        cpu1                            bbbbbcccc.bbbbbcccc.
    ",
    );
}

/// A timer is 5 ms late, and `b` receives 1 of its 4 ms by its deadline. vCPU `b` gets the missing
/// 3 ms from slack only, without precedence over budgets.
#[test]
fn edf_budget_missing_at_deadline_is_made_up_from_slack() {
    let values = |fields, terms: &[(&'static str, &'static str)]| {
        let given = terms.iter().map(|&(name, value)| (name, RawValue::Text(value)));
        Values::read(fields, given).unwrap()
    };
    let mut at = Moment::at_start(1);
    let mut edf = Edf::new(&values(SPEC.policy_fields, &[]), &Topology::flat(1));
    let cpu = CpuId::new(0);
    let ms = |ms| Time::START + Span::from_ms(ms);
    let vcpus = [0, 1].map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
    for vcpu in vcpus {
        at.join(vcpu);
        let share = values(SPEC.share_fields, &[("slice", "4ms"), ("period", "10ms")]);
        edf.admit(&at, vcpu, &share).unwrap();
        at.set_awake(vcpu, true);
        edf.on_wake(&at, vcpu);
    }
    let [a, b] = vcpus;
    let mut run = |vcpu, until, rings: bool| {
        at.occupy(cpu, vcpu);
        let ran = until - at.now();
        at.advance(until);
        edf.charge(&at, vcpu, ran);
        if rings {
            edf.on_timer(&at, cpu);
        }
        at.vacate(cpu);
        match edf.pick(&at, cpu) {
            Pick::Run { vcpu, limit, entitlement } => (vcpu, limit.unwrap(), entitlement),
            Pick::Idle => unreachable!("both vCPUs are runnable"),
        }
    };
    // The vCPUs were blocked when the first period began, so budget missed in it is no backlog.
    assert_eq!(run(a, ms(4), false), (b, Span::from_ms(4), Entitlement::Due));
    assert_eq!(run(b, ms(8), false), (a, Span::from_ms(10), Entitlement::Spare));
    assert_eq!(run(a, ms(10), true), (a, Span::from_ms(4), Entitlement::Due));
    // `a` uses 5 ms too much, which is more than its next slice.
    assert_eq!(run(a, ms(19), false), (b, Span::from_ms(4), Entitlement::Due));
    assert_eq!(run(b, ms(20), true), (b, Span::from_ms(4), Entitlement::Due));
    assert_eq!(run(b, ms(24), false), (b, Span::from_ms(3), Entitlement::Arrears));
    assert_eq!(run(b, ms(26), false), (b, Span::from_ms(1), Entitlement::Arrears));
    assert_eq!(run(b, ms(27), false).2, Entitlement::Spare);
}

/// A vCPU with a hard limit has received its slice. It runs for another 40 us outside of any
/// timeslice, since it is stopped late. No other vCPU had to wait, so its next slice is whole up to
/// the measurement tolerance.
#[test]
fn edf_overrun_is_not_deducted_if_no_other_vcpu_waits() {
    let values = |fields, terms: &[(&'static str, RawValue<'static>)]| {
        Values::read(fields, terms.iter().copied()).unwrap()
    };
    let mut at = Moment::at_start(1);
    let mut edf = Edf::new(&values(SPEC.policy_fields, &[]), &Topology::flat(1));
    let (cpu, a) = (CpuId::new(0), VcpuId::new(0, DomId::new(0), 0));
    let text = RawValue::Text;
    let terms = [("slice", text("4ms")), ("period", text("10ms")), ("exact", RawValue::Flag(true))];
    at.join(a);
    edf.admit(&at, a, &values(SPEC.share_fields, &terms)).unwrap();
    at.set_awake(a, true);
    edf.on_wake(&at, a);
    let ms = |ms| Time::START + Span::from_ms(ms);
    at.occupy(cpu, a);
    at.advance(ms(4));
    edf.charge(&at, a, Span::from_ms(4));
    at.vacate(cpu);
    assert_eq!(edf.pick(&at, cpu), Pick::Idle);
    at.advance(ms(10) - Span::from_us(10));
    edf.charge(&at, a, Span::from_us(40));
    at.advance(ms(10));
    edf.on_timer(&at, cpu);
    let Pick::Run { limit, .. } = edf.pick(&at, cpu) else { panic!("a new period has budget") };
    assert_eq!(limit, Some(Span::from_ms(4) - overrun::history::UNTOLD));
}

/// The first period of the vCPU is half as long as later periods. Its budget would be 3,500,000.5
/// ns and is rounded down. When the vCPU leaves, its budget left is compared with its share of the
/// rest of the period, here the whole period, rounded up. The difference of 1 ns must not count as
/// excess, so the vCPU's share is free at once.
#[test]
fn edf_vcpu_with_phase_frees_share_by_leaving_before_running() {
    let values = |fields, terms: &[(&'static str, &'static str)]| {
        let given = terms.iter().map(|&(name, value)| (name, RawValue::Text(value)));
        Values::read(fields, given).unwrap()
    };
    let mut edf = Edf::new(&values(SPEC.policy_fields, &[]), &Topology::flat(1));
    let share =
        values(SPEC.share_fields, &[("slice", "7000001ns"), ("period", "10ms"), ("phase", "5ms")]);
    let mut at = Moment::at_start(1);
    let vcpu = VcpuId::new(0, DomId::new(0), 0);
    let room = |edf: &Edf, at: &Moment| {
        edf.available_slice(at, Span::from_ms(10), CpuSet::one(CpuId::new(0)))
    };
    at.advance(Time::START + Span::from_ms(10));
    // Excess counts if a vCPU with budget left waits.
    let waits = VcpuId::new(1, DomId::new(1), 0);
    at.join(waits);
    let little = values(SPEC.share_fields, &[("slice", "1ms"), ("period", "10ms")]);
    edf.admit(&at, waits, &little).unwrap();
    at.set_awake(waits, true);
    edf.on_wake(&at, waits);
    let before = room(&edf, &at);
    at.join(vcpu);
    edf.admit(&at, vcpu, &share).unwrap();
    assert!(room(&edf, &at) < before);
    at.leave(vcpu);
    let _ = edf.on_leave(&at, vcpu);
    assert_eq!(room(&edf, &at), before);
}

/// Returns an EDF policy and a host with `cpus` CPUs, to be driven by hand.
pub(super) fn by_hand(cpus: usize, words: &[(&'static str, RawValue<'static>)]) -> (Edf, Moment) {
    let values = Values::read(SPEC.policy_fields, words.iter().copied()).unwrap();
    (Edf::new(&values, &Topology::flat(cpus)), Moment::at_start(cpus))
}

/// Returns parameters with a slice, a period and a hard limit.
pub(super) fn hard_limit((slice, period): (&str, &str)) -> Values {
    let (slice, period) = (("slice", RawValue::Text(slice)), ("period", RawValue::Text(period)));
    let terms = [slice, period, ("exact", RawValue::Flag(true))];
    Values::read(SPEC.share_fields, terms.into_iter()).unwrap()
}

/// Admits a blocked vCPU with a hard limit.
pub(super) fn join(edf: &mut Edf, at: &mut Moment, slot: u32, share: (&str, &str)) -> VcpuId {
    let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
    at.join(vcpu);
    edf.admit(at, vcpu, &hard_limit(share)).unwrap();
    vcpu
}

pub(super) fn wake(edf: &mut Edf, at: &mut Moment, vcpu: VcpuId) {
    at.set_awake(vcpu, true);
    edf.on_wake(at, vcpu);
}

/// Three vCPUs reserve 0.6 CPU each on two CPUs, so the third vCPU is split. CPU time that it used
/// before it left can still delay the other two vCPUs, until the CPU is quiescent.
#[test]
fn edf_keeps_demand_test_until_quiescence_after_split_vcpu_leaves() {
    let (mut edf, mut at) = by_hand(2, &[("place", RawValue::Text("split"))]);
    let share = ("6ms", "10ms");
    let vcpus = [0, 1, 2].map(|slot| join(&mut edf, &mut at, slot, share));
    vcpus.iter().for_each(|&vcpu| wake(&mut edf, &mut at, vcpu));
    let cpus = [0, 1].map(CpuId::new);
    let left_over = |edf: &Edf| cpus.map(|cpu| edf.promised.is_left_over(cpu));
    assert_eq!(edf.promised.strict(), CpuSet::first_n(2));
    assert_eq!(left_over(&edf), [false, false]);
    at.leave(vcpus[2]);
    edf.on_leave(&at, vcpus[2]);
    assert_eq!(left_over(&edf), [true, true]);
    let here = edf.servers[vcpus[0]].cpu;
    at.occupy(here, vcpus[0]);
    at.advance(Time::START + Span::from_ms(6));
    edf.charge(&at, vcpus[0], Span::from_ms(6));
    let late = join(&mut edf, &mut at, 3, ("1ms", "10ms"));
    wake(&mut edf, &mut at, late);
    assert_eq!(left_over(&edf), cpus.map(|cpu| cpu != here));
}

#[test]
fn edf_reserved_share_sums_slices_and_subtasks_without_dispatch_overhead() {
    let values = Values::read(SPEC.policy_fields, [("place", RawValue::Text("split"))].into_iter());
    let topology = Topology::flat(2).with_dispatch(Span::from_us(100));
    let (mut edf, mut at) = (Edf::new(&values.unwrap(), &topology), Moment::at_start(2));
    let reserved = |edf: &Edf| [0, 1].map(|cpu| edf.reserved(CpuId::new(cpu)).unwrap().ppm());
    assert_eq!(reserved(&edf), [0, 0]);
    let vcpus = [0, 1, 2].map(|slot| join(&mut edf, &mut at, slot, ("6ms", "10ms")));
    let [one, other] = reserved(&edf);
    assert_eq!(one + other, 1_800_000, "the third is split: {one} and {other}");
    assert!(one > 600_000 && other > 600_000, "{one} and {other}");
    at.leave(vcpus[2]);
    edf.on_leave(&at, vcpus[2]);
    assert_eq!(reserved(&edf), [600_000; 2]);
}

/// A vCPU that is 3 ms ahead of its fluid rate leaves. Its share stays reserved while a blocked
/// vCPU with 4 of 10 ms would still have budget had it stayed runnable. The test checks this to the
/// nanosecond.
#[test]
fn edf_departed_vcpu_share_stays_reserved_until_other_budgets_expire() {
    let ns = Span::from_ns(1);
    let ms = |ms| Time::START + Span::from_ms(ms);
    let leaves = [(ms(4) - ns, false), (ms(4), true), (ms(10) - ns, true), (ms(10), false)];
    for (now, is_free) in leaves.into_iter().chain([(ms(24) - ns, false), (ms(24), true)]) {
        let (mut edf, mut at) = by_hand(1, &[]);
        let cpu = CpuId::new(0);
        let room =
            |edf: &Edf, at: &Moment| edf.available_slice(at, Span::from_ms(10), CpuSet::one(cpu));
        join(&mut edf, &mut at, 0, ("4ms", "10ms"));
        let before = room(&edf, &at);
        at.advance(now - Span::from_ms(3));
        let vcpu = join(&mut edf, &mut at, 1, ("3ms", "10ms"));
        wake(&mut edf, &mut at, vcpu);
        at.occupy(cpu, vcpu);
        at.advance(now);
        edf.charge(&at, vcpu, Span::from_ms(3));
        at.vacate(cpu);
        at.leave(vcpu);
        edf.on_leave(&at, vcpu);
        assert_eq!(room(&edf, &at) == before, is_free, "left at {now}");
    }
}

/// The vCPU is stopped 10 us late, 64 times. Then it either blocks when its slice is complete, or
/// misses its deadline with an incomplete slice. Neither changes the recorded lateness of stops.
#[test]
fn edf_steady_overrun_is_measured_only_when_vcpu_is_throttled() {
    let late = Span::from_us(10);
    for (had, sleeps) in [(Span::from_ms(4), true), (Span::from_ms(3), false)] {
        let (mut edf, mut at) = by_hand(1, &[]);
        let (cpu, period) = (CpuId::new(0), Span::from_ms(10));
        let vcpu = join(&mut edf, &mut at, 0, ("4ms", "10ms"));
        wake(&mut edf, &mut at, vcpu);
        let limit = |edf: &Edf, at: &Moment| match edf.pick(at, cpu) {
            Pick::Run { limit, .. } => limit.expect("a pick on budget has a limit"),
            Pick::Idle => unreachable!("a new period has budget"),
        };
        let mut end = Time::START;
        for number in 0..66 {
            end = end.after(period);
            let is_told = number != 64;
            let ran = if is_told { limit(&edf, &at) + late } else { had.min(limit(&edf, &at)) };
            at.occupy(cpu, vcpu);
            at.advance(at.now().after(ran));
            at.set_awake(vcpu, is_told || !sleeps);
            edf.charge(&at, vcpu, ran);
            at.vacate(cpu);
            if !at.is_awake(vcpu) {
                edf.on_block(&at, vcpu);
            }
            at.advance(end);
            edf.on_timer(&at, cpu);
            if !at.is_awake(vcpu) {
                wake(&mut edf, &mut at, vcpu);
            }
        }
        assert_eq!(limit(&edf, &at), Span::from_ms(4) - late, "{had}");
    }
}

/// Each of two CPUs has a whole vCPU, and a third vCPU is split. After its subtask on the first CPU
/// the third vCPU continues on the second CPU.
#[test]
fn edf_split_vcpu_continues_on_second_cpu_after_first_subtask() {
    let (mut edf, mut at) = by_hand(2, &[("place", RawValue::Text("split"))]);
    let vcpus = [0, 1, 2].map(|slot| join(&mut edf, &mut at, slot, ("6ms", "10ms")));
    let split = vcpus[2];
    wake(&mut edf, &mut at, split);
    let first = edf.servers[split].cpu;
    let Pick::Run { vcpu, limit: Some(part), .. } = edf.pick(&at, first) else {
        panic!("a new period has budget");
    };
    assert_eq!(vcpu, split);
    assert!(part < Span::from_ms(6), "{part}");
    at.occupy(first, split);
    at.advance(Time::START + part);
    let cpus = edf.charge(&at, split, part);
    let second = CpuId::new(1 - first.index());
    assert!(cpus.contains(second));
    assert_eq!(
        edf.prepare_pick(&at, first),
        CpuSet::one(second),
        "after the first CPU released it"
    );
    at.vacate(first);
    assert_eq!(edf.pick(&at, first), Pick::Idle);
    let Pick::Run { vcpu, limit: Some(rest), .. } = edf.pick(&at, second) else {
        panic!("the last subtask has budget");
    };
    assert_eq!((vcpu, part + rest), (split, Span::from_ms(6)));
}

/// A split vCPU with 6 of 10 ms has used 3 ms in the first 3 ms, while others wait. So it is 1.2 ms
/// ahead of its fluid rate. It leaves and rejoins, and does not get these 1.2 ms again.
#[test]
fn edf_excess_cpu_time_of_rejoining_split_vcpu_is_deducted() {
    let (mut edf, mut at) = by_hand(2, &[("place", RawValue::Text("split"))]);
    let vcpus = [0, 1, 2].map(|slot| join(&mut edf, &mut at, slot, ("6ms", "10ms")));
    let split = vcpus[2];
    vcpus.iter().for_each(|&vcpu| wake(&mut edf, &mut at, vcpu));
    let part = edf.servers[split].limit();
    assert_eq!(part, Span::from_ms(3));
    at.occupy(edf.servers[split].cpu, split);
    at.advance(Time::START + part);
    edf.charge(&at, split, part);
    at.vacate(CpuId::new(0));
    at.vacate(CpuId::new(1));
    at.leave(split);
    edf.on_leave(&at, split);
    join(&mut edf, &mut at, 2, ("2ms", "10ms"));
    let account = edf.account(split);
    let remaining = account.iter().find(|(name, _)| *name == "remaining");
    assert_eq!(remaining.map(|(_, text)| text.as_str()), Some("800us"));
}

/// Two vCPUs have received nothing of their 6 ms and have 6 ms until their deadlines. A split vCPU
/// would make one of them miss its deadline, so the split vCPU is refused. At time zero the same
/// split vCPU would fit.
#[test]
fn edf_vcpu_is_not_split_if_splitting_causes_deadline_miss() {
    for (now, has_room) in [(0, true), (4, false)] {
        let (mut edf, mut at) = by_hand(2, &[("place", RawValue::Text("split"))]);
        for slot in [0, 1] {
            let vcpu = join(&mut edf, &mut at, slot, ("6ms", "10ms"));
            wake(&mut edf, &mut at, vcpu);
        }
        at.advance(Time::START + Span::from_ms(now));
        let room = edf.available_slice(&at, Span::from_ms(10), CpuSet::first_n(2)).unwrap();
        assert_eq!(room >= Span::from_ms(6), has_room, "{room} at {now} ms");
    }
}

/// Returns a VM with two vCPUs that may use 0.6 of a CPU together, with a period of 10 ms. One is
/// blocked. The other has used its slice and borrows its sibling's unused budget until 20 ms.
fn lent() -> (Edf, Moment, VcpuId) {
    let (mut edf, mut at) = by_hand(2, &[]);
    let vcpus = [0, 1].map(|number| VcpuId::new(u32::from(number), DomId::new(0), number));
    let terms = [("slice", "3ms"), ("period", "10ms"), ("spread", "use")];
    let terms = terms.map(|(name, text)| (name, RawValue::Text(text)));
    let share = Values::read(SPEC.share_fields, terms.into_iter()).unwrap();
    for vcpu in vcpus {
        at.join(vcpu);
        edf.admit(&at, vcpu, &share).unwrap();
    }
    let (busy, cpu) = (vcpus[0], edf.servers[vcpus[0]].cpu);
    wake(&mut edf, &mut at, busy);
    had(&mut edf, &mut at, busy, Span::from_ms(3));
    at.advance(Time::START + Span::from_ms(10));
    edf.on_timer(&at, cpu);
    assert_eq!(edf.servers[busy].loan(), Span::from_ms(3));
    (edf, at, busy)
}

/// Runs a vCPU for `time`.
fn had(edf: &mut Edf, at: &mut Moment, vcpu: VcpuId, time: Span) {
    let cpu = edf.servers[vcpu].cpu;
    at.occupy(cpu, vcpu);
    at.advance(at.now().after(time));
    edf.charge(at, vcpu, time);
    at.vacate(cpu);
}

/// A borrower has used more of its loan than has accrued. If another vCPU waits for the CPU, the
/// capacity of the loan stays reserved until the used part is accrued.
#[test]
fn loan_used_before_accrual_stays_reserved_while_another_vcpu_waits() {
    for (is_somebody_there, room) in [(false, 5_500), (true, 2_500)] {
        let (mut edf, mut at, busy) = lent();
        let cpu = edf.servers[busy].cpu;
        let other = join(&mut edf, &mut at, 2, ("1ms", "10ms"));
        assert_eq!(edf.servers[other].cpu, cpu);
        had(&mut edf, &mut at, busy, Span::from_ms(6));
        if is_somebody_there {
            wake(&mut edf, &mut at, other);
        } else {
            at.advance(Time::START + Span::from_us(16_999));
        }
        let free = edf.available_slice(&at, Span::from_ms(10), CpuSet::one(cpu));
        assert_eq!(free, Some(Span::from_us(room)));
    }
}

/// A loan of 0.3 ms per millisecond is cut when a newcomer needs the capacity. The accrued part
/// stays with the borrower, although it has not been used.
#[test]
fn borrower_keeps_accrued_part_of_loan_when_newcomer_is_admitted() {
    let (mut edf, mut at, busy) = lent();
    at.advance(Time::START + Span::from_ms(16));
    let other = join(&mut edf, &mut at, 2, ("5ms", "10ms"));
    assert_eq!(edf.servers[other].cpu, edf.servers[busy].cpu);
    assert_eq!(edf.servers[busy].loan(), Span::from_us(1_800));
    assert_eq!(edf.servers[busy].remaining, Span::from_us(4_800));
}
